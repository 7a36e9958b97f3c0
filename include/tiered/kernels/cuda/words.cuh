/// Words that the host, or another multiprocessor, reads and writes while a kernel runs, and the device's clock. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"

namespace tiered::cuda {
namespace detail {

__device__ __forceinline__ std::uint64_t load_system(std::uint64_t const* from) {
  std::uint64_t v;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(from)) : "memory");
  return v;
}
__device__ __forceinline__ std::uint32_t load_system(std::uint32_t const* from) {
  std::uint32_t v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(__cvta_generic_to_global(from)) : "memory");
  return v;
}
__device__ __forceinline__ std::uint64_t load_device(std::uint64_t const* from) {
  std::uint64_t v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(from)) : "memory");
  return v;
}
/// Never out of L1, but in no order with others.
__device__ __forceinline__ std::uint64_t load_unordered(std::uint64_t const* from) {
  std::uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(from)) : "memory");
  return v;
}
__device__ __forceinline__ void store_system(std::uint64_t* to, std::uint64_t v) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(v) : "memory");
}
__device__ __forceinline__ void store_unordered(std::uint64_t* to, std::uint64_t v) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(v) : "memory");
}
__device__ __forceinline__ void store_device(std::uint64_t* to, std::uint64_t v) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(v) : "memory");
}

__device__ __forceinline__ std::uint64_t now_ns() {
  std::uint64_t v;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(v));
  return v;
}

}  // namespace detail
}  // namespace tiered::cuda
