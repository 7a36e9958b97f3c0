/// Aligned host memory of the C library, with the library's error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"

namespace tiered::detail {

/// Null for 0 bytes; Errc::out_of_memory where the system has none. `alignment` is a power of two.
inline std::byte* host_allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes == 0) return nullptr;
  alignment = std::max(alignment, alignof(std::max_align_t));
  std::size_t const whole = (bytes + alignment - 1) & ~(alignment - 1);  // aligned_alloc wants a multiple
  void* const data = whole < bytes ? nullptr : std::aligned_alloc(alignment, whole);
  if (data == nullptr) throw Error(Errc::out_of_memory, concat("the system refused ", format_bytes(bytes), " of host memory"));
  return static_cast<std::byte*>(data);
}

/// Takes no alignment, which operator delete would need and a Block does not hold.
inline void host_deallocate(std::byte* data) noexcept { std::free(data); }

}  // namespace tiered::detail
