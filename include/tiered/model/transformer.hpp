/// The decoder: dense and mixture-of-experts models of one shape, told apart by data alone.
#pragma once

#include <cstdint>
#include <memory>

#include "tiered/io/gguf.hpp"
#include "tiered/model/model.hpp"
#include "tiered/model/weights.hpp"

namespace tiered {

/// A model read from a file: its numbers, its shards, and how a step runs. Reads no byte of matrices; keeps the file mapped.
/// Immutable, so engines and threads may share it.
class Transformer {
 public:
  /// Errors  Errc::unsupported (architecture, tensor type, scaling: named), bad_file (a number or shape that cannot be), not_found
  ///         (a key or tensor that the architecture needs).
  explicit Transformer(GgufFile file);

  ModelConfig const& config() const { return config_; }
  ShardTable table() const { return {weights_.shards, weights_.steps, weights_.states, weights_.weights}; }
  GgufFile const& file() const { return file_; }

  void run(Step step, ExecContext& ctx) const;

 private:
  // Shapes below: n = ctx.n_rows().

  /// hidden += out(attention(rope(norm(q)), rope(norm(k)), v)) of the normed hidden rows.
  void attention(std::int32_t l, ExecContext& ctx) const;
  /// hidden += down(act(gate x) * up x).
  void feed_forward(std::int32_t l, ExecContext& ctx) const;
  /// hidden += sum of the chosen experts; which ones, the router says for each row.
  void experts(std::int32_t l, ExecContext& ctx) const;
  /// logits of the rows that want them.
  void output(ExecContext& ctx) const;

  /// The hidden rows with a norm still to be done on them.
  Activations normed(WeightId weight, ExecContext& ctx) const;
  /// hidden += norm(w x + bias), without a norm where post_norm is none.
  void add_product(WeightId weight, Activations& x, float const* bias, WeightId post_norm, ExecContext& ctx) const;
  static float const* vector_or_null(WeightId id, ExecContext& ctx) { return has(id) ? ctx.vector(id) : nullptr; }

  GgufFile file_;
  ModelConfig config_;
  ModelWeights weights_;
};
static_assert(Model<Transformer>);

/// Reads the model of a file: the architecture that the file names decides. Shared, since engines keep it.
std::shared_ptr<Transformer const> make_model(GgufFile file);

}  // namespace tiered
