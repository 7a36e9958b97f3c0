/// Pieces (one_row_pieces.cuh) of blocks of 256: two chunks, or halves of four, so that what they share is read once. [device-visible]
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

/// 16 elements of each of four chunks.
struct HalvesInput {
  int q[4][4];
  float scale[4];
  int sums[4];
};
template <class F>
__device__ __forceinline__ HalvesInput load_halves_of_four(OneRow const& row, int piece) {
  HalvesInput x;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    int const place = c * row.n_pieces + piece;
    int4 const q = *reinterpret_cast<int4 const*>(row.half(place));
    uint2 const scale_and_sums = *reinterpret_cast<uint2 const*>(row.scale(place >> 1));
    x.q[c][0] = q.x, x.q[c][1] = q.y, x.q[c][2] = q.z, x.q[c][3] = q.w;
    x.scale[c] = __uint_as_float(scale_and_sums.x), x.sums[c] = int(scale_and_sums.y);
  }
  return x;
}

/// The lower two bits of each nibble of a, the upper two of b: in one instruction, which the compiler does not find.
__device__ __forceinline__ std::uint32_t low_of_high_of(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  std::uint32_t out;
  asm("lop3.b32 %0, %1, %2, 0x33333333, 0xe4;" : "=r"(out) : "r"(a), "r"(b));
  return out;
#else
  return (a & 0x33333333u) | (b & 0xccccccccu);
#endif
}

__device__ __forceinline__ std::uint32_t turned_left(std::uint32_t v, int bits) { return __funnelshift_l(v, v, unsigned(bits) & 31u); }
template <int n>
__device__ __forceinline__ void load_words_at(unsigned char const* at, std::uint32_t (&words)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) words[i] = reinterpret_cast<std::uint32_t const*>(at)[i];
}
__device__ __forceinline__ void load_four(unsigned char const* from, std::uint32_t* words) {
  uint4 const four = *reinterpret_cast<uint4 const*>(from);
  words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
}
/// 16-bit halves of two sums of 16 products.
__device__ __forceinline__ int packed(int first, int second) { return int(__byte_perm(unsigned(first), unsigned(second), 0x5410)); }

/// Four or eight words from byte `at` of a block on, which may begin two bytes behind a multiple of four (`odd`), as activations in
/// `turned` order have them.
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
  __device__ __forceinline__ void load(unsigned char const* at, std::uint32_t (&words)[4]) const {
    auto const* const from = reinterpret_cast<std::uint32_t const*>(at + begin);
    std::uint32_t const first = *reinterpret_cast<std::uint32_t const*>(at + edge);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = from[i];
    words[3] = __byte_perm(words[3], first, selector);
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

/// Of Q3_K, half lane % 2 of the four chunks of a half block, number lane / 2 % 2: of four bytes of low bits, which have two for each
/// chunk, and four of high bits, which have one for each of eight, become four times four weights of three bits, without their 4.
class HalvesProduct {
 public:
  __device__ __forceinline__ explicit HalvesProduct(int lane)
      : high_at_((lane & 1) * 16),
        low_at_(32 + (lane & 3) * 16),
        high_shift_((lane & 2) * 2),
        scales_turn_(2 - 2 * (lane & 2)),
        tops_factor_((lane & 2) == 0 ? 64u : 4u),
        below_(int(0x00c000fcu << 8 * (lane & 1))) {}

  /// What does not depend on weights: 4 of each element, times 16 in the last two chunks, whose weights lie in upper nibbles.
  __device__ __forceinline__ void prepare(HalvesInput& x) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      x.sums[c] = c < 2 ? __dp2a_lo(x.sums[c], below_, 0) : __dp2a_hi(x.sums[c], below_, 0);
      x.scale[c] *= c < 2 ? 0.25f : 0.25f / 16;
    }
  }

 protected:
  /// Adds the products of four elements of each chunk. low: two bits of each in every byte; high: one, the half's in the lower nibble.
  __device__ static __forceinline__ void add_four(std::uint32_t low, std::uint32_t high, HalvesInput const& x, int i, int (&dot)[4]) {
    // A factor brings bits 0 and 2 of a byte to 2 and 6, or bits 1 and 3; what else it makes meets at 4 and reaches 5.
    std::uint32_t const even = low_of_high_of(low, (high & 0x05050505u) * 20u);
    std::uint32_t const odd = low_of_high_of(low >> 2, (high & 0x0a0a0a0au) * 10u);
    dot[0] = dot_unsigned(even & 0x0f0f0f0fu, x.q[0][i], dot[0]);
    dot[1] = dot_unsigned(odd & 0x0f0f0f0fu, x.q[1][i], dot[1]);
    dot[2] = dot_unsigned(even & 0xf0f0f0f0u, x.q[2][i], dot[2]);
    dot[3] = dot_unsigned(odd & 0xf0f0f0f0u, x.q[3][i], dot[3]);
  }
  /// bottoms: the bytes that have the chunks' lower four bits of scales; tops: the upper two.
  __device__ __forceinline__ float scaled(std::uint32_t bottoms, std::uint32_t tops, int const (&dot)[4], HalvesInput const& x) const {
    std::uint32_t const placed = __byte_perm(tops * tops_factor_, tops * (tops_factor_ / 4), 0x7610);
    // Less 32, times four so that bytes have their signs.
    std::uint32_t const scales = ((turned_left(bottoms, scales_turn_) & 0x3c3c3c3cu) | (placed & 0xc0c0c0c0u)) ^ 0x80808080u;
    float sum = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      int const scale = int(permute_signs(scales, 0, 0x8880u + 0x1111u * unsigned(c)));
      sum = fmaf(x.scale[c], float(scale * dot[c]), sum);  // below 2^24
    }
    return sum;
  }

  int high_at_, low_at_, high_shift_;

 private:
  int scales_turn_;
  std::uint32_t tops_factor_;
  int below_;
};

/// Where rows begin at multiples of a word, blocks lie as where they do at multiples of 16.
template <class F>
class PairProduct<Shifted<F>> : public PairProduct<F> {
 public:
  using PairProduct<F>::PairProduct;
};

template <>
class PairProduct<Q3_K> : public HalvesProduct {
 public:
  __device__ __forceinline__ explicit PairProduct(int lane)
      : HalvesProduct(lane), words_((lane & 4) != 0), scales_at_(96 - words_.begin), d_shift_(words_.begin * 8) {
    unsigned const j = unsigned(lane & 1);
    bool const odd = words_.begin != 0;
    first_ = odd ? 0x0642u + 0x0111u * j : 0x6420u + 0x1111u * j;
    last_ = odd ? 0x4210u + 0x1000u * j : 0x3210u;
    tops_ = (odd ? 0x4242u : 0x2020u) + 0x1111u * j;
  }

  __device__ __forceinline__ float add(unsigned char const* block, HalvesInput const& x, float sum) const {
    std::uint32_t low[4], high[4], ends[4];
    words_.load(block + low_at_, low);
    words_.load(block + high_at_, high);
    load_words_at(block + scales_at_, ends);
    int dot[4] = {x.sums[0], x.sums[1], x.sums[2], x.sums[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) add_four(low[i], high[i] >> high_shift_, x, i, dot);
    std::uint32_t const bottoms = __byte_perm(__byte_perm(ends[0], ends[1], first_), ends[2], last_);
    std::uint32_t const tops = __byte_perm(ends[2], ends[3], tops_);
    return fmaf(f16_value(ends[3] >> d_shift_), scaled(bottoms, tops, dot, x), sum);
  }

 private:
  TurnedWords words_;
  int scales_at_, d_shift_;
  unsigned first_, last_, tops_;  ///< selectors
};

/// Words are put together of what is read, one eighth more instructions.
template <>
class PairProduct<AnyAddress<Q3_K>> : public HalvesProduct {
 public:
  __device__ __forceinline__ explicit PairProduct(int lane)
      : HalvesProduct(lane), first_(0x6420u + 0x1111u * unsigned(lane & 1)), last_(0x0800u + 0x0800u * unsigned(lane & 1)) {}

  __device__ __forceinline__ float add(unsigned char const* block, HalvesInput const& x, float sum) const {
    unsigned const odd = unsigned(reinterpret_cast<std::uintptr_t>(block)) & 2u, shift = odd * 8;
    unsigned char const* const words = block - odd;
    std::uint32_t low[5], high[5], ends[4];
    load_words_at(words + low_at_, low);
    load_words_at(words + high_at_, high);
    load_words_at(words + 96, ends);
    int dot[4] = {x.sums[0], x.sums[1], x.sums[2], x.sums[3]};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      add_four(__funnelshift_r(low[i], low[i + 1], shift), __funnelshift_r(high[i], high[i + 1], shift + unsigned(high_shift_)), x, i, dot);
    }
    unsigned const selector = first_ + odd * 0x1111u;
    std::uint32_t const bottoms = permute_signs(permute_signs(ends[0], ends[1], selector), ends[2], 0x3210u + odd * last_);
    std::uint32_t const tops = permute_signs(ends[2], ends[3], selector - 0x4400u);
    return fmaf(f16_value(ends[3] >> shift), scaled(bottoms, tops, dot, x), sum);
  }

 private:
  unsigned first_, last_;
};

/// Of Q6_K, chunks 4 * half + lane % 2 and the one behind the next.
class SixBitsProduct {
 public:
  __device__ __forceinline__ explicit SixBitsProduct(int lane)
      : low_at_((lane & 2) * 32 + (lane & 1) * 32),
        high_at_(128 + (lane & 2) * 16),
        shift_((lane & 1) * 2),
        scales_at_(192 + (lane & 2) * 4 + (lane & 1) * 2) {}

 protected:
  __device__ __forceinline__ float add_words(unsigned char const* block, std::uint32_t const (&q)[8], std::uint32_t const (&high)[8],
                                             PairInput const& x, float sum) const {
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

  int low_at_, high_at_;

 private:
  int shift_, scales_at_;
};

template <>
class PairProduct<Q6_K> : public SixBitsProduct {
 public:
  __device__ __forceinline__ explicit PairProduct(int lane) : SixBitsProduct(lane), words_((lane & 4) != 0) {}

  __device__ __forceinline__ float add(unsigned char const* block, PairInput const& x, float sum) const {
    std::uint32_t q[8], high[8];
    words_.load(block + low_at_, q);
    words_.load(block + high_at_, high);
    return add_words(block, q, high, x, sum);
  }

 private:
  TurnedWords words_;
};

template <>
class PairProduct<AnyAddress<Q6_K>> : public SixBitsProduct {
 public:
  using SixBitsProduct::SixBitsProduct;

  __device__ __forceinline__ float add(unsigned char const* block, PairInput const& x, float sum) const {
    unsigned const odd = unsigned(reinterpret_cast<std::uintptr_t>(block)) & 2u, shift = odd * 8;
    std::uint32_t low[9], high[9];
    load_words_at(block - odd + low_at_, low);
    load_words_at(block - odd + high_at_, high);
    std::uint32_t q[8], upper[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = __funnelshift_r(low[i], low[i + 1], shift);
      upper[i] = __funnelshift_r(high[i], high[i + 1], shift);
    }
    return add_words(block, q, upper, x, sum);
  }
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
  __device__ __forceinline__ auto input(OneRow const& row, int piece, int) const {
    if constexpr (OneRowPiece<F>::of_halves) {
      HalvesInput x = load_halves_of_four<F>(row, piece);
      product_.prepare(x);
      return x;
    } else {
      return load_pair<F>(row, piece);
    }
  }
  template <class Input>
  __device__ __forceinline__ float add(unsigned char const* weights, int piece, int, Input const& x, float sum) const {
    return product_.add(weights + (piece >> 2) * F::block_bytes, x, sum);
  }

 private:
  PairProduct<F> product_;
};
template <class F>
using PieceProductOf = std::conditional_t<OneRowPiece<F>::of_256, PairPieces<F>, PieceProduct<F>>;

}  // namespace detail
}  // namespace tiered::cuda
