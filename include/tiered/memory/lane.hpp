/// Ordered lanes of asynchronous work, on host threads or of a device, and tickets that tie them together. Link tiered::cpu, or
/// include tiered/cpu.hpp in one source file.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "tiered/core/function_ref.hpp"
#include "tiered/memory/copy.hpp"

namespace tiered {

/// A small trivially copyable callable, stored by value.
class LaneTask {
 public:
  static constexpr std::size_t capacity_bytes = 240;
  LaneTask() = default;
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, LaneTask>) explicit LaneTask(F const& callable) { hold(callable); }
  template <class F>
  void hold(F const& callable) {
    static_assert(std::is_trivially_copyable_v<F>, "a lane task holds values and borrowed pointers only");
    static_assert(sizeof(F) <= capacity_bytes && alignof(F) <= alignof(std::max_align_t));
    new (payload_) F(callable);
    run_ = [](void* payload) { (*std::launder(static_cast<F*>(payload)))(); };
  }
  void operator()() { run_(payload_); }

 private:
  void (*run_)(void*) = nullptr;
  alignas(std::max_align_t) std::byte payload_[capacity_bytes];
};

/// How far a lane has come: a ticket is done once `done` has reached its value. Those of one set fill a page of memory, so that a
/// device to which the page is made known reads the counters of the host's lanes and writes those of its own.
struct alignas(64) LaneCounter {
  std::atomic<std::uint64_t> done{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(std::atomic<std::uint64_t>) == 8);

/// What a LaneSet asks of a lane that it does not run itself: a stream of a device.
/// | call                               | meaning, errors, threads                                                                 |
/// |------------------------------------|------------------------------------------------------------------------------------------|
/// | `f.record()`                       | value that the lane's counter gets once all enqueued so far is done; does not wait       |
/// | `f.wait_for(counter, v, other)`    | later work starts after counter.done >= v; does not wait. `other`: whose; null: a host's |
/// | `f.submit(task, v)`                | runs a host task in its turn; what it throws goes to LaneSet::fail(lane, v, error)       |
/// | `f.poll()`                         | throws the Error of a device that failed, whose counter stands still; threads that wait  |
/// | `keep_times()`, `times(b, e)`, ... | as LaneSet's, between two values; any thread                                             |
/// Values begin at 1 and go up by 1. record() gives the last one again where nothing was enqueued since, if it can tell, and never
/// after wait_for() and submit(). But for poll() and times, one thread at a time: the one that enqueues. Threads of lanes never call it:
/// where its driver is held by whoever waits for them, they go on.
class ForeignLane {
 public:
  virtual ~ForeignLane() = default;
  virtual std::uint64_t record() = 0;
  virtual void wait_for(LaneCounter const& counter, std::uint64_t value, ForeignLane* other) = 0;
  virtual void submit(LaneTask const& task, std::uint64_t value) = 0;
  virtual void poll() = 0;
  virtual void keep_times() {}
  virtual std::optional<std::pair<double, double>> times(std::uint64_t, std::uint64_t) { return std::nullopt; }
  virtual void forget_times() {}
};

/// The lanes of one engine. A lane runs its tasks in order; a task may be held back until a ticket of any lane is done.
///
/// Two ways to run: `threads()`, a thread for each lane; `seeded(seed)`, no thread at all: whoever waits (or asks done()) runs
/// one task after another, drawn by the seed from all lanes that could go on. The second replays, so that a schedule whose
/// result depends on luck is found and found again.
///
/// A task that throws fails its lane: later tasks are skipped, their tickets count as done, and whoever waits for the failed
/// task or a later one gets its error, until clear_errors(). A lane that waited for such a ticket fails with the same error,
/// since its own work would be on bytes that never came. A ticket of before the failure is not touched by it.
///
/// A foreign lane cannot skip what was enqueued: after a ticket that failed it works on, on bytes that never came, and whoever waits
/// for its later tickets gets the error.
///
/// Any thread may submit, record and wait, but for foreign lanes, which one thread feeds; a task may submit, but not wait. A ticket
/// can only be had once its work is submitted, so lanes never wait for each other in a circle.
class LaneSet {
 public:
  using Lane = std::uint32_t;
  static constexpr std::size_t max_lanes = 64;

  static std::shared_ptr<LaneSet> threads();
  static std::shared_ptr<LaneSet> seeded(std::uint64_t seed);
  LaneSet(LaneSet const&) = delete;
  LaneSet& operator=(LaneSet const&) = delete;
  /// Finishes what was submitted, then ends the threads. Nobody may be waiting.
  virtual ~LaneSet() = default;

  /// A new lane; numbers begin at 1, so that Ticket{} belongs to none and is always done. Lanes live as long as their set.
  virtual Lane open(std::string lane_name) = 0;
  /// A lane that `foreign` runs, which must live until close_foreign() and count in counters()[lane - 1].
  virtual Lane open_foreign(std::string lane_name, ForeignLane& foreign) = 0;
  /// Its tickets count as done from now on, errors that were seen are kept; the number is not used again. Its work must be done.
  virtual void close_foreign(Lane lane) noexcept = 0;
  /// [max_lanes], that of a lane at lane - 1. Foreign lanes count there, others are only read.
  virtual LaneCounter* counters() = 0;
  /// Calls make(page, bytes) the first time, to make the counters known to a device, and keeps what it returns as long as the page.
  virtual void share_counters(FunctionRef<std::shared_ptr<void>(void*, std::size_t)> make) = 0;
  /// For foreign lanes: whoever waits for `value` or a later one gets the error.
  virtual void fail(Lane lane, std::uint64_t value, std::exception_ptr error) noexcept = 0;

  template <class F>
  void submit(Lane lane, F const& task) {
    push(lane, LaneTask(task));
  }
  /// Later tasks of `lane` start after `ticket`.
  virtual void wait_for(Lane lane, Ticket ticket) = 0;
  /// Done when everything submitted to `lane` so far is.
  virtual Ticket record(Lane lane) const = 0;
  virtual bool done(Ticket ticket) = 0;
  /// Blocks until `ticket` is done; throws the error of its lane where that failed no later than the ticket.
  virtual void wait(Ticket ticket) = 0;
  void synchronize(Lane lane) { wait(record(lane)); }
  /// Waits as synchronize() does, and leaves errors where they are: for destructors.
  virtual void drain(Lane lane) noexcept = 0;
  /// Waits until everything submitted is done, then forgets the errors of all lanes but those of a device that is lost.
  virtual void clear_errors() = 0;

  /// From now on, remembers when tasks ran: for traces.
  virtual void keep_times() = 0;
  /// Begin of the first and end of the last task between two tickets of one lane, in seconds since the set was made; nothing
  /// where no task ran there, or times were not kept.
  virtual std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) = 0;
  /// Once they are read: a long run would keep all of them.
  virtual void forget_times() = 0;
  /// The clock of times().
  virtual double seconds() const = 0;

  virtual std::size_t size() const = 0;
  virtual std::string name(Lane lane) const = 0;

 protected:
  LaneSet() = default;
  virtual void push(Lane lane, LaneTask const& task) = 0;
};

}  // namespace tiered
