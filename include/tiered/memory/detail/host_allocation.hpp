/// Aligned host memory of the C library, in huge pages where it is large, with the library's error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include <sys/mman.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"

namespace tiered::detail {

/// What x86-64 and most arm64 systems have. From this size on, memory begins at a multiple of it.
inline constexpr std::size_t huge_page_bytes = 2 * MiB;

/// Null for 0 bytes; Errc::out_of_memory where the system has none. `alignment` is a power of two.
/// Whole huge pages are asked for: a core that reads gigabytes in order meets a new page, and perhaps a walk through page tables, every
/// 2 MiB in place of every 4 KiB, and touching the memory first takes one fault in place of 512. A refusal changes nothing.
inline std::byte* host_allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes == 0) return nullptr;
  bool const large = bytes >= huge_page_bytes;
  alignment = std::max(alignment, large ? huge_page_bytes : alignof(std::max_align_t));
  void* data = nullptr;
  if (::posix_memalign(&data, alignment, bytes) != 0)
    throw Error(Errc::out_of_memory, concat("the system refused ", format_bytes(bytes), " of host memory"));
#if defined(MADV_HUGEPAGE)
  if (large) ::madvise(data, bytes / huge_page_bytes * huge_page_bytes, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(data);
}

/// Takes no alignment, which operator delete would need and a Block does not hold.
inline void host_deallocate(std::byte* data) noexcept { std::free(data); }

}  // namespace tiered::detail
