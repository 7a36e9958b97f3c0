/// Defines EngineCore: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/detail/bulk_residents.hpp"
#include "tiered/engine/detail/warm_up.hpp"
#include "tiered/engine/engine.hpp"

namespace tiered::detail {

/// Whether the device has every weight but the embedding.
inline bool has_all_weights(PlanImage const& image, std::span<Shard const> shards) {
  return std::ranges::all_of(
      shards, [&](Shard const& s) { return s.kind == ShardKind::embedding || image.vram.resident[std::size_t(s.id)] != VramLayout::none; });
}
/// And all keys and values.
inline bool is_all_resident(PlanImage const& image, std::span<Shard const> shards) {
  return std::ranges::all_of(image.plan.state_in_vram, [](float share) { return share == 1; }) && has_all_weights(image, shards);
}

std::size_t most_host_bytes(EnginePlans const& plans, std::span<Shard const> shards, bool device_reads_embeddings) {
  std::size_t bytes = 0;
  for (PlanImage const& image : plans.images)
    bytes = std::max(bytes, device_reads_embeddings && is_all_resident(image, shards) ? image.activations.crossing_bytes
                                                                                      : image.activations.total_bytes);
  return bytes;
}

inline std::size_t most_cache_bytes(EnginePlans const& plans) {
  std::size_t bytes = 0;
  for (PlanImage const& image : plans.images) bytes = std::max(bytes, image.vram.cache_bytes);
  return bytes;
}

EngineCore::EngineCore(EngineOptions const& options, EnginePlans plans, Parts parts)
    : options_(options),
      plans_(std::move(plans)),
      parts_(std::move(parts)),
      host_activations_(parts_.host_activations.empty()
                            ? Buffer(host_tier_, most_host_bytes(plans_, parts_.table.shards, false), weight_alignment)
                            : std::move(parts_.host_activations)),
      kv_(*parts_.config, {plans_.max_context, options.n_sequences, options.kv_type, options.kv_page_tokens},
          plans_.images.front().plan.state_in_vram, parts_.vram.data() + plans_.images.front().vram.state_offset,
          std::move(parts_.host_kv)),
      cache_(most_cache_bytes(plans_), std::move(parts_.eviction)),
      executor_(parts_.model, executor_parts()) {
  sequences_->slots.resize(std::size_t(options.n_sequences));
  common_residents_ = common_residents(plans_.images, parts_.table.shards);
}

EngineCore::~EngineCore() {
  executor_.recover();
  keep_uses();
}

ExecutorParts EngineCore::executor_parts() {
  ShardTable table = parts_.table;
  table.weights = parts_.weights;
  ExecutorParts parts{.table = table,
                      .config = parts_.config,
                      .host = parts_.host,
                      .device = parts_.device,
                      .copy = parts_.copy,
                      .kv_copy = parts_.kv_copy,
                      .vram = parts_.vram.data(),
                      .host_base = host_activations_.data(),
                      .kv = &kv_,
                      .cache = &cache_,
                      .trace = parts_.traces ? &trace_log_ : nullptr,
                      .cancelled = &cancel_.flag(),
                      .host_access = parts_.host_access,
                      .look_ahead = options_.look_ahead,
                      .read_ahead = options_.read_ahead,
                      .state_cost = parts_.state_cost};
  if (options_.hardware) parts.hardware = *options_.hardware;
  return parts;
}

/// One step of n rows of a plan, of which the last `outputs` want logits, or one less where such a step would be captured: kernels cannot
/// be loaded on the way into a graph.
void EngineCore::warm_up(PlanImage const& image, std::int32_t n_rows, std::int32_t outputs) {
  kv_.reserve(0, n_rows);
  executor_.activate(image);
  if (executor_.is_capturable(n_rows, outputs) || (n_rows == 1 && executor_.helps_attention())) --outputs;
  block_.clear();
  for (std::int32_t i = 0; i < n_rows; ++i) block_.push_back({0, i, 0, i >= n_rows - outputs});
  logits_.resize(std::size_t(std::max(outputs, 1)) * std::size_t(parts_.config->vocab_size));
  executor_.run_block(block_, logits_.data());
}

/// Steps of all widths.
void EngineCore::warm_up(std::span<PlanImage const> samples) {
  bool const streams =
      !std::ranges::all_of(plans_.images, [&](PlanImage const& image) { return is_all_resident(image, parts_.table.shards); });
  std::span<std::int32_t const> const widths = streams ? std::span<std::int32_t const>(streamed_warm_up_rows) : warm_up_rows;
  for (auto const& [tier, n_rows] : large_chunks(samples, widths, plans_.max_context)) warm_up(samples[tier], n_rows, 0);
  std::vector<bool> had_logits(samples.size(), false);
  std::pair<std::size_t, std::int32_t> last{};
  for (std::int32_t const width : widths) {
    std::int32_t const n = std::min(width, plans_.max_context);
    std::size_t const tier = tier_of(plans_.tiers, n);
    PlanImage const& image = samples[tier];
    std::int32_t const n_rows = std::min(n, image.limits.block);
    if (std::pair const next(tier, n_rows); !image.uses_device || next == std::exchange(last, next)) continue;
    // The head is run for as many rows as want logits, which of many rows is one.
    std::int32_t const few = std::min({n_rows, image.limits.chunk, max_outputs_per_run});
    warm_up(image, n_rows, n_rows <= max_outputs_per_run ? few : had_logits[tier] ? 0 : 1);
    had_logits[tier] = true;
  }
  executor_.load_split_attention();
}

void EngineCore::warm_up_decode(LoadTimes* times) {
  PlanImage const& decode = plans_.images.front();
  {
    LoadTimes::Scope const scope(times, "decode");
    kv_.reserve(0, 1);
    executor_.activate(decode);
    logits_.resize(std::size_t(parts_.config->vocab_size));
    if (executor_.helps_attention()) executor_.load_helped_attention(logits_.data());
    if (executor_.is_helped()) {
      executor_.load_helped(logits_.data());
      executor_.capture(1);
      return;
    }
    if (!decode.uses_device || !has_all_weights(decode, parts_.table.shards) || !kv_.all_in_vram(1)) return;
    warm_up(decode, 1, 0);  // all of it: a capture finds out too late what is not loaded
    if (decode.limits.block > 1) warm_up(decode, 2, 1);
  }
  LoadTimes::Scope const scope(times, "capture");
  executor_.capture(1);
}

/// What stays in VRAM comes in the background, but for the layers of the samples: loading kernels takes as long.
void EngineCore::start_bulk_copy(std::span<PlanImage const> samples) {
  if (parts_.bulk == nullptr) return;
  std::vector<ShardId> const rest = residents_beside(samples, plans_.images, parts_.table.shards);
  parts_.bulk->start(executor_.hand_over(plans_.images.front(), rest));
}

void EngineCore::prepare(LoadTimes* times) {
  if (std::ranges::none_of(plans_.images, &PlanImage::uses_device)) return;
  struct CancelBulk {  // an error on the way gives VRAM back while it is being copied to
    BulkCopy*& bulk;
    ~CancelBulk() {
      if (bulk != nullptr) bulk->cancel();
      bulk = nullptr;
    }
  } const cancel{parts_.bulk};
  std::vector<PlanImage> samples;  // an executor knows plans by their addresses
  for (PlanImage const& image : plans_.images) samples.push_back(sample_of(image, parts_.table, *parts_.config));
  start_bulk_copy(samples);
  {
    LoadTimes::Scope const scope(times, "kernels");
    warm_up(samples);
  }
  if (parts_.bulk != nullptr) {
    LoadTimes::Scope const scope(times, "rest of copy");
    parts_.bulk->wait();
  }
  warm_up_decode(times);
  kv_.release(0);
  logits_ = {};
  warm_up_counters_ = cache_.counters();
  warm_up_shared_ = executor_.shared_counters();
  if (!parts_.traces) return;
  trace_log_.clear();  // or the first step's report would begin with all of this
  parts_.lanes->forget_times();
}

std::vector<VramRange> EngineCore::lendable() const {
  if (parts_.vram.empty()) return {};
  std::size_t state_bytes = 0;
  for (PlanImage const& image : plans_.images) state_bytes = std::max(state_bytes, VramAccount::round_up(image.plan.state_bytes));
  std::size_t const begin = plans_.images.front().vram.state_offset;
  std::vector<VramRange> parts{{0, begin}, {begin + state_bytes, plans_.vram_bytes}};
  std::erase_if(parts, [](VramRange const& r) { return r.begin >= r.end; });
  return parts;
}

bool EngineCore::lend(void const* to) {
  expects(!in_step_, "the arena is not lent within a step");
  if (arena_of_ == to) return true;
  if (arena_of_ == nullptr) {
    if (cache_.size() > 0) {
      cached_before_loan_.resize(parts_.table.shards.size());  // those of an earlier loan may still be to come
      for (Shard const& s : parts_.table.shards) {
        if (cache_.peek(s.id) != nullptr) cached_before_loan_[std::size_t(s.id)] = 1;
      }
    }
    try {
      executor_.leave_vram();
    } catch (...) {
      executor_.recover();
      throw;
    }
  }
  arena_of_ = to;
  some_returned_ = false;
  return false;
}

RoomListener& EngineCore::take_back() {
  expects(!in_step_ && arena_of_ != nullptr, "what is taken back was lent");
  returning_.begin();
  return returning_;
}

void EngineCore::Returning::room_left(Ticket done, std::span<VramRange const> busy) {
  PlanImage const& image = core_.plans_.images.front();
  std::erase_if(left_, [&](ShardId id) {
    std::size_t const begin = image.vram.resident[std::size_t(id)], end = begin + VramAccount::round_up(core_.parts_.table.shard(id).bytes);
    if (std::ranges::any_of(busy, [&](VramRange const& r) { return r.begin < end && begin < r.end; })) return false;
    core_.arena_of_ = nullptr;
    core_.some_returned_ = true;
    core_.executor_.bring_back(image, id, done);
    return true;
  });
}

void EngineCore::forget_returned() noexcept {
  if (!std::exchange(some_returned_, false)) return;
  executor_.recover();
  trace_log_.clear();
}

void EngineCore::wait_for_returned() noexcept {
  if (!some_returned_) return;
  try {
    executor_.wait_for_copies();
  } catch (...) {
    forget_returned();
  }
}

EngineStats EngineCore::stats() const {
  EngineStats s;
  s.vram_budget_bytes = options_.vram_bytes;
  s.host_kv_bytes = kv_.host_bytes();
  s.host_kv_held_bytes = kv_.host_held_bytes();
  ExpertCache::Counters const &all = cache_.counters(), &before = warm_up_counters_;
  s.experts = {all.hits - before.hits, all.misses - before.misses, all.evictions - before.evictions};
  s.help = executor_.help_counters();
  s.shared = executor_.shared_counters() - warm_up_shared_;
  return s;
}

Sequence EngineCore::new_sequence() {
  for (auto& slot : sequences_->slots) {
    if (slot.used) continue;
    slot = {SequenceId{++sequences_->last_id}, 0, true, true, 0, {}};
    return Sequence(sequences_, slot.id);
  }
  throw Error(Errc::precondition,
              concat("all ", sequences_->slots.size(), " sequences of this engine are in use: see EngineOptions::n_sequences"));
}

Batch EngineCore::rows_behind(Sequence const& sequence, std::span<std::int32_t const> tokens) {
  expects(!tokens.empty(), "prefill takes at least one token");
  expects(sequence.belongs_to(sequences_.get()), "the sequence belongs to another engine");
  rows_.clear();
  std::int32_t position = sequence.length();
  for (std::int32_t token : tokens) rows_.push_back({sequence.id(), position++, token, false});
  rows_.back().want_logits = true;
  return {rows_};
}

std::size_t EngineCore::vectors_in(Batch const& batch) const {
  return batch.embeddings.size() / (std::size_t(parts_.config->dim) * (std::size_t(parts_.config->n_deepstack_layers) + 1));
}

void EngineCore::check_inputs(Batch const& batch) const {
  std::size_t const n_vectors = vectors_in(batch), n_planes = std::size_t(parts_.config->n_deepstack_layers) + 1;
  if (batch.embeddings.size() != n_vectors * n_planes * std::size_t(parts_.config->dim))
    throw Error(Errc::precondition, concat("Batch::embeddings has ", batch.embeddings.size(), " numbers: no whole vectors in ", n_planes,
                                           " planes of ", parts_.config->dim, " columns"));
  for (Row const& r : batch.rows) {
    if (r.embedding < -1 || (r.embedding >= 0 && std::size_t(r.embedding) >= n_vectors))
      throw Error(Errc::precondition, concat("a row enters as vector ", r.embedding, " of a batch that has ", n_vectors));
  }
  if (batch.rope_positions.empty()) return;
  expects(parts_.config->n_position_rows() == rope_position_rows, "Batch::rope_positions: rows of this model have one rotary position");
  expects(batch.rope_positions.size() == std::size_t(rope_position_rows) * batch.rows.size(), "Batch::rope_positions: three of each row");
  auto const outside = std::ranges::find_if(batch.rope_positions, [](std::int32_t p) { return p < 0 || p >= rope_position_end; });
  if (outside != batch.rope_positions.end())
    throw Error(Errc::precondition, concat("a rotary position of ", *outside, " is outside of 0 to ", rope_position_end - 1));
}

void EngineCore::check(Batch const& batch) const {
  check_inputs(batch);
  std::vector<std::int32_t> next(sequences_->slots.size(), -1);
  for (Row const& r : batch.rows) {
    std::size_t const slot = std::size_t(sequences_->find(r.sequence));
    std::int32_t const expected = next[slot] < 0 ? sequences_->slots[slot].length : next[slot];
    if (r.position != expected)
      throw Error(Errc::precondition,
                  concat("sequence ", std::uint32_t(r.sequence), " goes on at position ", expected, ", the batch has ", r.position));
    if (r.embedding < 0 && (r.token < 0 || r.token >= parts_.config->vocab_size))
      throw Error(Errc::precondition, concat("token ", r.token, " is outside of a vocabulary of ", parts_.config->vocab_size));
    next[slot] = expected + 1;
  }
  for (std::int32_t end : next) {
    if (end > plans_.max_context)
      throw Error(Errc::over_budget, concat("a sequence of ", end, " tokens does not fit a context of ", plans_.max_context));
  }
}

/// Fills block_ with as many of the rows from `begin` on as one block takes; how many.
std::size_t EngineCore::next_block(Batch const& batch, std::size_t begin, PlanImage const& image) {
  block_.clear();
  std::int32_t n_outputs = 0;
  for (std::size_t i = begin; i < batch.rows.size(); ++i) {
    Row const& r = batch.rows[i];
    if (block_.size() == std::size_t(image.limits.block)) break;
    if (r.want_logits && image.output_by_rows && n_outputs == std::min(image.limits.chunk, max_outputs_per_run)) break;
    n_outputs += r.want_logits ? 1 : 0;
    BlockRow row{sequences_->find(r.sequence), r.position, r.token, r.want_logits};
    SequenceTable::Slot const& slot = sequences_->slots[std::size_t(row.slot)];
    row.rope_positions.fill(slot.next_rope + (r.position - slot.length));
    for (std::size_t k = 0; k < rope_position_rows && !batch.rope_positions.empty(); ++k)
      row.rope_positions[k] = batch.rope_positions[k * batch.rows.size() + i];
    if (r.embedding >= 0) {
      row.token = 0;  // looked up with the others', then replaced
      row.embedding = batch.embeddings.data() + std::size_t(r.embedding) * std::size_t(parts_.config->dim);
      row.next_plane = std::ptrdiff_t(vectors_in(batch)) * parts_.config->dim;
    }
    block_.push_back(row);
  }
  return block_.size();
}

PlanImage const& EngineCore::image_for(std::size_t token_tier) const {
  if (token_tier < plans_.images.size()) return plans_.images[token_tier];
  throw Error(Errc::precondition, concat("the TokenTiers policy selects token tier ", token_tier, " of ", plans_.images.size()));
}

/// The step is done: what goes wrong here shows again in the next one, if it lasts.
void EngineCore::copy_ahead() noexcept {
  try {
    executor_.copy_ahead();
  } catch (...) {
    executor_.recover();
  }
}

Logits EngineCore::step(Batch const& batch, FunctionRef<std::size_t(int n_rows)> select,
                        FunctionRef<void(Action const&, double, double)> record) {
  expects(!in_step_, "step() is not called from within a callback of a step");
  check(batch);
  struct Busy {
    bool& flag;
    explicit Busy(bool& f) : flag(f) { flag = true; }
    ~Busy() { flag = false; }
  } const busy(in_step_);
  for (std::size_t s = 0; s < sequences_->slots.size(); ++s) {
    auto& slot = sequences_->slots[s];
    if (std::exchange(slot.shrunk, false)) kv_.release(std::int32_t(s), slot.length);
  }
  std::size_t const vocab = std::size_t(parts_.config->vocab_size);
  std::size_t const n_wanted = std::size_t(std::ranges::count_if(batch.rows, &Row::want_logits));
  arena_of_ = nullptr;
  some_returned_ = false;
  try {
    logits_.resize(n_wanted * vocab);
    float* out = logits_.data();
    for (std::span<Row const> left = batch.rows; !left.empty();) {
      PlanImage const& image = image_for(select(int(left.size())));
      std::size_t const n = next_block(batch, batch.rows.size() - left.size(), image);
      for (BlockRow const& r : block_) kv_.reserve(r.slot, r.position + 1);
      if (&image == &plans_.images.front()) static_cast<void>(fill_cache(std::exchange(cached_before_loan_, {})));
      executor_.activate(image);
      executor_.run_block(block_, out);
      for (BlockRow const& r : block_) {
        sequences_->slots[std::size_t(r.slot)].advance(std::ranges::max(r.rope_positions));
        if (r.want_logits) out += vocab;
      }
      left = left.subspan(n);
      if (parts_.traces) report(trace_log_, record);
      // What follows is known within a step; after one, decode is followed by decode. Anything else would copy for nothing.
      PlanImage const* const next = left.empty() ? &plans_.images.front() : &image_for(select(int(left.size())));
      if (next == &image) copy_ahead();
      if (options_.progress != nullptr)
        options_.progress(options_.progress_context, std::int32_t(batch.rows.size() - left.size()), std::int32_t(batch.rows.size()));
    }
  } catch (std::bad_alloc const&) {
    executor_.recover();
    trace_log_.clear();
    throw Error(Errc::out_of_memory, concat("no host memory left in a step of ", batch.rows.size(), " rows"));
  } catch (...) {
    executor_.recover();
    trace_log_.clear();
    throw;
  }
  return Logits(logits_, std::int32_t(vocab));
}

void EngineCore::report(TraceLog& log, FunctionRef<void(Action const&, double, double)> record) {
  for (TraceEntry const& e : log) {
    auto const span = e.lane == TraceLane::copy     ? parts_.copy.times(e.begin, e.end)
                      : e.lane == TraceLane::device ? parts_.device.times(e.begin, e.end)
                                                    : parts_.host.times(e.begin, e.end);
    if (!span) continue;
    bool const part = e.within.second > 0;
    record(e.action, part ? span->first + e.within.first : span->first, part ? span->first + e.within.second : span->second);
  }
  log.clear();
  if (trace_log_.empty()) parts_.lanes->forget_times();  // else what came back behind a borrower may still be under way
}

}  // namespace tiered::detail
