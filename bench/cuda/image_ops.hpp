/// The ops of image encoders, one by one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "measure.hpp"
#include "random_blocks.hpp"
#include "tell.hpp"

namespace bench {

/// All patches of an image, in windows of `window` that see each other: keys and values of all in one page.
inline void bench_patches(Bench& b, DType type, std::int32_t n_patches, std::int32_t window, std::int32_t head_dim) {
  std::int32_t const n_heads = 16, page = (n_patches + attention_span - 1) / attention_span * attention_span;
  std::size_t const page_bytes = std::size_t(n_heads) * std::size_t(page) * kv_row_bytes(type, head_dim);
  Vram<std::byte> kv(random_blocks(type, 2 * page_bytes));
  Vram<std::byte*> pages(std::vector<std::byte*>{kv.data(), kv.data() + page_bytes});
  Vram<KvTable> table(std::vector<KvTable>{{pages.data(), pages.data() + 1}});
  Vram<KvRow> rows{std::vector<KvRow>(std::size_t(n_patches))};
  std::vector<Range> ranges;
  double pairs = 0;
  for (std::int32_t t = 0; t < n_patches; ++t) {
    ranges.push_back({t / window * window, std::min(t / window * window + window, n_patches)});
    pairs += ranges.back().size();
  }
  Vram<Range> seen(ranges);
  Vram<float> q(random_floats(std::size_t(n_patches) * std::size_t(n_heads * head_dim))), out(q.size());
  AttentionArgs args;
  args.q = q.data(), args.rows = rows.data(), args.tables = table.data(), args.out = out.data(), args.seen = seen.data();
  args.n_tokens = n_patches, args.n_heads = args.n_kv_heads = n_heads, args.head_dim = head_dim, args.page_tokens = page;
  args.max_position = n_patches - 1;
  args.scale = 0.02f;
  double const s = b.device.graph_seconds(2, [&](int) { b.device.launch(b.device.table().attention[std::uint32_t(type)], args); });
  b.tell(fmt::format("attention {} {} patches by {} (16 heads of {})", name(type), n_patches, window, head_dim), s,
         8.0 * double(q.size()) + double(kv.size()), 4.0 * pairs * n_heads * head_dim);
}

/// The ops of an image encoder: a picture of 1920 x 1080 has 10580 patches of 14 x 14, rows of 1280 elements (1152 with 16 heads of 72).
inline void bench_image(Bench& b) {
  std::int32_t const n_patches = 10580, dim = 1280, hidden = 5120, n_table = 2304;
  KernelTable const& k = b.device.table();
  std::size_t const n = std::size_t(n_patches) * dim, n_hidden = std::size_t(n_patches) * hidden;
  for (std::int32_t const head_dim : {64, 72, 80, 128}) {
    bench_patches(b, DType::f16, n_patches, n_patches, head_dim);
    bench_patches(b, DType::f16, n_patches, 64, head_dim);
  }
  bench_patches(b, DType::f16, n_patches, 48, 80);  // windows that are not whole tiles
  bench_patches(b, DType::f16, 2640, 2640, 80);
  Vram<float> x(random_floats(n)), y(random_floats(n)), h(random_floats(n_hidden)), weight(random_floats(std::size_t(dim))),
      rows(random_floats(std::size_t(n_table) * dim)), share(random_floats(std::size_t(n_patches) * AddTapsArgs::n_taps));
  std::vector<std::int32_t> taps;
  for (std::int32_t i = 0; i < n_patches * AddTapsArgs::n_taps; ++i) taps.push_back(i / 16 % n_table);
  Vram<std::int32_t> index(taps);
  auto const run = [&](std::string const& op, auto kernel, auto const& args, double bytes) {
    b.tell(fmt::format("{} {} patches", op, n_patches), b.device.graph_seconds(10, [&](int) { b.device.launch(kernel, args); }), bytes, 0);
  };
  run("layer_norm", k.layer_norm, LayerNormArgs{x.data(), weight.data(), weight.data(), y.data(), n_patches, dim, 1e-6f}, 8.0 * double(n));
  for (auto const& [activation, what] :
       {std::pair{Activation::quick_gelu, "quick_gelu"}, {Activation::gelu_tanh, "gelu_tanh"}, {Activation::gelu_erf, "gelu_erf"}})
    run(fmt::format("activate {}", what), k.activate, ActivateArgs{h.data(), std::int64_t(n_hidden), activation}, 8.0 * double(n_hidden));
  run("add_taps", k.add_taps, AddTapsArgs{rows.data(), index.data(), share.data(), y.data(), n_patches, dim}, 8.0 * double(n));
}

}  // namespace bench
