// Vision encoders on the GPU, in room of their own and in what a decoder lends: transformers' tokens, the same text afterwards, and nothing
// that NVML would see.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "cuda/gpu.hpp"
#include "cuda/limited_gpu.hpp"
#include "golden/vision_encoding.hpp"
#include "tiered/vision/reference_encoder.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

EngineOptions options_for(bool f32_activations = false) {
  EngineOptions options;
  options.f32_activations = f32_activations;
  options.vram_bytes = 2 * GiB;
  options.max_context = 256;
  options.n_threads = 2;
  options.hardware = HardwareProfile::simulated();  // the same plans everywhere
  return options;
}

/// "random": shards here and there, those of the host among them.
PolicyValues<LimitedPolicies> values_for(std::string const& placement) {
  return {.placement = placement == "random" ? AnyPlacement(RandomVisionPlacement{5}) : make_placement(placement)};
}

double tolerance_of(Engine<LimitedPolicies>& engine, VisionConfig const& config) {
  return f16_tolerance(config, engine.machine().host->kernels());
}

/// Whether the host has some of a schedule's steps.
bool helps(PlanImage const& image) {
  return std::ranges::any_of(image.schedule, [](Action const& a) { return a.kind == ActionKind::run && a.device == host_device; });
}

}  // namespace

TEST_CASE("cuda: encoders of all families, resident, streamed and in little room: transformers' tokens", "[cuda][golden][vision]") {
  if (!tiered_test::has_gpu()) return;
  int n_streamed = 0, n_chunks = 0, n_on_device = 0, n_helped = 0;
  auto const check = [&](std::string const& model, std::string const& variant, bool exact_host) {
    VlmFixture const fixture = read_vlm_fixture(model);
    auto const decoder = open_decoder(model + "." + variant);
    auto const projector = open_projector(model + ".mmproj." + variant);
    for (std::string const placement : {"all_vram", "stream_all", "seconds_per_byte", "random"}) {
      for (std::size_t const room : {600 * KiB, 1200 * KiB, 8 * MiB}) {
        Engine<LimitedPolicies> engine = make_limited(decoder, options_for(exact_host), "seconds_per_byte", 2 * MiB);
        engine.machine().limit = room;
        VisionEncoder<LimitedPolicies> encoder(engine, projector, {.max_patches = 1024, .least_speedup = 0}, values_for(placement));
        double const tolerance = variant == "f32" ? 1e-3 : tolerance_of(engine, encoder.config());
        PlanImage const& image = encoder.plans().images.front();
        n_on_device += image.uses_device;
        n_helped += image.uses_device && helps(image);
        n_streamed += image.vram.ring_bytes > 0;
        n_chunks += image.uses_device && image.limits.chunk < image.limits.block;
        std::vector<VisionEncoding> const got = encode_all(encoder, fixture);
        for (std::size_t i = 0; i < got.size(); ++i) {
          VlmCase const& c = fixture.cases[i];
          double const off = difference(got[i], c.embeddings, c.deepstack), rms = rms_difference(got[i], c.embeddings, c.deepstack);
          INFO(model << '.' << variant << ' ' << placement << " in " << room << (helps(image) ? ", some on the host" : "")
                     << (exact_host ? " on f32" : "") << ", " << c.name << ": off by " << off << ", rms " << rms);
          CHECK(off < tolerance);
          if (exact_host) CHECK(rms < 1e-3);
        }
      }
    }
  };
  for (std::string const& model : vlm_models()) {
    for (std::string const variant : {"f32", "f16"}) {
      for (bool const exact_host : {true, false}) check(model, variant, exact_host);
    }
  }
  CHECK(n_on_device > 0);
  CHECK(n_helped > 0);
  CHECK(n_streamed > 0);
  CHECK(n_chunks > 0);
}

TEST_CASE("cuda: text after images is what it is without the loan, and NVML's figure stays", "[cuda][vram][vision]") {
  if (!tiered_test::has_gpu()) return;
  for (std::string const& model : vlm_models()) {
    VlmFixture const fixture = read_vlm_fixture(model);
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    for (std::string const placement : {"all_vram", "stream_all", "seconds_per_byte"}) {
      for (bool const borrows : {true, false}) {
        Engine<LimitedPolicies> engine = make_limited(decoder, options_for(), placement, 4 * MiB);
        engine.machine().limit = borrows ? 0 : 64 * MiB;
        VisionEncoder<LimitedPolicies> encoder(engine, projector, {.max_patches = 1024, .least_speedup = 0}, values_for(placement));
        REQUIRE(encoder.borrows_vram() == borrows);
        CudaMachine& machine = engine.machine();
        std::size_t const loaded = machine.gpu.ledger->measure().figure_bytes, counted = machine.share->counted_bytes();
        std::vector<std::int32_t> const prompt{3, 1, 4, 1, 5, 9, 2, 6};
        std::vector<float> const expected = all_logits(engine, prompt, {3, 1});
        for (VlmCase const& c : fixture.cases) {
          INFO(model << ' ' << placement << (borrows ? ", lent, " : ", own room, ") << c.name << '\n' << machine.gpu.ledger->report());
          double const off = difference(encoder.encode(vlm_patches(c, encoder.config()), c.grids), c.embeddings, c.deepstack);
          CHECK(off < tolerance_of(engine, encoder.config()));
          CHECK(machine.gpu.ledger->measure().figure_bytes == loaded);
          CHECK(all_logits(engine, prompt, {3, 1}) == expected);
          CHECK(machine.gpu.ledger->measure().figure_bytes == loaded);
        }
        CHECK(machine.share->counted_bytes() == counted);
        CHECK(counted <= engine.stats().vram_budget_bytes);
      }
    }
  }
}

TEST_CASE("cuda: pictures that go through the encoder together have transformers' tokens, too", "[cuda][golden][vision]") {
  if (!tiered_test::has_gpu()) return;
  for (std::string const& model : vlm_models()) {
    VlmFixture const fixture = read_vlm_fixture(model);
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    std::vector<float> values;
    std::vector<PatchGrid> grids;
    for (VlmCase const& c : fixture.cases) {
      std::vector<float> const own = vlm_patches(c, projector->vision());
      values.insert(values.end(), own.begin(), own.end());
      grids.insert(grids.end(), c.grids.begin(), c.grids.end());
    }
    for (std::string const placement : {"all_vram", "stream_all"}) {
      Engine<LimitedPolicies> engine = make_limited(decoder, options_for(), placement, 4 * MiB);
      engine.machine().limit = 0;
      VisionEncoder<LimitedPolicies> encoder(engine, projector, {.max_patches = 4096, .least_speedup = 0}, values_for(placement));
      VisionEncoding const all = encoder.encode(values, grids);
      std::size_t begin = 0;
      for (VlmCase const& c : fixture.cases) {
        INFO(model << ' ' << placement << ' ' << c.name);
        auto const part = [&](std::vector<float> const& of) {
          return std::vector<float>(of.begin() + std::ptrdiff_t(begin), of.begin() + std::ptrdiff_t(begin + c.embeddings.size()));
        };
        VisionEncoding one{0, part(all.tokens), {}};
        for (std::vector<float> const& features : all.deepstack) one.deepstack.push_back(part(features));
        CHECK(difference(one, c.embeddings, c.deepstack) < tolerance_of(engine, encoder.config()));
        begin += c.embeddings.size();
      }
      CHECK(begin == all.tokens.size());
    }
  }
}
