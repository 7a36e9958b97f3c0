/// A placement of your own beside a built-in one: own_placement MODEL.gguf [BUDGET] [PROMPT] [--sim]
///
/// A placement is asked what should be where, once for each class of batch sizes and each size of the ring for streaming that the
/// planner tries. It gets tables of bytes and seconds, asks a VramAccount what fits, and answers with plain values. An answer that does
/// not fit the budget is not used; where none fits, the CPU computes, and the map shows dots. The KV cache has one place for all
/// classes, so the planner may fix it and ask again (PlanRequest::fixed_state_in_vram): what place() says of it does not count then.
/// The plan map, the speed beside the predicted one, the bytes that crossed the link and the text are printed for both, on a GPU where
/// there is one and this was built for it, else on the simulated device, where the text is the same, whatever is placed where.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "policy_run.hpp"

/// Every n-th layer lives in VRAM with its KV cache, as far as there is room; of the others, feed-forward weights are streamed.
struct EveryNthLayer {
  int n = 3;

  tiered::Placements place(tiered::PlanRequest const& r) const {
    tiered::Placements out{r};    // default: in host memory, computed by the CPU
    tiered::VramAccount vram{r};  // knows what buffers and the ring take
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      tiered::Shard const& shard = r.shards[i];
      bool const is_attention = shard.kind == tiered::ShardKind::attention, is_ffn = shard.kind == tiered::ShardKind::ffn;
      if (!is_attention && !is_ffn) continue;  // embedding, output and experts stay on the CPU
      if (shard.layer % n == 0 && vram.try_resident(i)) {
        out.shards[i] = {.home = tiered::Tier::vram, .gpu_rows = 1};
        if (is_attention && vram.try_state(std::size_t(shard.layer))) out.state_in_vram[std::size_t(shard.layer)] = 1;
      } else if (is_ffn && r.ring_bytes > 0) {
        out.shards[i] = {.home = tiered::Tier::pageable, .gpu_rows = 1};  // copied for each use
      }
    }
    return out;
  }
};
static_assert(tiered::PlacementPolicy<EveryNthLayer>);

/// All else is the device's own bundle: tiered::SimPolicies or tiered::CudaPolicies.
template <class Device>
struct MyPolicies : Device {
  using Placement = EveryNthLayer;
};

/// What the plan of each class of batch sizes says that a batch of its largest size takes, and what one took: the better of two, since the
/// first also brings what that plan keeps in VRAM.
template <class E>
void print_classes(E& engine, std::vector<std::int32_t> const& some_tokens) {
  bool const made_up = engine.profile().source == tiered::ProfileSource::simulated;
  for (tiered::TierPlan const& tier : engine.plans().tiers) {
    if (tier.rows.n == 1) continue;  // tokens, one by one: see print()
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < tier.rows.n; ++i) tokens.push_back(some_tokens[std::size_t(i) % some_tokens.size()]);
    double best_s = 0;
    for (int i = 0; i < 2; ++i) {
      tiered::Sequence const sequence = engine.new_sequence();
      double const start_s = example::now_s();
      engine.prefill(sequence, tokens);
      double const s = example::now_s() - start_s;
      best_s = i == 0 ? s : std::min(best_s, s);
    }
    std::printf("%18s a prompt of %d tokens: predicted %.2f ms%s, measured %.2f ms\n", "", int(tier.rows.n), 1e3 * tier.estimate.seconds,
                made_up ? " on a made-up machine" : "", 1e3 * best_s);
  }
}

template <class Policies>
example::Outcome run(char const* title, tiered::GgufFile const& gguf, example::Arguments const& a, example::Words const& words,
                     tiered::PolicyValues<Policies> values, example::Outcome const* along = nullptr) {
  std::size_t const budget = a.budget_for(gguf);
  tiered::Engine<Policies> engine(tiered::make_model(gguf), {.vram_bytes = budget, .max_context = 512, .expert_prior = false},
                                  std::move(values));
  std::printf("\n%s, plan for one token (R resident in VRAM, S streamed, . on the CPU; kv: V in VRAM)\n%s", title,
              tiered::layer_map(engine.plans().tiers.front().plan, engine.model().table()).c_str());
  example::Outcome o = example::run(engine, words, a.prompt, along);
  example::print(title, o, budget);
  print_classes(engine, words.prompt(a.prompt, engine.model().config().vocab_size));
  return o;
}

template <class Device>
int compare(example::Arguments const& a) {
  tiered::GgufFile const gguf = tiered::GgufFile::open(a.model);
  example::Words const words(gguf);
  example::Outcome const built_in = run<Device>("seconds_per_byte", gguf, a, words, {});
  example::Outcome const own = run<MyPolicies<Device>>("every third layer", gguf, a, words, {.placement = {.n = 3}}, &built_in);
  return example::compare("every third layer", own, built_in, words, a);
}

int main(int argc, char** argv) try {
  auto const arguments = example::parse(argc, argv, "own_placement");
  if (!arguments) return 2;
#if TIERED_HAS_CUDA
  if (!arguments->simulated) return compare<tiered::CudaPolicies>(*arguments);
#endif
  return compare<tiered::SimPolicies>(*arguments);
} catch (tiered::Error const& e) {
  return std::fprintf(stderr, "own_placement: %s: %s\n", name(e.code()), e.what()), 1;
}
