/// A layer of an image encoder for one chunk of patches: each of its ops beside its bound, then all of them in a row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "measure.hpp"
#include "random_blocks.hpp"
#include "tell.hpp"

namespace bench {

/// Cosmos-Reason1-7B's, of an image of 1920 x 1080: ops as VisionModel launches them, for as many rows as go through a step at once.
class EncoderLayer {
 public:
  static constexpr std::int32_t n_rows = 4096, n_patches = 10764, n_layers = 32, n_full = 4, dim = 1280, hidden = 3420, merged = 4 * dim,
                                output = 3584, patch = 1176, n_heads = 16, head_dim = 80, window = 64;
  static constexpr std::size_t rows = std::size_t(n_rows);
  static constexpr DType type = DType::f16, form = DType::act_f16_rows;

  struct Op {
    std::string what;
    double bytes = 0, flop = 0;
    std::function<void(int layer)> run;
  };

  explicit EncoderLayer(Device& device) : d_(device), k_(device.table()) {}

  std::vector<Op> ops(bool full) {
    float *const x = hidden_.data(), *const q = q_.data(), *const k = kv_rows_.data(), *const v = out_.data();
    std::vector<Op> o;
    o.push_back(convert_normed(x));
    o.push_back(product("k, v or q", k, dim, dim)), o.push_back(product("k, v or q", v, dim, dim));
    o.push_back(rope(k)), o.push_back(write(k, v));
    o.push_back(convert_normed(x));
    o.push_back(product("k, v or q", q, dim, dim)), o.push_back(rope(q)), o.push_back(attention(q, v, full));
    o.push_back(convert(v, rows, dim)), o.push_back(product("out", x, dim, dim, true));
    o.push_back(convert_normed(x));
    o.push_back(product("gate or up", gate_.data(), hidden, dim)), o.push_back(product("gate or up", up_.data(), hidden, dim));
    o.push_back(convert_gated(gate_.data(), up_.data()));
    o.push_back(product("down", x, dim, hidden, true));
    return o;
  }
  /// Patches to rows; then their merger, four rows becoming one, but for its norm.
  std::vector<Op> ends() {
    std::size_t const n = rows / 4;
    std::vector<Op> o{convert(up_.data(), rows, patch), product("patches", hidden_.data(), dim, patch)};
    o.push_back(convert(normed_.data(), n, merged));
    o.push_back(product("merger's first", q_.data(), merged, merged, false, n));
    o.push_back({"activate gelu_erf", 8.0 * double(n) * merged, 0, [this, n](int) {
                   d_.launch(k_.activate, ActivateArgs{q_.data(), std::int64_t(n) * merged, Activation::gelu_erf});
                 }});
    o.push_back(convert(q_.data(), n, merged)), o.push_back(product("merger's second", out_.data(), output, merged, false, n));
    return o;
  }
  /// What a layer would launch where a device did not convert in the same go.
  std::vector<Op> in_two_goes() {
    return {norm(hidden_.data(), normed_.data()), gated(gate_.data(), up_.data()), convert(up_.data(), rows, hidden)};
  }

 private:
  static constexpr int n_sets = 3;  ///< of weights: more than the caches hold
  static constexpr std::size_t set_elems = std::size_t{merged} * merged;
  static constexpr std::int32_t page = (n_patches + attention_span - 1) / attention_span * attention_span;
  static constexpr std::size_t page_bytes = std::size_t(n_heads) * page * head_dim * 2;

  /// Small ones, so that no value grows on its way through layers.
  static std::vector<std::uint16_t> halves(std::size_t n) {
    SplitMix64 random(2);
    std::vector<std::uint16_t> out(n);
    std::size_t const period = std::min(n, std::size_t{1} << 20);
    for (std::size_t i = 0; i < n; ++i) out[i] = i < period ? float_to_half(random.between(-0.05f, 0.05f)) : out[i - period];
    return out;
  }
  static std::vector<KvRow> places() {
    std::vector<KvRow> out;
    for (std::int32_t t = 0; t < n_rows; ++t) out.push_back({0, t});
    return out;
  }
  static std::vector<Range> windows() {
    std::vector<Range> out;
    for (std::int32_t t = 0; t < n_rows; ++t) out.push_back({t / window * window, t / window * window + window});
    return out;
  }

  Op norm(float const* from, float* to) {
    RmsNormArgs const a{from, vector_.data(), to, n_rows, dim, 1e-6f};
    return {"rms_norm 1280", 8.0 * rows * dim, 0, [this, a](int) { d_.launch(k_.rms_norm, a); }};
  }
  Op convert_normed(float const* from) {
    ConvertNormedArgs const a{{from, vector_.data(), nullptr, n_rows, dim, 1e-6f}, converted_.data()};
    return {"convert_normed 1280", 6.0 * rows * dim, 0, [this, a](int) { d_.launch(k_.convert_normed[activation_form(form)], a); }};
  }
  Op convert_gated(float const* gate, float const* up) {
    ConvertGatedArgs const a{gate, up, converted_.data(), n_rows, hidden, Activation::silu};
    return {"convert_gated 3420", 10.0 * rows * hidden, 0, [this, a](int) { d_.launch(k_.convert_gated[activation_form(form)], a); }};
  }
  Op convert(float const* from, std::size_t n, std::int32_t of) {
    QuantizeArgs const a{from, converted_.data(), std::int32_t(n), of};
    return {fmt::format("convert {} rows of {}", n, of), 6.0 * double(n) * of, 0,
            [this, a](int) { d_.launch(k_.convert[activation_form(form)], a); }};
  }
  /// With biases, as all of the encoder's but for patches.
  Op product(char const* what, float* y, std::int32_t to, std::int32_t from, bool add = false, std::size_t n = rows) {
    MatmulArgs const a{nullptr, converted_.data(), from == patch ? nullptr : vector_.data(), y, std::int32_t(n), to, from, to};
    Kernel<MatmulArgs> const kernel = (add ? k_.matmul_add : k_.matmul)[std::uint32_t(type)];
    double const bytes = 2.0 * to * from + double(n) * (2.0 * from + (add ? 8.0 : 4.0) * to);
    return {fmt::format("{} {} x {}{}, {} rows", what, to, from, add ? ", added" : "", n), bytes, 2.0 * double(n) * to * from,
            [this, a, kernel](int layer) {
              MatmulArgs own = a;
              own.w = weights_.data() + std::size_t(layer % n_sets) * set_elems;
              d_.launch(kernel, own);
            }};
  }
  Op rope(float* x) {
    RopeArgs a{x, positions_.data(), vector_.data(), n_rows, n_heads, head_dim, head_dim, RopeKind::halves, 1};
    a.position_row = position_row_.data(), a.position_stride = n_rows;
    return {"rope", 8.0 * rows * dim, 0, [this, a](int) { d_.launch(k_.rope, a); }};
  }
  Op write(float const* k, float const* v) {
    KvWriteArgs const a{k, v, places_.data(), table_.data(), n_rows, n_heads, head_dim, page};
    return {"kv_write", 12.0 * rows * dim, 0, [this, a](int) { d_.launch(k_.kv_write[std::uint32_t(DType::f16)], a); }};
  }
  Op attention(float const* q, float* out, bool full) {
    AttentionArgs a;
    a.q = q, a.rows = places_.data(), a.tables = table_.data(), a.out = out, a.seen = full ? all_.data() : windows_.data();
    a.n_tokens = n_rows, a.n_heads = a.n_kv_heads = n_heads, a.head_dim = head_dim, a.page_tokens = page;
    a.max_position = full ? n_patches - 1 : n_rows - 1;
    a.scale = 0.02f;
    double const seen = full ? n_patches : window, kv = full ? n_patches : n_rows;
    return {full ? "attention to all 10764 patches" : "attention in windows of 64", 8.0 * rows * dim + 4.0 * kv * dim,
            4.0 * rows * seen * dim, [this, a](int) { d_.launch(k_.attention[std::uint32_t(DType::f16)], a); }};
  }
  Op gated(float const* gate, float* up) {
    GatedArgs const a{gate, up, up, std::int64_t(rows) * hidden, Activation::silu};
    return {"gated 3420", 12.0 * rows * hidden, 0, [this, a](int) { d_.launch(k_.gated, a); }};
  }

  Device& d_;
  KernelTable const& k_;
  Vram<std::uint16_t> weights_{halves(set_elems * n_sets)};
  Vram<std::byte> kv_{random_blocks(DType::f16, 2 * page_bytes)}, converted_{activation_bytes(form, rows, std::uint64_t{hidden})};
  Vram<float> hidden_{random_floats(rows * dim)}, normed_{random_floats(rows * dim)}, q_{random_floats(rows * merged)},
      kv_rows_{random_floats(rows * dim)}, out_{random_floats(rows * dim)}, gate_{random_floats(rows * hidden)},
      up_{random_floats(rows * hidden)}, vector_{random_floats(std::size_t{merged})};
  Vram<std::int32_t> positions_{std::vector<std::int32_t>(3 * rows, 17)};
  Vram<std::uint8_t> position_row_{std::vector<std::uint8_t>(std::size_t{head_dim / 2}, 1)};
  Vram<KvRow> places_{places()};
  Vram<Range> windows_{windows()}, all_{std::vector<Range>(rows, {0, n_patches})};
  Vram<std::byte*> pages_{std::vector<std::byte*>{kv_.data(), kv_.data() + page_bytes}};
  Vram<KvTable> table_{std::vector<KvTable>{{pages_.data(), pages_.data() + 1}}};
};

inline void bench_encoder(Bench& b) {
  EncoderLayer layer(b.device);
  using Op = EncoderLayer::Op;
  std::vector<std::string> told;
  auto const tell_each = [&](std::vector<Op> const& ops) {
    for (Op const& op : ops) {
      if (std::find(told.begin(), told.end(), op.what) != told.end()) continue;
      told.push_back(op.what);
      b.tell(op.what, b.device.seconds(6, op.run), op.bytes, op.flop);
    }
  };
  double image_s = 0, bound_s = 0, flop = 0;
  auto const tell_all = [&](std::string const& what, std::vector<Op> const& ops, double times) {
    tell_each(ops);
    double least_s = 0, all_flop = 0;
    for (Op const& op : ops) least_s += b.bound_s(op.bytes, op.flop), all_flop += op.flop;
    double const s = b.device.seconds(3, [&](int i) {
      for (Op const& op : ops) op.run(i);
    });
    double const chunks = double(EncoderLayer::n_patches) / EncoderLayer::n_rows;
    b.tell(fmt::format("= {}, {} ops, bounds {:.0f} us", what, ops.size(), least_s * 1e6), s, 0, all_flop);
    image_s += times * chunks * s, bound_s += times * chunks * least_s, flop += times * chunks * all_flop;
  };
  tell_all("a layer in windows", layer.ops(false), EncoderLayer::n_layers - EncoderLayer::n_full);
  tell_all("a layer that sees all", layer.ops(true), EncoderLayer::n_full);
  tell_all("patches and merger", layer.ends(), 1);
  b.tell(fmt::format("= an image of {} patches, bounds {:.0f} us", int(EncoderLayer::n_patches), bound_s * 1e6), image_s, 0, flop);
  tell_each(layer.in_two_goes());
}

}  // namespace bench
