/// The CPU as a device that computes.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/system.hpp"
#include "tiered/core/text.hpp"
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
  /// Each thread of the team on a core of its own, the best first (lanes' threads, which call, go where the system puts them). Not
  /// the default: where other programs run, a pinned thread waits for its core while others are idle, and all loops wait for it.
  bool pin = false;
  std::shared_ptr<Team> team = nullptr;  ///< to compute with, shared with other backends, in place of n_threads and pin
  bool f32_activations = false;          ///< see cpu_kernels()
  std::size_t memory_bytes = PageableTier::unlimited;
  std::string lane_name = "cpu";
};

/// A lane of `lanes` whose thread and the team's others run the kernels. Movable; tables and queues stay where they are.
class CpuBackend {
 public:
  using Memory = PageableTier;

  /// Errors  unsupported for an instruction set that is not available; precondition for thread counts that are impossible, or
  ///         more than the CPUs to pin them to; device where the system refuses a thread.
  explicit CpuBackend(std::shared_ptr<LaneSet> lanes, CpuOptions const& options = {})
      : kernels_(&cpu_kernels(options.isa ? *options.isa : best_isa(), options.f32_activations)),
        state_(std::make_unique<State>(std::move(lanes), options)) {}
  CpuBackend(CpuBackend&&) = default;
  CpuBackend& operator=(CpuBackend&&) = default;

  KernelTable const& kernels() const { return *kernels_; }
  Queue queue() const { return {&state_->queue}; }
  /// Runs kernels at once, on the calling thread and the team's others, beside the lane: loops of both take turns. What a kernel throws
  /// comes from the launch.
  Queue queue_now() const { return {&state_->queue_now}; }
  Memory& memory() { return state_->memory; }
  void wait_for(Ticket ticket) { state_->lanes->wait_for(state_->queue.lane, ticket); }
  Ticket record() { return state_->lanes->record(state_->queue.lane); }
  void synchronize() { state_->lanes->synchronize(state_->queue.lane); }
  /// Waits for everything on all lanes of the set, and forgets errors.
  void recover() { state_->lanes->clear_errors(); }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) { return state_->lanes->times(begin, end); }

  int n_threads() const { return state_->team->size(); }
  Team& team() { return *state_->team; }
  LaneSet::Lane lane() const { return state_->queue.lane; }

  /// Called before every launch from now on, see CpuQueue; null for none.
  void before_launch(int (*call)(void* hook), void* hook) {
    state_->queue.before_launch = call;
    state_->queue.hook = hook;
    state_->queue_now.before_launch = call;
    state_->queue_now.hook = hook;
  }

 private:
  struct State {
    State(std::shared_ptr<LaneSet> lane_set, CpuOptions const& options) : lanes(std::move(lane_set)), memory(options.memory_bytes) {
      team = make_team(options);
      queue.lanes = lanes.get();
      queue.lane = lanes->open(options.lane_name);
      queue.team = queue_now.team = team.get();
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

    static std::shared_ptr<Team> make_team(CpuOptions const& o) {
      expects(o.n_threads >= 0, "CpuOptions: thread counts are not negative");
      if (o.team != nullptr) {
        expects(o.n_threads == 0 && !o.pin, "CpuOptions: a shared team has its threads already");
        return o.team;
      }
      int const n = o.n_threads == 0 ? default_thread_count() : o.n_threads;
      std::vector<int> cpus;
      if (o.pin) {
        cpus = cpus_to_pin(allowed_cpus());
        if (cpus.size() < std::size_t(n))
          throw Error(Errc::precondition, concat(n, " threads cannot be pinned to the ", cpus.size(), " CPUs that this process may use"));
      }
      return std::make_shared<Team>(n, cpus);
    }

    std::shared_ptr<LaneSet> lanes;
    std::shared_ptr<Team> team;
    PageableTier memory;
    CpuQueue queue, queue_now;
  };
  KernelTable const* kernels_;
  std::unique_ptr<State> state_;
};
static_assert(Backend<CpuBackend>);

}  // namespace tiered
