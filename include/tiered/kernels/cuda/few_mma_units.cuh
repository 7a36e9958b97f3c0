/// Matrix units for products of few rows: bytes with integer sums, and tf32. From sm_80 on. [device-visible]
///
/// Fragments, lane = 4 g + j; A has rows of activations, B rows of weights:
///   bytes, k32  a[0]: row g, k 4j..4j+3; a[1]: row g + 8, those; a[2]: row g, k 16 + 4j...; a[3]: row g + 8, those
///               b[0]: column g, k 4j..4j+3; b[1]: column g, k 16 + 4j...; k16: a[0], a[1], b[0] of it
///   tf32, k8    a[0]: row g, k j; a[1]: row g + 8, k j; a[2]: row g, k j + 4; a[3]: row g + 8, k j + 4; b[0]: column g, k j; b[1]: k j + 4
///   C           c[0], c[1]: row g, columns 2j and 2j + 1; c[2], c[3]: row g + 8
#pragma once

#include <cstdint>

namespace tiered::cuda::detail {

/// c = a b of signed bytes, k32.
__device__ __forceinline__ void multiply_bytes(int (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
#endif
}
/// The same, k16.
__device__ __forceinline__ void multiply_bytes(int (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0), "r"(0));
#endif
}

/// c += a b of tf32, k8: floats whose lowest 13 bits are not looked at.
__device__ __forceinline__ void multiply_tf32(float (&c)[4], float const (&a)[4], float b0, float b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
#endif
}

/// (v & mask) ^ bits in one instruction, which compilers make two of where both are constants.
__device__ __forceinline__ std::uint32_t masked_and_flipped(std::uint32_t v, std::uint32_t mask, std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  std::uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(out) : "r"(v), "r"(mask), "r"(bits));
  return out;
#else
  return (v & mask) ^ bits;
#endif
}

/// The part of a float that tf32 holds; v minus it is exact.
__device__ __forceinline__ float tf32_part(float v) { return __uint_as_float(__float_as_uint(v) & 0xffffe000u); }

}  // namespace tiered::cuda::detail
