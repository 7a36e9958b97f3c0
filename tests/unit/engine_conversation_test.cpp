// A conversation knows what its sequence holds, and processes only what is new.
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/engine/conversation.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct SmallBlocks {
  std::vector<int> bound{1, 4};
  std::span<int const> bounds() const { return bound; }
  std::size_t select(int n_rows) const { return n_rows > 1 ? 1 : 0; }
};
struct SmallBlockPolicies : CpuPolicies {
  using TokenTiers = SmallBlocks;
};

EngineOptions small(std::int32_t n_sequences = 2) {
  EngineOptions options;
  options.max_context = 64;
  options.n_sequences = n_sequences;
  options.n_threads = 1;
  return options;
}

template <class E>
std::vector<float> fresh(E& engine, std::vector<std::int32_t> const& tokens) {
  Sequence const sequence = engine.new_sequence();
  std::span<float const> const logits = engine.prefill(sequence, tokens);
  return {logits.begin(), logits.end()};
}

std::vector<float> copy(std::span<float const> logits) { return {logits.begin(), logits.end()}; }

}  // namespace

TEST_CASE("prompts share what they have in common, and the logits are the same bits") {
  std::uint64_t const seed = 5;
  INFO("seed " << seed);
  for (char const* file : {"llama.mixed.gguf", "gemma3.mixed.gguf", "qwen3moe.mixed.gguf"}) {
    INFO(file);
    SplitMix64 random(seed);
    Engine<CpuPolicies> engine(open_golden(file), small());
    Conversation conversation(engine.new_sequence());
    std::vector<std::int32_t> held;
    for (int round = 0; round < 30; ++round) {
      std::vector<std::int32_t> prompt(held.begin(), held.begin() + std::ptrdiff_t(random.below(held.size() + 1)));
      for (std::uint64_t n = random.below(6); n > 0; --n) prompt.push_back(3 + std::int32_t(random.below(3)));
      if (prompt.empty()) prompt.push_back(3);
      if (prompt.size() > 60) prompt.resize(20);
      std::size_t common = 0;
      while (common < std::min(held.size(), prompt.size()) && held[common] == prompt[common]) ++common;
      PromptUse const use = conversation.prompt(engine, prompt);
      CHECK(use.n_tokens == std::int32_t(prompt.size()));
      CHECK(use.n_reused == std::int32_t(std::min(common, prompt.size() - 1)));
      std::vector<float> logits = copy(use.logits);
      CHECK(logits == fresh(engine, prompt));
      held = prompt;
      if (random.below(2) == 0) {
        std::vector<std::int32_t> const more{4, 5};
        held.insert(held.end(), more.begin(), more.end());
        logits = copy(conversation.extend(engine, more));
        CHECK(logits == fresh(engine, held));
      }
      CHECK(std::vector<std::int32_t>(conversation.tokens().begin(), conversation.tokens().end()) == held);
      CHECK(conversation.length() == std::int32_t(held.size()));
    }
  }
}

TEST_CASE("a prompt beyond the context is refused with both numbers, and nothing is forgotten") {
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), small());
  Conversation conversation(engine.new_sequence());
  conversation.prompt(engine, std::vector<std::int32_t>{1, 2, 3});
  Thrown const t = error_of([&] { conversation.prompt(engine, std::vector<std::int32_t>(65, 1)); });
  CHECK(t.code == Errc::over_budget);
  CHECK(t.says("65", "64"));
  CHECK(conversation.length() == 3);
  CHECK(error_of([&] { conversation.prompt(engine, {}); }).code == Errc::precondition);
  CHECK(error_of([&] { conversation.extend(engine, std::vector<std::int32_t>{1 << 30}); }).code == Errc::precondition);
  CHECK(conversation.length() == 3);
  conversation.truncate(1);
  CHECK(conversation.tokens().size() == 1);
  CHECK(error_of([&] { conversation.truncate(2); }).code == Errc::precondition);
}

TEST_CASE("a cancelled prompt keeps the blocks that were done, and goes on from there") {
  struct Cancel {
    CancelToken* token = nullptr;
    std::int32_t at = 0;
  } cancel;
  EngineOptions options = small();
  options.progress = [](void* context, std::int32_t done, std::int32_t) {
    auto& c = *static_cast<Cancel*>(context);
    if (c.token != nullptr && done >= c.at) c.token->cancel();
  };
  options.progress_context = &cancel;
  Engine<SmallBlockPolicies> engine(open_golden("qwen3.mixed.gguf"), options);
  std::vector<std::int32_t> prompt;
  for (std::int32_t i = 0; i < 50; ++i) prompt.push_back(3 + i * 7 % 60);
  std::vector<float> const expected = fresh(engine, prompt);
  Conversation conversation(engine.new_sequence());
  for (std::int32_t at : {1, 5, 20}) {
    cancel = {&engine.cancel_token(), at};
    std::int32_t const before = conversation.length();
    CHECK(error_of([&] { conversation.prompt(engine, prompt); }).code == Errc::cancelled);
    engine.cancel_token().reset();
    CHECK(conversation.length() > before);
    CHECK(conversation.length() < 50);
    CHECK(std::equal(conversation.tokens().begin(), conversation.tokens().end(), prompt.begin()));
  }
  cancel = {};
  std::int32_t const held = conversation.length();
  PromptUse const use = conversation.prompt(engine, prompt);
  CHECK(use.n_reused == held);
  CHECK(copy(use.logits) == expected);
}

TEST_CASE("a fault at any time leaves the bookkeeping true") {
  auto const model = open_golden("llama.mixed.gguf");
  EngineOptions options = small();
  options.vram_bytes = MiB;
  std::vector<std::int32_t> const prompt{3, 4, 5, 6, 7}, next{3, 4, 5, 9, 9, 9};
  auto faults = std::make_shared<Faults>();
  Engine<SimPolicies> engine(model, options, {},
                             SimPolicies::make_machine({options.vram_bytes, 1, false, false}, LaneSet::threads(), faults));
  std::vector<float> const expected = fresh(engine, next);
  std::uint64_t n_fired = 0;
  for (std::uint64_t n = 1; n < 100; n += 9) {
    for (FaultKind kind : {FaultKind::copy, FaultKind::launch}) {
      Conversation conversation(engine.new_sequence());
      conversation.prompt(engine, prompt);
      faults->reset();
      faults->fail_at(kind, n);
      Thrown const t = error_of([&] { conversation.prompt(engine, next); });
      faults->reset();
      if (!t.code) continue;
      ++n_fired;
      CHECK(t.code == Errc::device);
      CHECK(std::vector<std::int32_t>(conversation.tokens().begin(), conversation.tokens().end()) == std::vector<std::int32_t>{3, 4, 5});
      PromptUse const use = conversation.prompt(engine, next);
      CHECK(use.n_reused == 3);
      CHECK(copy(use.logits) == expected);
    }
  }
  CHECK(n_fired > 5);
}

TEST_CASE("tokens that are not as many as the sequence has are refused") {
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), small());
  CHECK(error_of([&] { Conversation(engine.new_sequence(), {1, 2}); }).says("2", "0"));
}
