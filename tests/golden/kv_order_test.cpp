// Chunks of one block of which the first bring keys and values from host memory, and the last, of few rows, goes there: in any order of
// lanes.
#include <cmath>
#include <cstdint>
#include <vector>

#include "golden/fused_rig.hpp"

using namespace tiered;
using namespace tiered::test;

TEST_CASE("the host attends to what earlier chunks streamed, and not before it is home", "[golden][kv]") {
  constexpr std::int32_t page_tokens = 16, n_pages = 16;
  for (char const* file : {"llama.f32.gguf", "gemma3.f32.gguf"}) {  // the second has windows: all that a row sees may be in host memory
    auto const model = open_golden(file);
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < 2 * 48 + 5; ++i) tokens.push_back(3 + (i * 7 + i * i / 5) % 60);
    RigOptions o{.vram_bytes = 0};
    o.page_tokens = page_tokens;
    std::vector<float> const expected = Rig(model, o).all(tokens, {tokens.size()});
    auto const [least, most] = std::ranges::minmax(expected);
    // As in kv_homes_test: sums of parts, and both ways' own roundings of f32.
    double const tolerance = gain * 4 * std::ldexp(1.0, -24) * model->config().n_layers;
    for (std::int32_t const vram_pages : {0, 1}) {
      std::vector<float> first;
      for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        INFO(file << ", " << vram_pages << " pages in VRAM, seed " << seed);
        RigOptions r{.maps_host = true, .chunk = 48, .seed = seed, .own_kv_copy = true};
        r.page_tokens = page_tokens;
        r.kv_share = vram_pages > 0 ? float(vram_pages) / float(n_pages) : 1e-6f;
        r.slow_attention = true;
        Rig rig(model, r);
        REQUIRE(rig.image_for(tokens.size()).activations.kv_stream.half_pages > 0);
        rig.kv_copy->late_by = [&](CopyPiece const& piece) {
          bool const goes_home = piece.dst < rig.vram.data() || piece.dst >= rig.vram.data() + rig.vram.bytes();
          return goes_home ? 100 : 0;
        };
        std::vector<float> const got = rig.all(tokens, {tokens.size()});
        CHECK(std::ranges::count(rig.host.launches, "attention") > 0);
        CHECK(std::ranges::count(rig.device.launches, "attention") > 0);
        CHECK(worst_difference(got, expected, most - least) < tolerance);
        if (first.empty()) first = got;
        CHECK((got == first));
      }
    }
  }
}
