/// What a model's step may touch: the rows of this call, weights by id, kernels, scratch. Never where anything lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiered/core/error.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/model/config.hpp"

namespace tiered {

/// Rows on their way into one or more products: f32, and each form that a weight asked for, once it did.
struct Activations {
  float const* values = nullptr;  ///< [n_rows, dim]
  std::int32_t n_rows = 0, dim = 0;
  void const* converted[n_activation_forms] = {};  ///< by activation_form(); filled by ExecContext::matmul
};

/// One of several products of the same rows: y [x.n_rows, rows of the weight].
struct ProductRequest {
  WeightId weight{};
  float* y = nullptr;
  float const* bias = nullptr;
};

struct AttendRequest {
  std::int32_t layer = 0;
  AttentionConfig const* config = nullptr;
  float const* q = nullptr;  ///< [n_rows, n_heads, head_dim], rotated
  float const* k = nullptr;  ///< [n_rows, n_kv_heads, head_dim], rotated
  float const* v = nullptr;  ///< [n_rows, n_kv_heads, head_dim]
  float* out = nullptr;      ///< [n_rows, n_heads, head_dim]
};

struct ExpertsRequest {
  std::int32_t layer = 0;
  LayerConfig const* config = nullptr;
  Activation activation = Activation::silu;
  float const* x = nullptr;           ///< [n_rows, dim], normed
  std::int32_t const* ids = nullptr;  ///< [n_rows, n_experts_used], ascending in a row
  float const* weights = nullptr;     ///< [n_rows, n_experts_used]
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
  std::int32_t const* positions() const { return positions_; }  ///< [n_rows]
  std::int32_t const* outputs() const { return outputs_; }      ///< [n_outputs]: row numbers within this chunk
  float* logits() const { return logits_; }                     ///< [n_outputs, vocab_size]

  /// `n` elements that live until the step returns; what is in them is undefined.
  template <class T>
  T* scratch(std::size_t n) {
    return static_cast<T*>(scratch_bytes(n * sizeof(T)));
  }
  template <class Args>
  void launch(Kernel<Args> KernelTable::*op, Args const& args) {
    if (kernels_ != nullptr) tiered::launch(kernels_->*op, args, queue_);
  }

  /// A vector in f32, whole.
  virtual float const* vector(WeightId weight) = 0;
  /// y[t, :] = w x[t, :] + bias for the rows of x; y is [x.n_rows, w.rows]. Quantises x on first need.
  virtual void matmul(WeightId weight, Activations& x, float* y, float const* bias = nullptr) = 0;
  /// Several products of the same rows, in one go where the device can.
  virtual void matmul_set(std::span<ProductRequest const> products, Activations& x) {
    for (ProductRequest const& p : products) matmul(p.weight, x, p.y, p.bias);
  }
  /// y = act(gate x) * (up x), both [x.n_rows, rows]; `spare` is as large as y and undefined afterwards.
  virtual void gated_matmul(WeightId gate, WeightId up, Activations& x, float* y, float* spare, Activation activation) {
    matmul(gate, x, y);
    matmul(up, x, spare);
    launch(&KernelTable::gated, GatedArgs{y, spare, y, std::int64_t(x.n_rows) * rows_of(gate), activation});
  }
  /// hidden[t, :] = scale * table[tokens[t], :].
  virtual void embed(WeightId table, float scale) = 0;
  /// Stores k and v of the rows, then attends, wherever the layer's KV lies.
  virtual void attend(AttendRequest const& request) = 0;
  /// Adds the routed experts' weighted outputs to the hidden rows, at the latest when the step has ended for all chunks;
  /// so it is the last thing a step does.
  virtual void experts(ExpertsRequest const& request) = 0;

 protected:
  virtual std::int32_t rows_of(WeightId weight) const = 0;
  virtual void* scratch_bytes(std::size_t bytes) = 0;

  std::int32_t n_rows_ = 0, n_outputs_ = 0;
  float* hidden_ = nullptr;
  std::int32_t const* tokens_ = nullptr;
  std::int32_t const* positions_ = nullptr;
  std::int32_t const* outputs_ = nullptr;
  float* logits_ = nullptr;
  KernelTable const* kernels_ = nullptr;  ///< null: measure only, launch nothing
  Queue queue_;
};

}  // namespace tiered
