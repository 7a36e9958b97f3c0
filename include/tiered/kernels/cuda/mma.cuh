/// Tensor cores and asynchronous copies to shared memory, by their PTX instructions; what sm_75 lacks is done by plain ones.
/// [device-visible]
///
/// Fragments of m16n8k16, in 32-bit registers of two 16-bit elements each (the lower one first), lane = 4 g + j:
///   A [16, 16]  a[0]: row g, k 2j and 2j + 1; a[1]: row g + 8; a[2]: row g, k 2j + 8 and + 9; a[3]: row g + 8, those
///   B [16, 8]   b[0]: column g, k 2j and 2j + 1; b[1]: column g, k 2j + 8 and + 9
///   C [16, 8]   c[0], c[1]: row g, columns 2j and 2j + 1; c[2], c[3]: row g + 8
/// So both operands are read from arrays [row or column][k] by ldmatrix without transposition.
#pragma once

#include <cstdint>

#include "tiered/kernels/format/half.hpp"

namespace tiered::cuda {

/// The address that shared-memory instructions take.
__device__ inline std::uint32_t shared_address(void const* p) { return std::uint32_t(__cvta_generic_to_shared(p)); }

/// Four 8 x 8 matrices of 16-bit elements: lane 8 i + r names row r of matrix i, 16 bytes, aligned to 16. out[i]: of matrix i, row
/// lane / 4, elements 2 (lane % 4) and the next.
__device__ inline void load_matrices(std::uint32_t (&out)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row)
               : "memory");
}
/// Likewise, each matrix transposed.
__device__ inline void load_matrices_transposed(std::uint32_t (&out)[4], std::uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(row)
               : "memory");
}

/// c += a b, of binary16.
__device__ inline void multiply_f16(float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

/// c += a b, of bfloat16.
__device__ inline void multiply_bf16(float (&c)[4], std::uint32_t const (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // No such units: every lane asks the lanes of its rows and columns for their elements.
  auto const low = [](std::uint32_t pair) { return bfloat16_to_float(std::uint16_t(pair)); };
  auto const high = [](std::uint32_t pair) { return bfloat16_to_float(std::uint16_t(pair >> 16)); };
  int const lane = int(threadIdx.x) & 31, row = lane & ~3, column = (lane & 3) * 8;
  for (int i = 0; i < 4; ++i) {
    for (int half = 0; half < 2; ++half) {
      std::uint32_t const b = half == 0 ? b0 : b1;
      std::uint32_t const left = __shfl_sync(~0u, b, column + i), right = __shfl_sync(~0u, b, column + 4 + i);
      std::uint32_t const upper = __shfl_sync(~0u, a[half * 2], row + i), lower = __shfl_sync(~0u, a[half * 2 + 1], row + i);
      c[0] += low(upper) * low(left) + high(upper) * high(left);
      c[1] += low(upper) * low(right) + high(upper) * high(right);
      c[2] += low(lower) * low(left) + high(lower) * high(left);
      c[3] += low(lower) * low(right) + high(lower) * high(right);
    }
  }
#endif
}

/// Copies n_bytes (0 to 16) from `global` to shared memory and fills the 16 bytes up with zeros. Both addresses are multiples of 16;
/// nothing past n_bytes is read. Seen by this thread after wait_copies(), by others after a barrier that follows.
__device__ inline void copy_16(std::uint32_t shared, void const* global, int n_bytes = 16) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(__cvta_generic_to_global(global)), "r"(n_bytes)
               : "memory");
#else
  uint4 value{0, 0, 0, 0};
  if (n_bytes == 16) {
    value = *static_cast<uint4 const*>(global);
  } else {
    std::uint32_t words[4] = {};
    for (int i = 0; i < n_bytes; ++i) words[i / 4] |= std::uint32_t(static_cast<unsigned char const*>(global)[i]) << (i % 4 * 8);
    value = uint4{words[0], words[1], words[2], words[3]};
  }
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w) : "memory");
#endif
}
/// Ends a group of copies of this thread, empty ones too.
__device__ inline void commit_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Until all but the n_pending youngest groups of this thread have arrived.
template <int n_pending>
__device__ inline void wait_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(n_pending) : "memory");
#endif
}

/// Two floats, rounded to binary16 or bfloat16, the first in the lower half.
__device__ inline std::uint32_t pack_f16(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  std::uint16_t low, high;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(low) : "f"(first));
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(high) : "f"(second));
  return low | std::uint32_t(high) << 16;
#endif
}
__device__ inline std::uint32_t pack_bf16(float first, float second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
#else
  return float_to_bfloat16(first) | std::uint32_t(float_to_bfloat16(second)) << 16;
#endif
}

/// The two halves of a register.
__device__ __forceinline__ float low_f16(std::uint32_t pair) {
  float value;
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(value) : "r"(pair));
  return value;
}
__device__ __forceinline__ float high_f16(std::uint32_t pair) {
  float value;
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}" : "=f"(value) : "r"(pair));
  return value;
}

/// What rounding to binary16 took from two floats, itself rounded.
__device__ __forceinline__ std::uint32_t rest_f16(float first, float second, std::uint32_t rounded) {
  return pack_f16(first - low_f16(rounded), second - high_f16(rounded));
}

}  // namespace tiered::cuda
