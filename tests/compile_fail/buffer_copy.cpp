// expect-error: (deleted|call to implicitly-deleted)
#include <utility>

#include "tiered/memory/buffer.hpp"

tiered::Buffer twice(tiered::Buffer& buffer) {
#ifdef FIXED
  return std::move(buffer);
#else
  return buffer;  // bytes have one owner
#endif
}
