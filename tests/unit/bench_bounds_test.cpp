// Bounds of a machine for a model: against numbers worked out by hand.
#include "../bench/model/bounds.hpp"
#include "catch.hpp"

using bench::MachineRates;
using bench::ModelBytes;
using bench::Routing;

namespace {

/// Round numbers: host memory 10 GB/s (8 by the CPU and 2 by the link, at once), the device 100.
MachineRates round_rates() {
  MachineRates r;
  r.cpu = 9e9;
  r.cpu_beside_link = 8e9;
  r.link = 4e9;
  r.link_beside_cpu = 2e9;
  r.device = 100e9;
  r.flops = 1e12;
  r.context_bytes = 0.5e9;
  return r;
}

/// The 30B of experts in Q4_0 on the reference machine whose bounds were published with the targets.
ModelBytes qwen3_30b() { return {48, 0.815e9, 16.31e9, 1.019e9}; }
MachineRates reference_machine() {
  MachineRates r;
  r.cpu = 105e9;
  r.cpu_beside_link = 94e9;
  r.link = 54e9;
  r.link_beside_cpu = 46e9;
  r.device = 4000e9;
  r.flops = 400e12;
  r.context_bytes = 0.55e9;
  return r;
}

double tokens_per_s(double budget, Routing routing) {
  return 1 / bench::decode_bound(qwen3_30b(), 98304.0 * 1024, budget, routing, reference_machine()).practical_s;
}

}  // namespace

TEST_CASE("host memory gives what CPU and link take at once, and no less than either alone") {
  MachineRates r = round_rates();
  CHECK(r.host_memory() == Approx(10e9));
  r.link = 30e9;
  CHECK(r.host_memory() == Approx(30e9));
}

TEST_CASE("a dense model: what does not fit is read from host memory, in whole bytes") {
  // Room: 2.65 - 0.5 - 0.15 = 2 GB of 4 + 1 GB: 3 GB from the host at 10 GB/s, 2 GB from the device at 100 GB/s.
  ModelBytes const m{10, 4e9, 0, 0};
  bench::DecodeBound const b = bench::decode_bound(m, 1e9, 2.65e9, Routing::uniform, round_rates());
  CHECK(b.host_bytes == Approx(3e9));
  CHECK(b.device_bytes == Approx(2e9));
  CHECK(b.physical_s == Approx(0.3));
  // 10 layers of 16 us, 2 GB at 85 GB/s, then 0.3 s from the host, then 10 times 20 us.
  CHECK(b.practical_s == Approx(160e-6 + 2.0 / 85 + 0.3 + 200e-6));
}

TEST_CASE("all resident: the device's bytes, launches, and nobody hands over") {
  ModelBytes const m{10, 4e9, 8e9, 1e9};
  bench::DecodeBound const b = bench::decode_bound(m, 1e9, 20e9, Routing::uniform, round_rates());
  CHECK(b.host_bytes == 0);
  CHECK(b.device_bytes == Approx(6e9));
  CHECK(b.physical_s == Approx(0.06));
  CHECK(b.practical_s == Approx(160e-6 + 5.0 / 85 + 80e-6 + 1.0 / 85));
}

TEST_CASE("experts that do not fit are hit as often as the routing says") {
  // Room: 7.65 - 0.65 = 7 GB; dense and KV 5, so 2 of 8 GB of experts: a quarter.
  ModelBytes const m{10, 4e9, 8e9, 1e9};
  CHECK(bench::decode_bound(m, 1e9, 7.65e9, Routing::uniform, round_rates()).host_bytes == Approx(0.75e9));
  CHECK(bench::decode_bound(m, 1e9, 7.65e9, Routing::topics, round_rates()).host_bytes == Approx(0.19e9));
}

TEST_CASE("hit rates go from nothing to all, by straight lines") {
  CHECK(bench::hit_rate(-1, Routing::topics) == 0);
  CHECK(bench::hit_rate(0.05, Routing::topics) == Approx(0.27));
  CHECK(bench::hit_rate(0.10, Routing::topics) == Approx(0.54));
  CHECK(bench::hit_rate(0.83, Routing::topics) == Approx(0.97));
  CHECK(bench::hit_rate(2, Routing::topics) == 1);
  CHECK(bench::hit_rate(0.3, Routing::uniform) == Approx(0.3));
}

TEST_CASE("a prompt takes what is not resident over the link once, or its arithmetic") {
  ModelBytes const m{10, 4e9, 8e9, 1e9};
  // Room: 5.1 - 0.5 - 0.6 = 4 GB, so 8 GB at 4 GB/s.
  bench::PromptBound const b = bench::prompt_bound(m, 1e12, 5.1e9, round_rates());
  CHECK(b.streamed_bytes == Approx(8e9));
  CHECK(b.seconds == Approx(2.0));
  CHECK(bench::prompt_bound(m, 3e12, 5.1e9, round_rates()).seconds == Approx(3.0));
  CHECK(bench::prompt_bound(m, 1e12, 50e9, round_rates()).seconds == Approx(1.0));
}

TEST_CASE("without a device all bytes are the CPU's") {
  ModelBytes const m{10, 4e9, 8e9, 1e9};
  MachineRates r = round_rates();
  CHECK(bench::decode_bound(m, 1e9, 0, Routing::uniform, r).physical_s == Approx(6.0 / 9));
  r.device = 0;
  CHECK(bench::decode_bound(m, 1e9, 4e9, Routing::uniform, r).practical_s == Approx(6.0 / 9));
}

TEST_CASE("the table of the reference machine") {
  double const GiB = 1024.0 * 1024 * 1024;
  CHECK(tokens_per_s(2 * GiB, Routing::uniform) == Approx(111).margin(0.5));
  CHECK(tokens_per_s(2 * GiB, Routing::topics) == Approx(125).margin(0.5));
  CHECK(tokens_per_s(4 * GiB, Routing::uniform) == Approx(124).margin(0.5));
  CHECK(tokens_per_s(4 * GiB, Routing::topics) == Approx(222).margin(0.5));
  CHECK(tokens_per_s(8 * GiB, Routing::topics) == Approx(348).margin(0.5));
  CHECK(tokens_per_s(16 * GiB, Routing::uniform) == Approx(375).margin(0.5));
  CHECK(bench::prompt_bound(qwen3_30b(), 0, 2 * GiB, reference_machine()).seconds == Approx(0.2987).margin(0.0005));
}
