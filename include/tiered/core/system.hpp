/// What Linux tells a process about its machine: lists of CPUs, limits of control groups, small files.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

#include "tiered/core/text.hpp"

namespace tiered {

/// "0-3,8,10-11" of the kernel's cpulist files as numbers, ascending; what is no such list, or a number of more than 16 bits, gives
/// what was read before it.
inline std::vector<int> parse_cpu_list(std::string_view text) {
  constexpr int largest = (1 << 16) - 1;
  std::vector<int> cpus;
  char const* at = text.data();
  char const* const end = at + text.size();
  while (at < end) {
    int first = 0, last = 0;
    auto result = std::from_chars(at, end, first);
    if (result.ec != std::errc{} || first < 0 || first > largest) break;
    last = first;
    if (result.ptr < end && *result.ptr == '-') {
      result = std::from_chars(result.ptr + 1, end, last);
      if (result.ec != std::errc{} || last < first || last > largest) break;
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

/// The tightest limit of a controller ("cpu", "memory") over the groups of this process and those above them, versions 1 and 2:
/// v2(folder) and v1(folder) read one. A group that is not visible under the mount (namespaces) is looked for at its top.
template <class V2, class V1>
std::optional<double> tightest_in_groups(std::string const& root, std::string_view controller, V2 v2, V1 v1) {
  std::optional<std::string> const groups = read_small_file(concat(root, "/proc/self/cgroup"));
  std::string const mount = concat(root, "/sys/fs/cgroup");
  std::optional<double> tightest;
  auto const consider = [&](std::optional<double> limit) {
    if (limit && (!tightest || *limit < *tightest)) tightest = limit;
  };
  bool seen_v1 = false;
  for_each_line(groups ? std::string_view(*groups) : std::string_view(), [&](std::string_view line) {
    std::size_t const first = line.find(':'), second = line.find(':', first + 1);  // number:controllers:path
    if (first == std::string_view::npos || second == std::string_view::npos) return true;
    std::string_view const controllers = line.substr(first + 1, second - first - 1);
    std::string path(line.substr(second + 1));
    if (path == "/") path.clear();
    if (controllers.empty()) {
      consider(tightest_limit(mount, path, v2));
    } else if (concat(',', controllers, ',').find(concat(',', controller, ',')) != std::string::npos) {
      seen_v1 = true;
      consider(tightest_limit(concat(mount, '/', controllers), path, v1));
    }
    return true;
  });
  if (seen_v1 && !tightest) consider(v1(concat(mount, '/', controller)));
  return tightest;
}

}  // namespace detail

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

}  // namespace tiered
