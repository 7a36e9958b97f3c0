/// Defines how an Executor moves what is no weight between its devices: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tiered/core/error.hpp"
#include "tiered/pipeline/executor.hpp"
#include "tiered/pipeline/kernel_transfer.hpp"

namespace tiered {

/// Whether a kernel of the device takes them.
bool Executor::kernel_moves(std::size_t bytes) const {
  return p_.host_access.activations && p_.device.kernels().transfer != nullptr && bytes <= most_kernel_bytes && bytes % sizeof(float) == 0;
}

/// Pieces from memory of one side to that of the other, once `ready`; the other side waits for them. Not behind the link's weights where
/// that can be helped: a layer's attention on the host took 4.1 ms with a query of 32 KB behind them, 1.2 ms without.
void Executor::cross(bool to_device, std::span<CopyPiece const> pieces, Ticket ready) {
  expects(pieces.size() <= std::size_t(TransferArgs::max_parts), "Executor: more pieces to move than TransferArgs has room for");
  std::size_t bytes = 0;
  for (CopyPiece const& piece : pieces) bytes += piece.bytes;
  if (!std::ranges::all_of(pieces, [&](CopyPiece const& piece) { return kernel_moves(piece.bytes); }) || !kernel_moves(bytes)) {
    Side const& to = to_device ? p_.device : p_.host;
    kv_copy().submit(pieces, {&ready, 1});
    return to.wait_for(kv_copy().last());
  }
  if (to_device && ready.value != 0) p_.device.wait_for(ready);
  TransferArgs::Part parts[TransferArgs::max_parts];
  std::ranges::transform(pieces, parts, [](CopyPiece const& p) { return TransferArgs::Part{p.src, p.dst, std::int32_t(p.bytes)}; });
  transfer(p_.device, {parts, pieces.size()});
  if (!to_device) p_.host.wait_for(p_.device.record());
}

/// One piece of the same bytes for each step of a plan.
void Executor::upload_inputs() {
  std::size_t const at = image_->activations.inputs;
  CopyPiece const inputs{buffer<std::byte>(true, at), buffer<std::byte>(false, at), image_->activations.inputs_bytes};
  cross(true, {&inputs, 1}, {});
}

void Executor::do_hop(Action const& a) {
  bool const to_device = a.device != host_device;
  if (to_device == on_device()) return;
  if (running_ == no_step || image_->limits.rows_on_host) {  // they are yet to come from outside, or are in host memory between steps
    if (to_device) host_rows_ = p_.host.record();
    if (!to_device && kv_copy().last().value != 0) p_.host.wait_for(kv_copy().last());
    side_ = to_device ? &p_.device : &p_.host;
    return;
  }
  std::size_t const bytes = rows_.size() * std::size_t(p_.config->dim) * sizeof(float);
  bool const by_kernel = kernel_moves(bytes);
  Ticket const ready = to_device || !by_kernel ? side_->record() : Ticket{};
  // What a kernel of the device moves begins when the device gets to it.
  Ticket const before = by_kernel && p_.trace != nullptr ? p_.device.record() : kv_copy().last();
  std::size_t const at = image_->activations.hidden;
  CopyPiece const hidden{buffer<std::byte>(to_device, at), buffer<std::byte>(!to_device, at), bytes};
  cross(to_device, {&hidden, 1}, ready);
  side_ = to_device ? &p_.device : &p_.host;
  if (p_.trace != nullptr)
    trace(a, by_kernel ? TraceLane::device : TraceLane::copy, before, by_kernel ? p_.device.record() : kv_copy().last());
}

void Executor::download_logits(std::int32_t first, std::int32_t n) {
  std::size_t const vocab = std::size_t(p_.config->vocab_size);
  std::size_t const n_floats = std::size_t(n) * vocab, at = image_->activations.logits;
  // By way of the host's own buffer, which a device may copy to at full rate.
  CopyLane& lane = kv_copy();
  lane.wait(lane.submit({buffer<std::byte>(false, at), buffer<std::byte>(true, at), n_floats * sizeof(float)}, p_.device.record()));
  std::memcpy(logits_out_ + std::size_t(first) * vocab, buffer<float>(false, at), n_floats * sizeof(float));
}

/// A vector of the running shard to where the step keeps it: out of the ring where the device waits for that piece anyway, or soon, and
/// has little to do until then; else from the host. Never by the lane of weights, where later pieces may be under way already.
void Executor::copy_vector(Weight const& w, std::byte* dst) {
  std::int32_t const end = n_rows_ <= attention_few_rows ? shard(w.shard).n_rows : reached_;
  auto const it = std::ranges::find_if(pieces_, [&](Piece const& p) {
    return p.shard == w.shard && p.rows.begin <= w.first_row && w.first_row < std::min(p.rows.end, end);
  });
  if (it != pieces_.end() && kernel_moves(w.bytes())) {
    p_.device.wait_for(ring_.consumer_wait(it->handle));
    transfer(p_.device, it->data + (w.offset - it->origin), dst, w.bytes());
    static_cast<void>(p_.device.record());  // kernels read weights while the kernel before them still runs: not one that writes these
    return;
  }
  p_.device.wait_for(kv_copy().submit({dst, w.data, w.bytes()}, p_.device.record()));
}

}  // namespace tiered
