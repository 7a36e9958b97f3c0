// Logits of every architecture against transformers: prompts at once, in chunks, and token by token.
#include "catch.hpp"
#include "golden/engine_helpers.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

Engine<CpuPolicies> make_engine(std::string const& gguf, bool f32_activations, Isa isa = best_isa(), int n_threads = 2) {
  EngineOptions options;
  options.max_context = 256;
  options.n_threads = n_threads;
  options.isa = isa;
  options.f32_activations = f32_activations;
  options.kv_type = f32_activations ? DType::f32 : DType::f16;
  return Engine<CpuPolicies>(open_golden(gguf), options);
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (Isa const isa : all_isas) {
    if (available(isa)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace

TEST_CASE("f32 activations and KV: logits equal transformers' to 1e-4 of their range", "[golden]") {
  for (GoldenCase const& c : golden_cases()) {
    INFO(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    for (Isa const isa : available_isas()) {
      INFO(name(isa));
      Engine<CpuPolicies> engine = make_engine(c.gguf, true, isa);
      CHECK(compare(all_logits(engine, f.tokens, {f.tokens.size()}), f).worst < 1e-4);
    }
  }
}

TEST_CASE("rounded activations: within the computed noise of 8-bit ones, on every table", "[golden]") {
  for (GoldenCase const& c : golden_cases()) {
    if (c.exact) continue;
    INFO(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    for (Isa const isa : available_isas()) {
      INFO(name(isa));
      Engine<CpuPolicies> engine = make_engine(c.gguf, false, isa);
      std::vector<float> const got = all_logits(engine, f.tokens, {f.tokens.size()});
      CHECK(median_row_rms(got, f) < quantised_tolerance(engine.model(), f));
      CHECK(compare(got, f).rms < 4 * quantised_tolerance(engine.model(), f));
    }
  }
}

TEST_CASE("chunked prefill and decode give the bits of one prefill", "[golden]") {
  for (GoldenCase const& c : golden_cases()) {
    INFO(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    for (Isa const isa : available_isas()) {
      for (bool f32 : {false, true}) {
        INFO(name(isa) << (f32 ? " f32" : ""));
        Engine<CpuPolicies> engine = make_engine(c.gguf, f32, isa);
        std::vector<float> const whole = all_logits(engine, f.tokens, {f.tokens.size()});
        CHECK(all_logits(engine, f.tokens, {7, 1, 16, 3}) == whole);
        CHECK(all_logits(engine, f.tokens, {f.prompt_size, 1}) == whole);
        CHECK(all_logits(engine, f.tokens, {1}) == whole);
      }
    }
  }
}

TEST_CASE("logits are the same bits for every number of threads, on every table", "[golden]") {
  for (GoldenCase const& c : golden_cases()) {
    INFO(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    for (Isa const isa : available_isas()) {
      INFO(name(isa));
      Engine<CpuPolicies> one = make_engine(c.gguf, false, isa, 1), five = make_engine(c.gguf, false, isa, 5);
      CHECK(all_logits(five, f.tokens, {f.prompt_size, 1}) == all_logits(one, f.tokens, {f.prompt_size, 1}));
    }
  }
}

TEST_CASE("greedy text equals transformers'", "[golden]") {
  for (GoldenCase const& c : golden_cases()) {
    INFO(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    Engine<CpuPolicies> engine = make_engine(c.gguf, true);
    CHECK(greedy(engine, f.prompt(), f.steps) == f.continuation());
  }
}

TEST_CASE("q and k without the llama permutation give other logits", "[golden]") {
  GoldenFixture const f = read_golden(golden_path("minitron.golden"));
  Engine<CpuPolicies> engine = make_engine("minitron.wrong_permutation.gguf", true);
  CHECK(compare(all_logits(engine, f.tokens, {f.tokens.size()}), f).worst > 1e-2);
}

TEST_CASE("a sequence cut back and continued gives the bits of one that never was", "[golden]") {
  GoldenFixture const f = read_golden(golden_path("gemma3.golden"));
  Engine<CpuPolicies> engine = make_engine("gemma3.f32.gguf", false);
  std::vector<float> const expected = all_logits(engine, f.tokens, {f.tokens.size()});
  Sequence sequence = engine.new_sequence();
  std::vector<std::int32_t> wrong(f.tokens.rbegin(), f.tokens.rend());
  engine.prefill(sequence, wrong);
  sequence.truncate(0);
  engine.prefill(sequence, {f.tokens.data(), 20});
  engine.prefill(sequence, {wrong.data(), 9});
  sequence.truncate(20);
  std::vector<Row> const rows = rows_of(sequence.id(), f.tokens, 20, f.tokens.size());
  Logits const logits = engine.step({rows});
  std::vector<float> const tail(expected.begin() + std::ptrdiff_t(20 * f.vocab_size), expected.end());
  std::vector<float> got;
  for (std::int32_t i = 0; i < logits.n_rows(); ++i) got.insert(got.end(), logits.row(i).begin(), logits.row(i).end());
  CHECK(got == tail);
}

TEST_CASE("two sequences in one batch do not see each other", "[golden]") {
  GoldenFixture const f = read_golden(golden_path("qwen3moe.mixed.golden"));
  EngineOptions options;
  options.max_context = 256;
  options.n_sequences = 2;
  Engine<CpuPolicies> engine(open_golden("qwen3moe.mixed.gguf"), options);
  std::vector<std::int32_t> const other(f.tokens.rbegin(), f.tokens.rend());
  std::vector<float> const alone_a = all_logits(engine, f.tokens, {f.tokens.size()}), alone_b = all_logits(engine, other, {other.size()});
  Sequence const a = engine.new_sequence(), b = engine.new_sequence();
  std::vector<float> both_a, both_b;
  for (std::size_t begin = 0; begin < f.tokens.size(); begin += 5) {
    std::size_t const end = std::min(f.tokens.size(), begin + 5);
    std::vector<Row> rows = rows_of(a.id(), f.tokens, begin, end), rows_b = rows_of(b.id(), other, begin, end);
    std::size_t const n = rows.size();
    rows.insert(rows.end(), rows_b.begin(), rows_b.end());
    Logits const logits = engine.step({rows});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      auto& out = i < n ? both_a : both_b;
      out.insert(out.end(), logits.row(std::int32_t(i)).begin(), logits.row(std::int32_t(i)).end());
    }
  }
  CHECK(both_a == alone_a);
  CHECK(both_b == alone_b);
}
