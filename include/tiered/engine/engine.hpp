/// The engine: a model, a budget, and policies, behind one call that takes a batch of rows.
#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/engine/load_times.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/engine/policies.hpp"
#include "tiered/engine/profiling.hpp"
#include "tiered/engine/sequence.hpp"
#include "tiered/memory/any_tier.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/bulk_copy.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/model/batch.hpp"
#include "tiered/model/kv_cache.hpp"
#include "tiered/model/transformer.hpp"
#include "tiered/pipeline/executor.hpp"
#include "tiered/plan/any_state_cost.hpp"

namespace tiered {

/// Logits of the rows that wanted them, in order. Valid until the next step.
class Logits {
 public:
  Logits(std::span<float const> values, std::int32_t vocab_size) : values_(values), vocab_size_(vocab_size) {}
  std::int32_t n_rows() const { return std::int32_t(values_.size() / std::size_t(vocab_size_)); }
  std::span<float const> row(std::int32_t i) const {
    return values_.subspan(std::size_t(i) * std::size_t(vocab_size_), std::size_t(vocab_size_));
  }

 private:
  std::span<float const> values_;
  std::int32_t vocab_size_;
};

/// May be set from any thread; looked at between shards. Stays set, so that every further step ends at once, until reset().
class CancelToken {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  void reset() { cancelled_.store(false, std::memory_order_relaxed); }
  /// Whether the next step would end at once. Any thread.
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  std::atomic<bool> const& flag() const { return cancelled_; }

 private:
  std::atomic<bool> cancelled_{false};
};

struct EngineStats {
  std::size_t vram_peak_bytes = 0;  ///< most that was ever taken of the device's memory; of a GPU all that counts against the budget
  std::size_t vram_budget_bytes = 0;
  /// Of keys and values in host memory: what sequences use, and what is taken, which where it is page-locked is more, and is kept.
  std::size_t host_kv_bytes = 0, host_kv_held_bytes = 0;
  ExpertCache::Counters experts;
  HelpCounters help;
  SharedFlowCounters shared;  ///< since loading
  LoadTimes load;
  /// Why some weights could not be page-locked, and how many; empty: nothing is amiss. The plan took all to be: such
  /// weights cross the link more slowly, and the host computes more of the experts that are missing.
  std::string pageable_weights;
};

/// Experts that earlier runs used most, in the cache from the start (EngineOptions::expert_prior).
struct ExpertPrior {
  std::string file;              ///< what this run uses is added to it in the end; empty: nothing is known or kept
  std::string note;              ///< why the file was not used; empty: nothing is amiss
  std::size_t filled_bytes = 0;  ///< of experts that were brought ahead
};

namespace detail {

/// Of the activations of any of the plans, in host memory; little where the device does everything.
std::size_t most_host_bytes(EnginePlans const& plans, std::span<Shard const> shards, bool device_reads_embeddings);

/// What an engine does whatever its policies are: host memory, sequences, rows cut into blocks.
class EngineCore {
 public:
  struct Parts {
    ModelRef model;
    ModelConfig const* config = nullptr;
    ShardTable table;
    std::vector<Weight> weights;  ///< the table's, where HostMemory has them
    Side host, device;
    CopyLane copy, kv_copy;  ///< see ExecutorParts
    LaneSet* lanes = nullptr;
    Buffer vram;
    Buffer host_activations;  ///< empty: pageable memory will do
    AnyEviction eviction;
    bool traces = false;
    HostAccess host_access;            ///< of the device's kernels
    AnyTier host_kv = PageableTier();  ///< where keys and values go that are not in VRAM
    BulkCopy* bulk = nullptr;          ///< lives until prepare() is over; null: residents are brought as in any step
    AnyStateCost state_cost;           ///< what plans were made with
  };
  EngineCore(EngineOptions const& options, EnginePlans plans, Parts parts);
  EngineCore(EngineCore const&) = delete;
  EngineCore& operator=(EngineCore const&) = delete;
  ~EngineCore();

  EnginePlans const& plans() const { return plans_; }
  CancelToken& cancel_token() { return cancel_; }
  EngineStats stats() const;
  /// Brings the residents of decode's plan, and runs steps of many widths so that the device's kernels are loaded, with a layer of each
  /// kind, since more would have to cross the link; captures decode's step where the device can. The cache keeps what that brought.
  void prepare(LoadTimes* times = nullptr);
  /// Fills the cache with what earlier runs used, and counts for those to come; nothing without a cache, or where the policy does not
  /// learn. After prepare(), before the first step.
  void begin_with_prior(LoadTimes* times);
  ExpertPrior const& prior() const { return prior_; }
  Sequence new_sequence();
  /// `select`: the token tier for a number of rows; `record`: as a TracePolicy's.
  Logits step(Batch const& batch, FunctionRef<std::size_t(int n_rows)> select, FunctionRef<void(Action const&, double, double)> record);
  /// `tokens` behind a sequence, of which the last one wants logits. Valid until the next call.
  Batch rows_behind(Sequence const& sequence, std::span<std::int32_t const> tokens);

  Parts& parts() { return parts_; }
  /// What others may use of the arena between steps: all but the room of keys and values. Ascending; empty where there is no arena.
  std::vector<VramRange> lendable() const;
  /// Until the next step they are `to`'s, whose work there must be done by then. Whether they are as it left them: nobody had them since.
  /// The engine forgets what it has there, and brings it again when it needs it; cached experts at once when it decodes.
  /// Errors  precondition within a step; those of lanes, after which the engine can be used.
  bool lend(void const* to);
  /// Listens to a borrower's last work: residents that all plans have at one place come back into room that it is done with, behind it and
  /// before the next step, which waits for each where it needs it. The arena is the engine's again once something does. For one block;
  /// lives as long as this.
  RoomListener& take_back();
  /// After an Error of that work, whatever came back is forgotten.
  void forget_returned() noexcept;
  /// Waits for what came back, before somebody clears the errors of lanes.
  void wait_for_returned() noexcept;
  /// Hands out what is done of a log of these lanes, which is empty then.
  void report(TraceLog& log, FunctionRef<void(Action const&, double, double)> record);

  ModelConfig const& config() const { return *parts_.config; }
  std::int32_t max_context() const { return plans_.max_context; }
  DType kv_type() const { return kv_.type(); }
  bool owns(Sequence const& sequence) const { return sequence.belongs_to(sequences_.get()); }
  /// Equal for models whose KV means the same: numbers, weights' types and shapes, and samples of their bytes; not names or paths.
  std::uint64_t fingerprint() const;
  /// Bytes of keys and values of n positions, as export_kv() hands them out.
  std::uint64_t kv_bytes(std::int32_t n_tokens) const;
  /// Keys and values of a sequence, whatever device has them: by layer, K before V, by page of kv_page_tokens positions, by head.
  /// Errors  precondition within a step; out_of_memory; device where a copy fails; what `sink` throws.
  void export_kv(Sequence const& sequence, FunctionRef<void(std::span<std::byte const>)> sink);
  std::span<RopeShift const> rope_shifts(Sequence const& sequence) const;
  /// The reverse: the sequence has n_tokens positions then, or none after an error. `shifts`: as rope_shifts() had them.
  void import_kv(Sequence& sequence, std::int32_t n_tokens, FunctionRef<void(std::span<std::byte>)> source,
                 std::span<RopeShift const> shifts = {});

 private:
  /// See take_back().
  class Returning final : public RoomListener {
   public:
    explicit Returning(EngineCore& core) : core_(core) {}
    void begin() { left_ = core_.common_residents_; }
    void room_left(Ticket done, std::span<VramRange const> busy) override;

   private:
    EngineCore& core_;
    std::vector<ShardId> left_;  ///< what is yet to come
  };

  ExecutorParts executor_parts();
  void warm_up(PlanImage const& image, std::int32_t n_rows, std::int32_t outputs);
  void warm_up(std::span<PlanImage const> samples);
  void warm_up_decode(LoadTimes* times);
  void start_bulk_copy(std::span<PlanImage const> samples);
  void check(Batch const& batch) const;
  void check_inputs(Batch const& batch) const;
  std::size_t vectors_in(Batch const& batch) const;
  std::size_t next_block(Batch const& batch, std::size_t begin, PlanImage const& image);
  PlanImage const& image_for(std::size_t token_tier) const;
  void copy_ahead() noexcept;
  using PageVisitor = FunctionRef<void(bool on_host, std::span<std::span<std::byte> const> runs)>;
  void each_page(std::int32_t slot, std::int32_t n_tokens, PageVisitor visit) const;
  void share_room();
  void copy_and_wait(std::span<CopyPiece const> pieces);
  std::vector<std::int32_t> experts_by_layer() const;
  std::vector<ShardId> experts_to_bring(std::span<double const> uses_per_step) const;
  std::size_t fill_cache(std::span<double const> uses_per_step);
  void keep_uses() noexcept;

  EngineOptions options_;
  EnginePlans plans_;
  Parts parts_;
  PageableTier host_tier_;
  Buffer host_activations_;
  KvCache kv_;
  ExpertCache cache_;
  ExpertCache::Counters warm_up_counters_;  // of what prepare() ran, which no statistics count
  SharedFlowCounters warm_up_shared_;       // likewise
  ExpertPrior prior_;
  std::string prior_key_;
  TraceLog trace_log_;
  CancelToken cancel_;
  Executor executor_;
  std::shared_ptr<SequenceTable> sequences_ = std::make_shared<SequenceTable>();
  std::vector<Row> rows_;
  std::vector<BlockRow> block_;
  std::vector<float> logits_;
  void const* arena_of_ = nullptr;          // who had what is lendable last; null: the engine
  std::vector<double> cached_before_loan_;  // by shard, not 0: experts that decode's next step brings back
  std::vector<ShardId> common_residents_;   // of all plans, at one place
  Returning returning_{*this};
  bool some_returned_ = false;  // since the arena was lent
  bool in_step_ = false;
};

}  // namespace detail

/// Runs a model inside a budget. All of VRAM is taken when it is made; nothing is allocated there afterwards.
///
/// After an Error (but of the constructor) the engine is usable: lanes are drained, sequences have the length that they had
/// before the failed block, weights are brought again. Used from one thread, but for the CancelToken.
template <class P = CpuPolicies, class M = Transformer>
class Engine {
  static_assert(EnginePolicies<P>,
                "P is no policy bundle: see the table in engine/policies.hpp; a static_assert on the concept of the member that you "
                "replaced says why");
  static_assert(Model<M>, "M is no model: see model/model.hpp");

 public:
  using MachineType = decltype(P::make_machine(MachineOptions{}));

  /// Looks up or measures what the machine can do, where it has a device of its own; plans; takes the memory.
  /// Errors  see make_plans(); Errc::io where the model's file was cut since it was opened; Errc::out_of_memory where the device has less
  /// than the budget, with both numbers.
  Engine(std::shared_ptr<M const> model, EngineOptions const& options, PolicyValues<P> values = {})
      : Engine(Start(std::move(model), std::move(values)), options) {}

  /// With a machine of your own making.
  Engine(std::shared_ptr<M const> model, EngineOptions const& options, PolicyValues<P> values, MachineType machine)
      : Engine(Start(std::move(model), std::move(values)), options, std::move(machine)) {}

  /// Assigning would end what still works for the old one: end it first.
  Engine(Engine&&) = default;
  Engine& operator=(Engine&&) = delete;

  M const& model() const { return *model_; }
  EnginePlans const& plans() const { return core_->plans(); }
  /// What they were estimated with, and where that is from.
  ProfileResult const& profile() const { return profile_; }
  ExpertPrior const& expert_prior() const { return core_->prior(); }
  std::int32_t max_context() const { return plans().max_context; }
  typename P::Trace& trace() { return values_.trace; }
  MachineType& machine() { return machine_; }
  CancelToken& cancel_token() { return core_->cancel_token(); }
  /// The part that does not depend on P and M, for functions of the library that take any engine.
  detail::EngineCore& core() { return *core_; }

  /// Of everything since the engine was made. Same thread as step().
  EngineStats stats() const {
    EngineStats s = core_->stats();
    s.load = times_;
    if constexpr (requires { machine_.sources->first_error(); }) {
      if (machine_.sources != nullptr) s.pageable_weights = machine_.sources->first_error();
    }
    if constexpr (requires { machine_.share->counted_bytes(); }) {
      s.vram_peak_bytes = machine_.share->counted_bytes();  // constant once the engine is made
    } else if constexpr (requires { machine_.device->memory().peak_bytes(); }) {
      s.vram_peak_bytes = machine_.device->memory().peak_bytes();
    }
    return s;
  }

  /// Errors  Errc::precondition where options.n_sequences of them live already.
  Sequence new_sequence() { return core_->new_sequence(); }

  /// One step of any kind: prompt, next token, several sequences, verification of drafts.
  /// Errors  Errc::precondition (positions out of order, tokens outside of the vocabulary, rotary positions of a model that has one a row),
  ///         over_budget (beyond max_context, with both numbers), cancelled (blocks that were done stay in their sequences), and what
  ///         devices report.
  Logits step(Batch const& batch) {
    auto const select = [this](int n_rows) { return values_.token_tiers.select(n_rows); };
    auto const record = [this](Action const& a, double begin_s, double end_s) { values_.trace.record(a, begin_s, end_s); };
    return core_->step(batch, select, record);
  }

  /// All tokens of a prompt, or of what follows in a chat; logits after the last.
  std::span<float const> prefill(Sequence const& sequence, std::span<std::int32_t const> tokens) {
    return step(core_->rows_behind(sequence, tokens)).row(0);
  }
  std::span<float const> decode(Sequence const& sequence, std::int32_t token) { return prefill(sequence, {&token, 1}); }

 private:
  static constexpr bool traces = !std::same_as<typename P::Trace, NullTrace>;
  /// What is known before there is a machine: a GPU's begins with the weights while the rest of it is made.
  struct Start {
    Start(std::shared_ptr<M const> of, PolicyValues<P> given) : model(std::move(of)), values(std::move(given)) {
      expects(model != nullptr, "Engine: there is no model");
      detail::check_file_of(*model);
      LoadTimes::Scope const scope(&times, "weights");
      ShardTable const table = model->table();
      weights.assign(table.weights.begin(), table.weights.end());
      for (Weight& w : weights) {
        ranges.push_back(values.host_memory.bring({w.data, w.bytes()}));
        expects(ranges.back().size() == w.bytes(), "HostMemory: bring() returns as many bytes as it got");
        w.data = ranges.back().data();
      }
    }
    LoadTimes times;
    std::shared_ptr<M const> model;
    PolicyValues<P> values;
    std::vector<Weight> weights;                     ///< the model's, where HostMemory has them
    std::vector<std::span<std::byte const>> ranges;  ///< their bytes
  };
  static MachineOptions machine_options(EngineOptions const& o, Start& start) {
    MachineOptions m{o.vram_bytes, o.n_threads, o.f32_activations, traces, o.isa, o.device, o.vram_excludes_context, o.n_register_threads};
    m.link_bytes_per_s = o.link_bytes_per_s;
    m.sources = start.ranges;
    m.times = &start.times;
    return m;
  }

  Engine(Start&& start, EngineOptions const& options)
      : Engine(std::move(start), options, P::make_machine(machine_options(options, start))) {}
  Engine(Start&& start, EngineOptions const& options, MachineType machine)
      : times_(std::move(start.times)), model_(std::move(start.model)), values_(std::move(start.values)), machine_(std::move(machine)) {
    profile_ = look_at_machine(options, start);
    EnginePlans plans = plan(options);
    ReadableBytes const readable = register_weights(start.ranges, plans.vram_bytes > 0);
    make_core(options, std::move(plans), std::move(start.weights), readable);
    prepare();
    if (options.expert_prior.value_or(measures(machine_, options))) core_->begin_with_prior(&times_);
    if constexpr (requires { machine_.add_times(times_); }) machine_.add_times(times_);
    times_.finish();
  }

  ProfileResult look_at_machine(EngineOptions const& options, Start const& start) {
    LoadTimes::Scope const scope(&times_, "profile");
    if (measures(machine_, options)) begin_registration(start.ranges);
    return profile_machine(machine_, *model_, start.weights, options);
  }
  EnginePlans plan(EngineOptions options) {
    LoadTimes::Scope const scope(&times_, "plan");
    options.hardware = profile_.hardware;
    if constexpr (requires { machine_.plan_bytes(); }) {
      options.vram_bytes = machine_.plan_bytes();
    } else {
      detail::check_device_memory(options.vram_bytes, machine_.device->memory().capacity_bytes());
    }
    return make_plans<P>(*model_, options, values_, machine_.host->kernels(), machine_.device->kernels(), device_reads_host(machine_));
  }
  void make_core(EngineOptions const& options, EnginePlans plans, std::vector<Weight> weights, ReadableBytes readable) {
    LoadTimes::Scope const scope(&times_, "allocate");
    constexpr bool maps_host = requires { machine_.pinned; };  // such memory has one address for kernels and the host
    Buffer vram, host_activations;
    if (plans.vram_bytes > 0) vram = Buffer(machine_.device->memory(), plans.vram_bytes, weight_alignment);
    if constexpr (maps_host)
      host_activations = Buffer(*machine_.pinned, detail::most_host_bytes(plans, model_->table().shards, bool(readable)), weight_alignment);
    if constexpr (requires { machine_.account(plans); }) machine_.account(plans);
    bool const uses_device = plans.vram_bytes > 0;
    EngineOptions known = options;
    known.hardware = profile_.hardware;
    core_ = std::make_unique<detail::EngineCore>(
        known, std::move(plans),
        detail::EngineCore::Parts{.model = ModelRef(*model_),
                                  .config = &model_->config(),
                                  .table = model_->table(),
                                  .weights = std::move(weights),
                                  .host = Side(host_device, *machine_.host),
                                  .device = Side(first_gpu, *machine_.device),
                                  .copy = CopyLane(*machine_.copy),
                                  .kv_copy = kv_copy(),
                                  .lanes = machine_.lanes.get(),
                                  .vram = std::move(vram),
                                  .host_activations = std::move(host_activations),
                                  .eviction = AnyEviction(std::move(values_.eviction)),
                                  .traces = traces,
                                  .host_access = {.activations = maps_host, .kv = maps_kv(), .weights = readable},
                                  .host_kv = host_kv(uses_device),
                                  .bulk = bulk_copy(),
                                  .state_cost = state_cost(options.kv_type)});
  }
  AnyStateCost state_cost(DType kv_type) const {
    Capabilities const capabilities =
        detail::capabilities_of(machine_.host->kernels(), machine_.device->kernels(), kv_type, model_->config());
    return AnyStateCost(detail::cost_for(values_.cost, profile_.hardware, capabilities));
  }
  CopyLane kv_copy() {
    if constexpr (requires { machine_.kv_copy; }) return CopyLane(*machine_.kv_copy);
    return {};
  }
  BulkCopy* bulk_copy() {
    if constexpr (requires { machine_.bulk; }) return machine_.bulk.get();
    return nullptr;
  }

  /// Whether kernels read and write that memory by its own addresses.
  bool maps_kv() const {
    if constexpr (requires { machine_.maps_kv(); }) return machine_.maps_kv();
    return false;
  }
  /// Page-locked where the machine has such memory, so that copies cross the link at its rate.
  AnyTier host_kv(bool uses_device) const {
    if constexpr (requires { machine_.kv_tier(); }) {
      if (uses_device) return machine_.kv_tier();
    }
    return PageableTier();
  }

  /// Makes them readable by copies at full rate, in the background. Which the device's kernels may read where they are: the embedding at
  /// least, whose part has been waited for, or none.
  ReadableBytes register_weights(std::vector<std::span<std::byte const>> const& ranges, bool uses_device) {
    if constexpr (requires { machine_.sources; }) {
      if (!uses_device) return machine_.drop_sources(), ReadableBytes();
      begin_registration(ranges);
      for (Shard const& s : model_->table().shards) {
        if (s.kind != ShardKind::embedding) continue;
        return machine_.device_reads(ranges[std::size_t(s.weights.begin)]) ? ReadableBytes(*machine_.sources) : ReadableBytes();
      }
    }
    return {};
  }
  void begin_registration(std::vector<std::span<std::byte const>> const& ranges) {
    if constexpr (requires { machine_.sources; }) {
      if (!std::exchange(registered_, true)) machine_.register_sources(ranges);
    }
  }
  /// Everything that takes memory of the device behind the arena's back is done once, and measured.
  void prepare() {
    if constexpr (requires { machine_.settle(); }) {
      core_->prepare(&times_);
      LoadTimes::Scope const scope(&times_, "settle");
      machine_.settle();
    }
  }

  LoadTimes times_;
  std::shared_ptr<M const> model_;
  PolicyValues<P> values_;
  MachineType machine_;
  ProfileResult profile_;
  bool registered_ = false;
  std::unique_ptr<detail::EngineCore> core_;  // first to go: waits for copies that were issued ahead
};

}  // namespace tiered
