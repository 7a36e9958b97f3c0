/// Measures a machine: what a HardwareProfile says of it, through the engine's own devices and on the model's own weights. Link
/// tiered::cpu, or include tiered/cpu.hpp in one source file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/core/dtype.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/pipeline/side.hpp"
#include "tiered/plan/cost.hpp"

namespace tiered {

/// Attention as the model has it, and how its keys and values are kept.
struct AttentionShape {
  std::int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0, page_tokens = 0;
  DType kv_type = DType::f16;
};

/// What is measured on. All of it is borrowed, idle, and used by the calling thread only.
struct MeasureInput {
  Side host, device;
  CopyLane copy;
  Team* team = nullptr;  ///< the host's; null: how memory is read by threads is not measured
  ShardTable table;
  std::span<Weight const> weights;  ///< the table's, where they lie in host memory
  AttentionShape attention;
  std::int32_t n_experts_used = 0;
  std::span<std::byte> device_memory;  ///< overwritten; below least_device_bytes the device is not measured
  std::span<std::byte> landing;        ///< overwritten: host memory that copies from the device go to, page-locked for their full rate

  static constexpr std::size_t least_device_bytes = std::size_t{1} << 20;
  bool has_device() const { return device_memory.size() >= least_device_bytes && !landing.empty(); }
};

/// Types and shapes of the model's products, no rates yet: the largest first. One shape per type, and one per kind of expert.
std::vector<FormatRates> formats_of(ShardTable const& table);

/// Everything, in about so many seconds, of which the single-row figures are measured whatever it takes. Weights are read where they lie,
/// each far from the one before, so that they come from memory (a device gets copies of them); what lies on a disk still is read for a
/// moment at most, and the rest of it left out. Without a device, what concerns it is as in simulated().
/// Errors  device, out_of_memory, as the devices report them.
HardwareProfile measure_hardware(MeasureInput const& input, double seconds = 3);

/// The same for products of these formats only, which are put in place of those in `profile`: of a model like none that was measured.
void measure_formats(MeasureInput const& input, std::span<FormatRates const> formats, HardwareProfile& profile, double seconds = 2);

/// Whether copies to the device and reading of memory still run within a quarter of what the profile says: looks until they once did, which
/// takes a tenth of a second, or, where they never do, half of one.
bool holds_true(MeasureInput const& input, HardwareProfile const& profile);

}  // namespace tiered
