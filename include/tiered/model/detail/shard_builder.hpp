/// Looks up a model's tensors in a file by name, checks them, and forms shards of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/model/config.hpp"
#include "tiered/model/weights.hpp"

namespace tiered::detail {

/// What the readers of decoders and of vision encoders share. Errors  bad_file (shape), unsupported (type), not_found, each with names.
class ShardBuilder {
 protected:
  explicit ShardBuilder(GgufFile const& file) : file_(&file) {}

  GgufFile const& file() const { return *file_; }
  Shard& shard() { return shards_.back(); }

  void begin_shard(ShardKind kind, std::int32_t layer, std::int32_t expert = -1) {
    Shard s;
    s.id = ShardId(shards_.size());
    s.kind = kind;
    s.layer = layer;
    s.expert = expert;
    s.weights = {std::int32_t(weights_.size()), std::int32_t(weights_.size())};
    shards_.push_back(s);
  }
  void end_step(std::int32_t layer) { steps_.push_back({layer, shard().id}); }

  WeightId push(std::byte const* data, DType dtype, std::int64_t rows, std::int64_t cols) {
    Shard& s = shard();
    Weight w;
    w.data = data;
    w.dtype = dtype;
    w.rows = std::int32_t(rows);
    w.cols = std::int32_t(cols);
    w.shard = s.id;
    w.first_row = s.n_rows;
    w.offset = s.bytes;
    s.n_rows += w.rows;
    s.bytes = (s.bytes + w.bytes() + weight_alignment - 1) / weight_alignment * weight_alignment;
    s.weights.end += 1;
    if (rows > 1) {
      s.macs_per_token += double(rows) * double(cols);
      s.dtypes |= dtype_bit(dtype);
    }
    weights_.push_back(w);
    return WeightId(weights_.size() - 1);
  }
  /// Weight::row_bits of one that was pushed.
  void keep_bits(WeightId weight, std::int32_t bits) { weights_[std::size_t(weight)].row_bits = bits; }
  /// Of any type; `values` has the bytes.
  WeightId push_owned(std::unique_ptr<float[]> values, DType dtype, std::int64_t rows, std::int64_t cols) {
    auto const* const data = reinterpret_cast<std::byte const*>(values.get());
    owned_.push_back(std::move(values));
    return push(data, dtype, rows, cols);
  }
  WeightId push_owned(std::unique_ptr<float[]> values, std::int64_t n) { return push_owned(std::move(values), DType::f32, 1, n); }
  /// Angles, and behind them, where there are several rows of positions, the row of each.
  WeightId rope(RopeTable const& table) {
    std::size_t const n_angles = table.inv_freq.size(), n_rows = table.position_row.size();
    std::size_t const n = n_angles + (n_rows + sizeof(float) - 1) / sizeof(float);
    auto copy = std::make_unique<float[]>(n);
    std::memcpy(copy.get(), table.inv_freq.data(), n_angles * sizeof(float));
    if (n_rows > 0) std::memcpy(copy.get() + n_angles, table.position_row.data(), n_rows);
    return push_owned(std::move(copy), std::int64_t(n));
  }
  /// Rows [first, first + rows) of a tensor that is taken for a matrix.
  WeightId push_rows(GgufTensor const& t, std::int64_t first, std::int64_t rows, std::int64_t cols) {
    return push(t.data.data() + std::size_t(first) * row_bytes(t.dtype, std::uint64_t(cols)), t.dtype, rows, cols);
  }

  GgufTensor const* find(std::string const& name, Shape const& shape, bool required) {
    GgufTensor const* const t = required ? &file_->require_tensor(name) : file_->find_tensor(name);
    if (t == nullptr) return nullptr;
    if (t->shape != shape)
      throw Error(Errc::bad_file, concat(file_->path(), ": tensor ", name, " has shape ", text(t->shape), ", expected ", text(shape)));
    if (!is_weight_format(t->dtype)) {
      throw Error(Errc::unsupported,
                  concat(file_->path(), ": tensor ", name, " has type ", tiered::name(t->dtype), ", which nothing here decodes yet"));
    }
    used_.push_back(t->name);
    return t;
  }
  static std::string text(Shape const& s) {
    std::string out = "[";
    for (int i = 0; i < s.rank; ++i) out += concat(i > 0 ? ", " : "", s[i]);
    return out + "]";
  }

  WeightId matrix(std::string const& name, std::int64_t rows, std::int64_t cols) {
    return push_rows(*find(name, Shape(rows, cols), true), 0, rows, cols);
  }
  /// In f32, whatever the file holds.
  WeightId vector(std::string const& name, std::int64_t n, bool required) {
    GgufTensor const* const t = find(name, Shape(n), required);
    return t == nullptr ? no_weight : push_f32(*t, 1, n);
  }
  WeightId push_f32(GgufTensor const& t, std::int64_t rows, std::int64_t cols) {
    if (t.dtype == DType::f32) return push(t.data.data(), DType::f32, rows, cols);
    auto values = std::make_unique<float[]>(std::size_t(rows * cols));
    decode_row(t.dtype, t.data.data(), rows * cols, values.get());
    return push_owned(std::move(values), DType::f32, rows, cols);
  }

  /// A tensor that nothing reads would mean another computation than the file's author had in mind.
  void refuse_unused(std::string_view reader, std::string_view read_elsewhere = {}) {
    std::ranges::sort(used_);
    for (GgufTensor const& t : file_->tensors()) {
      if (!std::ranges::binary_search(used_, t.name) && (read_elsewhere.empty() || t.name != read_elsewhere)) {
        throw Error(Errc::unsupported, concat(file_->path(), ": ", reader, " has no use here for tensor ", printable(t.name)));
      }
    }
  }

  /// Moves what was built into `out`, which names it as ModelWeights does.
  template <class Weights>
  void hand_over(Weights& out) {
    out.weights = std::move(weights_);
    out.shards = std::move(shards_);
    out.steps = std::move(steps_);
    out.owned = std::move(owned_);
  }

 private:
  GgufFile const* file_;
  std::vector<Weight> weights_;
  std::vector<Shard> shards_;
  std::vector<Step> steps_;
  std::vector<std::unique_ptr<float[]>> owned_;
  std::vector<std::string_view> used_;
};

}  // namespace tiered::detail
