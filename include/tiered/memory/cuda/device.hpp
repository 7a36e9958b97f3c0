/// Opening a CUDA device: what it is, whether it can be used, and its context, kept small and on the ledger.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/detail/driver.hpp"
#include "tiered/memory/cuda/ledger.hpp"

namespace tiered {

/// 13000 as "13.0".
inline std::string cuda_version_text(int version) { return concat(version / 1000, '.', version % 1000 / 10); }

/// Number of devices that can be used, at least 1. Creates no context.
/// Errors  Errc::device: no driver, a driver older than the toolkit, no device that is visible; with the numbers.
inline int cuda_device_count() {
  int n = 0, driver = 0, toolkit = 0;
  cudaError_t const status = cudaGetDeviceCount(&n);
  if (status == cudaSuccess && n > 0) return n;
  static_cast<void>(cudaDriverGetVersion(&driver)), static_cast<void>(cudaRuntimeGetVersion(&toolkit));
  static_cast<void>(cudaGetLastError());
  if (driver == 0) throw Error(Errc::device, concat("there is no NVIDIA driver on this machine (", cuda_error_text(status), ")"));
  if (status == cudaErrorInsufficientDriver || driver / 1000 < toolkit / 1000) {
    throw Error(Errc::device,
                concat("the driver is for CUDA ", cuda_version_text(driver), ", older than the toolkit ", cuda_version_text(toolkit),
                       " that this was built with: update the driver, or build with a toolkit ", driver / 1000, ".x"));
  }
  char const* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  throw Error(Errc::device, concat("the driver (CUDA ", cuda_version_text(driver), ") sees no device",
                                   visible != nullptr ? concat("; CUDA_VISIBLE_DEVICES is \"", visible, '"') : std::string(),
                                   status == cudaSuccess ? std::string() : concat(" (", cuda_error_text(status), ")")));
}

/// Machine code runs on devices of its own generation that are not older: sm_86 on 86 and 89, not on 80 or 90. Text (PTX) for
/// `newest_ptx`, 0 if there is none, is compiled by the driver for anything newer, at the first start, which takes long.
constexpr bool runs_on(int capability, std::span<int const> built, int newest_ptx = 0) {
  for (int const architecture : built) {
    if (architecture / 10 == capability / 10 && architecture <= capability) return true;
  }
  return newest_ptx != 0 && newest_ptx <= capability;
}

inline constexpr int least_capability = 75;

/// Errc::unsupported where the device is older than every kernel, or nothing was built for it. An empty `built` asks the first only.
inline void check_architecture(std::string const& device_name, int capability, std::span<int const> built, int newest_ptx = 0) {
  if (capability < least_capability) {
    throw Error(Errc::unsupported, concat(device_name, " has compute capability ", capability / 10, '.', capability % 10,
                                          "; the kernels need ", least_capability / 10, '.', least_capability % 10, " or more"));
  }
  if (built.empty() || runs_on(capability, built, newest_ptx)) return;
  std::string list;
  for (int const architecture : built) list += concat(list.empty() ? "" : ", ", architecture);
  throw Error(Errc::unsupported, concat(device_name, " has compute capability ", capability / 10, '.', capability % 10,
                                        "; the kernels were built for ", list, ": build them for ", capability, " too"));
}

/// Loads a kernel (its host function's address), so that its first launch takes no memory.
/// Errors  Errc::unsupported where the program has no code of it for this device; Errc::device.
inline void load_kernel(void const* kernel, char const* kernel_name) {
  cudaFuncAttributes attributes;
  cudaError_t const status = cudaFuncGetAttributes(&attributes, kernel);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction || status == cudaErrorUnsupportedPtxVersion) {
    static_cast<void>(cudaGetLastError());
    throw Error(Errc::unsupported, concat("the kernel ", kernel_name, " was not built for this device: ", cuda_error_text(status)));
  }
  cuda_check(status, "cudaFuncGetAttributes", kernel_name);
}

struct CudaDeviceOptions {
  std::span<int const> built_architectures;  ///< {80, 90}: what the kernels were built for; empty: not asked
  int newest_ptx = 0;                        ///< 120 where there is PTX for compute_120 as well
  /// Stack of each thread for kernels whose need the compiler does not know; ours have none, and kernels with a frame of known size get
  /// it whatever stands here. The driver's own 1 KiB is 264 MiB for the 270,000 threads of a large device.
  std::size_t stack_bytes = 256;
};

/// A device whose context exists. Plain data; copies refer to the same device and ledger.
struct CudaDevice {
  int ordinal = 0;
  std::string name, pci_bus_id;
  int capability = 0;  ///< 90 for 9.0
  int n_multiprocessors = 0;
  int n_copy_engines = 0;  ///< transfers at once beside kernels
  std::size_t total_bytes = 0, l2_bytes = 0;
  int driver_version = 0, toolkit_version = 0;  ///< 13000 for 13.0
  bool has_virtual_memory = false;              ///< addresses and physical memory apart: VramTier can shrink and grow
  bool can_register_host_memory = false, can_register_read_only = false;
  bool reads_registered_memory = false;  ///< kernels may read registered host memory by the host's own address
  bool created_context = false;          ///< false: it was there before, with the limits of whoever made it
  std::shared_ptr<VramLedger> ledger;

  /// Makes the ledger, then the context, on which this thread works from now on, then measures the context into the ledger.
  /// A context that exists already keeps its limits.
  /// Errors  Errc::device as cuda_device_count(), or no such ordinal; Errc::unsupported for its architecture; Errc::out_of_memory.
  static CudaDevice open(int ordinal = 0, CudaDeviceOptions const& options = {}) {
    int const n = cuda_device_count();
    if (ordinal < 0 || ordinal >= n) throw Error(Errc::device, concat("there is no CUDA device ", ordinal, "; there are ", n));
    CudaDevice device = describe(ordinal);
    check_architecture(device.name, device.capability, options.built_architectures, options.newest_ptx);
    device.ledger = VramLedger::of(ordinal);
    device.created_context = !detail::primary_context_exists(ordinal);
    cuda_check(cudaSetDevice(ordinal), "cudaSetDevice", concat("device ", ordinal, ", ", device.name));
    cuda_check(cudaFree(nullptr), "creating the context", concat("device ", ordinal, ", ", device.name));  // toolkits before 12 wait
    if (device.created_context) {
      limit(cudaLimitStackSize, options.stack_bytes);
      limit(cudaLimitMallocHeapSize, 0);
      limit(cudaLimitPrintfFifoSize, 0);
    }
    device.ledger->note_context();
    return device;
  }

  /// Binds the calling thread to the device: once in every thread that calls CUDA.
  void use() const { cuda_check(cudaSetDevice(ordinal), "cudaSetDevice", concat("device ", ordinal)); }
  /// What no program has taken yet.
  std::size_t free_bytes() const { return detail::free_and_total_bytes(ordinal).first; }
  /// "NVIDIA H200 (9.0, 132 multiprocessors, 140 GiB; driver 13.0, toolkit 13.0)".
  std::string text() const {
    return concat(name, " (", capability / 10, '.', capability % 10, ", ", n_multiprocessors, " multiprocessors, ",
                  format_bytes(total_bytes), "; driver ", cuda_version_text(driver_version), ", toolkit ",
                  cuda_version_text(toolkit_version), ")");
  }

 private:
  static CudaDevice describe(int ordinal) {
    CudaDevice device;
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, ordinal), "cudaGetDeviceProperties", concat("device ", ordinal));
    char bus_id[32] = {};
    cuda_check(cudaDeviceGetPCIBusId(bus_id, int(sizeof bus_id), ordinal), "cudaDeviceGetPCIBusId", concat("device ", ordinal));
    cuda_check(cudaDriverGetVersion(&device.driver_version), "cudaDriverGetVersion");
    cuda_check(cudaRuntimeGetVersion(&device.toolkit_version), "cudaRuntimeGetVersion");
    device.ordinal = ordinal;
    device.name = properties.name;
    device.pci_bus_id = bus_id;
    device.capability = properties.major * 10 + properties.minor;
    device.n_multiprocessors = properties.multiProcessorCount;
    device.n_copy_engines = properties.asyncEngineCount;
    device.total_bytes = properties.totalGlobalMem;
    device.l2_bytes = std::size_t(properties.l2CacheSize);
    device.can_register_host_memory = attribute(cudaDevAttrHostRegisterSupported, ordinal);
    device.can_register_read_only = attribute(cudaDevAttrHostRegisterReadOnlySupported, ordinal);
    device.reads_registered_memory = attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, ordinal);
    device.has_virtual_memory = detail::has_virtual_memory(ordinal);
    return device;
  }
  /// False where it cannot be asked.
  static bool attribute(cudaDeviceAttr what, int ordinal) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, what, ordinal) == cudaSuccess) return value != 0;
    static_cast<void>(cudaGetLastError());
    return false;
  }
  /// A device that refuses 0 takes a page; one that cannot be limited so keeps what it has.
  static void limit(cudaLimit what, std::size_t bytes) {
    if (cudaDeviceSetLimit(what, bytes) == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());
    if (bytes == 0) limit(what, 4 * KiB);
  }
};

}  // namespace tiered
