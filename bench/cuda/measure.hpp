/// Measuring on a CUDA device: a queue, arrays of random bytes, and seconds per launch with weights that no cache holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cuda/gemm_plans.hpp"
#include "tiered/kernels/cuda/queue.hpp"
#include "tiered/kernels/cuda/table.hpp"
#include "tiered/kernels/format/half.hpp"
#include "tiered/sim/split_mix.hpp"

namespace bench {

using namespace tiered;

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw Error(Errc::device, cudaGetErrorString(status));
}

/// An array in VRAM.
template <class T>
class Vram {
 public:
  explicit Vram(std::size_t n) : n_(n) { check(cudaMalloc(reinterpret_cast<void**>(&data_), std::max<std::size_t>(n, 1) * sizeof(T))); }
  explicit Vram(std::vector<T> const& values) : Vram(values.size()) {
    check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  Vram(Vram&& other) noexcept : data_(std::exchange(other.data_, nullptr)), n_(other.n_) {}
  Vram& operator=(Vram&&) = delete;
  ~Vram() { cudaFree(data_); }
  T* data() { return data_; }
  std::size_t size() const { return n_; }

 private:
  T* data_ = nullptr;
  std::size_t n_ = 0;
};

/// Bytes in page-locked host memory, which the device reads by the same address.
class Locked {
 public:
  explicit Locked(std::vector<std::byte> const& values) {
    check(cudaHostAlloc(reinterpret_cast<void**>(&data_), values.size(), cudaHostAllocMapped));
    std::copy(values.begin(), values.end(), data_);
  }
  Locked(Locked const&) = delete;
  Locked& operator=(Locked const&) = delete;
  ~Locked() { cudaFreeHost(data_); }
  std::byte* data() { return data_; }

 private:
  std::byte* data_ = nullptr;
};

class Device {
 public:
  Device() : workspace_(cuda_workspace_bytes + cuda_counter_bytes), cublas_workspace_(std::size_t{32} << 20) {
    check(cudaStreamCreateWithFlags(&queue_.stream, cudaStreamNonBlocking));
    if (cublasCreate(&cublas_) != CUBLAS_STATUS_SUCCESS) throw Error(Errc::device, "cuBLAS does not start");
    cublasSetStream(cublas_, queue_.stream);
    cublasSetWorkspace(cublas_, cublas_workspace_.data(), cublas_workspace_.size());
    queue_.gemm = gemm_by(gemm_);
    queue_.counters = reinterpret_cast<std::uint32_t*>(workspace_.data());
    check(cudaMemset(queue_.counters, 0, cuda_counter_bytes));
    queue_.workspace = workspace_.data() + cuda_counter_bytes;
    queue_.workspace_bytes = cuda_workspace_bytes;
    check(cudaGetDeviceProperties(&properties_, 0));
    queue_.n_multiprocessors = properties_.multiProcessorCount;
    queue_.capability = properties_.major * 10 + properties_.minor;
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  Device(Device const&) = delete;
  Device& operator=(Device const&) = delete;

  KernelTable const& table() const { return cuda_kernels(); }
  CudaQueue& queue() { return queue_; }
  char const* name() const { return properties_.name; }
  template <class Args>
  void launch(Kernel<Args> kernel, Args const& args) {
    tiered::launch(kernel, args, Queue{&queue_});
  }

  /// Seconds of one of `n` calls of call(i), i = 0, 1, ..., enqueued back to back: the best of `rounds`.
  template <class Call>
  double seconds(int n, Call const& call, int rounds = 3) {
    double best = 1e30;
    for (int round = 0; round <= rounds; ++round) {  // the first one warms up
      check(cudaEventRecord(begin_, queue_.stream));
      for (int i = 0; i < n; ++i) call(i);
      check(cudaEventRecord(end_, queue_.stream));
      check(cudaEventSynchronize(end_));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin_, end_));
      if (round > 0) best = std::min(best, double(ms) / 1e3 / n);
    }
    return best;
  }

  /// The same as one CUDA graph, so that the host's launches are no part of it.
  template <class Call>
  double graph_seconds(int n, Call const& call, int rounds = 5) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check(cudaStreamBeginCapture(queue_.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < n; ++i) call(i);
    check(cudaStreamEndCapture(queue_.stream, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    double const s = seconds(
                         1, [&](int) { check(cudaGraphLaunch(exec, queue_.stream)); }, rounds) /
                     n;
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return s;
  }

  /// Bytes read and written per second by a copy within the device.
  double copy_rate() {
    std::size_t const bytes = std::size_t{2} << 30;
    Vram<std::byte> a(bytes), b(bytes);
    check(cudaMemset(a.data(), 0x5a, bytes));
    return 2.0 * double(bytes) /
           seconds(4, [&](int) { check(cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, queue_.stream)); });
  }
  /// Operations per second of cuBLAS: half-precision, f32 sums, a cube of n.
  double matrix_rate(int n = 8192) {
    std::vector<std::uint16_t> values(std::size_t(n) * std::size_t(n));
    SplitMix64 random(7);
    for (std::uint16_t& v : values) v = float_to_bfloat16(random.between(-1, 1));
    Vram<std::uint16_t> a(values), b(values);
    Vram<float> c(values.size());
    float const one = 1, zero = 0;
    double const s = seconds(5, [&](int) {
      cublasGemmEx(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a.data(), CUDA_R_16BF, n, b.data(), CUDA_R_16BF, n, &zero, c.data(),
                   CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    });
    return 2.0 * n * double(n) * n / s;
  }

 private:
  Vram<std::byte> workspace_, cublas_workspace_;
  GemmPlans gemm_{cublas_workspace_.data(), cublas_workspace_.size()};
  cublasHandle_t cublas_ = nullptr;  // for comparison
  CudaQueue queue_;
  cudaDeviceProp properties_{};
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

inline std::vector<float> random_floats(std::size_t n, std::uint64_t seed = 3) {
  SplitMix64 random(seed);
  std::vector<float> out(n);
  for (float& v : out) v = random.between(-2, 2);
  return out;
}

}  // namespace bench
