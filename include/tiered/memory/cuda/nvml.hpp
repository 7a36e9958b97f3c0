/// What NVIDIA's management library says about the memory of a device, without linking or requiring that library.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <unistd.h>

namespace tiered {
namespace detail {

/// The few functions and types of NVML that are used, as its API reference states them; loaded once, never unloaded.
class NvmlLibrary {
 public:
  using Device = void*;
  struct Memory {
    unsigned long long total_bytes, free_bytes, used_bytes;
  };
  struct Process {
    unsigned pid;
    unsigned long long used_bytes;
    unsigned gpu_instance, compute_instance;
  };
  static constexpr int success = 0, insufficient_size = 7;

  int (*find_device)(char const* pci_bus_id, Device*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*compute_processes)(Device, unsigned* n, Process*) = nullptr;
  int (*graphics_processes)(Device, unsigned* n, Process*) = nullptr;

  /// Null where the library is not there or does not start; why_not() says why.
  static NvmlLibrary const* get() { return instance().usable_ ? &instance() : nullptr; }
  static std::string const& why_not() { return instance().why_not_; }

 private:
  NvmlLibrary() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      char const* const reason = ::dlerror();
      why_not_ = reason != nullptr ? reason : "libnvidia-ml.so.1 cannot be loaded";
      return;
    }
    int (*start)() = nullptr;
    find(library, start, "nvmlInit_v2");
    find(library, find_device, "nvmlDeviceGetHandleByPciBusId_v2");
    find(library, memory, "nvmlDeviceGetMemoryInfo");
    find(library, compute_processes, "nvmlDeviceGetComputeRunningProcesses_v3");
    find(library, graphics_processes, "nvmlDeviceGetGraphicsRunningProcesses_v3");
    if (start == nullptr || find_device == nullptr || memory == nullptr) {
      why_not_ = "libnvidia-ml.so.1 lacks functions";
    } else if (int const status = start(); status != success) {
      why_not_ = "nvmlInit_v2 failed with status " + std::to_string(status);
    } else {
      usable_ = true;
    }
  }
  static NvmlLibrary const& instance() {
    static NvmlLibrary const library;
    return library;
  }
  template <class Function>
  static void find(void* library, Function*& function, char const* name) {
    function = reinterpret_cast<Function*>(::dlsym(library, name));
  }

  bool usable_ = false;
  std::string why_not_;
};

}  // namespace detail

/// One device as NVML sees it. Any thread.
class NvmlDevice {
 public:
  /// Nothing where there is no NVML, or it does not know the device. `pci_bus_id` as cudaDeviceGetPCIBusId writes it.
  static std::optional<NvmlDevice> open(std::string const& pci_bus_id) {
    detail::NvmlLibrary const* const library = detail::NvmlLibrary::get();
    detail::NvmlLibrary::Device device = nullptr;
    if (library == nullptr || library->find_device(pci_bus_id.c_str(), &device) != detail::NvmlLibrary::success) return std::nullopt;
    return NvmlDevice(*library, device);
  }

  /// Bytes on the device that NVML counts for this process, its context included. Nothing where it is not in the list: it holds
  /// nothing yet, or has another number there (a container with process numbers of its own), or Windows manages the memory.
  std::optional<std::size_t> process_bytes() const {
    std::optional<std::size_t> const compute = bytes_in(library_->compute_processes);
    return compute ? compute : bytes_in(library_->graphics_processes);  // a game before its first CUDA call
  }
  /// Bytes that are in use on the device, by all programs and by the driver.
  std::optional<std::size_t> used_bytes() const {
    detail::NvmlLibrary::Memory memory{};
    if (library_->memory(device_, &memory) != detail::NvmlLibrary::success) return std::nullopt;
    return std::size_t(memory.used_bytes);
  }

 private:
  NvmlDevice(detail::NvmlLibrary const& library, detail::NvmlLibrary::Device device) : library_(&library), device_(device) {}

  std::optional<std::size_t> bytes_in(decltype(detail::NvmlLibrary::compute_processes) list) const {
    if (list == nullptr) return std::nullopt;
    std::vector<detail::NvmlLibrary::Process> processes(64);
    auto n = unsigned(processes.size());
    int status = list(device_, &n, processes.data());
    for (int n_tries = 0; status == detail::NvmlLibrary::insufficient_size && n_tries < 4; ++n_tries) {
      processes.resize(std::size_t(n) + 64);  // others may start meanwhile
      n = unsigned(processes.size());
      status = list(device_, &n, processes.data());
    }
    if (status != detail::NvmlLibrary::success) return std::nullopt;
    constexpr auto not_available = ~0ull;
    std::optional<std::size_t> bytes;  // a process has an entry for each instance of a divided device
    for (unsigned i = 0; i < n && i < processes.size(); ++i) {
      detail::NvmlLibrary::Process const& process = processes[i];
      if (process.pid == unsigned(::getpid()) && process.used_bytes != not_available)
        bytes = bytes.value_or(0) + std::size_t(process.used_bytes);
    }
    return bytes;
  }

  detail::NvmlLibrary const* library_;
  detail::NvmlLibrary::Device device_;
};

}  // namespace tiered
