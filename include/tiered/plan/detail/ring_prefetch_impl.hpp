/// Defines RingPrefetch: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/plan/detail/ring_space.hpp"
#include "tiered/plan/ring_prefetch.hpp"

namespace tiered {

namespace detail {

/// Ranges of a multiple of so many rows: products write aligned to 256 bytes, and no rows are left over that cuBLAS has slower kernels for
/// (cublas_split_macs).
inline constexpr std::int32_t aligned_rows = 64;

/// Cuts shard `s` into row ranges of at most `most_bytes`, whole rows, at least one. A range that begins inside a weight ends in
/// it, so that every weight begins aligned; a router's weights are not cut at all.
inline void cut_rows(ShardTable const& table, Shard const& s, std::size_t most_bytes, std::vector<RingPiece>& out) {
  std::int32_t begin = 0;
  for (std::int32_t at = s.weights.begin; at < s.weights.end;) {
    Weight const& w = table.weights[std::size_t(at)];
    std::int32_t const w_end = w.first_row + w.rows;
    std::size_t const from = table.row_offset(s, begin);
    if (begin == w.first_row) {  // as many whole weights as go
      std::int32_t last = at;
      while (last < s.weights.end) {
        Weight const& next = table.weights[std::size_t(last)];
        if (table.row_offset(s, next.first_row + next.rows) - from > most_bytes) break;
        ++last;
      }
      if (last > at || s.kind == ShardKind::router) {
        at = (std::max)(last, at + 1);
        Weight const& taken = table.weights[std::size_t(at - 1)];
        out.push_back({s.id, {begin, taken.first_row + taken.rows}, table.row_offset(s, taken.first_row + taken.rows) - from, 0});
        begin = taken.first_row + taken.rows;
        continue;
      }
    }
    // Equal ranges, so that the last one is no crumb.
    std::int32_t const left = w_end - begin;
    std::int32_t const most_rows = (std::max)(std::int32_t{1}, std::int32_t((std::min)(most_bytes / w.row_bytes(), std::size_t(left))));
    std::int32_t const n_ranges = (left + most_rows - 1) / most_rows;
    std::int32_t n = (left + n_ranges - 1) / n_ranges;
    if (most_rows >= aligned_rows) n = (std::min)((n + aligned_rows - 1) / aligned_rows, most_rows / aligned_rows) * aligned_rows;
    std::int32_t const end = (std::min)(begin + n, w_end);
    out.push_back({s.id, {begin, end}, table.row_offset(s, end) - from, 0});
    begin = end;
    if (end == w_end) ++at;
  }
}

}  // namespace detail

Schedule RingPrefetch::schedule(ShardPlan const& plan, ShardTable const& table) const {
  std::vector<detail::RingPiece> pieces;
  for (Step const& step : table.steps) {
    if (plan.shards[std::size_t(step.shard)].streamed()) cut(plan, table, table.shard(step.shard), pieces);
  }
  Schedule out;
  out.reserve(2 * table.steps.size() + 3 * pieces.size());
  detail::RingSpace ring{plan.ring_bytes};
  std::size_t next = 0;  // of pieces: those before it are copied
  auto copy_ahead = [&] {
    while (next < pieces.size() && ring.n_live() < (std::max)(most_ahead, std::size_t{1}) && ring.try_acquire(pieces[next])) {
      detail::RingPiece const& p = pieces[next++];
      out.push_back({ActionKind::copy, first_gpu, p.shard, p.rows, {}, p.offset, p.bytes});
    }
  };
  DeviceId at = host_device;
  copy_ahead();
  for (Step const& step : table.steps) {
    Shard const& shard = table.shard(step.shard);
    Placement const& placed = plan.shards[std::size_t(step.shard)];
    DeviceId const device = placed.gpu_rows > 0 && shard.kind != ShardKind::embedding ? first_gpu : host_device;
    if (device != at) out.push_back({ActionKind::hop, device, step.shard, {}, {}, 0, 0});
    at = device;
    std::int32_t done = 0;
    do {
      detail::RingPiece const p = placed.streamed() ? ring.oldest() : detail::RingPiece{step.shard, {}, 0, 0};
      out.push_back({ActionKind::run, device, step.shard, p.rows, {}, 0, 0});
      done = p.rows == Range{} ? shard.n_rows : p.rows.end;
      if (shard.kind == ShardKind::router && done == shard.n_rows) {
        out.push_back({ActionKind::fetch_routed, device, step.shard, {}, {}, 0, 0});
      }
      if (placed.streamed()) {
        out.push_back({ActionKind::release, device, step.shard, p.rows, {}, p.offset, p.bytes});
        ring.release_oldest();
        copy_ahead();
      }
    } while (done < shard.n_rows);
  }
  return out;
}

void RingPrefetch::cut(ShardPlan const& plan, ShardTable const& table, Shard const& shard, std::vector<detail::RingPiece>& pieces) const {
  double const ring = double(plan.ring_bytes);
  double const whole = plan.chunk_tokens == plan.block_tokens ? split_above * ring : ring;
  std::size_t const first = pieces.size();
  if (double(VramAccount::round_up(shard.bytes)) <= whole) {
    pieces.push_back({shard.id, {}, shard.bytes, 0});
  } else {
    detail::cut_rows(table, shard, std::size_t(piece * ring), pieces);
    if (pieces.size() == first + 1) pieces.back() = {shard.id, {}, shard.bytes, 0};  // it cannot be cut
  }
  for (std::size_t i = first; i < pieces.size(); ++i) {
    if (VramAccount::round_up(pieces[i].bytes) <= plan.ring_bytes) continue;
    throw Error(Errc::over_budget, concat("a ring of ", plan.ring_bytes, " bytes is too small for rows [", pieces[i].rows.begin, ", ",
                                          pieces[i].rows.end, ") of shard ", std::uint32_t(shard.id), " (", name(shard.kind), " of layer ",
                                          shard.layer, "): ", pieces[i].bytes, " bytes"));
  }
}

}  // namespace tiered
