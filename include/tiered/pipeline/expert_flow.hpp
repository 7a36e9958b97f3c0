/// Experts of layers that a block of many rows uses whole: copied ahead of the router, in file order and large pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tiered/pipeline/byte_ring.hpp"
#include "tiered/pipeline/routed_rows.hpp"

namespace tiered {

/// Brings a layer in windows: stretches of its experts whose missing ones lie side by side in a ring, gate of all, up of all, down of all,
/// as they do in the file. The ring is lent by the cache (plan/expert_flow.hpp says how much), whose other entries stay where they are: so
/// the next block finds them. Where experts of a window are is told to the device with the copies, in its table of the layer; who runs
/// them needs no ids on the host. Nothing waits here. Windows come in order of layers and experts:
/// begin(), { next(), release() } until next() gives none, copy_ahead().
class ExpertFlow {
 public:
  /// Experts [experts) of the layer are in VRAM, and its table says where, after `ready`.
  struct Window {
    std::int32_t layer = -1;
    Range experts;
    Ticket ready;
    std::vector<ShardId> pinned;  ///< in the cache
    std::optional<ByteRing::Handle> in_ring;
    std::size_t ring_begin = 0, ring_end = 0;
  };

  explicit ExpertFlow(ExpertsEnvironment const& env) : env_(&env) {}

  /// For a new plan: `first_experts` per layer.
  void prepare(std::span<ShardId const> first_experts);
  /// Whether these rows' experts come this way: all on the device, many rows, some experts missing.
  bool takes(RoutedRows const& rows) const { return rows.home != host_device && takes(rows.layer, rows.n_rows); }

  /// A layer of the block number `step`.
  void begin(std::int32_t layer, std::int32_t n_rows, std::uint64_t step);
  /// The layer's next window, its copies enqueued; null after the last. Stays until release().
  Window const* next();
  /// The window was used, last by what `used` records.
  void release(Ticket used);
  /// Issues the first copies of the next layer that comes this way.
  void copy_ahead();
  /// Rows that do not come this way: gives the cache its room back, unless others of their block did.
  void stop(std::uint64_t step);

 private:
  static constexpr std::size_t most_ahead = 6;  // windows of the next layer: as many as the flow holds

  struct Layer {
    ShardId first{};
    std::int32_t n_experts = 0;
    bool flows = false;
  };
  /// A window in the making.
  struct Draft {
    Window window;
    std::vector<ShardId> passing, filled;  // through the ring; into new entries of the cache
    std::vector<ExpertGroup> table;        // of the window's experts
    std::size_t bytes = 0;                 // to be copied
  };

  bool takes(std::int32_t layer, std::int32_t n_rows) const;
  Layer const& layer(std::int32_t number) const { return layers_[std::size_t(number)]; }
  ShardId expert(std::int32_t of_layer, std::int32_t e) const { return ShardId(std::uint32_t(layer(of_layer).first) + std::uint32_t(e)); }
  Shard const& shard(ShardId id) const { return env_->table.shard(id); }
  Weight const& weight(ShardId id, std::int32_t i) const { return env_->table.weights[std::size_t(shard(id).weights.begin + i)]; }
  std::byte* pool() const { return env_->vram + env_->vram_layout->cache_offset; }

  void borrow();
  void drop_windows();
  std::size_t ring_place(std::size_t bytes) const;
  void add_window();
  bool add_expert(Draft& d, ShardId id);
  ExpertGroup& table_of(Draft& d, ShardId id);
  void set_table(Draft& d, ShardId id, std::byte const* base);
  void lay_out_passing(Draft& d, std::vector<CopyPiece>& pieces);
  void submit(Draft& d);

  ExpertsEnvironment const* env_;
  std::vector<Layer> layers_;
  std::size_t largest_ = 0, all_ = 0;  // bytes of an expert that passes; of all that may
  ByteRing ring_;
  std::size_t ring_offset_ = 0, ring_head_ = 0;  // in the pool; in the ring
  std::vector<Window> windows_;                  // copied, not released; few
  std::int32_t layer_ = -1, n_rows_ = 0;         // that run now
  std::int32_t next_layer_ = -1, next_expert_ = 0;
  std::uint64_t step_ = 0;
  Ticket last_used_;
  std::vector<Ticket> after_;
};

}  // namespace tiered
