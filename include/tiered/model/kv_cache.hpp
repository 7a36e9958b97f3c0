/// Keys and values of all sequences, in pages, each layer's where its plan has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/model/config.hpp"
#include "tiered/model/shard.hpp"

namespace tiered {

inline constexpr std::int32_t kv_page_tokens = attention_span;

/// Layers in VRAM have room for every sequence's whole context, reserved when the plan is made, so that nothing is allocated
/// there later. Layers in host memory get a page when the first token needs it.
/// Threads  one; tables may be read by lanes meanwhile, since pages that are in use never move.
class KvCache {
 public:
  struct Options {
    std::int32_t max_tokens = 0;   ///< of a sequence; rounded up to whole pages
    std::int32_t n_sequences = 1;  ///< at once
    DType type = DType::f16;       ///< any that tables have attention for
  };

  /// `vram`: room for all layers whose in_vram is true, as vram_bytes() says; may be null where none is.
  KvCache(ModelConfig const& config, Options options, std::vector<bool> in_vram, std::byte* vram);
  KvCache(KvCache const&) = delete;
  KvCache& operator=(KvCache const&) = delete;
  ~KvCache();

  /// Bytes of K or V of one page.
  static std::size_t page_bytes(AttentionConfig const& a, DType type) {
    return std::size_t(a.n_kv_heads) * kv_page_tokens * kv_row_bytes(type, a.head_dim);
  }

  DType type() const { return type_; }
  bool in_vram(std::int32_t layer) const { return in_vram_[std::size_t(layer)]; }
  std::int32_t max_tokens() const { return n_pages_ * kv_page_tokens; }
  std::size_t host_bytes() const { return host_.used_bytes(); }

  /// Pages of all host layers for positions [0, n_tokens) of a sequence slot.
  /// Errors  Errc::out_of_memory; pages got so far stay and are used when asked again.
  void reserve(std::int32_t slot, std::int32_t n_tokens);

  /// Returns the host pages of a slot that hold no position below n_tokens.
  void release(std::int32_t slot, std::int32_t n_tokens = 0) noexcept;

  /// One per sequence slot; page lists in host memory.
  KvTable const* tables(std::int32_t layer) const { return tables_.data() + std::size_t(layer) * std::size_t(n_sequences_); }
  /// Where the first n_rows positions of one page lie, K (kv 0) or V (kv 1): a run of bytes for each head, appended to `runs`.
  /// In VRAM where in_vram(layer) says so; else the page must be reserved.
  void page_runs(std::int32_t layer, std::int32_t slot, int kv, std::int32_t page, std::int32_t n_rows,
                 std::vector<std::span<std::byte>>& runs) const;
  std::int32_t n_slots() const { return n_sequences_; }
  std::int32_t n_pages() const { return n_pages_; }

 private:
  std::byte** page_list(std::size_t layer, std::size_t slot, int kv) {
    return pages_.data() + ((layer * std::size_t(n_sequences_) + slot) * 2 + std::size_t(kv)) * std::size_t(n_pages_);
  }

  std::int32_t n_pages_, n_sequences_;
  DType type_;
  std::vector<bool> in_vram_;
  std::vector<std::size_t> page_bytes_;
  std::vector<std::int32_t> n_heads_;
  std::vector<std::byte*> pages_;  // [layer][slot][K, V][page]
  std::vector<KvTable> tables_;    // [layer][slot]
  PageableTier host_;
};

}  // namespace tiered
