/// Defines how rows come to an Executor from outside and leave it, and how those of a block see each other: for one source file of a
/// program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/pipeline/executor.hpp"

namespace tiered {

// ---- attention within a block

/// Keys (kv 0) or values (1) of a page; each layer's overwrite those of the layer before.
std::byte* Executor::block_page(bool device, std::int32_t page, int kv) const {
  ActivationLayout const& l = image_->activations;
  std::size_t const page_bytes = block_kv_page_bytes(*p_.config, l.block_kv_tokens), place = std::size_t(device ? page % 2 : page);
  return buffer<std::byte>(device, device ? l.block_kv : l.host_block_kv) + (2 * place + std::size_t(kv)) * page_bytes;
}

/// Both at once.
CopyPiece Executor::block_page_piece(std::int32_t page, bool to_device) const {
  std::byte *const there = block_page(true, page, 0), *const here = block_page(false, page, 0);
  std::size_t const bytes = std::size_t(block_page(false, page, 1) - here) * 2;
  return to_device ? CopyPiece{there, here, bytes} : CopyPiece{here, there, bytes};
}

/// Page lists of either device, as of one sequence.
void Executor::set_block_table() {
  if (p_.config->block.n_ranges == 0) return;
  ActivationLayout const& l = image_->activations;
  std::size_t const n_pages = std::size_t(l.block_kv_pages);
  auto const list_pages = [&](bool device, std::byte** lists) {
    for (int kv = 0; kv < 2; ++kv) {
      for (std::int32_t page = 0; page < l.block_kv_pages; ++page) *lists++ = block_page(device, page, kv);
    }
  };
  block_pages_.resize(2 * n_pages);
  list_pages(false, block_pages_.data());
  block_table_ = {block_pages_.data(), block_pages_.data() + n_pages};
  if (!image_->uses_device) return;
  auto* const there = buffer<std::byte>(true, l.kv_tables);
  auto* const lists = reinterpret_cast<std::byte* const*>(there + sizeof(KvTable));
  std::vector<std::byte*> pages(2 * n_pages);
  list_pages(true, pages.data());
  KvTable const table{lists, lists + n_pages};
  kv_table_image_.resize(block_table_bytes(l.block_kv_pages));
  std::memcpy(kv_table_image_.data(), &table, sizeof table);
  std::memcpy(kv_table_image_.data() + sizeof table, pages.data(), pages.size() * sizeof(std::byte*));
  p_.device.wait_for(kv_copy().submit({there, kv_table_image_.data(), kv_table_image_.size()}, Ticket{}));
}

KvTable const* Executor::block_table() const { return on_device() ? buffer<KvTable>(true, image_->activations.kv_tables) : &block_table_; }

/// Where they go to the host, the chunk's are a page. What was in the device's place for it has left: the chunk's hidden rows came behind
/// that, since copies are of one lane.
void Executor::keep(AttendRequest const& r) {
  norm_and_rotate(r);
  AttentionConfig const& c = *r.config;
  ActivationLayout const& l = image_->activations;
  KvWriteArgs args;
  args.k = r.k;
  args.v = r.v;
  args.rows = buffer<KvRow>(on_device(), l.kv_rows) + chunk_begin_;
  args.tables = block_table();
  args.n_tokens = n_rows_;
  args.n_kv_heads = c.n_kv_heads;
  args.head_dim = c.head_dim;
  args.page_tokens = l.block_kv_tokens;
  tiered::launch(kernels_->kv_write[std::uint32_t(DType::f16)], args, queue_);
  if (brings_block_kv()) kv_copy().submit(block_page_piece(chunk_begin_ / l.block_kv_tokens, false), p_.device.record());
}

AttentionArgs Executor::block_attention_args(AttendRequest const& r) const {
  AttentionConfig const& c = *r.config;
  ActivationLayout const& l = image_->activations;
  AttentionArgs args;
  args.q = r.q;
  args.rows = buffer<KvRow>(on_device(), l.kv_rows) + chunk_begin_;
  args.tables = block_table();
  args.out = r.out;
  args.seen = buffer<Range>(on_device(), l.seen) + std::ptrdiff_t(r.seen) * image_->limits.block + chunk_begin_;
  args.n_tokens = n_rows_;
  args.n_heads = c.n_heads;
  args.n_kv_heads = c.n_kv_heads;
  args.head_dim = c.head_dim;
  args.page_tokens = l.block_kv_tokens;
  args.scale = c.scale;
  return args;
}

void Executor::attend_in_block(AttendRequest const& r) {
  norm_and_rotate(r);
  Range positions{std::numeric_limits<std::int32_t>::max(), 0};  // that some row of the chunk sees
  for (BlockRow const& row : rows_.subspan(std::size_t(chunk_begin_), std::size_t(n_rows_))) {
    Range const seen = row.seen[std::size_t(r.seen)];
    positions = {std::min(positions.begin, seen.begin), std::max(positions.end, seen.end)};
  }
  AttentionArgs args = block_attention_args(r);
  args.max_position = positions.end - 1;
  args.workspace =
      static_cast<std::byte*>(scratch_.take(attention_workspace_bytes(n_rows_, args.n_heads, args.head_dim, args.max_position)));
  if (brings_block_kv()) return attend_by_pages(r, args, positions);
  tiered::launch(kernels_->attention[std::uint32_t(DType::f16)], args, queue_);
}

/// A page comes while the device attends to the one before; parts are added in order.
void Executor::attend_by_pages(AttendRequest const& r, AttentionArgs args, Range positions) {
  std::int32_t const page_tokens = args.page_tokens, first = positions.begin / page_tokens, last = (positions.end - 1) / page_tokens;
  std::size_t const queries = std::size_t(n_rows_) * std::size_t(args.n_heads), q_floats = queries * std::size_t(args.head_dim);
  auto *const parts = static_cast<float*>(scratch_.take(2 * q_floats * sizeof(float))), *const logs = static_cast<float*>(
                                                                                            scratch_.take(2 * queries * sizeof(float)));
  for (std::int32_t page = first; page <= last; ++page) {
    Ticket& used = block_kv_used_[page % 2];
    p_.device.wait_for(kv_copy().submit(block_page_piece(page, true), used));
    bool const alone = first == last;
    args.positions = {page * page_tokens, (page + 1) * page_tokens};
    args.out = alone ? r.out : parts + (page > first ? q_floats : 0);
    args.log_sum_exp = alone ? nullptr : logs + (page > first ? queries : 0);
    tiered::launch(kernels_->attention[std::uint32_t(DType::f16)], args, queue_);
    used = p_.device.record();
    if (page == first) continue;
    bool const ends = page == last;
    MergeAttentionArgs const merge{parts, logs, ends ? r.out : parts, ends ? nullptr : logs, 2, n_rows_, args.n_heads, args.head_dim};
    tiered::launch(kernels_->merge_attention, merge, queue_);
  }
}

// ---- room that is left

void Executor::begin_telling(RoomListener* listener) {
  listener_ = image_->uses_device ? listener : nullptr;
  has_news_ = true;
  busy_.clear();
  if (listener_ == nullptr) return;
  VramLayout const& l = image_->vram;
  auto const is_copy = [](Action const& a) { return a.kind == ActionKind::copy; };
  auto const last = std::find_if(image_->schedule.rbegin(), image_->schedule.rend(), is_copy);
  copies_end_ = std::size_t(image_->schedule.rend() - last);
  if (copies_end_ > 0) busy_.push_back({l.ring_offset, l.ring_offset + l.ring_bytes});
  busy_.push_back({l.scratch_offset, l.scratch_offset + l.scratch_bytes});
  for (Shard const& s : p_.table.shards) {
    std::size_t const at = l.resident[std::size_t(s.id)];
    if (at != VramLayout::none) busy_.push_back({at, at + VramAccount::round_up(s.bytes)});
  }
}

/// The action is enqueued. No shard is used by two steps.
void Executor::tell(Action const& a) {
  if (a.kind == ActionKind::run) {
    std::size_t const at = image_->vram.resident[std::size_t(a.shard)];
    if (std::erase_if(busy_, [&](VramRange const& r) { return r.begin == at; }) > 0) has_news_ = true;
  }
  if (cursor_ + 1 < copies_end_) return;
  if (copies_end_ > 0 && pieces_.empty()) {
    std::size_t const ring = image_->vram.ring_offset;
    std::erase_if(busy_, [&](VramRange const& r) { return r.begin == ring; });
    copies_end_ = 0;
    has_news_ = true;
  }
  if (std::exchange(has_news_, false)) listener_->room_left(p_.device.record(), busy_);
}

// ---- rows from outside and back

std::size_t Executor::half_of(std::int32_t row) const {
  return std::size_t(row / std::max(image_->limits.chunk, 1)) % std::size_t(image_->activations.n_halves);
}

std::byte const* Executor::inputs(std::int32_t plane) {
  std::vector<std::size_t> const& planes = p_.config->block.input_bytes;
  expects(port_ != nullptr && plane >= 0 && std::size_t(plane) < planes.size(), "Executor: rows of this plane come from nowhere");
  ActivationLayout const& l = image_->activations;
  PortHalf& half = halves_[chunk_half()];
  if (!std::exchange(took_inputs_, true)) {  // the host's bytes are to be written anew
    if (half.copied.value != 0) on_device() ? kv_copy().wait(half.copied) : p_.host.synchronize();
  }
  std::size_t at = l.row_inputs + chunk_half() * l.row_inputs_bytes;
  for (std::int32_t p = 0; p < plane; ++p) at += VramAccount::round_up(std::size_t(image_->limits.chunk) * planes[std::size_t(p)]);
  auto* const here = buffer<std::byte>(false, at);
  port_->fill(plane, {chunk_begin_, chunk_begin_ + n_rows_}, here);
  if (!on_device()) return here;
  auto* const there = buffer<std::byte>(true, at);
  half.copied = kv_copy().submit({there, here, std::size_t(n_rows_) * planes[std::size_t(plane)]}, half.used);
  side_->wait_for(half.copied);
  return there;
}

float* Executor::outputs_to(std::int32_t plane, std::int32_t dim) {
  expects(port_ != nullptr, "Executor: rows of this plane leave to nowhere");
  BlockConfig const& config = p_.config->block;
  std::size_t const bytes = std::size_t(dim) * sizeof(float);
  expects(bytes <= config.output_bytes && n_rows_ % config.rows_per_output == 0, "Executor: more rows leave than the config says");
  PortHalf& half = halves_[chunk_half()];
  port_->expect(plane);
  hand_out(half);
  leaving_.plane = plane;
  leaving_.rows = {chunk_begin_ / config.rows_per_output, (chunk_begin_ + n_rows_) / config.rows_per_output};
  leaving_.bytes = std::size_t(leaving_.rows.size()) * bytes;
  return buffer<float>(on_device(), image_->activations.row_outputs + chunk_half() * image_->activations.row_outputs_bytes);
}

/// Of the chunk that begins there.
CopyPiece Executor::hidden_piece(std::int32_t begin, bool to_device) const {
  ActivationLayout const& l = image_->activations;
  std::size_t const dim = std::size_t(p_.config->dim), chunk = std::size_t(image_->limits.chunk);
  std::size_t const n = std::min(chunk, rows_.size() - std::size_t(begin));
  auto* const there = reinterpret_cast<std::byte*>(buffer<float>(true, l.hidden_halves) + half_of(begin) * chunk * dim);
  auto* const here = reinterpret_cast<std::byte*>(buffer<float>(false, l.hidden) + std::size_t(begin) * dim);
  return to_device ? CopyPiece{there, here, n * dim * sizeof(float)} : CopyPiece{here, there, n * dim * sizeof(float)};
}

/// Where hidden rows are the host's: brings those of this chunk, and of the next one, which come while this one computes. Copies are of one
/// lane, so that rows come behind those that leave their half.
void Executor::begin_chunk(Step step) {
  if (!brings_rows() || step.shard == p_.table.steps.front().shard) return;  // the first step makes them
  std::int32_t const chunk = image_->limits.chunk;
  auto const bring = [&](std::int32_t begin) {
    PortHalf& half = halves_[half_of(begin)];
    CopyPiece const piece = hidden_piece(begin, true);
    Ticket const after[] = {half.used, host_rows_};
    half.rows_there = kv_copy().submit({&piece, 1}, after);
  };
  if (chunk_begin_ == 0) bring(0);
  std::int32_t const next = chunk_begin_ + chunk;
  Ticket const there = halves_[chunk_half()].rows_there;
  if (next < std::int32_t(rows_.size())) bring(next);
  side_->wait_for(there);
}

/// The step of a chunk is enqueued.
void Executor::end_chunk() {
  bool const brings = brings_rows();
  if (!took_inputs_ && leaving_.bytes == 0 && !brings) return;
  PortHalf& half = halves_[chunk_half()];
  Ticket const done = side_->record();
  if (brings) {
    half.used = done;
    bool const changes = leaving_.bytes == 0 && pass_ + 1 == shard(running_).n_passes;
    if (changes) kv_copy().submit(hidden_piece(chunk_begin_, false), done);
  }
  if (std::exchange(took_inputs_, false)) {
    half.used = done;
    if (!on_device()) half.copied = done;
  }
  if (leaving_.bytes == 0) return;
  half.leaving = std::exchange(leaving_, {});
  if (!on_device()) return;
  std::size_t const at = image_->activations.row_outputs + chunk_half() * image_->activations.row_outputs_bytes;
  half.leaving.there = kv_copy().submit({buffer<std::byte>(false, at), buffer<std::byte>(true, at), half.leaving.bytes}, done);
}

/// Rows that wait to leave, if there are any.
void Executor::hand_out(PortHalf& half) {
  if (half.leaving.bytes == 0) return;
  half.leaving.there.value != 0 ? kv_copy().wait(half.leaving.there) : p_.host.synchronize();
  Leaving const leaving = std::exchange(half.leaving, {});
  std::size_t const which = std::size_t(&half - halves_.data());
  port_->take(leaving.plane, leaving.rows,
              buffer<float>(false, image_->activations.row_outputs + which * image_->activations.row_outputs_bytes));
}

}  // namespace tiered
