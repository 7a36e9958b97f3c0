/// A simulated device: memory of its own that is really capped, a queue of its own, the CPU's kernels.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cpu/queue.hpp"
#include "tiered/kernels/cpu/table.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/sim/faults.hpp"
#include "tiered/sim/sim_clock.hpp"
#include "tiered/sim/sim_tier.hpp"

namespace tiered {

struct SimOptions {
  std::size_t vram_bytes = 0;
  int n_threads = 1;
  std::optional<Isa> isa = std::nullopt;      ///< nothing: best_isa()
  bool f32_activations = false;               ///< see cpu_kernels()
  std::shared_ptr<Faults> faults = nullptr;   ///< FaultKind::allocation of its memory, FaultKind::launch of its kernels
  std::shared_ptr<SimClock> clock = nullptr;  ///< where launches take virtual time; null: nowhere
  double seconds_per_launch = 0;
  std::shared_ptr<Team> team = nullptr;  ///< to compute with, shared with other backends, in place of n_threads
};

/// Computes with the CPU's kernels, so that its results are those of the CPU bit for bit, on bytes that must be copied to it
/// first. Launches go to a lane of their own, behind the caller. Movable; the memory, the table and the queue stay where they are.
class SimBackend {
 public:
  using Memory = SimTier;

  /// Throws what Team and cpu_kernels() throw.
  SimBackend(std::shared_ptr<LaneSet> lanes, SimOptions options)
      : kernels_(&cpu_kernels(options.isa ? *options.isa : best_isa(), options.f32_activations)),
        state_(std::make_unique<State>(std::move(lanes), std::move(options))) {}
  SimBackend(SimBackend&&) = default;
  SimBackend& operator=(SimBackend&&) = default;

  KernelTable const& kernels() const { return *kernels_; }
  Queue queue() const { return {&state_->queue}; }
  Memory& memory() { return state_->memory; }
  Memory const& memory() const { return state_->memory; }
  void wait_for(Ticket ticket) {
    state_->lanes->wait_for(lane(), ticket);
    if (state_->options.clock) state_->options.clock->wait_for(lane(), ticket);
  }
  Ticket record() {
    Ticket const ticket = state_->lanes->record(lane());
    if (state_->options.clock) state_->options.clock->stamp(ticket);
    return ticket;
  }
  void synchronize() { state_->lanes->synchronize(lane()); }
  /// Waits for everything on all lanes of the set, and forgets errors.
  void recover() { state_->lanes->clear_errors(); }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) { return state_->lanes->times(begin, end); }

  LaneSet::Lane lane() const { return state_->queue.lane; }
  int n_threads() const { return state_->team->size(); }

  /// The status of a launch that was made to fail.
  static constexpr int fault_status = 999;

 private:
  struct State {
    State(std::shared_ptr<LaneSet> lane_set, SimOptions given)
        : lanes(std::move(lane_set)),
          options(std::move(given)),
          team(options.team ? options.team : std::make_shared<Team>(options.n_threads)),
          memory(options.vram_bytes, options.faults) {
      queue.lanes = lanes.get();
      queue.lane = lanes->open("device");
      queue.team = team.get();
      queue.before_launch = [](void* state) { return static_cast<State*>(state)->before_launch(); };
      queue.hook = this;
    }
    /// Enqueued work refers to the team and the memory: it is done before they go.
    ~State() { lanes->drain(queue.lane); }
    State(State const&) = delete;
    State& operator=(State const&) = delete;

    int before_launch() {
      if (options.clock) options.clock->charge(queue.lane, options.seconds_per_launch);
      return options.faults && options.faults->strikes(FaultKind::launch) ? fault_status : 0;
    }

    std::shared_ptr<LaneSet> lanes;
    SimOptions options;
    std::shared_ptr<Team> team;
    SimTier memory;
    CpuQueue queue;
  };

  KernelTable const* kernels_;
  std::unique_ptr<State> state_;
};
static_assert(Backend<SimBackend>);

}  // namespace tiered
