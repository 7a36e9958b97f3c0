// Touching pages of a mapping: all of them, from any number of ranges, and stopped at any time.
#include <cstddef>
#include <span>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "catch.hpp"
#include "tiered/memory/page_toucher.hpp"

using namespace tiered;

namespace {

/// Pages that are not there before somebody touches them.
class Pages {
 public:
  explicit Pages(std::size_t n) : n_(n), data_(::mmap(nullptr, n * page(), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(data_ != MAP_FAILED);
    ::madvise(data_, n * page(), MADV_NOHUGEPAGE);
  }
  ~Pages() { ::munmap(data_, n_ * page()); }
  static std::size_t page() { return std::size_t(::sysconf(_SC_PAGESIZE)); }
  std::span<std::byte const> bytes(std::size_t first, std::size_t n) const {
    return {static_cast<std::byte const*>(data_) + first * page(), n * page()};
  }
  std::size_t n_present() const {
    std::vector<unsigned char> present(n_);
    // Of private memory mincore() says what the page table has.
    REQUIRE(::mincore(data_, n_ * page(), present.data()) == 0);
    std::size_t n = 0;
    for (unsigned char const p : present) n += p & 1;
    return n;
  }

 private:
  std::size_t n_;
  void* data_;
};

}  // namespace

TEST_CASE("every page of every range is touched, by one thread or several") {
  for (int const n_threads : {1, 3}) {
    Pages const pages(5000);  // 20 MB: several parts
    REQUIRE(pages.n_present() == 0);
    PageToucher toucher({pages.bytes(4000, 1000), pages.bytes(0, 2500), {}}, n_threads);
    toucher.wait();
    CHECK(pages.n_present() == 3500);
    CHECK(toucher.times().second >= toucher.times().first);
  }
}

TEST_CASE("a toucher ends with its owner, whether it had begun or not") {
  Pages const pages(5000);
  for (int i = 0; i < 20; ++i) PageToucher const toucher({pages.bytes(0, 5000)}, 2);
  Pages const untouched(5000);
  for (int i = 0; i < 2; ++i) PageToucher const nobody({untouched.bytes(0, 5000)}, 0), nothing({}, 2);
  CHECK(untouched.n_present() == 0);
}
