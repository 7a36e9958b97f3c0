/// A placement of your own beside a built-in one: own_placement MODEL.gguf [BUDGET] [PROMPT]
///
/// A placement is asked what should be where, once for each class of batch sizes and each size of the ring for streaming that the
/// planner tries. It gets tables of bytes and seconds, asks a VramAccount what fits, and answers with plain values. An answer that does
/// not fit the budget is not used; where none fits, the CPU computes, and the map shows dots. The KV cache has one place for all
/// classes, so the planner may fix it and ask again (PlanRequest::fixed_state_in_vram): what place() says of it does not count then.
/// The plan map, the text, the speed and the bytes that crossed the link are printed for both. The text is the same, whatever is
/// placed where.
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"

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

struct MyPolicies : tiered::SimPolicies {
  using Placement = EveryNthLayer;
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Policies>
std::string run(char const* title, tiered::GgufFile const& gguf, std::size_t budget, std::string const& prompt,
                tiered::PolicyValues<Policies> values) {
  tiered::Tokenizer const tokenizer = tiered::make_tokenizer(gguf);
  tiered::Engine<Policies> engine(tiered::make_model(gguf), {.vram_bytes = budget, .max_context = 512}, std::move(values));
  std::printf("\n%s, plan for one token (R resident in VRAM, S streamed, . on the CPU; kv: V in VRAM)\n%s", title,
              tiered::layer_map(engine.plans().tiers.front().plan, engine.model().table()).c_str());

  tiered::Sequence const sequence = engine.new_sequence();
  double const start_s = now_s();
  auto logits = engine.prefill(sequence, tokenizer.encode(prompt));
  double const first_s = now_s();
  constexpr int n_tokens = 32;
  std::string text;
  double second_s = 0;
  std::uint64_t copied_before = 0;
  for (int i = 0; i <= n_tokens; ++i) {
    auto const token = tiered::argmax(logits);
    text += tokenizer.decode(token);
    logits = engine.decode(sequence, token);
    if (i > 0) continue;  // the first step also brings what the plan for single tokens keeps in VRAM
    second_s = now_s();
    copied_before = engine.machine().copy->bytes_to_device();
  }
  double const seconds = now_s() - second_s;
  std::printf("  first token after %.3f s, then %.1f tokens/s; %s copied to the device for each token; peak %s of %s\n", first_s - start_s,
              n_tokens / seconds, tiered::format_bytes((engine.machine().copy->bytes_to_device() - copied_before) / n_tokens).c_str(),
              tiered::format_bytes(engine.stats().vram_peak_bytes).c_str(), tiered::format_bytes(budget).c_str());
  return text;
}

int main(int argc, char** argv) try {
  if (argc < 2)
    return std::fprintf(stderr, "usage: own_placement MODEL.gguf [BUDGET] [PROMPT]   (BUDGET such as 48M, which is the default)\n"), 2;
  auto const budget = tiered::parse_bytes(argc > 2 ? argv[2] : "48M");
  if (!budget) return std::fprintf(stderr, "own_placement: %s is no size\n", argv[2]), 2;
  std::string const prompt = argc > 3 ? argv[3] : "The quick brown fox";
  tiered::GgufFile const gguf = tiered::GgufFile::open(argv[1]);

  std::string const built_in = run<tiered::SimPolicies>("attention_first", gguf, *budget, prompt, {});
  std::string const own = run<MyPolicies>("every third layer", gguf, *budget, prompt, {.placement = {.n = 3}});
  std::printf("\n%s%s\n\nThe two texts are %s.\n", prompt.c_str(), own.c_str(), own == built_in ? "the same" : "DIFFERENT");
  return own == built_in ? 0 : 1;
} catch (tiered::Error const& e) {
  return std::fprintf(stderr, "own_placement: %s: %s\n", name(e.code()), e.what()), 1;
}
