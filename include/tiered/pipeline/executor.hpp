/// Runs schedules: the one place where copies, both devices, ring, cache and KV meet.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/model/batch.hpp"
#include "tiered/model/kv_cache.hpp"
#include "tiered/pipeline/activations.hpp"
#include "tiered/pipeline/byte_ring.hpp"
#include "tiered/pipeline/expert_cache.hpp"
#include "tiered/pipeline/helped_attention.hpp"
#include "tiered/pipeline/host_access.hpp"
#include "tiered/pipeline/idle_reading.hpp"
#include "tiered/pipeline/residency.hpp"
#include "tiered/pipeline/room_listener.hpp"
#include "tiered/pipeline/routed_experts.hpp"
#include "tiered/pipeline/row_port.hpp"
#include "tiered/pipeline/side.hpp"
#include "tiered/pipeline/step_context.hpp"
#include "tiered/pipeline/trace_log.hpp"
#include "tiered/plan/any_state_cost.hpp"
#include "tiered/plan/hardware.hpp"
#include "tiered/plan/schedule.hpp"

namespace tiered {

/// A model whose type is erased.
class ModelRef {
 public:
  template <Model M>
  explicit ModelRef(M const& model)
      : model_(&model), run_([](void const* m, Step s, ExecContext& c) { static_cast<M const*>(m)->run(s, c); }) {}
  void run(Step step, ExecContext& ctx) const { run_(model_, step, ctx); }

 private:
  void const* model_;
  void (*run_)(void const*, Step, ExecContext&);
};

/// One token tier's plan with everything laid out. Must outlive its use by an executor.
struct PlanImage {
  ShardPlan plan;
  Schedule schedule;
  RowLimits limits;
  VramLayout vram;
  ActivationLayout activations{};
  bool uses_device = false;
  bool output_by_rows = false;  ///< the head goes through the ring in pieces: at most max_outputs_per_run wanted rows a block
};

/// A row of a block: its sequence as the slot that the KV cache knows it by.
struct BlockRow {
  std::int32_t slot = 0, position = 0, token = 0;
  bool want_logits = false;
  std::array<std::int32_t, rope_position_rows> rope_positions{};  ///< where the model has several rows of them; else `position` turns
  float const* embedding = nullptr;                               ///< [dim], in host memory until the block is done; null: the token's
  std::ptrdiff_t next_plane = 0;                                  ///< from `embedding` to what is added behind layer 0, and so on
  std::array<Range, 2> seen{};  ///< rows of the block that it may see, itself among them, where the model has a BlockConfig
};

/// Borrowed parts of an engine.
struct ExecutorParts {
  ShardTable table;  ///< weights as they lie in host memory
  ModelConfig const* config = nullptr;
  Side host, device;
  CopyLane copy;
  /// Keys and values, and all that a step waits for but weights: rows of activations, vectors, inputs, logits. So these do not stand behind
  /// weights that are copied ahead, nor weights behind what the device has yet to compute; none: `copy` takes them.
  CopyLane kv_copy;
  std::byte* vram = nullptr;
  std::byte* host_base = nullptr;  ///< activations of the host, large enough for every plan
  KvCache* kv = nullptr;
  ExpertCache* cache = nullptr;
  TraceLog* trace = nullptr;
  std::atomic<bool> const* cancelled = nullptr;
  HostAccess host_access;  ///< of the device's kernels; embeddings that they may read they look up
  /// Steps of up to so many rows, all of which want logits, are captured, at their first time or by capture(), and launched as one from
  /// then on, where the device can and nothing else takes part in them; 0: none. Each number of rows is a graph of each plan, and a
  /// graph takes memory of the device that no plan counts: more than 1 only where capture() makes them all when loading.
  std::int32_t capture_rows = 1;
  std::uint64_t help_patience_ns = 0;  ///< how long the device waits for the host within a step; 0: HelpArgs::patience_ns
  LookAhead look_ahead = LookAhead::planned;
  bool read_ahead = false;  ///< as in EngineOptions
  /// What plans were made with, both: whether attention of many rows goes to keys and values in host memory, or they come to the device.
  AnyStateCost state_cost;
  HardwareProfile hardware = HardwareProfile::simulated();
};

/// Walks a schedule and enqueues. The calling thread waits where it cannot do without. Within a block: for ids that a router chose
/// (RoutedExperts, SharedFlow), for what a helped step may ask as long as it runs, for logits, and for the half of a port's room that is
/// used again; at its end for everything. Between blocks: activate() for copies of the plan before, share_room() for those into what it
/// gives back. After an exception call recover(). One thread.
class Executor final : public StepContext {
 public:
  Executor(ModelRef model, ExecutorParts const& parts);
  ~Executor() override;

  /// Makes a plan the current one: brings the residents that are not where it has them. Copies are enqueued, nothing computes yet.
  void activate(PlanImage const& image);
  /// The expert cache has what keys and values do not use of its room; activate() sees to it. Between blocks, where pages were reserved
  /// that somebody else than a block is going to write.
  void share_room();
  /// Residents of a plan that the caller brings: what is to be copied where. From here on activate() takes them to be there, and no block
  /// may need one of them before it is.
  std::vector<CopyPiece> hand_over(PlanImage const& image, std::span<ShardId const> residents);
  /// One block through all layers; `logits` receives [number of wanting rows, vocab_size]. `port`: of a model with a BlockConfig, whose
  /// rows all have slot 0 and their number in the block as position; `listener`: of these, is told of room as soon as no weights are to be
  /// copied any more. Errors  of lanes and launches; Errc::cancelled; what `port` and `listener` throw.
  void run_block(std::span<BlockRow const> rows, float* logits, RowPort* port = nullptr, RoomListener* listener = nullptr);
  /// Between blocks, where no plan is current: brings a resident once `after` is done, though nothing of it is current yet. It is at the
  /// same place in all plans that may be activated next.
  void bring_back(PlanImage const& image, ShardId resident, Ticket after);
  /// Waits for what bring_back() copies. Errors  of lanes; recover() then.
  void wait_for_copies();
  /// Issues the copies that stand before the first step of the current plan, while whoever called samples: for when the next
  /// block has the same plan.
  void copy_ahead();
  /// Waits for all lanes, forgets errors and whatever was in flight.
  void recover() noexcept;
  /// Waits for all lanes, and takes nothing to be in VRAM any more but keys and values: the next activate() brings it again. Captured steps
  /// stay. Whoever else wrote to VRAM since must be done by then.
  /// Errors  of lanes; recover() then.
  void leave_vram();
  /// Activations of the host lie here from the next activate() on. Between blocks.
  void move_host(std::byte* host_base);

  /// Whether a step of the current plan is one stretch of launches on the device, the same each time: between the upload of its rows'
  /// numbers and the download of its logits nobody waits, copies, or looks at a result. Of rows whose positions are in VRAM.
  bool is_capturable(std::int32_t n_rows, std::int32_t n_outputs) const;
  /// Whether steps of one row of the current plan are one launch in which the device may ask the host for experts (FewRouted::enqueue).
  bool is_helped() const { return image_ != nullptr && helped_ && !only_device_ && p_.device.can_capture(); }
  HelpCounters help_counters() const;
  SharedFlowCounters const& shared_counters() const { return routed_.shared().counters(); }
  /// Launches what such steps do, so that it is loaded; position 0 of slot 0 is overwritten. `logits`: [vocab_size], of no use.
  void load_helped(float* logits) { load_enqueued(logits, false); }
  /// Whether such steps, and those in which the device asks for nothing else, are one launch behind longer contexts than VRAM has keys and
  /// values of (HelpedAttention).
  bool helps_attention() const { return image_ != nullptr && helps_attention_ && p_.capture_rows > 0 && p_.device.can_capture(); }
  /// Likewise of these; and captures one.
  void load_helped_attention(float* logits);
  /// Captures steps of n_rows rows of the current plan ahead of the first of them; false where such steps are not captured.
  bool capture(std::int32_t n_rows);
  /// After a block of at least one row: launches what the device's part of attention takes once contexts pass from its memory into the
  /// host's, so that it is loaded. Position 0 of slot 0 is overwritten.
  void load_split_attention();

  float const* vector(WeightId id) override;
  void matmul(WeightId id, Activations& x, float* y, float const* bias) override;
  void matmul_set(std::span<ProductRequest const> products, Activations& x) override;
  void matmul_add(WeightId id, Activations& x, float* spare, float const* bias) override;
  Activations gated_matmul(WeightId gate, WeightId up, Activations& x, float* y, float* spare, Activation activation) override;
  void router(RouterRequest const& request, Activations& x) override;
  void embed(WeightId table, float scale) override;
  void attend(AttendRequest const& request) override;
  void experts(ExpertsRequest const& request) override;
  void keep(AttendRequest const& request) override;
  std::byte const* inputs(std::int32_t plane) override;
  float* outputs_to(std::int32_t plane, std::int32_t dim) override;

 private:
  struct Piece {
    ShardId shard{};
    Range rows;
    ByteRing::Handle handle{};
    std::byte* data = nullptr;
    std::size_t origin = 0;  // offset of its first row in the shard
  };
  /// Stays valid when another plan is current meanwhile: a plan has everything where it had it.
  struct Graph {
    PlanImage const* image = nullptr;
    std::int32_t n_rows = 0;
    bool asks_attention = false;
    GraphRef graph;
  };

  /// Rows on their way out of the model.
  struct Leaving {
    std::int32_t plane = 0;
    Range rows;
    std::size_t bytes = 0;
    Ticket there;  // once this is done they are in host memory
  };
  /// Of the two that a block's chunks use in turn.
  struct PortHalf {
    Ticket copied, used;  // of inputs: the host's bytes may change after the one, the device's after the other
    Ticket rows_there;    // hidden rows, on the device
    Leaving leaving;
  };

  /// Which homes the positions that a chunk sees or adds have.
  struct Homes {
    std::int32_t border = 0;  // positions below it are in VRAM
    bool vram = false, host = false;
  };
  /// Scratch for attention in several passes over the context: a running sum and the part to be added.
  struct StreamedSums {
    float *parts = nullptr, *log_sum_exp = nullptr;  // [2, n_rows, n_heads, head_dim]; [2, n_rows, n_heads]
    std::byte* workspace = nullptr;
  };

  static constexpr ShardId no_step{0xffffffffu};

  bool on_device() const { return side_ == &p_.device; }
  CopyLane& kv_copy() { return p_.kv_copy ? p_.kv_copy : p_.copy; }
  std::byte* base_of(bool device) const { return device ? p_.vram + image_->vram.scratch_offset : p_.host_base; }
  template <class T>
  T* buffer(bool device, std::size_t offset) const {
    return reinterpret_cast<T*>(base_of(device) + offset);
  }
  Shard const& shard(ShardId id) const { return p_.table.shard(id); }
  bool skips(ShardId id) const { return outputs_total_ == 0 && shard(id).kind == ShardKind::output; }

  std::int32_t rows_of(WeightId id) const override { return p_.table.weight(id).rows; }
  RowProduct row_product(WeightId id) const {
    Weight const& w = p_.table.weight(id);
    return kernels_->product(w.dtype, w.row_bits);
  }
  MatmulArgs host_product(WeightId id, Activations& x, float* y, float const* bias);
  std::byte const* whole(Weight const& w);
  bool fused_args(FusedMatmulArgs& args, std::span<ProductRequest const> products, Activations& x, FusedMatmulArgs::Then then);
  bool fused(std::span<ProductRequest const> products, Activations& x, FusedMatmulArgs::Then then,
             Activation activation = Activation::silu);
  void product(Kernel<MatmulArgs> kernel, WeightId id, Activations& x, float* y, float const* bias);
  std::byte const* resident(WeightId id);
  void prepare_input(AttendRequest const& r, bool kv_here);
  bool streams_kv(AttendRequest const& r) const;
  void attend_in(AttendRequest const& r, bool in_vram);
  void attend_split(AttendRequest const& r);
  void attend_streamed(AttendRequest const& r);
  void attend_helped(AttendRequest const& r);
  void attend_stretch(AttendRequest const& r, StreamedSums const& sums, Range rows);
  void bring_pages(std::int32_t layer, std::int32_t slot, Range positions, Range area);
  void store_streamed(AttendRequest const& r, Range rows, Range area);
  void wait_for_streamed();
  Homes homes_of(AttendRequest const& r) const;
  AttentionArgs attention_args(AttendRequest const& r, float const* q, bool device, Range rows) const;
  void store_kv(AttendRequest const& r, float const* k, float const* v, bool device, Range rows);
  void store_own(AttendRequest const& r, float const* k, float const* v, bool device);
  std::byte* stream_page(std::int32_t layer, int kv, std::int32_t page) const;
  AttentionInputArgs input_args(AttendRequest const& r) const;
  bool rows_apart() const;
  void attend_in_block(AttendRequest const& r);
  AttentionArgs block_attention_args(AttendRequest const& r) const;
  void attend_by_pages(AttendRequest const& r, AttentionArgs args, Range positions);
  bool brings_block_kv() const { return on_device() && image_->limits.kv_on_host; }
  CopyPiece block_page_piece(std::int32_t page, bool to_device) const;
  KvTable const* block_table() const;
  std::byte* block_page(bool device, std::int32_t page, int kv) const;
  void set_block_table();
  void set_environment();
  std::size_t half_of(std::int32_t row) const;
  std::size_t chunk_half() const { return half_of(chunk_begin_); }
  bool brings_rows() const { return on_device() && image_->limits.rows_on_host; }
  CopyPiece hidden_piece(std::int32_t begin, bool to_device) const;
  void begin_chunk(Step step);
  void end_chunk();
  void hand_out(PortHalf& half);
  void forget() noexcept;
  void upload_kv_tables();
  void refresh_kv_tables();
  KvTable const* kv_tables(std::int32_t layer, bool device) const;
  void fill_inputs(std::span<BlockRow const> rows);
  std::size_t find_vectors(std::int32_t plane, float* to);
  void copy_vectors();
  void place_vectors();
  void add_vectors(std::int32_t layer);
  void upload_inputs();
  bool kernel_moves(std::size_t bytes) const;
  void cross(bool to_device, std::span<CopyPiece const> pieces, Ticket ready);
  void copy_vector(Weight const& w, std::byte* dst);
  void walk();
  void begin_telling(RoomListener* listener);
  void tell(Action const& done);
  void check_cancelled(std::int32_t layer) const;
  bool only_device(bool helped) const;
  bool device_embeds() const;
  void bring(ShardId id, std::size_t at, Ticket after);
  void settle();
  void run_captured();
  bool asks_attention(std::span<BlockRow const> rows) const;
  void load_enqueued(float* logits, bool asks_attention);
  void run_helped(bool asks_attention);
  bool waited_in_vain(bool asks_attention);
  void enqueue_helped(bool asks_attention);
  GraphRef capture_walk(bool asks_attention = false);
  GraphRef find_graph(std::int32_t n_rows, bool asks_attention = false) const;
  void do_copy(Action const& a);
  void do_release(Action const& a);
  void do_hop(Action const& a);
  void do_run(Action const& a);
  void do_fetch_routed(Action const& a);
  bool reads_when_idle() const {
    return p_.read_ahead && p_.host.kernels().read_when_idle != nullptr && p_.host.queue_now().native != nullptr;
  }
  void stop_reading();
  void run_chunks(Step step);
  void run_output(Step step);
  void download_logits(std::int32_t first, std::int32_t n);
  // Where nobody asks for times, nothing is recorded; steps with help keep their own.
  bool traces() const { return p_.trace != nullptr && !env_.helps && !asks_attention_; }
  Ticket mark() const { return traces() ? side_->record() : Ticket{}; }
  void set_rows(std::int32_t begin, std::int32_t n);
  void advance_to(Shard const& s, std::int32_t row);
  std::byte const* device_rows(Weight const& w, std::int32_t row, std::int32_t& end);
  void cut(Shard const& s, Range rows, std::byte* dst, std::vector<CopyPiece>& pieces) const;
  void trace(Action const& a, TraceLane lane, Ticket begin, Ticket end) {
    if (traces()) p_.trace->push_back({a, lane, begin, end});
  }

  ModelRef model_;
  ExecutorParts p_;
  PlanImage const* image_ = nullptr;
  std::vector<std::size_t> resident_at_;  // per shard: offset in VRAM of a whole copy, or none
  std::vector<Ticket> resident_ready_;    // value 0 where it is done, or the device waits for it already
  bool settled_ = true;                   // no copy of activate() may still be going on
  std::vector<ShardId> first_expert_;     // per layer
  ExpertsEnvironment env_;
  RoutedExperts routed_;
  HelpedAttention attention_;
  IdleReading idle_reading_;
  std::size_t cache_offset_ = VramLayout::none;
  ByteRing ring_;
  std::vector<Piece> pieces_;
  std::size_t prefetched_ = 0;  // leading copies of the schedule that the block before issued
  std::vector<std::byte> kv_table_image_;
  std::vector<std::size_t> kv_table_offset_;  // per layer, in the image
  std::uint64_t kv_table_version_ = 0;        // of the pages in host memory that the device's tables have
  std::vector<Ticket> after_;
  std::vector<CopyPiece> copy_pieces_;
  std::uint64_t n_blocks_ = 0;
  std::vector<Graph> graphs_;
  bool only_device_ = false;   // the current plan's steps, but for the embedding
  bool helped_ = false;        // likewise, with help where experts are missing
  bool asks_experts_ = false;  // some may be
  bool helps_attention_ = false;
  bool asks_attention_ = false;  // the step that is being enqueued
  std::uint64_t n_attention_steps_ = 0;
  bool device_embeds_ = false;  // of the current plan
  bool capturing_ = false;
  // Of either half of the room that keys and values from host memory go through: its last use by the device; its last copy to the host, in
  // this block.
  Ticket stream_used_[2], stream_saved_[2];
  Ticket host_kv_written_;  // by the host, in this block

  // the current block and step
  std::span<BlockRow const> rows_;
  float* logits_out_ = nullptr;
  std::int32_t outputs_total_ = 0;
  std::size_t cursor_ = 0;
  Side const* side_ = nullptr;
  ShardId running_{};
  std::int32_t reached_ = 0;  // rows of the running shard that may be used
  std::int32_t chunk_begin_ = 0, chunk_max_position_ = 0;
  RoutedRows routed_rows_;

  // of a model with a BlockConfig
  RowPort* port_ = nullptr;
  std::array<PortHalf, 2> halves_;
  bool took_inputs_ = false;             // the chunk that runs
  Leaving leaving_;                      // likewise
  Ticket host_rows_;                     // hidden rows that the host has changed
  std::vector<std::byte*> block_pages_;  // of the host: keys', then values'
  KvTable block_table_;                  // likewise
  Ticket block_kv_used_[2];              // of the device's two pages: by its attention
  RoomListener* listener_ = nullptr;
  std::size_t copies_end_ = 0;   // of the schedule: behind it there are none
  std::vector<VramRange> busy_;  // that the rest of the block touches
  bool has_news_ = false;        // of these, or of copies: the listener does not know yet
};

}  // namespace tiered
