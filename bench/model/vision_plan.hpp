/// What a plan does with weights, in bytes and in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tiered/engine/planning.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/pipeline/executor.hpp"
#include "tiered/vision/vision_model.hpp"

namespace bench {

struct PlanBytes {
  double resident = 0, streamed = 0, cached = 0, host = 0;  ///< of all weights but the embedding
  std::int32_t chunk = 0;                                   ///< rows that go through a step at once
  double total() const { return resident + streamed + cached + host; }
  bool is_all_resident() const { return resident > 0 && resident == total(); }
};

inline PlanBytes plan_bytes(tiered::PlanImage const& image, tiered::ShardTable const& table) {
  PlanBytes out;
  out.chunk = image.limits.chunk;
  for (tiered::Shard const& s : table.shards) {
    if (s.kind == tiered::ShardKind::embedding) continue;
    tiered::Placement const& p = image.plan.shards[std::size_t(s.id)];
    double& where = image.vram.resident[std::size_t(s.id)] != tiered::VramLayout::none ? out.resident
                    : p.cached                                                         ? out.cached
                    : p.streamed()                                                     ? out.streamed
                                                                                       : out.host;
    where += double(s.bytes);
  }
  return out;
}

/// "resident", "streamed", "CPU", or shares of them: "38% resident, 62% streamed"; behind it the rows of a chunk, where a device has any.
inline std::string plan_words(PlanBytes const& b) {
  std::string words;
  auto const add = [&](double bytes, char const* what) {
    if (bytes <= 0) return;
    if (!words.empty()) words += ", ";
    words += bytes == b.total() ? std::string(what) : fmt::format("{:.0f}% {}", 100 * bytes / b.total(), what);
  };
  add(b.resident, "resident");
  add(b.streamed, "streamed");
  add(b.cached, "cached");
  add(b.host, "CPU");
  return b.host == b.total() ? words : words + fmt::format(", chunks of {}", b.chunk);
}

/// That the engine takes for so many rows; the last one where they are more.
inline tiered::PlanImage const& image_for(tiered::EnginePlans const& plans, std::int64_t n_rows) {
  for (std::size_t i = 0; i < plans.tiers.size(); ++i) {
    if (plans.tiers[i].rows.n >= n_rows) return plans.images[i];
  }
  return plans.images.back();
}

/// That one pass of a plan copies: streamed weights, and where somebody else had the arena, what stays there.
inline double copied_bytes(tiered::PlanImage const& image, PlanBytes const& bytes, bool brings_residents) {
  double sum = brings_residents ? bytes.resident : 0;
  for (tiered::Action const& a : image.schedule) sum += a.kind == tiered::ActionKind::copy ? double(a.bytes) : 0;
  return sum;
}

/// Where an encoder's block is when it does not stay on the device.
inline std::string home_words(tiered::RowLimits const& limits) {
  if (limits.kv_on_host) return ", rows, keys and values on the host";
  return limits.rows_on_host ? ", rows on the host" : "";
}
/// To the device beside weights, of n patches: their pixels; of a block that is on the host, hidden rows for each pass of a step, and keys
/// and values (as many bytes) for what attends.
inline double crossing_bytes(tiered::VisionModel const& model, tiered::RowLimits const& limits, std::int64_t n) {
  double const rows = double(n) * double(model.vision().dim) * sizeof(float);
  double const n_chunks = double((n + limits.chunk - 1) / limits.chunk);
  double bytes = double(n) * double(model.vision().patch_elems()) * sizeof(float);
  if (!limits.rows_on_host) return bytes;
  for (tiered::Shard const& s : model.table().shards) {
    bytes += s.n_passes * rows;
    if (!limits.kv_on_host || s.kind != tiered::ShardKind::attention) continue;
    bytes += model.vision().layers[std::size_t(s.layer)].full_attention ? n_chunks * rows : rows;
  }
  return bytes;
}

}  // namespace bench
