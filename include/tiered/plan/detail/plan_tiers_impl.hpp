/// Defines plan_tiers: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/plan/planner.hpp"

namespace tiered::detail {

/// Decode's choice, a prompt's, all, none, and of each layer what most steps see, or some more, or less. States whose room an expert cache
/// has while they are short cost decode little: then more of them.
inline std::vector<std::vector<float>> states_to_try(TierPlan const& decode, TierPlan const& prompt, PlannerInput const& input) {
  std::size_t const n_states = decode.plan.state_in_vram.size();
  std::vector<std::vector<float>> out{decode.plan.state_in_vram, prompt.plan.state_in_vram, std::vector<float>(n_states, 1.f),
                                      std::vector<float>(n_states, 0.f)};
  if (input.state_pages <= 0 || input.cost_context <= 0 || input.rows.context <= 0) return out;
  double const used = (std::min)(1.0, double(input.cost_context) / double(input.rows.context)), n_pages = input.state_pages;
  auto const add = [&](double share) { out.emplace_back(n_states, float(std::ceil(share * n_pages) / n_pages)); };
  for (double const share : {std::sqrt(used), used, used / 3}) add(share);
  for (double const share : {0.75, 0.5}) {
    if (share > used && (decode.plan.cache_bytes > 0 || prompt.plan.cache_bytes > 0)) add(share);
  }
  for (auto c = out.begin(); c != out.end();) c = std::find(out.begin(), c, *c) == c ? c + 1 : out.erase(c);
  return out;
}

/// Between the share that was best of those and the next larger one, two that may be better still: where one row's device reads states in
/// host memory, each page in VRAM pays as far as an expert cache gets by without, which is soon.
inline void try_between(std::vector<float> const& best, std::vector<std::vector<float>> const& tried, PlannerInput const& input,
                        FunctionRef<bool(std::vector<float> const&)> is_better) {
  if (best.empty() || best.front() <= 0 || !std::ranges::all_of(best, [&](float share) { return share == best.front(); })) return;
  std::int32_t low = pages_in_vram(best.front(), input.state_pages), high = input.state_pages;
  for (std::vector<float> const& states : tried) {
    if (std::int32_t const pages = pages_in_vram(*std::ranges::min_element(states), input.state_pages); pages > low)
      high = (std::min)(high, pages);
  }
  for (int i = 0; i < 2 && high - low > 1; ++i) {
    std::int32_t const pages = low + (std::max)((high - low) / 4, 1);
    (is_better(std::vector<float>(best.size(), float(pages) / float(input.state_pages))) ? low : high) = pages;
  }
}

/// Where the states live is common to all token tiers, and decode and prompts want different things: VRAM for weights, or for KV that
/// they read very often. Taken is what is fastest for both together, and for a prompt as long as costs' contexts: it has less VRAM for
/// weights, and what states leave it decides how many of its rows a weight that crosses the link meets.
std::vector<TierPlan> plan_tiers(std::span<int const> bounds, PlannerInput const& input, std::size_t n_states,
                                 FunctionRef<TierPlan(int bound, std::span<float const> fixed)> plan) {
  for (int bound : bounds) {
    if (bound < 1 || bound > most_rows)
      throw Error(Errc::precondition, concat("a token tier of up to ", bound, " rows; 1 to ", most_rows, " can be"));
  }
  std::vector<TierPlan> out(bounds.size());
  auto plan_all = [&](std::span<float const> fixed) {
    for (std::size_t i = 0; i < bounds.size(); ++i) {
      if (out[i].schedule.empty()) out[i] = plan(bounds[i], fixed);
    }
  };
  if (!input.fixed_state_in_vram.empty() || bounds.size() < 2) {
    plan_all(input.fixed_state_in_vram);
    return out;
  }
  auto const tier_of = [&](int n) {
    return std::size_t((std::min)(std::lower_bound(bounds.begin(), bounds.end(), n), bounds.end() - 1) - bounds.begin());
  };
  std::size_t const prompt = tier_of(512);
  TierPlan const free_decode = plan(bounds[0], {}), free_prompt = plan(bounds[prompt], {});
  bool const caches = free_decode.plan.cache_bytes > 0 || free_prompt.plan.cache_bytes > 0;
  std::size_t const long_prompt = (std::max)(prompt, tier_of(input.cost_context));
  double best_s = HUGE_VAL;
  std::vector<float> best;
  auto const is_better = [&](std::vector<float> const& states) {
    try {
      TierPlan decode = states == free_decode.plan.state_in_vram ? free_decode : plan(bounds[0], states);
      double seconds = input.generated_per_prompt * decode.estimate.seconds;
      if (seconds >= best_s && !best.empty()) return false;
      // Knowing that all of a prompt's states are there, its placement has other shapes to choose from than where it put them there itself.
      TierPlan at_prompt = plan(bounds[prompt], states);
      if (states == free_prompt.plan.state_in_vram && free_prompt.estimate.seconds <= at_prompt.estimate.seconds) at_prompt = free_prompt;
      seconds += at_prompt.estimate.seconds;
      if (seconds >= best_s && !best.empty()) return false;
      if (long_prompt > prompt) {
        TierPlan at_long_prompt = plan(bounds[long_prompt], states);
        seconds += at_long_prompt.estimate.seconds;
        if (seconds >= best_s && !best.empty()) return false;
        out[long_prompt] = std::move(at_long_prompt);
      }
      best_s = seconds;
      best = states;
      out[0] = std::move(decode);
      out[prompt] = std::move(at_prompt);
      return true;
    } catch (Error const& error) {
      // Those states do not fit, or no device that holds them has attention.
      if (error.code() != Errc::over_budget && error.code() != Errc::unsupported) throw;
      return false;
    }
  };
  std::vector<std::vector<float>> const to_try = states_to_try(free_decode, free_prompt, input);
  for (std::vector<float> const& states : to_try) is_better(states);
  if (caches && input.launches_attention && input.state_pages > 0) try_between(std::vector<float>(best), to_try, input, is_better);
  if (best_s == HUGE_VAL && best.empty() && n_states > 0) best = free_decode.plan.state_in_vram;  // says again what is wrong
  plan_all(best);
  return out;
}

}  // namespace tiered::detail
