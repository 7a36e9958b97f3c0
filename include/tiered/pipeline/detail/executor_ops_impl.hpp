/// Defines what a model asks of an Executor during a step: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/pipeline/executor.hpp"

namespace tiered {

/// Where row `row` of the running shard lies in VRAM, and up to which row (`end`) it goes on there; the device waits for it.
std::byte const* Executor::device_rows(Weight const& w, std::int32_t row, std::int32_t& end) {
  Shard const& s = shard(w.shard);
  std::size_t const offset = w.offset + std::size_t(row - w.first_row) * w.row_bytes();
  if (std::size_t const at = image_->vram.resident[std::size_t(w.shard)]; at != VramLayout::none) {
    // Once: what the device does later comes after.
    if (Ticket const t = std::exchange(resident_ready_[std::size_t(w.shard)], {}); t.value != 0) p_.device.wait_for(t);
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
    auto* const copy = static_cast<std::byte*>(scratch_.take(w.bytes()));
    copy_vector(w, copy);
    return reinterpret_cast<float const*>(copy);
  }
  std::int32_t end = 0;
  return reinterpret_cast<float const*>(device_rows(w, w.first_row, end));
}

/// The whole product where the host has its weights.
MatmulArgs Executor::host_product(WeightId id, Activations& x, float* y, float const* bias) {
  Weight const& w = p_.table.weight(id);
  return {w.data, in_type_for(w, x, *kernels_), bias, y, x.n_rows, w.rows, w.cols, w.rows};
}

/// Where a weight lies whole until the step returns, on the step's device, which waits for it; null where it goes by rows.
std::byte const* Executor::whole(Weight const& w) {
  if (!on_device()) return w.data;
  if (image_->vram.resident[std::size_t(w.shard)] == VramLayout::none && reached_ < shard(w.shard).n_rows) return nullptr;
  std::int32_t end = 0;
  std::byte const* const data = device_rows(w, w.first_row, end);
  return end == w.first_row + w.rows ? data : nullptr;
}

/// For all products in one launch, where the device can for so few and such long rows and has the weights whole; else false.
bool Executor::fused_args(FusedMatmulArgs& args, std::span<ProductRequest const> products, Activations& x, FusedMatmulArgs::Then then) {
  if (products.size() > FusedMatmulArgs::max_parts) return false;
  for (ProductRequest const& p : products) {
    Weight const& w = p_.table.weight(p.weight);
    if (!kernels_->fuses(w.dtype, x.n_rows, x.dim)) return false;
    std::byte const* const data = whole(w);
    if (data == nullptr) return false;
    args.parts[args.n_parts++] = {data, p.bias, p.y, w.rows, w.rows, w.dtype};
  }
  if (!x.gated()) values_of(x);
  args.x = x.unnormed();
  args.norm = !x.normed();
  args.norm_weight = x.norm.weight;
  args.eps = x.norm.eps;
  args.n_tokens = x.n_rows;
  args.dim = x.dim;
  args.then = then;
  return true;
}

/// Launches nothing where fused_args() says no.
bool Executor::fused(std::span<ProductRequest const> products, Activations& x, FusedMatmulArgs::Then then, Activation activation) {
  FusedMatmulArgs args;
  if (!fused_args(args, products, x, then)) return false;
  args.activation = activation;
  tiered::launch(kernels_->fused_matmul, args, queue_);
  return true;
}

/// Where the device has a weight for good; null where it has not.
std::byte const* Executor::resident(WeightId id) {
  Weight const& w = p_.table.weight(id);
  return image_->vram.resident[std::size_t(w.shard)] == VramLayout::none ? nullptr : whole(w);
}

/// In steps that are helped the same launch notes which of the layer's experts are there, and hands on the row for guesses of what the next
/// layers will choose.
void Executor::router(RouterRequest const& r, Activations& x) {
  if (!env_.helps || !routed_.few().looks_ahead()) return ExecContext::router(r, x);
  ProductRequest const own{r.router, r.scores};
  RouterAheadArgs args;
  GuessArgs guesses;
  bool const pending = !x.normed();
  if (!fused_args(args.own, {&own, 1}, x, FusedMatmulArgs::Then::store)) {
    ExecContext::router(r, x);
    args.own.n_parts = 0;
  }
  args.n_experts = p_.table.weight(r.router).rows;
  args.layer = r.layer;
  guesses.eps = args.own.eps;
  std::int32_t layers[GuessArgs::max_layers] = {};
  for (RouterAhead const& ahead : r.ahead) {
    Weight const &w = p_.table.weight(ahead.router), &norm = p_.table.weight(ahead.norm);
    bool const fits = pending && args.own.n_parts > 0 && w.dtype == DType::f32 && norm.dtype == DType::f32 && w.rows == args.n_experts;
    std::byte const *const data = fits ? resident(ahead.router) : nullptr, *const norm_data = fits ? resident(ahead.norm) : nullptr;
    if (data == nullptr || norm_data == nullptr || guesses.n_layers == GuessArgs::max_layers) break;
    layers[guesses.n_layers] = ahead.layer;
    guesses.layers[guesses.n_layers++] = {reinterpret_cast<float const*>(data), reinterpret_cast<float const*>(norm_data), nullptr};
  }
  routed_.few().enqueue_router(args, guesses, {layers, std::size_t(guesses.n_layers)});
}

void Executor::matmul_add(WeightId id, Activations& x, float* spare, float const* bias) {
  ProductRequest const p{id, hidden_, bias};
  if (fused({&p, 1}, x, FusedMatmulArgs::Then::add)) return;
  auto const kernel = row_product(id).matmul_add;
  kernel == nullptr ? ExecContext::matmul_add(id, x, spare, bias) : product(kernel, id, x, hidden_, bias);
}

void Executor::matmul(WeightId id, Activations& x, float* y, float const* bias) {
  ProductRequest const p{id, y, bias};
  if (!fused({&p, 1}, x, FusedMatmulArgs::Then::store)) product(row_product(id).matmul, id, x, y, bias);
}

/// Range after range, as the weight's rows are there.
void Executor::product(Kernel<MatmulArgs> kernel, WeightId id, Activations& x, float* y, float const* bias) {
  Weight const& w = p_.table.weight(id);
  MatmulArgs args = host_product(id, x, y, bias);
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
  if (fused(products, x, FusedMatmulArgs::Then::store)) return;
  bool const fine = std::ranges::any_of(products, [&](ProductRequest const& p) { return row_product(p.weight).fine; });
  if (on_device() || kernels_->matmul_set == nullptr || fine || products.size() > MatmulSetArgs::max_parts)
    return ExecContext::matmul_set(products, x);
  MatmulSetArgs args;
  for (ProductRequest const& p : products) {
    args.types[args.n_parts] = p_.table.weight(p.weight).dtype;
    args.parts[args.n_parts++] = host_product(p.weight, x, p.y, p.bias);
  }
  tiered::launch(kernels_->matmul_set, args, queue_);
}

Activations Executor::gated_matmul(WeightId gate, WeightId up, Activations& x, float* y, float* spare, Activation activation) {
  ProductRequest const products[] = {{gate, y}, {up, spare}};
  Activations const done{y, x.n_rows, p_.table.weight(gate).rows};
  if (fused(products, x, FusedMatmulArgs::Then::gate, activation)) return done;
  bool const fine = row_product(gate).fine || row_product(up).fine;
  if (on_device() || kernels_->gated_matmul == nullptr || fine) return ExecContext::gated_matmul(gate, up, x, y, spare, activation);
  MatmulArgs const gate_args = host_product(gate, x, y, nullptr), up_args = host_product(up, x, spare, nullptr);
  tiered::launch(kernels_->gated_matmul,
                 GatedMatmulArgs{gate_args, up_args, p_.table.weight(gate).dtype, p_.table.weight(up).dtype, activation}, queue_);
  return done;
}

void Executor::embed(WeightId table, float scale) {
  Weight const& w = p_.table.weight(table);
  if (on_device() && !device_embeds_) throw Error(Errc::precondition, "the device cannot read embeddings, which lie in host memory");
  tiered::launch(kernels_->embed[std::uint32_t(w.dtype)], EmbedArgs{w.data, tokens_, hidden_, n_rows_, w.cols, scale}, queue_);
  place_vectors();
}

/// Fills copy_pieces_ with what rows of the chunk were given in a plane, to their places in `to` [n_rows, dim]: what lies side by side in
/// one piece. How many pieces.
std::size_t Executor::find_vectors(std::int32_t plane, float* to) {
  std::span<BlockRow const> const rows = rows_.subspan(std::size_t(chunk_begin_), std::size_t(n_rows_));
  std::size_t const dim = std::size_t(p_.config->dim);
  auto const from = [&](std::size_t i) { return rows[i].embedding == nullptr ? nullptr : rows[i].embedding + plane * rows[i].next_plane; };
  copy_pieces_.clear();
  for (std::size_t i = 0, end = 0; i < rows.size(); i = end) {
    float const* const first = from(i);
    for (end = i + 1; first != nullptr && end < rows.size() && from(end) == first + (end - i) * dim;) ++end;
    if (first == nullptr) continue;
    copy_pieces_.push_back(
        {reinterpret_cast<std::byte*>(to + i * dim), reinterpret_cast<std::byte const*>(first), (end - i) * dim * sizeof(float)});
  }
  return copy_pieces_.size();
}

/// Behind what the step's device was given so far, which waits for them.
void Executor::copy_vectors() {
  Ticket const before = side_->record();
  kv_copy().submit(copy_pieces_, {&before, 1});
  side_->wait_for(kv_copy().last());
}

/// Over what their rows' tokens gave.
void Executor::place_vectors() {
  if (find_vectors(0, hidden_) > 0) copy_vectors();
}

/// To the rows as they come out of a layer: before the next one's step, whose scratch is free until then.
void Executor::add_vectors(std::int32_t layer) {
  auto* const given = static_cast<float*>(scratch_.take(std::size_t(n_rows_) * std::size_t(p_.config->dim) * sizeof(float)));
  if (find_vectors(layer + 1, given) > 0) copy_vectors();
  for (CopyPiece const& piece : copy_pieces_) {
    auto const* const x = reinterpret_cast<float const*>(piece.dst);
    launch(&KernelTable::add, AddArgs{x, hidden_ + (x - given), std::int64_t(piece.bytes / sizeof(float))});
  }
  scratch_.reset();
}

void Executor::experts(ExpertsRequest const& r) {
  std::int32_t const n_used = r.config->experts.n_experts_used;
  bool const all_rows = std::size_t(n_rows_) == rows_.size();
  // The norm's weight must be there for longer than the step where the experts' op is to do it.
  bool const later = all_rows && routed_.norms(r.layer, n_rows_, side_->device()) &&
                     (!on_device() || image_->vram.resident[std::size_t(running_)] != VramLayout::none);
  Activations x = r.x;
  if (!later) {
    values_of(x);
    launch(&KernelTable::route, r.route);
  }
  routed_rows_ = {r.layer,
                  std::int32_t(rows_.size()),
                  r.config,
                  r.activation,
                  side_->device(),
                  x.values,
                  x.norm,
                  r.route.ids,
                  r.route.weights,
                  hidden_ - std::size_t(chunk_begin_) * std::size_t(p_.config->dim),
                  later ? r.route : RouteArgs{}};
  if (all_rows) return;
  // Several chunks: gather them, so that an expert is read once for the whole block.
  ActivationLayout const& l = image_->activations;
  bool const d = on_device();
  std::size_t const first = std::size_t(chunk_begin_), n = std::size_t(n_rows_), dim = std::size_t(p_.config->dim),
                    used = std::size_t(n_used);
  float *const all_x = buffer<float>(d, l.expert_x), *const weights = buffer<float>(d, l.expert_weights);
  std::int32_t* const ids = buffer<std::int32_t>(d, l.expert_ids);
  CopyPiece const pieces[] = {
      {reinterpret_cast<std::byte*>(all_x + first * dim), reinterpret_cast<std::byte const*>(x.values), n * dim * sizeof(float)},
      {reinterpret_cast<std::byte*>(weights + first * used), reinterpret_cast<std::byte const*>(r.route.weights), n * used * sizeof(float)},
      {reinterpret_cast<std::byte*>(ids + first * used), reinterpret_cast<std::byte const*>(r.route.ids), n * used * sizeof(std::int32_t)}};
  Ticket const ready = side_->record();
  kv_copy().submit(pieces, {&ready, 1});
  side_->wait_for(kv_copy().last());
  routed_rows_.x = all_x, routed_rows_.weights = weights, routed_rows_.ids = ids;
}

}  // namespace tiered
