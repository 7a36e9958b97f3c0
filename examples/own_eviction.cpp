/// An eviction policy of your own beside the built-in one: own_eviction MODEL.gguf [BUDGET] [PROMPT] [--sim]
///
/// The experts of a mixture that do not fit stay in a cache in VRAM; the policy says which of them leaves for one that is fetched. It hears
/// of every use, whether the expert is in the cache or not, and is asked for a victim. What it says changes speed, and on a GPU the last
/// bits of sums, never what is computed. Needs a model with experts, and a budget that holds some of them: the plan says.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policy_run.hpp"

/// A clock's hand goes round the cached experts: one that was used since it last came by gets another round, the first that was not leaves.
/// erase() looks through all of them, which a few thousand bear.
class SecondChance {
 public:
  void touch(tiered::ShardId s, std::uint64_t) {
    if (std::size_t(s) < used_.size()) used_[std::size_t(s)] = true;
  }
  bool admit(tiered::ShardId) { return true; }
  void insert(tiered::ShardId s) {
    if (std::size_t(s) >= used_.size()) used_.resize(std::size_t(s) + 1, false);
    used_[std::size_t(s)] = true;
    round_.push_back(s);
  }
  void erase(tiered::ShardId s) {
    auto const at = std::ranges::find(round_, s);
    if (at == round_.end()) return;
    if (std::size_t(at - round_.begin()) < hand_) --hand_;
    round_.erase(at);
  }
  std::optional<tiered::ShardId> victim() {
    if (round_.empty()) return std::nullopt;
    for (;; ++hand_) {
      if (hand_ >= round_.size()) hand_ = 0;
      if (!used_[std::size_t(round_[hand_])]) return round_[hand_];
      used_[std::size_t(round_[hand_])] = false;
    }
  }

 private:
  std::vector<tiered::ShardId> round_;
  std::vector<bool> used_;  // by shard, since the hand came by
  std::size_t hand_ = 0;
};
static_assert(tiered::EvictionPolicy<SecondChance>);

template <class Device>
struct BuiltIn : Device {
  using Placement = tiered::AnyPlacement;
};
template <class Device>
struct MyPolicies : BuiltIn<Device> {
  using Eviction = SecondChance;
};

/// Nothing where the plan has no cache.
template <class Policies>
std::optional<example::Outcome> run(char const* title, tiered::GgufFile const& gguf, example::Arguments const& a,
                                    example::Words const& words, tiered::AnyPlacement placement, example::Outcome const* along = nullptr) {
  std::size_t const budget = a.budget_for(gguf);
  // Nobody knows more than the other: nothing of earlier runs.
  tiered::Engine<Policies> engine(tiered::make_model(gguf), {.vram_bytes = budget, .max_context = 512, .expert_prior = false},
                                  {.placement = std::move(placement)});
  if (engine.plans().images.front().vram.cache_bytes == 0) return std::nullopt;
  example::Outcome const o = example::run(engine, words, a.prompt, along);
  example::print(title, o, budget);
  return o;
}

template <class Device>
int compare(example::Arguments const& a) {
  tiered::GgufFile const gguf = tiered::GgufFile::open(a.model);
  example::Words const words(gguf);
  tiered::AnyPlacement placement;
  std::optional<example::Outcome> built_in = run<BuiltIn<Device>>("prior_frequency", gguf, a, words, placement);
  if (!built_in) {
    std::printf("The plan of seconds_per_byte has no expert cache; with stream_all, where all experts go through one:\n");
    built_in = run<BuiltIn<Device>>("prior_frequency", gguf, a, words, placement = tiered::make_placement("stream_all"));
  }
  if (!built_in) return std::fprintf(stderr, "own_eviction: %s has no experts, or none fits this budget\n", a.model.c_str()), 1;
  std::optional<example::Outcome> const own = run<MyPolicies<Device>>("second chance", gguf, a, words, placement, &*built_in);
  return example::compare("second chance", *own, *built_in, words, a);
}

int main(int argc, char** argv) try {
  auto const arguments = example::parse(argc, argv, "own_eviction");
  if (!arguments) return 2;
#if TIERED_HAS_CUDA
  if (!arguments->simulated) return compare<tiered::CudaPolicies>(*arguments);
#endif
  return compare<tiered::SimPolicies>(*arguments);
} catch (tiered::Error const& e) {
  return std::fprintf(stderr, "own_eviction: %s: %s\n", name(e.code()), e.what()), 1;
}
