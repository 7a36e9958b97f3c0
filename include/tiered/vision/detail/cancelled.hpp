/// Work that someone may want to end: files that are read, frames that are decoded.
#pragma once

#include <atomic>

#include "tiered/core/error.hpp"

namespace tiered::detail {

/// Errors  Errc::cancelled once the flag is set; there may be none.
inline void check_cancelled(std::atomic<bool> const* flag) {
  if (flag != nullptr && flag->load(std::memory_order_relaxed)) throw Error(Errc::cancelled, "cancelled while a video was read");
}

}  // namespace tiered::detail
