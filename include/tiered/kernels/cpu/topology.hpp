/// How many threads are worth starting, and where: physical performance cores that this process may use.
#pragma once

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

#include "tiered/core/system.hpp"
#include "tiered/core/text.hpp"

namespace tiered {
namespace detail {

inline std::optional<double> quota_v2(std::string const& folder) {  // "200000 100000", or "max 100000"
  std::optional<std::string> const text = read_small_file(concat(folder, "/cpu.max"));
  if (!text) return std::nullopt;
  std::optional<double> const quota = leading_number(*text);
  std::size_t const blank = text->find(' ');
  if (!quota || *quota <= 0 || blank == std::string::npos) return std::nullopt;
  std::optional<double> const period = leading_number(std::string_view(*text).substr(blank));
  if (!period || *period <= 0) return std::nullopt;
  return *quota / *period;
}

inline std::optional<double> quota_v1(std::string const& folder) {  // -1 is no limit
  std::optional<std::string> const quota_text = read_small_file(concat(folder, "/cpu.cfs_quota_us"));
  std::optional<std::string> const period_text = read_small_file(concat(folder, "/cpu.cfs_period_us"));
  if (!quota_text || !period_text) return std::nullopt;
  std::optional<double> const quota = leading_number(*quota_text), period = leading_number(*period_text);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return *quota / *period;
}

}  // namespace detail

/// CPUs' worth of time that control groups, version 1 and 2, leave to this process; nothing where there is no limit.
/// `root` stands before /proc and /sys.
inline std::optional<double> cgroup_cpus(std::string const& root = "") {
  return detail::tightest_in_groups(root, "cpu", detail::quota_v2, detail::quota_v1);
}

namespace detail {

/// Of `cpus`, those that are no small cores: Intel names its performance cores; elsewhere (big.LITTLE, processors with dense
/// cores) the kernel gives each CPU a capacity, or at least a highest frequency, and a CPU with less than half of the best of all
/// is small. So a core that is a little slower (favoured cores differ by some per cent, dense ones by a third) takes part, and
/// gets less of each loop.
inline std::vector<int> without_small_cores(std::vector<int> const& cpus, std::string const& root) {
  std::vector<int> large;
  if (auto const performance = read_small_file(concat(root, "/sys/devices/cpu_core/cpus"))) {
    std::vector<int> const list = parse_cpu_list(*performance);
    std::set_intersection(cpus.begin(), cpus.end(), list.begin(), list.end(), std::back_inserter(large));
    return large.empty() ? cpus : large;
  }
  for (char const* const file : {"/cpu_capacity", "/cpufreq/cpuinfo_max_freq"}) {
    std::vector<double> speeds;
    for (int const cpu : cpus) {
      auto const text = read_small_file(concat(root, "/sys/devices/system/cpu/cpu", cpu, file));
      speeds.push_back(text ? leading_number(*text).value_or(0) : 0);
    }
    double const best = speeds.empty() ? 0 : *std::max_element(speeds.begin(), speeds.end());
    if (best <= 0) continue;
    for (std::size_t i = 0; i < cpus.size(); ++i) {
      if (speeds[i] <= 0 || speeds[i] * 2 >= best) large.push_back(cpus[i]);
    }
    return large;
  }
  return cpus;
}

}  // namespace detail

/// Of `cpus` (ascending), one per physical core, and no small cores where there are two kinds and a large one is among `cpus`.
inline std::vector<int> performance_cores(std::vector<int> cpus, std::string const& root = "") {
  cpus = detail::without_small_cores(cpus, root);
  std::vector<int> cores;
  for (int const cpu : cpus) {
    auto const siblings = detail::read_small_file(concat(root, "/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    std::vector<int> const list = siblings ? parse_cpu_list(*siblings) : std::vector<int>{};
    int first = cpu;  // the first sibling that is among cpus stands for the core
    for (int const sibling : list) {
      if (std::binary_search(cpus.begin(), cpus.end(), sibling)) {
        first = std::min(first, sibling);
      }
    }
    cores.push_back(first);
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

/// At least 1. A quota is rounded down: a thread more than it pays for is stopped in the middle of every loop.
inline int thread_count(std::vector<int> const& cpus, std::string const& root = "") {
  int n = cpus.empty() ? int(std::max(1u, std::thread::hardware_concurrency())) : int(performance_cores(cpus, root).size());
  if (std::optional<double> const quota = cgroup_cpus(root); quota && *quota < n) n = int(*quota);
  return std::max(1, n);
}

/// In which order CPUs are worth a thread: performance cores, then their other hardware threads and small cores. For Team.
inline std::vector<int> cpus_to_pin(std::vector<int> const& cpus, std::string const& root = "") {
  std::vector<int> order = performance_cores(cpus, root);
  std::vector<int> others;
  std::set_difference(cpus.begin(), cpus.end(), order.begin(), order.end(), std::back_inserter(others));
  order.insert(order.end(), others.begin(), others.end());
  return order;
}

#if defined(__linux__)
/// 0, or an errno value.
inline int run_only_on(pthread_t thread, int cpu) {
  if (cpu < 0) return EINVAL;
  cpu_set_t* const set = CPU_ALLOC(std::size_t(cpu) + 1);
  if (set == nullptr) return ENOMEM;
  std::size_t const bytes = CPU_ALLOC_SIZE(std::size_t(cpu) + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(std::size_t(cpu), bytes, set);
  int const status = pthread_setaffinity_np(thread, bytes, set);
  CPU_FREE(set);
  return status;
}
#else
inline int run_only_on(std::thread::native_handle_type, int) { return ENOTSUP; }
#endif

/// What Team is given where the user gives nothing.
inline int default_thread_count() { return thread_count(allowed_cpus()); }

}  // namespace tiered
