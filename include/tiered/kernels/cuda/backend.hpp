/// A CUDA device as a device that computes. Link tiered::cuda_kernels and cuBLASLt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cuda/gemm_plans.hpp"
#include "tiered/kernels/cuda/queue.hpp"
#include "tiered/kernels/cuda/status.hpp"
#include "tiered/kernels/cuda/table.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/ledger.hpp"
#include "tiered/memory/cuda/stream_lane.hpp"
#include "tiered/memory/cuda/vram.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {

struct CudaBackendOptions {
  std::string lane_name = "cuda";
  std::size_t workspace_bytes =
      cuda_workspace_bytes + cuda_counter_bytes;  ///< VRAM for what kernels overwrite and count in: so much at least
  std::size_t cublas_workspace_bytes = 32 * MiB;  ///< what NVIDIA recommends from sm_90 on
};

/// Device-only work that was captured, ready to be launched as a whole. Movable; goes before its backend.
class CudaGraph {
 public:
  CudaGraph() = default;
  explicit operator bool() const { return exec_ != nullptr; }
  std::size_t n_nodes() const { return n_nodes_; }

 private:
  friend class CudaBackend;
  detail::Owned<cudaGraphExec_t> exec_;
  std::size_t n_nodes_ = 0;
};

/// A stream of its own, and memory of which it takes its workspaces first. Movable; tables, queue and memory stay where they are.
/// One thread enqueues, bound to the device (CudaDevice::use). A launch that is refused comes as Errc::device from launch(); what fails
/// on the device, from whoever waits. A kernel that was neither launched before nor loaded (load_kernel) is loaded by its first launch,
/// which takes memory of the device and may wait for all of its work: see StreamLane for what must not depend on the thread then.
class CudaBackend {
 public:
  using Memory = VramTier;

  /// Errors  Errc::out_of_memory where the workspaces do not fit; Errc::unsupported, Errc::device as StreamLane; Errc::device of cuBLAS.
  CudaBackend(std::shared_ptr<LaneSet> lanes, CudaDevice const& device, VramTier memory, CudaBackendOptions const& options = {})
      : state_(std::make_unique<State>(std::move(lanes), device, std::move(memory), options)) {}
  CudaBackend(CudaBackend&&) = default;
  CudaBackend& operator=(CudaBackend&&) = default;

  KernelTable const& kernels() const { return state_->kernels; }
  Queue queue() const { return {&state_->queue, &kernel_status_text}; }
  Memory& memory() { return state_->memory; }
  Memory const& memory() const { return state_->memory; }
  void wait_for(Ticket ticket) { state_->stream.wait_for(ticket); }
  Ticket record() { return state_->stream.ticket(); }
  void synchronize() { state_->stream.synchronize(); }
  /// Of a ticket of any lane; now and then asks the device whether it is still alive, and throws its Error where it is not.
  bool done(Ticket ticket) {
    if (state_->stream.lanes().done(ticket)) return true;
    if (++state_->n_asked % 65536 == 0) state_->stream.poll();
    return false;
  }
  /// Waits for everything on all lanes of the set, and forgets errors; a device that is lost stays so.
  void recover() {
    state_->stream.abandon_capture();
    state_->stream.lanes().clear_errors();
  }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) { return state_->stream.lanes().times(begin, end); }

  /// Whether everything is loaded: products take kernels of cuBLAS that are loaded then, see GemmPlans::settle().
  void settle(bool settled) { state_->gemm.settle(settled); }
  /// Since then, shapes of products for which nothing was.
  std::size_t n_late_products() const { return state_->gemm.n_late(); }

  LaneSet::Lane lane() const { return state_->stream.lane(); }
  StreamLane& stream() { return state_->stream; }
  /// Of memory(), for the workspaces.
  std::size_t own_bytes() const { return state_->workspace.bytes() + state_->cublas_workspace.bytes(); }

  /// From here to end_capture(), launches go into a graph and do not run. Nobody records, waits or allocates meanwhile; queue() may be used
  /// by this thread only. record() throws Errc::precondition, wait_for() where there is something to wait for.
  void begin_capture() { state_->stream.begin_capture(); }
  /// The graph, instantiated and uploaded, so that its first launch costs what others do. That takes memory of the device: when
  /// loading. Errc::device where a launch failed in between, or did what graphs cannot hold.
  CudaGraph end_capture() {
    CudaGraph graph;
    end_capture(graph);
    return graph;
  }
  /// Puts what was captured in place of what `graph` held, whose launches so far are not touched. True where it had the same kernels in
  /// the same order, and was updated: tens of microseconds for hundreds of kernels, and no memory.
  bool end_capture(CudaGraph& graph) {
    detail::Owned<cudaGraph_t> const captured = state_->stream.end_capture();
    std::size_t n_nodes = 0;
    cuda_check(cudaGraphGetNodes(captured.get(), nullptr, &n_nodes), "cudaGraphGetNodes");
    if (graph.exec_ != nullptr) {
      cudaGraphExecUpdateResultInfo info{};
      if (cudaGraphExecUpdate(graph.exec_.get(), captured.get(), &info) == cudaSuccess) return true;  // of as many nodes
      static_cast<void>(cudaGetLastError());
    }
    cudaGraphExec_t exec = nullptr;
    cuda_check(cudaGraphInstantiate(&exec, captured.get(), 0), "cudaGraphInstantiate", concat(n_nodes, " nodes"));
    graph.exec_.reset(exec);
    graph.n_nodes_ = n_nodes;
    cuda_check(cudaGraphUpload(exec, state_->stream.stream()), "cudaGraphUpload", concat(n_nodes, " nodes"));
    return false;
  }
  /// After an error between begin_capture() and end_capture(): work is enqueued again as before. Nothing where no capture is on.
  void abandon_capture() noexcept { state_->stream.abandon_capture(); }
  bool capturing() const { return state_->stream.capturing(); }
  /// Enqueues all of it, in its turn.
  void launch_graph(CudaGraph const& graph) {
    expects(bool(graph) && !capturing(), "a graph is launched once it was captured, and not while another is");
    state_->stream.touch();
    cuda_check(cudaGraphLaunch(graph.exec_.get(), state_->stream.stream()), "cudaGraphLaunch");
  }

 private:
  static void cublas_check(cublasStatus_t status, char const* call) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    Errc const code = status == CUBLAS_STATUS_ALLOC_FAILED ? Errc::out_of_memory : Errc::device;
    throw Error(code, concat(call, ": ", kernel_status_text(kernel_status(status))));
  }

  struct State {
    State(std::shared_ptr<LaneSet> lanes, CudaDevice const& device, VramTier given, CudaBackendOptions const& options)
        : memory(std::move(given)),
          workspace(memory, options.workspace_bytes, 256),
          cublas_workspace(memory, options.cublas_workspace_bytes, 256),
          stream(std::move(lanes), device.ordinal, options.lane_name),
          gemm(cublas_workspace.data(), cublas_workspace.bytes()),
          kernels(cuda_kernels(device.capability)) {
      expects(options.workspace_bytes >= cuda_workspace_bytes + cuda_counter_bytes,
              "CudaBackendOptions: workspace_bytes is less than kernels use");
      memory.share().move(VramUse::other, VramUse::workspaces, workspace.bytes() + cublas_workspace.bytes());
      device.use();
      cublas_check(gemm.status(), "cublasLtCreate");
      queue.stream = stream.stream();
      queue.gemm = gemm_by(gemm);
      queue.counters = reinterpret_cast<std::uint32_t*>(workspace.data());
      cuda_check(cudaMemsetAsync(queue.counters, 0, cuda_counter_bytes, queue.stream), "cudaMemsetAsync");
      queue.workspace = workspace.data() + cuda_counter_bytes;
      queue.workspace_bytes = options.workspace_bytes - cuda_counter_bytes;
      queue.device = device.ordinal;
      queue.n_multiprocessors = device.n_multiprocessors;
      queue.capability = device.capability;
    }
    /// Before what lanes use goes, which may wait for the whole device, and so for lanes that nobody else may run (LaneSet::seeded).
    ~State() {
      stream.abandon_capture();
      stream.lanes().drain(stream.lane());
    }
    State(State const&) = delete;
    State& operator=(State const&) = delete;

    Memory memory;
    Buffer workspace, cublas_workspace;
    StreamLane stream;
    GemmPlans gemm;
    CudaQueue queue;
    std::uint32_t n_asked = 0;
    KernelTable const kernels;
  };
  std::unique_ptr<State> state_;
};
static_assert(Backend<CudaBackend>);

}  // namespace tiered
