/// What plans gain: the planner's placement beside those that a user could write down without one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "run_once.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/placements/attention_first.hpp"
#include "tiered/tiered.hpp"

namespace bench {

/// No weight and no state in VRAM.
struct AllOnCpu {
  tiered::Placements place(tiered::PlanRequest const& r) const {
    tiered::Placements out{r};
    out.declined = r.ring_bytes > 0;
    return out;
  }
};

/// All but routed experts in VRAM, layer by layer as far as it goes, nothing streamed; experts and the rest on the CPU.
struct ExpertsOnCpu {
  tiered::Placements place(tiered::PlanRequest const& r) const {
    tiered::Placements out{r};
    out.declined = r.ring_bytes > 0;
    tiered::VramAccount vram{r};
    if (out.declined || vram.used_bytes() > r.budget.vram_bytes) return out;
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      tiered::Shard const& s = r.shards[i];
      if (s.kind == tiered::ShardKind::embedding || s.kind == tiered::ShardKind::expert || !vram.try_resident(i)) continue;
      out.shards[i] = {tiered::Tier::vram, 1, false};
      if (s.kind == tiered::ShardKind::attention && vram.try_state(std::size_t(s.layer))) out.state_in_vram[std::size_t(s.layer)] = 1;
    }
    return out;
  }
};

struct HandPlacement {
  std::string name;
  tiered::AnyPlacement placement;
};

/// Without a mixture's experts, "experts on the CPU" would be "first layers in VRAM" again.
inline std::vector<HandPlacement> hand_placements(bool has_experts) {
  std::vector<HandPlacement> out{{"all on the CPU", AllOnCpu{}}};
  if (has_experts) out.push_back({"experts on the CPU", ExpertsOnCpu{}});
  out.push_back({"first layers in VRAM", tiered::make_placement("all_vram")});
  out.push_back({"attention first", tiered::make_placement("attention_first")});
  out.push_back({"stream all", tiered::make_placement("stream_all")});
  return out;
}

/// Of one placement: a speed for each prompt, or why there is none.
struct HandResult {
  std::string name, error;
  std::vector<Speed> speeds;
};

/// The best of several runs of each prompt, in an engine of this placement.
template <class P>
HandResult measure_placement(std::shared_ptr<tiered::Transformer const> const& model, tiered::EngineOptions const& options,
                             HandPlacement const& hand, std::vector<int> const& prompts, int n_decode, int n_runs, Routing routing,
                             std::FILE* progress) {
  HandResult r{hand.name, {}, {}};
  try {
    tiered::Engine<P> engine(model, options, {.placement = hand.placement});
    TokenIds ids(model->config().vocab_size, routing, 1);
    run_once(engine, std::min(*std::max_element(prompts.begin(), prompts.end()), 32), std::min(n_decode, 4), ids);
    for (int const n_prompt : prompts) {
      Speed& best_of = r.speeds.emplace_back();
      for (int i = 0; i < n_runs; ++i) best_of = best(best_of, run_once(engine, n_prompt, n_decode, ids));
      if (progress != nullptr)
        fmt::print(progress, "{}, a prompt of {}: {:.1f} t/s, then {:.2f}\n", hand.name, n_prompt, best_of.prefill, best_of.decode);
    }
  } catch (tiered::Error const& e) {
    r.error = e.what();
    r.speeds.clear();
  }
  return r;
}

/// The first is the planner's. For each prompt a line of every placement, and how many times the best by hand the plan is as fast.
inline std::string by_hand_text(std::vector<HandResult> const& results, std::vector<int> const& prompts) {
  std::string out = fmt::format("{:>7}  {:<22} {:>12} {:>11} {:>11}\n", "prompt", "placement", "first token", "prompt t/s", "decode t/s");
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    Speed hand;
    for (HandResult const& r : results) {
      if (r.speeds.empty()) continue;
      Speed const s = r.speeds[p];
      if (&r != &results.front()) hand = best(hand, s);
      out +=
          fmt::format("{:>7}  {:<22} {:>10.3f} s {:>11.1f} {:>11.2f}\n", prompts[p], r.name, prompts[p] / s.prefill, s.prefill, s.decode);
    }
    if (results.empty() || results.front().speeds.empty() || hand.prefill <= 0) continue;
    Speed const plan = results.front().speeds[p];
    out += fmt::format("{:>7}  {:<22} {:>24.2f}x {:>10.2f}x\n", "", "planned over the best", plan.prefill / hand.prefill,
                       hand.decode > 0 ? plan.decode / hand.decode : 0.0);
  }
  for (HandResult const& r : results) {
    if (!r.error.empty()) out += fmt::format("{}: {}\n", r.name, r.error);
  }
  return out;
}

/// One engine after the other, each with the whole budget. `progress`: where a line goes as soon as it is measured; or null.
template <class P>
std::vector<HandResult> compare_by_hand(std::shared_ptr<tiered::Transformer const> const& model, tiered::EngineOptions const& options,
                                        std::vector<int> const& prompts, int n_decode, int n_runs, Routing routing,
                                        std::FILE* progress = nullptr) {
  bool const has_experts =
      std::ranges::any_of(model->table().shards, [](tiered::Shard const& s) { return s.kind == tiered::ShardKind::expert; });
  std::vector<HandPlacement> all{{"planned", tiered::make_placement("seconds_per_byte")}};
  for (HandPlacement& hand : hand_placements(has_experts)) all.push_back(std::move(hand));
  std::vector<HandResult> results;
  for (HandPlacement const& hand : all)
    results.push_back(measure_placement<P>(model, options, hand, prompts, n_decode, n_runs, routing, progress));
  return results;
}

}  // namespace bench
