// Greedy text of real files on the GPU, at three budgets, against the CPU with f32 activations. The files: those that $TIERED_REAL_MODELS
// names, with colons between them, or the two of tests/data/real in the cache.
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cached_file.hpp"
#include "cuda/gpu.hpp"
#include "cuda/limited_gpu.hpp"
#include "real_text.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

std::vector<std::string> real_models() {
  std::vector<std::string> paths;
  if (char const* const list = std::getenv("TIERED_REAL_MODELS"); list != nullptr && *list != '\0') {
    std::string const text = list;
    for (std::size_t begin = 0, end = 0; begin <= text.size(); begin = end + 1) {
      end = std::min(text.find(':', begin), text.size());
      if (end > begin) paths.push_back(text.substr(begin, end - begin));
    }
    return paths;  // one that is not there is an error
  }
  for (char const* const name : {"SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-q4_k_m.gguf"}) {
    std::filesystem::path const path = tiered_test::cache_dir() / name;
    if (std::filesystem::exists(path)) {
      paths.push_back(path.string());
    } else {
      std::printf("left out: no %s, and $TIERED_REAL_MODELS names nothing else\n", path.c_str());
    }
  }
  return paths;
}

}  // namespace

TEST_CASE("cuda: real models write the CPU's text, but for near ties", "[cuda][real]") {
  if (!tiered_test::has_gpu()) return;
  KernelTable const gpu_kernels = CudaPolicies::make_machine({.vram_bytes = 2 * GiB, .n_threads = 2}).device->kernels();
  for (std::string const& path : real_models()) {
    check_real_model(
        path,
        [](std::shared_ptr<Transformer const> const& model, EngineOptions options, std::size_t bytes) {
          options.vram_bytes = 4 * GiB;
          return make_limited(model, options, "seconds_per_byte", bytes);
        },
        [&](std::shared_ptr<Transformer const> const& model, EngineOptions options, std::size_t bytes) {
          options.vram_bytes = bytes;
          return make_plans<CudaPolicies>(*model, options, {}, cpu_kernels(best_isa(), false), gpu_kernels);
        });
  }
}
