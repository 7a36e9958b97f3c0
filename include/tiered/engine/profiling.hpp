/// The profile of the machine that an engine, or a plan, is made for.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/pipeline/side.hpp"
#include "tiered/profile/hardware_profile.hpp"

namespace tiered {

namespace detail {

/// Whoever touches pages of a file that was cut since it was opened is ended by a signal: asked before anybody does.
/// Errors  Errc::io with both sizes.
template <Model M>
void check_file_of(M const& model) {
  if constexpr (requires { model.file().check_sizes(); }) model.file().check_sizes();
}

/// Of the device's memory while it is measured: more than its caches hold, several times.
inline constexpr std::size_t measured_device_bytes = 512 * MiB, landing_bytes = 16 * MiB;

inline AttentionShape attention_shape(ModelConfig const& config, EngineOptions const& options) {
  if (config.layers.empty()) return {};
  AttentionConfig const& a = config.layers.front().attention;
  return {a.n_heads, a.n_kv_heads, a.head_dim, options.kv_page_tokens, options.kv_type};
}

inline std::int32_t most_experts_used(ModelConfig const& config) {
  std::int32_t n = 0;
  for (LayerConfig const& l : config.layers) n = std::max(n, l.experts.n_experts_used);
  return n;
}

}  // namespace detail

/// A machine with a link of no more than this rate; 0: as it is. On a busy machine a transfer that ended late makes the next look quicker.
inline HardwareProfile with_link(HardwareProfile h, double bytes_per_s) {
  for (RateCurve* const curve : {&h.h2d, &h.d2h, &h.both_ways}) {
    double const most = (curve == &h.both_ways ? 2 : 1) * bytes_per_s;
    for (RatePoint& p : curve->points) p.per_s = bytes_per_s > 0 ? std::min(p.per_s, most) : p.per_s;
  }
  return h;
}

/// Whether profile_machine() would look for figures of this machine: it was asked to, or there is a device that is no simulation.
template <class MachineType>
bool measures(MachineType const& machine, EngineOptions const& options) {
  if (options.hardware) return false;
  if (options.profile.measure) return *options.profile.measure;
  if constexpr (requires { machine.identity(); }) return true;
  return false;
}

/// What plans for this machine and model are to be estimated with: EngineOptions::hardware, or hardware_profile() where measures(), or a
/// made-up machine. `weights`: the model's, where they lie in host memory; they are registered, where the machine does that and has not
/// yet. The device's memory is used and given back; nothing else may work.
/// Errors  as hardware_profile(); Errc::io where the model's file was cut.
template <class MachineType, Model M>
ProfileResult profile_machine(MachineType& machine, M const& model, std::span<Weight const> weights, EngineOptions const& options) {
  if (options.hardware) return {*options.hardware, ProfileSource::given, {}, {}, 0};
  if (!measures(machine, options))
    return {with_link(HardwareProfile::simulated(), options.link_bytes_per_s), ProfileSource::simulated, {}, {}, 0};
  detail::check_file_of(model);
  if constexpr (requires { machine.sources == nullptr; }) {  // what is not registered crosses the link at a fraction of its rate
    std::vector<std::span<std::byte const>> ranges;
    for (Weight const& w : weights) ranges.push_back({w.data, w.bytes()});
    if (machine.sources == nullptr) machine.register_sources(ranges);
  }
  auto& memory = machine.device->memory();
  std::size_t const capacity = memory.capacity_bytes(), used = memory.used_bytes();
  // The second backend of a bundle without a device has memory of no limit, or none.
  std::size_t const left = memory.tier() == Tier::vram ? capacity - std::min(capacity, used) : 0;
  Buffer scratch, landing;
  PageableTier pageable;
  if (left >= MeasureInput::least_device_bytes) {
    scratch = Buffer(memory, std::min(left, detail::measured_device_bytes) / 512 * 512, 512);
    if constexpr (requires { machine.pinned; }) {
      landing = Buffer(*machine.pinned, detail::landing_bytes, weight_alignment);
    } else {
      landing = Buffer(pageable, std::min(scratch.bytes(), detail::landing_bytes), weight_alignment);
    }
  }
  MeasureInput input{Side(host_device, *machine.host),
                     Side(first_gpu, *machine.device),
                     CopyLane(*machine.copy),
                     nullptr,
                     model.table(),
                     weights,
                     detail::attention_shape(model.config(), options),
                     detail::most_experts_used(model.config()),
                     scratch.span(),
                     landing.span()};
  if constexpr (requires {
                  { machine.host->team() } -> std::same_as<Team&>;
                })
    input.team = &machine.host->team();
  std::string device;
  if constexpr (requires { machine.identity(); }) {
    device = machine.identity();
  } else {
    device = "simulated device";
  }
  if (options.link_bytes_per_s > 0) device += concat(", its link held to ", options.link_bytes_per_s, " bytes/s");
  std::string const kernels =
      concat("KV ", name(options.kv_type), ", ", machine.host->kernels().name, options.f32_activations ? " f32" : "");
  int const n_threads = input.team != nullptr ? input.team->size() : options.n_threads;
  ProfileResult result =
      hardware_profile(input, machine_key(kernels.c_str(), n_threads, input.has_device() ? device : std::string()), options.profile);
  result.hardware = with_link(std::move(result.hardware), options.link_bytes_per_s);
  machine.device->synchronize();
  if constexpr (requires { machine.copy->addresses(); }) {  // other memory may be there soon, page-locked or not
    machine.copy->addresses().forget(landing.data(), landing.bytes());
  }
  return result;
}

}  // namespace tiered
