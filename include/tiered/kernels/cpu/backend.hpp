/// The CPU as a device that computes.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cpu/queue.hpp"
#include "tiered/kernels/cpu/table.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/kernels/cpu/topology.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/memory/pageable.hpp"

namespace tiered {

struct CpuOptions {
  std::optional<Isa> isa = std::nullopt;  ///< nothing: best_isa()
  int n_threads = 0;                      ///< 0: default_thread_count()
  bool f32_activations = false;           ///< see cpu_kernels()
  std::size_t memory_bytes = PageableTier::unlimited;
  std::string lane_name = "cpu";
};

/// A lane of `lanes` whose thread and the team's others run the kernels. Movable; tables and queues stay where they are.
class CpuBackend {
 public:
  using Memory = PageableTier;

  /// Throws Errc::unsupported for an instruction set that is not available, Errc::precondition for an impossible thread count.
  explicit CpuBackend(std::shared_ptr<LaneSet> lanes, CpuOptions const& options = {})
      : kernels_(&cpu_kernels(options.isa ? *options.isa : best_isa(), options.f32_activations)),
        state_(std::make_unique<State>(std::move(lanes), options)) {}
  CpuBackend(CpuBackend&&) = default;
  CpuBackend& operator=(CpuBackend&&) = default;

  KernelTable const& kernels() const { return *kernels_; }
  Queue queue() const { return {&state_->queue}; }
  Memory& memory() { return state_->memory; }
  void wait_for(Ticket ticket) { state_->lanes->wait_for(state_->queue.lane, ticket); }
  Ticket record() { return state_->lanes->record(state_->queue.lane); }
  void synchronize() { state_->lanes->synchronize(state_->queue.lane); }
  /// Waits for everything on all lanes of the set, and forgets errors.
  void recover() { state_->lanes->clear_errors(); }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) { return state_->lanes->times(begin, end); }

  int n_threads() const { return state_->team.size(); }
  Team& team() { return state_->team; }
  LaneSet::Lane lane() const { return state_->queue.lane; }

  /// Called before every launch from now on, see CpuQueue; null for none.
  void before_launch(int (*call)(void* hook), void* hook) {
    state_->queue.before_launch = call;
    state_->queue.hook = hook;
  }

 private:
  struct State {
    State(std::shared_ptr<LaneSet> lane_set, CpuOptions const& options)
        : lanes(std::move(lane_set)),
          team(options.n_threads == 0 ? default_thread_count() : options.n_threads),
          memory(options.memory_bytes) {
      queue.lanes = lanes.get();
      queue.lane = lanes->open(options.lane_name);
      queue.team = &team;
    }
    /// Enqueued work refers to the team and may refer to the memory: it is done before they go.
    ~State() {
      try {
        lanes->synchronize(queue.lane);
      } catch (...) {  // of a kernel, for whoever called synchronize(); there is nobody any more
      }
    }
    State(State const&) = delete;
    State& operator=(State const&) = delete;

    std::shared_ptr<LaneSet> lanes;
    Team team;
    PageableTier memory;
    CpuQueue queue;
  };
  KernelTable const* kernels_;
  std::unique_ptr<State> state_;
};
static_assert(Backend<CpuBackend>);

}  // namespace tiered
