// Rotary positions of the fixtures' prompts, split by their placeholders, are those that transformers gave their decoders.
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "tiered/vision/positions.hpp"
#include "vlm_fixture.hpp"

using namespace tiered;
using namespace tiered_test;

TEST_CASE("positions of prompts with images, or with a video", "[golden][vision]") {
  constexpr std::int32_t image_token = 98, video_token = 99;
  for (std::string const& model : vlm_models()) {
    MropeConfig config;
    config.tokens_per_second = model == "qwen25vl" ? 4 : 0;
    config.frames_apart = model == "qwen3vl";
    for (VlmCase const& c : read_vlm_fixture(model).cases) {
      INFO(model << ' ' << c.name);
      std::vector<PatchGrid> const images = c.is_video ? std::vector<PatchGrid>() : c.grids;
      std::vector<VideoGrid> const videos = c.is_video ? std::vector<VideoGrid>{{c.grids.front(), 0.75}} : std::vector<VideoGrid>();
      MropePositions const p = mrope_positions(split_prompt(c.tokens, image_token, video_token, images, videos, config), config);
      std::vector<std::int32_t> all(p.time);
      all.insert(all.end(), p.height.begin(), p.height.end());
      all.insert(all.end(), p.width.begin(), p.width.end());
      CHECK(all == c.positions);
    }
  }
}
