/// Which experts the next layers of a step will probably want: what the device guesses while it computes earlier ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/pipeline/routed_rows.hpp"

namespace tiered {

/// The host's side of GuessArgs. Each layer's guesses have memory of their own, so none is overwritten within a step; what a later
/// layer guesses of a third one replaces what an earlier one did: it has seen more of the row. One thread.
class ExpertsAhead {
 public:
  explicit ExpertsAhead(ExpertsEnvironment const& env) : env_(&env) {}

  /// For a new plan: forgets what stands where guesses will be.
  void open_mail();
  /// Where the device writes what `layer` guesses of the place-th of its targets.
  ExpertGuess* guesses(std::int32_t layer, std::int32_t place) const;
  /// A launch that guesses these layers was enqueued, for steps to come.
  void set_targets(std::int32_t layer, std::span<std::int32_t const> targets);
  /// What was enqueued by `other`, whose captured steps are still to be launched.
  void take_over(ExpertsAhead const& other) { sources_ = other.sources_; }

  void begin_step(std::uint64_t step);
  /// Takes what has come in since; false where nothing has. Costs a look at one word where it has not.
  bool look(std::span<ShardId const> first_experts);
  /// The device is at this layer, or behind it: bringing its experts ahead is too late.
  void reach(std::int32_t layer) { reached_ = reached_ < layer ? layer : reached_; }
  std::int32_t reached() const { return reached_; }
  /// What is known to be wanted of a layer, the likeliest last; next() has forgotten what nobody wanted.
  std::span<ShardId const> wanted(std::int32_t layer) const {
    return std::size_t(layer) < wanted_.size() ? std::span<ShardId const>(wanted_[std::size_t(layer)]) : std::span<ShardId const>();
  }
  /// The likeliest expert of the nearest layer, so many behind the reached one or more, among those that `wants` is true of; it forgets
  /// those before it.
  std::optional<ShardId> next(std::int32_t distance, FunctionRef<bool(ShardId)> wants);

 private:
  /// A layer behind whose router guesses are made.
  struct Source {
    std::int32_t layer = 0;
    std::vector<std::int32_t> targets;
  };
  static ExpertGuess read(ExpertGuess& guess);
  bool has_come(Source const& source) const;
  void rank(Source const& source, std::size_t place, std::span<ShardId const> first_experts);

  ExpertsEnvironment const* env_;
  std::vector<Source> sources_;               // ascending
  std::vector<std::vector<ShardId>> wanted_;  // per layer: the likeliest last
  std::vector<std::pair<float, std::int32_t>> order_;
  std::uint64_t step_ = 0;
  std::size_t next_source_ = 0;
  std::int32_t reached_ = -1;
};

}  // namespace tiered
