// Whole models on the GPU, on the CPU, and with layers here and there: transformers' logits within the noise of rounding, and the same
// text.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/gpu.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/cuda.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// A GPU of which a plan gets a part: tiny models have tiny budgets.
struct LimitedMachine : CudaMachine {
  std::size_t limit = 0;
  std::size_t plan_bytes() const { return std::min(limit, CudaMachine::plan_bytes()); }
};
std::size_t& plan_limit() {
  static std::size_t bytes = 0;
  return bytes;
}
struct GpuPolicies : CudaPolicies {
  using Placement = AnyPlacement;
  static LimitedMachine make_machine(MachineOptions const& o) { return {CudaPolicies::make_machine(o), plan_limit()}; }
};

EngineOptions options_for(bool exact = false) {
  EngineOptions options;
  options.vram_bytes = 4 * GiB;
  options.max_context = 256;
  options.n_threads = 2;
  options.kv_type = exact ? DType::f32 : DType::f16;
  options.hardware = HardwareProfile::simulated();  // the same plans everywhere
  return options;
}

std::size_t all_bytes(Transformer const& model) {
  std::size_t sum = 0;
  for (Shard const& s : model.table().shards) sum += s.bytes;
  return sum;
}

Engine<GpuPolicies> make_engine(std::shared_ptr<Transformer const> const& model, std::string const& placement, std::size_t bytes,
                                EngineOptions const& options = options_for()) {
  plan_limit() = bytes;
  return Engine<GpuPolicies>(model, options, {.placement = make_placement(placement)});
}

std::size_t everything(Transformer const& model) { return 4 * all_bytes(model) + 64 * MiB; }

void check_logits(std::vector<float> const& got, Transformer const& model, GoldenFixture const& f) {
  double const tolerance = quantised_tolerance(model, f);
  CHECK(median_row_rms(got, f) < tolerance);
  CHECK(compare(got, f).rms < 4 * tolerance);
}

std::size_t first_difference(std::vector<std::int32_t> const& a, std::vector<std::int32_t> const& b) {
  return std::size_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

/// Greedy text equals the fixture's up to a place where its two best logits lie closer than the tolerance. Of mixtures in mixed types
/// (`routes`) also up to where the CPU's text, of activations rounded to 8 bits as well, parts from it: a router at a near tie moves logits
/// by more than rounding does.
void check_text(std::vector<std::int32_t> const& got, std::shared_ptr<Transformer const> const& model, GoldenFixture const& f,
                bool routes) {
  double const tolerance = 4 * quantised_tolerance(*model, f) * double(f.logit_range);
  std::vector<std::int32_t> const expected = f.continuation();
  std::size_t const at = first_difference(got, expected);
  if (at == expected.size()) return;
  INFO("token " << at << ": margin " << f.margins[at] << ", tolerance " << tolerance);
  if (!routes || f.margins[at] < tolerance) {
    CHECK(f.margins[at] < tolerance);
    return;
  }
  EngineOptions options = options_for();
  options.vram_bytes = 0;
  Engine<CpuPolicies> cpu(model, options);
  CHECK(at == first_difference(greedy(cpu, f.prompt(), f.steps), expected));
}

}  // namespace

TEST_CASE("cuda: fully resident models give transformers' logits", "[cuda][golden]") {
  if (!tiered_test::has_gpu()) return;
  for (GoldenCase const& c : golden_cases()) {
    INFO(c.gguf);
    auto const model = open_golden(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    Engine<GpuPolicies> engine = make_engine(model, "all_vram", everything(*model));
    REQUIRE(engine.plans().vram_bytes > 0);
    for (std::vector<std::size_t> const& steps :
         {std::vector<std::size_t>{f.tokens.size()}, {std::size_t(f.prompt_size), 1}, {1}, {7, 1, 16, 3}}) {
      INFO("first steps of " << steps.front());
      check_logits(all_logits(engine, f.tokens, steps), *model, f);
    }
    bool const routes = model->config().layers[0].feed_forward == FeedForwardKind::experts;
    check_text(greedy(engine, f.prompt(), f.steps), model, f, routes && !c.exact);
  }
}

TEST_CASE("cuda: every built-in placement gives the same logits within the noise", "[cuda][golden]") {
  if (!tiered_test::has_gpu()) return;
  for (GoldenCase const& c : golden_cases()) {
    if (c.exact && std::string(c.gguf).find(".f16") == std::string::npos) continue;
    auto const model = open_golden(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    std::size_t n_split = 0;
    for (std::string const placement : {"attention_first", "seconds_per_byte", "stream_all"}) {
      for (int i = 1; i < 8; i += 2) {
        std::size_t const bytes = (4 * all_bytes(*model) + 4 * MiB) >> i;
        INFO(c.gguf << " " << placement << " " << bytes);
        Engine<GpuPolicies> engine = make_engine(model, placement, bytes);
        check_logits(all_logits(engine, f.tokens, {std::size_t(f.prompt_size), 1}), *model, f);
        CHECK(engine.plans().vram_bytes <= bytes);
        n_split += engine.plans().vram_bytes > 0 ? 1 : 0;
      }
    }
    CHECK(n_split > 0);
  }
}

TEST_CASE("cuda: keys and values of every type", "[cuda][golden]") {
  if (!tiered_test::has_gpu()) return;
  for (char const* const name_of : {"llama_k.mixed", "qwen3moe.mixed", "gemma3.f16"}) {
    auto const model = open_golden(std::string(name_of) + ".gguf");
    for (GoldenCase const& c : golden_cases()) {
      if (std::string(c.gguf) != std::string(name_of) + ".gguf") continue;
      GoldenFixture const f = read_golden(golden_path(c.fixture));
      for (DType const type : {DType::f16, DType::f32, DType::q8_0}) {
        INFO(name_of << " " << name(type));
        EngineOptions options = options_for();
        options.kv_type = type;
        Engine<GpuPolicies> engine = make_engine(model, "all_vram", everything(*model), options);
        check_logits(all_logits(engine, f.tokens, {std::size_t(f.prompt_size), 1}), *model, f);
      }
    }
  }
}

TEST_CASE("cuda: several sequences in one batch do not see each other", "[cuda][golden]") {
  if (!tiered_test::has_gpu()) return;
  auto const model = open_golden("qwen3moe.mixed.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.mixed.golden"));
  EngineOptions options = options_for();
  options.n_sequences = 3;
  Engine<GpuPolicies> engine = make_engine(model, "all_vram", everything(*model), options);
  Sequence const a = engine.new_sequence(), b = engine.new_sequence();
  std::vector<std::int32_t> const other(f.tokens.rbegin(), f.tokens.rend());
  std::vector<float> got;
  for (std::size_t begin = 0; begin < f.tokens.size(); begin += 5) {
    std::size_t const end = std::min(f.tokens.size(), begin + 5);
    std::vector<Row> rows = rows_of(b.id(), other, begin, end);
    std::vector<Row> const rows_a = rows_of(a.id(), f.tokens, begin, end);
    std::size_t const n = rows.size();
    rows.insert(rows.end(), rows_a.begin(), rows_a.end());
    Logits const logits = engine.step({rows});
    for (std::size_t i = n; i < rows.size(); ++i)
      got.insert(got.end(), logits.row(std::int32_t(i)).begin(), logits.row(std::int32_t(i)).end());
  }
  check_logits(got, *model, f);
}

TEST_CASE("cuda: the process holds what its ledger says, within the budget, from loading on", "[cuda][golden]") {
  if (!tiered_test::has_gpu()) return;
  auto const model = open_golden("llama_k.mixed.gguf");
  GoldenFixture const f = read_golden(golden_path("llama_k.mixed.golden"));
  Engine<GpuPolicies> engine = make_engine(model, "all_vram", everything(*model));
  CudaMachine& machine = engine.machine();
  VramMeasure const loaded = machine.gpu.ledger->measure();
  all_logits(engine, f.tokens, {std::size_t(f.prompt_size), 1});
  VramMeasure const used = machine.gpu.ledger->measure();
  INFO(machine.gpu.ledger->report());
  CHECK(used.figure_bytes == loaded.figure_bytes);
  CHECK(double(std::abs(used.unaccounted_bytes())) < 0.03 * double(used.figure_bytes));
  CHECK(machine.share->counted_bytes() <= 4 * GiB);
}

TEST_CASE("cuda: a plan that streams loads its kernels when the engine is made", "[cuda][golden]") {
  if (!tiered_test::has_gpu()) return;
  for (char const* const name_of : {"llama_k.mixed", "qwen3moe.mixed"}) {
    auto const model = open_golden(std::string(name_of) + ".gguf");
    GoldenFixture const f = read_golden(golden_path(std::string(name_of) + ".golden"));
    for (std::string const placement : {"stream_all", "attention_first"}) {
      INFO(name_of << " " << placement);
      Engine<GpuPolicies> engine = make_engine(model, placement, all_bytes(*model) / 2 + 4 * MiB);
      CudaMachine& machine = engine.machine();
      VramMeasure const loaded = machine.gpu.ledger->measure();
      all_logits(engine, f.tokens, {std::size_t(f.prompt_size), 1});
      all_logits(engine, f.tokens, {7, 1, 16, 3});
      INFO(machine.gpu.ledger->report());
      CHECK(machine.gpu.ledger->measure().figure_bytes == loaded.figure_bytes);
    }
  }
}

TEST_CASE("cuda: engines in a program with memory of its own add no more than their budgets", "[cuda][golden]") {
  if (!tiered_test::has_gpu()) return;
  tiered_test::DeviceArray<std::byte> const own(3 * GiB);  // before any ledger is made
  auto const model = open_golden("llama_k.mixed.gguf");
  GoldenFixture const f = read_golden(golden_path("llama_k.mixed.golden"));
  CudaDevice const device = CudaDevice::open(0);
  std::size_t const before = device.ledger->measure().figure_bytes;
  REQUIRE(before >= 3 * GiB);
  EngineOptions options = options_for();
  options.vram_bytes = GiB;
  Engine<GpuPolicies> first = make_engine(model, "all_vram", everything(*model), options);
  std::size_t const with_one = device.ledger->measure().figure_bytes;
  Engine<GpuPolicies> second = make_engine(model, "stream_all", all_bytes(*model) / 2 + 4 * MiB, options);
  std::size_t const with_two = device.ledger->measure().figure_bytes;
  INFO(device.ledger->report());
  CHECK(with_one <= before + GiB);
  CHECK(with_two <= before + 2 * GiB);
  CHECK(first.machine().share->counted_bytes() <= GiB);
  CHECK(second.machine().share->counted_bytes() <= GiB);
  for (Engine<GpuPolicies>* engine : {&first, &second})
    check_logits(all_logits(*engine, f.tokens, {std::size_t(f.prompt_size), 1}), *model, f);
  CHECK(device.ledger->measure().figure_bytes == with_two);
}
