/// A peer's bench as a cell of a sweep: its speed, and the most of VRAM that was taken while it ran.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "peak_watch.hpp"
#include "peer.hpp"
#include "results.hpp"
#if TIERED_HAS_CUDA
#include <cuda_runtime_api.h>

#include "tiered/memory/cuda/nvml.hpp"
#endif

namespace bench {

/// Errors  as ask_peer().
template <class Watch>
PeerCell ask_peer_cell(std::string const& path, PeerCell c, int n_runs, bool on_gpu, Watch const& watch_vram) {
  auto const watch = watch_vram();
  Speed const speed = ask_peer(c.command, {path, c.kv_type, c.threads, c.prompt, c.decoded, n_runs, on_gpu});
  c.prefill_per_s = speed.prefill;
  c.decode_per_s = speed.decode;
  if (watch) c.vram_peak_bytes = watch->peak();
  return c;
}

#if TIERED_HAS_CUDA
/// What all programs use of the first device, less what they used before: nobody else should start anything there.
struct UsedSinceNow {
  tiered::NvmlDevice device;
  std::size_t before;
  std::uint64_t operator()() const {
    std::size_t const now = device.used_bytes().value_or(0);
    return now > before ? now - before : 0;
  }
};
#endif

inline PeerCell ask_peer_cell(std::string const& path, PeerCell const& c, int n_runs, bool on_gpu) {
#if TIERED_HAS_CUDA
  auto const watch_vram = [&]() -> std::unique_ptr<PeakWatch<UsedSinceNow>> {
    char bus_id[32] = {};
    if (!on_gpu || cudaDeviceGetPCIBusId(bus_id, int(sizeof bus_id), 0) != cudaSuccess) return nullptr;
    std::optional<tiered::NvmlDevice> const device = tiered::NvmlDevice::open(bus_id);
    if (!device) return nullptr;
    return std::make_unique<PeakWatch<UsedSinceNow>>(UsedSinceNow{*device, device->used_bytes().value_or(0)});
  };
#else
  struct None {
    std::uint64_t peak() const { return 0; }
  };
  auto const watch_vram = [] { return std::unique_ptr<None>(); };
#endif
  return ask_peer_cell(path, c, n_runs, on_gpu, watch_vram);
}

}  // namespace bench
