/// The engine: a model, a budget, and policies, behind one call that takes a batch of rows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/engine/policies.hpp"
#include "tiered/engine/sequence.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/model/batch.hpp"
#include "tiered/model/transformer.hpp"
#include "tiered/pipeline/executor.hpp"

namespace tiered {

/// Logits of the rows that wanted them, in order. Valid until the next step.
class Logits {
 public:
  Logits(std::span<float const> values, std::int32_t vocab_size) : values_(values), vocab_size_(vocab_size) {}
  std::int32_t n_rows() const { return std::int32_t(values_.size()) / vocab_size_; }
  std::span<float const> row(std::int32_t i) const { return values_.subspan(std::size_t(i) * std::size_t(vocab_size_), std::size_t(vocab_size_)); }

 private:
  std::span<float const> values_;
  std::int32_t vocab_size_;
};

/// May be set from any thread; looked at between shards.
class CancelToken {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  void reset() { cancelled_.store(false, std::memory_order_relaxed); }
  bool is_cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  std::atomic<bool> const& flag() const { return cancelled_; }

 private:
  std::atomic<bool> cancelled_{false};
};

struct EngineStats {
  std::size_t vram_peak_bytes = 0;    ///< most that was ever taken of the device's memory
  std::size_t vram_budget_bytes = 0;
  std::size_t host_kv_bytes = 0;
  ExpertCache::Counters experts;
};

/// Runs a model inside a budget. All of VRAM is taken when it is made; nothing is allocated there afterwards.
///
/// After an Error (but of the constructor) the engine is usable: lanes are drained, sequences have the length that they had
/// before the failed block, weights are brought again. Used from one thread, but for the CancelToken.
template <class P = CpuPolicies, class M = Transformer>
class Engine {
  static_assert(EnginePolicies<P>, "P is no policy bundle: see the table in engine/policies.hpp; a static_assert on the concept of the member that you replaced says why");
  static_assert(Model<M>, "M is no model: see model/model.hpp");

 public:
  using MachineType = decltype(P::make_machine(MachineOptions{}));

  /// Plans, then takes the memory. Errors  see make_plans(); Errc::out_of_memory where the device has less than the budget.
  Engine(std::shared_ptr<M const> model, EngineOptions const& options, PolicyValues<P> values = {})
      : Engine(std::move(model), options, std::move(values), P::make_machine(machine_options(options))) {}

  /// With a machine of your own making.
  Engine(std::shared_ptr<M const> model, EngineOptions const& options, PolicyValues<P> values, MachineType machine)
      : model_(std::move(model)), options_(options), values_(std::move(values)), machine_(std::move(machine)) {
    plans_ = make_plans<P>(*model_, options_, values_, machine_.host->kernels());
    bring_weights();
    take_memory();
  }
  Engine(Engine const&) = delete;
  Engine& operator=(Engine const&) = delete;
  /// Waits for copies that were issued ahead.
  ~Engine() {
    if (executor_) executor_->recover();
  }

  M const& model() const { return *model_; }
  EnginePlans const& plans() const { return plans_; }
  std::int32_t max_context() const { return plans_.max_context; }
  typename P::Trace& trace() { return values_.trace; }
  MachineType& machine() { return machine_; }
  CancelToken& cancel_token() { return *cancel_; }

  EngineStats stats() const {
    EngineStats s;
    if constexpr (requires { machine_.device->memory().peak_bytes(); }) s.vram_peak_bytes = machine_.device->memory().peak_bytes();
    s.vram_budget_bytes = options_.vram_bytes;
    s.host_kv_bytes = kv_->host_bytes();
    s.experts = cache_->counters();
    return s;
  }

  /// Errors  Errc::precondition where options.n_sequences of them live already.
  Sequence new_sequence() {
    for (auto& slot : sequences_->slots) {
      if (slot.used) continue;
      slot = {SequenceId{++sequences_->last_id}, 0, true, true};
      return Sequence(sequences_, slot.id);
    }
    throw Error(Errc::precondition, concat("all ", sequences_->slots.size(), " sequences of this engine are in use: see EngineOptions::n_sequences"));
  }

  /// One step of any kind: prompt, next token, several sequences, verification of drafts.
  /// Errors  Errc::precondition (positions out of order, tokens outside of the vocabulary), over_budget (beyond max_context, with
  ///         both numbers), cancelled (blocks that were done stay in their sequences), and what devices report.
  Logits step(Batch const& batch);

  /// All tokens of a prompt, or of what follows in a chat; logits after the last.
  std::span<float const> prefill(Sequence const& sequence, std::span<std::int32_t const> tokens) {
    expects(!tokens.empty(), "prefill takes at least one token");
    rows_.clear();
    std::int32_t position = sequence.length();
    for (std::int32_t token : tokens) rows_.push_back({sequence.id(), position++, token, false});
    rows_.back().want_logits = true;
    return step({rows_}).row(0);
  }
  std::span<float const> decode(Sequence const& sequence, std::int32_t token) { return prefill(sequence, {&token, 1}); }

 private:
  static MachineOptions machine_options(EngineOptions const& o) {
    return {o.vram_bytes, o.n_threads, o.f32_activations, !std::same_as<typename P::Trace, NullTrace>};
  }
  void bring_weights();
  void take_memory();
  void check(Batch const& batch) const;
  std::size_t next_block(std::span<Row const> rows, PlanImage const& image);
  void report_trace();

  std::shared_ptr<M const> model_;
  EngineOptions options_;
  PolicyValues<P> values_;
  MachineType machine_;
  EnginePlans plans_;
  std::vector<Weight> weights_;  // the model's, where HostMemory has them
  PageableTier host_tier_;
  Buffer host_activations_, vram_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<ExpertCache> cache_;
  TraceLog trace_log_;
  std::unique_ptr<CancelToken> cancel_ = std::make_unique<CancelToken>();
  std::unique_ptr<Executor> executor_;
  std::shared_ptr<detail::SequenceTable> sequences_ = std::make_shared<detail::SequenceTable>();
  std::vector<Row> rows_;
  std::vector<BlockRow> block_;
  std::vector<float> logits_;
};

template <class P, class M>
void Engine<P, M>::bring_weights() {
  ShardTable const table = model_->table();
  weights_.assign(table.weights.begin(), table.weights.end());
  for (Weight& w : weights_) w.data = values_.host_memory.bring({w.data, w.bytes()}).data();
}

template <class P, class M>
void Engine<P, M>::take_memory() {
  ModelConfig const& config = model_->config();
  std::size_t host_bytes = 0, cache_bytes = 0;
  for (PlanImage const& image : plans_.images) {
    host_bytes = std::max(host_bytes, image.activations.total_bytes);
    cache_bytes = std::max(cache_bytes, image.vram.cache_bytes);
  }
  host_activations_ = Buffer(host_tier_, host_bytes, weight_alignment);
  if (plans_.vram_bytes > 0) vram_ = Buffer(machine_.device->memory(), plans_.vram_bytes, weight_alignment);
  std::vector<bool> in_vram;
  for (float share : plans_.images.front().plan.state_in_vram) in_vram.push_back(share > 0);
  kv_ = std::make_unique<KvCache>(config, KvCache::Options{plans_.max_context, options_.n_sequences, options_.kv_type}, in_vram, vram_.data());
  cache_ = std::make_unique<ExpertCache>(cache_bytes, AnyEviction(std::move(values_.eviction)));
  sequences_->slots.resize(std::size_t(options_.n_sequences));
  ShardTable table = model_->table();
  table.weights = weights_;
  ExecutorParts parts{table, &config, Side(host_device, *machine_.host), Side(first_gpu, *machine_.device), CopyLane(*machine_.copy), vram_.data(),
                      host_activations_.data(), kv_.get(), cache_.get(), std::same_as<typename P::Trace, NullTrace> ? nullptr : &trace_log_, &cancel_->flag()};
  executor_ = std::make_unique<Executor>(ModelRef(*model_), parts);
}

template <class P, class M>
void Engine<P, M>::check(Batch const& batch) const {
  expects(batch.embeddings.empty() && batch.rope_positions.empty(), "this model takes tokens only");
  std::vector<std::int32_t> next(sequences_->slots.size(), -1);
  for (Row const& r : batch.rows) {
    std::size_t const slot = std::size_t(sequences_->find(r.sequence));
    std::int32_t const expected = next[slot] < 0 ? sequences_->slots[slot].length : next[slot];
    if (r.position != expected) throw Error(Errc::precondition, concat("sequence ", std::uint32_t(r.sequence), " goes on at position ", expected, ", the batch has ", r.position));
    if (r.token < 0 || r.token >= model_->config().vocab_size) throw Error(Errc::precondition, concat("token ", r.token, " is outside of a vocabulary of ", model_->config().vocab_size));
    next[slot] = expected + 1;
  }
  for (std::int32_t end : next) {
    if (end > plans_.max_context) throw Error(Errc::over_budget, concat("a sequence of ", end, " tokens does not fit a context of ", plans_.max_context));
  }
}

/// Fills block_ with as many of the rows as one block takes; how many.
template <class P, class M>
std::size_t Engine<P, M>::next_block(std::span<Row const> rows, PlanImage const& image) {
  block_.clear();
  std::int32_t n_outputs = 0;
  for (Row const& r : rows) {
    if (block_.size() == std::size_t(image.limits.block)) break;
    if (r.want_logits && image.output_by_rows && n_outputs == std::min(image.limits.chunk, max_outputs_per_run)) break;
    n_outputs += r.want_logits ? 1 : 0;
    block_.push_back({sequences_->find(r.sequence), r.position, r.token, r.want_logits});
  }
  return block_.size();
}

template <class P, class M>
Logits Engine<P, M>::step(Batch const& batch) {
  check(batch);
  for (std::size_t s = 0; s < sequences_->slots.size(); ++s) {
    auto& slot = sequences_->slots[s];
    if (std::exchange(slot.shrunk, false)) kv_->release(std::int32_t(s), slot.length);
  }
  std::size_t const vocab = std::size_t(model_->config().vocab_size);
  std::size_t const n_wanted = std::size_t(std::ranges::count_if(batch.rows, &Row::want_logits));
  logits_.resize(n_wanted * vocab);
  float* out = logits_.data();
  try {
    for (std::span<Row const> left = batch.rows; !left.empty();) {
      PlanImage const& image = plans_.images[values_.token_tiers.select(int(left.size()))];
      std::size_t const n = next_block(left, image);
      for (BlockRow const& r : block_) kv_->reserve(r.slot, r.position + 1);
      executor_->activate(image);
      executor_->run_block(block_, out);
      for (BlockRow const& r : block_) {
        sequences_->slots[std::size_t(r.slot)].length = r.position + 1;
        if (r.want_logits) out += vocab;
      }
      left = left.subspan(n);
      report_trace();
      if (options_.progress != nullptr) options_.progress(options_.progress_context, std::int32_t(batch.rows.size() - left.size()), std::int32_t(batch.rows.size()));
    }
  } catch (...) {
    executor_->recover();
    trace_log_.clear();
    throw;
  }
  return Logits(logits_, std::int32_t(vocab));
}

template <class P, class M>
void Engine<P, M>::report_trace() {
  if constexpr (!std::same_as<typename P::Trace, NullTrace>) {
    for (TraceEntry const& e : trace_log_) {
      auto const span = e.lane == TraceLane::copy ? CopyLane(*machine_.copy).times(e.begin, e.end)
                        : e.lane == TraceLane::device ? Side(first_gpu, *machine_.device).times(e.begin, e.end)
                                                      : Side(host_device, *machine_.host).times(e.begin, e.end);
      if (span) values_.trace.record(e.action, span->first, span->second);
    }
    trace_log_.clear();
    machine_.lanes->forget_times();
  }
}

}  // namespace tiered
