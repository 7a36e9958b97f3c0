/// Faults: the nth event fails, once, with the error of its kind.
#include "tiered/sim/faults.hpp"

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"

using tiered::Errc;
using tiered::FaultKind;
using tiered::Faults;

namespace {

constexpr FaultKind all_kinds[] = {FaultKind::allocation, FaultKind::copy, FaultKind::read, FaultKind::launch};

}  // namespace

TEST_CASE("nothing fails until it is asked for", "[sim][faults]") {
  Faults faults;
  for (FaultKind kind : all_kinds) {
    for (int i = 0; i < 10; ++i) REQUIRE_FALSE(faults.strikes(kind));
    REQUIRE(faults.seen(kind) == 10);
  }
  REQUIRE(faults.fired() == 0);
}

TEST_CASE("the nth event of a kind fails, and no other", "[sim][faults]") {
  for (FaultKind kind : all_kinds) {
    for (int n = 1; n <= 5; ++n) {
      Faults faults;
      faults.fail_at(kind, std::uint64_t(n));
      for (int event = 1; event <= 7; ++event) {
        for (FaultKind other : all_kinds) REQUIRE(faults.strikes(other) == (other == kind && event == n));
      }
      REQUIRE(faults.fired() == 1);
    }
  }
}

TEST_CASE("events are counted from the order on; 0 takes it back", "[sim][faults]") {
  Faults faults;
  for (int i = 0; i < 3; ++i) faults.visit(FaultKind::copy);
  faults.fail_at(FaultKind::copy, 2);
  REQUIRE_FALSE(faults.strikes(FaultKind::copy));
  REQUIRE(faults.strikes(FaultKind::copy));
  faults.fail_at(FaultKind::copy, 1);
  faults.fail_at(FaultKind::copy, 0);
  REQUIRE_FALSE(faults.strikes(FaultKind::copy));
  faults.fail_at(FaultKind::copy, 1);
  faults.reset();
  REQUIRE_FALSE(faults.strikes(FaultKind::copy));
  REQUIRE(faults.seen(FaultKind::copy) == 1);
  REQUIRE(faults.fired() == 0);
}

TEST_CASE("a fault is the error that the real thing would give", "[sim][faults]") {
  auto const code = [](FaultKind kind) {
    Faults faults;
    faults.fail_at(kind, 1);
    return tiered_test::error_of([&] { faults.visit(kind); }).code;
  };
  REQUIRE(code(FaultKind::allocation) == Errc::out_of_memory);
  REQUIRE(code(FaultKind::copy) == Errc::device);
  REQUIRE(code(FaultKind::read) == Errc::io);
  REQUIRE(code(FaultKind::launch) == Errc::device);
}

TEST_CASE("of many threads exactly one meets the fault", "[sim][faults]") {
  Faults faults;
  faults.fail_at(FaultKind::read, 1234);
  std::atomic<int> struck{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) struck += faults.strikes(FaultKind::read);
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(struck.load() == 1);
  REQUIRE(faults.seen(FaultKind::read) == 4000);
}

TEST_CASE("reads of a source fail on order", "[sim][faults]") {
  struct Source {
    std::uint64_t size_bytes() const { return 4; }
    void read_at(std::uint64_t offset, std::span<std::byte> dst) const {
      for (std::size_t i = 0; i < dst.size(); ++i) dst[i] = std::byte(offset + i);
    }
  } const source;
  Faults faults;
  tiered::FaultyReads<Source> const faulty(source, faults);
  faults.fail_at(FaultKind::read, 2);
  std::byte bytes[2] = {};
  faulty.read_at(2, bytes);
  REQUIRE(bytes[1] == std::byte{3});
  REQUIRE_THROWS_AS(faulty.read_at(0, bytes), tiered::Error);
  REQUIRE(bytes[1] == std::byte{3});
  faulty.read_at(0, bytes);
  REQUIRE(bytes[1] == std::byte{1});
  REQUIRE(faulty.size_bytes() == 4);
}
