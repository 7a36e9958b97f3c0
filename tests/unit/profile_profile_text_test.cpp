#include "tiered/profile/profile_text.hpp"

#include <string>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using tiered_test::error_of;

namespace {

HardwareProfile random_profile(std::uint64_t seed) {
  SplitMix64 random(seed);
  auto const number = [&] { return double(random.next() >> 11) * 1.3e-4; };
  auto const curve = [&](std::uint64_t n) {
    RateCurve c;
    for (std::uint64_t i = 0; i < n; ++i) c.points.push_back({double(i) + random.unit(), number()});
    return c;
  };
  HardwareProfile h;
  h.host.name = "a host # with = signs", h.gpu.name = "";
  for (DeviceRates* const d : {&h.host, &h.gpu}) {
    for (MatmulRates& m : d->matmul) m = {number(), curve(random.below(5))};
    d->attention_bytes_per_s = number(), d->attention_flops_per_s = number(), d->launch_s = random.unit() * 1e-5;
    for (std::uint64_t i = random.below(4); i > 0; --i)
      d->formats.push_back({DType::q2_k,
                            DType::q2_k,
                            DType::q3_k,
                            random.below(2) == 0,
                            std::int32_t(random.below(100000)),
                            256,
                            {number(), curve(random.below(6))}});
  }
  h.n_threads = std::int32_t(random.below(256));
  h.dram_bytes_per_s = number(), h.copy_latency_s = random.unit() * 1e-5, h.hop_latency_s = random.unit() * 1e-5,
  h.event_latency_s = 1.0 / 3;
  h.h2d = curve(6), h.d2h = curve(1), h.both_ways = curve(2), h.dram_by_threads = curve(3);
  h.mutual = {random.unit(), random.unit()};
  return h;
}

}  // namespace

TEST_CASE("a profile is read back as it was written, to the last digit", "[profile]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    INFO(seed);
    HardwareProfile const h = seed == 0 ? HardwareProfile::simulated() : random_profile(seed);
    ProfileText const read = parse_profile_text(to_profile_text(h, "a machine; 2 threads"));
    CHECK(read.profile == h);
    CHECK(read.key == "a machine; 2 threads");
  }
}

TEST_CASE("a profile that was changed or cut off is known", "[profile]") {
  std::string const text = to_profile_text(random_profile(3), "k");
  for (std::size_t n = 0; n < text.size(); ++n) {
    INFO(n);
    CHECK(error_of([&] { parse_profile_text(std::string_view(text).substr(0, n)); }).code == Errc::bad_file);
    std::string changed = text;
    changed[n] = char(changed[n] == '7' ? '8' : '7');
    CHECK(error_of([&] { parse_profile_text(changed); }).code == Errc::bad_file);
  }
  CHECK(error_of([&] { parse_profile_text(text + "\n"); }).code == Errc::bad_file);
  CHECK(error_of([&] { to_profile_text(HardwareProfile{}, "two\nlines"); }).code == Errc::precondition);
}
