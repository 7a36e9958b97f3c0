/// The few functions of <cmath> that chat templates need, without its 5000 lines of special functions.
#pragma once

namespace tiered::detail::jinja {

inline double floor(double x) { return __builtin_floor(x); }
inline double ceil(double x) { return __builtin_ceil(x); }
inline double remainder_to_zero(double x, double y) { return __builtin_fmod(x, y); }
inline double raised(double x, double y) { return __builtin_pow(x, y); }
constexpr bool is_nan(double x) { return x != x; }
constexpr bool is_finite(double x) { return x - x == 0; }

}  // namespace tiered::detail::jinja
