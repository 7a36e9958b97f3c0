/// A team of threads that work through the parts of one loop at a time. Link tiered::cpu, or include tiered/cpu.hpp in one
/// source file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tiered/core/function_ref.hpp"

namespace tiered {

/// What a team has done since it was made, and how many members sleep now: a team that is not used must cost nothing.
struct TeamActivity {
  std::uint64_t n_loops = 0;   ///< that were given to members; those that stayed on the caller do not count
  std::uint64_t n_sleeps = 0;  ///< how often a member went to sleep
  int n_asleep = 0;
};

/// The caller of parallel_for() is member 0; the others are threads of the team. Each member begins with a contiguous share of the
/// loop, in ascending order, so that all of them read different pages of memory from front to back; who is done takes half of
/// what another has left. The caller waits only for members that are at work. So a member that the system does not let run
/// (more threads than cores, several teams) delays nobody, and nothing here can deadlock.
///
/// Members that have nothing to do watch for the next loop for a bounded time (2 ms at most; 20 us where there are more
/// threads than cores, or a quota that they would eat up) and then sleep. So a team that is not used costs nothing, and
/// several engines of one process may have a team each, or share one by CpuOptions::team: their loops then take turns.
class Team {
 public:
  using Body = FunctionRef<void(std::int64_t begin, std::int64_t end)>;
  static constexpr int max_threads = 4096;

  /// With `cpus`, member i runs on cpus[i] only, i from 1 on: the caller's thread is left alone, and cpus[0] to it. See
  /// cpus_to_pin(). Worth it on a machine of one's own: where other programs run too, a pinned member waits for its core while
  /// others are idle.
  /// Errors  precondition for a size outside 1..max_threads, or fewer cpus than threads; device where the system refuses a
  ///         thread or a place for it.
  explicit Team(int n_threads, std::vector<int> const& cpus = {});
  Team(Team const&) = delete;
  Team& operator=(Team const&) = delete;
  ~Team();

  int size() const { return n_threads_; }

  /// Calls body(begin, end) for ranges that together are [0, n), each of `grain` elements but for the last, from all members at
  /// once; returns when all are done. What a body throws first is thrown here, and ranges not begun by then are left out.
  /// A loop of one range stays on the caller, one of fewer ranges than members on so many members.
  /// Not from within a body. Callers on several threads take turns.
  void parallel_for(std::int64_t n, std::int64_t grain, Body body) {
    if (n <= 0) return;
    grain = std::max<std::int64_t>(grain, 1);
    if (n_threads_ > 1 && n > grain) return run_on_all(n, grain, body);
    for (std::int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain));
  }

  /// Brings memory into the caches of all members but the caller while the caller goes on: what a loop to come will probably read, a
  /// member's share of each part into its own. Ends with the next loop that is given to members, or when all is there; another call takes
  /// its place. A hint: with one thread, or more threads than cores, nothing is read. The memory must be there until it ends; of no parts,
  /// another call ends it and begins nothing. `parts` are copied, at most max_read_parts of them.
  static constexpr std::size_t max_read_parts = 24;
  void read_ahead(std::span<std::span<std::byte const> const> parts);

  /// From now on members that have nothing to do, within a loop's end and between loops, read these parts, a member's share of each into
  /// its own caches: what loops to come will read. At most 1 MiB each; another list takes the place of what is left. Of no parts: nobody
  /// reads any more when this returns; else the memory must be there. A hint, with the exceptions of read_ahead(). At most max_read_parts.
  void read_when_idle(std::span<std::span<std::byte const> const> parts);

  /// A grain that gives every member a few ranges, of at least `smallest` elements.
  std::int64_t grain(std::int64_t n, std::int64_t smallest = 1) const {
    std::int64_t const parts = n_threads_ == 1 ? 1 : std::int64_t{n_threads_} * 4;
    return std::max(smallest, (n + parts - 1) / parts);
  }

  /// Any thread, any time.
  TeamActivity activity() const;

 private:
  struct Threads;
  void run_on_all(std::int64_t n, std::int64_t grain, Body body);

  int n_threads_;
  std::unique_ptr<Threads> threads_;
};

}  // namespace tiered
