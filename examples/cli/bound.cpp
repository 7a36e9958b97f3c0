// The share of the machine's bound: what a token has to read, and how fast these threads can read it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <unistd.h>

#include "report.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/model/config.hpp"
#include "tiered/profile/read_rate.hpp"

namespace app {
namespace {

/// Keys and values in host memory that a token meets.
double kv_bytes(Runner& runner, Options const& o, double n_positions) {
  tiered::ShardTable const table = runner.table();
  std::vector<float> const& in_vram = runner.plans().tiers.front().plan.state_in_vram;
  double bytes = 0;
  for (std::size_t i = 0; i < table.states.size(); ++i) {
    tiered::LayerState const& s = table.states[i];
    double const there = i < in_vram.size() ? double(in_vram[i]) * double(runner.plans().max_context) : 0;  // the first positions
    if (s.elems_per_token == 0) continue;
    tiered::AttentionConfig const& a = runner.config().layers.at(i).attention;
    bytes += 2.0 * a.n_kv_heads * double(tiered::kv_row_bytes(o.kv_type, a.head_dim)) *
             std::max(0.0, n_positions - std::max(there, s.window > 0 ? n_positions - double(s.window) : 0.0));
  }
  return bytes;
}

}  // namespace

Bound measure_bound(Runner& runner, Options const& o, double n_positions) {
  tiered::Estimate const& decode = runner.plans().tiers.front().estimate;
  Bound bound;
  bound.bytes_per_token = decode.host_bytes + decode.copied_bytes + kv_bytes(runner, o, n_positions);
  bound.read_bytes_per_s = tiered::read_rate(runner.team(), runner.weights());
  long const cache = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  bound.from_cache = cache > 0 && decode.host_bytes + decode.copied_bytes < double(cache);
  return bound;
}

}  // namespace app
