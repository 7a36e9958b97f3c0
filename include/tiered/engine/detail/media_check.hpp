/// What a list of media in a sequence must be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/media_span.hpp"

namespace tiered::detail {

/// Errors  precondition where spans are not ascending, apart and within n tokens.
inline void check_media(std::span<MediaSpan const> media, std::size_t n_tokens) {
  std::int64_t last = 0;
  for (MediaSpan const& span : media) {
    bool const fits = span.begin >= last && span.n_tokens > 0 && std::int64_t{span.begin} + span.n_tokens <= std::int64_t(n_tokens);
    if (!fits) {
      throw Error(Errc::precondition,
                  concat("a picture of ", span.n_tokens, " tokens from token ", span.begin, " on, behind ", last, " and among ", n_tokens));
    }
    last = span.end();
  }
}

}  // namespace tiered::detail
