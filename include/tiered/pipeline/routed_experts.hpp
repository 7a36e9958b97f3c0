/// The routed experts of one layer: which are where, fetching what is missing, both devices computing at once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/model/exec_context.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/pipeline/activations.hpp"
#include "tiered/pipeline/expert_cache.hpp"
#include "tiered/pipeline/residency.hpp"
#include "tiered/pipeline/side.hpp"
#include "tiered/pipeline/trace_log.hpp"
#include "tiered/plan/account.hpp"

namespace tiered {

/// What the current plan says and where its buffers are; filled by the executor.
struct ExpertsEnvironment {
  ShardTable table;
  ModelConfig const* config = nullptr;
  Side host, device;
  CopyLane copy;
  std::byte* host_base = nullptr;    ///< activations of the host
  std::byte* device_base = nullptr;  ///< activations of the device; null where the plan does not use it
  ActivationLayout const* layout = nullptr;
  ShardPlan const* plan = nullptr;
  VramLayout const* vram_layout = nullptr;
  std::byte* vram = nullptr;
  std::span<Ticket const> resident_ready;  ///< per shard
  ExpertCache* cache = nullptr;
  TraceLog* trace = nullptr;
};

/// Rows of one layer after its router, on the device where the hidden rows are.
struct RoutedRows {
  std::int32_t layer = 0, n_rows = 0;
  LayerConfig const* config = nullptr;
  Activation activation = Activation::silu;
  DeviceId home;
  float const* x = nullptr;           ///< [n_rows, dim]
  std::int32_t const* ids = nullptr;  ///< [n_rows, n_used]
  float const* weights = nullptr;     ///< [n_rows, n_used]
  float* hidden = nullptr;            ///< [n_rows, dim]: receives the sum
};

/// One layer at a time. Waits for the ids only; everything after is enqueued. Results do not depend on who computes an expert:
/// each slot (row, place) has its own output, and slots are summed in order of place.
class RoutedExperts {
 public:
  explicit RoutedExperts(ExpertsEnvironment const& env) : env_(&env) {}

  void run(RoutedRows const& rows, ShardId first_expert, std::uint64_t step) {
    rows_ = &rows;
    first_expert_ = first_expert;
    step_ = step;
    n_groups_ = n_slots_listed_ = 0;
    group_slots_by_expert(read_ids());
    decide();
    start_host();
    compute_in_vram();
    compute_fetched();
    finish_host();
    combine();
  }

 private:
  struct Expert {
    std::int32_t number = 0, first = 0, n = 0;  // range in slots_
    ShardId shard{};
  };
  struct Batch {
    std::vector<ExpertGroup> groups;
    std::vector<std::int32_t> slots;
    std::vector<ExpertCache::Entry*> pinned;
    std::vector<ShardId> unwanted;  // fetched, not admitted: dropped after use
    Ticket ready;                   // of the copies that filled its experts
  };

  bool home_is_device() const { return rows_->home != host_device; }
  Side const& home() const { return home_is_device() ? env_->device : env_->host; }
  std::int32_t n_used() const { return rows_->config->experts.n_experts_used; }
  std::size_t n_slots() const { return std::size_t(rows_->n_rows) * std::size_t(n_used()); }
  Shard const& shard(Expert const& e) const { return env_->table.shard(e.shard); }
  template <class T>
  T* at(std::byte* base, std::size_t offset) const {
    return reinterpret_cast<T*>(base + offset);
  }
  float* y_on(bool on_device) const { return at<float>(on_device ? env_->device_base : env_->host_base, env_->layout->expert_y); }

  std::int32_t const* read_ids() {
    Ticket const routed = home().record();
    if (!home_is_device()) {
      home().synchronize();
      return rows_->ids;
    }
    std::int32_t* const ids = at<std::int32_t>(env_->host_base, env_->layout->expert_ids);
    env_->copy.wait(env_->copy.submit({reinterpret_cast<std::byte*>(ids), reinterpret_cast<std::byte const*>(rows_->ids), n_slots() * sizeof(std::int32_t)}, routed));
    return ids;
  }

  void group_slots_by_expert(std::int32_t const* ids) {
    std::int32_t const n_experts = rows_->config->experts.n_experts;
    begins_.assign(std::size_t(n_experts) + 1, 0);
    for (std::size_t i = 0; i < n_slots(); ++i) {
      if (ids[i] < 0 || ids[i] >= n_experts) throw Error(Errc::device, concat("layer ", rows_->layer, ": the router chose expert ", ids[i], " of ", n_experts));
      ++begins_[std::size_t(ids[i]) + 1];
    }
    for (std::size_t e = 0; e < std::size_t(n_experts); ++e) begins_[e + 1] += begins_[e];
    experts_.clear();
    for (std::int32_t e = 0; e < n_experts; ++e) {
      std::int32_t const first = begins_[std::size_t(e)], n = begins_[std::size_t(e) + 1] - first;
      if (n > 0) experts_.push_back({e, first, n, ShardId(std::uint32_t(first_expert_) + std::uint32_t(e))});
    }
    slots_.resize(n_slots());
    for (std::size_t i = 0; i < n_slots(); ++i) slots_[std::size_t(begins_[std::size_t(ids[i])]++)] = std::int32_t(i);
  }

  /// Splits the layer's experts: on the host; in VRAM already; to be fetched.
  void decide() {
    on_host_.clear();
    in_vram_.clear();
    missing_.clear();
    for (Expert const& e : experts_) {
      Placement const& p = env_->plan->shards[std::size_t(e.shard)];
      if (p.resident()) {
        in_vram_.push_back(e);
      } else if (!p.cached) {
        on_host_.push_back(e);
      } else if (ExpertCache::Entry* const entry = env_->cache->find(e.shard, step_)) {
        ++entry->pins;
        in_vram_.push_back(e);
        hits_.push_back(entry);
      } else {
        missing_.push_back(e);
      }
    }
  }

  ExpertGroup group_at(Expert const& e, std::byte const* base) const {
    Range const w = shard(e).weights;
    auto const offset = [&](std::int32_t i) { return env_->table.weights[std::size_t(w.begin + i)].offset; };
    return {base + offset(0), base + offset(1), base + offset(2), 0, 0};
  }
  ExpertGroup group_on_host(Expert const& e) const {
    Range const w = shard(e).weights;
    auto const data = [&](std::int32_t i) { return env_->table.weights[std::size_t(w.begin + i)].data; };
    return {data(0), data(1), data(2), 0, 0};
  }

  /// Adds as many of the slots from `done` on as one launch takes; the new `done`.
  std::int32_t add_slots(Batch& b, Expert const& e, ExpertGroup group, std::int32_t done) const {
    std::int32_t const room = env_->layout->slots_per_launch - std::int32_t(b.slots.size());
    std::int32_t const n = std::min(room, e.n - done);
    if (n <= 0) return done;
    group.first = std::int32_t(b.slots.size());
    group.n = n;
    b.groups.push_back(group);
    auto const begin = slots_.begin() + e.first + done;
    b.slots.insert(b.slots.end(), begin, begin + n);
    return done + n;
  }

  /// Copies x to where the home is not, lets the host compute its experts; nothing waits.
  void start_host() {
    if (on_host_.empty()) return;
    float const* x = rows_->x;
    if (home_is_device()) {
      float* const host_x = at<float>(env_->host_base, env_->layout->expert_x);
      env_->host.wait_for(env_->copy.submit({reinterpret_cast<std::byte*>(host_x), reinterpret_cast<std::byte const*>(x), x_bytes()}, env_->device.record()));
      x = host_x;
    }
    Batch b;
    for (Expert const& e : on_host_) {
      for (std::int32_t done = 0; done < e.n;) {
        done = add_slots(b, e, group_on_host(e), done);
        if (done < e.n) launch_groups(b, false, x);
      }
    }
    launch(b, false, x);
    host_done_ = env_->host.record();
  }
  std::size_t x_bytes() const { return std::size_t(rows_->n_rows) * std::size_t(env_->config->dim) * sizeof(float); }

  /// x where the device can read it.
  float const* device_x() {
    if (home_is_device()) return rows_->x;
    float* const x = at<float>(env_->device_base, env_->layout->expert_x);
    if (!x_on_device_) env_->device.wait_for(env_->copy.submit({reinterpret_cast<std::byte*>(x), reinterpret_cast<std::byte const*>(rows_->x), x_bytes()}, env_->host.record()));
    x_on_device_ = true;
    return x;
  }

  void compute_in_vram() {
    x_on_device_ = false;
    Batch b;
    std::size_t next_hit = 0;
    for (Expert const& e : in_vram_) {
      Placement const& p = env_->plan->shards[std::size_t(e.shard)];
      std::byte const* base = nullptr;
      if (p.resident()) {
        base = env_->vram + env_->vram_layout->resident[std::size_t(e.shard)];
        env_->device.wait_for(env_->resident_ready[std::size_t(e.shard)]);
      } else {
        ExpertCache::Entry* const entry = hits_[next_hit++];
        base = env_->vram + env_->vram_layout->cache_offset + entry->offset;
        env_->device.wait_for(entry->filled);
        b.pinned.push_back(entry);
      }
      add_whole(b, e, base);
    }
    hits_.clear();
    launch(b, true, b.groups.empty() ? nullptr : device_x());
  }
  void add_whole(Batch& b, Expert const& e, std::byte const* base) {
    for (std::int32_t done = 0; done < e.n;) {
      done = add_slots(b, e, group_at(e, base), done);
      if (done < e.n) launch_groups(b, true, device_x());  // still pinned: the rest of its slots comes with the next launch
    }
  }

  /// Fetches in batches, so that the first compute while later ones are on the link.
  void compute_fetched() {
    Batch b;
    std::size_t fetched_bytes = 0;
    for (Expert const& e : missing_) {
      auto room = env_->cache->acquire(e.shard, shard(e).bytes);
      if (!room) {
        launch(b, true, device_x());
        fetched_bytes = 0;
        room = env_->cache->acquire(e.shard, shard(e).bytes);
      }
      if (!room) throw Error(Errc::over_budget, concat("the expert cache of ", env_->cache->bytes(), " bytes cannot hold one expert of ", shard(e).bytes));
      fetch(e, *room);
      b.ready = room->entry->filled;
      b.pinned.push_back(room->entry);
      if (!env_->cache->policy().admit(e.shard)) b.unwanted.push_back(e.shard);
      add_whole(b, e, env_->vram + env_->vram_layout->cache_offset + room->entry->offset);
      fetched_bytes += shard(e).bytes;
      if (fetched_bytes * 4 >= env_->cache->bytes()) {
        launch(b, true, device_x());
        fetched_bytes = 0;
      }
    }
    launch(b, true, b.groups.empty() ? nullptr : device_x());
  }
  void fetch(Expert const& e, ExpertCache::Room const& room) {
    std::byte* const base = env_->vram + env_->vram_layout->cache_offset + room.entry->offset;
    std::vector<CopyPiece> pieces;
    for (std::int32_t i = shard(e).weights.begin; i < shard(e).weights.end; ++i) {
      Weight const& w = env_->table.weights[std::size_t(i)];
      pieces.push_back({base + w.offset, w.data, w.bytes()});
    }
    room.entry->filled = env_->copy.submit(pieces, {&room.after, 1});
    if (env_->trace != nullptr) {
      Action const a{ActionKind::copy, first_gpu, e.shard, {0, shard(e).n_rows}, {}, room.entry->offset, shard(e).bytes};
      env_->trace->push_back({a, TraceLane::copy, {room.entry->filled.lane, room.entry->filled.value - 1}, room.entry->filled});
    }
  }
  /// Enqueues the batch, unpins its experts, and empties it.
  void launch(Batch& b, bool on_device, float const* x) {
    launch_groups(b, on_device, x);
    retire(b);
  }
  void launch_groups(Batch& b, bool on_device, float const* x) {
    if (b.groups.empty()) return;
    Side const& side = on_device ? env_->device : env_->host;
    if (on_device) side.wait_for(b.ready);
    ExpertsArgs args{};
    args.x = x;
    args.y = y_on(on_device);
    args.groups = upload(std::span<ExpertGroup const>(b.groups), env_->layout->expert_groups, n_groups_, on_device);
    args.slots = upload(std::span<std::int32_t const>(b.slots), env_->layout->expert_slots, n_slots_listed_, on_device);
    args.workspace = (on_device ? env_->device_base : env_->host_base) + env_->layout->expert_workspace;
    args.n_groups = std::int32_t(b.groups.size());
    args.n_slots = std::int32_t(b.slots.size());
    args.n_tokens = rows_->n_rows;
    args.n_used = n_used();
    args.dim = env_->config->dim;
    args.hidden_dim = rows_->config->hidden_dim;
    args.activation = rows_->activation;
    Range const w = env_->table.shard(first_expert_).weights;
    args.gate_type = env_->table.weights[std::size_t(w.begin)].dtype;
    args.up_type = env_->table.weights[std::size_t(w.begin + 1)].dtype;
    args.down_type = env_->table.weights[std::size_t(w.begin + 2)].dtype;
    tiered::launch(side.kernels().experts, args, side.queue());
    b.groups.clear();
    b.slots.clear();
  }
  void retire(Batch& b) {
    if (!b.pinned.empty()) {
      Ticket const used = env_->device.record();
      for (ExpertCache::Entry* entry : b.pinned) {
        entry->last_use = used;
        --entry->pins;
      }
    }
    for (ShardId s : b.unwanted) env_->cache->drop(s);
    b = Batch{};
  }

  /// Appends a list to the layer's list on the host, and to its twin on the device.
  template <class T>
  T const* upload(std::span<T const> list, std::size_t offset, std::size_t& n_listed, bool on_device) {
    T* const staged = at<T>(env_->host_base, offset) + n_listed;
    std::memcpy(staged, list.data(), list.size_bytes());
    T* const target = on_device ? at<T>(env_->device_base, offset) + n_listed : staged;
    n_listed += list.size();
    if (on_device) {
      env_->device.wait_for(env_->copy.submit({reinterpret_cast<std::byte*>(target), reinterpret_cast<std::byte const*>(staged), list.size_bytes()}, Ticket{}));
    }
    return target;
  }

  /// Brings the slots that the other device computed home.
  void finish_host() {
    bool const on_host = !on_host_.empty(), on_device = !in_vram_.empty() || !missing_.empty();
    if (home_is_device() && on_host) {
      bring(on_host_, false, host_done_);
    } else if (!home_is_device() && on_device) {
      Ticket const done = env_->device.record();
      bring(in_vram_, true, done);
      bring(missing_, true, done);
    }
  }
  void bring(std::vector<Expert> const& experts, bool from_device, Ticket done) {
    std::size_t const row = std::size_t(env_->config->dim);
    std::vector<CopyPiece> pieces;
    for (Expert const& e : experts) {
      for (std::int32_t i = e.first; i < e.first + e.n; ++i) {
        std::size_t const slot = std::size_t(slots_[std::size_t(i)]);
        pieces.push_back({reinterpret_cast<std::byte*>(y_on(!from_device) + slot * row), reinterpret_cast<std::byte const*>(y_on(from_device) + slot * row), row * sizeof(float)});
      }
    }
    if (!pieces.empty()) home().wait_for(env_->copy.submit(pieces, {&done, 1}));
  }

  void combine() {
    float* const sum = at<float>(home_is_device() ? env_->device_base : env_->host_base, env_->layout->expert_sum);
    KernelTable const& k = home().kernels();
    tiered::launch(k.combine, CombineArgs{y_on(home_is_device()), rows_->weights, sum, rows_->n_rows, n_used(), env_->config->dim}, home().queue());
    tiered::launch(k.add, AddArgs{sum, rows_->hidden, std::int64_t(rows_->n_rows) * env_->config->dim}, home().queue());
  }

  ExpertsEnvironment const* env_;
  RoutedRows const* rows_ = nullptr;
  ShardId first_expert_{};
  std::uint64_t step_ = 0;
  std::vector<std::int32_t> begins_, slots_;  // slots by expert
  std::vector<Expert> experts_, on_host_, in_vram_, missing_;
  std::vector<ExpertCache::Entry*> hits_;
  std::size_t n_groups_ = 0, n_slots_listed_ = 0;
  Ticket host_done_;
  bool x_on_device_ = false;
};

}  // namespace tiered
