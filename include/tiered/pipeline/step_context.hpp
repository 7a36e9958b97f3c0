/// The part of an ExecContext that measuring and running share: scratch, and quantised activations.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/model/exec_context.hpp"
#include "tiered/model/model.hpp"
#include "tiered/plan/account.hpp"

namespace tiered {

/// Hands out one region from its begin; `capacity` is never passed.
class Scratch {
 public:
  Scratch() = default;
  Scratch(std::byte* base, std::size_t capacity) : base_(reinterpret_cast<std::uintptr_t>(base)), capacity_(capacity) {}
  void reset() { used_ = 0; }
  std::size_t peak() const { return peak_; }
  void* take(std::size_t bytes) {
    std::size_t const rounded = VramAccount::round_up(bytes);
    if (rounded > capacity_ - used_) {
      throw Error(Errc::precondition, concat("a step needs ", used_ + rounded, " bytes of scratch, its plan measured ", capacity_));
    }
    void* const out = reinterpret_cast<void*>(base_ + used_);
    used_ += rounded;
    peak_ = std::max(peak_, used_);
    return out;
  }

 private:
  std::uintptr_t base_ = 0;
  std::size_t capacity_ = 0, used_ = 0, peak_ = 0;
};

class StepContext : public ExecContext {
 protected:
  void* scratch_bytes(std::size_t bytes) override { return scratch_.take(bytes); }

  /// x in the type that products with `w` take.
  void const* in_type_for(Weight const& w, Activations& x, KernelTable const& table) {
    DType const type = table.product(w.dtype, w.row_bits).activation;
    if (type == DType::f32) return values_of(x);
    void const*& converted = x.converted[activation_form(type)];
    if (converted == nullptr) {
      void* const y = scratch_.take(activation_bytes(type, std::uint64_t(x.n_rows), std::uint64_t(x.dim)));
      if (kernels_ != nullptr) convert(x, type, y);
      converted = y;
    }
    return converted;
  }

  Scratch scratch_;

 private:
  /// With a pending norm or gate in one go, where the device can; that stays pending, should somebody ask for values.
  void convert(Activations& x, DType type, void* y) {
    int const form = activation_form(type);
    if (auto const kernel = kernels_->convert_normed[form]; !x.normed() && kernel != nullptr)
      return tiered::launch(kernel, ConvertNormedArgs{x.norm, y}, queue_);
    if (auto const kernel = kernels_->convert_gated[form]; !x.gated() && kernel != nullptr)
      return tiered::launch(kernel, ConvertGatedArgs{x.gate.gate, x.gate.up, y, x.n_rows, x.dim, x.gate.activation}, queue_);
    tiered::launch(kernels_->convert[form], QuantizeArgs{values_of(x), y, x.n_rows, x.dim}, queue_);
  }
};

/// Runs steps without launching anything and says how much scratch they take.
class ScratchMeter final : public StepContext {
 public:
  ScratchMeter(ShardTable table, KernelTable const& kernels, std::int32_t max_context)
      : table_(table), kernel_table_(&kernels), max_context_(max_context) {}

  /// Most scratch that any step of the model takes for n_rows rows, n_outputs of which want logits.
  template <Model M>
  std::size_t measure(M const& model, std::int32_t n_rows, std::int32_t n_outputs) {
    n_rows_ = n_rows;
    n_outputs_ = n_outputs;
    scratch_ = Scratch(nullptr, std::size_t{1} << 60);
    for (Step const& step : table_.steps) {
      for (pass_ = 0; pass_ < table_.shard(step.shard).n_passes; ++pass_) {
        scratch_.reset();
        model.run(step, *this);
      }
    }
    return scratch_.peak();
  }

  /// Counted: a shard that goes by rows has its vectors copied into scratch.
  float const* vector(WeightId id) override { return static_cast<float const*>(scratch_.take(table_.weight(id).bytes())); }
  void matmul(WeightId id, Activations& x, float*, float const*) override { in_type_for(table_.weight(id), x, *kernel_table_); }
  std::int32_t rows_of(WeightId id) const override { return table_.weight(id).rows; }
  void embed(WeightId, float) override {}
  /// Counted: q, k, v and output once more, where some of the layer's KV is on another device than the step; instead of these, on the
  /// step's own device, two parts that become one.
  void attend(AttendRequest const& r) override {
    // The last chunk of a block may be one of few rows, which need more than many.
    std::size_t const workspace =
        attention_workspace_bytes(std::min(n_rows_, attention_few_rows), r.config->n_heads, r.config->head_dim, max_context_);
    if (r.seen >= 0) return static_cast<void>(scratch_.take(workspace));
    std::size_t const n = std::size_t(n_rows_), q = std::size_t(r.config->n_heads) * std::size_t(r.config->head_dim) * sizeof(float),
                      kv = std::size_t(r.config->n_kv_heads) * std::size_t(r.config->head_dim) * sizeof(float);
    for (std::size_t bytes : {n * q, n * q, n * kv, n * kv, 2 * n * std::size_t(r.config->n_heads) * sizeof(float)}) scratch_.take(bytes);
    scratch_.take(workspace);
  }
  // In buffers of the block, see pipeline/activations.hpp, as are the experts' rows.
  void keep(AttendRequest const&) override {}
  std::byte const* inputs(std::int32_t) override { return nullptr; }
  float* outputs_to(std::int32_t, std::int32_t) override { return nullptr; }
  void experts(ExpertsRequest const&) override {}

 private:
  ShardTable table_;
  KernelTable const* kernel_table_;
  std::int32_t max_context_;
};

}  // namespace tiered
