/// The vision encoder as a model that an executor runs: rows are patches, and leave as tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tiered/io/gguf.hpp"
#include "tiered/model/model.hpp"
#include "tiered/vision/vision_config.hpp"
#include "tiered/vision/vision_weights.hpp"

namespace tiered {

/// Planes of what rows bring (ExecContext::inputs); the positions only where VisionConfig::position_side is not 0.
enum class VisionInput : std::int32_t {
  pixels,          ///< [patch_elems] f32
  position_index,  ///< [4] int32: entries of the table of positions around the patch
  position_share,  ///< [4] f32: of each
};
/// Ranges of a block's rows that a row may see.
enum class VisionRange : std::int32_t { frame, window };

/// A projector file's encoder. Reads no byte of matrices but the patches', and a few of each for VisionConfig::weights; keeps the file
/// mapped. Immutable, so engines and threads may share it. Rows of a block are patches in the order of vision/vision_block.hpp. Plane 0 of
/// what leaves is tokens, plane 1 + i the feature of the i-th deepstack layer.
class VisionModel {
 public:
  /// Errors  of read_vision_config() and read_vision_weights().
  explicit VisionModel(GgufFile file);

  ModelConfig const& config() const { return config_; }
  VisionConfig const& vision() const { return vision_; }
  VisionWeights const& weights() const { return weights_; }
  ShardTable table() const { return weights_.table(); }
  GgufFile const& file() const { return file_; }

  void run(Step step, ExecContext& ctx) const;

  /// What one row of a block of n patches, which all see each other where a layer has no windows, takes of each layer's attention.
  LayerState attention(std::int32_t layer) const;

 private:
  // Shapes below: n = ctx.n_rows().

  /// hidden = patch pixels + bias + positions.
  void embed(ExecContext& ctx) const;
  /// Pass 0: keeps k and v of the normed rows; pass 1: hidden += out(attention(q)).
  void attend(std::int32_t l, ExecContext& ctx) const;
  /// hidden += down(act(up x)), or down(act(gate x) * up x).
  void feed_forward(std::int32_t l, ExecContext& ctx) const;
  /// Rows side by side become tokens, which leave.
  void merge(VisionMergerWeights const& w, std::int32_t plane, ExecContext& ctx) const;

  struct NormRequest {
    WeightId weight{}, bias{};
    float* y = nullptr;  ///< [n_rows, dim]
    std::int32_t n_rows = 0, dim = 0;
  };
  /// Hidden rows through their norm, which may still be to be done: it then reads them when the first product does.
  Activations normed(NormRequest const& request, ExecContext& ctx) const;

  GgufFile file_;
  VisionConfig vision_;
  VisionWeights weights_;
  ModelConfig config_;
  std::vector<std::int32_t> plane_of_;  ///< by shard: where it is a merger, of what leaves; else -1
};
static_assert(Model<VisionModel>);

/// Shared, since encoders keep it.
std::shared_ptr<VisionModel const> make_vision_model(GgufFile file);

}  // namespace tiered
