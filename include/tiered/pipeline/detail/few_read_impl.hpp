/// Defines the part of FewRouted that reads the host's experts ahead of their layers: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tiered/pipeline/few_routed.hpp"
#include "tiered/plan/expert_decode.hpp"

namespace tiered {

/// While the device computes attention, the host has nothing to do, and its memory little: what it will be asked for then lies in caches.
/// Once for each layer that the device comes to; the least likely of what is missing, as the link takes the others; then what is on its
/// way, but may come too late.
bool FewRouted::read_ahead() {
  if (!looks_ahead_ || !env_->read_ahead || env_->host.kernels().read_ahead == nullptr || read_for_ == ahead_.reached()) return false;
  std::int32_t const reached = ahead_.reached();
  auto const is_missing = [&](ShardId id) { return env_->plan->shards[std::size_t(id)].cached && env_->cache->peek(id) == nullptr; };
  for (std::int32_t layer = reached + 1; layer <= reached + GuessArgs::max_layers; ++layer) {
    std::span<ShardId const> const wanted = ahead_.wanted(layer);
    std::ptrdiff_t const n_missing = std::ranges::count_if(wanted, is_missing);
    auto const is_coming = [&](Coming const& c) { return !is_there(c) && env_->table.shard(c.shard).layer == layer; };
    if (n_missing == 0 && std::ranges::none_of(coming_, is_coming)) continue;
    std::array<ReadAheadArgs::Part, ReadAheadArgs::max_parts> parts;
    ReadAheadArgs args{parts.data(), 0};
    auto n = std::ptrdiff_t(std::ceil(double(n_missing) * (1 - 0.5 * double(env_->plan->fetched_misses))));
    read_.clear();
    auto const read = [&](ShardId id) {
      Shard const& s = env_->table.shard(id);
      if (args.n_parts + (s.weights.end - s.weights.begin) > ReadAheadArgs::max_parts) return;
      for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
        Weight const& w = env_->table.weights[std::size_t(i)];
        parts[std::size_t(args.n_parts++)] = {w.data, w.bytes()};
      }
      read_.push_back(id);
    };
    for (ShardId const id : wanted) {
      if (n > 0 && is_missing(id)) --n, read(id);
    }
    for (Coming const& c : coming_) {
      if (is_coming(c)) read(c.shard);
    }
    read_for_ = reached;
    tiered::launch(env_->host.kernels().read_ahead, args, env_->host.queue_now());
    return true;
  }
  return false;
}

/// Nobody reads weights when a step has ended: they may go.
void FewRouted::stop_reading() {
  if (read_for_ < 0) return;
  tiered::launch(env_->host.kernels().read_ahead, ReadAheadArgs{}, env_->host.queue_now());
  read_for_ = -1;
}

}  // namespace tiered
