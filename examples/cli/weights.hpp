/// Where the weights are while tiered-run works: in the file mapping, in memory of its own, locked or not; and getting them there.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>

#include "terminal.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/host_weights.hpp"
#include "tiered/io/page_in.hpp"
#include "tiered/io/read_into.hpp"
#include "tiered/memory/pageable.hpp"

namespace app {

/// All weights, as they lie in memory.
using WeightSpans = std::vector<std::span<std::byte const>>;

/// Errors  Errc::over_budget with what is wanted and what the system allows.
inline void lock_in_memory(std::span<std::byte const> bytes, std::uint64_t total_bytes) {
  if (bytes.empty() || ::mlock(bytes.data(), bytes.size()) == 0) return;
  int const reason = errno;
  rlimit limit{};
  ::getrlimit(RLIMIT_MEMLOCK, &limit);
  std::string const allowed = limit.rlim_cur == RLIM_INFINITY ? "any number of bytes" : tiered::concat(limit.rlim_cur, " bytes");
  throw tiered::Error(tiered::Errc::over_budget,
                      tiered::concat("--mlock: the weights have ", total_bytes, " bytes, and this process may lock ", allowed,
                                     " (ulimit -l): ", std::strerror(reason)));
}

/// How reading is shown and stopped. `progress` must outlive the reading.
inline tiered::ReadOptions read_options(Progress& progress) {
  tiered::ReadOptions options;
  options.context = &progress;
  options.progress = [](void* p, std::uint64_t done, std::uint64_t total) { static_cast<Progress*>(p)->show(done, total); };
  options.cancelled = [](void*) { return Interrupt::requested(); };
  return options;
}

/// The HostMemory of all engines here: the file mapping, or with --no-mmap a copy that is read past it.
class ChosenMemory {
 public:
  ChosenMemory() = default;
  ChosenMemory(tiered::GgufFile const& gguf, bool mmap, bool lock, Progress& progress, std::shared_ptr<WeightSpans> brought)
      : locked_bytes_(lock && !mmap ? gguf.total_bytes() : 0), brought_(std::move(brought)) {
    if (!mmap) copy_.emplace(gguf, tiered::PageableTier(), read_options(progress));
  }
  std::span<std::byte const> bring(std::span<std::byte const> mapped) {
    std::span<std::byte const> const bytes = copy_ ? copy_->bring(mapped) : mapped;
    if (locked_bytes_ > 0) lock_in_memory(bytes, locked_bytes_);
    if (brought_) brought_->push_back(bytes);
    return bytes;
  }
  tiered::Tier tier() const { return tiered::Tier::pageable; }

 private:
  std::optional<tiered::ReadInto<tiered::PageableTier>> copy_;
  std::uint64_t locked_bytes_ = 0;  ///< of the whole model; 0: the system may page
  std::shared_ptr<WeightSpans> brought_;
};
static_assert(tiered::HostWeights<ChosenMemory>);

/// Reads the mapped weights into the page cache, where there is room for them: else the first prompt would, without a word.
/// Errors  Errc::cancelled by a signal; io for a file that was cut; over_budget for what may not be locked.
inline void page_in(tiered::GgufFile const& gguf, bool lock, Progress& progress) {
  bool const fits = tiered::page_in(gguf, read_options(progress));
  progress.clear();
  if (!fits) {
    std::fputs(
        tiered::concat("tiered-run: warning: ", tiered::format_bytes(gguf.total_bytes()),
                       " of weights are more than the memory that is available: parts of them are read from the disk for each token\n")
            .c_str(),
        stderr);
  }
  for (int part = 0; lock && part < gguf.n_parts(); ++part) lock_in_memory(gguf.mapping(part)->bytes(), gguf.total_bytes());
}

}  // namespace app
