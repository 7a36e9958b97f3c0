/// The CUDA device: kernels, queue, memory. Compile with the toolkit's headers and link tiered::cuda_kernels.
#pragma once

#include "tiered/core/config.hpp"

#if !TIERED_HAS_CUDA
#error "tiered was built without CUDA: configure with -DTIERED_CUDA=ON and link tiered::cuda_kernels, which defines TIERED_HAS_CUDA"
#endif

#include "tiered/engine/cuda/policies.hpp"
#include "tiered/kernels/cuda/backend.hpp"
#include "tiered/kernels/cuda/queue.hpp"
#include "tiered/kernels/cuda/table.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/ledger.hpp"
#include "tiered/memory/cuda/nvml.hpp"
#include "tiered/memory/cuda/pinned.hpp"
#include "tiered/memory/cuda/registered.hpp"
#include "tiered/memory/cuda/stream_bulk_copy.hpp"
#include "tiered/memory/cuda/stream_engine.hpp"
#include "tiered/memory/cuda/stream_lane.hpp"
#include "tiered/memory/cuda/vram.hpp"
#include "tiered/tiered.hpp"
