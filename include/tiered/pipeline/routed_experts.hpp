/// The routed experts of one layer: which are where, fetching what is missing, both devices computing at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiered/model/exec_context.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/pipeline/activations.hpp"
#include "tiered/pipeline/expert_cache.hpp"
#include "tiered/pipeline/expert_flow.hpp"
#include "tiered/pipeline/few_routed.hpp"
#include "tiered/pipeline/routed_rows.hpp"
#include "tiered/pipeline/shared_flow.hpp"

namespace tiered {

/// One layer at a time. Waits for the ids only, and not even for them where one op does it all: where all experts of the layer are
/// computed where its rows are, or come ahead of the ids (ExpertFlow); everything after is enqueued. Each slot (row, place) has its own
/// output, and slots are summed in order of place, whoever computed them; where a block has more rows than there is room for slots of,
/// they are added to the rows window by window, in order of their experts: the same bits whatever is in a window. Few rows: FewRouted says
/// its own order, and SharedFlow that of layers that the host has a part in.
class RoutedExperts {
 public:
  explicit RoutedExperts(ExpertsEnvironment const& env) : env_(&env), few_(env), flow_(env), shared_(env) {}

  /// For a new plan: `first_experts` per layer. Tells the device where experts are, in layers that have all of them in VRAM; enqueued.
  void prepare(std::span<ShardId const> first_experts);
  /// All copies so far are done: nothing needs to wait for them any more.
  void settled() { tables_ready_ = {}; }
  /// Whether run() takes all experts of a layer in one op, without waiting, where its rows are on `home`.
  bool at_once(std::int32_t layer, DeviceId home) const;
  /// Whether run() takes rows whose norm is not yet done.
  bool norms(std::int32_t layer, std::int32_t n_rows, DeviceId home) const;

  void run(RoutedRows const& rows, ShardId first_expert, std::uint64_t step);

  /// Before a step with help, which does not come by run(): the cache has again what it lent to whole layers.
  void stop_flow(std::uint64_t step) { flow_.stop(step); }
  /// As its members are: with ExpertsEnvironment::helps, run() only enqueues.
  FewRouted& few() { return few_; }
  FewRouted const& few() const { return few_; }
  SharedFlow& shared() { return shared_; }
  SharedFlow const& shared() const { return shared_; }

 private:
  enum class Place : std::uint8_t { mixed, host, device };
  struct Expert {
    std::int32_t number = 0, first = 0, n = 0;  // range in slots_
    ShardId shard{};
  };
  struct Batch {
    std::vector<ExpertGroup> groups;
    std::vector<std::int32_t> slots;
    std::vector<ExpertCache::Entry*> pinned;
    std::vector<ShardId> unwanted;  // fetched, not admitted: dropped after use
    std::vector<CopyPiece> pieces;  // not yet submitted, and after what; for whom
    std::vector<Ticket> after;
    std::vector<std::pair<ExpertCache::Entry*, ShardId>> fetched;
    Ticket ready;  // of the copies that filled its experts
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

  /// Whether one op on the home device can do it all.
  bool all_at_home() const;
  bool adds_itself() const { return home().kernels().fused_rows > 0; }
  void compute_at_home();
  /// Slots of all rows, sorted by expert, in pieces, rather than those of some rows after those of others: an expert meets all its rows at
  /// once, in tiles that are full. 8192 rows of 128 experts of 768 x 2048 in Q4_0 took an H200 4.6 ms in four parts, 3.4 in windows that
  /// have all rows; a prompt of 16384 tokens came 12 to 17 % sooner so.
  bool at_home_in_pieces() const;
  /// For the slots of all rows, rather than of those of a window's piece.
  bool has_room() const { return rows_->n_rows <= env_->layout->expert_rows; }
  /// All rows and experts; `weights` [n_experts] says where those are.
  void launch_routed(ExpertGroup const* weights);
  /// Experts that come ahead of the ids: window after window.
  void compute_flow();
  /// Groups the slots of all rows.
  ExpertWindowArgs begin_windows(ExpertGroup const* weights);
  void launch_window(ExpertWindowArgs& args, Range experts);
  ExpertGroup const* weights_at_home();
  ExpertsArgs common_args(float const* x, bool on_device) const;

  std::int32_t const* read_ids();
  void group_slots_by_expert(std::int32_t const* ids);

  /// Splits the layer's experts: on the host; in VRAM already; to be fetched.
  void decide();
  ExpertGroup group_at(Expert const& e, std::byte const* base) const;
  ExpertGroup group_on_host(Expert const& e) const;
  /// Adds as many of the slots from `done` on as one launch takes; the new `done`.
  std::int32_t add_slots(Batch& b, Expert const& e, ExpertGroup group, std::int32_t done) const;

  /// Copies x to where the home is not, lets the host compute its experts; nothing waits.
  void start_host();
  std::size_t x_bytes() const { return std::size_t(rows_->n_rows) * std::size_t(env_->config->dim) * sizeof(float); }

  /// x where the device can read it.
  float const* device_x();
  void compute_in_vram();
  void add_whole(Batch& b, Expert const& e, std::byte const* base);
  /// Fetches in batches, so that the first compute while later ones are on the link.
  void compute_fetched();
  std::optional<ExpertCache::Room> room_for(Expert const& e, bool stays);
  void fetch(Batch& b, Expert const& e, ExpertCache::Room const& room);
  void submit_copies(Batch& b);
  /// Enqueues the batch, unpins its experts, and empties it.
  void launch(Batch& b, bool on_device, float const* x);
  void launch_groups(Batch& b, bool on_device, float const* x);
  void retire(Batch& b);

  /// Appends a list to the layer's list on the host, and to its twin on the device.
  template <class T>
  T const* upload(std::span<T const> list, std::size_t offset, std::size_t& n_listed, bool on_device);

  /// Brings the slots that the other device computed home.
  void finish_host();
  void bring(std::vector<Expert> const& experts, bool from_device, Ticket done);
  void combine();

  ExpertsEnvironment const* env_;
  FewRouted few_;
  ExpertFlow flow_;
  SharedFlow shared_;
  std::array<Ticket, 4> flowed_{};  // ends of the last layers that came that way
  std::size_t n_flowed_ = 0;
  RoutedRows const* rows_ = nullptr;
  ShardId first_expert_{};
  std::uint64_t step_ = 0;
  std::vector<std::int32_t> begins_, slots_;  // slots by expert
  std::vector<Expert> experts_, on_host_, in_vram_, missing_;
  std::vector<ExpertCache::Entry*> hits_;
  std::vector<std::vector<ExpertGroup>> host_weights_;  // per layer, of all its experts; read by ops that are enqueued
  std::vector<Place> places_;                           // per layer: who computes its experts
  Ticket tables_ready_;                                 // of the device's tables, and of all residents before
  std::size_t n_groups_ = 0, n_slots_listed_ = 0;
  Ticket host_done_;
  bool x_on_device_ = false;
};

}  // namespace tiered
