/// Seconds that a shard or a layer's state costs in one pass, wherever it may be computed.
#pragma once

#include <concepts>
#include <cstdint>

#include "tiered/model/shard.hpp"
#include "tiered/plan/hardware.hpp"

namespace tiered {

/// Expected seconds of one pass, probability of use included; infinite where a device has no kernel.
struct PassCost {
  double host_s = 0;  ///< computed by the CPU from host memory
  double gpu_s = 0;   ///< computed by the GPU from VRAM
  double copy_s = 0;  ///< brought over the link
  bool operator==(PassCost const&) const = default;
};

/// | expression            | result   | meaning                                                                          |
/// |-----------------------|----------|----------------------------------------------------------------------------------|
/// | `c.cost(shard, rows)` | PassCost | non-negative, monotone in rows.n                                                 |
/// | `c.cost(state, rows)` | PassCost | of the attention core over rows.context positions; copy_s: bringing the used state |
/// Pure and thread-safe. One that says `static constexpr bool same_for_alike = true` gives shards the same cost that are alike(), so it is
/// asked once for a layer's experts; one that derives from such a model and prices them by more than that says false.
template <class C>
concept CostModel = requires(C const& c, Shard const& shard, LayerState const& state, Rows rows) {
  { c.cost(shard, rows) } -> std::same_as<PassCost>;
  { c.cost(state, rows) } -> std::same_as<PassCost>;
};

constexpr bool alike(Shard const& a, Shard const& b) {
  return a.kind == b.kind && a.bytes == b.bytes && a.n_rows == b.n_rows && a.dtypes == b.dtypes && a.macs_per_token == b.macs_per_token &&
         a.use_probability == b.use_probability;
}

/// Probability that at least one of `n` rows uses the shard, were rows routed independently.
double use_probability(Shard const& shard, std::int32_t n);

/// What of the positions attended to lies in VRAM, where `share` of a state's room does, the first positions, and costs are for the
/// first `used` of it. Contexts grow: `grown` of them are taken to fill their room, for plans one in `long_contexts`.
inline constexpr double long_contexts = 8;
constexpr double attended_in_vram(double share, double used, std::int32_t window, double grown = 1 / long_contexts) {
  if (share <= 0 || share >= 1) return share <= 0 ? 0 : 1;
  double const now = share >= used ? 1 : window > 0 ? 0 : share / used, then = window > 0 ? 0 : share;
  return now + (then - now) * grown;
}

/// Attention of rows that the device has to keys and values in host memory: where those lie, on the host, or by bringing them through
/// VRAM behind the device's attention. Few rows never bring what they will want again for the next token.
struct HostAttention {
  double on_host_s = 0, streamed_s = 0;
  bool streams = false;
  double seconds() const { return streams ? streamed_s : on_host_s; }
};
constexpr HostAttention host_attention(PassCost const& state, double hop_s, std::int32_t n_rows) {
  constexpr std::int32_t most_on_host = 16;
  HostAttention a{state.host_s + 2 * hop_s, state.copy_s > state.gpu_s ? state.copy_s : state.gpu_s};
  a.streams = n_rows > most_on_host && a.streamed_s < a.on_host_s;
  return a;
}

/// Attention of one row, within a launch that waits for nobody else, to keys and values in host memory: the device reads a share of them
/// over the link while the host, which must be asked, attends to the others. Both end together, or the device reads all.
struct ReadAttention {
  double read = 0, seconds = 0;
  double link_s = 0;  ///< of these, while the link is busy
};
constexpr ReadAttention read_attention(PassCost const& state, double hop_s, MutualRates mutual) {
  double const copy_s = state.copy_s > state.gpu_s ? state.copy_s : state.gpu_s, host_s = state.host_s / mutual.host_share + 2 * hop_s,
               beside_s = copy_s / mutual.h2d_share, read = host_s >= 1e300 ? 1 : host_s / (state.host_s / mutual.host_share + beside_s);
  return read >= 1 ? ReadAttention{1, copy_s, state.copy_s} : ReadAttention{read, read * beside_s, read * state.copy_s / mutual.h2d_share};
}

/// Attention of rows where `in_vram` of what they attend to lies in VRAM, both devices at the same time.
constexpr double attention_s(PassCost const& state, double in_vram, bool on_device, double hop_s, std::int32_t n_rows, bool streams) {
  double const on_host = 1 - in_vram, device_s = in_vram > 0 ? in_vram * state.gpu_s + (on_device ? 0 : 2 * hop_s) : 0;
  if (on_host <= 0) return device_s;
  PassCost const there{on_host * state.host_s, on_host * state.gpu_s, on_host * state.copy_s};
  HostAttention const a = host_attention(there, hop_s, n_rows);
  if (on_device && streams && a.streams) return device_s + a.streamed_s;
  double const host_s = on_device ? a.on_host_s : there.host_s;
  return host_s > device_s ? host_s : device_s;
}

/// Attention of one row within a launch, where some of what it attends to lies in VRAM: both at the same time.
struct LaunchedAttention {
  double seconds = 0;
  double gpu_s = 0, link_s = 0;   ///< of these, while the device has VRAM to read, and the link is busy
  double copy_s = 0, host_s = 0;  ///< busy, alone
};
constexpr LaunchedAttention launched_attention(PassCost const& state, double in_vram, double hop_s, MutualRates mutual) {
  double const on_host = 1 - in_vram;
  LaunchedAttention out;
  out.gpu_s = in_vram > 0 ? in_vram * state.gpu_s : 0;  // an infinite cost of nothing is none
  if (on_host > 0) {
    ReadAttention const both = read_attention({on_host * state.host_s, on_host * state.gpu_s, on_host * state.copy_s}, hop_s, mutual);
    out.seconds = both.seconds;
    out.link_s = both.link_s;
    out.copy_s = both.read * on_host * state.copy_s;
    out.host_s = both.read < 1 ? (1 - both.read) * on_host * state.host_s : 0;
  }
  if (out.gpu_s > out.seconds) out.seconds = out.gpu_s;
  return out;
}

/// Where what is attended to lies: see attended_in_vram(). Contexts that fill their room and others are priced each by itself: at the mean
/// of both, link and host would read a little beside VRAM, and room for some positions would seem quicker than room for all.
struct AttendedTo {
  double share = 1;                  ///< of the state's room, in VRAM
  double used = 1;                   ///< of it, what costs are for
  std::int32_t window = 0;           ///< positions, 0: all
  double grown = 1 / long_contexts;  ///< of contexts, those that fill their room

  constexpr double mean(double as_most, double as_long) const {
    return as_most == as_long ? as_most : as_most + (as_long - as_most) * grown;
  }
};
constexpr double attention_s(PassCost const& state, AttendedTo const& to, bool on_device, double hop_s, std::int32_t n_rows, bool streams) {
  double const most = attention_s(state, attended_in_vram(to.share, to.used, to.window, 0), on_device, hop_s, n_rows, streams);
  if (to.grown <= 0) return most;
  return to.mean(most, attention_s(state, attended_in_vram(to.share, to.used, to.window, 1), on_device, hop_s, n_rows, streams));
}
constexpr LaunchedAttention launched_attention(PassCost const& state, AttendedTo const& to, double hop_s, MutualRates mutual) {
  LaunchedAttention const a = launched_attention(state, attended_in_vram(to.share, to.used, to.window, 0), hop_s, mutual);
  if (to.grown <= 0) return a;
  LaunchedAttention const b = launched_attention(state, attended_in_vram(to.share, to.used, to.window, 1), hop_s, mutual);
  return {to.mean(a.seconds, b.seconds), to.mean(a.gpu_s, b.gpu_s), to.mean(a.link_s, b.link_s), to.mean(a.copy_s, b.copy_s),
          to.mean(a.host_s, b.host_s)};
}

/// Positions that profile/ measures attention of one row over.
inline constexpr double measured_context = 4096;

/// Rooflines of a HardwareProfile: a product takes as long as reading its weights or as its arithmetic, whichever is longer.
struct AnalyticCost {
  static constexpr bool same_for_alike = true;
  HardwareProfile hardware = HardwareProfile::simulated();
  Capabilities capabilities;

  PassCost cost(Shard const& shard, Rows rows) const;

  PassCost cost(LayerState const& state, Rows rows) const;
};
static_assert(CostModel<AnalyticCost>);

}  // namespace tiered
