/// Defines how an Executor moves what is no weight between its devices: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tiered/core/error.hpp"
#include "tiered/pipeline/executor.hpp"

namespace tiered {

/// Few bytes are moved by a kernel of the device, in the queue of what needs them or made them: handing over to a copy engine and back
/// takes some 25 us, the kernel some 3. From 256 KiB on the engine is as fast.
bool Executor::kernel_moves(std::size_t bytes) const {
  constexpr std::size_t most_bytes = std::size_t{256} << 10;
  return p_.device_maps_host && p_.device.kernels().transfer != nullptr && bytes <= most_bytes && bytes % sizeof(float) == 0;
}

void Executor::move_by_kernel(std::byte* dst, std::byte const* src, std::size_t bytes) {
  TransferArgs args;
  args.parts[0] = {src, dst, std::int32_t(bytes)};
  args.n_parts = 1;
  tiered::launch(p_.device.kernels().transfer, args, p_.device.queue());
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
  TransferArgs args;
  for (CopyPiece const& piece : pieces) args.parts[args.n_parts++] = {piece.src, piece.dst, std::int32_t(piece.bytes)};
  tiered::launch(p_.device.kernels().transfer, args, p_.device.queue());
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
    move_by_kernel(dst, it->data + (w.offset - it->origin), w.bytes());
    static_cast<void>(p_.device.record());  // kernels read weights while the kernel before them still runs: not one that writes these
    return;
  }
  p_.device.wait_for(kv_copy().submit({dst, w.data, w.bytes()}, p_.device.record()));
}

}  // namespace tiered
