/// Names of devices, memory tiers, shards, weights and sequences. [device-visible]
#pragma once

#include <cstdint>

namespace tiered {

/// 0 is the CPU, 1 and up are GPUs.
struct DeviceId {
  std::int16_t value = 0;
  bool operator==(DeviceId const&) const = default;
};
inline constexpr DeviceId host_device{0}, first_gpu{1};

/// Half-open; in an Action {0, 0} means all.
struct Range {
  std::int32_t begin = 0, end = 0;
  constexpr std::int32_t size() const { return end - begin; }
  bool operator==(Range const&) const = default;
};

/// A memory tier. `pinned` means page-locked host memory and nothing else.
enum class Tier : std::uint8_t { vram, pinned, pageable, disk };
constexpr bool host_accessible(Tier t) { return t == Tier::pinned || t == Tier::pageable; }
constexpr char const* name(Tier t) {
  switch (t) {
    case Tier::vram: return "vram";
    case Tier::pinned: return "pinned";
    case Tier::pageable: return "pageable";
    case Tier::disk: return "disk";
  }
  return "?";
}

enum class ShardId : std::uint32_t {};     ///< index into Model::shards()
enum class WeightId : std::uint32_t {};    ///< index into Model::weights()
enum class SequenceId : std::uint32_t {};  ///< given by the engine, never reused

}  // namespace tiered
