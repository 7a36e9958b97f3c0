/// Defines how an Executor brings keys and values from host memory to the device's attention: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tiered/pipeline/executor.hpp"

namespace tiered {

/// Whether the chunk's rows, on the device, attend to keys and values in host memory by bringing them.
bool Executor::streams_kv(AttendRequest const& r) const {
  std::uint32_t const type = std::uint32_t(p_.kv->type());
  if (!on_device() || image_->activations.kv_stream.half_pages == 0 || kernels_->attention[type] == nullptr ||
      kernels_->kv_write[type] == nullptr || kernels_->merge_attention == nullptr)
    return false;
  LayerState state = p_.table.states[std::size_t(r.layer)];
  state.bytes_per_token = 2 * p_.kv->page_bytes(r.layer) / std::size_t(p_.kv->page_tokens());
  double const context = chunk_max_position_ + 1, on_host = (context - p_.kv->vram_tokens(r.layer)) / context;
  PassCost cost = p_.state_cost.cost(state, {n_rows_, chunk_max_position_ + 1, 1});
  for (double* s : {&cost.host_s, &cost.gpu_s, &cost.copy_s}) *s *= on_host;
  HardwareProfile const& h = p_.hardware;
  double const hop_s = h.hop_latency_s + h.d2h.seconds(double(n_rows_) * double(r.config->n_heads * r.config->head_dim) * sizeof(float));
  return host_attention(cost, hop_s, n_rows_).streams;
}

/// Where a page of a layer is while it is streamed, V behind K as at home: the next one's place is behind it, around the two halves. Places
/// are as large as the largest layer's, so that a half is the same bytes for every layer: tickets are kept for halves.
std::byte* Executor::stream_page(std::int32_t layer, int kv, std::int32_t page) const {
  KvStream const& stream = image_->activations.kv_stream;
  std::size_t const n = 2 * std::size_t(stream.half_pages), place = std::size_t(page) % n * 2 * stream.page_bytes;
  return base_of(true) + image_->activations.kv_stream_at + place + std::size_t(kv) * p_.kv->page_bytes(layer);
}

void Executor::attend_streamed(AttendRequest const& r) {
  norm_and_rotate(r);
  AttentionConfig const& c = *r.config;
  std::size_t const queries = std::size_t(n_rows_) * std::size_t(c.n_heads);
  StreamedSums sums;
  sums.parts = static_cast<float*>(scratch_.take(2 * queries * std::size_t(c.head_dim) * sizeof(float)));
  sums.log_sum_exp = static_cast<float*>(scratch_.take(2 * queries * sizeof(float)));
  sums.workspace = static_cast<std::byte*>(
      scratch_.take(attention_workspace_bytes(std::min(n_rows_, attention_few_rows), c.n_heads, c.head_dim, chunk_max_position_)));
  std::span<BlockRow const> const rows = rows_.subspan(std::size_t(chunk_begin_), std::size_t(n_rows_));
  for (std::int32_t begin = 0, end = 0; begin < n_rows_; begin = end) {
    auto const at = [&](std::int32_t i) -> BlockRow const& { return rows[std::size_t(i)]; };
    for (end = begin + 1; end < n_rows_ && at(end).slot == at(begin).slot && at(end).position == at(end - 1).position + 1;) ++end;
    attend_stretch(r, sums, {begin, end});
  }
}

/// Rows of one sequence, one behind the other: first to what is in VRAM, then to half of the room after half, in ascending order.
void Executor::attend_stretch(AttendRequest const& r, StreamedSums const& sums, Range rows) {
  AttentionConfig const& c = *r.config;
  BlockRow const& first = rows_[std::size_t(chunk_begin_ + rows.begin)];
  std::int32_t const border = p_.kv->vram_tokens(r.layer), end = first.position + rows.size();
  std::int32_t const half = image_->activations.kv_stream.half_pages * p_.kv->page_tokens();
  std::int32_t const seen = c.window > 0 ? std::max(first.position - c.window + 1, 0) : 0, host_begin = std::max(seen, border);
  std::int32_t const n_host = end > host_begin ? (end - 1) / half - host_begin / half + 1 : 0, n_passes = n_host + (seen < border ? 1 : 0);
  std::size_t const queries = std::size_t(rows.size()) * std::size_t(c.n_heads), q_floats = queries * std::size_t(c.head_dim);
  float* const out = r.out + std::size_t(rows.begin) * std::size_t(c.n_heads) * std::size_t(c.head_dim);
  auto const rows_in = [&](Range p) {
    return Range{rows.begin + std::max(p.begin - first.position, 0), rows.begin + std::min(p.end - first.position, rows.size())};
  };
  auto const attend_to = [&](Range positions, std::int32_t pass) {
    AttentionArgs args = attention_args(r, r.q, true, rows);
    bool const alone = n_passes == 1;
    args.max_position = end - 1;
    args.positions = positions;
    args.out = alone ? out : sums.parts + (pass > 0 ? q_floats : 0);
    args.log_sum_exp = alone ? nullptr : sums.log_sum_exp + (pass > 0 ? queries : 0);
    args.workspace = sums.workspace;
    tiered::launch(kernels_->attention[std::uint32_t(p_.kv->type())], args, queue_);
    if (pass == 0) return;
    bool const last = pass + 1 == n_passes;
    tiered::launch(kernels_->merge_attention,
                   MergeAttentionArgs{sums.parts, sums.log_sum_exp, last ? out : sums.parts, last ? nullptr : sums.log_sum_exp, 2,
                                      rows.size(), c.n_heads, c.head_dim},
                   queue_);
  };
  std::int32_t pass = 0;
  if (seen < border) {
    if (Range const own = rows_in({0, border}); own.size() > 0) store_kv(r, r.k, r.v, true, own);
    attend_to({0, border}, pass++);
  }
  for (std::int32_t begin = host_begin / half * half; begin < end && n_host > 0; begin += half) {
    Range const area{std::max(begin, host_begin), begin + half};
    bring_pages(r.layer, first.slot, {area.begin, std::min(area.end, first.position)}, area);
    if (Range const own = rows_in(area); own.size() > 0) store_streamed(r, own, area);
    attend_to(area, pass++);
    stream_used_[begin / half % 2] = p_.device.record();
  }
}

/// Pages with these positions, whole, once nobody reads what was in that half before.
void Executor::bring_pages(std::int32_t layer, std::int32_t slot, Range positions, Range area) {
  std::int32_t const tokens = p_.kv->page_tokens(), half = (area.end - 1) / tokens / image_->activations.kv_stream.half_pages % 2;
  if (stream_saved_[half].value != 0) p_.device.wait_for(stream_saved_[half]);
  if (positions.size() <= 0) return;
  KvTable const& home = p_.kv->tables(layer)[slot];
  std::size_t const bytes = p_.kv->page_bytes(layer);
  copy_pieces_.clear();
  for (std::int32_t page = positions.begin / tokens; page <= (positions.end - 1) / tokens; ++page) {
    bool const at_once = home.v_pages[page] == home.k_pages[page] + bytes;
    copy_pieces_.push_back({stream_page(layer, 0, page), home.k_pages[page], at_once ? 2 * bytes : bytes});
    if (!at_once) copy_pieces_.push_back({stream_page(layer, 1, page), home.v_pages[page], bytes});
  }
  Ticket const after[] = {stream_used_[half], host_kv_written_};
  kv_copy().submit(copy_pieces_, after);
  p_.device.wait_for(kv_copy().last());
}

/// Keys and values of new rows, into the room and from there home, behind the attention that reads them.
void Executor::store_streamed(AttendRequest const& r, Range rows, Range area) {
  store_kv(r, r.k, r.v, true, rows);
  BlockRow const& first = rows_[std::size_t(chunk_begin_ + rows.begin)];
  std::int32_t const tokens = p_.kv->page_tokens(), half = (area.end - 1) / tokens / image_->activations.kv_stream.half_pages % 2;
  std::size_t const page_bytes = p_.kv->page_bytes(r.layer), row_bytes = page_bytes / std::size_t(r.config->n_kv_heads * tokens);
  KvTable const& home = p_.kv->tables(r.layer)[first.slot];
  copy_pieces_.clear();
  for (std::int32_t position = first.position, end = position + rows.size(); position < end;) {
    std::int32_t const page = position / tokens, next = std::min(end, (page + 1) * tokens);
    std::size_t const skip = std::size_t(position - page * tokens) * row_bytes, bytes = std::size_t(next - position) * row_bytes;
    for (int kv = 0; kv < 2; ++kv) {
      std::byte *const to = (kv == 0 ? home.k_pages : home.v_pages)[page], *const from = stream_page(r.layer, kv, page);
      if (next - position == tokens) {
        copy_pieces_.push_back({to, from, page_bytes});
        continue;
      }
      for (std::size_t head = 0; head < std::size_t(r.config->n_kv_heads); ++head) {
        std::size_t const at = head * std::size_t(tokens) * row_bytes + skip;
        copy_pieces_.push_back({to + at, from + at, bytes});
      }
    }
    position = next;
  }
  Ticket const stored = p_.device.record();
  kv_copy().submit(copy_pieces_, {&stored, 1});
  stream_saved_[half] = kv_copy().last();
}

/// For the host to read: what the device stored for earlier chunks of the block, in either half, may be on its way home.
void Executor::wait_for_streamed() {
  for (Ticket const saved : stream_saved_) {
    if (saved.value != 0) p_.host.wait_for(saved);
  }
}

}  // namespace tiered
