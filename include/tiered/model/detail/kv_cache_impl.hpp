/// Defines KvCache: for one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/model/kv_cache.hpp"

namespace tiered {

KvCache::KvCache(ModelConfig const& config, Options options, std::vector<bool> in_vram, std::byte* vram)
    : n_pages_((options.max_tokens + kv_page_tokens - 1) / kv_page_tokens),
      n_sequences_(options.n_sequences),
      type_(options.type),
      in_vram_(std::move(in_vram)) {
  std::size_t const n_layers = config.layers.size(), n_slots = std::size_t(n_sequences_), n_pages = std::size_t(n_pages_);
  pages_.assign(n_layers * n_slots * 2 * n_pages, nullptr);
  for (LayerConfig const& layer : config.layers) {
    page_bytes_.push_back(page_bytes(layer.attention, options.type));
    n_heads_.push_back(layer.attention.n_kv_heads);
  }
  for (std::size_t l = 0; l < n_layers; ++l) {
    for (std::size_t s = 0; s < n_slots; ++s) tables_.push_back({page_list(l, s, 0), page_list(l, s, 1)});
    if (!in_vram_[l]) continue;
    for (std::size_t i = 0; i < n_slots * 2 * n_pages; ++i, vram += page_bytes_[l]) pages_[l * n_slots * 2 * n_pages + i] = vram;
  }
}

KvCache::~KvCache() {
  for (std::size_t s = 0; s < std::size_t(n_sequences_); ++s) release(std::int32_t(s));
}

void KvCache::reserve(std::int32_t slot, std::int32_t n_tokens) {
  std::size_t const needed = std::size_t((n_tokens + kv_page_tokens - 1) / kv_page_tokens);
  for (std::size_t l = 0; l < in_vram_.size(); ++l) {
    if (in_vram_[l]) continue;
    for (int kv = 0; kv < 2; ++kv) {
      std::byte** const list = page_list(l, std::size_t(slot), kv);
      std::size_t first = needed;
      while (first > 0 && list[first - 1] == nullptr) --first;
      for (std::size_t p = first; p < needed; ++p) list[p] = host_.allocate(page_bytes_[l], 64).data;
    }
  }
}

void KvCache::page_runs(std::int32_t layer, std::int32_t slot, int kv, std::int32_t page, std::int32_t n_rows,
                        std::vector<std::span<std::byte>>& runs) const {
  std::size_t const l = std::size_t(layer), n_heads = std::size_t(n_heads_[l]), head_bytes = page_bytes_[l] / n_heads;
  KvTable const& table = tables(layer)[slot];
  std::byte* const at = (kv == 0 ? table.k_pages : table.v_pages)[page];
  expects(at != nullptr, "KvCache::page_runs: the page is reserved");
  for (std::size_t h = 0; h < n_heads; ++h) runs.push_back({at + h * head_bytes, head_bytes / kv_page_tokens * std::size_t(n_rows)});
}

void KvCache::release(std::int32_t slot, std::int32_t n_tokens) noexcept {
  std::size_t const kept = std::size_t((n_tokens + kv_page_tokens - 1) / kv_page_tokens);
  for (std::size_t l = 0; l < in_vram_.size(); ++l) {
    if (in_vram_[l]) continue;
    for (int kv = 0; kv < 2; ++kv) {
      std::byte** const list = page_list(l, std::size_t(slot), kv);
      for (std::size_t p = kept; p < std::size_t(n_pages_); ++p) {
        if (list[p] != nullptr) host_.deallocate({list[p], page_bytes_[l], Tier::pageable});
        list[p] = nullptr;
      }
    }
  }
}

}  // namespace tiered
