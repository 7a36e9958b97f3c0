#include <algorithm>
#include <optional>
#include <vector>

#include "catch.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/pipeline/residency.hpp"

using namespace tiered;

namespace {

struct Extent {
  std::size_t begin = 0, end = 0;
};

/// Everything a plan has in VRAM, in one list, where states use all of their room.
std::vector<Extent> extents(VramLayout const& l, ShardPlan const& p, std::vector<Shard> const& shards) {
  std::vector<Extent> out{{l.state_offset, l.state_offset + p.state_bytes},
                          {l.ring_offset, l.ring_offset + l.ring_bytes},
                          {l.scratch_offset, l.scratch_offset + l.scratch_bytes}};
  if (l.cache_bytes > 0) out.push_back({l.cache_offset + l.shared_bytes, l.cache_offset + l.cache_bytes});
  for (std::size_t s = 0; s < shards.size(); ++s) {
    if (l.resident[s] != VramLayout::none) out.push_back({l.resident[s], l.resident[s] + shards[s].bytes});
  }
  std::erase_if(out, [](Extent e) { return e.begin == e.end; });
  std::ranges::sort(out, {}, &Extent::begin);
  return out;
}

}  // namespace

TEST_CASE("layouts of several plans: no overlap, no more bytes than counted, common shards in one place") {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    std::vector<Shard> shards(3 + random.below(20));
    for (std::size_t s = 0; s < shards.size(); ++s) {
      shards[s].id = ShardId(s);
      shards[s].bytes = 1 + random.below(5000);
    }
    std::size_t const state_bytes = VramAccount::round_up(random.below(3000));
    std::vector<ShardPlan> plans(1 + random.below(4));
    for (ShardPlan& p : plans) {
      p.state_bytes = state_bytes;
      p.ring_bytes = VramAccount::round_up(random.below(4000));
      std::size_t const own_cache_bytes = random.below(3) == 0 ? 0 : VramAccount::round_up(1 + random.below(4000));
      p.shared_bytes = own_cache_bytes == 0 ? 0 : state_bytes / (1 + random.below(3)) / weight_alignment * weight_alignment;
      p.cache_bytes = own_cache_bytes + p.shared_bytes;
      p.scratch_bytes = VramAccount::round_up(random.below(2000));
      p.shards.resize(shards.size());
      for (std::size_t s = 0; s < shards.size(); ++s) {
        if (random.below(2) == 0) continue;
        p.shards[s] = {Tier::vram, 1};
        p.resident_bytes += VramAccount::round_up(shards[s].bytes);
      }
      p.vram_bytes = p.state_bytes + p.ring_bytes + own_cache_bytes + p.scratch_bytes + p.resident_bytes;
    }
    std::vector<ShardPlan const*> pointers;
    for (ShardPlan const& p : plans) pointers.push_back(&p);
    std::vector<VramLayout> const layouts = lay_out(pointers, shards);
    std::size_t shared_cache_offset = VramLayout::none;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      CHECK(layouts[i].total_bytes <= plans[i].vram_bytes);
      std::size_t end = 0;
      for (Extent const& e : extents(layouts[i], plans[i], shards)) {
        CHECK(e.begin >= end);
        CHECK(e.begin % weight_alignment == 0);
        end = e.end;
      }
      CHECK(end <= layouts[i].total_bytes);
      bool const caches = plans[i].cache_bytes > 0;
      CHECK(layouts[i].state_offset == layouts[0].state_offset);
      CHECK(layouts[i].shared_bytes == (caches ? state_bytes : 0));
      CHECK(layouts[i].cache_bytes - layouts[i].shared_bytes == plans[i].cache_bytes - plans[i].shared_bytes);
      if (caches) CHECK(layouts[i].cache_offset == layouts[i].state_offset);  // what states do not use is the cache's
      if (i > 0) CHECK(layouts[i].cache_offset == shared_cache_offset);
      shared_cache_offset = layouts[i].cache_offset;
      for (std::size_t s = 0; s < shards.size(); ++s) {
        CHECK((layouts[i].resident[s] != VramLayout::none) == plans[i].shards[s].resident());
        bool const everywhere = std::ranges::all_of(plans, [&](ShardPlan const& p) { return p.shards[s].resident(); });
        if (everywhere) CHECK(layouts[i].resident[s] == layouts[0].resident[s]);
      }
    }
  }
}

TEST_CASE("plans in parts of an arena: no overlap, nothing outside, common shards in one place where they fit") {
  int n_placed = 0, n_refused = 0, n_in_both = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    std::vector<Shard> shards(3 + random.below(20));
    for (std::size_t s = 0; s < shards.size(); ++s) {
      shards[s].id = ShardId(s);
      shards[s].bytes = 1 + random.below(5000);
    }
    std::vector<ShardPlan> plans(1 + random.below(3));
    std::vector<ShardPlan const*> pointers;
    std::size_t most_bytes = 0;
    for (ShardPlan& p : plans) {
      p.ring_bytes = VramAccount::round_up(random.below(4000));
      p.scratch_bytes = VramAccount::round_up(1 + random.below(2000));
      p.shards.resize(shards.size());
      for (std::size_t s = 0; s < shards.size(); ++s) {
        if (random.below(3) == 0) continue;
        p.shards[s] = {Tier::vram, 1};
        p.resident_bytes += VramAccount::round_up(shards[s].bytes);
      }
      p.vram_bytes = p.ring_bytes + p.scratch_bytes + p.resident_bytes;
      most_bytes = std::max(most_bytes, p.vram_bytes);
      pointers.push_back(&p);
    }
    std::size_t const gap = weight_alignment * random.below(9),
                      first = most_bytes * random.below(101) / 100 / weight_alignment * weight_alignment;
    std::vector<VramRange> const one{{gap, gap + most_bytes}},
        two{{0, first}, {first + gap, most_bytes + gap + weight_alignment * random.below(20)}};
    REQUIRE(lay_out_in(one, pointers, shards).has_value());
    for (std::vector<VramRange> const& parts : {one, two}) {
      std::optional<std::vector<VramLayout>> const layouts = lay_out_in(parts, pointers, shards);
      if (!layouts) {
        ++n_refused;
        continue;
      }
      ++n_placed;
      REQUIRE(layouts->size() == plans.size());
      for (std::size_t i = 0; i < plans.size(); ++i) {
        VramLayout const& l = (*layouts)[i];
        std::size_t end = 0, in_first = 0, in_second = 0;
        for (Extent const& e : extents(l, plans[i], shards)) {
          CHECK(e.begin >= end);
          end = e.end;
          CHECK(e.begin % weight_alignment == 0);
          CHECK(std::ranges::any_of(parts, [&](VramRange const& r) { return r.begin <= e.begin && e.end <= r.end; }));
          if (parts.size() == 2) ++(e.end <= parts[0].end ? in_first : in_second);
        }
        n_in_both += in_first > 0 && in_second > 0;
        CHECK(l.ring_bytes == plans[i].ring_bytes);
        CHECK(l.scratch_bytes == plans[i].scratch_bytes);
        for (std::size_t s = 0; s < shards.size(); ++s) CHECK((l.resident[s] != VramLayout::none) == plans[i].shards[s].resident());
        for (std::size_t s = 0; s < shards.size() && parts.size() == 1; ++s) {
          bool const common = std::ranges::all_of(plans, [&](ShardPlan const& p) { return p.shards[s].resident(); });
          if (common) CHECK(l.resident[s] == layouts->front().resident[s]);
        }
      }
    }
  }
  CHECK(n_placed > 500);
  CHECK(n_refused > 0);
  CHECK(n_in_both > 0);
}
