// The vision encoder that an engine runs, against transformers and the reference, whatever the budget.
#include <array>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/vision_encoding.hpp"
#include "golden_data.hpp"
#include "media_data.hpp"
#include "tiered/plan/placements/all_vram.hpp"
#include "tiered/plan/placements/stream_all.hpp"
#include "tiered/vision/reference_encoder.hpp"

using namespace tiered;
using namespace tiered::test;
using namespace tiered_test;

namespace {

template <class Placement_>
struct Placed : SimPolicies {
  using Placement = Placement_;
};

/// How often plans did what.
struct Seen {
  int n_streamed = 0, n_by_rows = 0, n_multi_chunk = 0, n_resident = 0, n_mixed = 0, n_host = 0, n_borrowed = 0, n_rows_on_host = 0,
      n_kv_on_host = 0;

  void add(EnginePlans const& plans, bool borrows) {
    for (PlanImage const& image : plans.images) {
      int on_device = 0, on_host = 0;
      bool by_rows = false, streams = false;
      for (Action const& a : image.schedule) {
        if (a.kind == ActionKind::run) ++(a.device == host_device ? on_host : on_device);
        streams = streams || a.kind == ActionKind::copy;
        by_rows = by_rows || (a.kind == ActionKind::copy && a.rows != Range{});
      }
      n_streamed += streams;
      n_by_rows += by_rows;
      n_multi_chunk += image.uses_device && image.limits.chunk < image.limits.block;
      n_resident += on_host == 0 && !streams;
      n_mixed += on_host > 0 && on_device > 0;
      n_host += on_device == 0;
      n_borrowed += image.uses_device && borrows;
      n_rows_on_host += image.limits.rows_on_host;
      n_kv_on_host += image.limits.kv_on_host;
    }
  }
};

template <class Placement>
void check_budgets(Seen& seen, Placement placement = {}) {
  for (std::string const& model : vlm_models()) {
    VlmFixture const fixture = read_vlm_fixture(model);
    std::vector<VisionEncoding> const expected = encode_on_host(model, "f16", fixture);
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    for (std::size_t const vram_bytes : {20 * KiB, 200 * KiB, 360 * KiB, 600 * KiB, 1200 * KiB, 2 * MiB, 6 * MiB}) {
      INFO(model << " in " << vram_bytes << " bytes");
      using Policies = Placed<Placement>;
      PolicyValues<Policies> values;
      values.placement = placement;
      Engine<Policies> engine(decoder, {.vram_bytes = vram_bytes, .max_context = 256, .n_threads = 1}, values);
      VisionEncoder<Policies> encoder(engine, projector, {.max_patches = 1024, .least_speedup = 0}, values);
      seen.add(encoder.plans(), encoder.borrows_vram());
      std::vector<VisionEncoding> const got = encode_all(encoder, fixture);
      for (std::size_t i = 0; i < got.size(); ++i) {
        INFO(fixture.cases[i].name);
        CHECK(alike(encoder, got[i], expected[i]));
      }
      CHECK(engine.stats().vram_peak_bytes <= vram_bytes);
    }
  }
}

}  // namespace

TEST_CASE("on the host: tokens and features equal transformers' and the reference's to 1e-3, rounded rows to their noise",
          "[golden][vision]") {
  for (std::string const& model : vlm_models()) {
    VlmFixture const fixture = read_vlm_fixture(model);
    for (std::string const variant : {"f32", "f16"}) {
      auto const projector = open_projector(model + ".mmproj." + variant);
      std::vector<VisionEncoding> const got = encode_on_host(model, variant, fixture, true),
                                        rounded = encode_on_host(model, variant, fixture);
      double const tolerance = variant == "f32" ? 1e-3 : f16_tolerance(projector->vision());
      ReferenceVisionEncoder const reference(projector->vision(), projector->weights());
      for (std::size_t i = 0; i < got.size(); ++i) {
        VlmCase const& c = fixture.cases[i];
        VisionEncoding const slow = reference.encode(vlm_patches(c, projector->vision()), c.grids);
        INFO(model << ' ' << variant << ' ' << c.name << ": off by " << difference(got[i], c.embeddings, c.deepstack)
                   << ", from the reference " << difference(got[i], slow.tokens, slow.deepstack)
                   << "; with rows as this machine's products "
                   << "read them " << difference(rounded[i], c.embeddings, c.deepstack));
        CHECK(got[i].n_tokens == slow.n_tokens);
        CHECK(difference(got[i], c.embeddings, c.deepstack) < 1e-3);
        CHECK(difference(got[i], slow.tokens, slow.deepstack) < 1e-3);
        CHECK(difference(rounded[i], c.embeddings, c.deepstack) < tolerance);
      }
    }
  }
}

TEST_CASE("on a device of any budget: the bits of the host", "[golden][vision]") {
  Seen seen;
  check_budgets<SecondsPerByte>(seen);
  CHECK(seen.n_host > 0);
  CHECK(seen.n_resident > 0);
  CHECK(seen.n_borrowed > 0);
  CHECK(seen.n_rows_on_host > 0);
  CHECK(seen.n_kv_on_host > 0);
  CHECK(seen.n_multi_chunk > 0);
}

TEST_CASE("all streamed: the bits of the host", "[golden][vision]") {
  Seen seen;
  check_budgets<StreamAll>(seen);
  CHECK(seen.n_streamed > 0);
  CHECK(seen.n_by_rows > 0);
  CHECK(seen.n_multi_chunk > 0);
  CHECK(seen.n_borrowed > 0);
  CHECK(seen.n_rows_on_host > 0);
  CHECK(seen.n_kv_on_host > 0);
}

TEST_CASE("random placements: the bits of the host", "[golden][vision]") {
  Seen seen;
  for (std::uint64_t seed = 0; seed < 8; ++seed) check_budgets<RandomVisionPlacement>(seen, {seed});
  CHECK(seen.n_mixed > 0);
  CHECK(seen.n_rows_on_host > 0);
  CHECK(seen.n_kv_on_host > 0);
  CHECK(seen.n_streamed > 0);
  CHECK(seen.n_by_rows > 0);
  CHECK(seen.n_multi_chunk > 0);
}

namespace {

/// A case's prompt with what was encoded, into a sequence of its own, then some tokens more: all logits.
template <class E>
std::vector<float> answer(E& engine, VlmCase const& c, VisionEncoding const& seen) {
  constexpr std::int32_t first_picture_token = 98;
  std::vector<float> vectors = seen.tokens;
  for (std::vector<float> const& features : seen.deepstack) vectors.insert(vectors.end(), features.begin(), features.end());
  Sequence const sequence = engine.new_sequence();
  std::vector<float> out;
  std::vector<Row> rows;
  std::int32_t next = 0;
  for (std::size_t i = 0; i < c.tokens.size(); ++i) {
    bool const is_picture = c.tokens[i] >= first_picture_token;
    rows.push_back({sequence.id(), std::int32_t(i), is_picture ? 0 : c.tokens[i], i + 1 == c.tokens.size(), is_picture ? next++ : -1});
  }
  auto const add = [&](std::span<float const> logits) { out.insert(out.end(), logits.begin(), logits.end()); };
  add(engine.step({rows, vectors, c.positions}).row(0));
  for (std::int32_t token : {5, 9, 2}) add(engine.decode(sequence, token));
  return out;
}

}  // namespace

TEST_CASE("several images, one after the other: text is the same whoever had the arena before", "[golden][vision]") {
  int n_borrowed = 0, n_own = 0;
  for (std::string const& model : vlm_models()) {
    VlmFixture const fixture = read_vlm_fixture(model);
    std::vector<VisionEncoding> const encodings = encode_on_host(model, "f16", fixture);
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    for (std::size_t const vram_bytes : {std::size_t{0}, 400 * KiB, 900 * KiB, 4 * MiB}) {
      INFO(model << " in " << vram_bytes << " bytes");
      EngineOptions const options{.vram_bytes = vram_bytes, .max_context = 512, .n_threads = 1};
      Engine<SimPolicies> alone(decoder, options), engine(decoder, options);
      VisionEncoder<SimPolicies> encoder(engine, projector, {.max_patches = 1024, .least_speedup = 0});
      for (std::size_t i = 0; i < encodings.size(); ++i) {
        VlmCase const& c = fixture.cases[i];
        VisionEncoding const seen = encoder.encode(vlm_patches(c, encoder.config()), c.grids);
        CHECK(alike(encoder, seen, encodings[i]));
        CHECK(answer(engine, c, seen) == answer(alone, c, seen));
      }
      CHECK(engine.stats().vram_peak_bytes <= vram_bytes);
      bool const on_device = encoder.plans().images.front().uses_device;
      n_borrowed += on_device && encoder.borrows_vram();
      n_own += on_device && !encoder.borrows_vram();
    }
  }
  CHECK(n_borrowed > 0);
  CHECK(n_own > 0);
}

TEST_CASE("frames go in blocks that the device has room for, and one that is too large is refused", "[golden][vision]") {
  std::string const model = "qwen25vl";
  auto const decoder = open_decoder(model + ".f16");
  auto const projector = open_projector(model + ".mmproj.f16");
  Engine<SimPolicies> engine(decoder, {.vram_bytes = 2 * MiB, .max_context = 256, .n_threads = 1});
  Engine<CpuPolicies> host_engine(decoder, {.max_context = 256, .n_threads = 1});
  VisionEncoder encoder(engine, projector, {.max_patches = 300, .least_speedup = 0});
  VisionEncoder host(host_engine, projector, {.max_patches = 4096});
  CHECK(encoder.plans().max_context == 512);
  REQUIRE(encoder.plans().images.front().uses_device);
  std::vector<PatchGrid> const grids{{7, 10, 16}, {1, 20, 24}, {1, 2, 2}};
  std::size_t n = 0;
  for (PatchGrid const& g : grids) n += std::size_t(g.n_patches());
  SplitMix64 random(11);
  std::vector<float> patches(n * std::size_t(encoder.config().patch_elems()));
  for (float& p : patches) p = float(double(random.next() >> 42) * 0x1p-20 - 2);
  VisionEncoding const expected = encoder.encode(patches, grids), on_host = host.encode(patches, grids);
  CHECK(alike(encoder, on_host, expected));  // whatever frames are in a block
  ReferenceVisionEncoder const reference(projector->vision(), projector->weights());
  VisionEncoding const slow = reference.encode(patches, grids);
  CHECK(difference(expected, slow.tokens, slow.deepstack) < f16_tolerance(encoder.config()));

  PatchGrid const large{1, 20, 26};
  std::vector<float> const too_many(std::size_t(large.n_patches() * encoder.config().patch_elems()));
  auto const refused = error_of([&] { encoder.encode(too_many, {&large, 1}); });
  CHECK(refused.code == Errc::over_budget);
  CHECK(refused.message.find("520") != std::string::npos);
  CHECK(refused.message.find("512") != std::string::npos);
  CHECK(error_of([&] { encoder.encode(patches, {&large, 1}); }).code == Errc::precondition);
  CHECK(same_bits(encoder.encode(patches, grids), expected));
}

TEST_CASE("patches that the engine's threads write: the bits of one thread, and of patches that were there", "[golden][vision]") {
  std::string const model = "qwen3vl";
  auto const decoder = open_decoder(model + ".f16");
  auto const projector = open_projector(model + ".mmproj.f16");
  VisionConfig const& c = projector->vision();
  PatchConfig small = patch_config(c);
  small.min_pixels = 1;
  Patches const patches(numbered_image({17 * small.factor() + 3, 12 * small.factor()}, 3), small);
  std::vector<float> values(std::size_t(patches.grid().n_patches() * patches.patch_elems()));
  patches.write(0, patches.grid().n_patches(), values);
  PatchGrid const grid = patches.grid();
  for (std::size_t const vram_bytes : {std::size_t{0}, 900 * KiB, 4 * MiB}) {
    std::vector<VisionEncoding> encodings;
    for (int const n_threads : {1, 3}) {
      Engine<SimPolicies> engine(decoder, {.vram_bytes = vram_bytes, .max_context = 256, .n_threads = n_threads});
      VisionEncoder encoder(engine, projector, {.max_patches = 1024, .least_speedup = 0});
      encodings.push_back(encoder.encode(patches));
      encodings.push_back(encoder.encode(values, {&grid, 1}));
    }
    for (VisionEncoding const& e : encodings) CHECK(same_bits(e, encodings.front()));
  }
}

TEST_CASE("a projector that is not the decoder's is refused", "[golden][vision]") {
  Engine<CpuPolicies> narrow(make_model(GgufFile::open(golden_path("llama.f32.gguf"))), {.max_context = 256, .n_threads = 1});
  Engine<CpuPolicies> other(open_decoder("qwen2vl.f16"), {.max_context = 256, .n_threads = 1});
  auto const text_only = error_of([&] { VisionEncoder(narrow, open_projector("qwen2vl.mmproj.f16")); });
  CHECK(text_only.code == Errc::unsupported);
  CHECK(text_only.message.find("llama reads text only") != std::string::npos);
  auto const wrong_features = error_of([&] { VisionEncoder(other, open_projector("qwen3vl.mmproj.f16")); });
  CHECK(wrong_features.code == Errc::unsupported);
  CHECK(wrong_features.message.find("features for 2 layers of a model, and the model (qwen2vl) takes 0") != std::string::npos);
}
