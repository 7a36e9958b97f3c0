/// Memory that ends where a test's data ends: reading further is a segmentation fault.
#pragma once

#if defined(__linux__)

#include <cstddef>
#include <cstring>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "catch.hpp"

namespace tiered_test {

/// A copy of bytes that ends where memory ends.
class AtTheEnd {
 public:
  explicit AtTheEnd(std::vector<std::byte> const& bytes) : page_(std::size_t(::sysconf(_SC_PAGESIZE))) {
    room_ = (bytes.size() + page_ - 1) / page_ * page_;
    void* const memory = ::mmap(nullptr, room_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    base_ = static_cast<std::byte*>(memory);
    REQUIRE(::mprotect(base_ + room_, page_, PROT_NONE) == 0);
    begin_ = base_ + room_ - bytes.size();
    std::memcpy(begin_, bytes.data(), bytes.size());
  }
  AtTheEnd(AtTheEnd const&) = delete;
  AtTheEnd& operator=(AtTheEnd const&) = delete;
  ~AtTheEnd() { ::munmap(base_, room_ + page_); }
  std::byte const* begin() const { return begin_; }

 private:
  std::size_t page_, room_ = 0;
  std::byte *base_ = nullptr, *begin_ = nullptr;
};

}  // namespace tiered_test

#endif
