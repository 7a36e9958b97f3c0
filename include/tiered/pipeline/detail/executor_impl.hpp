/// Defines Executor: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/pipeline/executor.hpp"

namespace tiered {

Executor::Executor(ModelRef model, ExecutorParts const& parts)
    : model_(model),
      p_(parts),
      resident_at_(parts.table.shards.size(), VramLayout::none),
      resident_ready_(parts.table.shards.size()),
      routed_(env_),
      attention_(env_, *parts.kv) {
  first_expert_.assign(parts.config->layers.size(), ShardId{});
  for (Shard const& s : parts.table.shards) {
    if (s.kind == ShardKind::expert && s.expert == 0) first_expert_[std::size_t(s.layer)] = s.id;
  }
}

Executor::~Executor() = default;

// ---- activation of plans

void Executor::activate(PlanImage const& image) {
  if (image_ == &image) return share_room();
  if (image_ != nullptr) wait_for_copies();  // those ahead of a block that will not come may still be writing
  stop_reading();
  image_ = &image;
  if (reads_when_idle()) idle_reading_.prepare(image.schedule, p_.table);
  ring_ = ByteRing(image.vram.ring_bytes);
  pieces_.clear();
  prefetched_ = 0;
  if (image.vram.cache_bytes > 0 && image.vram.cache_offset != cache_offset_) {
    p_.cache->clear({});
    cache_offset_ = image.vram.cache_offset;
  } else if (image.vram.cache_bytes == 0) {
    cache_offset_ = VramLayout::none;  // other things may lie there now
  }
  share_room();  // behind the end of a smaller cache lies what is the plan's own
  for (std::size_t s = 0; s < resident_at_.size(); ++s) {
    std::size_t const wanted = image.vram.resident[s];
    if (resident_at_[s] == wanted) continue;
    resident_at_[s] = VramLayout::none;
    if (wanted != VramLayout::none) bring(p_.table.shards[s].id, wanted, {});
  }
  set_block_table();
  if (image.uses_device) upload_kv_tables();
  set_environment();
  routed_.prepare(first_expert_);
  if (image.uses_device) settled_ = false;
  device_embeds_ = device_embeds();
  bool const in_vram = device_embeds_ && only_device(false), or_asks = device_embeds_ && only_device(true);
  only_device_ = in_vram && p_.kv->all_in_vram(1);
  helped_ = or_asks && p_.kv->all_in_vram(1);
  asks_experts_ = or_asks && !in_vram;
  helps_attention_ = or_asks && !p_.kv->all_in_vram(p_.kv->max_tokens()) && attention_.can_help();
  if (asks_experts_) routed_.few().open_mail();
  if (helps_attention_) attention_.open_mail();
}

/// Of routed experts, under the current plan.
void Executor::set_environment() {
  env_ = {.table = p_.table,
          .config = p_.config,
          .host = p_.host,
          .device = p_.device,
          .copy = &p_.copy,
          .host_base = base_of(false),
          .device_base = image_->uses_device ? base_of(true) : nullptr,
          .layout = &image_->activations,
          .plan = &image_->plan,
          .vram_layout = &image_->vram,
          .vram = p_.vram,
          .resident_ready = resident_ready_,
          .cache = p_.cache,
          .trace = p_.trace,
          .host_access = p_.host_access,
          .help_patience_ns = p_.help_patience_ns,
          .rows_copy = &kv_copy(),
          .look_ahead = p_.look_ahead,
          .read_ahead = p_.read_ahead};
}

void Executor::bring(ShardId id, std::size_t at, Ticket after) {
  Shard const& s = shard(id);
  copy_pieces_.clear();
  cut(s, {0, s.n_rows}, p_.vram + at, copy_pieces_);
  Ticket const before = p_.copy.last();
  resident_ready_[std::size_t(id)] = p_.copy.submit(copy_pieces_, {&after, 1});
  settled_ = false;
  resident_at_[std::size_t(id)] = at;
  trace({ActionKind::copy, first_gpu, id, {0, s.n_rows}, {}, at, s.bytes}, TraceLane::copy, before, p_.copy.last());
}

void Executor::bring_back(PlanImage const& image, ShardId resident, Ticket after) {
  std::size_t const wanted = image.vram.resident[std::size_t(resident)];
  expects(image_ == nullptr && wanted != VramLayout::none, "Executor: what comes back is a resident, while no plan is current");
  if (resident_at_[std::size_t(resident)] != wanted) bring(resident, wanted, after);
}

void Executor::share_room() {
  if (image_ == nullptr || image_->vram.cache_bytes == 0) return;
  VramLayout const& l = image_->vram;
  std::uint64_t const version = p_.cache->version();
  Ticket const filled = p_.cache->resize(l.cache_bytes, l.shared_bytes > 0 ? VramAccount::round_up(p_.kv->vram_bytes_in_use()) : 0);
  if (filled.value != 0) p_.copy.wait(filled);  // or that copy might end after somebody wrote there
  if (version != p_.cache->version()) routed_.few().forget_coming();
}

std::vector<CopyPiece> Executor::hand_over(PlanImage const& image, std::span<ShardId const> residents) {
  std::vector<CopyPiece> pieces;
  for (ShardId const id : residents) {
    std::size_t const at = resident_at_[std::size_t(id)] = image.vram.resident[std::size_t(id)];
    cut(shard(id), {0, shard(id).n_rows}, p_.vram + at, pieces);
  }
  return pieces;
}

/// Whether the device takes the rows from the embedding on: it can look them up, and the next step is its own.
bool Executor::device_embeds() const {
  if (!image_->uses_device) return false;
  ShardId const table = p_.table.steps.front().shard;
  if (shard(table).kind != ShardKind::embedding) return false;
  Weight const& w = p_.table.weights[std::size_t(shard(table).weights.begin)];
  if (p_.device.kernels().embed[std::uint32_t(w.dtype)] == nullptr || !p_.host_access.weights.has(w.data, w.bytes())) return false;
  auto const next = std::ranges::find_if(image_->schedule, [&](Action const& a) { return a.kind == ActionKind::run && a.shard != table; });
  return next != image_->schedule.end() && next->device != host_device;
}

/// Whether all steps after the embedding run on the device, with everything they need in VRAM for good: of rows whose positions are
/// there, and but for experts, where `helped`.
bool Executor::only_device(bool helped) const {
  return std::ranges::all_of(image_->schedule, [&](Action const& a) {
    Shard const& s = shard(a.shard);
    switch (a.kind) {
      case ActionKind::run:
        return s.kind == ShardKind::embedding ||
               (a.device != host_device && image_->vram.resident[std::size_t(a.shard)] != VramLayout::none);
      case ActionKind::fetch_routed:
        return routed_.at_once(s.layer, a.device) || (helped && a.device != host_device && routed_.few().can_help(s.layer));
      case ActionKind::hop: return a.device != host_device;
      default: return false;
    }
  });
}

/// Page lists and tables of the layers that have KV in VRAM, with the device's addresses: of pages in host memory where they would be
/// while they are streamed, and where nothing is, but the device can read them, where they are: these change, see refresh_kv_tables().
void Executor::upload_kv_tables() {
  if (p_.config->block.n_ranges > 0) return;
  std::size_t const n_slots = std::size_t(p_.kv->n_slots()), n_pages = std::size_t(p_.kv->n_pages());
  std::byte* const device = base_of(true) + image_->activations.kv_tables;
  bool const streams = image_->activations.kv_stream.half_pages > 0, maps = !streams && p_.host_access.kv;
  kv_table_version_ = p_.kv->host_version();
  kv_table_image_.clear();
  kv_table_offset_.assign(p_.config->layers.size(), 0);
  for (std::int32_t l = 0; l < p_.config->n_layers; ++l) {
    std::size_t const n_there = std::size_t(p_.kv->vram_tokens(l) / p_.kv->page_tokens());
    if (n_there == 0 && !streams && !maps) continue;
    std::size_t const begin = kv_table_image_.size(), lists = begin + n_slots * sizeof(KvTable);
    kv_table_offset_[std::size_t(l)] = begin;
    kv_table_image_.resize(lists + n_slots * 2 * n_pages * sizeof(std::byte*));
    for (std::size_t s = 0; s < n_slots; ++s) {
      KvTable const& from = p_.kv->tables(l)[s];
      std::size_t const k = lists + s * 2 * n_pages * sizeof(std::byte*), v = k + n_pages * sizeof(std::byte*);
      KvTable const to{reinterpret_cast<std::byte* const*>(device + k), reinterpret_cast<std::byte* const*>(device + v)};
      std::memcpy(kv_table_image_.data() + begin + s * sizeof(KvTable), &to, sizeof to);
      for (int kv = 0; kv < 2; ++kv) {
        std::byte* const list = kv_table_image_.data() + (kv == 0 ? k : v);
        std::memcpy(list, kv == 0 ? from.k_pages : from.v_pages, (maps ? n_pages : n_there) * sizeof(std::byte*));
        for (std::size_t p = n_there; p < n_pages && streams; ++p) {
          std::byte* const page = stream_page(l, kv, std::int32_t(p));
          std::memcpy(list + p * sizeof(std::byte*), &page, sizeof page);
        }
      }
    }
  }
  if (kv_table_image_.empty()) return;
  p_.device.wait_for(kv_copy().submit({device, kv_table_image_.data(), kv_table_image_.size()}, Ticket{}));  // not behind all residents
}

void Executor::refresh_kv_tables() {
  if (kv_table_version_ != p_.kv->host_version()) upload_kv_tables();
}

KvTable const* Executor::kv_tables(std::int32_t layer, bool device) const {
  if (!device) return p_.kv->tables(layer);
  return reinterpret_cast<KvTable const*>(base_of(true) + image_->activations.kv_tables + kv_table_offset_[std::size_t(layer)]);
}

void Executor::recover() noexcept {
  // One that cannot recover reports it again at its next use. The last copy is waited for in any case: an engine that only
  // models CopyEngine may still be writing.
  auto const in_any_case = [](auto const& call) {
    try {
      call();
    } catch (...) {
    }
  };
  for (CopyLane const* lane : {&p_.copy, &kv_copy()}) in_any_case([&] { lane->wait(lane->last()); });
  for (CopyLane const* lane : {&p_.copy, &kv_copy()}) in_any_case([&] { lane->recover(); });
  in_any_case([&] { p_.host.recover(); });
  in_any_case([&] { stop_reading(); });
  in_any_case([&] { p_.device.recover(); });
  forget();
}

void Executor::leave_vram() {
  wait_for_copies();
  p_.host.synchronize();
  p_.device.synchronize();
  forget();
}

void Executor::move_host(std::byte* host_base) {
  p_.host_base = host_base;
  image_ = nullptr;
}

/// Nothing is in flight.
void Executor::forget() noexcept {
  image_ = nullptr;
  capturing_ = false;
  port_ = nullptr;
  listener_ = nullptr;
  halves_ = {};
  leaving_ = {};
  host_rows_ = {};
  took_inputs_ = false;
  for (Ticket* t : {stream_used_, stream_saved_, block_kv_used_}) std::fill(t, t + 2, Ticket{});
  host_kv_written_ = {};
  std::fill(resident_at_.begin(), resident_at_.end(), VramLayout::none);
  p_.cache->clear({});
  cache_offset_ = VramLayout::none;
  pieces_.clear();
  prefetched_ = 0;
  RoutedExperts anew(env_);
  anew.few().take_over(routed_.few());  // graphs stay
  anew.shared().take_over(routed_.shared());
  routed_ = std::move(anew);
}

/// Nobody reads weights any more: they may go.
void Executor::stop_reading() {
  if (reads_when_idle()) tiered::launch(p_.host.kernels().read_when_idle, ReadAheadArgs{}, p_.host.queue_now());
  idle_reading_.clear();
}

// ---- one block

void Executor::run_block(std::span<BlockRow const> rows, float* logits, RowPort* port, RoomListener* listener) {
  rows_ = rows;
  port_ = port;
  begin_telling(listener);
  logits_out_ = logits;
  host_kv_written_ = {};
  for (Ticket& saved : stream_saved_) saved = {};
  ++n_blocks_;
  fill_inputs(rows);
  side_ = &p_.host;
  if (image_->uses_device) upload_inputs();
  // In this order: of a long prompt's rows nobody needs to know where their keys are.
  bool const is_captured = is_capturable(std::int32_t(rows.size()), outputs_total_) && std::ranges::all_of(rows, [&](BlockRow const& r) {
                             return r.embedding == nullptr && p_.kv->all_in_vram(r.position + 1);
                           });
  if (is_captured) {
    run_captured();
  } else if (asks_attention(rows)) {
    run_helped(true);
  } else {
    walk();
  }
  p_.host.synchronize();
  if (image_->uses_device) {
    p_.device.synchronize();
    settle();
  }
  for (PortHalf& half : halves_) hand_out(half);
  port_ = nullptr;
  listener_ = nullptr;
}

void Executor::wait_for_copies() {
  for (CopyLane const* lane : {&p_.copy, &kv_copy()}) {
    if (lane->last().value != 0) lane->wait(lane->last());
  }
}

/// Waits for all copies, after which nobody needs to wait for those of activate().
void Executor::settle() {
  wait_for_copies();
  if (std::exchange(settled_, true)) return;
  std::ranges::fill(resident_ready_, Ticket{});
  routed_.settled();
}

bool Executor::is_capturable(std::int32_t n_rows, std::int32_t n_outputs) const {
  if (image_ == nullptr || !(only_device_ || (helped_ && n_rows == 1))) return false;
  RowLimits const limits = image_->limits;
  return (p_.trace == nullptr || !only_device_) && n_rows == n_outputs && n_rows > 0 && n_rows <= p_.capture_rows &&
         n_rows <= p_.device.kernels().fused_rows && n_rows <= std::min({limits.chunk, limits.block, max_outputs_per_run}) &&
         p_.device.can_capture();
}

GraphRef Executor::find_graph(std::int32_t n_rows, bool asks_attention) const {
  auto const it = std::ranges::find_if(
      graphs_, [&](Graph const& g) { return g.image == image_ && g.n_rows == n_rows && g.asks_attention == asks_attention; });
  return it == graphs_.end() ? nullptr : it->graph;
}

bool Executor::capture(std::int32_t n_rows) {
  if (!is_capturable(n_rows, n_rows)) return false;
  if (find_graph(n_rows) != nullptr) return true;
  std::vector<BlockRow> const rows(static_cast<std::size_t>(n_rows));
  rows_ = rows;
  outputs_total_ = n_rows;
  side_ = &p_.host;
  settle();
  capture_walk();
  rows_ = {};
  return true;
}

/// The walk of the current plan for as many rows as rows_ has, as a graph; nothing of it is run.
GraphRef Executor::capture_walk(bool asks_attention) {
  p_.device.begin_capture();
  capturing_ = true;
  try {
    only_device_ && !asks_attention ? walk() : enqueue_helped(asks_attention);
    graphs_.push_back({image_, std::int32_t(rows_.size()), asks_attention, p_.device.end_capture()});
  } catch (...) {
    capturing_ = false;
    p_.device.abandon_capture();
    throw;
  }
  capturing_ = false;
  return graphs_.back().graph;
}

void Executor::run_captured() {
  if (!only_device_) return run_helped(false);
  check_cancelled(0);
  if (!settled_) settle();
  GraphRef const known = find_graph(outputs_total_);
  p_.device.launch_graph(known != nullptr ? known : capture_walk());
  side_ = &p_.device;
  download_logits(0, outputs_total_);
}

void Executor::copy_ahead() {
  for (Schedule const& schedule = image_->schedule; prefetched_ < schedule.size(); ++prefetched_) {
    Action const& a = schedule[prefetched_];
    if (a.kind != ActionKind::copy || shard(a.shard).kind == ShardKind::output) return;  // whether the head is needed, that block will say
    do_copy(a);
  }
}

void Executor::fill_inputs(std::span<BlockRow const> rows) {
  ActivationLayout const& l = image_->activations;
  std::int32_t *const tokens = buffer<std::int32_t>(false, l.tokens), *const positions = buffer<std::int32_t>(false, l.positions),
                      *const outputs = buffer<std::int32_t>(false, l.outputs);
  KvRow* const kv_rows = buffer<KvRow>(false, l.kv_rows);
  Range* const seen = buffer<Range>(false, l.seen);
  std::size_t const block = std::size_t(image_->limits.block);
  outputs_total_ = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    tokens[i] = rows[i].token;
    if (l.position_rows == 1) positions[i] = rows[i].position;
    for (std::size_t r = 0; r < rope_position_rows && l.position_rows > 1; ++r) positions[r * block + i] = rows[i].rope_positions[r];
    kv_rows[i] = {rows[i].slot, rows[i].position};
    for (std::size_t k = 0; k < std::size_t(p_.config->block.n_ranges); ++k) seen[k * block + i] = rows[i].seen[k];
    if (rows[i].want_logits) outputs[outputs_total_++] = std::int32_t(i);
  }
}

void Executor::walk() {
  running_ = no_step;
  for (cursor_ = std::exchange(prefetched_, 0); cursor_ < image_->schedule.size(); ++cursor_) {
    Action const& a = image_->schedule[cursor_];
    switch (a.kind) {
      case ActionKind::copy: do_copy(a); break;
      case ActionKind::run: do_run(a); break;
      case ActionKind::release: do_release(a); break;
      case ActionKind::hop: do_hop(a); break;
      case ActionKind::fetch_routed: do_fetch_routed(a); break;
    }
    if (listener_ != nullptr) tell(a);
  }
}

/// The bytes of a row range as they lie in host memory, one piece per weight.
void Executor::cut(Shard const& s, Range rows, std::byte* dst, std::vector<CopyPiece>& pieces) const {
  std::size_t const origin = p_.table.row_offset(s, rows.begin);
  for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
    Weight const& w = p_.table.weights[std::size_t(i)];
    std::int32_t const begin = std::max(rows.begin, w.first_row), end = std::min(rows.end, w.first_row + w.rows);
    if (begin >= end) continue;
    std::size_t const skip = std::size_t(begin - w.first_row) * w.row_bytes();
    pieces.push_back({dst + (w.offset + skip - origin), w.data + skip, std::size_t(end - begin) * w.row_bytes()});
  }
}

void Executor::do_copy(Action const& a) {
  if (skips(a.shard)) return;
  Shard const& s = shard(a.shard);
  Range const rows = a.rows == Range{} ? Range{0, s.n_rows} : a.rows;
  after_.clear();
  ByteRing::Handle const h = ring_.producer_acquire(a.ring_offset, a.bytes, after_);
  std::byte* const dst = p_.vram + image_->vram.ring_offset + a.ring_offset;
  copy_pieces_.clear();
  cut(s, rows, dst, copy_pieces_);
  Ticket const before = p_.copy.last();
  p_.copy.submit(copy_pieces_, after_);
  ring_.producer_commit(h, p_.copy.last());
  pieces_.push_back({a.shard, rows, h, dst, p_.table.row_offset(s, rows.begin)});
  trace(a, TraceLane::copy, before, p_.copy.last());
}

void Executor::do_release(Action const& a) {
  if (skips(a.shard)) return;
  Range const rows = a.rows == Range{} ? Range{0, shard(a.shard).n_rows} : a.rows;
  auto const it = std::ranges::find_if(pieces_, [&](Piece const& p) { return p.shard == a.shard && p.rows == rows; });
  if (it == pieces_.end())
    throw Error(Errc::precondition,
                concat("the schedule releases rows ", rows.begin, " to ", rows.end, " of a shard that it did not copy"));
  ring_.consumer_release(it->handle, p_.device.record());
  pieces_.erase(it);
}

// ---- one step

void Executor::do_run(Action const& a) {
  if (a.shard == running_ || skips(a.shard)) return;  // further rows of a shard that goes by rows: its step has come by here already
  check_cancelled(shard(a.shard).layer);
  Step const step{shard(a.shard).layer, a.shard};
  running_ = a.shard;
  Shard const& s = shard(a.shard);
  reached_ = a.rows == Range{} ? s.n_rows : a.rows.end;
  side_ = a.device == host_device && !(s.kind == ShardKind::embedding && device_embeds_) ? &p_.host : &p_.device;
  kernels_ = &side_->kernels();
  queue_ = side_->queue();
  if (!on_device() && rows_.size() <= std::size_t(attention_few_rows)) {
    if (ReadAheadArgs const idle = idle_reading_.of(cursor_); idle.n_parts > 0) tiered::launch(kernels_->read_when_idle, idle, queue_);
  }
  Ticket const begin = mark();
  s.kind == ShardKind::output ? run_output(step) : run_chunks(step);
  if (reached_ < s.n_rows) advance_to(s, s.n_rows - 1);
  trace({a.kind, side_->device(), a.shard, {}, {0, std::int32_t(rows_.size())}, 0, 0}, on_device() ? TraceLane::device : TraceLane::host,
        begin, mark());
}

void Executor::check_cancelled(std::int32_t layer) const {
  if (p_.cancelled != nullptr && p_.cancelled->load(std::memory_order_relaxed))
    throw Error(Errc::cancelled, concat("cancelled at layer ", layer));
}

void Executor::set_rows(std::int32_t begin, std::int32_t n) {
  ActivationLayout const& l = image_->activations;
  bool const d = on_device();
  scratch_ = Scratch(base_of(d) + l.step, l.step_bytes);
  chunk_begin_ = begin;
  n_rows_ = n;
  std::size_t const dim = std::size_t(p_.config->dim);
  hidden_ = brings_rows() ? buffer<float>(true, l.hidden_halves) + chunk_half() * std::size_t(image_->limits.chunk) * dim
                          : buffer<float>(d, l.hidden) + std::size_t(begin) * dim;
  tokens_ = buffer<std::int32_t>(d, l.tokens) + begin;
  positions_ = buffer<std::int32_t>(d, l.positions) + begin;
  position_stride_ = image_->limits.block;
}

void Executor::run_chunks(Step step) {
  std::int32_t const n = std::int32_t(rows_.size()), chunk = std::max(image_->limits.chunk, 1);
  Shard const& s = shard(step.shard);
  bool const adds = s.kind == ShardKind::attention;
  for (pass_ = 0; pass_ < s.n_passes; ++pass_) {
    for (std::int32_t begin = 0; begin < n; begin += chunk) {
      if (begin > 0 || pass_ > 0) check_cancelled(step.layer);
      set_rows(begin, std::min(chunk, n - begin));
      chunk_max_position_ = 0;
      for (std::int32_t i = begin; i < begin + n_rows_; ++i)
        chunk_max_position_ = std::max(chunk_max_position_, rows_[std::size_t(i)].position);
      if (adds && step.layer > 0 && step.layer <= p_.config->n_deepstack_layers) add_vectors(step.layer - 1);
      begin_chunk(step);
      model_.run(step, *this);
      end_chunk();
    }
  }
}

void Executor::run_output(Step step) {
  ActivationLayout const& l = image_->activations;
  bool const d = on_device();
  std::size_t const vocab = std::size_t(p_.config->vocab_size);
  std::int32_t const per_run = std::min(image_->limits.chunk, max_outputs_per_run);
  for (std::int32_t first = 0; first < outputs_total_; first += per_run) {
    set_rows(0, std::int32_t(rows_.size()));
    n_outputs_ = std::min(per_run, outputs_total_ - first);
    outputs_ = buffer<std::int32_t>(d, l.outputs) + first;
    logits_ = d ? buffer<float>(true, l.logits) : logits_out_ + std::size_t(first) * vocab;
    model_.run(step, *this);
    if (d && !capturing_) download_logits(first, n_outputs_);
  }
}

/// Goes on in the schedule until `row` of the running shard may be used: its earlier rows are released, later ones copied.
void Executor::advance_to(Shard const& s, std::int32_t row) {
  while (reached_ <= row) {
    if (cursor_ + 1 >= image_->schedule.size())
      throw Error(Errc::precondition, concat("the schedule ends before row ", row, " of a shard of layer ", s.layer));
    Action const& a = image_->schedule[++cursor_];
    if (a.kind == ActionKind::copy) do_copy(a);
    if (a.kind == ActionKind::release) do_release(a);
    if (a.kind == ActionKind::run && a.shard == s.id) reached_ = a.rows.end;
  }
}

void Executor::do_fetch_routed(Action const& a) {
  Ticket const begin = mark();
  routed_.run(routed_rows_, first_expert_[std::size_t(routed_rows_.layer)], n_blocks_);
  trace({a.kind, side_->device(), a.shard, {}, {0, std::int32_t(rows_.size())}, 0, 0}, on_device() ? TraceLane::device : TraceLane::host,
        begin, mark());
}

}  // namespace tiered
