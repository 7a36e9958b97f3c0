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

/// A tiny model, the first pictures of its fixture, and what the CPU alone makes of those and of a prompt of words.
struct Tiny {
  explicit Tiny(std::string const& name)
      : decoder(open_decoder(name + ".f16")),
        projector(open_projector(name + ".mmproj.f16")),
        first(read_vlm_fixture(name).cases.front()),
        patches(vlm_patches(first, projector->vision())) {
    Engine<CpuPolicies> cpu(decoder, {.max_context = 256, .n_threads = 1});
    text = text_of(cpu);
    VisionEncoder encoder(cpu, projector, vision);
    encoding = encode(encoder);
  }
  template <class E>
  std::vector<float> text_of(E& engine) const {
    return all_logits(engine, {3, 1, 4, 1, 5}, {3, 1});
  }
  template <class V>
  VisionEncoding encode(V& encoder, bool more = false) const {
    return encoder.encode(patches, first.grids, more);
  }
  /// Of a simulated device whose lanes take turns by the seed.
  template <class P>
  Engine<P> engine(std::uint64_t seed, std::shared_ptr<Faults> faults) const {
    return Engine<P>(decoder, options, {},
                     SimPolicies::make_machine({vram_bytes, 1, false, false}, LaneSet::seeded(seed), std::move(faults)));
  }
  /// The encoder works, and the decoder behind it.
  template <class E, class V>
  void check_both(E& engine, V& encoder) const {
    CHECK(alike(encoder, encode(encoder), encoding));
    CHECK(text_of(engine) == text);
  }

  std::shared_ptr<Transformer const> decoder;
  std::shared_ptr<VisionModel const> projector;
  VlmCase first;
  std::vector<float> patches, text;
  VisionEncoding encoding;
};

}  // namespace

TEST_CASE("a fault of any kind at any time of encoding", "[faults][vision]") {
  for (std::string const model : {"qwen25vl", "qwen3vl"}) {
    Tiny const tiny(model);
    for (FaultKind const kind : {FaultKind::copy, FaultKind::launch}) {
      std::uint64_t n_struck = 0;
      for (std::uint64_t n = 1;; n += n > 30 ? 5 : 1) {
        INFO(model << " fault " << int(kind) << " at " << n);
        auto faults = std::make_shared<Faults>();
        Engine<StreamPolicies> engine = tiny.engine<StreamPolicies>(n, faults);
        VisionEncoder<StreamPolicies> encoder(engine, tiny.projector, vision);
        REQUIRE(encoder.borrows_vram());
        REQUIRE(encoder.plans().images.front().uses_device);
        REQUIRE(tiny.text_of(engine) == tiny.text);
        faults->fail_at(kind, n);
        bool struck = false;
        VisionEncoding got;
        try {
          got = tiny.encode(encoder);
        } catch (Error const& e) {
          struck = true;
          CHECK(e.code() == Errc::device);
        }
        if (!struck) {
          CHECK(alike(encoder, got, tiny.encoding));
          break;
        }
        ++n_struck;
        if (n % 2 == 0) CHECK(tiny.text_of(engine) == tiny.text);
        tiny.check_both(engine, encoder);
        CHECK(engine.stats().vram_peak_bytes <= vram_bytes);
      }
      CHECK(n_struck > 10);
    }
  }
}

TEST_CASE("a fault in what comes back behind an encoder: a typed error, and nothing is taken to be there that is not", "[faults][vision]") {
  for (std::string const model : {"qwen2vl", "qwen3vl"}) {
    Tiny const tiny(model);
    int n_in_encoder = 0, n_behind = 0;
    for (std::uint64_t n = 1;; ++n) {
      INFO(model << " fault at " << n);
      auto faults = std::make_shared<Faults>();
      Engine<SimPolicies> engine = tiny.engine<SimPolicies>(n, faults);
      auto encoder = std::make_unique<VisionEncoder<SimPolicies>>(engine, tiny.projector, vision);
      REQUIRE(encoder->borrows_vram());
      REQUIRE(tiny.text_of(engine) == tiny.text);
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
      bool const in_encoder = fails([&] { got = tiny.encode(*encoder); });
      if (!in_encoder) CHECK(alike(*encoder, got, tiny.encoding));
      // What fails next finds out: a step, another image, or the end of the encoder.
      bool behind = false;
      if (!in_encoder && n % 3 == 0) behind = fails([&] { tiny.encode(*encoder, true); });
      if (!in_encoder && n % 3 == 1) encoder.reset();
      if (!behind && !fails([&] { said = tiny.text_of(engine); })) {
        CHECK(said == tiny.text);
      } else {
        behind = true;
      }
      bool const struck = faults->fired() > 0;
      faults->fail_at(FaultKind::copy, 0);
      n_in_encoder += in_encoder;
      n_behind += !in_encoder && behind;
      CHECK(tiny.text_of(engine) == tiny.text);
      if (encoder != nullptr) CHECK(alike(*encoder, tiny.encode(*encoder), tiny.encoding));
      CHECK(tiny.text_of(engine) == tiny.text);
      CHECK(engine.stats().vram_peak_bytes <= vram_bytes);
      if (!struck) break;
    }
    CHECK(n_in_encoder > 3);
    CHECK(n_behind > 3);
  }
}

TEST_CASE("cancelled between an encoder and the step behind it", "[faults][vision]") {
  Tiny const tiny("qwen25vl");
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    Engine<SimPolicies> engine = tiny.engine<SimPolicies>(seed, nullptr);
    VisionEncoder<SimPolicies> encoder(engine, tiny.projector, vision);
    CHECK(alike(encoder, tiny.encode(encoder), tiny.encoding));
    engine.cancel_token().cancel();
    CHECK(error_of([&] { tiny.text_of(engine); }).code == Errc::cancelled);
    if (seed % 2 == 0) CHECK(error_of([&] { tiny.encode(encoder); }).code == Errc::cancelled);
    engine.cancel_token().reset();
    CHECK(tiny.text_of(engine) == tiny.text);
    tiny.check_both(engine, encoder);
  }
}

TEST_CASE("cancelled while encoding, on either device", "[faults][vision]") {
  Tiny const tiny("qwen2vl");
  for (std::size_t const bytes : {std::size_t{0}, vram_bytes}) {
    Engine<SimPolicies> engine(tiny.decoder, {.vram_bytes = bytes, .max_context = 256, .n_threads = 1});
    VisionEncoder<SimPolicies> encoder(engine, tiny.projector, vision);
    // Cancelled by whoever hands out pixels: in the middle of a block.
    auto const cancel = [&](std::span<std::int64_t const> which, std::span<float> out) {
      std::size_t const elems = std::size_t(encoder.config().patch_elems());
      float* to = out.data();
      for (std::int64_t const patch : which) to = std::copy_n(tiny.patches.data() + std::size_t(patch) * elems, elems, to);
      engine.cancel_token().cancel();
    };
    CHECK(error_of([&] { encoder.encode(tiny.first.grids, cancel); }).code == Errc::cancelled);
    CHECK(error_of([&] { tiny.encode(encoder); }).code == Errc::cancelled);
    engine.cancel_token().reset();
    tiny.check_both(engine, encoder);
  }
}

TEST_CASE("what hands out pixels fails: its error, and nothing is lost", "[faults][vision]") {
  Tiny const tiny("qwen3vl");
  Engine<SimPolicies> engine(tiny.decoder, options);
  VisionEncoder<SimPolicies> encoder(engine, tiny.projector, vision);
  auto const fail = [](std::span<std::int64_t const>, std::span<float>) { throw Error(Errc::io, "no pixels"); };
  CHECK(error_of([&] { encoder.encode(tiny.first.grids, fail); }).code == Errc::io);
  CHECK(alike(encoder, tiny.encode(encoder), tiny.encoding));
}
