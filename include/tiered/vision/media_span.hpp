/// Tokens of a sequence that came from an image, or from a step of a video, and which one it was.
#pragma once

#include <cstdint>
#include <span>

#include "tiered/vision/media_hash.hpp"

namespace tiered {

/// What two sequences must share, besides tokens, for one's keys and values to be the other's.
struct MediaSpan {
  std::int32_t begin = 0, n_tokens = 0;
  std::int32_t time = 0;  ///< the rotary position of its first token: videos of other rates differ in no more
  std::int32_t reserved = 0;
  MediaHash hash;

  std::int32_t end() const { return begin + n_tokens; }
  friend bool operator==(MediaSpan const&, MediaSpan const&) = default;
};

/// How many of the first `n` tokens are from the same media at the same places: n where those that differ lie behind.
inline std::int32_t common_media_prefix(std::span<MediaSpan const> a, std::span<MediaSpan const> b, std::int32_t n) {
  auto const least = [&](std::int32_t value) { n = value < n ? value : n; };
  for (std::size_t i = 0; i < a.size() || i < b.size(); ++i) {
    if (i == a.size() || i == b.size()) {
      least(i == a.size() ? b[i].begin : a[i].begin);
      break;
    }
    if (a[i].begin != b[i].begin || a[i].time != b[i].time || a[i].hash != b[i].hash) {
      least(a[i].begin < b[i].begin ? a[i].begin : b[i].begin);
      break;
    }
    if (a[i].n_tokens != b[i].n_tokens) {  // one was cut
      least(a[i].n_tokens < b[i].n_tokens ? a[i].end() : b[i].end());
      break;
    }
  }
  return n;
}

}  // namespace tiered
