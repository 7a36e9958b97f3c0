/// GELU without an erf: what vector units and devices share. [device-visible]
#pragma once

#include "tiered/core/config.hpp"

namespace tiered {

/// With s = 1 / (1 + 0.3 |x|), half of erfc(|x| / sqrt 2) is e^(-x^2 / 2) times the sum of gelu_term(i) s^i: fitted for |x| <= 13.3, to
/// 6e-8 relative. Beyond, e^(-x^2 / 2) is 0 in f32.
inline constexpr int n_gelu_terms = 9;
inline constexpr float gelu_slope = 0.3f;

TIERED_HD constexpr float gelu_term(int i) {
  constexpr float terms[n_gelu_terms] = {6.68619214e-06f, 0.119495884f, 0.121862024f,  0.0949108973f, 0.142002851f,
                                         -0.0757366791f,  0.227988094f, -0.168841287f, 0.0383115485f};
  return terms[i];
}

}  // namespace tiered
