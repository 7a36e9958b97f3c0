/// Plans and schedules as JSON, there and back. The only header of plan/ that needs nlohmann/json; no umbrella includes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/plan/planner.hpp"

namespace tiered {
namespace detail {

inline nlohmann::json range_to_json(Range r) { return nlohmann::json::array({r.begin, r.end}); }
inline Range range_from_json(nlohmann::json const& j) { return {j.at(0).get<std::int32_t>(), j.at(1).get<std::int32_t>()}; }

template <class Enum>
Enum enum_from_json(nlohmann::json const& j, int n, char const* what) {
  std::string const text = j.get<std::string>();
  for (int i = 0; i < n; ++i) {
    if (text == name(Enum(i))) return Enum(i);
  }
  throw Error(Errc::bad_file, concat("plan JSON: \"", text, "\" is no ", what));
}

/// Runs f and turns what the JSON library throws into an Error.
template <class F>
auto read_json(F f) {
  try {
    return f();
  } catch (nlohmann::json::exception const& error) {
    throw Error(Errc::bad_file, concat("plan JSON: ", error.what()));
  }
}

}  // namespace detail

inline nlohmann::json plan_to_json(ShardPlan const& plan) {
  nlohmann::json shards = nlohmann::json::array();
  for (Placement const& p : plan.shards) shards.push_back({{"home", name(p.home)}, {"gpu_rows", p.gpu_rows}, {"cached", p.cached}});
  nlohmann::json share = nlohmann::json::object();
  for (detail::ExpertShareField const& f : detail::expert_share_fields) share[f.name] = plan.share.*f.seconds;
  return {{"shards", std::move(shards)},
          {"state_in_vram", plan.state_in_vram},
          {"ring_bytes", plan.ring_bytes},
          {"cache_bytes", plan.cache_bytes},
          {"scratch_bytes", plan.scratch_bytes},
          {"resident_bytes", plan.resident_bytes},
          {"state_bytes", plan.state_bytes},
          {"vram_bytes", plan.vram_bytes},
          {"shortfall_bytes", plan.shortfall_bytes},
          {"chunk_tokens", plan.chunk_tokens},
          {"block_tokens", plan.block_tokens},
          {"fetched_misses", plan.fetched_misses},
          {"expert_tokens", plan.expert_tokens},
          {"deterministic", plan.deterministic},
          {"shared_bytes", plan.shared_bytes},
          {"share", std::move(share)},
          {"state_read_share", plan.state_read_share},
          {"state_read_tokens", plan.state_read_tokens}};
}

/// Errors  bad_file where a field is missing or of another type.
inline ShardPlan plan_from_json(nlohmann::json const& j) {
  return detail::read_json([&] {
    ShardPlan plan;
    for (nlohmann::json const& p : j.at("shards")) {
      plan.shards.push_back(
          {detail::enum_from_json<Tier>(p.at("home"), 4, "memory tier"), p.at("gpu_rows").get<float>(), p.at("cached").get<bool>()});
    }
    j.at("state_in_vram").get_to(plan.state_in_vram);
    j.at("ring_bytes").get_to(plan.ring_bytes);
    j.at("cache_bytes").get_to(plan.cache_bytes);
    j.at("scratch_bytes").get_to(plan.scratch_bytes);
    j.at("resident_bytes").get_to(plan.resident_bytes);
    j.at("state_bytes").get_to(plan.state_bytes);
    j.at("shared_bytes").get_to(plan.shared_bytes);
    j.at("vram_bytes").get_to(plan.vram_bytes);
    j.at("shortfall_bytes").get_to(plan.shortfall_bytes);
    j.at("fetched_misses").get_to(plan.fetched_misses);
    j.at("chunk_tokens").get_to(plan.chunk_tokens);
    j.at("block_tokens").get_to(plan.block_tokens);
    j.at("expert_tokens").get_to(plan.expert_tokens);
    j.at("deterministic").get_to(plan.deterministic);
    for (detail::ExpertShareField const& f : detail::expert_share_fields) j.at("share").at(f.name).get_to(plan.share.*f.seconds);
    j.at("state_read_share").get_to(plan.state_read_share);
    j.at("state_read_tokens").get_to(plan.state_read_tokens);
    return plan;
  });
}

inline nlohmann::json schedule_to_json(Schedule const& schedule) {
  nlohmann::json out = nlohmann::json::array();
  for (Action const& a : schedule) {
    out.push_back({{"kind", name(a.kind)},
                   {"device", a.device.value},
                   {"shard", std::uint32_t(a.shard)},
                   {"rows", detail::range_to_json(a.rows)},
                   {"tokens", detail::range_to_json(a.tokens)},
                   {"ring_offset", a.ring_offset},
                   {"bytes", a.bytes}});
  }
  return out;
}

/// Errors  bad_file where a field is missing or of another type.
inline Schedule schedule_from_json(nlohmann::json const& j) {
  return detail::read_json([&] {
    Schedule schedule;
    for (nlohmann::json const& a : j) {
      schedule.push_back({detail::enum_from_json<ActionKind>(a.at("kind"), 5, "kind of action"),
                          DeviceId{a.at("device").get<std::int16_t>()}, ShardId{a.at("shard").get<std::uint32_t>()},
                          detail::range_from_json(a.at("rows")), detail::range_from_json(a.at("tokens")),
                          a.at("ring_offset").get<std::size_t>(), a.at("bytes").get<std::size_t>()});
    }
    return schedule;
  });
}

/// A whole answer for viewers: the plan, its schedule with predicted begin and end of every action, and what bounds it.
inline nlohmann::json tier_to_json(TierPlan const& tier) {
  nlohmann::json schedule = schedule_to_json(tier.schedule);
  for (std::size_t i = 0; i < tier.estimate.actions.size(); ++i) {
    schedule[i]["begin_s"] = tier.estimate.actions[i].begin_s;
    schedule[i]["end_s"] = tier.estimate.actions[i].end_s;
  }
  Estimate const& e = tier.estimate;
  return {{"rows", {{"n", tier.rows.n}, {"context", tier.rows.context}, {"n_sequences", tier.rows.n_sequences}}},
          {"plan", plan_to_json(tier.plan)},
          {"schedule", std::move(schedule)},
          {"predicted_s", e.seconds},
          {"bound_s", e.bound_s},
          {"copy_s", e.copy_s},
          {"gpu_s", e.gpu_s},
          {"host_s", e.host_s},
          {"copied_bytes", e.copied_bytes},
          {"host_bytes", e.host_bytes}};
}

}  // namespace tiered
