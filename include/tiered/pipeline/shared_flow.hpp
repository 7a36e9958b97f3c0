/// Layers whose experts come in windows, but for those that the host computes meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/pipeline/expert_flow.hpp"
#include "tiered/pipeline/routed_rows.hpp"

namespace tiered {

/// Layers of prompts that the host took a part of.
struct SharedFlowCounters {
  std::uint64_t n_layers = 0;
  std::uint64_t n_host_experts = 0, n_experts = 0;  ///< that some row was routed to
  std::uint64_t n_host_rows = 0, n_rows = 0;        ///< each as often as it was routed

  /// What came after `before`.
  SharedFlowCounters operator-(SharedFlowCounters const& before) const {
    return {n_layers - before.n_layers, n_host_experts - before.n_host_experts, n_experts - before.n_experts,
            n_host_rows - before.n_host_rows, n_rows - before.n_rows};
  }
  bool operator==(SharedFlowCounters const&) const = default;
};

/// Rows are on the device. Per layer: device: publishes ids | host: waits for them, and leaves some experts to itself (ExpertFlow::arrange)
/// | link: the others; device: their windows, in order of ranks; host: its own, and their sum for each row | device: adds that sum. So a
/// row's bits depend on who computes what, which depends on rows, plan and cache, not on time.
/// Rows, ids and the sum pass by rows_copy or by a kernel of the device, not behind weights. The sum lies in the host's hidden rows, which
/// are the device's at that time, and comes to where outputs of slots would be: no memory is for this alone.
class SharedFlow {
 public:
  explicit SharedFlow(ExpertsEnvironment const& env) : env_(&env) {}

  /// After flow.begin(), where the layer is shared. Waits for ids, enqueues the rest; done when the result is.
  /// Errors  of lanes and launches; Errc::device for an id that is no expert.
  Ticket run(RoutedRows const& rows, ShardId first_expert, ExpertFlow& flow);

  SharedFlowCounters const& counters() const { return counters_; }
  void take_over(SharedFlow const& other) { counters_ = other.counters_; }

 private:
  std::int32_t n_used() const { return rows_->config->experts.n_experts_used; }
  std::int32_t n_experts() const { return rows_->config->experts.n_experts; }
  std::size_t x_bytes() const { return std::size_t(rows_->n_rows) * std::size_t(env_->config->dim) * sizeof(float); }
  template <class T>
  T* at(bool on_device, std::size_t offset) const {
    return reinterpret_cast<T*>((on_device ? env_->device_base : env_->host_base) + offset);
  }
  SharedRoom room() const { return shared_room(*env_->layout, rows_->n_rows, env_->config->dim, rows_->config->hidden_dim); }
  ExpertGroup* table(bool on_device) const {
    return at<ExpertGroup>(on_device, env_->layout->expert_tables) + std::size_t(rows_->layer) * std::size_t(env_->layout->n_experts);
  }

  void bring_rows();
  void wait_for_ids(Ticket ids_there) const;
  void count_rows();
  ExpertWindowArgs args_on(bool on_device) const;
  bool run_on_host(ExpertFlow const& flow, Range ranks);
  void add_host_sum();

  ExpertsEnvironment const* env_;
  RoutedRows const* rows_ = nullptr;
  ShardId first_expert_{};
  std::vector<std::int32_t> n_rows_of_;  // by expert
  Ticket rows_there_, host_done_;
  SharedFlowCounters counters_;
};

}  // namespace tiered
