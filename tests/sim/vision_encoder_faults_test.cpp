// Faults and cancellation in the middle of encoding: a typed error, and both the encoder and the decoder can be used.
#include <atomic>
#include <memory>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "golden/vision_encoding.hpp"
#include "tiered/plan/placements/stream_all.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct StreamPolicies : SimPolicies {
  using Placement = StreamAll;
};
constexpr std::size_t vram_bytes = 900 * KiB;
EngineOptions const options{.vram_bytes = vram_bytes, .max_context = 256, .n_threads = 1};
VisionOptions const vision{.max_patches = 1024, .least_speedup = 0};
std::vector<std::int32_t> const prompt{3, 1, 4, 1, 5};

}  // namespace

TEST_CASE("a fault of any kind at any time of encoding", "[faults][vision]") {
  for (std::string const model : {"qwen25vl", "qwen3vl"}) {
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    VlmFixture const fixture = read_vlm_fixture(model);
    VlmCase const& c = fixture.cases.front();
    std::vector<float> const patches = vlm_patches(c, projector->vision());
    Engine<CpuPolicies> cpu(decoder, {.max_context = 256, .n_threads = 1});
    std::vector<float> const text = all_logits(cpu, prompt, {3, 1});
    VisionEncoding const expected = VisionEncoder(cpu, projector, vision).encode(patches, c.grids);
    for (FaultKind const kind : {FaultKind::copy, FaultKind::launch}) {
      std::uint64_t n_struck = 0;
      for (std::uint64_t n = 1;; n += n > 30 ? 5 : 1) {
        INFO(model << " fault " << int(kind) << " at " << n);
        auto faults = std::make_shared<Faults>();
        Engine<StreamPolicies> engine(decoder, options, {},
                                      SimPolicies::make_machine({vram_bytes, 1, false, false}, LaneSet::seeded(n), faults));
        VisionEncoder<StreamPolicies> encoder(engine, projector, vision);
        REQUIRE(encoder.borrows_vram());
        REQUIRE(encoder.plans().images.front().uses_device);
        REQUIRE(all_logits(engine, prompt, {3, 1}) == text);
        faults->fail_at(kind, n);
        bool struck = false;
        VisionEncoding got;
        try {
          got = encoder.encode(patches, c.grids);
        } catch (Error const& e) {
          struck = true;
          CHECK(e.code() == Errc::device);
        }
        if (!struck) {
          CHECK(alike(encoder, got, expected));
          break;
        }
        ++n_struck;
        if (n % 2 == 0) CHECK(all_logits(engine, prompt, {3, 1}) == text);
        CHECK(alike(encoder, encoder.encode(patches, c.grids), expected));
        CHECK(all_logits(engine, prompt, {3, 1}) == text);
        CHECK(engine.stats().vram_peak_bytes <= vram_bytes);
      }
      CHECK(n_struck > 10);
    }
  }
}

TEST_CASE("a fault in what comes back behind an encoder: a typed error, and nothing is taken to be there that is not", "[faults][vision]") {
  for (std::string const model : {"qwen2vl", "qwen3vl"}) {
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    VlmFixture const fixture = read_vlm_fixture(model);
    VlmCase const& c = fixture.cases.front();
    std::vector<float> const patches = vlm_patches(c, projector->vision());
    Engine<CpuPolicies> cpu(decoder, {.max_context = 256, .n_threads = 1});
    std::vector<float> const text = all_logits(cpu, prompt, {3, 1});
    VisionEncoding const expected = VisionEncoder(cpu, projector, vision).encode(patches, c.grids);
    int n_in_encoder = 0, n_behind = 0;
    for (std::uint64_t n = 1;; ++n) {
      INFO(model << " fault at " << n);
      auto faults = std::make_shared<Faults>();
      Engine<SimPolicies> engine(decoder, options, {},
                                 SimPolicies::make_machine({vram_bytes, 1, false, false}, LaneSet::seeded(n), faults));
      auto encoder = std::make_unique<VisionEncoder<SimPolicies>>(engine, projector, vision);
      REQUIRE(encoder->borrows_vram());
      REQUIRE(all_logits(engine, prompt, {3, 1}) == text);
      faults->fail_at(FaultKind::copy, n);
      auto const fails = [&](auto const& action) {
        try {
          action();
          return false;
        } catch (Error const& e) {
          CHECK(e.code() == Errc::device);
          return true;
        }
      };
      VisionEncoding got;
      std::vector<float> said;
      bool const in_encoder = fails([&] { got = encoder->encode(patches, c.grids); });
      if (!in_encoder) CHECK(alike(*encoder, got, expected));
      // What fails next finds out: a step, another image, or the end of the encoder.
      bool behind = false;
      if (!in_encoder && n % 3 == 0) behind = fails([&] { encoder->encode(patches, c.grids, true); });
      if (!in_encoder && n % 3 == 1) encoder.reset();
      if (!behind && !fails([&] { said = all_logits(engine, prompt, {3, 1}); })) {
        CHECK(said == text);
      } else {
        behind = true;
      }
      bool const struck = faults->fired() > 0;
      faults->fail_at(FaultKind::copy, 0);
      n_in_encoder += in_encoder;
      n_behind += !in_encoder && behind;
      CHECK(all_logits(engine, prompt, {3, 1}) == text);
      if (encoder != nullptr) CHECK(alike(*encoder, encoder->encode(patches, c.grids), expected));
      CHECK(all_logits(engine, prompt, {3, 1}) == text);
      CHECK(engine.stats().vram_peak_bytes <= vram_bytes);
      if (!struck) break;
    }
    CHECK(n_in_encoder > 3);
    CHECK(n_behind > 3);
  }
}

TEST_CASE("cancelled between an encoder and the step behind it", "[faults][vision]") {
  auto const decoder = open_decoder("qwen25vl.f16");
  auto const projector = open_projector("qwen25vl.mmproj.f16");
  VlmFixture const fixture = read_vlm_fixture("qwen25vl");
  VlmCase const& c = fixture.cases.front();
  std::vector<float> const patches = vlm_patches(c, projector->vision());
  Engine<CpuPolicies> cpu(decoder, {.max_context = 256, .n_threads = 1});
  std::vector<float> const text = all_logits(cpu, prompt, {3, 1});
  VisionEncoding const expected = VisionEncoder(cpu, projector, vision).encode(patches, c.grids);
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Engine<SimPolicies> engine(decoder, options, {},
                               SimPolicies::make_machine({vram_bytes, 1, false, false}, LaneSet::seeded(seed), nullptr));
    VisionEncoder<SimPolicies> encoder(engine, projector, vision);
    CHECK(alike(encoder, encoder.encode(patches, c.grids), expected));
    engine.cancel_token().cancel();
    CHECK(error_of([&] { all_logits(engine, prompt, {3, 1}); }).code == Errc::cancelled);
    if (seed % 2 == 0) CHECK(error_of([&] { encoder.encode(patches, c.grids); }).code == Errc::cancelled);
    engine.cancel_token().reset();
    CHECK(all_logits(engine, prompt, {3, 1}) == text);
    CHECK(alike(encoder, encoder.encode(patches, c.grids), expected));
    CHECK(all_logits(engine, prompt, {3, 1}) == text);
  }
}

TEST_CASE("cancelled while encoding, on either device", "[faults][vision]") {
  auto const decoder = open_decoder("qwen2vl.f16");
  auto const projector = open_projector("qwen2vl.mmproj.f16");
  VlmFixture const fixture = read_vlm_fixture("qwen2vl");
  VlmCase const& c = fixture.cases.front();
  std::vector<float> const patches = vlm_patches(c, projector->vision());
  Engine<CpuPolicies> cpu(decoder, {.max_context = 256, .n_threads = 1});
  VisionEncoding const expected = VisionEncoder(cpu, projector, vision).encode(patches, c.grids);
  std::vector<float> const text = all_logits(cpu, prompt, {3, 1});
  for (std::size_t const bytes : {std::size_t{0}, vram_bytes}) {
    Engine<SimPolicies> engine(decoder, {.vram_bytes = bytes, .max_context = 256, .n_threads = 1});
    VisionEncoder<SimPolicies> encoder(engine, projector, vision);
    // Cancelled by whoever hands out pixels: in the middle of a block.
    auto const cancel = [&](std::span<std::int64_t const> which, std::span<float> out) {
      std::size_t const elems = std::size_t(encoder.config().patch_elems());
      float* to = out.data();
      for (std::int64_t const patch : which) to = std::copy_n(patches.data() + std::size_t(patch) * elems, elems, to);
      engine.cancel_token().cancel();
    };
    CHECK(error_of([&] { encoder.encode(c.grids, cancel); }).code == Errc::cancelled);
    CHECK(error_of([&] { encoder.encode(patches, c.grids); }).code == Errc::cancelled);
    engine.cancel_token().reset();
    CHECK(alike(encoder, encoder.encode(patches, c.grids), expected));
    CHECK(all_logits(engine, prompt, {3, 1}) == text);
  }
}

TEST_CASE("what hands out pixels fails: its error, and nothing is lost", "[faults][vision]") {
  auto const decoder = open_decoder("qwen3vl.f16");
  auto const projector = open_projector("qwen3vl.mmproj.f16");
  VlmFixture const fixture = read_vlm_fixture("qwen3vl");
  VlmCase const& c = fixture.cases.front();
  std::vector<float> const patches = vlm_patches(c, projector->vision());
  Engine<SimPolicies> engine(decoder, options);
  VisionEncoder<SimPolicies> encoder(engine, projector, vision);
  VisionEncoding const expected = encoder.encode(patches, c.grids);
  auto const fail = [](std::span<std::int64_t const>, std::span<float>) { throw Error(Errc::io, "no pixels"); };
  CHECK(error_of([&] { encoder.encode(c.grids, fail); }).code == Errc::io);
  CHECK(alike(encoder, encoder.encode(patches, c.grids), expected));
}
