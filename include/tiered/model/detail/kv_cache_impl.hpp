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
  used_pages_.assign(n_slots, 0);
  least_vram_pages_ = n_pages_;
  for (std::size_t l = 0; l < n_layers; ++l) {
    AttentionConfig const& attention = config.layers[l].attention;
    page_bytes_.push_back(page_bytes(attention, options.type, page_tokens_));
    n_heads_.push_back(attention.n_kv_heads);
    vram_pages_.push_back(pages_in_vram(share_in_vram[l], n_pages_));
    least_vram_pages_ = std::min(least_vram_pages_, vram_pages_[l]);
    for (std::size_t s = 0; s < n_slots; ++s) tables_.push_back({page_list(l, s, 0), page_list(l, s, 1)});
  }
  std::size_t at = 0;
  for (std::int32_t p = 0; p < n_pages_; ++p) {
    vram_column_at_.push_back(at);
    for (std::size_t s = 0; s < n_slots; ++s) {
      for (std::size_t l = 0; l < n_layers; ++l) {
        if (p >= vram_pages_[l]) continue;
        for (int kv = 0; kv < 2; ++kv, at += page_bytes_[l]) page_list(l, s, kv)[p] = vram + at;
      }
    }
  }
  vram_column_at_.push_back(at);
}

KvCache::~KvCache() {
  for (Column const& c : columns_) {
    if (c.block.data != nullptr) host_.deallocate(c.block);
  }
}

std::size_t KvCache::column_bytes(std::int32_t page, bool in_vram) const {
  std::size_t bytes = 0;
  for (std::size_t l = 0; l < page_bytes_.size(); ++l) bytes += (page < vram_pages_[l]) == in_vram ? 2 * page_bytes_[l] : 0;
  return bytes;
}

std::size_t KvCache::vram_bytes_in_use() const {
  std::size_t end = 0;
  for (std::size_t s = 0; s < used_pages_.size(); ++s) {
    if (used_pages_[s] == 0) continue;
    std::int32_t const last = used_pages_[s] - 1;
    end = std::max(end, vram_column_at_[std::size_t(last)] + (s + 1) * column_bytes(last, true));
  }
  return end;
}

void KvCache::reserve(std::int32_t slot, std::int32_t n_tokens) {
  std::int32_t const needed = pages_for(n_tokens);
  for (std::int32_t& p = used_pages_[std::size_t(slot)]; p < needed; ++p) {
    std::size_t const bytes = column_bytes(p, false);
    if (bytes == 0) continue;
    if (column(slot, p).data == nullptr) allocate_columns(slot, p);
    host_bytes_ += bytes;
    ++host_version_;
    std::byte* at = column(slot, p).data;
    for (std::size_t l = 0; l < page_bytes_.size(); ++l) {
      if (p < vram_pages_[l]) continue;
      for (int kv = 0; kv < 2; ++kv, at += page_bytes_[l]) page_list(l, std::size_t(slot), kv)[p] = at;
    }
  }
}

/// From a page on, which has none behind it that has: of page-locked memory as many as the slot has, or four, where the host has so much.
void KvCache::allocate_columns(std::int32_t slot, std::int32_t page) {
  Column& c = column(slot, page);
  if (host_.tier() == Tier::pinned) {
    constexpr std::int32_t least_ahead = 4;
    auto const n_there = std::count_if(&column(slot, 0), &c, [](Column const& before) { return before.data != nullptr; });
    std::int32_t const end = std::min(n_pages_, page + std::max(std::int32_t(n_there), least_ahead));
    if (end > page + 1 && try_allocate(slot, {page, end})) return;
  }
  c.block = host_.allocate(column_bytes(page, false), 64);
  c.data = c.block.data;
}

bool KvCache::try_allocate(std::int32_t slot, Range pages) {
  std::size_t bytes = 0;
  for (std::int32_t p = pages.begin; p < pages.end; ++p) bytes += column_bytes(p, false);
  Column& first = column(slot, pages.begin);
  try {
    first.block = host_.allocate(bytes, 64);
  } catch (Error const& error) {
    if (error.code() != Errc::out_of_memory) throw;
    return false;
  }
  std::byte* at = first.block.data;
  for (std::int32_t p = pages.begin; p < pages.end; at += column_bytes(p++, false)) column(slot, p).data = at;
  return true;
}

void KvCache::release(std::int32_t slot, std::int32_t n_tokens) noexcept {
  std::int32_t& used = used_pages_[std::size_t(slot)];
  for (std::int32_t const kept = pages_for(n_tokens); used > kept; --used) {
    std::int32_t const p = used - 1;
    Column& c = column(slot, p);
    if (column_bytes(p, false) > 0) ++host_version_;
    host_bytes_ -= column_bytes(p, false);
    for (std::size_t l = 0; l < page_bytes_.size(); ++l) {
      if (p < vram_pages_[l]) continue;
      for (int kv = 0; kv < 2; ++kv) page_list(l, std::size_t(slot), kv)[p] = nullptr;
    }
    if (host_.tier() == Tier::pinned || c.data == nullptr) continue;
    host_.deallocate(std::exchange(c.block, {}));
    c.data = nullptr;
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
