/// Keys and values of all sequences, in pages, each where its layer's plan has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/memory/any_tier.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/model/config.hpp"
#include "tiered/model/shard.hpp"

namespace tiered {

inline constexpr std::int32_t kv_page_tokens = attention_span;

/// A page has its home by its position: of each sequence and layer the first ones are in VRAM, the others in host memory. Pages in VRAM
/// have their places when the plan is made, so that nothing is allocated there later: all layers' of a page of one sequence side by side,
/// page by page, and within a page sequence by sequence. So what is in use grows from the begin of the room, and what lies behind it may be
/// lent to others. Host memory gets a page when the first token needs it. Nothing ever moves from one home to the other.
/// Threads  one; tables may be read by lanes meanwhile, since pages that are in use never move.
class KvCache {
 public:
  struct Options {
    std::int32_t max_tokens = 0;                ///< of a sequence; rounded up to whole pages
    std::int32_t n_sequences = 1;               ///< at once
    DType type = DType::f16;                    ///< any that tables have attention for
    std::int32_t page_tokens = kv_page_tokens;  ///< a multiple or a divisor of attention_span
  };

  /// `share_in_vram`: of each layer, in whole pages as pages_in_vram() counts them. `vram`: room for these; may be null where there are
  /// none. `host`: where the other pages are.
  KvCache(ModelConfig const& config, Options const& options, std::span<float const> share_in_vram, std::byte* vram,
          AnyTier host = PageableTier());
  KvCache(KvCache const&) = delete;
  KvCache& operator=(KvCache const&) = delete;
  ~KvCache();

  /// Bytes of K or V of one page.
  static std::size_t page_bytes(AttentionConfig const& a, DType type, std::int32_t page_tokens = kv_page_tokens) {
    return std::size_t(a.n_kv_heads) * std::size_t(page_tokens) * kv_row_bytes(type, a.head_dim);
  }

  DType type() const { return type_; }
  std::int32_t page_tokens() const { return page_tokens_; }
  std::size_t page_bytes(std::int32_t layer) const { return page_bytes_[std::size_t(layer)]; }
  /// Positions below it are in VRAM, the others in host memory.
  std::int32_t vram_tokens(std::int32_t layer) const { return vram_pages_[std::size_t(layer)] * page_tokens_; }
  /// Whether all of a layer is there.
  bool in_vram(std::int32_t layer) const { return vram_pages_[std::size_t(layer)] == n_pages_; }
  /// Whether the layer's first n positions are, of any sequence.
  bool in_vram(std::int32_t layer, std::int32_t n_tokens) const { return n_tokens <= vram_tokens(layer); }
  /// Whether those of every layer are.
  bool all_in_vram(std::int32_t n_tokens) const { return n_tokens <= least_vram_pages_ * page_tokens_; }
  std::int32_t max_tokens() const { return n_pages_ * page_tokens_; }
  /// Of host memory, what positions use; and what is taken: page-locked memory is taken ahead, and kept for sequences to come.
  std::size_t host_bytes() const { return host_bytes_; }
  std::size_t host_held_bytes() const { return host_.used_bytes(); }
  /// Another number where pages in host memory came or went since.
  std::uint64_t host_version() const { return host_version_; }
  /// From the begin of the room in VRAM: nothing behind it is reserved.
  std::size_t vram_bytes_in_use() const;

  /// Pages for positions [0, n_tokens) of a sequence slot. Page-locked memory is taken ahead, as much again as the slot has: each
  /// allocation of it is slow.
  /// Errors  Errc::out_of_memory; pages got so far stay and are used when asked again.
  void reserve(std::int32_t slot, std::int32_t n_tokens);

  /// Returns the pages of a slot that hold no position below n_tokens. Page-locked memory is kept until the slot reserves these pages
  /// again.
  void release(std::int32_t slot, std::int32_t n_tokens = 0) noexcept;

  /// One per sequence slot; page lists in host memory.
  KvTable const* tables(std::int32_t layer) const { return tables_.data() + std::size_t(layer) * std::size_t(n_sequences_); }
  /// Where positions of a sequence lie, K (kv 0) or V (kv 1): runs of bytes, appended to `runs` by head, then by position. Those in host
  /// memory must be reserved.
  void runs_of(std::int32_t layer, std::int32_t slot, int kv, Range positions, std::vector<std::span<std::byte>>& runs) const;
  std::int32_t n_slots() const { return n_sequences_; }
  std::int32_t n_pages() const { return n_pages_; }

 private:
  /// All layers' pages of one number and one slot.
  struct Column {
    std::byte* data = nullptr;  // of those in host memory
    Block block;                // which begins with this column's; empty where an earlier column's reaches here
  };
  std::byte** page_list(std::size_t layer, std::size_t slot, int kv) {
    return pages_.data() + ((layer * std::size_t(n_sequences_) + slot) * 2 + std::size_t(kv)) * std::size_t(n_pages_);
  }
  Column& column(std::int32_t slot, std::int32_t page) { return columns_[std::size_t(slot) * std::size_t(n_pages_) + std::size_t(page)]; }
  std::size_t column_bytes(std::int32_t page, bool in_vram) const;
  std::int32_t pages_for(std::int32_t n_tokens) const { return (n_tokens + page_tokens_ - 1) / page_tokens_; }
  void allocate_columns(std::int32_t slot, std::int32_t page);
  bool try_allocate(std::int32_t slot, Range pages);

  std::int32_t page_tokens_, n_pages_, n_sequences_;
  DType type_;
  std::vector<std::int32_t> vram_pages_;  // per layer
  std::vector<std::size_t> page_bytes_;
  std::vector<std::int32_t> n_heads_;
  std::vector<std::byte*> pages_;            // [layer][slot][K, V][page]
  std::vector<KvTable> tables_;              // [layer][slot]
  std::vector<Column> columns_;              // [slot][page]
  std::vector<std::int32_t> used_pages_;     // [slot]
  std::vector<std::size_t> vram_column_at_;  // by page: of the first slot; and the end of all
  std::int32_t least_vram_pages_ = 0;        // of any layer
  std::size_t host_bytes_ = 0;               // of those that are used
  std::uint64_t host_version_ = 0;
  AnyTier host_;
};

}  // namespace tiered
