/// Defines ExpertsAhead: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tiered/pipeline/experts_ahead.hpp"

namespace tiered {

ExpertGuess ExpertsAhead::read(ExpertGuess& guess) {
  auto& word = reinterpret_cast<std::uint64_t&>(guess);
  return std::bit_cast<ExpertGuess>(std::atomic_ref(word).load(std::memory_order_acquire));
}

ExpertGuess* ExpertsAhead::guesses(std::int32_t layer, std::int32_t place) const {
  std::size_t const row = std::size_t(layer) * std::size_t(GuessArgs::max_layers) + std::size_t(place);
  return reinterpret_cast<ExpertGuess*>(env_->host_base + env_->layout->help_guesses) + row * std::size_t(env_->layout->n_experts);
}

void ExpertsAhead::open_mail() {
  std::size_t const n = env_->config->layers.size() * std::size_t(GuessArgs::max_layers) * std::size_t(env_->layout->n_experts);
  std::uninitialized_fill_n(guesses(0, 0), n, ExpertGuess{});  // step 0: there is none
}

void ExpertsAhead::set_targets(std::int32_t layer, std::span<std::int32_t const> targets) {
  std::erase_if(sources_, [&](Source const& s) { return s.layer == layer; });
  if (targets.empty()) return;
  auto const at = std::ranges::find_if(sources_, [&](Source const& s) { return s.layer > layer; });
  sources_.insert(at, {layer, {targets.begin(), targets.end()}});
}

void ExpertsAhead::begin_step(std::uint64_t step) {
  step_ = step;
  next_source_ = 0;
  reached_ = -1;
  wanted_.resize(env_->config->layers.size());
  for (std::vector<ShardId>& of_layer : wanted_) of_layer.clear();
}

bool ExpertsAhead::has_come(Source const& source) const {
  for (std::size_t place = source.targets.size(); place-- > 0;) {
    ExpertGuess* const all = guesses(source.layer, std::int32_t(place));
    for (std::int32_t e = env_->config->layers[std::size_t(source.layer)].experts.n_experts; e-- > 0;) {
      if (read(all[e]).step != std::uint32_t(step_)) return false;
    }
  }
  return true;
}

bool ExpertsAhead::look(std::span<ShardId const> first_experts) {
  bool any = false;
  for (; next_source_ < sources_.size() && has_come(sources_[next_source_]); ++next_source_) {
    Source const& source = sources_[next_source_];
    for (std::size_t place = 0; place < source.targets.size(); ++place) rank(source, place, first_experts);
    reach(source.layer);
    any = true;
  }
  return any;
}

/// As many of the target's experts as it will choose; on equal scores in the order of ids.
void ExpertsAhead::rank(Source const& source, std::size_t place, std::span<ShardId const> first_experts) {
  std::int32_t const target = source.targets[place];
  ExpertsConfig const& config = env_->config->layers[std::size_t(target)].experts;
  ExpertGuess* const all = guesses(source.layer, std::int32_t(place));
  order_.clear();
  for (std::int32_t e = 0; e < config.n_experts; ++e) {
    float const score = read(all[e]).score;
    order_.emplace_back(std::isnan(score) ? std::numeric_limits<float>::infinity() : -score, e);
  }
  auto const end = order_.begin() + std::min(config.n_experts_used, config.n_experts);
  std::partial_sort(order_.begin(), end, order_.end());
  std::vector<ShardId>& wanted = wanted_[std::size_t(target)];
  wanted.clear();
  for (auto it = end; it != order_.begin();)
    wanted.push_back(ShardId(std::uint32_t(first_experts[std::size_t(target)]) + std::uint32_t((--it)->second)));
}

std::optional<ShardId> ExpertsAhead::next(std::int32_t distance, FunctionRef<bool(ShardId)> wants) {
  for (std::size_t layer = std::size_t(reached_ + distance); layer < wanted_.size(); ++layer) {
    std::vector<ShardId>& wanted = wanted_[layer];
    for (; !wanted.empty(); wanted.pop_back()) {
      if (wants(wanted.back())) return wanted.back();
    }
  }
  return std::nullopt;
}

}  // namespace tiered
