/// Asks a vision-language model about an image inside a budget: vlm MODEL.gguf MMPROJ.gguf IMAGE QUESTION [BUDGET, such as 2G]
#include <cstdio>

#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"
#if TIERED_HAS_CUDA
#include "tiered/cuda.hpp"
#endif

template <class Policies>
int run(char** argv, std::size_t budget) {
  tiered::GgufFile const gguf = tiered::GgufFile::open(argv[1]);
  tiered::Tokenizer const tokenizer = tiered::make_tokenizer(gguf);
  tiered::Engine<Policies> engine(tiered::make_model(gguf), {.vram_bytes = budget});
  tiered::VisionEncoder encoder(engine, tiered::make_vision_model(tiered::GgufFile::open(argv[2])));
  tiered::MediaInput input(encoder, engine.model().config(), tokenizer);

  using Kind = tiered::ChatPart::Kind;
  tiered::ChatMessage const question{.role = "user", .content = {}, .parts = {{Kind::image, {}}, {Kind::text, argv[4]}}};
  auto const text = tiered::chat_template_from_gguf(gguf).render({&question, 1});
  tiered::Generation generation(engine, tokenizer, {.max_tokens = 256});
  generation.start(input.prompt(text, {input.reader().image(argv[3])}), input);  // encodes the image first, in the same budget
  for (tiered::GenerationEvent e;;) {
    e = generation.next();
    std::fputs(e.text.c_str(), stdout);
    std::fflush(stdout);
    if (e.is_end()) return std::putchar('\n'), 0;
  }
}

int main(int argc, char** argv) try {
  if (argc < 5) return std::fprintf(stderr, "usage: vlm MODEL.gguf MMPROJ.gguf IMAGE QUESTION [BUDGET]   (such as 512M)\n"), 2;
  auto const budget = tiered::parse_bytes(argc > 5 ? argv[5] : "2G");
  if (!budget) return std::fprintf(stderr, "vlm: %s is no size\n", argv[5]), 2;
#if TIERED_HAS_CUDA
  int n_gpus = 0;
  if (cudaGetDeviceCount(&n_gpus) == cudaSuccess && n_gpus > 0) return run<tiered::CudaPolicies>(argv, *budget);
#endif
  return run<tiered::SimPolicies>(argv, *budget);
} catch (tiered::Error const& e) {
  return std::fprintf(stderr, "vlm: %s: %s\n", name(e.code()), e.what()), 1;
}
