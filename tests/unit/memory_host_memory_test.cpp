/// host_memory.hpp over made-up trees of /proc and /sys.
#include "tiered/memory/host_memory.hpp"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "temp_dir.hpp"

using tiered::available_host_bytes;
using tiered::numa_nodes;

namespace {

class Tree {
 public:
  std::string root() const { return dir_ / "root"; }
  Tree& file(std::string const& path, std::string const& text) {
    std::filesystem::path const full = root() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
    return *this;
  }

 private:
  tiered_test::TempDir dir_;
};

constexpr char const* meminfo = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    600 kB\n";

}  // namespace

TEST_CASE("available memory is what the system says, nothing where it does not") {
  Tree tree;
  CHECK_FALSE(available_host_bytes(tree.root()).has_value());
  tree.file("/proc/meminfo", meminfo);
  CHECK(available_host_bytes(tree.root()) == 600u * 1024);
  tree.file("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: many kB\n");
  CHECK_FALSE(available_host_bytes(tree.root()).has_value());
}

TEST_CASE("a control group that leaves less counts, without the file cache that gives way") {
  Tree v2;
  v2.file("/proc/meminfo", meminfo).file("/proc/self/cgroup", "0::/a/b\n");
  v2.file("/sys/fs/cgroup/a/b/memory.max", "max\n").file("/sys/fs/cgroup/a/b/memory.current", "5\n");
  CHECK(available_host_bytes(v2.root()) == 600u * 1024);
  v2.file("/sys/fs/cgroup/a/memory.max", "100000\n").file("/sys/fs/cgroup/a/memory.current", "90000\n");
  CHECK(available_host_bytes(v2.root()) == 10000u);
  v2.file("/sys/fs/cgroup/a/memory.stat", "anon 70000\ninactive_file 15000\nactive_file 5000\n");
  CHECK(available_host_bytes(v2.root()) == 30000u);
  v2.file("/sys/fs/cgroup/a/memory.current", "190000\n");
  CHECK(available_host_bytes(v2.root()) == 0u);

  Tree v1;
  v1.file("/proc/meminfo", meminfo).file("/proc/self/cgroup", "9:memory:/x\n3:cpu,cpuacct:/x\n");
  v1.file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n")
      .file("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "7\n");
  CHECK(available_host_bytes(v1.root()) == 600u * 1024);
  v1.file("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "50000\n").file("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "40000\n");
  v1.file("/sys/fs/cgroup/memory/x/memory.stat", "cache 9\ntotal_inactive_file 1000\ntotal_active_file 200\n");
  CHECK(available_host_bytes(v1.root()) == 11200u);
}

TEST_CASE("NUMA nodes: those with memory and a CPU of the process") {
  Tree tree;
  CHECK(numa_nodes({0, 1}, tree.root()).empty());
  tree.file("/sys/devices/system/node/has_memory", "0-2\n");
  tree.file("/sys/devices/system/node/node0/cpulist", "0-3,8-11\n").file("/sys/devices/system/node/node1/cpulist", "4-7\n");
  tree.file("/sys/devices/system/node/node2/cpulist", "\n");    // memory only
  tree.file("/sys/devices/system/node/node3/cpulist", "12\n");  // CPUs only
  CHECK(numa_nodes({0, 1, 2, 3, 4, 12}, tree.root()) == std::vector<int>{0, 1});
  CHECK(numa_nodes({5}, tree.root()) == std::vector<int>{1});
  CHECK(numa_nodes({12}, tree.root()).empty());
}

TEST_CASE("spreading pages changes no byte, and says whether it was done") {
  std::vector<int> const nodes = numa_nodes(tiered::allowed_cpus());
  std::vector<std::byte> memory(1 << 20, std::byte{3});
  tiered::interleave_pages(memory, nodes);
  CHECK(memory == std::vector<std::byte>(1 << 20, std::byte{3}));
  CHECK_FALSE(tiered::interleave_pages(memory, {}));
  CHECK_FALSE(tiered::interleave_pages({}, {0}));
  CHECK_FALSE(tiered::interleave_pages(memory, {1 << 20}));  // no such node: the system refuses
}
