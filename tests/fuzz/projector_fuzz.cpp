// Any GGUF file is a good projector of images or a typed error; a good one's weights lie in the file, and its encoder runs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "tiered/io/gguf.hpp"
#include "tiered/vision/reference_encoder.hpp"

namespace {

using namespace tiered;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Every byte of every weight is read by something.
void check_weights(VisionConfig const& config, VisionWeights const& weights) {
  require(config.layers.size() == weights.layers.size() && std::size_t(config.n_deepstack()) == weights.deepstack.size());
  for (Shard const& shard : weights.shards) {
    for (std::int32_t i = shard.weights.begin; i < shard.weights.end; ++i) {
      Weight const& w = weights.weights[std::size_t(i)];
      require(w.rows > 0 && w.cols > 0 && w.offset + w.bytes() <= shard.bytes);
      std::vector<float> row(std::size_t(w.cols));
      for (std::int32_t r = 0; r < w.rows; ++r) decode_row(w.dtype, w.data + std::size_t(r) * w.row_bytes(), w.cols, row.data());
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  // What begins at an odd place is no file that anybody maps.
  std::vector<std::uint64_t> aligned((size + 7) / 8);
  std::copy_n(data, size, reinterpret_cast<std::uint8_t*>(aligned.data()));
  try {
    GgufFile const file = GgufFile::parse(std::as_bytes(std::span(aligned)).first(size));
    VisionConfig const config = read_vision_config(file);
    VisionWeights const weights = read_vision_weights(file, config);
    check_weights(config, weights);
    if (size > 16384 || config.merge_size > 4 || config.patch_size > 8) return 0;
    PatchGrid const grid{1, config.merge_size, 2 * config.merge_size};
    std::vector<float> const patches(std::size_t(grid.n_patches() * config.patch_elems()), 0.5f);
    VisionEncoding const out = ReferenceVisionEncoder(config, weights).encode(patches, {&grid, 1});
    require(out.tokens.size() == std::size_t(2 * config.output_dim) && out.deepstack.size() == weights.deepstack.size());
  } catch (Error const& error) {
    std::string_view const message = error.what();
    require(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
  }
  return 0;
}
