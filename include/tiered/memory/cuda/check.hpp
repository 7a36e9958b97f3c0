/// CUDA status codes as errors of the library.
#pragma once

#include <string>

#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace tiered {

/// Whether `status` ends the process's context on the device: every later call fails too, and only a new process helps.
/// 226 is cudaErrorContained and 721 cudaErrorTensorMemoryLeak, which toolkits before 12.8 do not name.
constexpr bool is_fatal(cudaError_t status) {
  switch (int(status)) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case 226:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case 721:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

constexpr Errc errc_of(cudaError_t status) { return status == cudaErrorMemoryAllocation ? Errc::out_of_memory : Errc::device; }

/// "cudaErrorMemoryAllocation (2): out of memory".
inline std::string cuda_error_text(cudaError_t status) {
  return concat(cudaGetErrorName(status), " (", int(status), "): ", cudaGetErrorString(status));
}

/// Throws where `status`, which `call` returned, is no success: Errc::out_of_memory or Errc::device. `numbers` stands behind the text.
/// Forgets the thread's last error, or the next launch would report this one; errors that are fatal cannot be forgotten.
inline void cuda_check(cudaError_t status, char const* call, std::string const& numbers, SourceLocation where = SourceLocation::current()) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw Error(errc_of(status),
              concat(call, ": ", cuda_error_text(status), is_fatal(status) ? "; the device is lost to this process" : "",
                     numbers.empty() ? "" : "; ", numbers),
              where);
}
inline void cuda_check(cudaError_t status, char const* call, SourceLocation where = SourceLocation::current()) {
  if (status != cudaSuccess) cuda_check(status, call, std::string(), where);
}

}  // namespace tiered
