// Images and steps of videos that go through the encoder together: the bits of one by one, and weights that cross the link once.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden/vision_encoding.hpp"
#include "media_data.hpp"
#include "tiered/plan/placements/stream_all.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct StreamPolicies : SimPolicies {
  using Placement = StreamAll;
};

/// Images whose frames begin anywhere in a block, one of many windows and one of a part of one.
std::vector<Patches> some_patches(VisionConfig const& c) {
  PatchConfig config = patch_config(c);
  config.min_pixels = 1;
  std::vector<Patches> out;
  int kind = 0;
  for (auto const& [width, height] : {std::pair{9, 7}, {1, 1}, {3, 11}, {9, 7}, {16, 2}, {2, 5}}) {
    ImageSize const size{width * config.factor(), height * config.factor()};
    out.push_back(Patches(numbered_image(size, ++kind), config));
  }
  std::vector<Image> frames;
  for (int i = 0; i < 5; ++i) frames.push_back(numbered_image({100, 70}, 10 + i));
  out.push_back(Patches(std::move(frames), {4 * config.factor(), 3 * config.factor()}, config));
  return out;
}

VisionEncoding joined(std::vector<VisionEncoding> const& parts) {
  VisionEncoding all = parts.front();
  for (std::size_t i = 1; i < parts.size(); ++i) {
    all.n_tokens += parts[i].n_tokens;
    all.tokens.insert(all.tokens.end(), parts[i].tokens.begin(), parts[i].tokens.end());
    for (std::size_t k = 0; k < all.deepstack.size(); ++k)
      all.deepstack[k].insert(all.deepstack[k].end(), parts[i].deepstack[k].begin(), parts[i].deepstack[k].end());
  }
  return all;
}

template <class Encoder>
std::vector<VisionEncoding> one_by_one(Encoder& encoder, std::vector<Patches> const& patches) {
  std::vector<VisionEncoding> out;
  for (Patches const& p : patches) out.push_back(encoder.encode(p));
  return out;
}

/// What the ring gets for each block.
std::size_t streamed_bytes(PlanImage const& image) {
  std::size_t bytes = 0;
  for (Action const& a : image.schedule) bytes += a.kind == ActionKind::copy ? a.bytes : 0;
  return bytes;
}

}  // namespace

TEST_CASE("pictures together: the bits of one by one, whoever encodes", "[golden][vision]") {
  int n_on_host = 0, n_on_device = 0, n_chunks = 0;
  for (std::string const& model : vlm_models()) {
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    std::vector<Patches> const patches = some_patches(projector->vision());
    for (std::size_t const vram_bytes : {std::size_t{0}, 360 * KiB, 900 * KiB, 2 * MiB, 6 * MiB}) {
      for (std::int64_t const max_patches : {1024, 4096}) {
        INFO(model << " in " << vram_bytes << " bytes, up to " << max_patches << " patches");
        Engine<SimPolicies> engine(decoder, {.vram_bytes = vram_bytes, .max_context = 256, .n_threads = 1});
        VisionEncoder encoder(engine, projector, {.max_patches = max_patches, .least_speedup = 0});
        VisionEncoding const alone = joined(one_by_one(encoder, patches)), together = encoder.encode(patches);
        CHECK(alike(encoder, together, alone));
        bool const by_pages = std::ranges::any_of(encoder.plans().images, [](PlanImage const& i) { return i.limits.kv_on_host; });
        PlanImage const& image = encoder.plans().images.back();
        n_on_host += !image.uses_device;
        n_on_device += image.uses_device && !by_pages;
        n_chunks += image.uses_device && !by_pages && image.limits.chunk < image.limits.block;
      }
    }
  }
  CHECK(n_on_host > 0);
  CHECK(n_on_device > 0);
  CHECK(n_chunks > 0);
}

TEST_CASE("pictures together: each weight crosses the link once for all", "[golden][vision]") {
  for (std::string const& model : vlm_models()) {
    INFO(model);
    auto const decoder = open_decoder(model + ".f16");
    auto const projector = open_projector(model + ".mmproj.f16");
    std::vector<Patches> const patches = some_patches(projector->vision());
    Engine<StreamPolicies> engine(decoder, {.vram_bytes = 4 * MiB, .max_context = 256, .n_threads = 1});
    VisionEncoder<StreamPolicies> encoder(engine, projector, {.max_patches = 1024, .least_speedup = 0});
    REQUIRE(encoder.plans().images.size() == 1);
    PlanImage const& image = encoder.plans().images.front();
    std::int64_t n_rows = 0, n_blocks = 0;
    for (Patches const& p : patches) n_rows += p.grid().n_patches(), n_blocks += p.grid().t;
    REQUIRE(image.uses_device);
    REQUIRE_FALSE(image.limits.rows_on_host);
    REQUIRE(n_rows <= image.limits.block);
    std::size_t const streamed = streamed_bytes(image);
    REQUIRE(streamed > 0);
    auto const copied_by = [&](auto const& encode) {
      std::uint64_t const before = engine.machine().copy->bytes_to_device();
      encode();
      return engine.machine().copy->bytes_to_device() - before;
    };
    std::span<Patches const> const all(patches);
    encoder.encode(all, true);  // so that the arena is the encoder's
    std::uint64_t const together = copied_by([&] { encoder.encode(all, true); }), alone = copied_by([&] {
                                                                                    for (std::size_t i = 0; i < all.size(); ++i)
                                                                                      encoder.encode(all.subspan(i, 1), true);
                                                                                  });
    CHECK(together >= streamed);
    CHECK(together < 2 * streamed + std::uint64_t(n_rows) * std::uint64_t(encoder.config().patch_elems()) * sizeof(float));
    // A video's steps are one block each way.
    CHECK(alone >= together + streamed * (patches.size() - 1));
  }
}
