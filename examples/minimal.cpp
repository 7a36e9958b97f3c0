/// The least that runs a model inside a budget: minimal MODEL.gguf PROMPT [BUDGET, such as 2G]
///
/// On a GPU where there is one and this was built for it, else on the simulated device.
#include <cstdio>

#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"
#if TIERED_HAS_CUDA
#include "tiered/cuda.hpp"
#endif

template <class Policies>
int run(tiered::GgufFile const& gguf, char const* prompt, std::size_t budget) {
  tiered::Tokenizer const tokenizer = tiered::make_tokenizer(gguf);
  tiered::Engine<Policies> engine(tiered::make_model(gguf), {.vram_bytes = budget});
  tiered::Sequence const sequence = engine.new_sequence();
  tiered::StreamDecoder decoder(tokenizer);  // never cuts a character in two

  auto logits = engine.prefill(sequence, tokenizer.encode(prompt));  // of the last token: [vocab_size]
  for (int i = 0; i < 64 && sequence.length() < engine.max_context(); ++i) {
    auto const token = tiered::argmax(logits);
    if (tokenizer.is_end_of_generation(token)) break;
    std::fputs(decoder.push(token).c_str(), stdout);
    std::fflush(stdout);
    logits = engine.decode(sequence, token);
  }
  auto const stats = engine.stats();
  std::printf("\n(at most %s of %s)\n", tiered::format_bytes(stats.vram_peak_bytes).c_str(), tiered::format_bytes(budget).c_str());
  return 0;
}

int main(int argc, char** argv) try {
  if (argc < 3) return std::fprintf(stderr, "usage: minimal MODEL.gguf PROMPT [BUDGET]   (such as 512M; 2G is the default)\n"), 2;
  auto const budget = tiered::parse_bytes(argc > 3 ? argv[3] : "2G");
  if (!budget) return std::fprintf(stderr, "minimal: %s is no size\n", argv[3]), 2;
  tiered::GgufFile const gguf = tiered::GgufFile::open(argv[1]);  // checks all of the file, reads no weights
#if TIERED_HAS_CUDA
  int n_gpus = 0;
  if (cudaGetDeviceCount(&n_gpus) == cudaSuccess && n_gpus > 0) return run<tiered::CudaPolicies>(gguf, argv[2], *budget);
#endif
  return run<tiered::SimPolicies>(gguf, argv[2], *budget);
} catch (tiered::Error const& e) {
  return std::fprintf(stderr, "minimal: %s: %s\n", name(e.code()), e.what()), 1;
}
