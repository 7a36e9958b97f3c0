/// Rates of the machine, measured in a process of their own: see machine_rates.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>

#include <sys/stat.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "child.hpp"
#include "machine_rates.hpp"
#include "results.hpp"
#include "tiered/tiered.hpp"

namespace bench {

inline std::uint64_t file_bytes(std::string const& path) {
  struct ::stat status {};
  return ::stat(path.c_str(), &status) == 0 ? std::uint64_t(status.st_size) : 0;
}
inline std::string file_name(std::string const& path) { return path.substr(path.find_last_of('/') + 1); }

struct RatesQuestion {
  std::string path;  ///< of the model whose weights are read
  int n_threads = 0;
  bool simulated = false;
  double flops = 0;             ///< that prompts are thought to reach; 0: half of what a matrix product does
  double link_bytes_per_s = 0;  ///< that copies are held to; 0: nothing
};

inline MeasuredMachine measure_here(RatesQuestion const& q) {
  auto const model = tiered::make_model(tiered::GgufFile::open(q.path));
#if TIERED_HAS_CUDA
  if (!q.simulated) return measure_gpu_machine(model->table(), q.n_threads, q.flops);
#endif
  MeasuredMachine m = measure_host(model->table(), q.n_threads, q.simulated);
  m.rates.flops = q.flops;
  return m;
}

/// Without rates there are no bounds, but figures all the same: then it says why, and returns none.
inline MeasuredMachine measure_in_child(RatesQuestion const& q) {
  MeasuredMachine m;
  std::string const error = in_child(
      [&](Lines const& lines) {
        MeasuredMachine const found = measure_here(q);
        lines({{"kind", "rates"}, {"machine", found.name}, {"rates", rates_to_json(found.rates)}});
      },
      [&](nlohmann::json const& j) {
        m = {j.at("machine"), rates_from_json(j.at("rates"))};
      });
  if (q.link_bytes_per_s > 0) {
    for (double* const rate : {&m.rates.link, &m.rates.link_beside_cpu}) *rate = std::min(*rate, q.link_bytes_per_s);
  }
  if (!error.empty()) fmt::print(stderr, "tiered-bench: no rates, and so no bounds: {}\n", error);
  return m;
}

}  // namespace bench
