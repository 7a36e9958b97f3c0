/// Defines attention of an Executor, wherever keys and values are: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/pipeline/executor.hpp"

namespace tiered {

/// What comes before attention: norms and rotations, and, where the KV is on the step's device, storing keys and values.
void Executor::prepare_input(AttendRequest const& r, bool kv_here) {
  Kernel<AttentionInputArgs> const at_once = kernels_->attention_input[std::uint32_t(p_.kv->type())];
  if (kv_here && at_once != nullptr) return tiered::launch(at_once, input_args(r), queue_);
  norm_and_rotate(r);
  if (kv_here) store_kv(r, r.k, r.v, on_device(), {0, n_rows_});
}

AttentionInputArgs Executor::input_args(AttendRequest const& r) const {
  AttentionConfig const& c = *r.config;
  AttentionInputArgs args{r.q,
                          r.k,
                          r.v,
                          r.q_norm,
                          r.k_norm,
                          positions_,
                          r.inv_freq,
                          buffer<KvRow>(on_device(), image_->activations.kv_rows) + chunk_begin_,
                          kv_tables(r.layer, on_device())};
  args.n_tokens = n_rows_;
  args.n_heads = c.n_heads;
  args.n_kv_heads = c.n_kv_heads;
  args.head_dim = c.head_dim;
  args.n_rot = r.n_rot;
  args.page_tokens = p_.kv->page_tokens();
  args.eps = r.norm_eps;
  args.magnitude = r.magnitude;
  args.kind = r.rope;
  args.position_row = r.position_row;
  args.position_stride = position_stride_;
  return args;
}

/// Whether the rows of the chunk are of sequences of their own.
bool Executor::rows_apart() const {
  if (n_rows_ == 1) return true;
  if (capturing_ || n_rows_ > attention_few_rows) return false;  // a graph is launched again for others
  std::span<BlockRow const> const rows = rows_.subspan(std::size_t(chunk_begin_), std::size_t(n_rows_));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (rows[i].slot == rows[j].slot) return false;
    }
  }
  return true;
}

Executor::Homes Executor::homes_of(AttendRequest const& r) const {
  Homes homes{p_.kv->vram_tokens(r.layer)};
  if (p_.kv->in_vram(r.layer)) return {homes.border, true, false};
  std::int32_t first = chunk_max_position_;
  for (BlockRow const& row : rows_.subspan(std::size_t(chunk_begin_), std::size_t(n_rows_))) first = std::min(first, row.position);
  std::int32_t const window = r.config->window;
  homes.vram = (window > 0 ? std::max(first - window + 1, 0) : 0) < homes.border;
  homes.host = chunk_max_position_ >= homes.border;
  return homes;
}

void Executor::attend(AttendRequest const& r) {
  if (r.seen >= 0) return attend_in_block(r);
  if (asks_attention_ && !p_.kv->in_vram(r.layer)) return attend_helped(r);
  Homes const homes = homes_of(r);
  if (!homes.host) return attend_in(r, true);
  if (streams_kv(r)) return attend_streamed(r);
  homes.vram ? attend_split(r) : attend_in(r, false);
}

/// Of rows, which are counted within the chunk.
AttentionArgs Executor::attention_args(AttendRequest const& r, float const* q, bool device, Range rows) const {
  AttentionConfig const& c = *r.config;
  AttentionArgs args;
  args.q = q + std::ptrdiff_t(rows.begin) * c.n_heads * c.head_dim;
  args.rows = buffer<KvRow>(device, image_->activations.kv_rows) + chunk_begin_ + rows.begin;
  args.tables = kv_tables(r.layer, device);
  args.n_tokens = rows.size();
  args.n_heads = c.n_heads;
  args.n_kv_heads = c.n_kv_heads;
  args.head_dim = c.head_dim;
  args.page_tokens = p_.kv->page_tokens();
  // What is captured is launched again for rows of any position in VRAM.
  args.max_position = capturing_ ? p_.kv->vram_tokens(r.layer) - 1 : chunk_max_position_;
  args.window = c.window;
  args.scale = c.scale;
  return args;
}

/// Keys and values of rows of the chunk, to where the tables of a device say.
void Executor::store_kv(AttendRequest const& r, float const* k, float const* v, bool device, Range rows) {
  AttentionConfig const& c = *r.config;
  Side const& side = device ? p_.device : p_.host;
  std::ptrdiff_t const first = std::ptrdiff_t(rows.begin) * c.n_kv_heads * c.head_dim;
  KvWriteArgs const args{k + first,
                         v + first,
                         buffer<KvRow>(device, image_->activations.kv_rows) + chunk_begin_ + rows.begin,
                         kv_tables(r.layer, device),
                         rows.size(),
                         c.n_kv_heads,
                         c.head_dim,
                         p_.kv->page_tokens()};
  tiered::launch(side.kernels().kv_write[std::uint32_t(p_.kv->type())], args, side.queue());
}

/// Those whose home is the device's memory, or the host's.
void Executor::store_own(AttendRequest const& r, float const* k, float const* v, bool device) {
  std::int32_t const border = p_.kv->vram_tokens(r.layer);
  auto const is_own = [&](std::int32_t row) { return (rows_[std::size_t(chunk_begin_ + row)].position < border) == device; };
  for (std::int32_t row = 0; row < n_rows_;) {
    std::int32_t end = row;
    while (end < n_rows_ && is_own(end)) ++end;
    if (end > row) store_kv(r, k, v, device, {row, end});
    row = end + 1;
  }
}

/// All positions in one place.
void Executor::attend_in(AttendRequest const& r, bool in_vram) {
  bool const here = on_device() == in_vram;
  Kernel<DecodeAttentionArgs> const at_once = here ? kernels_->decode_attention[std::uint32_t(p_.kv->type())] : nullptr;
  bool const decodes = at_once != nullptr && rows_apart();
  if (!decodes) prepare_input(r, here);
  AttentionConfig const& c = *r.config;
  std::size_t const n = std::size_t(n_rows_), q_bytes = n * std::size_t(c.n_heads) * std::size_t(c.head_dim) * sizeof(float),
                    kv_bytes = n * std::size_t(c.n_kv_heads) * std::size_t(c.head_dim) * sizeof(float);
  Side const& kv_side = in_vram ? p_.device : p_.host;
  // Scratch on the KV's device: nothing of a step is alive there while another device runs the step.
  Scratch other(base_of(in_vram) + image_->activations.step, image_->activations.step_bytes);
  Scratch& scratch = here ? scratch_ : other;
  float const* q = r.q;
  float* out = r.out;
  if (!here) {
    auto *const q2 = static_cast<std::byte*>(other.take(q_bytes)), *const k2 = static_cast<std::byte*>(other.take(kv_bytes)),
                *const v2 = static_cast<std::byte*>(other.take(kv_bytes));
    out = static_cast<float*>(other.take(q_bytes));
    CopyPiece const pieces[] = {{q2, reinterpret_cast<std::byte const*>(r.q), q_bytes},
                                {k2, reinterpret_cast<std::byte const*>(r.k), kv_bytes},
                                {v2, reinterpret_cast<std::byte const*>(r.v), kv_bytes}};
    cross(in_vram, pieces, side_->record());
    q = reinterpret_cast<float const*>(q2);
    store_kv(r, reinterpret_cast<float const*>(k2), reinterpret_cast<float const*>(v2), in_vram, {0, n_rows_});
    if (!in_vram) wait_for_streamed();
  }
  AttentionArgs args = attention_args(r, q, in_vram, {0, n_rows_});
  args.out = out;
  args.workspace = static_cast<std::byte*>(scratch.take(attention_workspace_bytes(n_rows_, c.n_heads, c.head_dim, args.max_position)));
  if (decodes) return tiered::launch(at_once, DecodeAttentionArgs{input_args(r), args, true}, queue_);
  tiered::launch(kv_side.kernels().attention[std::uint32_t(p_.kv->type())], args, kv_side.queue());
  if (here) return;
  Ticket const done = kv_side.record();
  if (!in_vram) host_kv_written_ = done;
  CopyPiece const result{reinterpret_cast<std::byte*>(r.out), reinterpret_cast<std::byte const*>(out), q_bytes};
  cross(!in_vram, {&result, 1}, done);
}

/// Either device attends to the positions in its memory, at the same time; parts are merged where the step is: VRAM's, then the host's.
void Executor::attend_split(AttendRequest const& r) {
  norm_and_rotate(r);
  bool const here = on_device();
  AttentionConfig const& c = *r.config;
  std::size_t const queries = std::size_t(n_rows_) * std::size_t(c.n_heads), q_floats = queries * std::size_t(c.head_dim),
                    q_bytes = q_floats * sizeof(float), log_bytes = queries * sizeof(float),
                    kv_bytes = std::size_t(n_rows_) * std::size_t(c.n_kv_heads) * std::size_t(c.head_dim) * sizeof(float);
  std::uint32_t const kv_type = std::uint32_t(p_.kv->type());
  std::int32_t const border = p_.kv->vram_tokens(r.layer);
  Side const& there = here ? p_.host : p_.device;
  Scratch other(base_of(!here) + image_->activations.step, image_->activations.step_bytes);
  auto *const q2 = static_cast<float*>(other.take(q_bytes)), *const k2 = static_cast<float*>(other.take(kv_bytes)),
              *const v2 = static_cast<float*>(other.take(kv_bytes)), *const out2 = static_cast<float*>(other.take(q_bytes)),
              *const log2 = static_cast<float*>(other.take(log_bytes)), *const parts = static_cast<float*>(scratch_.take(2 * q_bytes)),
              *const logs = static_cast<float*>(scratch_.take(2 * log_bytes));
  auto const piece = [](float* to, float const* from, std::size_t bytes) {
    return CopyPiece{reinterpret_cast<std::byte*>(to), reinterpret_cast<std::byte const*>(from), bytes};
  };
  CopyPiece const inputs[] = {piece(q2, r.q, q_bytes), piece(k2, r.k, kv_bytes), piece(v2, r.v, kv_bytes)};
  cross(!here, inputs, side_->record());

  auto const attend_part = [&](bool device, float const* q, float* out, float* log, Scratch& scratch) {
    Side const& side = device ? p_.device : p_.host;
    AttentionArgs args = attention_args(r, q, device, {0, n_rows_});
    args.out = out;
    args.log_sum_exp = log;
    (device ? args.positions.end : args.positions.begin) = border;
    args.workspace = static_cast<std::byte*>(scratch.take(attention_workspace_bytes(n_rows_, c.n_heads, c.head_dim, args.max_position)));
    tiered::launch(side.kernels().attention[kv_type], args, side.queue());
  };
  store_own(r, k2, v2, !here);
  if (here) wait_for_streamed();
  attend_part(!here, q2, out2, log2, other);
  Ticket const done = there.record();
  if (here) host_kv_written_ = done;
  std::size_t const own = here ? 0 : 1, theirs = 1 - own;
  store_own(r, r.k, r.v, here);
  attend_part(here, r.q, parts + own * q_floats, logs + own * queries, scratch_);
  CopyPiece const results[] = {piece(parts + theirs * q_floats, out2, q_bytes), piece(logs + theirs * queries, log2, log_bytes)};
  cross(here, results, done);
  tiered::launch(kernels_->merge_attention, MergeAttentionArgs{parts, logs, r.out, nullptr, 2, n_rows_, c.n_heads, c.head_dim}, queue_);
}

/// The host attends to its part when it is asked, within the launch: see HelpedAttention.
void Executor::attend_helped(AttendRequest const& r) {
  prepare_input(r, true);
  AttentionConfig const& c = *r.config;
  AttentionArgs own = attention_args(r, r.q, true, {0, n_rows_});
  own.max_position = attention_.last_read(r.layer);
  own.out = r.out;
  own.log_sum_exp = static_cast<float*>(scratch_.take(std::size_t(c.n_heads) * sizeof(float)));
  own.workspace = static_cast<std::byte*>(scratch_.take(attention_workspace_bytes(n_rows_, c.n_heads, c.head_dim, own.max_position)));
  attention_.enqueue(own, r.layer);
}

void Executor::load_split_attention() {
  if (image_ == nullptr || !image_->uses_device) return;
  std::uint32_t const type = std::uint32_t(p_.kv->type());
  side_ = &p_.device;
  kernels_ = &p_.device.kernels();
  queue_ = p_.device.queue();
  if (kernels_->attention[type] == nullptr || kernels_->kv_write[type] == nullptr || kernels_->merge_attention == nullptr) return;
  std::int32_t loaded = 0;  // head size of the layer before: one of each will do
  for (std::int32_t layer = 0; layer < p_.config->n_layers; ++layer) {
    AttentionConfig const& c = p_.config->layers[std::size_t(layer)].attention;
    bool const has_table = p_.kv->vram_tokens(layer) > 0 || image_->activations.kv_stream.half_pages > 0;
    if (p_.kv->in_vram(layer) || !has_table || c.head_dim == std::exchange(loaded, c.head_dim)) continue;
    set_rows(0, 1);
    chunk_max_position_ = 0;
    auto const floats = [&](std::int32_t n) { return static_cast<float*>(scratch_.take(std::size_t(n) * sizeof(float))); };
    AttendRequest r{layer, &c, floats(c.n_heads * c.head_dim), floats(c.n_kv_heads * c.head_dim), floats(c.n_kv_heads * c.head_dim)};
    r.q_norm = r.k_norm = r.inv_freq = floats(c.head_dim);
    r.n_rot = c.head_dim / 2 * 2;
    r.rope = p_.config->rope;
    float *const parts = floats(2 * c.n_heads * c.head_dim), *const logs = floats(2 * c.n_heads);
    norm_and_rotate(r);
    store_kv(r, r.k, r.v, true, {0, 1});
    AttentionArgs args = attention_args(r, r.q, true, {0, 1});
    args.out = parts;
    args.log_sum_exp = logs;
    args.positions = {0, 1};
    args.workspace = static_cast<std::byte*>(scratch_.take(attention_workspace_bytes(1, c.n_heads, c.head_dim, 0)));
    tiered::launch(kernels_->attention[type], args, queue_);
    tiered::launch(kernels_->merge_attention, MergeAttentionArgs{parts, logs, parts, nullptr, 2, 1, c.n_heads, c.head_dim}, queue_);
  }
  p_.device.synchronize();
}

}  // namespace tiered
