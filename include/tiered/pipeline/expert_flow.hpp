/// Experts of layers that a block of many rows uses whole: copied ahead of the router, in file order and large pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tiered/pipeline/byte_ring.hpp"
#include "tiered/pipeline/routed_rows.hpp"
#include "tiered/plan/expert_share.hpp"

namespace tiered {

/// Brings a layer in windows: stretches of its experts whose missing ones lie side by side in a ring, gate of all, up of all, down of all,
/// as they do in the file. The ring is lent by the cache (plan/expert_flow.hpp says how much), whose other entries stay where they are: so
/// the next block finds them. Where experts of a window are is told to the device with the copies, in its table of the layer; who runs
/// them needs no ids on the host. Nothing waits here. Windows come in order of layers and experts:
/// begin(), { next(), release() } until next() gives none, copy_ahead().
///
/// Where the host takes a part of a layer (is_shared()), experts come in another order, by which the device then counts them, too: first
/// those copied ahead, for which earlier prompts had most rows, no more than cross until the host knows the layer's ids; after
/// begin() arrange() orders the rest, and leaves those with the fewest rows to the host.
class ExpertFlow {
 public:
  /// Experts of ranks [experts) of the layer are in VRAM, and its table says where, after `ready`. The rank is the expert's number, but in
  /// shared layers.
  struct Window {
    std::int32_t layer = -1;
    Range experts;
    std::int32_t n_copied = 0;
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
  /// Whether the host takes a part of the layer that began: then arrange() comes before next(), with the rows routed to each expert.
  bool is_shared() const { return shared_; }
  /// Ranks that are the host's: the last ones.
  Range arrange(std::span<std::int32_t const> rows);
  std::span<std::int32_t const> order() const { return order_; }  ///< experts by rank
  std::span<std::int32_t const> ranks() const { return ranks_; }  ///< and ranks by expert
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
    std::vector<ShardId> passing, filled;   // through the ring; into new entries of the cache
    std::vector<ExpertGroup> table;         // of the window's experts
    std::size_t bytes = 0, most_bytes = 0;  // to be copied; of all that are
  };

  bool takes(std::int32_t layer, std::int32_t n_rows) const;
  bool shares(std::int32_t layer);
  void start(std::int32_t layer);
  void fill_ahead();
  Layer const& layer(std::int32_t number) const { return layers_[std::size_t(number)]; }
  ShardId expert(std::int32_t of_layer, std::int32_t e) const { return ShardId(std::uint32_t(layer(of_layer).first) + std::uint32_t(e)); }
  std::int32_t rank(ShardId id) const { return ranks_[std::size_t(id) - std::size_t(layer(next_layer_).first)]; }
  bool has_expert(std::int32_t of_layer, std::int32_t e) const;
  std::size_t window_bytes() const;
  Shard const& shard(ShardId id) const { return env_->table.shard(id); }
  Weight const& weight(ShardId id, std::int32_t i) const { return env_->table.weights[std::size_t(shard(id).weights.begin + i)]; }
  std::byte* pool() const { return env_->vram + env_->vram_layout->cache_offset; }

  void borrow();
  void drop_windows();
  std::size_t ring_place(std::size_t bytes) const;
  bool add_window(std::size_t most_bytes);
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
  std::int32_t next_layer_ = -1, next_rank_ = 0;
  // of next_layer_:
  bool shared_ = false;
  std::int32_t n_device_ = 0;  // ranks behind are the host's
  std::vector<std::int32_t> order_, ranks_;
  std::vector<std::int32_t> expected_;  // rows, of a layer of so many experts
  std::int32_t expected_n_rows_ = 0;
  std::vector<std::vector<float>> seen_;  // per layer: rows of each expert, those of a prompt half as much as of the next
  std::uint64_t step_ = 0;
  Ticket last_used_;
  std::vector<Ticket> after_;
};

}  // namespace tiered
