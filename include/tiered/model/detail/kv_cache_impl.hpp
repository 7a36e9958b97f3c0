/// Defines KvCache: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/model/kv_cache.hpp"

namespace tiered {

KvCache::KvCache(ModelConfig const& config, Options const& options, std::span<float const> share_in_vram, std::byte* vram, AnyTier host)
    : page_tokens_(options.page_tokens),
      n_pages_((options.max_tokens + options.page_tokens - 1) / options.page_tokens),
      n_sequences_(options.n_sequences),
      type_(options.type),
      host_(std::move(host)) {
  std::size_t const n_layers = config.layers.size(), n_slots = std::size_t(n_sequences_), n_pages = std::size_t(n_pages_);
  expects(share_in_vram.size() == n_layers, "KvCache: a share for each layer");
  pages_.assign(n_layers * n_slots * 2 * n_pages, nullptr);
  columns_.resize(n_slots * n_pages);
  for (std::size_t l = 0; l < n_layers; ++l) {
    AttentionConfig const& attention = config.layers[l].attention;
    page_bytes_.push_back(page_bytes(attention, options.type, page_tokens_));
    n_heads_.push_back(attention.n_kv_heads);
    vram_pages_.push_back(pages_in_vram(share_in_vram[l], n_pages_));
    for (std::size_t s = 0; s < n_slots; ++s) {
      tables_.push_back({page_list(l, s, 0), page_list(l, s, 1)});
      for (int kv = 0; kv < 2; ++kv) {
        for (std::int32_t p = 0; p < vram_pages_[l]; ++p, vram += page_bytes_[l]) page_list(l, s, kv)[p] = vram;
      }
    }
  }
}

KvCache::~KvCache() {
  for (Column const& c : columns_) {
    if (c.block.data != nullptr) host_.deallocate(c.block);
  }
}

void KvCache::reserve(std::int32_t slot, std::int32_t n_tokens) {
  std::int32_t const needed = (n_tokens + page_tokens_ - 1) / page_tokens_;
  std::int32_t first = needed;
  while (first > 0 && !column(slot, first - 1).used) --first;
  for (std::int32_t p = first; p < needed; ++p) {
    std::size_t bytes = 0;
    for (std::size_t l = 0; l < page_bytes_.size(); ++l) bytes += p < vram_pages_[l] ? 0 : 2 * page_bytes_[l];
    Column& c = column(slot, p);
    if (c.block.data == nullptr && bytes > 0) c.block = host_.allocate(bytes, 64);
    c.used = true;
    host_bytes_ += bytes;
    std::byte* at = c.block.data;
    for (std::size_t l = 0; l < page_bytes_.size(); ++l) {
      if (p < vram_pages_[l]) continue;
      for (int kv = 0; kv < 2; ++kv, at += page_bytes_[l]) page_list(l, std::size_t(slot), kv)[p] = at;
    }
  }
}

void KvCache::release(std::int32_t slot, std::int32_t n_tokens) noexcept {
  for (std::int32_t p = (n_tokens + page_tokens_ - 1) / page_tokens_; p < n_pages_; ++p) {
    Column& c = column(slot, p);
    if (!std::exchange(c.used, false)) continue;
    host_bytes_ -= c.block.bytes;
    for (std::size_t l = 0; l < page_bytes_.size(); ++l) {
      if (p < vram_pages_[l]) continue;
      for (int kv = 0; kv < 2; ++kv) page_list(l, std::size_t(slot), kv)[p] = nullptr;
    }
    if (c.block.data != nullptr && host_.tier() != Tier::pinned) host_.deallocate(std::exchange(c.block, {}));
  }
}

void KvCache::runs_of(std::int32_t layer, std::int32_t slot, int kv, Range positions, std::vector<std::span<std::byte>>& runs) const {
  std::size_t const l = std::size_t(layer), n_heads = std::size_t(n_heads_[l]), head_bytes = page_bytes_[l] / n_heads,
                    row_bytes = head_bytes / std::size_t(page_tokens_);
  KvTable const& table = tables(layer)[slot];
  for (std::size_t h = 0; h < n_heads; ++h) {
    for (std::int32_t p = positions.begin; p < positions.end;) {
      std::int32_t const page = p / page_tokens_, end = std::min(positions.end, (page + 1) * page_tokens_);
      std::byte* const at = (kv == 0 ? table.k_pages : table.v_pages)[page];
      expects(at != nullptr, "KvCache::runs_of: the page is reserved");
      runs.push_back({at + h * head_bytes + std::size_t(p % page_tokens_) * row_bytes, std::size_t(end - p) * row_bytes});
      p = end;
    }
  }
}

}  // namespace tiered
