/// PageableTier: what its error says. The rules of every tier are in conformance/memory_tier_suite.hpp.
#include "tiered/memory/pageable.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"

using tiered::MiB;
using tiered::PageableTier;

namespace {

/// The "VmFlags:" line of the part of this process's address space that holds `address`; empty where the system has none.
std::string vm_flags(void const* address) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  auto const wanted = reinterpret_cast<std::uintptr_t>(address);
  bool here = false;
  while (std::getline(smaps, line)) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &begin, &end) == 2) here = begin <= wanted && wanted < end;
    if (here && line.rfind("VmFlags:", 0) == 0) return line + " ";
  }
  return "";
}

}  // namespace

TEST_CASE("a full tier names the numbers", "[memory][pageable]") {
  PageableTier tier(1000);
  tiered::Block const block = tier.allocate(600, 64);
  auto const error = tiered_test::error_of([&] { tier.allocate(500, 64); });
  INFO(error.message);
  REQUIRE(error.code == tiered::Errc::out_of_memory);
  REQUIRE(error.says("500 bytes", "600 B are used", "400 B left"));
  tier.deallocate(block);
}

TEST_CASE("without a limit, only what no object can be is refused", "[memory][pageable]") {
  PageableTier tier;
  REQUIRE(tier.capacity_bytes() == PageableTier::unlimited);
  REQUIRE_THROWS_AS(tier.allocate(PageableTier::unlimited, 64), tiered::Error);
  REQUIRE_THROWS_AS(tier.allocate(PageableTier::unlimited - 64, 4096), tiered::Error);
  REQUIRE(tier.used_bytes() == 0);
}

TEST_CASE("the peak is the most that was ever used", "[memory][pageable]") {
  PageableTier tier;
  tiered::Block const a = tier.allocate(100, 64), b = tier.allocate(50, 64);
  tier.deallocate(a);
  tiered::Block const c = tier.allocate(20, 64);
  REQUIRE(tier.used_bytes() == 70);
  REQUIRE(tier.peak_bytes() == 150);
  tier.deallocate(b);
  tier.deallocate(c);
  REQUIRE(tier.used_bytes() == 0);
  REQUIRE(tier.peak_bytes() == 150);
}

TEST_CASE("large blocks begin at a huge page and ask for such; what is behind the last whole one does not", "[memory][pageable]") {
  PageableTier tier;
  tiered::Block const large = tier.allocate(5 * MiB, 64), small = tier.allocate(1 * MiB, 64);
  REQUIRE(reinterpret_cast<std::uintptr_t>(large.data) % (2 * MiB) == 0);
  std::fill_n(large.data, large.bytes, std::byte{1});
  std::string const flags = vm_flags(large.data), behind = vm_flags(large.data + 4 * MiB);
  INFO(flags << "; " << behind);
  bool const has_huge_pages = std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").good();
  if (has_huge_pages && !flags.empty()) {
    REQUIRE(flags.find(" hg ") != std::string::npos);
    REQUIRE(behind.find(" hg ") == std::string::npos);
  }
  REQUIRE(tier.used_bytes() == 6 * MiB);
  tier.deallocate(large);
  tier.deallocate(small);
  tiered::Block const aligned = tier.allocate(3 * MiB, 8 * MiB);
  REQUIRE(reinterpret_cast<std::uintptr_t>(aligned.data) % (8 * MiB) == 0);
  tier.deallocate(aligned);
}
