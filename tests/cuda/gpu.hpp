/// What the tests of the CUDA kernels share: a queue, arrays in VRAM, and whether there is a device at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "catch.hpp"
#include "numerics/cpu_cases.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cuda/gemm_plans.hpp"
#include "tiered/kernels/cuda/queue.hpp"
#include "tiered/kernels/cuda/status.hpp"
#include "tiered/kernels/cuda/table.hpp"

namespace tiered_test {

inline void cuda_check(cudaError_t status) {
  INFO(cudaGetErrorString(status));
  REQUIRE(status == cudaSuccess);
}

/// An array in VRAM that begins as garbage which is not a number, with such garbage behind it that nobody may change.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : n_(n) {
    cuda_check(cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T) + guard_bytes));
    cuda_check(cudaMemset(data_, 0xff, n * sizeof(T) + guard_bytes));
    cuda_check(cudaDeviceSynchronize());
  }
  explicit DeviceArray(std::vector<T> const& values) : DeviceArray(values.size()) { upload(values); }
  DeviceArray(DeviceArray const&) = delete;
  DeviceArray& operator=(DeviceArray const&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() { return data_; }
  T const* data() const { return data_; }
  std::size_t size() const { return n_; }
  void upload(std::vector<T> const& values) {
    REQUIRE(values.size() <= n_);
    cuda_check(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    cuda_check(cudaDeviceSynchronize());  // from pageable memory it may still be on the way, and the tests' streams do not wait for it
  }
  /// What is in it; fails where the garbage behind it was changed.
  std::vector<T> download() const {
    std::vector<T> values(n_);
    cuda_check(cudaMemcpy(values.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost));
    std::vector<unsigned char> guard(guard_bytes);
    cuda_check(cudaMemcpy(guard.data(), reinterpret_cast<std::byte*>(data_) + n_ * sizeof(T), guard_bytes, cudaMemcpyDeviceToHost));
    REQUIRE(guard == std::vector<unsigned char>(guard_bytes, 0xff));
    return values;
  }

 private:
  static constexpr std::size_t guard_bytes = 256;
  T* data_ = nullptr;
  std::size_t n_;
};

/// The device's kernels on a queue of their own.
class Gpu {
 public:
  Gpu() : workspace_(cuda_workspace_bytes), cublas_workspace_(std::size_t{32} << 20), counters_(std::vector<std::uint32_t>(cuda_counters)) {
    cuda_check(cudaStreamCreateWithFlags(&queue_.stream, cudaStreamNonBlocking));
    REQUIRE(gemm_.status() == CUBLAS_STATUS_SUCCESS);
    queue_.gemm = gemm_by(gemm_);
    queue_.workspace = workspace_.data();
    queue_.workspace_bytes = workspace_.size();
    queue_.counters = counters_.data();
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, 0));
    queue_.n_multiprocessors = properties.multiProcessorCount;
    queue_.capability = properties.major * 10 + properties.minor;
    table_ = cuda_kernels(queue_.capability);
  }
  Gpu(Gpu const&) = delete;
  Gpu& operator=(Gpu const&) = delete;
  ~Gpu() { cudaStreamDestroy(queue_.stream); }
  KernelTable const& table() const { return table_; }
  Queue queue() { return {&queue_, &kernel_status_text}; }
  /// Runs one op to its end.
  template <class Args>
  void run(Kernel<Args> kernel, Args const& args) {
    launch(kernel, args, queue());
    cuda_check(cudaStreamSynchronize(queue_.stream));
    cuda_check(cudaGetLastError());
    REQUIRE(counters_.download() == std::vector<std::uint32_t>(cuda_counters));
  }

 private:
  DeviceArray<std::byte> workspace_, cublas_workspace_;
  GemmPlans gemm_{cublas_workspace_.data(), cublas_workspace_.size()};
  DeviceArray<std::uint32_t> counters_;
  CudaQueue queue_;
  KernelTable table_;
};

/// False, with a warning, on a machine without a device.
inline bool has_gpu() {
  int n = 0;
  if (cudaGetDeviceCount(&n) == cudaSuccess && n > 0) return true;
  WARN("there is no CUDA device here: nothing was tested");
  return false;
}

}  // namespace tiered_test
