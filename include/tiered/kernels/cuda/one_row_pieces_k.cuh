/// Pieces (one_row_pieces.cuh) of blocks of 256: two chunks, so that what they share is read once. [device-visible]
///
/// Four pieces make up a block and eight blocks a warp's step, so a lane's piece has the same place in its block at every step, and blocks
/// of 110 or 210 bytes, of which every second one begins in the middle of a word, begin alike.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tiered/kernels/cuda/one_row_pieces.cuh"

namespace tiered::cuda {
namespace detail {

struct PairInput {
  int q[2][8];
  float scale[2];
  int sums[2];
};
template <class F>
__device__ __forceinline__ PairInput load_pair(OneRow const& row, int piece) {
  PairInput x;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    BlockInput const chunk = load_place<F>(row, c * row.n_pieces + piece);
    x.q[c][0] = chunk.first.x, x.q[c][1] = chunk.first.y, x.q[c][2] = chunk.first.z, x.q[c][3] = chunk.first.w;
    x.q[c][4] = chunk.second.x, x.q[c][5] = chunk.second.y, x.q[c][6] = chunk.second.z, x.q[c][7] = chunk.second.w;
    x.scale[c] = chunk.scale, x.sums[c] = chunk.sums;
  }
  return x;
}

__device__ __forceinline__ std::uint32_t turned_left(std::uint32_t v, int bits) { return __funnelshift_l(v, v, unsigned(bits) & 31u); }
__device__ __forceinline__ void load_four(unsigned char const* from, std::uint32_t* words) {
  uint4 const four = *reinterpret_cast<uint4 const*>(from);
  words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}
/// 16-bit halves of two sums of 16 products.
__device__ __forceinline__ int packed(int first, int second) { return int(__byte_perm(unsigned(first), unsigned(second), 0x5410)); }

/// Eight words from byte `at` of a block on, which may begin two bytes behind a multiple of four (`odd`), as activations in `turned` order
/// have them.
struct TurnedWords {
  int begin, edge;  ///< behind the block: the first word boundary; the word that the first two elements are in
  unsigned selector;
  __device__ __forceinline__ explicit TurnedWords(bool odd) : begin(odd ? 2 : 0), edge(odd ? -2 : 0), selector(odd ? 0x7610 : 0x3210) {}
  __device__ __forceinline__ void load(unsigned char const* at, std::uint32_t (&words)[8]) const {
    auto const* const from = reinterpret_cast<std::uint32_t const*>(at + begin);
    std::uint32_t const first = *reinterpret_cast<std::uint32_t const*>(at + edge);
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = from[i];
    std::uint32_t const middle = words[3];
    words[3] = __byte_perm(middle, first, selector);
    words[7] = __byte_perm(words[7], middle, selector);
  }
};

template <class F>
class PairProduct;

/// Q4_K and, with fifth bits, Q5_K: multiples of 16 bytes.
template <class F>
class PairProduct45 {
 public:
  __device__ __forceinline__ explicit PairProduct45(int lane)
      : low_((lane & 2) == 0), selector_((lane & 1) == 0 ? 0x5410 : 0x7632), turn_(4 - 2 * (lane & 3)), at_((lane & 3) * 32) {}

  __device__ __forceinline__ float add(unsigned char const* block, PairInput const& x, float sum) const {
    constexpr bool five = F::dtype == DType::q5_k;
    std::uint32_t head[4], q[8], high[8];
    load_four(block, head);
    load_four(block + (five ? 48 : 16) + at_, q);
    load_four(block + (five ? 48 : 16) + at_ + 16, q + 4);
    if constexpr (five) load_four(block + 16, high), load_four(block + 32, high + 4);
    int dot[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if constexpr (five) {
        std::uint32_t const bits = turned_left(high[i], turn_);
        dot[0] = __dp4a(int((q[i] & 0x0f0f0f0fu) | (bits & 0x10101010u)), x.q[0][i], dot[0]);
        dot[1] = __dp4a(int((q[i] >> 3 & 0x1e1e1e1eu) | (bits & 0x20202020u)), x.q[1][i], dot[1]);
      } else {
        dot[0] = __dp4a(int(q[i] & 0x0f0f0f0fu), x.q[0][i], dot[0]);
        dot[1] = dot_unsigned(q[i] & 0xf0f0f0f0u, x.q[1][i], dot[1]);
      }
    }
    dot[1] >>= five ? 1 : 4;
    // scale_min_k4(): bytes of both scales, both mins.
    std::uint32_t const a = __byte_perm(head[1], head[2], selector_), b = __byte_perm(head[3], head[3] >> 4, selector_);
    std::uint32_t const both = low_ ? a & 0x3f3f3f3fu : (b & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
    int const mins = int(__byte_perm(both, 0, 0x3322));
    float const scaled = fmaf(x.scale[1], float(int(both >> 8 & 255u) * dot[1]), x.scale[0] * float(int(both & 255u) * dot[0]));
    float const below = fmaf(x.scale[1], float(__dp2a_hi(x.sums[1], mins, 0)), x.scale[0] * float(__dp2a_lo(x.sums[0], mins, 0)));
    return fmaf(-f16_value(head[0] >> 16), below, fmaf(f16_value(head[0]), scaled, sum));
  }

 private:
  bool low_;
  unsigned selector_;
  int turn_, at_;
};
template <>
class PairProduct<Q4_K> : public PairProduct45<Q4_K> {
  using PairProduct45::PairProduct45;
};
template <>
class PairProduct<Q5_K> : public PairProduct45<Q5_K> {
  using PairProduct45::PairProduct45;
};

template <>
class PairProduct<Q2_K> {
 public:
  __device__ __forceinline__ explicit PairProduct(int lane)
      : at_(16 + (lane & 2) * 16), scales_at_((lane & 3) * 4), shift_((lane & 1) * 4), mask_(0x03030303u << shift_) {}

  __device__ __forceinline__ float add(unsigned char const* block, PairInput const& x, float sum) const {
    auto const* const q = reinterpret_cast<std::uint32_t const*>(block + at_);
    std::uint32_t const scales_and_mins = *reinterpret_cast<std::uint32_t const*>(block + scales_at_);
    std::uint32_t const factors = *reinterpret_cast<std::uint32_t const*>(block + 80);
    int dot[2][2] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t const word = q[i];
      dot[0][i / 4] = dot_unsigned(word & mask_, x.q[0][i], dot[0][i / 4]);
      dot[1][i / 4] = dot_unsigned(word & mask_ << 2, x.q[1][i], dot[1][i / 4]);
    }
    int const scales = int(scales_and_mins & 0x0f0f0f0fu), mins = int(scales_and_mins >> 4 & 0x0f0f0f0fu);
    int const first = __dp2a_lo(packed(dot[0][0] >> shift_, dot[0][1] >> shift_), scales, 0);
    int const second = __dp2a_hi(packed(dot[1][0] >> shift_, dot[1][1] >> shift_), scales, 0);  // times 4
    float const scaled = fmaf(x.scale[1] * 0.25f, float(second), x.scale[0] * float(first));
    float const below = fmaf(x.scale[1], float(__dp2a_hi(x.sums[1], mins, 0)), x.scale[0] * float(__dp2a_lo(x.sums[0], mins, 0)));
    return fmaf(-f16_value(factors >> 16), below, fmaf(f16_value(factors), scaled, sum));
  }

 private:
  int at_, scales_at_, shift_;
  std::uint32_t mask_;
};

/// Low bits and high ones are multiplied apart, where they are: the units that multiply have more room than those that shift and merge.
template <>
class PairProduct<Q3_K> {
 public:
  __device__ __forceinline__ explicit PairProduct(int lane)
      : words_((lane & 4) != 0),
        at_(32 + (lane & 2) * 16),
        low_shift_((lane & 1) * 4),
        high_shift_((lane & 3) * 2),
        low_mask_(0x03030303u << low_shift_),
        high_mask_(0x01010101u << high_shift_),
        scales_at_(96 + (lane & 1) * 4 - words_.begin),
        scales_turn_(2 - 2 * (lane & 2)),
        tops_at_(104 - words_.begin),
        tops_turn_(6 - 2 * (lane & 3)),
        d_shift_(words_.begin * 8),
        selector_(words_.begin != 0 ? 0x5432 : 0x3210) {}

  __device__ __forceinline__ float add(unsigned char const* block, PairInput const& x, float sum) const {
    std::uint32_t q[8], high[8];
    words_.load(block + at_, q);
    words_.load(block, high);
    int lows[2][2] = {}, highs[2][2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {  // a high bit that is not set: -4
      int const minus = int((0u - high_mask_) << c & 255u);
      highs[c][0] = __dp2a_lo(x.sums[c], minus, 0), highs[c][1] = __dp2a_lo(x.sums[c], minus << 8, 0);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        lows[c][i / 4] = dot_unsigned(q[i] & low_mask_ << (2 * c), x.q[c][i], lows[c][i / 4]);
        highs[c][i / 4] = dot_unsigned(high[i] & high_mask_ << c, x.q[c][i], highs[c][i / 4]);
      }
    }
    int dot[2][2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int half = 0; half < 2; ++half)
        dot[c][half] = (lows[c][half] >> (low_shift_ + 2 * c)) + (highs[c][half] >> (high_shift_ + c)) * 4;
    }
    auto const word = [&](int at) { return *reinterpret_cast<std::uint32_t const*>(block + at); };
    std::uint32_t const last = word(tops_at_ + 4);
    std::uint32_t const bottoms = __byte_perm(word(scales_at_), word(scales_at_ + 4), selector_);
    std::uint32_t const tops = __byte_perm(word(tops_at_), last, selector_);
    // Scales less 32, times four so that bytes have their signs.
    std::uint32_t const parts = (turned_left(bottoms, scales_turn_) & 0x3c3c3c3cu) | (turned_left(tops, tops_turn_) & 0xc0c0c0c0u);
    int const scales = int(parts ^ 0x80808080u);
    int const first = __dp2a_lo(packed(dot[0][0], dot[0][1]), scales, 0), second = __dp2a_hi(packed(dot[1][0], dot[1][1]), scales, 0);
    float const scaled = fmaf(x.scale[1], float(second), x.scale[0] * float(first));
    return fmaf(f16_value(last >> d_shift_) * 0.25f, scaled, sum);
  }

 private:
  TurnedWords words_;
  int at_, low_shift_, high_shift_;
  std::uint32_t low_mask_, high_mask_;
  int scales_at_, scales_turn_, tops_at_, tops_turn_, d_shift_;
  unsigned selector_;
};

template <>
class PairProduct<Q6_K> {
 public:
  /// Chunks 4 * half + lane % 2 and the one behind the next.
  __device__ __forceinline__ explicit PairProduct(int lane)
      : words_((lane & 4) != 0),
        low_at_((lane & 2) * 32 + (lane & 1) * 32),
        high_at_(128 + (lane & 2) * 16),
        shift_((lane & 1) * 2),
        scales_at_(192 + (lane & 2) * 4 + (lane & 1) * 2) {}

  __device__ __forceinline__ float add(unsigned char const* block, PairInput const& x, float sum) const {
    std::uint32_t q[8], high[8];
    words_.load(block + low_at_, q);
    words_.load(block + high_at_, high);
    int dot[2][2];
#pragma unroll
    for (int c = 0; c < 2; ++c) dot[c][0] = __dp2a_lo(x.sums[c], 0xe0, 0), dot[c][1] = __dp2a_lo(x.sums[c], 0xe000, 0);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t const first = high[i] << (4 - shift_), second = high[i] >> shift_;
      dot[0][i / 4] = __dp4a(int((q[i] & 0x0f0f0f0fu) | (first & 0x30303030u)), x.q[0][i], dot[0][i / 4]);
      dot[1][i / 4] = __dp4a(int((q[i] >> 4 & 0x0f0f0f0fu) | (second & 0x30303030u)), x.q[1][i], dot[1][i / 4]);
    }
    float value[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      auto const* const scales = reinterpret_cast<signed char const*>(block + scales_at_ + 4 * c);
      value[c] = float(int(scales[0]) * dot[c][0] + int(scales[1]) * dot[c][1]);
    }
    return fmaf(load_f16(block, 208), fmaf(x.scale[1], value[1], x.scale[0] * value[0]), sum);
  }

 private:
  TurnedWords words_;
  int low_at_, high_at_, shift_, scales_at_;
};

template <>
class PairProduct<IQ4_XS> {
 public:
  __device__ __forceinline__ explicit PairProduct(int lane)
      : at_(8 + (lane & 3) * 32), low_turn_((lane & 3) * 8), high_turn_((lane & 3) * 4) {}

  __device__ __forceinline__ float add(unsigned char const* block, PairInput const& x, float sum) const {
    uint2 const head = *reinterpret_cast<uint2 const*>(block);  // d and scales_h, scales_l
    std::uint32_t const low = head.y >> low_turn_, high = head.x >> (16 + high_turn_);
    int const scale[2] = {int((low & 15u) | (high & 3u) << 4) - 32, int((low >> 4 & 15u) | (high & 12u) << 2) - 32};
    float value[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      std::uint32_t words[4];
      auto const* const from = reinterpret_cast<uint2 const*>(block + at_ + 16 * c);
      uint2 const a = from[0], b = from[1];
      words[0] = a.x, words[1] = a.y, words[2] = b.x, words[3] = b.y;
      BlockInput const chunk{{x.q[c][0], x.q[c][1], x.q[c][2], x.q[c][3]}, {x.q[c][4], x.q[c][5], x.q[c][6], x.q[c][7]}, 0, 0};
      value[c] = float(scale[c] * look_up_and_multiply<IQ4_XS>(words, chunk));
    }
    return fmaf(f16_value(head.x), fmaf(x.scale[1], value[1], x.scale[0] * value[0]), sum);
  }

 private:
  int at_, low_turn_, high_turn_;
};

/// Of all of these.
template <class F>
class PairPieces {
 public:
  static constexpr int parts = 1;
  __device__ __forceinline__ explicit PairPieces(int lane) : product_(lane) {}
  __device__ static __forceinline__ PairInput input(OneRow const& row, int piece, int) { return load_pair<F>(row, piece); }
  __device__ __forceinline__ float add(unsigned char const* weights, int piece, int, PairInput const& x, float sum) const {
    return product_.add(weights + (piece >> 2) * F::block_bytes, x, sum);
  }

 private:
  PairProduct<F> product_;
};
template <class F>
using PieceProductOf = std::conditional_t<OneRowPiece<F>::of_256, PairPieces<F>, PieceProduct<F>>;

}  // namespace detail
}  // namespace tiered::cuda
