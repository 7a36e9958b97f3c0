// Greedy text of real files on the simulated device, at three budgets, against the CPU with f32 activations.
#include <memory>

#include "cached_file.hpp"
#include "catch.hpp"
#include "real_text.hpp"
#include "tiered/kernels/cpu/table.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

void check_simulated(char const* file) {
  auto const path = cached_file(file);
  if (!path) return;
  check_real_model(
      *path,
      [](std::shared_ptr<Transformer const> const& model, EngineOptions options, std::size_t bytes) {
        options.vram_bytes = bytes;
        return Engine<SimPolicies>(model, options);
      },
      [](std::shared_ptr<Transformer const> const& model, EngineOptions options, std::size_t bytes) {
        options.vram_bytes = bytes;
        KernelTable const& kernels = cpu_kernels(best_isa(), false);
        return make_plans<SimPolicies>(*model, options, {}, kernels, kernels);
      });
}

}  // namespace

TEST_CASE("SmolLM2: one text on the CPU and a device, but for near ties") { check_simulated("SmolLM2-135M-Instruct.Q4_1.gguf"); }
TEST_CASE("Gemma 3: one text on the CPU and a device, but for near ties") { check_simulated("gemma-3-270m-q4_k_m.gguf"); }
