/// Few bytes between a device and the host's memory, moved by a kernel of the device in place of a copy engine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tiered/kernels/args.hpp"
#include "tiered/pipeline/side.hpp"

namespace tiered {

/// In the queue of what needs them or made them: handing over to a copy engine and back takes some 25 us, the kernel some 3. From 256 KiB
/// on the engine is as fast.
inline constexpr std::size_t most_kernel_bytes = std::size_t{256} << 10;

/// Enqueues what is listed, however much; parts of one list overlap nowhere. `device` has the op, and maps where the parts are.
inline void transfer(Side const& device, std::span<TransferArgs::Part const> parts) {
  for (; !parts.empty(); parts = parts.subspan(std::min(parts.size(), std::size_t(TransferArgs::max_parts)))) {
    TransferArgs args;
    args.n_parts = std::int32_t(std::min(parts.size(), std::size_t(TransferArgs::max_parts)));
    std::copy_n(parts.begin(), args.n_parts, args.parts);
    tiered::launch(device.kernels().transfer, args, device.queue());
  }
}
inline void transfer(Side const& device, void const* from, void* to, std::size_t bytes) {
  TransferArgs::Part const part{from, to, std::int32_t(bytes)};
  transfer(device, {&part, 1});
}

}  // namespace tiered
