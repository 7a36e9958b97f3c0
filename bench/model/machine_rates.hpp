/// The rates that bounds are made of, measured where the weights of a model lie, with the threads that an engine would have.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <span>
#include <thread>
#include <vector>

#include "../kernels/measure.hpp"
#include "bounds.hpp"
#include "tiered/core/units.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/profile/read_rate.hpp"
#if TIERED_HAS_CUDA
#include "../cuda/measure.hpp"
#include "tiered/memory/cuda/device.hpp"
#endif

namespace bench {

inline std::vector<std::span<std::byte const>> weights_of(tiered::ShardTable const& table) {
  std::vector<std::span<std::byte const>> spans;
  for (tiered::Weight const& w : table.weights) spans.emplace_back(w.data, w.bytes());
  return spans;
}

/// So many that no cache holds them, so few that they are read several times within a measurement: the first time maps their pages.
inline std::vector<std::span<std::byte const>> some_weights_of(tiered::ShardTable const& table) {
  constexpr std::size_t enough = 2 * tiered::GiB;
  std::vector<std::span<std::byte const>> spans = weights_of(table);
  std::size_t bytes = 0, n = 0;
  while (n < spans.size() && bytes < enough) bytes += spans[n++].size();
  spans.resize(n);
  return spans;
}

struct MeasuredMachine {
  std::string name;
  MachineRates rates;
};

/// A machine without a device, or with a simulated one, which is the host itself.
inline MeasuredMachine measure_host(tiered::ShardTable const& table, int n_threads, bool simulated_device) {
  tiered::Team team(n_threads);
  MeasuredMachine m;
  m.name = tiered::concat(n_threads, n_threads == 1 ? " CPU thread" : " CPU threads");
  m.rates.cpu = tiered::read_rate(team, some_weights_of(table), 1.0);
  if (!simulated_device) return m;
  m.name += ", simulated device";
  m.rates.cpu_beside_link = m.rates.link = m.rates.device = m.rates.cpu;
  return m;
}

#if TIERED_HAS_CUDA
/// Copies page-locked memory to the device, over and over, until it ends.
class LinkTraffic {
 public:
  LinkTraffic() : vram_(piece_bytes) {
    check(cudaHostAlloc(reinterpret_cast<void**>(&host_), n_pieces * piece_bytes, cudaHostAllocDefault));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  LinkTraffic(LinkTraffic const&) = delete;
  LinkTraffic& operator=(LinkTraffic const&) = delete;
  ~LinkTraffic() {
    cudaStreamDestroy(stream_);
    cudaFreeHost(host_);
  }
  /// Bytes per second, from now until `done`, and at least one round.
  double run(std::atomic<bool> const& done) {
    double const begin = now_s();
    double bytes = 0;
    do {
      for (std::size_t i = 0; i < n_pieces; ++i)
        check(cudaMemcpyAsync(vram_.data(), host_ + i * piece_bytes, piece_bytes, cudaMemcpyHostToDevice, stream_));
      check(cudaStreamSynchronize(stream_));
      bytes += double(n_pieces * piece_bytes);
    } while (!done.load());
    return bytes / (now_s() - begin);
  }

 private:
  static constexpr std::size_t piece_bytes = std::size_t{64} << 20, n_pieces = 4;
  Vram<std::byte> vram_;
  std::byte* host_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

/// The first GPU and its host, alone and at the same time. Prompts are thought to reach half of what cuBLAS does unless `flops` says more.
inline MeasuredMachine measure_gpu_machine(tiered::ShardTable const& table, int n_threads, double flops) {
  MeasuredMachine m = measure_host(table, n_threads, false);
  MachineRates& r = m.rates;
  tiered::CudaDevice const gpu = tiered::CudaDevice::open();
  m.name = tiered::concat(gpu.name, ", ", m.name);
  r.context_bytes = double(gpu.ledger->bytes(tiered::VramUse::context));
  {
    LinkTraffic traffic;
    std::atomic<bool> done{true};
    for (int i = 0; i < 3; ++i) r.link = std::max(r.link, traffic.run(done));
    done = false;
    std::exception_ptr error;
    std::thread copying([&] {
      try {
        gpu.use();
        r.link_beside_cpu = traffic.run(done);
      } catch (...) {
        error = std::current_exception();
      }
    });
    tiered::Team team(n_threads);
    r.cpu_beside_link = tiered::read_rate(team, some_weights_of(table), 0.5);
    done = true;
    copying.join();
    if (error) std::rethrow_exception(error);
  }
  Device device;
  r.device = device.copy_rate();
  r.flops = flops > 0 ? flops : device.matrix_rate() / 2;
  return m;
}
#endif

}  // namespace bench
