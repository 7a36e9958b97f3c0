/// The version of the library; CMakeLists.txt reads it from here.
#pragma once

namespace tiered {

inline constexpr int version_major = 0, version_minor = 2, version_patch = 0;
inline constexpr char const* version_text = "0.2.0";

}  // namespace tiered
