/// What a model's step may touch: the rows of this call, weights by id, kernels, scratch. Never where anything lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/model/config.hpp"

namespace tiered {

/// Rows on their way into one or more products: f32, and each form that a weight asked for, once it did. Where they come out of a
/// norm or a gate, that is left to whoever first needs `values`: products that norm what they read do not, nor conversions that begin
/// one op earlier.
struct Activations {
  float const* values = nullptr;  ///< [n_rows, dim]; see ExecContext::values_of
  std::int32_t n_rows = 0, dim = 0;
  void const* converted[n_activation_forms] = {};  ///< by activation_form(); filled by ExecContext::matmul
  RmsNormArgs norm{};                              ///< where norm.x is not null, still to be done: norm.y is `values`
  GatedArgs gate{};                                ///< where gate.gate is not null, still to be done: gate.out is `values`; not with norm

  bool normed() const { return norm.x == nullptr; }
  bool gated() const { return gate.gate == nullptr; }
  /// What a product reads that norms by itself where not normed().
  float const* unnormed() const { return normed() ? values : norm.x; }
};

/// One of several products of the same rows: y [x.n_rows, rows of the weight].
struct ProductRequest {
  WeightId weight{};
  float* y = nullptr;
  float const* bias = nullptr;
};

/// q and k come as the products gave them; what is in both afterwards is undefined.
struct AttendRequest {
  std::int32_t layer = 0;
  AttentionConfig const* config = nullptr;
  float* q = nullptr;               ///< [n_rows, n_heads, head_dim]
  float* k = nullptr;               ///< [n_rows, n_kv_heads, head_dim]
  float const* v = nullptr;         ///< [n_rows, n_kv_heads, head_dim]
  float* out = nullptr;             ///< [n_rows, n_heads, head_dim]
  float const* q_norm = nullptr;    ///< [head_dim] or null: heads are normed, then rotated
  float const* k_norm = nullptr;    ///< likewise
  float const* inv_freq = nullptr;  ///< [n_rot / 2]
  std::int32_t n_rot = 0;
  RopeKind rope = RopeKind::halves;
  float magnitude = 1, norm_eps = 0;
  std::uint8_t const* position_row = nullptr;  ///< RopeArgs::position_row
  /// Not negative: a row sees range number `seen` of its block (BlockConfig), whose keys and values keep() got in the pass before; k and v
  /// are null.
  std::int32_t seen = -1;
};

struct ExpertsRequest {
  std::int32_t layer = 0;
  LayerConfig const* config = nullptr;
  Activation activation = Activation::silu;
  Activations x;    ///< [n_rows, dim]
  RouteArgs route;  ///< of the rows; not done yet
};

/// A router that rows are yet to come to, and the norm before it.
struct RouterAhead {
  std::int32_t layer = 0;
  WeightId router{}, norm{};
};
struct RouterRequest {
  std::int32_t layer = 0;
  WeightId router{};
  float* scores = nullptr;               ///< [n_rows, n_experts]
  std::span<RouterAhead const> ahead{};  ///< of the next layers, the nearest first; of as many experts
};

/// One step on one device for one chunk of rows. A model enqueues work and returns; it never waits, allocates, or asks where
/// something is. The engine implements this; so may a test (that is how scratch is measured: nothing is launched).
///
/// All pointers given out are readable on the step's device and valid until the step returns.
class ExecContext {
 public:
  virtual ~ExecContext() = default;

  std::int32_t n_rows() const { return n_rows_; }
  std::int32_t n_outputs() const { return n_outputs_; }         ///< rows of this chunk whose logits are wanted
  float* hidden() const { return hidden_; }                     ///< [n_rows, dim]: the residual stream
  std::int32_t const* tokens() const { return tokens_; }        ///< [n_rows]
  std::int32_t const* positions() const { return positions_; }  ///< of the rotary embedding: RopeArgs::positions of the rows
  std::int32_t const* outputs() const { return outputs_; }      ///< [n_outputs]: row numbers within this chunk
  float* logits() const { return logits_; }                     ///< [n_outputs, vocab_size]
  std::int32_t pass() const { return pass_; }                   ///< of the shard's n_passes

  /// `n` elements that live until the step returns; what is in them is undefined.
  template <class T>
  T* scratch(std::size_t n) {
    return static_cast<T*>(scratch_bytes(n * sizeof(T)));
  }
  template <class Args>
  void launch(Kernel<Args> KernelTable::*op, Args const& args) {
    if (kernels_ != nullptr) tiered::launch(kernels_->*op, args, queue_);
  }

  /// The rows in f32, after their norm or gate.
  float const* values_of(Activations& x) {
    if (!x.normed()) launch(&KernelTable::rms_norm, std::exchange(x.norm, {}));
    if (!x.gated()) launch(&KernelTable::gated, std::exchange(x.gate, {}));
    return x.values;
  }

  /// A vector in f32, whole.
  virtual float const* vector(WeightId weight) = 0;
  /// y[t, :] = w x[t, :] + bias for the rows of x; y is [x.n_rows, w.rows]. Quantises x on first need.
  virtual void matmul(WeightId weight, Activations& x, float* y, float const* bias = nullptr) = 0;
  /// Several products of the same rows, in one go where the device can.
  virtual void matmul_set(std::span<ProductRequest const> products, Activations& x) {
    for (ProductRequest const& p : products) matmul(p.weight, x, p.y, p.bias);
  }
  /// hidden += w x + bias; `spare` has room for [x.n_rows, rows] and is undefined afterwards.
  virtual void matmul_add(WeightId weight, Activations& x, float* spare, float const* bias = nullptr) {
    matmul(weight, x, spare, bias);
    launch(&KernelTable::add, AddArgs{spare, hidden_, std::int64_t(x.n_rows) * rows_of(weight)});
  }
  /// act(gate x) * (up x), both [x.n_rows, rows], as values in y, maybe still to be gated; `spare` is as large as y. Nobody else touches
  /// either as long as the rows are needed.
  virtual Activations gated_matmul(WeightId gate, WeightId up, Activations& x, float* y, float* spare, Activation activation) {
    matmul(gate, x, y);
    matmul(up, x, spare);
    std::int32_t const dim = rows_of(gate);
    return {y, x.n_rows, dim, {}, {}, GatedArgs{y, spare, y, std::int64_t(x.n_rows) * dim, activation}};
  }
  /// What a layer's router makes of x. Whoever keeps experts elsewhere may apply the next routers to the same rows, to guess what those
  /// will choose.
  virtual void router(RouterRequest const& request, Activations& x) { matmul(request.router, x, request.scores); }
  /// hidden[t, :] = scale * table[tokens[t], :], or the vector that the row was given instead of a token, as it is.
  virtual void embed(WeightId table, float scale) = 0;
  /// Norms and rotates q and k, stores k and v of the rows, then attends, wherever the layer's KV lies.
  virtual void attend(AttendRequest const& request) = 0;
  /// Rotates k and keeps k and v of the rows, where all rows of the block find them in the step's next pass; q is null.
  virtual void keep(AttendRequest const&) { throw_no_block(); }
  /// What rows of the chunk bring, [n_rows, input_bytes[plane]] of BlockConfig; in one step of a model, each plane once.
  virtual std::byte const* inputs(std::int32_t) { throw_no_block(); }
  /// Room for rows that leave the model when the step ends, [n_rows / rows_per_output, dim] of a plane, once in a step, which leaves hidden
  /// rows as they are.
  virtual float* outputs_to(std::int32_t, std::int32_t) { throw_no_block(); }
  /// Adds the routed experts' weighted outputs to the hidden rows, at the latest when the step has ended for all chunks;
  /// so it is the last thing a step does.
  virtual void experts(ExpertsRequest const& request) = 0;

 protected:
  /// The norms and rotations of a request, one by one, of what is there of q and k.
  void norm_and_rotate(AttendRequest const& r) {
    AttentionConfig const& a = *r.config;
    auto const norm = [&](float const* weight, float* x, std::int32_t n_heads) {
      if (x != nullptr && weight != nullptr)
        launch(&KernelTable::rms_norm, RmsNormArgs{x, weight, x, n_rows_ * n_heads, a.head_dim, r.norm_eps});
    };
    auto const rotate = [&](float* x, std::int32_t n_heads) {
      if (x == nullptr) return;
      launch(&KernelTable::rope, RopeArgs{x, positions_, r.inv_freq, n_rows_, n_heads, a.head_dim, r.n_rot, r.rope, r.magnitude,
                                          r.position_row, position_stride_});
    };
    norm(r.q_norm, r.q, a.n_heads);
    norm(r.k_norm, r.k, a.n_kv_heads);
    rotate(r.q, a.n_heads);
    rotate(r.k, a.n_kv_heads);
  }
  virtual std::int32_t rows_of(WeightId weight) const = 0;
  virtual void* scratch_bytes(std::size_t bytes) = 0;

  [[noreturn]] static void throw_no_block() {
    throw Error(Errc::precondition, "the model's config says nothing of rows that come from outside: ModelConfig::block");
  }

  std::int32_t n_rows_ = 0, n_outputs_ = 0, pass_ = 0;
  float* hidden_ = nullptr;
  std::int32_t const* tokens_ = nullptr;
  std::int32_t const* positions_ = nullptr;
  std::int32_t position_stride_ = 0;
  std::int32_t const* outputs_ = nullptr;
  float* logits_ = nullptr;
  KernelTable const* kernels_ = nullptr;  ///< null: measure only, launch nothing
  Queue queue_;
};

}  // namespace tiered
