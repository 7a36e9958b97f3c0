/// A device whose launches may wait for their host, and what a test of that has beside it.
#pragma once

#include <memory>
#include <utility>

#include "cuda/fresh_seed.hpp"
#include "cuda/gpu.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/pinned.hpp"
#include "tiered/sim/split_mix.hpp"

namespace tiered_test {

struct AskingGpu {
  /// None where there is no device, or each launch is waited for (CUDA_LAUNCH_BLOCKING).
  static std::unique_ptr<AskingGpu> open() {
    auto gpu = has_gpu() ? std::make_unique<AskingGpu>() : nullptr;
    return gpu && gpu->table().help != nullptr ? std::move(gpu) : nullptr;
  }
  tiered::KernelTable const& table() const { return gpu.table(); }
  /// Does not wait, as Gpu::run() does.
  template <class Args>
  void launch(tiered::Kernel<Args> kernel, Args const& args) {
    tiered::launch(kernel, args, gpu.queue());
  }
  void finish() const { cuda_check(cudaDeviceSynchronize()); }

  Gpu gpu;
  tiered::CudaDevice device = tiered::CudaDevice::open(0);
  tiered::PinnedTier pinned;
  tiered::SplitMix64 random{fresh_seed()};
};

}  // namespace tiered_test
