/// What attention takes, and the ops on the way into it: rotary positions, pages of keys and values. Part of args.hpp. [device-visible]
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "tiered/core/dtype.hpp"
#include "tiered/core/ids.hpp"

namespace tiered {

enum class RopeKind : std::uint8_t {
  adjacent,  ///< rotates elements (2i, 2i+1): "normal", `llama` files
  halves,    ///< rotates elements (i, i + n_rot/2): "neox", all other files so far
};

/// Rotary positions, in place. Pair i of a head turns by positions[t] * inv_freq[i]; theta, Llama-3 factors, linear and other
/// scaling are all inside inv_freq, which the model computes once. Elements from n_rot on stay as they are.
///
/// Multi-section embeddings (M-RoPE: time, height, width) have several rows of positions, and position_row says which of them turns a
/// pair: by positions[position_row[i] * position_stride + t] * inv_freq[i]. So contiguous and interleaved sections are data.
struct RopeArgs {
  float* x = nullptr;                       ///< [n_tokens, n_heads, head_dim]
  std::int32_t const* positions = nullptr;  ///< [n_tokens], or with position_row [number of rows, n_tokens], rows position_stride apart
  float const* inv_freq = nullptr;          ///< [n_rot / 2]
  std::int32_t n_tokens = 0, n_heads = 0, head_dim = 0, n_rot = 0;
  RopeKind kind = RopeKind::halves;
  float magnitude = 1;                         ///< factor on both sine and cosine
  std::uint8_t const* position_row = nullptr;  ///< [n_rot / 2], or null: row 0 turns all pairs
  std::int32_t position_stride = 0;            ///< elements; >= n_tokens, with position_row only
};

/// Which KV a row of a batch uses: an index into the array of KvTable, and its position there.
struct KvRow {
  std::int32_t table = 0, position = 0;
};
/// The pages of one sequence and layer. Page p holds positions [p * page_tokens, (p + 1) * page_tokens) as
/// K [n_kv_heads, page_tokens, head_dim] and V likewise, in the KV type of the table entry: a head's vector of one position is
/// whole blocks of that type, the last one padded with zeros where head_dim is no multiple of its size.
struct KvTable {
  std::byte* const* k_pages = nullptr;
  std::byte* const* v_pages = nullptr;
};

/// Bytes of a head's vector of one position.
TIERED_HD constexpr std::size_t kv_row_bytes(DType kv_type, std::int32_t head_dim) {
  std::size_t const block = block_elems(kv_type);
  return std::size_t(row_bytes(kv_type, (std::size_t(head_dim) + block - 1) / block * block));
}

/// Stores keys and values of new positions. In q8_0 every 32 elements of a head are quantised for themselves, as encode_row()
/// does it; elements that are not finite become garbage there.
struct KvWriteArgs {
  float const* k = nullptr;         ///< [n_tokens, n_kv_heads, head_dim]
  float const* v = nullptr;         ///< likewise
  KvRow const* rows = nullptr;      ///< [n_tokens]
  KvTable const* tables = nullptr;  ///< [number of sequences]
  std::int32_t n_tokens = 0, n_kv_heads = 0, head_dim = 0, page_tokens = 0;
};

/// q and k on their way into attention, in one go: norms of heads where there are weights, rotation, and storing of k and v as
/// KvWriteArgs does it. q is changed in place; what is in k afterwards is undefined.
struct AttentionInputArgs {
  float* q = nullptr;                       ///< [n_tokens, n_heads, head_dim]
  float* k = nullptr;                       ///< [n_tokens, n_kv_heads, head_dim]
  float const* v = nullptr;                 ///< likewise
  float const* q_norm = nullptr;            ///< [head_dim], or null: no norm
  float const* k_norm = nullptr;            ///< likewise
  std::int32_t const* positions = nullptr;  ///< as RopeArgs
  float const* inv_freq = nullptr;
  KvRow const* rows = nullptr;  ///< as KvWriteArgs
  KvTable const* tables = nullptr;
  std::int32_t n_tokens = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, n_rot = 0, page_tokens = 0;
  float eps = 0, magnitude = 1;
  RopeKind kind = RopeKind::halves;
  std::int32_t position_stride = 0;  ///< as RopeArgs
  std::uint8_t const* position_row = nullptr;
};

/// Who attends to positions that lie in the host's memory, where the device reads the first of them over the link and the host has the
/// others: the device's are a share of all of them and of `ahead` more, since the host must be asked first. Few are all the device's.
struct PositionShare {
  static constexpr std::int32_t whole = 1024, tile = 64;
  std::int32_t border = -1;                ///< positions from it on are there; -1: nothing is shared
  std::int32_t read = 0;                   ///< the device's share of `whole`; 0: it reads none
  std::int32_t ahead = 0;                  ///< positions
  std::int32_t const* read_now = nullptr;  ///< takes the place of `read`, where that moves while a step stays captured; readable there

  /// Of a row at `position` that sees those from `first` on: where the host's begin; position + 1 where it has none.
  TIERED_HD constexpr std::int32_t host_begin(std::int32_t first, std::int32_t position) const {
    std::int64_t const begin = first > border ? first : border, end = std::int64_t(position) + 1;
    std::int32_t const share = read_now != nullptr ? *read_now : read;
    if (begin >= end || share == 0) return std::int32_t(begin < end ? begin : end);
    std::int64_t const at = (begin + (end - begin + ahead) * share / whole) / tile * tile;
    return std::int32_t(at + tile >= end ? end : at > begin ? at : begin);
  }
};

/// Causal attention in one pass, no score matrix: out[t, h] = softmax(scale * q[t, h] . K) V over positions
/// (row.position - window, row.position], window 0 meaning all. Query head h reads KV head h * n_kv_heads / n_heads.
/// Positions are taken in spans of attention_span that begin at multiples of it; a span's part is (maximum, sum, weighted V)
/// and parts are merged in ascending order. So the result depends on the row's own KV alone, not on threads or other rows. With `seen` the
/// CPU's spans begin with what the row sees first: the result does not depend on what lies before that either.
///
/// With `seen` a row's range is given, whatever its own position: attention that is not causal, whole or in windows, without a mask. Rows
/// that see the same, or what touches it, lie together, since they share what is read. Pages of which no row sees anything are not read.
///
/// A call may cover a part of the context, as where the rest is attended to elsewhere: MergeAttentionArgs puts them together. A
/// row that sees nothing of `positions` gets out = 0 and log_sum_exp = -infinity.
struct AttentionArgs {
  float const* q = nullptr;         ///< [n_tokens, n_heads, head_dim]
  KvRow const* rows = nullptr;      ///< [n_tokens]
  KvTable const* tables = nullptr;  ///< [number of sequences]
  float* out = nullptr;             ///< [n_tokens, n_heads, head_dim]
  float* log_sum_exp = nullptr;     ///< [n_tokens, n_heads] or null: natural logarithm of the softmax denominator
  std::byte* workspace = nullptr;   ///< attention_workspace_bytes(...)
  std::int32_t n_tokens = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, page_tokens = 0;
  std::int32_t max_position = 0;  ///< the largest position that a row sees: among rows, or with `seen` the largest end - 1
  std::int32_t window = 0;
  float scale = 1;
  Range positions{0, std::numeric_limits<std::int32_t>::max()};  ///< that this call attends to; begin >= 0
  PositionShare share{};                                         ///< with a border: of these, none of the host's
  Range const* seen = nullptr;  ///< [n_tokens], begin >= 0: row t sees these positions; window is 0 then, and nothing shared. Null: causal

  /// What row `t`, which is at `position`, sees of them; begin >= end where that is nothing.
  TIERED_HD constexpr Range seen_by(std::int32_t t, std::int32_t position) const {
    if (seen != nullptr) {
      Range const own = seen[t];
      return {own.begin > positions.begin ? own.begin : positions.begin, own.end < positions.end ? own.end : positions.end};
    }
    std::int32_t const in_window = window > 0 && position - window + 1 > 0 ? position - window + 1 : 0;
    std::int32_t end = (position < positions.end - 1 ? position : positions.end - 1) + 1;
    if (share.border >= 0) {
      std::int32_t const host = share.host_begin(in_window, position);
      end = end < host ? end : host;
    }
    return {in_window > positions.begin ? in_window : positions.begin, end};
  }
};
inline constexpr std::int32_t attention_span = 256;  ///< page_tokens is a multiple or a divisor of it

inline constexpr std::int32_t attention_few_rows = 16;  ///< up to so many rows are split along the context

/// Parts that the contexts of few rows may be cut into, all rows together: for each a part per span, and where contexts are short and rows
/// fewer still, up to 64 finer ones, of 64 positions at least.
TIERED_HD constexpr std::int64_t attention_parts(std::int32_t n_tokens, std::int32_t max_position) {
  std::int64_t const by_span = n_tokens * (std::int64_t(max_position) / attention_span + 1);
  std::int64_t const finer = n_tokens * (std::int64_t(max_position) / 64 + 1), at_most = finer < 64 ? finer : 64;
  return by_span > at_most ? by_span : at_most;
}

/// Room for those parts of each head where few rows are split along the context, else 0.
TIERED_HD constexpr std::size_t attention_workspace_bytes(std::int32_t n_tokens, std::int32_t n_heads, std::int32_t head_dim,
                                                          std::int32_t max_position) {
  if (n_tokens > attention_few_rows) return 0;
  return std::size_t(attention_parts(n_tokens, max_position)) * std::size_t(n_heads) * std::size_t(head_dim + 2) * sizeof(float);
}

/// What comes before attention, and attention, in one go: attention.q is input.q, and shapes, rows and tables are the same in both. What is
/// in input.q and input.k afterwards is undefined. Where kernels of a queue overlap, rows, tables, rotary positions and angles, norms, and
/// keys and values of earlier positions are read while the op before runs: between whoever writes them, this op aside, and that one lies
/// one that begins when all is complete before it, as attention and embed do.
struct DecodeAttentionArgs {
  AttentionInputArgs input;
  AttentionArgs attention;  ///< causal: without `seen`
  bool rows_apart = false;  ///< no row sees another one's position: each is of a sequence of its own
};

/// Attention over parts of the context, put together: with L[p] a part's log_sum_exp,
/// out[t, h] = sum over p, ascending, of exp(L[p] - log sum_p exp(L[p])) * parts[p, t, h]. A part with L = -infinity is not read.
/// Other bits than one call over all positions. out and log_sum_exp may be those of part 0.
struct MergeAttentionArgs {
  float const* parts = nullptr;             ///< [n_parts, n_tokens, n_heads, head_dim]: AttentionArgs::out
  float const* part_log_sum_exp = nullptr;  ///< [n_parts, n_tokens, n_heads]
  float* out = nullptr;                     ///< [n_tokens, n_heads, head_dim]
  float* log_sum_exp = nullptr;             ///< [n_tokens, n_heads] or null: of all parts together
  std::int32_t n_parts = 0, n_tokens = 0, n_heads = 0, head_dim = 0;
};

}  // namespace tiered
