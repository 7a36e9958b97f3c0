/// What decode with cached experts is expected to hit and to wait for, in one place: figures with names, each with where it comes from, or
/// that it is assumed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tiered {

struct HitPoint {
  double cached = 0, hits = 0;
};

/// Probability that one of n rows uses what each uses with `probability`.
inline double used_by(double probability, std::int32_t n_rows) { return -std::expm1(double(n_rows) * std::log1p(-probability)); }

/// Share of one row's uses that find their expert in VRAM, by the share of all that the cache holds. Of synthetic routing, no real text's:
/// a made-up mixture of 128 experts, 8 a row, decoded ids whose topic changes every few hundred tokens, and hit 47 % with 11 % cached, 80 %
/// with 35 %. Nobody decoded with 66 %: that point is of an LRU cache in a replay of the same synthetic routing.
inline constexpr HitPoint hits_by_cached[] = {{0, 0}, {0.11, 0.47}, {0.35, 0.80}, {0.66, 0.93}, {1, 1}};

constexpr double cache_hits(double cached) {
  HitPoint below{};
  for (HitPoint const& p : hits_by_cached) {
    if (cached <= p.cached && p.cached > below.cached)
      return below.hits + (p.hits - below.hits) * (cached - below.cached) / (p.cached - below.cached);
    below = p;
  }
  return 1;
}

/// Of the experts that n rows use, where one row uses each with this probability: what is not cached is used less often than the rest, but
/// by many rows, too. So these find just what is there, and no number of rows misses more than its parts do one after the other.
inline double cache_hits(double cached, double use_probability, std::int32_t n_rows) {
  if (cached >= 1 || use_probability >= 1) return (std::min)(cached, 1.0);
  double const of_missing = use_probability * (1 - cache_hits(cached)) / (1 - cached);
  return 1 - (1 - cached) * used_by(of_missing, n_rows) / used_by(use_probability, n_rows);
}

/// Misses come together: a row finds all that it uses of a layer, or misses at least this share of it. Independent misses would have made
/// four layers of five wait at 82 % hits; in a traced token of such a run one of ten did. Assumed between the two, not measured.
inline constexpr double missed_together = 0.5;

/// How many of the layers wait for something, where a row uses `used` experts of each and `missed` of the rows' uses, on average, are not
/// in VRAM.
constexpr double layers_with_misses(double missed, double used) {
  return used > 0 ? (std::min)(1.0, missed / (missed_together * used)) : 0;
}

/// What a layer with misses takes beside its attention, its router, the way to the host and back, and the longer of what the host computes
/// and what is fetched: the fetched ones' products and the sum. Assumed, not measured.
inline constexpr double missed_layer_s = 10e-6;
/// What a layer without misses takes more than one whose experts are all resident: nothing, where the device sees that by itself.
inline constexpr double found_layer_s = 0;

/// Whether a step of one row guesses what later layers will want, and has it brought ahead: see FewRouted.
enum class LookAhead : std::uint8_t {
  planned,  ///< where pays_to_look_ahead()
  never,
  always,  ///< where experts may be missing, and the link brings some
};

// What later layers of a step will want is guessed while earlier ones compute, and what of it is missing comes ahead of them.

/// Share of the missing experts that are among those guessed. Of the literature: 72 to 81 % one layer ahead; not measured here.
inline constexpr double guessed_share = 0.75;
/// What guesses add to a layer: the weights of three more routers are read beside its experts'. Assumed, not measured.
inline constexpr double guess_layer_s = 1e-6;
/// Bytes of missing experts that the link and the host together take in a second: 130 to 140 GB/s on the reference machine.
inline constexpr double missed_bytes_per_s = 135e9;
/// What a copy ahead takes of the link beside its bytes: five transfers, some of which wait for each other. Assumed, not measured; that it
/// begins 10 to 20 us after it was asked for is no matter, as the next one is asked for meanwhile.
inline constexpr double ahead_copy_s = 5e-6;

/// Experts of a layer, on the average, that come ahead of it, where `missed` are missing: the link copies while the layer computes, for
/// `layer_s`, what is there; in layers that wait it has other things to do.
constexpr double hidden_misses(double missed, double layer_s, double copy_s) {
  double const guessed = guessed_share * missed, in_time = layer_s / (copy_s + ahead_copy_s);
  return guessed < in_time ? guessed : in_time;
}

/// Whether guesses cost less than they save, at the most one expert a layer: that is what a copy takes.
constexpr bool pays_to_look_ahead(double missed, double expert_bytes) {
  double const hidden = (std::min)(guessed_share * missed, 1.0);
  return hidden * expert_bytes / missed_bytes_per_s > guess_layer_s;
}

/// hidden_misses() as a share of the missing ones, which take `copies_s` to copy, all together, and are of so many bytes each; 0 where it
/// does not pay.
constexpr double hidden_share(double missed, double layer_s, double copies_s, double expert_bytes) {
  return missed > 0 && pays_to_look_ahead(missed, expert_bytes) ? hidden_misses(missed, layer_s, copies_s / missed) / missed : 0;
}

/// Of the time that an expert takes the host whose weights its caches have read already. Assumed, not measured.
inline constexpr double read_expert_share = 0.5;

/// Rooms of a cache of `n` experts that are kept free for them. Between two requests, which make room anew, come as many as the link copies
/// in the layers between: three on the average, ten at the most of a mixture of 48 layers in whose steps 17 ask. Each costs what the
/// least used expert would have hit: 0.05 misses a token there, by two caches of which one has 1600 rooms more and misses 73 less.
constexpr std::size_t reserved_experts(std::size_t n) { return std::clamp<std::size_t>(n / 16, 1, 12); }

}  // namespace tiered
