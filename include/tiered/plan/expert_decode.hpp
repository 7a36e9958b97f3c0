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

/// Share of one row's uses that find their expert in VRAM without being brought on a guess, by the share of all that the cache holds.
/// Fitted to the 12 cells of bench/figures/sweep.json: hits less those that guesses brought, of a cache with what keys and values do not
/// use and the rooms that are kept for guesses. Of synthetic routing, no real text's: a made-up mixture of 128 experts, 8 a row, decoded
/// ids whose topic changes every 256 tokens. In less than a twentieth of all there is no room for what one topic uses.
inline constexpr HitPoint hits_by_cached[] = {{0, 0},       {0.03, 0.15}, {0.05, 0.37},  {0.09, 0.58},
                                              {0.17, 0.76}, {0.35, 0.84}, {0.90, 0.975}, {1, 1}};

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

/// Misses come together: a row finds all that it uses of a layer, or misses at least this share of it, and more where more are missing.
/// Measured (reference machine, 30B, 8 used): layers that asked missed 2.05, 2.45 and 4.49 where 0.50, 1.94 and 4.49 are missing on
/// average.
inline constexpr double missed_together = 0.25;

/// How many of the layers wait for something, where a row uses `used` experts of each and `missed` of the rows' uses, on average, are not
/// in VRAM.
constexpr double layers_with_misses(double missed, double used) {
  return used > 0 ? (std::min)(1.0, missed / (missed_together * (used + missed))) : 0;
}

/// What a layer with misses takes beside its attention, its router, the way to the host and back, and the longer of what the host computes
/// and what is fetched: the fetched ones' products and the sum. Assumed, not measured. Where the device asks within its launch: ask_s,
/// answer_s.
inline constexpr double missed_layer_s = 10e-6;
/// What a layer without misses takes more than one whose experts are all resident: nothing, where the device sees that by itself.
inline constexpr double found_layer_s = 0;

/// Whether a step of one row guesses what later layers will want, and has it brought ahead: see FewRouted.
enum class LookAhead : std::uint8_t {
  planned,  ///< where pays_to_look_ahead()
  never,
  always,  ///< where experts may be missing, and the link brings some
};

// Steps whose device asks the host, and what of a layer's missing experts comes ahead of it on a guess: used by helped_time(). Fitted to
// steps of the reference machine (H200, PCIe 5, 16 threads) before weights were read ahead: a 30B mixture of 48 layers (8 of 128 experts of
// 2.65 MB, Q4_0) in 2, 4 and 8 GiB, and one of 235B (94 layers, 6.83 MB, Q2_K) in 4 GiB.

/// Of the missing experts, those that guesses bring at most, where the link is idle else: 59 % in 8 GiB, 38 to 48 % in 4.
inline constexpr double guessed_share = 0.55;
/// Of those that come on a right guess, the ones that are there when the layer looks: 72, 59, 64 and 72 %; the device computes the others
/// behind the request that fetches more.
inline constexpr double ahead_in_time = 0.67;
/// Of the missing experts, those that guesses name, and the host's caches read: 100, 95 and 85 % of the named ones were right.
inline constexpr double known_share = 0.9;
/// What a copy ahead takes of the link beside its bytes, until the next one begins: between 25 and 35 us of the 30B's, which came every 84
/// to 98 and take 61 beside the host's reading; up to 40 of the 235B's, every 150 to 190, which take 151.
inline constexpr double ahead_copy_s = 22e-6;
/// The thread that serves submits it, which has nobody read meanwhile: about 12 us.
inline constexpr double submit_s = 12e-6;
/// A request beside the products, from asked to answered: to decide (4 to 7 us), the ways, late copies. 8, 13, 20 and 16 us in all.
inline constexpr double ask_s = 14e-6;
/// Behind the answer, when the host has nothing to do: the launch of fetched experts and the sum. 17, 13, 0 and 36 us.
inline constexpr double answer_s = 14e-6;
/// And before the host's products: to quantise rows, to wake the team, between the products. 12 to 15 us in a benchmark of these.
inline constexpr double host_request_s = 14e-6;
/// Multiply-adds of a thread with weights that are in caches: each more expert of the 30B took 16 threads 14.5 us, of the 235B 50.
inline constexpr double hot_macs_per_thread_s = 22e9;
/// What guesses add to a layer: the weights of three more routers are read beside its experts'. Assumed, not measured.
inline constexpr double guess_layer_s = 1e-6;
/// Bytes of missing experts that the link and the host together take in a second: 130 to 140 GB/s on the reference machine.
inline constexpr double missed_bytes_per_s = 135e9;

/// Whether guesses cost less than they save, at the most one expert a layer: that is what a copy takes.
constexpr bool pays_to_look_ahead(double missed, double expert_bytes) {
  double const hidden = (std::min)(guessed_share * missed, 1.0);
  return hidden * expert_bytes / missed_bytes_per_s > guess_layer_s;
}

/// Of the time that an expert takes the host whose weights its caches have read already, where nothing is known of its products, and for
/// FewRouted, which counts so all that it had the caches read: the 30B's took 14.5 us for 29.
inline constexpr double read_expert_share = 0.5;

/// Rooms of a cache of `n` experts that are kept free for them. Between two requests, which make room anew, come as many as the link copies
/// in the layers between: three on the average, ten at the most of a mixture of 48 layers in whose steps 17 ask. Each costs what the
/// least used expert would have hit: 0.05 misses a token there, by two caches of which one has 1600 rooms more and misses 73 less.
constexpr std::size_t reserved_experts(std::size_t n) { return std::clamp<std::size_t>(n / 16, 1, 12); }

}  // namespace tiered
