/// A memory tier of your own: weights in huge pages, beside the file mapping: own_tier MODEL.gguf [PROMPT] [--vram BUDGET] [--sim]
///
/// The file mapping needs no copy and is shared with other processes, but has small pages: a large model touches more of them than the
/// processor's TLB holds, and a GPU that copies from them has more of them page-locked. Whether 2 MiB pages are worth the copy can be read
/// off what this prints: on a GPU where there is one and this was built for it, else, or with --sim, on the CPU.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

#include <sys/mman.h>

#include "policy_run.hpp"

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

/// All else is the device's own bundle: tiered::CpuPolicies or tiered::CudaPolicies.
template <class Device>
struct HugePagePolicies : Device {
  using HostMemory = tiered::CopiedTo<HugePageTier>;
};

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
example::Outcome run(char const* title, tiered::GgufFile const& gguf, example::Arguments const& a, example::Words const& words,
                     typename Policies::HostMemory memory, example::Outcome const* along = nullptr) {
  auto const model = tiered::make_model(gguf);
  tiered::EngineOptions options{.max_context = 512, .expert_prior = false};
  if (!a.simulated) options.vram_bytes = a.budget_for(gguf);
  double const start_s = example::now_s();
  tiered::Engine<Policies> engine(model, options, {.host_memory = std::move(memory)});
  double const load_s = example::now_s() - start_s;
  example::Outcome o = example::run(engine, words, a.prompt, along);
  std::printf("%-13s load %.3f s, first token after %.3f s, then %.1f tokens/s", title, load_s, o.first_token_s, o.best_per_s());
  if (!a.simulated) std::printf("; %s copied to the GPU for each token", tiered::format_bytes(std::uint64_t(o.copied_per_token)).c_str());
  std::printf("; %ld MiB of this process in huge pages\n", huge_kib() / 1024);
  return o;
}

template <class Device>
int compare(example::Arguments const& a) {
  tiered::GgufFile const gguf = tiered::GgufFile::open(a.model);
  example::Words const words(gguf);
  example::Outcome const in_file = run<Device>("file mapping", gguf, a, words, {});
  example::Outcome const copied = run<HugePagePolicies<Device>>("huge pages", gguf, a, words,
                                                                tiered::CopiedTo<HugePageTier>(HugePageTier(gguf.total_bytes())), &in_file);
  std::printf("huge pages    %+.1f %% tokens/s against the file mapping, on %s\n\n%s%s\n\n",
              100 * (copied.best_per_s() / in_file.best_per_s() - 1), a.simulated ? "the CPU" : "the GPU",
              words.are_drawn() ? "" : a.prompt.c_str(), in_file.text.c_str());
  return copied.same_text->tell(words, a.simulated);
}

int main(int argc, char** argv) try {
  auto const arguments = example::parse(argc, argv, "own_tier", false);
  if (!arguments) return 2;
#if TIERED_HAS_CUDA
  if (!arguments->simulated) return compare<tiered::CudaPolicies>(*arguments);
#endif
  if (arguments->budget) return std::fprintf(stderr, "own_tier: --vram is a budget of a GPU, and the CPU alone is used here\n"), 2;
  return compare<tiered::CpuPolicies>(*arguments);
} catch (tiered::Error const& e) {
  return std::fprintf(stderr, "own_tier: %s: %s\n", name(e.code()), e.what()), 1;
}
