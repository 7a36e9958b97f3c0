// Random placements, budgets and interleavings, with rows on a copy lane of their own as a GPU has it: always the bits of the host.
#include <memory>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "golden/vision_encoding.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// As a GPU's: rows have a lane of their own, and what is launched when an engine is made, is.
struct TwoLanes : decltype(SimPolicies::make_machine({})) {
  std::unique_ptr<SimPolicies::Copy> kv_copy;
  void settle() {}
};
struct RandomPolicies : SimPolicies {
  using Placement = RandomVisionPlacement;
  static TwoLanes make_machine(MachineOptions const& o) { return make_machine(o, 0); }
  static TwoLanes make_machine(MachineOptions const& o, std::uint64_t seed) {
    TwoLanes m{SimPolicies::make_machine(o, LaneSet::seeded(seed), nullptr), nullptr};
    m.kv_copy = std::make_unique<SimPolicies::Copy>(m.lanes, o.link_bytes_per_s,
                                                    SimCopyOptions{.device = &m.device->memory(), .lane_name = "kv copy"});
    return m;
  }
};

}  // namespace

TEST_CASE("an encoder's placements and interleavings give the bits of the host, and so does its decoder", "[seeds][vision]") {
  int n_rows_on_host = 0, n_mixed = 0, n_chunks = 0, n_streamed = 0, n_borrowed = 0;
  std::vector<std::int32_t> const prompt{3, 1, 4, 1, 5, 9, 2, 6};
  for (std::string const& model : vlm_models()) {
    VlmFixture fixture = read_vlm_fixture(model);
    fixture.cases.resize(3);
    std::vector<VisionEncoding> const expected = encode_on_host(model, "f16", fixture);
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    EngineOptions options{.max_context = 256, .n_threads = 1};
    Engine<CpuPolicies> cpu(decoder, options);
    std::vector<float> const text = all_logits(cpu, prompt, {5, 1});
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      INFO(model << " seed " << seed);
      options.vram_bytes = (200 * KiB) << (seed % 5);
      PolicyValues<RandomPolicies> values;
      values.placement.seed = seed;
      Engine<RandomPolicies> engine(decoder, options, values, RandomPolicies::make_machine({options.vram_bytes, 1, false, false}, seed));
      VisionEncoder<RandomPolicies> encoder(engine, projector, {.max_patches = 1024, .least_speedup = 0}, values);
      PlanImage const& image = encoder.plans().images.front();
      bool on_host = false;
      for (Action const& a : image.schedule) {
        on_host = on_host || (a.kind == ActionKind::run && a.device == host_device);
        n_streamed += a.kind == ActionKind::copy;
      }
      n_rows_on_host += image.limits.rows_on_host && on_host;
      n_mixed += image.uses_device && on_host;
      n_chunks += image.uses_device && image.limits.chunk < image.limits.block;
      n_borrowed += image.uses_device && encoder.borrows_vram();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(alike(encoder, encoder.encode(vlm_patches(fixture.cases[i], encoder.config()), fixture.cases[i].grids), expected[i]));
        if (i != 1) CHECK(all_logits(engine, prompt, {5, 1}) == text);
      }
      CHECK(engine.stats().vram_peak_bytes <= options.vram_bytes);
    }
  }
  CHECK(n_rows_on_host > 0);
  CHECK(n_mixed > 0);
  CHECK(n_chunks > 0);
  CHECK(n_streamed > 0);
  CHECK(n_borrowed > 0);
}
