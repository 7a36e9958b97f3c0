/// topology.hpp over made-up trees of /proc and /sys.
#include "tiered/kernels/cpu/topology.hpp"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "temp_dir.hpp"

using tiered::cgroup_cpus;
using tiered::parse_cpu_list;
using tiered::performance_cores;
using tiered::thread_count;

namespace {

/// A tree to which files are added.
class Tree {
 public:
  std::string root() const { return dir_ / "root"; }
  Tree& file(std::string const& path, std::string const& text) {
    std::filesystem::path const full = root() + path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
    return *this;
  }
  Tree& siblings(int cpu, std::string const& list) {
    return file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", list + "\n");
  }

 private:
  tiered_test::TempDir dir_;
};

}  // namespace

TEST_CASE("lists of CPUs as the kernel writes them") {
  CHECK(parse_cpu_list("0\n") == std::vector<int>{0});
  CHECK(parse_cpu_list("0-3,8,10-11\n") == std::vector<int>{0, 1, 2, 3, 8, 10, 11});
  CHECK(parse_cpu_list("4,2,2-3") == std::vector<int>{2, 3, 4});
  CHECK(parse_cpu_list("").empty());
  CHECK(parse_cpu_list("\n").empty());
  CHECK(parse_cpu_list("x").empty());
  CHECK(parse_cpu_list("1,x") == std::vector<int>{1});
  CHECK(parse_cpu_list("3-1").empty());
  CHECK(parse_cpu_list("0-99999999999").empty());
  CHECK(parse_cpu_list("65534-65535") == std::vector<int>{65534, 65535});
  for (char const* const large : {"65536", "65535-65536", "2147483647", "2147483646-2147483647", "0-2147483647"}) {
    INFO(large);
    CHECK(parse_cpu_list(large).empty());
    CHECK(parse_cpu_list(std::string("7,") + large) == std::vector<int>{7});
  }
}

TEST_CASE("siblings count once, those outside the process's CPUs not at all") {
  Tree tree;
  tree.siblings(0, "0,4").siblings(1, "1,5").siblings(2, "2,6").siblings(3, "3,7");
  tree.siblings(4, "0,4").siblings(5, "1,5").siblings(6, "2,6").siblings(7, "3,7");
  CHECK(performance_cores({0, 1, 2, 3, 4, 5, 6, 7}, tree.root()) == std::vector<int>{0, 1, 2, 3});
  CHECK(performance_cores({0, 4, 5}, tree.root()) == std::vector<int>{0, 5});
  CHECK(performance_cores({6, 7}, tree.root()) == std::vector<int>{6, 7});
  CHECK(thread_count({0, 1, 2, 3, 4, 5, 6, 7}, tree.root()) == 4);
}

TEST_CASE("without topology files every CPU is a core") {
  Tree tree;
  CHECK(performance_cores({2, 3, 9}, tree.root()) == std::vector<int>{2, 3, 9});
  CHECK(thread_count({2, 3, 9}, tree.root()) == 3);
}

TEST_CASE("hybrid processors: performance cores only, unless the process may use none of them") {
  Tree tree;
  tree.file("/sys/devices/cpu_core/cpus", "0-3\n").file("/sys/devices/cpu_atom/cpus", "4-7\n");
  tree.siblings(0, "0-1").siblings(1, "0-1").siblings(2, "2-3").siblings(3, "2-3");
  for (int cpu = 4; cpu < 8; ++cpu) tree.siblings(cpu, std::to_string(cpu));
  CHECK(thread_count({0, 1, 2, 3, 4, 5, 6, 7}, tree.root()) == 2);
  CHECK(thread_count({3, 5, 6}, tree.root()) == 1);
  CHECK(thread_count({4, 5, 6}, tree.root()) == 3);
}

TEST_CASE("small cores without a list of performance cores: by capacity, else by highest frequency") {
  Tree arm;  // a prime, three middle, four little cores
  for (int cpu = 0; cpu < 8; ++cpu) {
    arm.file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpu_capacity", cpu == 7 ? "1024\n" : cpu >= 4 ? "860\n" : "290\n");
  }
  CHECK(performance_cores({0, 1, 2, 3, 4, 5, 6, 7}, arm.root()) == std::vector<int>{4, 5, 6, 7});
  CHECK(performance_cores({0, 1, 2}, arm.root()) == std::vector<int>{0, 1, 2});
  CHECK(performance_cores({0, 5}, arm.root()) == std::vector<int>{5});

  Tree amd;  // favoured, ordinary and dense cores: all of them are worth a thread
  int const khz[] = {5100000, 5000000, 3300000, 3300000};
  for (int cpu = 0; cpu < 4; ++cpu) {
    amd.file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cpufreq/cpuinfo_max_freq", std::to_string(khz[cpu]) + "\n");
  }
  CHECK(performance_cores({0, 1, 2, 3}, amd.root()) == std::vector<int>{0, 1, 2, 3});
  amd.file("/sys/devices/system/cpu/cpu3/cpufreq/cpuinfo_max_freq", "2000000\n");
  amd.file("/sys/devices/system/cpu/cpu2/cpufreq/cpuinfo_max_freq", "unknown\n");  // what is not known is not small
  CHECK(performance_cores({0, 1, 2, 3}, amd.root()) == std::vector<int>{0, 1, 2});
}

TEST_CASE("the order in which CPUs get threads: performance cores, then everything else") {
  Tree tree;
  tree.file("/sys/devices/cpu_core/cpus", "0-3\n");
  tree.siblings(0, "0-1").siblings(1, "0-1").siblings(2, "2-3").siblings(3, "2-3");
  CHECK(tiered::cpus_to_pin({0, 1, 2, 3, 4, 5}, tree.root()) == std::vector<int>{0, 2, 1, 3, 4, 5});
  CHECK(tiered::cpus_to_pin({1, 5}, tree.root()) == std::vector<int>{1, 5});
  CHECK(tiered::cpus_to_pin({}, tree.root()).empty());
}

TEST_CASE("quotas of control groups, version 2: the tightest from the group up") {
  Tree tree;
  tree.file("/proc/self/cgroup", "0::/a/b\n");
  CHECK_FALSE(cgroup_cpus(tree.root()).has_value());
  tree.file("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK_FALSE(cgroup_cpus(tree.root()).has_value());
  tree.file("/sys/fs/cgroup/a/cpu.max", "250000 100000\n");
  CHECK(cgroup_cpus(tree.root()) == 2.5);
  tree.file("/sys/fs/cgroup/a/b/cpu.max", "350000 100000\n");
  CHECK(cgroup_cpus(tree.root()) == 2.5);
  CHECK(thread_count({0, 1, 2, 3, 4, 5}, tree.root()) == 2);
  CHECK(thread_count({0}, tree.root()) == 1);
  tree.file("/sys/fs/cgroup/a/b/cpu.max", "20000 100000\n");
  CHECK(thread_count({0, 1, 2, 3}, tree.root()) == 1);
}

TEST_CASE("a container sees its own group at the top of the mount") {
  Tree tree;
  tree.file("/proc/self/cgroup", "0::/\n").file("/sys/fs/cgroup/cpu.max", "300000 100000\n");
  CHECK(cgroup_cpus(tree.root()) == 3.0);
  tree.file("/proc/self/cgroup", "0::/../../elsewhere\n");
  CHECK(cgroup_cpus(tree.root()) == 3.0);
}

TEST_CASE("quotas of control groups, version 1") {
  Tree tree;
  tree.file("/proc/self/cgroup", "12:memory:/docker/x\n5:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n");
  tree.file("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
  CHECK_FALSE(cgroup_cpus(tree.root()).has_value());
  tree.file("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "400000\n");
  CHECK(cgroup_cpus(tree.root()) == 4.0);
  tree.file("/proc/self/cgroup", "5:cpuset:/\n7:cpuacct,cpu:/gone\n");  // not visible: only the usual link is
  tree.file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n").file("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n");
  CHECK(cgroup_cpus(tree.root()) == 3.0);
}

TEST_CASE("files with anything else in them are no limit") {
  for (std::string const text : {"", "\n", "max", "abc def", "100000", "100000 ", "100000 0", "-5 100000"}) {
    Tree tree;
    tree.file("/proc/self/cgroup", "0::/\n").file("/sys/fs/cgroup/cpu.max", text);
    INFO('"' << text << '"');
    CHECK_FALSE(cgroup_cpus(tree.root()).has_value());
  }
  Tree tree;
  tree.file("/proc/self/cgroup", "no colons\n\n0::");
  CHECK_FALSE(cgroup_cpus(tree.root()).has_value());
}

TEST_CASE("this machine has at least one thread, and no more than CPUs that it may use") {
  std::vector<int> const cpus = tiered::allowed_cpus();
  CHECK(tiered::default_thread_count() >= 1);
  if (!cpus.empty()) CHECK(tiered::default_thread_count() <= int(cpus.size()));
}
