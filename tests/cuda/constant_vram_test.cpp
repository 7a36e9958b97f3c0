// What NVML says of this process does not change while an engine works, step by step.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/gpu.hpp"
#include "cuda/limited_gpu.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// Figures as they are sampled, from within a step too.
struct Samples {
  VramLedger* ledger = nullptr;
  std::vector<std::size_t> figures;
  std::vector<std::int64_t> ledger_bytes;
  void take() {
    VramMeasure const m = ledger->measure();
    figures.push_back(m.figure_bytes);
    ledger_bytes.push_back(std::int64_t(m.ledger_bytes));
  }
};

EngineOptions options_for(Samples& samples) {
  EngineOptions options;
  options.vram_bytes = 4 * GiB;
  options.max_context = 4096;
  options.n_threads = 2;
  options.hardware = HardwareProfile::simulated();
  options.progress_context = &samples;
  options.progress = [](void* context, std::int32_t, std::int32_t) {  // after each block
    if (auto& s = *static_cast<Samples*>(context); s.ledger != nullptr) s.take();
  };
  return options;
}

std::size_t all_bytes(Transformer const& model) {
  std::size_t sum = 0;
  for (Shard const& s : model.table().shards) sum += s.bytes;
  return sum;
}

}  // namespace

TEST_CASE("cuda: NVML's figure stays what it was when the engine was made, over a long prompt and 32 tokens", "[cuda][vram]") {
  if (!tiered_test::has_gpu()) return;
  for (char const* const file : {"llama_k.mixed.gguf", "qwen3moe_k.mixed.gguf"}) {
    auto const model = open_golden(file);
    std::vector<std::int32_t> prompt;
    for (std::int32_t i = 0; i < 3000; ++i) prompt.push_back(3 + i * 7 % 60);
    for (std::string const placement : {"all_vram", "seconds_per_byte", "stream_all"}) {
      std::size_t const all = 4 * all_bytes(*model) + 256 * MiB;
      for (std::size_t const plan_bytes : {all, all_bytes(*model) / 2 + 8 * MiB}) {
        Samples samples;
        Engine<LimitedPolicies> engine = make_limited(model, options_for(samples), placement, plan_bytes);
        CudaMachine& machine = engine.machine();
        std::size_t const loaded = machine.gpu.ledger->measure().figure_bytes, counted = machine.share->counted_bytes();
        samples.ledger = machine.gpu.ledger.get();
        Sequence const sequence = engine.new_sequence();
        std::span<float const> logits = engine.prefill(sequence, prompt);
        samples.take();
        for (int i = 0; i < 32; ++i) {
          logits = engine.decode(sequence, argmax(logits));
          samples.take();
        }
        INFO(file << ", " << placement << ", " << plan_bytes << " bytes planned of, " << samples.figures.size() << " samples\n"
                  << machine.gpu.ledger->report());
        REQUIRE(samples.figures.size() >= 2 * 32 + 2);
        for (std::size_t i = 0; i < samples.figures.size(); ++i) {
          INFO("sample " << i);
          CHECK(samples.figures[i] == loaded);
          CHECK(samples.ledger_bytes[i] == samples.ledger_bytes.front());
        }
        CHECK(engine.stats().vram_peak_bytes == counted);
        CHECK(counted <= engine.stats().vram_budget_bytes);
      }
    }
  }
}
