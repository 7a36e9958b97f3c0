/// Where everything of several plans lies in one arena of VRAM, so that going from one to another moves as little as possible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiered/model/shard.hpp"
#include "tiered/plan/account.hpp"

namespace tiered {

/// Offsets of one plan in the arena. Order: residents common to all plans, layer states, expert cache, then what is the plan's own: more
/// residents, the ring, scratch. States grow from their begin; the cache has from its end down what they do not use.
struct VramLayout {
  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();
  std::size_t state_offset = 0;
  std::size_t cache_offset = 0, cache_bytes = 0;  ///< the cache with all of the states' room, which it begins with
  std::size_t shared_bytes = 0;                   ///< that room: of cache_bytes the first, less what states use of it
  std::size_t ring_offset = 0, ring_bytes = 0, scratch_offset = 0, scratch_bytes = 0, total_bytes = 0;
  std::vector<std::size_t> resident;  ///< per shard, or none
};

/// Layer states are at the same place in all plans. So is the cache's begin in all plans that have one, each with an end of its own:
/// what fits the smaller one stays from plan to plan (ExpertCache::resize). No plan's total passes its ShardPlan::vram_bytes.
inline std::vector<VramLayout> lay_out(std::span<ShardPlan const* const> plans, std::span<Shard const> shards) {
  std::size_t state_bytes = 0;
  for (ShardPlan const* p : plans) state_bytes = std::max(state_bytes, p->state_bytes);
  std::vector<VramLayout> out(plans.size());
  std::vector<std::size_t> common(shards.size(), VramLayout::none);
  std::size_t common_end = 0;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    bool const everywhere = std::ranges::all_of(plans, [&](ShardPlan const* p) { return p->shards[s].resident(); });
    if (!everywhere) continue;
    common[s] = common_end;
    common_end += VramAccount::round_up(shards[s].bytes);
  }
  for (std::size_t i = 0; i < plans.size(); ++i) {
    ShardPlan const& p = *plans[i];
    VramLayout& l = out[i];
    std::size_t end = common_end;
    auto const take = [&](std::size_t bytes) { return std::exchange(end, end + VramAccount::round_up(bytes)); };
    l.resident = common;
    l.state_offset = l.cache_offset = take(state_bytes);
    if (p.cache_bytes > 0) {
      take(p.cache_bytes - p.shared_bytes);
      l.shared_bytes = state_bytes;
      l.cache_bytes = end - l.cache_offset;
    }
    for (std::size_t s = 0; s < shards.size(); ++s) {
      if (p.shards[s].resident() && common[s] == VramLayout::none) l.resident[s] = take(shards[s].bytes);
    }
    l.ring_bytes = p.ring_bytes;
    l.ring_offset = take(p.ring_bytes);
    l.scratch_bytes = p.scratch_bytes;
    l.scratch_offset = take(p.scratch_bytes);
    l.total_bytes = p.vram_bytes == 0 ? 0 : end;
  }
  return out;
}

/// Bytes [begin, end) of an arena.
struct VramRange {
  std::size_t begin = 0, end = 0;
  std::size_t bytes() const { return end - begin; }
  bool operator==(VramRange const&) const = default;
};

/// Where plans without states and cache lie in parts of an arena that are theirs: ring and scratch at the end of the largest, residents
/// from the begins on, those common to all plans first. Nothing where that leaves a plan no room; never where there is one part of at least
/// its bytes.
inline std::optional<std::vector<VramLayout>> lay_out_in(std::span<VramRange const> parts, std::span<ShardPlan const* const> plans,
                                                         std::span<Shard const> shards) {
  std::vector<VramLayout> out;
  auto const in_all = [&](std::size_t s) {
    return std::ranges::all_of(plans, [&](ShardPlan const* p) { return p->shards[s].resident(); });
  };
  for (ShardPlan const* const p : plans) {
    std::vector<VramRange> left(parts.begin(), parts.end());
    VramLayout& l = out.emplace_back();
    l.resident.assign(shards.size(), VramLayout::none);
    l.ring_bytes = p->ring_bytes;
    l.scratch_bytes = p->scratch_bytes;
    if (p->vram_bytes == 0) continue;
    std::size_t const tail = VramAccount::round_up(p->ring_bytes) + VramAccount::round_up(p->scratch_bytes);
    auto const largest = std::ranges::max_element(left, {}, &VramRange::bytes);
    if (largest == left.end() || largest->bytes() < tail) return std::nullopt;
    largest->end = (largest->end - tail) / weight_alignment * weight_alignment;
    if (largest->end < largest->begin) return std::nullopt;
    l.ring_offset = largest->end;
    l.scratch_offset = l.ring_offset + VramAccount::round_up(p->ring_bytes);
    for (bool const common : {true, false}) {
      for (std::size_t s = 0; s < shards.size(); ++s) {
        if (!p->shards[s].resident() || in_all(s) != common) continue;
        std::size_t const bytes = VramAccount::round_up(shards[s].bytes);
        auto const part = std::ranges::find_if(left, [&](VramRange const& r) { return r.bytes() >= bytes; });
        if (part == left.end()) return std::nullopt;
        l.resident[s] = std::exchange(part->begin, part->begin + bytes);
      }
    }
    l.total_bytes = p->vram_bytes;
  }
  return out;
}

}  // namespace tiered
