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
      routed_(env_) {
  first_expert_.assign(parts.config->layers.size(), ShardId{});
  for (Shard const& s : parts.table.shards) {
    if (s.kind == ShardKind::expert && s.expert == 0) first_expert_[std::size_t(s.layer)] = s.id;
  }
}

Executor::~Executor() = default;

// ---- activation of plans

void Executor::activate(PlanImage const& image) {
  if (image_ == &image) return;
  if (p_.copy.last().value != 0) p_.copy.wait(p_.copy.last());  // copies ahead of a block that will not come may still be writing
  image_ = &image;
  ring_ = ByteRing(image.vram.ring_bytes);
  pieces_.clear();
  prefetched_ = 0;
  if (image.vram.cache_bytes > 0 && image.vram.cache_offset != cache_offset_) {
    p_.cache->clear({});
    cache_offset_ = image.vram.cache_offset;
  } else if (image.vram.cache_bytes == 0) {
    cache_offset_ = VramLayout::none;  // other things may lie there now
  }
  for (std::size_t s = 0; s < resident_at_.size(); ++s) {
    std::size_t const wanted = image.vram.resident[s];
    if (resident_at_[s] == wanted) continue;
    resident_at_[s] = VramLayout::none;
    if (wanted == VramLayout::none) continue;
    Shard const& what = p_.table.shards[s];
    copy_pieces_.clear();
    cut(what, {0, what.n_rows}, p_.vram + wanted, copy_pieces_);
    Ticket const before = p_.copy.last();
    resident_ready_[s] = p_.copy.submit(copy_pieces_, {});
    resident_at_[s] = wanted;
    trace({ActionKind::copy, first_gpu, what.id, {0, what.n_rows}, {}, wanted, what.bytes}, TraceLane::copy, before, p_.copy.last());
  }
  if (image.uses_device) upload_kv_tables();
  env_ = {
      p_.table,           p_.config,   p_.host,     p_.device, &p_.copy,        base_of(false), image.uses_device ? base_of(true) : nullptr,
      &image.activations, &image.plan, &image.vram, p_.vram,   resident_ready_, p_.cache,       p_.trace};
}

/// Page lists and tables of the layers whose KV is in VRAM, with the device's addresses. They never change while a plan is current.
void Executor::upload_kv_tables() {
  std::size_t const n_slots = std::size_t(p_.kv->n_slots()), n_pages = std::size_t(p_.kv->n_pages());
  std::byte* const device = base_of(true) + image_->activations.kv_tables;
  kv_table_image_.clear();
  kv_table_offset_.assign(p_.config->layers.size(), 0);
  for (std::int32_t l = 0; l < p_.config->n_layers; ++l) {
    if (!p_.kv->in_vram(l)) continue;
    std::size_t const begin = kv_table_image_.size(), lists = begin + n_slots * sizeof(KvTable);
    kv_table_offset_[std::size_t(l)] = begin;
    kv_table_image_.resize(lists + n_slots * 2 * n_pages * sizeof(std::byte*));
    for (std::size_t s = 0; s < n_slots; ++s) {
      KvTable const& from = p_.kv->tables(l)[s];
      std::size_t const k = lists + s * 2 * n_pages * sizeof(std::byte*), v = k + n_pages * sizeof(std::byte*);
      KvTable const to{reinterpret_cast<std::byte* const*>(device + k), reinterpret_cast<std::byte* const*>(device + v)};
      std::memcpy(kv_table_image_.data() + begin + s * sizeof(KvTable), &to, sizeof to);
      std::memcpy(kv_table_image_.data() + k, from.k_pages, n_pages * sizeof(std::byte*));
      std::memcpy(kv_table_image_.data() + v, from.v_pages, n_pages * sizeof(std::byte*));
    }
  }
  if (kv_table_image_.empty()) return;
  p_.copy.submit({device, kv_table_image_.data(), kv_table_image_.size()}, Ticket{});
  p_.device.wait_for(p_.copy.last());
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
  in_any_case([&] { p_.copy.wait(p_.copy.last()); });
  in_any_case([&] { p_.copy.recover(); });
  in_any_case([&] { p_.host.recover(); });
  in_any_case([&] { p_.device.recover(); });
  image_ = nullptr;
  std::fill(resident_at_.begin(), resident_at_.end(), VramLayout::none);
  p_.cache->clear({});
  cache_offset_ = VramLayout::none;
  pieces_.clear();
  prefetched_ = 0;
  routed_ = RoutedExperts(env_);
}

// ---- one block

void Executor::run_block(std::span<BlockRow const> rows, float* logits) {
  rows_ = rows;
  logits_out_ = logits;
  ++pass_;
  fill_inputs(rows);
  side_ = &p_.host;
  if (image_->uses_device) upload_inputs();
  walk();
  p_.host.synchronize();
  if (!image_->uses_device) return;
  p_.device.synchronize();
  p_.copy.wait(p_.copy.last());
  std::ranges::fill(resident_ready_, Ticket{});
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
  outputs_total_ = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    tokens[i] = rows[i].token;
    positions[i] = rows[i].position;
    kv_rows[i] = {rows[i].slot, rows[i].position};
    if (rows[i].want_logits) outputs[outputs_total_++] = std::int32_t(i);
  }
}

void Executor::upload_inputs() {
  ActivationLayout const& l = image_->activations;
  copy_pieces_.clear();
  auto const add = [&](std::size_t offset, std::size_t bytes) {
    if (bytes > 0) copy_pieces_.push_back({base_of(true) + offset, base_of(false) + offset, bytes});
  };
  add(l.positions, rows_.size() * sizeof(std::int32_t));
  add(l.kv_rows, rows_.size() * sizeof(KvRow));
  add(l.outputs, std::size_t(outputs_total_) * sizeof(std::int32_t));
  p_.copy.submit(copy_pieces_, {});
  p_.device.wait_for(p_.copy.last());
}

void Executor::walk() {
  running_ = ShardId{0xffffffffu};
  for (cursor_ = std::exchange(prefetched_, 0); cursor_ < image_->schedule.size(); ++cursor_) {
    Action const& a = image_->schedule[cursor_];
    switch (a.kind) {
      case ActionKind::copy: do_copy(a); break;
      case ActionKind::run: do_run(a); break;
      case ActionKind::release: do_release(a); break;
      case ActionKind::hop: do_hop(a); break;
      case ActionKind::fetch_routed: do_fetch_routed(a); break;
    }
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

void Executor::do_hop(Action const& a) {
  bool const to_device = a.device != host_device;
  if (to_device == on_device()) return;
  std::size_t const bytes = rows_.size() * std::size_t(p_.config->dim) * sizeof(float);
  Side const& to = to_device ? p_.device : p_.host;
  Ticket const before = p_.copy.last();
  p_.copy.submit(
      {buffer<std::byte>(to_device, image_->activations.hidden), buffer<std::byte>(!to_device, image_->activations.hidden), bytes},
      side_->record());
  to.wait_for(p_.copy.last());
  side_ = &to;
  trace(a, TraceLane::copy, before, p_.copy.last());
}

// ---- one step

void Executor::do_run(Action const& a) {
  if (a.shard == running_ || skips(a.shard)) return;  // further rows of a shard that goes by rows: its step has come by here already
  if (p_.cancelled != nullptr && p_.cancelled->load(std::memory_order_relaxed))
    throw Error(Errc::cancelled, concat("cancelled at layer ", shard(a.shard).layer));
  Step const step{shard(a.shard).layer, a.shard};
  running_ = a.shard;
  Shard const& s = shard(a.shard);
  reached_ = a.rows == Range{} ? s.n_rows : a.rows.end;
  side_ = a.device == host_device ? &p_.host : &p_.device;
  kernels_ = &side_->kernels();
  queue_ = side_->queue();
  Ticket const begin = side_->record();
  s.kind == ShardKind::output ? run_output(step) : run_chunks(step);
  if (reached_ < s.n_rows) advance_to(s, s.n_rows - 1);
  trace({a.kind, a.device, a.shard, {}, {0, std::int32_t(rows_.size())}, 0, 0}, on_device() ? TraceLane::device : TraceLane::host, begin,
        side_->record());
}

void Executor::set_rows(std::int32_t begin, std::int32_t n) {
  ActivationLayout const& l = image_->activations;
  bool const d = on_device();
  scratch_ = Scratch(base_of(d) + l.step, l.step_bytes);
  chunk_begin_ = begin;
  n_rows_ = n;
  hidden_ = buffer<float>(d, l.hidden) + std::size_t(begin) * std::size_t(p_.config->dim);
  tokens_ = buffer<std::int32_t>(d, l.tokens) + begin;
  positions_ = buffer<std::int32_t>(d, l.positions) + begin;
}

void Executor::run_chunks(Step step) {
  std::int32_t const n = std::int32_t(rows_.size()), chunk = std::max(image_->limits.chunk, 1);
  for (std::int32_t begin = 0; begin < n; begin += chunk) {
    set_rows(begin, std::min(chunk, n - begin));
    chunk_max_position_ = 0;
    for (std::int32_t i = begin; i < begin + n_rows_; ++i)
      chunk_max_position_ = std::max(chunk_max_position_, rows_[std::size_t(i)].position);
    model_.run(step, *this);
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
    float* const out = logits_out_ + std::size_t(first) * vocab;
    logits_ = d ? buffer<float>(true, l.logits) : out;
    model_.run(step, *this);
    if (!d) continue;
    p_.copy.submit(
        {reinterpret_cast<std::byte*>(out), reinterpret_cast<std::byte const*>(logits_), std::size_t(n_outputs_) * vocab * sizeof(float)},
        side_->record());
    p_.device.wait_for(p_.copy.last());
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

/// Where row `row` of the running shard lies in VRAM, and up to which row (`end`) it goes on there; the device waits for it.
std::byte const* Executor::device_rows(Weight const& w, std::int32_t row, std::int32_t& end) {
  Shard const& s = shard(w.shard);
  std::size_t const offset = w.offset + std::size_t(row - w.first_row) * w.row_bytes();
  if (std::size_t const at = image_->vram.resident[std::size_t(w.shard)]; at != VramLayout::none) {
    p_.device.wait_for(resident_ready_[std::size_t(w.shard)]);
    end = w.first_row + w.rows;
    return p_.vram + at + offset;
  }
  if (row >= reached_) advance_to(s, row);
  auto const it =
      std::ranges::find_if(pieces_, [&](Piece const& p) { return p.shard == w.shard && p.rows.begin <= row && row < p.rows.end; });
  if (it == pieces_.end())
    throw Error(Errc::precondition, concat("row ", row, " of a streamed shard of layer ", s.layer, " is not in the ring when it is used"));
  p_.device.wait_for(ring_.consumer_wait(it->handle));
  end = std::min({w.first_row + w.rows, it->rows.end, reached_});
  return it->data + (offset - it->origin);
}

float const* Executor::vector(WeightId id) {
  Weight const& w = p_.table.weight(id);
  if (!on_device()) return reinterpret_cast<float const*>(w.data);
  bool const by_rows = image_->vram.resident[std::size_t(w.shard)] == VramLayout::none && reached_ < shard(w.shard).n_rows;
  bool const partly_gone =
      !by_rows && image_->vram.resident[std::size_t(w.shard)] == VramLayout::none && std::ranges::none_of(pieces_, [&](Piece const& p) {
        return p.shard == w.shard && p.rows.begin <= w.first_row && w.first_row < p.rows.end;
      });
  if (by_rows || partly_gone) {
    // The model may still need it when its piece has been overwritten: it goes to scratch by itself.
    void* const copy = scratch_.take(w.bytes());
    p_.copy.submit({static_cast<std::byte*>(copy), w.data, w.bytes()}, p_.device.record());
    p_.device.wait_for(p_.copy.last());
    return static_cast<float const*>(copy);
  }
  std::int32_t end = 0;
  return reinterpret_cast<float const*>(device_rows(w, w.first_row, end));
}

/// The whole product where the host has its weights.
MatmulArgs Executor::host_product(WeightId id, Activations& x, float* y, float const* bias) {
  Weight const& w = p_.table.weight(id);
  return {w.data, in_type_for(w.dtype, x, *kernels_), bias, y, x.n_rows, w.rows, w.cols, w.rows};
}

void Executor::matmul(WeightId id, Activations& x, float* y, float const* bias) {
  Weight const& w = p_.table.weight(id);
  MatmulArgs args = host_product(id, x, y, bias);
  auto const kernel = kernels_->matmul[std::uint32_t(w.dtype)];
  if (!on_device()) return tiered::launch(kernel, args, queue_);
  for (std::int32_t row = w.first_row; row < w.first_row + w.rows;) {
    std::int32_t end = 0;
    args.w = device_rows(w, row, end);
    args.rows = end - row;
    args.bias = bias == nullptr ? nullptr : bias + (row - w.first_row);
    args.y = y + (row - w.first_row);
    tiered::launch(kernel, args, queue_);
    row = end;
  }
}

void Executor::matmul_set(std::span<ProductRequest const> products, Activations& x) {
  if (on_device() || kernels_->matmul_set == nullptr || products.size() > MatmulSetArgs::max_parts)
    return ExecContext::matmul_set(products, x);
  MatmulSetArgs args;
  for (ProductRequest const& p : products) {
    args.types[args.n_parts] = p_.table.weight(p.weight).dtype;
    args.parts[args.n_parts++] = host_product(p.weight, x, p.y, p.bias);
  }
  tiered::launch(kernels_->matmul_set, args, queue_);
}

void Executor::gated_matmul(WeightId gate, WeightId up, Activations& x, float* y, float* spare, Activation activation) {
  if (on_device() || kernels_->gated_matmul == nullptr) return ExecContext::gated_matmul(gate, up, x, y, spare, activation);
  MatmulArgs const gate_args = host_product(gate, x, y, nullptr), up_args = host_product(up, x, spare, nullptr);
  tiered::launch(kernels_->gated_matmul,
                 GatedMatmulArgs{gate_args, up_args, p_.table.weight(gate).dtype, p_.table.weight(up).dtype, activation}, queue_);
}

void Executor::embed(WeightId table, float scale) {
  Weight const& w = p_.table.weight(table);
  if (on_device()) throw Error(Errc::precondition, "embeddings are looked up by the host");
  tiered::launch(kernels_->embed[std::uint32_t(w.dtype)], EmbedArgs{w.data, tokens_, hidden_, n_rows_, w.cols, scale}, queue_);
}

void Executor::attend(AttendRequest const& r) {
  bool const here = on_device(), there = p_.kv->in_vram(r.layer);
  AttentionConfig const& c = *r.config;
  std::size_t const n = std::size_t(n_rows_), q_bytes = n * std::size_t(c.n_heads) * std::size_t(c.head_dim) * sizeof(float),
                    kv_bytes = n * std::size_t(c.n_kv_heads) * std::size_t(c.head_dim) * sizeof(float);
  std::uint32_t const kv_type = std::uint32_t(p_.kv->type());
  Side const& kv_side = there ? p_.device : p_.host;
  // Scratch on the KV's device: nothing of a step is alive there while another device runs the step.
  Scratch other(base_of(there) + image_->activations.step, image_->activations.step_bytes);
  Scratch& scratch = here == there ? scratch_ : other;
  float const *q = r.q, *k = r.k, *v = r.v;
  float* out = r.out;
  if (here != there) {
    auto *const q2 = static_cast<std::byte*>(other.take(q_bytes)), *const k2 = static_cast<std::byte*>(other.take(kv_bytes)),
                *const v2 = static_cast<std::byte*>(other.take(kv_bytes));
    out = static_cast<float*>(other.take(q_bytes));
    CopyPiece const pieces[] = {{q2, reinterpret_cast<std::byte const*>(q), q_bytes},
                                {k2, reinterpret_cast<std::byte const*>(k), kv_bytes},
                                {v2, reinterpret_cast<std::byte const*>(v), kv_bytes}};
    Ticket const ready = side_->record();
    p_.copy.submit(pieces, {&ready, 1});
    kv_side.wait_for(p_.copy.last());
    q = reinterpret_cast<float const*>(q2), k = reinterpret_cast<float const*>(k2), v = reinterpret_cast<float const*>(v2);
  }
  KvRow const* const rows = buffer<KvRow>(there, image_->activations.kv_rows) + chunk_begin_;
  KvTable const* const tables = kv_tables(r.layer, there);
  tiered::launch(kv_side.kernels().kv_write[kv_type], KvWriteArgs{k, v, rows, tables, n_rows_, c.n_kv_heads, c.head_dim, kv_page_tokens},
                 kv_side.queue());
  AttentionArgs args{q,        rows,      tables,       out,        nullptr,        nullptr,
                     n_rows_,  c.n_heads, c.n_kv_heads, c.head_dim, kv_page_tokens, chunk_max_position_,
                     c.window, c.scale};
  args.workspace = static_cast<std::byte*>(scratch.take(attention_workspace_bytes(n_rows_, c.n_heads, c.head_dim, chunk_max_position_)));
  tiered::launch(kv_side.kernels().attention[kv_type], args, kv_side.queue());
  if (here == there) return;
  p_.copy.submit({reinterpret_cast<std::byte*>(r.out), reinterpret_cast<std::byte const*>(out), q_bytes}, kv_side.record());
  side_->wait_for(p_.copy.last());
}

void Executor::experts(ExpertsRequest const& r) {
  std::int32_t const n_used = r.config->experts.n_experts_used;
  routed_rows_ = {r.layer,
                  std::int32_t(rows_.size()),
                  r.config,
                  r.activation,
                  side_->device(),
                  r.x,
                  r.ids,
                  r.weights,
                  hidden_ - std::size_t(chunk_begin_) * std::size_t(p_.config->dim)};
  if (std::size_t(n_rows_) == rows_.size()) return;
  // Several chunks: gather them, so that an expert is read once for the whole block.
  ActivationLayout const& l = image_->activations;
  bool const d = on_device();
  std::size_t const first = std::size_t(chunk_begin_), n = std::size_t(n_rows_), dim = std::size_t(p_.config->dim),
                    used = std::size_t(n_used);
  float *const x = buffer<float>(d, l.expert_x), *const weights = buffer<float>(d, l.expert_weights);
  std::int32_t* const ids = buffer<std::int32_t>(d, l.expert_ids);
  CopyPiece const pieces[] = {
      {reinterpret_cast<std::byte*>(x + first * dim), reinterpret_cast<std::byte const*>(r.x), n * dim * sizeof(float)},
      {reinterpret_cast<std::byte*>(weights + first * used), reinterpret_cast<std::byte const*>(r.weights), n * used * sizeof(float)},
      {reinterpret_cast<std::byte*>(ids + first * used), reinterpret_cast<std::byte const*>(r.ids), n * used * sizeof(std::int32_t)}};
  Ticket const ready = side_->record();
  p_.copy.submit(pieces, {&ready, 1});
  side_->wait_for(p_.copy.last());
  routed_rows_.x = x, routed_rows_.weights = weights, routed_rows_.ids = ids;
}

void Executor::do_fetch_routed(Action const& a) {
  Ticket const begin = side_->record();
  routed_.run(routed_rows_, first_expert_[std::size_t(routed_rows_.layer)], pass_);
  trace({a.kind, side_->device(), a.shard, {}, {0, std::int32_t(rows_.size())}, 0, 0}, on_device() ? TraceLane::device : TraceLane::host,
        begin, side_->record());
}

}  // namespace tiered
