/// How many threads are worth starting: physical performance cores that this process may use.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "tiered/core/text.hpp"

namespace tiered {

/// "0-3,8,10-11" of the kernel's cpulist files as numbers, ascending; what is no such list gives what was read before it.
inline std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  char const* at = text.data();
  char const* const end = at + text.size();
  while (at < end) {
    int first = 0, last = 0;
    auto result = std::from_chars(at, end, first);
    if (result.ec != std::errc{} || first < 0) break;
    last = first;
    if (result.ptr < end && *result.ptr == '-') {
      result = std::from_chars(result.ptr + 1, end, last);
      if (result.ec != std::errc{} || last < first || last - first > 1 << 16) break;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (result.ptr >= end || *result.ptr != ',') break;
    at = result.ptr + 1;
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

namespace detail {

/// A small file of /proc or /sys, or nothing.
inline std::optional<std::string> read_small_file(std::string const& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return std::nullopt;
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

/// Calls line(text) for each line; stops where that returns false.
template <class Line>
void for_each_line(std::string_view text, Line line) {
  while (!text.empty()) {
    std::size_t const length = std::min(text.find('\n'), text.size());
    if (!line(text.substr(0, length))) return;
    text.remove_prefix(std::min(length + 1, text.size()));
  }
}

/// Number at the start of text, blanks before it skipped.
inline std::optional<double> leading_number(std::string_view text) {
  std::size_t const first = text.find_first_not_of(" \t\n");
  long long value = 0;
  if (first == std::string_view::npos) return std::nullopt;
  if (std::from_chars(text.data() + first, text.data() + text.size(), value).ec != std::errc{}) return std::nullopt;
  return double(value);
}

/// The tighter of the limits in `folder` and the folders above it; `limit_of(folder)` reads one.
template <class LimitOf>
std::optional<double> tightest_limit(std::string const& mount, std::string path, LimitOf limit_of) {
  std::optional<double> tightest;
  for (;;) {
    if (std::optional<double> const limit = limit_of(concat(mount, path)); limit && (!tightest || *limit < *tightest)) tightest = limit;
    if (path.empty()) return tightest;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

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
/// `root` stands before /proc and /sys. A group that is not visible under the mount (namespaces) is looked for at its top.
inline std::optional<double> cgroup_cpus(std::string const& root = "") {
  std::optional<std::string> const groups = detail::read_small_file(concat(root, "/proc/self/cgroup"));
  std::optional<double> tightest;
  auto const consider = [&](std::optional<double> limit) {
    if (limit && (!tightest || *limit < *tightest)) tightest = limit;
  };
  std::string const mount = concat(root, "/sys/fs/cgroup");
  bool seen_v1 = false;
  detail::for_each_line(groups ? std::string_view(*groups) : std::string_view(), [&](std::string_view line) {
    std::size_t const first = line.find(':'), second = line.find(':', first + 1);  // number:controllers:path
    if (first == std::string_view::npos || second == std::string_view::npos) return true;
    std::string_view const controllers = line.substr(first + 1, second - first - 1);
    std::string path(line.substr(second + 1));
    if (path == "/") path.clear();
    if (controllers.empty()) {
      consider(detail::tightest_limit(mount, path, detail::quota_v2));
    } else if (controllers == "cpu" || controllers.substr(0, 4) == "cpu," || controllers.find(",cpu,") != std::string_view::npos ||
               (controllers.size() > 4 && controllers.substr(controllers.size() - 4) == ",cpu")) {
      seen_v1 = true;
      consider(detail::tightest_limit(concat(mount, '/', controllers), path, detail::quota_v1));
    }
    return true;
  });
  if (seen_v1 && !tightest) consider(detail::quota_v1(concat(mount, "/cpu")));
  return tightest;
}

/// CPUs that the scheduler may run this thread on; empty where the system does not say.
inline std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  for (int n_cpus = 1024; n_cpus <= 1 << 16; n_cpus *= 2) {
    cpu_set_t* const set = CPU_ALLOC(std::size_t(n_cpus));
    if (set == nullptr) break;
    std::size_t const bytes = CPU_ALLOC_SIZE(std::size_t(n_cpus));
    bool const known = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; known && cpu < n_cpus; ++cpu) {
      if (CPU_ISSET_S(std::size_t(cpu), bytes, set)) cpus.push_back(cpu);
    }
    CPU_FREE(set);
    if (known) break;
  }
#endif
  return cpus;
}

/// Of `cpus`, one per physical core, and only performance cores where there are two kinds and one of them is among `cpus`.
inline std::vector<int> performance_cores(std::vector<int> cpus, std::string const& root = "") {
  if (auto const performance = detail::read_small_file(concat(root, "/sys/devices/cpu_core/cpus"))) {  // Intel hybrid processors
    std::vector<int> const list = parse_cpu_list(*performance);
    std::vector<int> both;
    std::set_intersection(cpus.begin(), cpus.end(), list.begin(), list.end(), std::back_inserter(both));
    if (!both.empty()) cpus = both;
  }
  std::set<int> cores;
  for (int const cpu : cpus) {
    auto const siblings = detail::read_small_file(concat(root, "/sys/devices/system/cpu/cpu", cpu, "/topology/thread_siblings_list"));
    std::vector<int> const list = siblings ? parse_cpu_list(*siblings) : std::vector<int>{};
    int first = cpu;  // the first sibling that is among cpus stands for the core
    for (int const sibling : list) {
      if (std::binary_search(cpus.begin(), cpus.end(), sibling)) {
        first = std::min(first, sibling);
      }
    }
    cores.insert(first);
  }
  return {cores.begin(), cores.end()};
}

/// At least 1. A quota is rounded down: a thread more than it pays for is stopped in the middle of every loop.
inline int thread_count(std::vector<int> const& cpus, std::string const& root = "") {
  int n = cpus.empty() ? int(std::max(1u, std::thread::hardware_concurrency())) : int(performance_cores(cpus, root).size());
  if (std::optional<double> const quota = cgroup_cpus(root); quota && *quota < n) n = int(*quota);
  return std::max(1, n);
}

/// What Team is given where the user gives nothing.
inline int default_thread_count() { return thread_count(allowed_cpus()); }

}  // namespace tiered
