/// A memory tier of your own: weights in huge pages, beside the file mapping: own_tier MODEL.gguf [PROMPT]
///
/// The file mapping needs no copy and is shared with other processes, but has small pages: a large model touches more of them than the
/// processor's TLB holds. Whether 2 MiB pages are worth the copy can be read off what this prints.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include <sys/mman.h>

#include "tiered/tiered.hpp"

/// One piece of anonymous memory, in huge pages where the system has them (see /sys/kernel/mm/transparent_hugepage/enabled), given
/// out from its beginning; nothing is given back before the end.
class HugePageTier {
 public:
  explicit HugePageTier(std::size_t capacity_bytes) : capacity_(round_up(capacity_bytes, huge_page)) {
    void* const memory = mmap(nullptr, capacity_ + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      throw tiered::Error(tiered::Errc::out_of_memory, tiered::concat("no address space for ", capacity_, " bytes"));
    mapping_ = static_cast<std::byte*>(memory);
    begin_ = reinterpret_cast<std::byte*>(round_up(reinterpret_cast<std::size_t>(memory), huge_page));
    madvise(begin_, capacity_, MADV_HUGEPAGE);
  }
  HugePageTier(HugePageTier&& other) noexcept { *this = std::move(other); }
  HugePageTier& operator=(HugePageTier&& other) noexcept {
    std::swap(mapping_, other.mapping_), std::swap(begin_, other.begin_), std::swap(capacity_, other.capacity_);
    std::swap(end_, other.end_), std::swap(used_, other.used_);
    return *this;
  }
  ~HugePageTier() {
    if (mapping_ != nullptr) munmap(mapping_, capacity_ + huge_page);
  }

  tiered::Tier tier() const { return tiered::Tier::pageable; }
  tiered::Block allocate(std::size_t bytes, std::size_t alignment) {
    std::size_t const offset = round_up(end_, alignment);
    if (offset > capacity_ || bytes > capacity_ - offset) {
      throw tiered::Error(tiered::Errc::out_of_memory,
                          tiered::concat("huge pages: ", bytes, " bytes wanted, ", capacity_ - end_, " of ", capacity_, " left"));
    }
    end_ = offset + bytes;
    used_ += bytes;
    return {begin_ + offset, bytes, tier()};
  }
  void deallocate(tiered::Block block) noexcept {
    used_ -= block.bytes;
    if (used_ == 0) end_ = 0;
  }
  std::size_t capacity_bytes() const { return capacity_; }
  std::size_t used_bytes() const { return used_; }

 private:
  static constexpr std::size_t huge_page = 2 * tiered::MiB;
  static constexpr std::size_t round_up(std::size_t n, std::size_t step) { return (n + step - 1) / step * step; }
  std::byte *mapping_ = nullptr, *begin_ = nullptr;
  std::size_t capacity_ = 0, end_ = 0, used_ = 0;
};
static_assert(tiered::MemoryTier<HugePageTier>);

struct HugePagePolicies : tiered::CpuPolicies {
  using HostMemory = tiered::CopiedTo<HugePageTier>;
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// How much of this process lies in huge pages, in KiB; 0 where the system does not say.
long huge_kib() {
  long kib = 0;
  if (std::FILE* const file = std::fopen("/proc/self/smaps_rollup", "r")) {
    char line[256];
    while (std::fgets(line, sizeof line, file) != nullptr) {
      if (std::sscanf(line, "AnonHugePages: %ld", &kib) == 1) break;
    }
    std::fclose(file);
  }
  return kib;
}

template <class Policies>
std::string run(char const* title, tiered::GgufFile const& gguf, std::string const& prompt, typename Policies::HostMemory memory) {
  tiered::Tokenizer const tokenizer = tiered::make_tokenizer(gguf);
  auto const model = tiered::make_model(gguf);
  double const start_s = now_s();
  tiered::Engine<Policies> engine(model, {.max_context = 512}, {.host_memory = std::move(memory)});
  double const load_s = now_s() - start_s;
  tiered::Sequence const sequence = engine.new_sequence();
  auto logits = engine.prefill(sequence, tokenizer.encode(prompt));
  constexpr int n_rounds = 3, n_tokens = 16;
  std::string text;
  double best = 0;  // of the rounds: other programs take their share, too
  for (int round = 0; round < n_rounds; ++round) {
    double const round_s = now_s();
    for (int i = 0; i < n_tokens; ++i) {
      auto const token = tiered::argmax(logits);
      text += tokenizer.decode(token);
      logits = engine.decode(sequence, token);
    }
    best = std::max(best, n_tokens / (now_s() - round_s));
  }
  std::printf("%-13s load %.3f s, %.1f tokens/s, %ld MiB of this process in huge pages\n", title, load_s, best, huge_kib() / 1024);
  return text;
}

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: own_tier MODEL.gguf [PROMPT]\n"), 2;
  std::string const prompt = argc > 2 ? argv[2] : "The quick brown fox";
  tiered::GgufFile const gguf = tiered::GgufFile::open(argv[1]);

  std::string const in_file = run<tiered::CpuPolicies>("file mapping", gguf, prompt, {});
  std::string const copied =
      run<HugePagePolicies>("huge pages", gguf, prompt, tiered::CopiedTo<HugePageTier>(HugePageTier(gguf.total_bytes())));
  std::printf("\n%s%s\n\nThe two texts are %s.\n", prompt.c_str(), copied.c_str(), copied == in_file ? "the same" : "DIFFERENT");
  return copied == in_file ? 0 : 1;
} catch (tiered::Error const& e) {
  return std::fprintf(stderr, "own_tier: %s: %s\n", name(e.code()), e.what()), 1;
}
