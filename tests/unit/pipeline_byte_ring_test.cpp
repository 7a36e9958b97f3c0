#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/pipeline/byte_ring.hpp"

using namespace tiered;
using tiered_test::error_of;

TEST_CASE("a range may be taken again once it is released, after its last use") {
  ByteRing ring(100);
  std::vector<Ticket> after;
  auto const a = ring.producer_acquire(0, 60, after);
  CHECK(after.empty());
  ring.producer_commit(a, {1, 5});
  CHECK(ring.consumer_wait(a) == Ticket{1, 5});
  CHECK(error_of([&] { ring.producer_acquire(50, 20, after); }).code == Errc::precondition);
  ring.consumer_release(a, {2, 9});
  ring.producer_acquire(50, 20, after);
  CHECK(after == std::vector<Ticket>{{2, 9}});
  after.clear();
  ring.producer_acquire(0, 50, after);  // what is left of the first range still guards its bytes
  CHECK(after == std::vector<Ticket>{{2, 9}});
  CHECK(ring.live_bytes() == 70);
}

TEST_CASE("ranges outside of the ring and handles that are not live are refused") {
  ByteRing ring(64);
  std::vector<Ticket> after;
  CHECK(error_of([&] { ring.producer_acquire(60, 5, after); }).code == Errc::precondition);
  CHECK(error_of([&] { ring.producer_acquire(65, 0, after); }).code == Errc::precondition);
  CHECK(error_of([&] { ring.producer_acquire(8, std::size_t(-1), after); }).code == Errc::precondition);
  auto const a = ring.producer_acquire(0, 64, after);
  ring.consumer_release(a, {1, 1});
  CHECK(error_of([&] { ring.consumer_release(a, {1, 2}); }).code == Errc::precondition);
  CHECK(error_of([&] { ring.consumer_wait(a); }).code == Errc::precondition);
}

TEST_CASE("every byte is guarded by its own last use") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    std::size_t const size = 40;
    ByteRing ring(size);
    std::vector<std::uint64_t> last_use(size, 0);  // of each byte
    std::vector<bool> live(size, false);
    struct Taken {
      ByteRing::Handle handle;
      std::size_t begin, end;
    };
    std::vector<Taken> taken;
    for (std::uint64_t time = 1; time < 300; ++time) {
      if (!taken.empty() && random.below(2) == 0) {
        std::size_t const i = random.below(taken.size());
        ring.consumer_release(taken[i].handle, {1, time});
        for (std::size_t b = taken[i].begin; b < taken[i].end; ++b) {
          live[b] = false;
          last_use[b] = time;
        }
        taken.erase(taken.begin() + std::ptrdiff_t(i));
        continue;
      }
      std::size_t const begin = random.below(size), bytes = 1 + random.below(size - begin);
      bool free = true;
      std::uint64_t needed = 0;
      for (std::size_t b = begin; b < begin + bytes; ++b) {
        free = free && !live[b];
        needed = std::max(needed, last_use[b]);
      }
      std::vector<Ticket> after;
      if (!free) {
        CHECK(error_of([&] { ring.producer_acquire(begin, bytes, after); }).code == Errc::precondition);
        continue;
      }
      auto const handle = ring.producer_acquire(begin, bytes, after);
      std::uint64_t got = 0;
      for (Ticket t : after) got = std::max(got, t.value);
      CHECK(got == needed);
      for (std::size_t b = begin; b < begin + bytes; ++b) live[b] = true;
      taken.push_back({handle, begin, begin + bytes});
    }
  }
}
