/// The vision encoder as one reads about it, slowly and in double precision: what faster ones are tested against.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/vision/patch_grid.hpp"
#include "tiered/vision/preprocess.hpp"
#include "tiered/vision/vision_encoding.hpp"
#include "tiered/vision/vision_weights.hpp"

namespace tiered {

/// Reads config and weights, which must outlive it. Threads  any: it keeps no state between calls.
class ReferenceVisionEncoder {
 public:
  ReferenceVisionEncoder(VisionConfig const& config, VisionWeights const& weights) : c_(&config), w_(&weights) {}

  VisionConfig const& config() const { return *c_; }
  /// Of an image, or of frames of a video. Needs tiered::cpu.
  VisionEncoding encode(Patches const& patches) const {
    std::vector<float> pixels(std::size_t(patches.grid().n_patches() * patches.patch_elems()));
    patches.write(0, patches.grid().n_patches(), pixels);
    PatchGrid const grid = patches.grid();
    return encode(pixels, {&grid, 1});
  }
  /// patches [sum of n_patches, patch_elems], normalised pixels in the order of PatchGrid, one grid after another.
  /// Errors  Errc::precondition where sizes do not fit each other.
  VisionEncoding encode(std::span<float const> patches, std::span<PatchGrid const> grids) const {
    std::int64_t n = 0;
    for (PatchGrid const& g : grids) {
      check_grid(g, c_->merge_size);
      n += g.n_patches();
    }
    if (std::int64_t(patches.size()) != n * c_->patch_elems())
      throw Error(Errc::precondition, concat(patches.size(), " values for ", n, " patches of ", c_->patch_elems()));
    Rows x = embedded(patches, n);
    add_positions(x, grids);
    VisionEncoding out;
    out.n_tokens = n / (c_->merge_size * c_->merge_size);
    std::size_t next_merger = 0;
    for (std::int32_t l = 0; l < c_->n_layers; ++l) {
      VisionLayerWeights const& layer = w_->layers[std::size_t(l)];
      add(x, attention(l, normed(x, layer.norm1, layer.norm1_bias), grids));
      add(x, feed_forward(layer, normed(x, layer.norm2, layer.norm2_bias)));
      if (c_->layers[std::size_t(l)].deepstack) out.deepstack.push_back(merged(w_->deepstack[next_merger++], x));
    }
    out.tokens = merged(w_->merger, x);
    return out;
  }

 private:
  /// [n, dim].
  struct Rows {
    std::int64_t n = 0, dim = 0;
    std::vector<double> values;
    Rows(std::int64_t rows, std::int64_t cols) : n(rows), dim(cols), values(std::size_t(rows * cols)) {}
    double* row(std::int64_t i) { return values.data() + i * dim; }
    double const* row(std::int64_t i) const { return values.data() + i * dim; }
  };

  std::vector<float> decoded(WeightId id) const {
    Weight const& w = (*w_)[id];
    std::vector<float> out(std::size_t(w.rows) * std::size_t(w.cols));
    decode_row(w.dtype, w.data, std::int64_t(out.size()), out.data());
    return out;
  }

  /// y[i, r] = sum_k w[r, k] x[i, k] + bias[r].
  Rows product(WeightId weight, WeightId bias, Rows const& x) const {
    std::vector<float> const w = decoded(weight), b = has(bias) ? decoded(bias) : std::vector<float>();
    Rows y(x.n, (*w_)[weight].rows);
    for (std::int64_t i = 0; i < y.n; ++i) {
      for (std::int64_t r = 0; r < y.dim; ++r) {
        double sum = b.empty() ? 0 : double(b[std::size_t(r)]);
        for (std::int64_t k = 0; k < x.dim; ++k) sum += double(w[std::size_t(r * x.dim + k)]) * x.row(i)[k];
        y.row(i)[r] = sum;
      }
    }
    return y;
  }
  static void add(Rows& x, Rows const& y) {
    for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] += y.values[i];
  }

  Rows embedded(std::span<float const> patches, std::int64_t n) const {
    Rows pixels(n, c_->patch_elems());
    std::copy(patches.begin(), patches.end(), pixels.values.begin());
    return product(w_->patch, w_->patch_bias, pixels);
  }

  /// Calls visit(i, grid, place) for every patch, the i-th of all.
  template <class Visit>
  void for_each_patch(std::span<PatchGrid const> grids, Visit visit) const {
    std::int64_t i = 0;
    for (PatchGrid const& g : grids) {
      for (std::int64_t k = 0; k < g.n_patches(); ++k) visit(i++, g, patch_place(g, c_->merge_size, k % g.frame_patches()));
    }
  }

  void add_positions(Rows& x, std::span<PatchGrid const> grids) const {
    if (!has(w_->positions)) return;
    std::vector<float> const table = decoded(w_->positions);
    for_each_patch(grids, [&](std::int64_t i, PatchGrid const& g, PatchPlace at) {
      AxisTaps const rows = axis_taps(at.row, g.h, c_->position_side), cols = axis_taps(at.col, g.w, c_->position_side);
      for (int r = 0; r < 2; ++r) {
        for (int c = 0; c < 2; ++c) {
          float const* const entry = table.data() + (std::int64_t(rows.index[r]) * c_->position_side + cols.index[c]) * c_->dim;
          for (std::int64_t d = 0; d < x.dim; ++d) x.row(i)[d] += double(rows.share[r]) * double(cols.share[c]) * double(entry[d]);
        }
      }
    });
  }

  Rows normed(Rows const& x, WeightId weight, WeightId bias) const {
    std::vector<float> const w = decoded(weight), b = has(bias) ? decoded(bias) : std::vector<float>(w.size());
    Rows y(x.n, x.dim);
    for (std::int64_t i = 0; i < x.n; ++i) {
      double mean = 0, squares = 0;
      for (std::int64_t d = 0; d < x.dim && c_->norm == VisionNorm::layer; ++d) mean += x.row(i)[d] / double(x.dim);
      for (std::int64_t d = 0; d < x.dim; ++d) squares += (x.row(i)[d] - mean) * (x.row(i)[d] - mean);
      double const scale = 1 / std::sqrt(squares / double(x.dim) + double(c_->norm_eps));
      for (std::int64_t d = 0; d < x.dim; ++d) {
        y.row(i)[d] = (x.row(i)[d] - mean) * scale * double(w[std::size_t(d)]) + double(b[std::size_t(d)]);
      }
    }
    return y;
  }

  /// In place: element j and j + head_dim / 2 of each head turn by the patch's row times base^(-4 j / head_dim), for the first quarter of
  /// a head; those of the next quarter likewise by its column.
  void rotate(Rows& x, std::span<PatchGrid const> grids) const {
    std::int32_t const half = c_->head_dim / 2, quarter = half / 2;
    for_each_patch(grids, [&](std::int64_t i, PatchGrid const&, PatchPlace at) {
      for (std::int32_t head = 0; head < c_->n_heads; ++head) {
        double* const v = x.row(i) + std::int64_t(head) * c_->head_dim;
        for (std::int32_t j = 0; j < half; ++j) {
          double const turn = std::pow(double(c_->rope_base), -double(j % quarter) / quarter) * double(j < quarter ? at.row : at.col);
          double const a = v[j], b = v[j + half];
          v[j] = a * std::cos(turn) - b * std::sin(turn);
          v[j + half] = b * std::cos(turn) + a * std::sin(turn);
        }
      }
    });
  }

  Rows attention(std::int32_t l, Rows const& x, std::span<PatchGrid const> grids) const {
    VisionLayerWeights const& layer = w_->layers[std::size_t(l)];
    Rows q = product(layer.q, layer.q_bias, x), k = product(layer.k, layer.k_bias, x);
    Rows const v = product(layer.v, layer.v_bias, x);
    rotate(q, grids);
    rotate(k, grids);
    Rows out(x.n, x.dim);
    std::int32_t const side = c_->layers[std::size_t(l)].full_attention ? 0 : c_->window_tokens();
    std::int64_t first = 0;
    for (PatchGrid const& g : grids) {
      for (PatchWindow const& window : patch_windows(g, c_->merge_size, side)) {
        std::vector<std::int64_t> members;
        for (std::int32_t row = window.rows.begin; row < window.rows.end; ++row) {
          for (std::int32_t col = window.cols.begin; col < window.cols.end; ++col) {
            members.push_back(first + window.frame * g.frame_patches() + patch_index(g, c_->merge_size, {row, col}));
          }
        }
        attend(q, k, v, members, out);
      }
      first += g.n_patches();
    }
    return product(layer.out, layer.out_bias, out);
  }

  /// Every member to all members.
  void attend(Rows const& q, Rows const& k, Rows const& v, std::span<std::int64_t const> members, Rows& out) const {
    std::int64_t const size = c_->head_dim;
    std::vector<double> scores(members.size());
    for (std::int64_t const i : members) {
      for (std::int64_t begin = 0; begin < c_->dim; begin += size) {
        double largest = -INFINITY, sum = 0;
        for (std::size_t m = 0; m < members.size(); ++m) {
          double dot = 0;
          for (std::int64_t d = begin; d < begin + size; ++d) dot += q.row(i)[d] * k.row(members[m])[d];
          scores[m] = dot / std::sqrt(double(size));
          largest = std::fmax(largest, scores[m]);
        }
        for (double& s : scores) sum += s = std::exp(s - largest);
        for (std::size_t m = 0; m < members.size(); ++m) {
          for (std::int64_t d = begin; d < begin + size; ++d) out.row(i)[d] += scores[m] / sum * v.row(members[m])[d];
        }
      }
    }
  }

  Rows feed_forward(VisionLayerWeights const& layer, Rows const& x) const {
    Rows up = product(layer.up, layer.up_bias, x);
    if (c_->gated) {
      Rows const gate = product(layer.gate, layer.gate_bias, x);
      for (std::size_t i = 0; i < up.values.size(); ++i) up.values[i] *= activated(gate.values[i]);
    } else {
      for (double& u : up.values) u = activated(u);
    }
    return product(layer.down, layer.down_bias, up);
  }
  double activated(double x) const {
    switch (c_->activation) {
      case VisionActivation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
      case VisionActivation::gelu_tanh: return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
      case VisionActivation::silu: return x / (1 + std::exp(-x));
    }
    return x;
  }

  std::vector<float> merged(VisionMergerWeights const& merger, Rows const& x) const {
    Rows side_by_side(x.n / (c_->merge_size * c_->merge_size), c_->merged_dim());
    side_by_side.values = merger.merge_first ? x.values : normed(x, merger.norm, merger.norm_bias).values;
    if (merger.merge_first) side_by_side = normed(side_by_side, merger.norm, merger.norm_bias);
    Rows up = product(merger.up, merger.up_bias, side_by_side);
    for (double& u : up.values) u = 0.5 * u * (1 + std::erf(u * 0.7071067811865476));
    Rows const y = product(merger.down, merger.down_bias, up);
    return {y.values.begin(), y.values.end()};
  }

  VisionConfig const* c_;
  VisionWeights const* w_;
};

}  // namespace tiered
