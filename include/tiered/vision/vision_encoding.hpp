/// What a vision encoder makes of images.
#pragma once

#include <cstdint>
#include <vector>

namespace tiered {

struct VisionEncoding {
  std::int64_t n_tokens = 0;
  std::vector<float> tokens;                  ///< [n_tokens, output_dim]
  std::vector<std::vector<float>> deepstack;  ///< for each deepstack layer [n_tokens, output_dim]
};

}  // namespace tiered
