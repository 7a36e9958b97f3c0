/// The memory of this machine: how much of it is available, on which NUMA nodes it lies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#if defined(__linux__)
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "tiered/core/system.hpp"
#include "tiered/core/text.hpp"

namespace tiered {
namespace detail {

/// The number of a line "KEY number".
inline std::optional<double> number_of(std::string_view text, std::string_view key) {
  std::optional<double> number;
  for_each_line(text, [&](std::string_view line) {
    if (line.substr(0, key.size()) == key && line.size() > key.size() && line[key.size()] == ' ')
      number = leading_number(line.substr(key.size()));
    return !number;
  });
  return number;
}

/// What a control group may still take: its limit, less what it uses, the file cache aside, which gives way.
inline std::optional<double> left_in_group(std::string const& folder, char const* limit_file, char const* used_file,
                                           std::string_view inactive, std::string_view active) {
  auto const limit_text = read_small_file(concat(folder, limit_file)), used_text = read_small_file(concat(folder, used_file));
  std::optional<double> const limit = limit_text ? leading_number(*limit_text) : std::nullopt;  // "max" is no number
  std::optional<double> const used = used_text ? leading_number(*used_text) : std::nullopt;
  if (!limit || !used) return std::nullopt;
  std::string const stat = read_small_file(concat(folder, "/memory.stat")).value_or("");
  double const cached = number_of(stat, inactive).value_or(0) + number_of(stat, active).value_or(0);
  return std::max(0.0, *limit - std::max(0.0, *used - cached));
}

}  // namespace detail

/// Bytes that this process can take before the system has to page others out or refuses: of the machine, or of the control groups
/// around it where they leave less. Nothing where the system does not say. `root` stands before /proc and /sys.
inline std::optional<std::uint64_t> available_host_bytes(std::string const& root = "") {
  std::optional<double> bytes;
  if (auto const meminfo = detail::read_small_file(concat(root, "/proc/meminfo"))) {
    if (auto const kib = detail::number_of(*meminfo, "MemAvailable:")) bytes = *kib * 1024;
  }
  std::optional<double> const in_groups = detail::tightest_in_groups(
      root, "memory",
      [](std::string const& folder) {
        return detail::left_in_group(folder, "/memory.max", "/memory.current", "inactive_file", "active_file");
      },
      [](std::string const& folder) {
        return detail::left_in_group(folder, "/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_inactive_file",
                                     "total_active_file");
      });
  if (in_groups && (!bytes || *in_groups < *bytes)) bytes = in_groups;
  if (!bytes) return std::nullopt;
  return std::uint64_t(*bytes);
}

/// NUMA nodes that have memory and one of `cpus`, ascending; empty where the system does not say.
inline std::vector<int> numa_nodes(std::vector<int> const& cpus, std::string const& root = "") {
  std::string const folder = concat(root, "/sys/devices/system/node");
  auto const with_memory = detail::read_small_file(concat(folder, "/has_memory"));
  std::vector<int> nodes;
  for (int const node : parse_cpu_list(with_memory ? std::string_view(*with_memory) : std::string_view())) {
    auto const text = detail::read_small_file(concat(folder, "/node", node, "/cpulist"));
    std::vector<int> const of_node = parse_cpu_list(text ? std::string_view(*text) : std::string_view());
    if (std::find_first_of(of_node.begin(), of_node.end(), cpus.begin(), cpus.end()) != of_node.end()) nodes.push_back(node);
  }
  return nodes;
}

/// Spreads the pages of `memory` that were not touched yet over `nodes`, page by page, so that threads of all nodes read it with the
/// bandwidth of all of them. Whether it was done: not where the user has chosen a policy (numactl), and not on other systems.
/// Pages of a file mapping lie where whoever read the file first had them put; that cannot be changed from here.
inline bool interleave_pages(std::span<std::byte> memory, std::vector<int> const& nodes) {
#if defined(__linux__)
  constexpr std::size_t bits = std::numeric_limits<unsigned long>::digits;
  if (nodes.empty() || nodes.front() < 0 || memory.empty()) return false;
  int policy = MPOL_DEFAULT;
  if (::syscall(SYS_get_mempolicy, &policy, nullptr, 0ul, nullptr, 0ul) != 0 || policy != MPOL_DEFAULT) return false;
  std::vector<unsigned long> mask(std::size_t(nodes.back()) / bits + 1);
  for (int const node : nodes) mask[std::size_t(node) / bits] |= 1ul << std::size_t(node) % bits;
  auto const page = std::uintptr_t(::sysconf(_SC_PAGESIZE));
  auto const address = reinterpret_cast<std::uintptr_t>(memory.data());
  std::uintptr_t const begin = (address + page - 1) / page * page, end = (address + memory.size()) / page * page;
  // The kernel reads one bit less than it is told.
  return begin < end && ::syscall(SYS_mbind, begin, end - begin, MPOL_INTERLEAVE, mask.data(), mask.size() * bits + 1, 0u) == 0;
#else
  static_cast<void>(memory), static_cast<void>(nodes);
  return false;
#endif
}

}  // namespace tiered
