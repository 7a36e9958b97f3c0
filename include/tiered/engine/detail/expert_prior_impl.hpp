/// Defines what EngineCore does with the experts that earlier runs used: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/units.hpp"
#include "tiered/engine/engine.hpp"
#include "tiered/pipeline/byte_ring.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/profile/expert_uses.hpp"

namespace tiered::detail {

/// How much of the cache every plan leaves where it is: prompts lend a part of it to what only passes. 0 where one of them has none.
inline std::size_t lasting_cache_bytes(EnginePlans const& plans, std::span<Shard const> shards) {
  VramLayout const& decode = plans.images.front().vram;
  std::size_t bytes = decode.cache_bytes;
  for (PlanImage const& image : plans.images) {
    if (&image == &plans.images.front()) continue;
    VramLayout const& v = image.vram;
    if (v.cache_bytes == 0 || v.cache_offset != decode.cache_offset) return 0;
    std::size_t largest = 0, all = 0;
    for (Shard const& s : shards) {
      if (!image.plan.shards[std::size_t(s.id)].cached) continue;
      largest = std::max(largest, VramAccount::round_up(s.bytes));
      all += VramAccount::round_up(s.bytes);
    }
    bytes = std::min(bytes, v.cache_bytes - flow_bytes(v.cache_bytes, largest, all));
  }
  return bytes;
}

std::vector<std::int32_t> EngineCore::experts_by_layer() const {
  std::vector<std::int32_t> n(parts_.config->layers.size(), 0);
  for (Shard const& s : parts_.table.shards) {
    if (s.kind == ShardKind::expert) ++n[std::size_t(s.layer)];
  }
  return n;
}

void EngineCore::begin_with_prior(LoadTimes* times) {
  std::string const folder = options_.profile.use_files ? profile_folder(options_.profile) : std::string();
  if (options_.deterministic || folder.empty() || cache_.bytes() == 0 || !cache_.policy().learns()) return;
  LoadTimes::Scope const scope(times, "experts");
  prior_key_ = expert_uses_key(fingerprint());
  prior_.file = expert_uses_file(folder, prior_key_);
  KnownExpertUses known = read_expert_uses(prior_.file, prior_key_, experts_by_layer());
  prior_.note = std::move(known.note);
  std::vector<double> uses_per_step(parts_.table.shards.size(), 0.0);
  for (std::size_t l = 0; l < known.uses.by_layer.size(); ++l) {
    std::vector<double> const of_layer = known.uses.per_step(l, parts_.config->layers[l].experts.n_experts_used);
    if (of_layer.empty()) continue;
    for (Shard const& s : parts_.table.shards) {
      if (s.kind == ShardKind::expert && s.layer == std::int32_t(l)) uses_per_step[std::size_t(s.id)] = of_layer[std::size_t(s.expert)];
    }
  }
  cache_.policy().begin_with(uses_per_step);  // what loading ran says nothing
  prior_.filled_bytes = fill_cache(uses_per_step);
}

/// Cached experts that were used, the most first, as many as may stay. Those that are there already count, too.
std::vector<ShardId> EngineCore::experts_to_bring(std::span<double const> uses_per_step) const {
  PlanImage const& decode = plans_.images.front();
  std::vector<ShardId> wanted;
  for (Shard const& s : parts_.table.shards) {
    if (decode.plan.shards[std::size_t(s.id)].cached && uses_per_step[std::size_t(s.id)] > 0) wanted.push_back(s.id);
  }
  std::ranges::stable_sort(wanted, [&](ShardId a, ShardId b) { return uses_per_step[std::size_t(a)] > uses_per_step[std::size_t(b)]; });
  std::size_t const taken = decode.vram.cache_bytes - cache_.bytes() + cache_.used_bytes();  // by keys and values, too
  std::size_t left = lasting_cache_bytes(plans_, parts_.table.shards);
  left -= std::min(left, taken);
  std::erase_if(wanted, [&](ShardId id) { return cache_.peek(id) != nullptr; });
  auto const beyond = std::ranges::find_if(wanted, [&](ShardId id) {
    std::size_t const bytes = parts_.table.shard(id).bytes;
    return bytes > left || (left -= bytes, false);
  });
  wanted.erase(beyond, wanted.end());
  return wanted;
}

/// Copies are enqueued: the next step's stand behind them. Those that are used least come first, since keys and values grow into the pool
/// from where it begins. How many bytes.
std::size_t EngineCore::fill_cache(std::span<double const> uses_per_step) {
  constexpr std::size_t most_at_once = 64 * MiB;
  PlanImage const& decode = plans_.images.front();
  bool const knows = std::ranges::any_of(uses_per_step, [](double uses) { return uses > 0; });
  if (!knows || !decode.uses_device || decode.vram.cache_bytes == 0) return 0;
  executor_.activate(decode);
  std::vector<ShardId> const wanted = experts_to_bring(uses_per_step);
  std::vector<ExpertCache::Entry*> entries;
  std::vector<CopyPiece> pieces;
  std::vector<Ticket> after;
  std::size_t bytes = 0, all_bytes = 0;
  auto const submit = [&] {
    if (pieces.empty()) return;
    Ticket const filled = parts_.copy.submit(pieces, after);
    for (ExpertCache::Entry* const entry : entries) {
      entry->filled = filled;
      --entry->pins;
    }
    all_bytes += std::exchange(bytes, 0);
    entries.clear(), pieces.clear(), after.clear();
  };
  for (auto id = wanted.rbegin(); id != wanted.rend(); ++id) {
    Shard const& s = parts_.table.shard(*id);
    std::optional<ExpertCache::Room> const place = cache_.acquire_free(*id, s.bytes);
    if (!place) break;
    std::byte* const base = parts_.vram.data() + decode.vram.cache_offset + place->entry->offset;
    for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
      Weight const& w = parts_.weights[std::size_t(i)];
      pieces.push_back({base + w.offset, w.data, w.bytes()});
    }
    entries.push_back(place->entry);
    add_after(after, place->after);
    if ((bytes += s.bytes) >= most_at_once) submit();
  }
  submit();
  return all_bytes;
}

/// Nobody is there to be told: the next start begins with what there was.
void EngineCore::keep_uses() noexcept {
  if (prior_.file.empty()) return;
  try {
    std::span<std::uint64_t const> const counted = cache_.policy().uses();
    std::vector<std::int32_t> const n_experts = experts_by_layer();
    ExpertUses uses;
    for (std::int32_t const n : n_experts) uses.by_layer.emplace_back(std::size_t(n), 0);
    for (Shard const& s : parts_.table.shards) {
      if (s.kind == ShardKind::expert && std::size_t(s.id) < counted.size())
        uses.by_layer[std::size_t(s.layer)][std::size_t(s.expert)] = counted[std::size_t(s.id)];
    }
    if (!uses.empty()) static_cast<void>(add_expert_uses(prior_.file, prior_key_, uses));
  } catch (...) {
  }
}

}  // namespace tiered::detail
