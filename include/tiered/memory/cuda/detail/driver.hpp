/// The functions of the driver that the runtime library lacks, found at run time: programs need not link the driver's library.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tiered/memory/cuda/check.hpp"

namespace tiered::detail {

/// The two enumerations agree in their numbers (since CUDA 10.1).
constexpr cudaError_t runtime_status(CUresult status) { return cudaError_t(int(status)); }
static_assert(int(CUDA_ERROR_OUT_OF_MEMORY) == int(cudaErrorMemoryAllocation));
static_assert(int(CUDA_ERROR_NOT_SUPPORTED) == int(cudaErrorNotSupported));
static_assert(int(CUDA_ERROR_ILLEGAL_ADDRESS) == int(cudaErrorIllegalAddress));

inline void driver_check(CUresult status, char const* call, std::string const& numbers = {},
                         SourceLocation where = SourceLocation::current()) {
  cuda_check(runtime_status(status), call, numbers, where);
}

/// Stores the function `name` as it was in `version` (12000 for 12.0) in `function`; null where the driver has none.
template <class Function>
void find_driver_function(Function*& function, char const* name, unsigned version) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  cudaError_t const status = cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found);
#else
  static_cast<void>(version);
  cudaError_t const status = cudaGetDriverEntryPoint(name, &address, cudaEnableDefault, &found);
#endif
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  bool const ok = status == cudaSuccess && found == cudaDriverEntryPointSuccess;
  function = ok ? reinterpret_cast<Function*>(address) : nullptr;
}

/// Physical and virtual memory apart from each other.
struct VirtualMemoryDriver {
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) free_addresses = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemGetAllocationGranularity) granularity = nullptr;

  bool complete() const { return reserve && free_addresses && create && release && map && unmap && set_access && granularity; }

  static VirtualMemoryDriver const& get() {
    static VirtualMemoryDriver const driver = [] {
      VirtualMemoryDriver d;
      constexpr unsigned version = 10020;
      find_driver_function(d.reserve, "cuMemAddressReserve", version);
      find_driver_function(d.free_addresses, "cuMemAddressFree", version);
      find_driver_function(d.create, "cuMemCreate", version);
      find_driver_function(d.release, "cuMemRelease", version);
      find_driver_function(d.map, "cuMemMap", version);
      find_driver_function(d.unmap, "cuMemUnmap", version);
      find_driver_function(d.set_access, "cuMemSetAccess", version);
      find_driver_function(d.granularity, "cuMemGetAllocationGranularity", version);
      return d;
    }();
    return driver;
  }
};

inline bool has_virtual_memory(int device) {
  decltype(&::cuDeviceGetAttribute) get_attribute = nullptr;  // no cudaDeviceAttr names this attribute
  find_driver_function(get_attribute, "cuDeviceGetAttribute", 2000);
  int value = 0;
  return get_attribute != nullptr && VirtualMemoryDriver::get().complete() &&
         get_attribute(&value, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, CUdevice(device)) == CUDA_SUCCESS && value != 0;
}

/// Whether the context that all users of the device in this process share exists already; asking does not create it.
inline bool primary_context_exists(int device) {
  decltype(&::cuDevicePrimaryCtxGetState) get_state = nullptr;
  find_driver_function(get_state, "cuDevicePrimaryCtxGetState", 7000);
  unsigned flags = 0;
  int active = 0;
  return get_state != nullptr && get_state(CUdevice(device), &flags, &active) == CUDA_SUCCESS && active != 0;
}

/// Makes `device` the thread's device for a while. Going back must not create a context on a device that nobody has used.
class UseDevice {
 public:
  explicit UseDevice(int device) {
    int now = 0;
    cuda_check(cudaGetDevice(&now), "cudaGetDevice");
    if (now != device && primary_context_exists(now)) before_ = now;
    cuda_check(cudaSetDevice(device), "cudaSetDevice");
  }
  UseDevice(UseDevice const&) = delete;
  UseDevice& operator=(UseDevice const&) = delete;
  ~UseDevice() {
    if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
  }

 private:
  int before_ = -1;
};

/// Free and all bytes of a device; creates its context.
inline std::pair<std::size_t, std::size_t> free_and_total_bytes(int device) {
  UseDevice const use(device);
  std::size_t free = 0, total = 0;
  cuda_check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return {free, total};
}

}  // namespace tiered::detail
