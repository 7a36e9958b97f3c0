/// Ordered lanes of asynchronous work on host threads, and tickets that tie them together. Link tiered::cpu, or include
/// tiered/cpu.hpp in one source file.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "tiered/memory/copy.hpp"

namespace tiered {

/// A small trivially copyable callable, stored by value.
class LaneTask {
 public:
  static constexpr std::size_t capacity_bytes = 240;
  LaneTask() = default;
  template <class F>
    requires(!std::same_as<std::remove_cvref_t<F>, LaneTask>)
  explicit LaneTask(F const& callable) {
    hold(callable);
  }
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
/// Any thread may submit, record and wait; a task may submit, but not wait. A ticket can only be had once its work is
/// submitted, so lanes never wait for each other in a circle.
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
  /// Waits until everything submitted is done, then forgets the errors of all lanes.
  virtual void clear_errors() = 0;

  /// From now on, remembers when tasks ran: for traces.
  virtual void keep_times() = 0;
  /// Begin of the first and end of the last task between two tickets of one lane, in seconds since the set was made; nothing
  /// where no task ran there, or times were not kept.
  virtual std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) = 0;
  /// Once they are read: a long run would keep all of them.
  virtual void forget_times() = 0;

  virtual std::size_t size() const = 0;
  virtual std::string name(Lane lane) const = 0;

 protected:
  LaneSet() = default;
  virtual void push(Lane lane, LaneTask const& task) = 0;
};

}  // namespace tiered
