/// Classes of batch size that get a plan each: the concept and the built-in policy.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

namespace tiered {

/// | expression      | result                     | meaning                                  |
/// |-----------------|----------------------------|------------------------------------------|
/// | `c.bounds()`    | span<int const> (or vector) | most tokens of each token tier, ascending, not empty |
/// | `c.select(n)`   | size_t                     | index of the smallest bound >= n, else the last |
/// Pure and thread-safe.
template <class T>
concept TokenTierPolicy = requires(T const& c, int n_tokens) {
  { c.bounds() } -> std::convertible_to<std::span<int const>>;
  { c.select(n_tokens) } -> std::same_as<std::size_t>;
};

/// Decode, a few rows (sequences, drafts), short turns, and prompts: 1, 16, 64, 512, 2048, 8192 ... up to a maximum.
class DecodePrefillTiers {
 public:
  explicit DecodePrefillTiers(int max_tokens = 8192) {
    bounds_ = {1};
    for (int bound : {16, 64, 512}) {
      if (bound < max_tokens) bounds_.push_back(bound);
    }
    for (long bound = 2048; bound < max_tokens; bound *= 4) bounds_.push_back(int(bound));
    if (max_tokens > 1) bounds_.push_back(max_tokens);
  }
  std::span<int const> bounds() const { return bounds_; }
  std::size_t select(int n_tokens) const {
    auto const found = std::lower_bound(bounds_.begin(), bounds_.end(), n_tokens);
    return (std::min)(std::size_t(found - bounds_.begin()), bounds_.size() - 1);
  }
  bool operator==(DecodePrefillTiers const&) const = default;

 private:
  std::vector<int> bounds_;
};
static_assert(TokenTierPolicy<DecodePrefillTiers>);

}  // namespace tiered
