#include "tiered/plan/verify_schedule.hpp"

#include <string>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/ring_prefetch.hpp"

using namespace tiered;

namespace {

/// A mixture of experts whose attention is streamed, whole or by rows, with routers on the device and feed-forward in turns.
struct Example {
  fake::Model model;
  ShardTable table;
  ShardPlan plan;
  Schedule schedule;

  explicit Example(std::size_t ring_bytes = 1 << 20) : model(spec()), table(model.table()) {
    plan.shards.resize(table.shards.size());
    plan.state_in_vram.assign(table.states.size(), 1.f);
    plan.ring_bytes = ring_bytes;
    plan.chunk_tokens = plan.block_tokens = 1;
    for (Shard const& s : table.shards) {
      Placement& p = plan.shards[std::size_t(s.id)];
      if (s.kind == ShardKind::attention) p = {Tier::pageable, 1, false};
      if (s.kind == ShardKind::router && s.layer % 2 == 0) p = {Tier::vram, 1, false};
      if (s.kind == ShardKind::expert && s.layer % 2 == 0) p = {Tier::pageable, 1, true};
    }
    plan.cache_bytes = ExpertLayers{table.shards}.min_cache_bytes();
    schedule = RingPrefetch{}.schedule(plan, table);
  }
  static fake::Spec spec() {
    fake::Spec s = fake::small_moe();
    s.n_dense_layers = 1;
    return s;
  }
  std::string broken() const { return verify(schedule, plan, table); }
  Action& first(ActionKind kind) {
    for (Action& a : schedule) {
      if (a.kind == kind) return a;
    }
    throw std::logic_error("no such action");
  }
};

}  // namespace

TEST_CASE("a sound plan and schedule break no rule", "[plan][verify]") {
  for (std::size_t const ring : {16u << 10, 64u << 10, 1u << 20}) {
    Example const e{ring};
    REQUIRE(verify(e.plan, e.table) == "");
    REQUIRE(e.broken() == "");
  }
}

TEST_CASE("a schedule that lacks any one action, or has it twice, is refused", "[plan][verify]") {
  for (std::size_t const ring : {32u << 10, 1u << 20}) {
    Example const sound{ring};
    for (std::size_t i = 0; i < sound.schedule.size(); ++i) {
      INFO("ring " << ring << " action " << i << " " << name(sound.schedule[i].kind));
      Schedule changed = sound.schedule;
      changed.erase(changed.begin() + std::ptrdiff_t(i));
      REQUIRE(verify(changed, sound.plan, sound.table) != "");
      changed = sound.schedule;
      changed.insert(changed.begin() + std::ptrdiff_t(i), sound.schedule[i]);
      REQUIRE(verify(changed, sound.plan, sound.table) != "");
    }
  }
}

TEST_CASE("each rule of a schedule is named when it is broken", "[plan][verify]") {
  Example e{32 << 10};
  auto refuses = [&](char const* words) {
    std::string const broken = e.broken();
    INFO(broken);
    REQUIRE(broken.find(words) != std::string::npos);
    e = Example{32 << 10};
  };
  e.first(ActionKind::copy).bytes -= 1;
  refuses("bytes");
  e.first(ActionKind::copy).ring_offset += 1;
  refuses("no multiple of 256");
  e.first(ActionKind::copy).ring_offset = 32 << 10;
  refuses("outside the ring");
  e.first(ActionKind::copy).shard = e.table.steps[2].shard;
  refuses("does not stream it");
  e.first(ActionKind::copy).shard = ShardId{100000};
  refuses("there is no shard");
  e.first(ActionKind::copy).rows = {5, 2};
  refuses("no range of its");
  e.first(ActionKind::run).device = first_gpu;
  refuses("the plan says");
  e.first(ActionKind::release).ring_offset += 256;
  refuses("releases other bytes");
  e.first(ActionKind::hop).device = DeviceId{2};
  refuses("there is no device");
  e.first(ActionKind::fetch_routed).device = host_device == e.first(ActionKind::fetch_routed).device ? first_gpu : host_device;
  refuses("another device than its router");
  e.first(ActionKind::run).tokens = {0, 1};
  refuses("tokens");
  e.plan.block_tokens = 2;
  refuses("cuts its block into chunks");
  e.schedule.clear();
  refuses("only 0 of");
  for (Action& a : e.schedule) {
    if (a.kind == ActionKind::copy && a.ring_offset > 0) a.ring_offset = 0;
  }
  refuses("overwrites live bytes");
}

TEST_CASE("a row range that begins inside a weight may not leave it, and a router's weight is not cut", "[plan][verify]") {
  Example e;
  Shard const& s = e.table.shard(e.table.steps[1].shard);
  REQUIRE(s.kind == ShardKind::attention);
  std::int32_t const middle = 10, past = e.table.weight(WeightId(s.weights.begin + 1)).rows + 20;  // inside q, inside k
  Action& copy = e.first(ActionKind::copy);
  copy.rows = {middle, past};
  copy.bytes = e.table.row_offset(s, past) - e.table.row_offset(s, middle);
  REQUIRE(e.broken().find("begin inside a weight and leave it") != std::string::npos);

  e = Example{};
  ShardId router{};
  for (Shard const& shard : e.table.shards) {
    if (shard.kind == ShardKind::router && shard.layer == 1) router = shard.id;
  }
  e.plan.shards[std::size_t(router)] = {Tier::pageable, 1, false};
  e.schedule = RingPrefetch{}.schedule(e.plan, e.table);
  REQUIRE(e.broken() == "");
  for (Action& a : e.schedule) {
    if (a.kind == ActionKind::copy && a.shard == router) {
      a.rows = {0, 5};
      a.bytes = e.table.row_offset(e.table.shard(router), 5);
    }
  }
  REQUIRE(e.broken().find("cuts a router's weight") != std::string::npos);
}

TEST_CASE("each rule of a plan is named when it is broken", "[plan][verify]") {
  Example const sound;
  auto shard_of = [&](ShardKind kind) {
    for (Shard const& s : sound.table.shards) {
      if (s.kind == kind) return std::size_t(s.id);
    }
    throw std::logic_error("no such shard");
  };
  ShardPlan plan = sound.plan;
  auto refuses = [&](char const* words) {
    std::string const broken = verify(plan, sound.table);
    INFO(broken);
    REQUIRE(broken.find(words) != std::string::npos);
    plan = sound.plan;
  };
  plan.shards.pop_back();
  refuses("shards of");
  plan.state_in_vram.push_back(0);
  refuses("states of");
  plan.shards[shard_of(ShardKind::embedding)] = {Tier::vram, 1, false};
  refuses("the embedding stays on the host");
  plan.shards[shard_of(ShardKind::expert)] = {Tier::pinned, 1, false};
  refuses("an expert is resident, cached or on the host");
  plan.shards[shard_of(ShardKind::attention)].cached = true;
  refuses("cached is for experts");
  plan.shards[shard_of(ShardKind::attention)] = {Tier::vram, 0, false};
  refuses("computed by the host");
  plan.shards[shard_of(ShardKind::attention)].gpu_rows = 0.5f;
  refuses("gpu_rows must be 0 or 1");
  plan.shards[shard_of(ShardKind::attention)].home = Tier::disk;
  refuses("disk");
  plan.ring_bytes = 0;
  refuses("has no ring");
  plan.cache_bytes -= 256;
  refuses("cannot hold");
  plan.shared_bytes = 256;
  refuses("cannot hold");  // when states have that
  plan.shared_bytes = 256;
  plan.cache_bytes += 256;
  plan.state_bytes = 0;
  refuses("256 bytes are shared by states of 0");
  plan.state_in_vram[0] = 1.5f;
  refuses("must be from 0 to 1");
  plan.chunk_tokens = 0;
  refuses("chunks of 0");
  plan.block_tokens = 5;
  plan.chunk_tokens = 2;
  refuses("do not divide");
}
