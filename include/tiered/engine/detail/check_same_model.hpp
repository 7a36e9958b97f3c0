/// Whether an encoder makes what a decoder takes: asked before either has work.
#pragma once

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/model/config.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered::detail {

/// Errors  Errc::unsupported with both numbers, or for a decoder of text alone.
inline void check_same_model(VisionConfig const& encoder, ModelConfig const& decoder) {
  if (decoder.n_position_rows() != rope_position_rows)
    throw Error(Errc::unsupported, concat("a model of architecture ", decoder.architecture, " reads text only, no images"));
  if (encoder.output_dim != decoder.dim) {
    throw Error(Errc::unsupported, concat("the projector makes vectors of ", encoder.output_dim, " numbers, and the model (",
                                          decoder.architecture, ") has ", decoder.dim, ": they are not of one model"));
  }
  if (encoder.n_deepstack() != decoder.n_deepstack_layers) {
    throw Error(Errc::unsupported,
                concat("the projector has deepstack features for ", encoder.n_deepstack(), " layers of a model, and the model (",
                       decoder.architecture, ") takes ", decoder.n_deepstack_layers, ": they are not of one model"));
  }
}

}  // namespace tiered::detail
