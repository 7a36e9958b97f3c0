#include "tiered/profile/measure.hpp"

#include <cmath>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/engine/profiling.hpp"
#include "tiered/profile/detail/measure_products.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

void check_curve(RateCurve const& curve) {
  REQUIRE_FALSE(curve.points.empty());
  double size = 0, seconds = 0;
  for (RatePoint const& p : curve.points) {
    CHECK(p.size > size);
    CHECK((p.per_s > 0 && std::isfinite(p.per_s)));
    CHECK(curve.seconds(p.size) >= seconds);
    size = p.size, seconds = curve.seconds(p.size);
  }
}

void check_device(DeviceRates const& rates, std::vector<FormatRates> const& formats) {
  INFO(rates.name);
  CHECK((rates.launch_s > 0 && rates.launch_s < 1));
  CHECK((rates.attention_bytes_per_s > 0 && std::isfinite(rates.attention_bytes_per_s)));
  CHECK((rates.attention_flops_per_s > 0 && std::isfinite(rates.attention_flops_per_s)));
  REQUIRE(rates.formats.size() == formats.size());
  for (std::size_t i = 0; i < formats.size(); ++i) {
    INFO(name(formats[i].dtype) << (formats[i].experts ? " experts" : ""));
    CHECK(rates.formats[i].is_alike(formats[i]));
    CHECK(rates.formats[i].rates.bytes_per_s > 0);
    check_curve(rates.formats[i].rates.flops_by_rows);
    CHECK(rates.formats[i].rates.flops_by_rows.points.front().size == 1);
  }
  for (MatmulRates const& m : rates.matmul) {
    CHECK(m.bytes_per_s > 0);
    check_curve(m.flops_by_rows);
  }
}

/// Measures on the simulated device, without files.
ProfileResult measured(Transformer const& model, std::size_t vram_bytes, DType kv_type = DType::f16, double seconds = 0.3) {
  EngineOptions options;
  options.vram_bytes = vram_bytes;
  options.kv_type = kv_type;
  options.profile = {.measure = true, .use_files = false, .seconds = seconds};
  auto machine = SimPolicies::make_machine({.vram_bytes = vram_bytes, .n_threads = 2});
  ProfileResult const result = profile_machine(machine, model, model.table().weights, options);
  CHECK(machine.device->memory().used_bytes() == 0);
  CHECK(machine.device->memory().peak_bytes() <= vram_bytes);
  return result;
}

}  // namespace

TEST_CASE("formats of a model are its types and kinds of experts, each once, the largest first", "[profile]") {
  for (char const* const file : {"llama.f32.gguf", "llama_k.mixed.gguf", "qwen3moe.mixed.gguf", "gemma3.mixed.gguf"}) {
    INFO(file);
    auto const model = open_golden(file);
    std::vector<FormatRates> const formats = formats_of(model->table());
    std::set<std::tuple<DType, DType, DType, bool>> kinds;
    for (FormatRates const& f : formats) {
      CHECK(kinds.insert({f.dtype, f.up, f.down, f.experts}).second);
      CHECK((f.rows > 1 && f.cols > 0));
    }
    std::uint64_t dense = 0, experts = 0, got_dense = 0, got_experts = 0;
    for (Shard const& s : model->table().shards) {
      if (s.kind != ShardKind::embedding) (s.kind == ShardKind::expert ? experts : dense) |= s.dtypes;
    }
    for (FormatRates const& f : formats) (f.experts ? got_experts : got_dense) |= dtype_bit(f.dtype) | dtype_bit(f.up) | dtype_bit(f.down);
    CHECK(got_dense == dense);
    CHECK(got_experts == experts);
  }
}

TEST_CASE("a machine with a simulated device is measured on a model of every kind", "[profile]") {
  for (char const* const file : {"llama.f32.gguf", "llama_k.mixed.gguf", "qwen3moe.mixed.gguf"}) {
    INFO(file);
    auto const model = open_golden(file);
    ProfileResult const result = measured(*model, 16 * MiB);
    CHECK(result.source == ProfileSource::measured);
    CHECK(result.file.empty());
    CHECK(result.note.empty());
    HardwareProfile const& h = result.hardware;
    std::vector<FormatRates> const formats = formats_of(model->table());
    check_device(h.host, formats);
    check_device(h.gpu, formats);
    for (RateCurve const* curve : {&h.h2d, &h.d2h, &h.both_ways, &h.dram_by_threads}) check_curve(*curve);
    CHECK(h.n_threads == 2);
    CHECK(h.dram_by_threads.points.back().size == 2);
    for (double const figure : {h.dram_bytes_per_s, h.copy_latency_s, h.hop_latency_s, h.event_latency_s})
      CHECK((figure > 0 && std::isfinite(figure)));
    for (double const share : {h.mutual.host_share, h.mutual.h2d_share}) CHECK((share > 0 && share <= 1));
    CHECK_FALSE(h == HardwareProfile::simulated());
  }
}

TEST_CASE("little memory, and no time at all, still give every figure of single rows", "[profile]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  ProfileResult const result = measured(*model, 2 * MiB, DType::q8_0, 0.001);
  check_device(result.hardware.host, formats_of(model->table()));
  CHECK(result.hardware.gpu.launch_s > 0);
  check_curve(result.hardware.h2d);
}

TEST_CASE("nothing that was begun to be measured is left behind, to work on memory that is gone", "[profile]") {
  EngineOptions options;
  options.profile = {.measure = true, .use_files = false, .seconds = 1e-6};  // products of many rows are prepared, then left out
  for (char const* const file : {"llama.mixed.gguf", "llama_k.mixed.gguf", "qwen3.mixed.gguf", "qwen3moe.mixed.gguf"}) {
    auto const model = open_golden(file);
    for (std::size_t const vram_bytes : {std::size_t{0}, 16 * MiB}) {
      INFO(file << ", " << vram_bytes);
      auto const lanes = LaneSet::seeded(1);  // works only while somebody waits
      options.vram_bytes = vram_bytes;
      auto machine = SimPolicies::make_machine({.vram_bytes = vram_bytes, .n_threads = 2}, lanes, nullptr);
      profile_machine(machine, *model, model->table().weights, options);
      for (Ticket const last : {machine.host->record(), machine.device->record()})
        CHECK(lanes->counters()[last.lane - 1].done == last.value);
    }
  }
}

TEST_CASE("without memory of a device the host alone is measured", "[profile]") {
  auto const model = open_golden("llama.f32.gguf");
  ProfileResult const result = measured(*model, 0);
  check_device(result.hardware.host, formats_of(model->table()));
  CHECK(result.hardware.gpu == HardwareProfile::simulated().gpu);
  CHECK(result.hardware.h2d == HardwareProfile::simulated().h2d);
}

TEST_CASE("no product of a model larger than any cache is thought to read faster than memory", "[profile]") {
  std::vector<Shard> shards(3);
  for (Shard& s : shards) s.bytes = std::size_t{400} << 20;
  ShardTable table;
  table.shards = shards;
  HardwareProfile h = HardwareProfile::simulated();
  h.dram_by_threads.points = {{1, 10e9}, {8, 40e9}};
  CHECK(detail::most_host_bytes_per_s(h, table) == 40e9);
  shards[0].bytes = 1;  // 800 MB: as small models are, of which caches hold a part in decode, too
  CHECK(detail::most_host_bytes_per_s(h, table) == HUGE_VAL);
  shards[0].bytes = std::size_t{4} << 30;
  h.dram_by_threads.points.clear();
  CHECK(detail::most_host_bytes_per_s(h, table) == HUGE_VAL);
}

TEST_CASE("rates come from the nearest format that is in the shard, else from its class", "[profile][plan]") {
  DeviceRates rates = HardwareProfile::simulated().gpu;
  auto const add = [&](DType type, DType down, bool experts, double bytes_per_s) {
    rates.formats.push_back({type, type, down, experts, 64, 256, {bytes_per_s, {{{1, 1e9}}}}});
  };
  add(DType::q4_0, DType::q4_0, false, 1), add(DType::f32, DType::f32, false, 2), add(DType::q6_k, DType::q6_k, false, 3);
  add(DType::q2_k, DType::q3_k, true, 4);
  std::uint64_t const q4_0 = dtype_bit(DType::q4_0), q6_k = dtype_bit(DType::q6_k), f32 = dtype_bit(DType::f32);
  CHECK(rates.rates_for(q4_0 | f32, 5, false).bytes_per_s == 1);
  CHECK(rates.rates_for(q4_0 | f32, 31, false).bytes_per_s == 2);
  CHECK(rates.rates_for(q4_0 | q6_k, 6.2, false).bytes_per_s == 3);
  CHECK(rates.rates_for(dtype_bit(DType::q2_k) | dtype_bit(DType::q3_k), 2.9, true).bytes_per_s == 4);
  CHECK(&rates.rates_for(dtype_bit(DType::q2_k) | dtype_bit(DType::q3_k), 2.9, false) == &rates.matmul[0]);
  CHECK(&rates.rates_for(dtype_bit(DType::q8_0), 8.5, false) == &rates.matmul[1]);
  CHECK(&rates.rates_for(q4_0, 4.5, true) == &rates.matmul[0]);
}
