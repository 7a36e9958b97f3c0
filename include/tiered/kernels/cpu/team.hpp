/// A team of threads that work through the parts of one loop at a time. Link tiered::cpu, or include tiered/cpu.hpp in one
/// source file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "tiered/core/function_ref.hpp"

namespace tiered {

/// The caller of parallel_for() is member 0; the others are threads of the team. Parts of a loop are handed out in ascending
/// order to whoever is free, and the caller waits only for members that took a part. So a member that the system does not let
/// run (more threads than cores, several teams) delays nobody, and nothing here can deadlock.
///
/// Members that have nothing to do watch for the next loop for a bounded time, as the ops of a token follow each other within
/// microseconds, and then sleep.
class Team {
 public:
  using Body = FunctionRef<void(std::int64_t begin, std::int64_t end)>;
  static constexpr int max_threads = 4096;

  /// Throws Error{precondition} for a size outside 1..max_threads, and Error{device} where the system refuses a thread.
  explicit Team(int n_threads);
  Team(Team const&) = delete;
  Team& operator=(Team const&) = delete;
  ~Team();

  int size() const { return n_threads_; }

  /// Calls body(begin, end) for ranges that together are [0, n), each of `grain` elements but for the last, from all members at
  /// once; returns when all are done. What a body throws first is thrown here, and ranges not begun by then are left out.
  /// Not from within a body. Callers on several threads take turns.
  void parallel_for(std::int64_t n, std::int64_t grain, Body body) {
    if (n <= 0) return;
    grain = std::max<std::int64_t>(grain, 1);
    if (n_threads_ > 1 && n > grain) return run_on_all(n, grain, body);
    for (std::int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain));
  }

  /// A grain that gives every member a few ranges, of at least `smallest` elements.
  std::int64_t grain(std::int64_t n, std::int64_t smallest = 1) const {
    std::int64_t const parts = n_threads_ == 1 ? 1 : std::int64_t{n_threads_} * 4;
    return std::max(smallest, (n + parts - 1) / parts);
  }

 private:
  struct Threads;
  void run_on_all(std::int64_t n, std::int64_t grain, Body body);

  int n_threads_;
  std::unique_ptr<Threads> threads_;
};

}  // namespace tiered
