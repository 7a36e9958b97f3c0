/// What a lane takes at a time of one row's products (one_row.cuh), and what it makes of it. [device-visible]
///
/// Instructions are counted here: at the bandwidth of memory a multiprocessor has two or three of them for each weight. So bits stay where
/// they are in their words where a power of two makes up for it, scales of several groups are taken apart together, and activations lie as
/// the weights come.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tiered/kernels/cuda/few_rows.cuh"
#include "tiered/kernels/cuda/few_stages.cuh"
#include "tiered/kernels/cuda/few_tuning.hpp"

namespace tiered::cuda {
namespace detail {

/// F where rows of weights begin at multiples of a word, but not of 16; rows of blocks that end in the middle of one have an even number.
template <class F>
struct Shifted : F {};
/// F where rows of weights begin at any even address.
template <class F>
struct AnyAddress : F {};
template <class F>
inline constexpr bool is_any_address = false;
template <class F>
inline constexpr bool is_any_address<AnyAddress<F>> = true;
template <class F>
inline constexpr bool is_shifted = is_any_address<F>;
template <class F>
inline constexpr bool is_shifted<Shifted<F>> = true;

/// How the 32 bytes of a chunk of activations lie.
enum class ChunkOrder : std::uint8_t {
  plain,
  turned,       ///< in every second block of 256, which begins in the middle of a word: each half turned by two elements
  interleaved,  ///< element i, i + 16, i + 1, i + 17, ...: nibbles as they follow in their words
};

/// Neighbouring chunks, so many that they begin at a multiple of four bytes; of blocks of 256, two that share what they are unpacked from,
/// or where four do, halves of those.
template <class F>
struct OneRowPiece {
  static constexpr bool blocks = FewChunk<F>::blocks, of_256 = F::block_elems == 256, of_halves = F::dtype == DType::q3_k;
  static constexpr int chunks = of_256 ? 2 : !blocks || F::block_bytes % 4 == 0 ? 1 : F::block_bytes % 2 == 0 ? 2 : 4;
  static constexpr bool looks_up = F::dtype == DType::iq4_nl || F::dtype == DType::iq4_xs || F::dtype == DType::mxfp4;
  static constexpr ChunkOrder order = looks_up                                                  ? ChunkOrder::interleaved
                                      : of_256 && F::block_bytes % 4 != 0 && !is_any_address<F> ? ChunkOrder::turned
                                                                                                : ChunkOrder::plain;

  /// The piece of a chunk, and its place in it; of halves, the first one's piece. Two chunks of Q6_K share the bytes of their nibbles.
  __device__ static __forceinline__ int piece_of(int chunk) {
    if constexpr (of_halves) return (chunk >> 2) * 2;
    return F::dtype == DType::q6_k ? (chunk >> 2) * 2 + (chunk & 1) : chunk / chunks;
  }
  __device__ static __forceinline__ int index_of(int chunk) {
    if constexpr (of_halves) return chunk & 3;
    return F::dtype == DType::q6_k ? chunk >> 1 & 1 : chunk % chunks;
  }
};

/// A row of activations in shared memory, in the planes of FewLayout. Chunk c of piece p is at place c * n_pieces + p, so that lanes with
/// neighbouring pieces read without conflicts. Of halves, the first two planes are one, where the half of chunk c is at that place; scale
/// and sums, which both halves' pieces have, are at half of it.
struct OneRow {
  unsigned char* data;
  int n_pieces, plane_bytes;

  /// 16 bytes of a half, and 8 of scale and sums.
  __device__ __forceinline__ unsigned char* half(int place) const { return data + place * 16; }
  __device__ __forceinline__ unsigned char* scale(int place) const { return data + 2 * plane_bytes + place * 8; }
};
template <class F>
__device__ __forceinline__ OneRow one_row(unsigned char* data, int n_elems) {
  int const chunks = few_chunks<F>(n_elems);
  return {data, chunks / OneRowPiece<F>::chunks, chunks * 16};
}
template <class F>
__device__ __forceinline__ auto load_place(OneRow const& row, int place) {
  return load_input<F>(row.data, row.data + 2 * row.plane_bytes, row.plane_bytes, place);
}

/// prmt.b32 as it is: a selector's fourth bit asks for the byte's sign in all bits.
__device__ __forceinline__ std::uint32_t permute_signs(std::uint32_t a, std::uint32_t b, std::uint32_t selector) {
#if defined(__CUDA_ARCH__)
  std::uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
#else
  std::uint64_t const bytes = std::uint64_t(b) << 32 | a;
  std::uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    std::uint32_t const nibble = selector >> 4 * i & 15u, byte = std::uint32_t(bytes >> 8 * (nibble & 7)) & 255u;
    out |= ((nibble & 8) == 0 ? byte : (byte & 128) != 0 ? 255u : 0u) << 8 * i;
  }
  return out;
#endif
}

/// The product of codebook values of 32 nibbles, in four words, and an interleaved chunk. Values of the lower half and of the upper one are
/// looked up apart: an index of the other half gives the sign of a table's byte, which is 0, or -1 where all of the table are negative.
template <class F>
__device__ __forceinline__ int look_up_and_multiply(std::uint32_t const (&words)[4], BlockInput const& x) {
  using Book = std::conditional_t<F::dtype == DType::mxfp4, MXFP4, IQ4_NL>;
  constexpr bool negative = F::dtype != DType::mxfp4;  // the lower half; the upper one is positive. Else the upper is minus the lower
  constexpr tiered::detail::Codebook16 book = Book::codebook();
  constexpr std::uint64_t lower = book.low, upper = negative ? book.high + 0x0101010101010101u : book.low;
  int const a[8] = {x.first.x, x.first.y, x.first.z, x.first.w, x.second.x, x.second.y, x.second.z, x.second.w};
  // Plus nothing: what the compiler does not know to be a constant stays in its register, and prmt takes one constant only.
  std::uint32_t const lower_first = std::uint32_t(lower) + threadIdx.y, upper_first = std::uint32_t(upper) + threadIdx.y;
  int of_lower = 0, of_upper = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t const index = words[i], other = words[i] ^ 0x88888888u;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t const low = permute_signs(lower_first, std::uint32_t(lower >> 32), index >> (16 * half));
      std::uint32_t const high = permute_signs(upper_first, std::uint32_t(upper >> 32), other >> (16 * half));
      of_lower = __dp4a(int(low), a[2 * i + half], of_lower);
      of_upper = __dp4a(int(high), a[2 * i + half], of_upper);
    }
  }
  return negative ? of_lower + of_upper : of_lower - of_upper;
}

/// Fifth bits of weights [4i, 4i + 4), at bit 4 of each byte. The multiplications' terms meet nowhere.
template <int i>
__device__ __forceinline__ std::uint32_t fifth_bits(std::uint32_t bits) {
  std::uint32_t const byte = bits >> (i / 2 * 8);
  return (i % 2 == 0 ? (byte & 0x0fu) * 0x02040810u : (byte & 0xf0u) * 0x00204081u) & 0x10101010u;
}

/// Pieces of F: sums of a lane. `parts` of one, so that few activations are in registers at a time.
template <class F>
struct PieceProduct {
  static constexpr int parts = OneRowPiece<F>::chunks;

  __device__ __forceinline__ explicit PieceProduct(int) {}
  __device__ static __forceinline__ auto input(OneRow const& row, int piece, int part) {
    return load_place<F>(row, part * row.n_pieces + piece);
  }
  template <class Input>
  __device__ static __forceinline__ float add(unsigned char const* weights, int piece, int part, Input const& x, float sum) {
    if constexpr (!FewChunk<F>::blocks) {
      FloatChunk<F> w;
      load_chunk<F>(weights, 0, piece, FewChunk<F>::elems, w);
      return add_product<F>(w, x, sum);
    } else {
      unsigned char const* const from = weights + piece * (parts * F::block_bytes);
      int const at = part * F::block_bytes;
      if constexpr (OneRowPiece<F>::looks_up) {
        constexpr int data_at = F::block_bytes - 16;
        std::uint32_t words[4];
        load_words_alike<4>(from, at + data_at, words);
        float scale;
        if constexpr (F::dtype == DType::mxfp4) {
          scale = e8m0_to_half_float(from[at]);
        } else {
          scale = load_f16(from, at);
        }
        return fmaf(x.scale, scale * float(look_up_and_multiply<F>(words, x)), sum);
      } else if constexpr (F::dtype == DType::q5_0 || F::dtype == DType::q5_1) {
        return add_five_bits(from, at, x, sum);
      } else {
        typename Unpack<F>::Weights w;
        Unpack<F>::load(from, at, 0, w);
        return add_product<F>(w, x, sum);
      }
    }
  }

 private:
  __device__ static __forceinline__ float add_five_bits(unsigned char const* from, int at, BlockInput const& x, float sum) {
    constexpr bool has_min = F::dtype == DType::q5_1;
    std::uint32_t words[5];
    load_words_alike<5>(from, at + F::block_bytes - 20, words);
    std::uint32_t const five[8] = {fifth_bits<0>(words[0]), fifth_bits<1>(words[0]), fifth_bits<2>(words[0]), fifth_bits<3>(words[0]),
                                   fifth_bits<4>(words[0]), fifth_bits<5>(words[0]), fifth_bits<6>(words[0]), fifth_bits<7>(words[0])};
    int const a[4] = {x.first.x, x.first.y, x.first.z, x.first.w}, b[4] = {x.second.x, x.second.y, x.second.z, x.second.w};
    int first = has_min ? 0 : __dp2a_lo(x.sums, 0xf0f0, 0), second = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      first = __dp4a(int((words[1 + i] & 0x0f0f0f0fu) | five[i]), a[i], first);
      second = __dp4a(int((words[1 + i] >> 4 & 0x0f0f0f0fu) | five[4 + i]), b[i], second);
    }
    float value = load_f16(from, at) * float(first + second);
    if constexpr (has_min) value = fmaf(load_f16(from, at + 2), float(__dp2a_lo(x.sums, 0x0101, 0)), value);
    return fmaf(x.scale, value, sum);
  }
};

}  // namespace detail
}  // namespace tiered::cuda
