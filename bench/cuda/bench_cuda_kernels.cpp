// CUDA kernels beside what the device was measured to do in the same run: bytes against its copy rate, operations against cuBLAS.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "encoder_layer.hpp"
#include "image_ops.hpp"
#include "measure.hpp"
#include "random_blocks.hpp"
#include "tell.hpp"
#include "tiered/kernels/format/format.hpp"

namespace {

using namespace bench;

/// Few rows: one launch for each of as many matrices as are cold, in one graph.
void bench_few(Bench& b, DType type, std::int32_t n_tokens, std::size_t matrix_bytes, std::int32_t dim = 4096) {
  std::size_t const row = row_bytes(type, std::uint64_t(dim));
  std::int32_t const rows = std::int32_t(std::max<std::size_t>(16, matrix_bytes / row / 16 * 16));
  std::size_t const bytes = std::size_t(rows) * row, stride = (bytes + 255) / 256 * 256;
  int const n = int(std::clamp<std::size_t>(cold_bytes / stride, 4, 200));
  Vram<std::byte> w(random_blocks(type, stride * std::size_t(n)));
  Vram<float> x(random_floats(std::size_t(n_tokens) * std::size_t(dim))), y(std::size_t(n_tokens) * std::size_t(rows));
  FusedMatmulArgs args;
  args.x = x.data();
  args.norm = true;
  args.eps = 1e-6f;
  args.n_parts = 1;
  args.n_tokens = n_tokens;
  args.dim = dim;
  double const s = b.device.graph_seconds(n, [&](int i) {
    args.parts[0] = {w.data() + std::size_t(i) * stride, nullptr, y.data(), rows, rows, type};
    b.device.launch(b.device.table().fused_matmul, args);
  });
  double const least = double(bytes) / (0.85 * b.limits.copy_bytes_per_s) + 3e-6;
  b.tell(fmt::format("fused_matmul {} {} x {} x {} ({:.0f} % of target)", name(type), n_tokens, rows, dim, 100 * least / s), s,
         double(bytes), n_tokens >= 16 ? 2.0 * n_tokens * rows * dim : 0);
}

void bench_many(Bench& b, DType type, std::int32_t n_tokens, std::int32_t rows, std::int32_t dim) {
  std::size_t const bytes = std::size_t(rows) * row_bytes(type, std::uint64_t(dim)), stride = (bytes + 255) / 256 * 256;
  int const n = int(std::clamp<std::size_t>(cold_bytes / stride, 2, 8));
  Vram<std::byte> w(random_blocks(type, stride * std::size_t(n)));
  Vram<float> x(random_floats(std::size_t(n_tokens) * std::size_t(dim))), y(std::size_t(n_tokens) * std::size_t(rows));
  DType const form = b.device.table().activation[std::uint32_t(type)];
  Vram<std::byte> converted(activation_bytes(form, std::uint64_t(n_tokens), std::uint64_t(dim)));
  if (form != DType::f32)
    b.device.launch(b.device.table().convert[activation_form(form)], QuantizeArgs{x.data(), converted.data(), n_tokens, dim});
  auto const run = [&](char const* op, Kernel<MatmulArgs> kernel) {
    double const s = b.device.seconds(n, [&](int i) {
      MatmulArgs const args{w.data() + std::size_t(i) * stride,
                            form == DType::f32 ? static_cast<void*>(x.data()) : converted.data(),
                            nullptr,
                            y.data(),
                            n_tokens,
                            rows,
                            dim,
                            rows};
      b.device.launch(kernel, args);
    });
    b.tell(fmt::format("{} {} {} x {} x {}", op, name(type), n_tokens, rows, dim), s, double(bytes), 2.0 * n_tokens * rows * dim);
  };
  run("matmul", b.device.table().matmul[std::uint32_t(type)]);
  if (n_tokens >= 2048) run("matmul_add", b.device.table().matmul_add[std::uint32_t(type)]);
}

/// What stands between the products of a dense layer of 8B in prefill, one by one and in one go.
void bench_between(Bench& b) {
  std::int32_t const n_tokens = 2048, dim = 4096, hidden = 11520;
  DType const form = DType::act_f16_rows;
  KernelTable const& k = b.device.table();
  std::size_t const n = std::size_t(n_tokens) * std::size_t(dim), n_hidden = std::size_t(n_tokens) * std::size_t(hidden);
  Vram<float> gate(random_floats(n_hidden)), up(random_floats(n_hidden)), out(n_hidden);
  Vram<std::byte> to(activation_bytes(form, std::uint64_t(n_tokens), std::uint64_t(hidden)));
  auto const run = [&](char const* op, auto kernel, auto const& args, double bytes) {
    double const s = b.device.graph_seconds(20, [&](int) { b.device.launch(kernel, args); });
    b.tell(fmt::format("{} {} tokens", op, n_tokens), s, bytes, 0);
  };
  RmsNormArgs const norm{gate.data(), up.data(), out.data(), n_tokens, dim, 1e-6f};
  int const i = activation_form(form);
  run("rms_norm of 4096", k.rms_norm, norm, double(n) * 8);
  run("convert act_f16_rows of 4096", k.convert[i], QuantizeArgs{gate.data(), to.data(), n_tokens, dim}, double(n) * 6);
  run("convert_normed act_f16_rows of 4096", k.convert_normed[i], ConvertNormedArgs{norm, to.data()}, double(n) * 6);
  run("add of 4096", k.add, AddArgs{gate.data(), out.data(), std::int64_t(n)}, double(n) * 12);
  run("gated of 11520", k.gated, GatedArgs{gate.data(), up.data(), out.data(), std::int64_t(n_hidden), Activation::silu},
      double(n_hidden) * 12);
  run("convert act_f16_rows of 11520", k.convert[i], QuantizeArgs{gate.data(), to.data(), n_tokens, hidden}, double(n_hidden) * 6);
  run("convert_gated act_f16_rows of 11520", k.convert_gated[i],
      ConvertGatedArgs{gate.data(), up.data(), to.data(), n_tokens, hidden, Activation::silu}, double(n_hidden) * 10);
}

/// The same layer, its experts coming in windows: slots are grouped once, then window after window is computed and added to the rows, in
/// pieces as a budget of 2 GiB has room for. Seconds of a layer, and of one window of `per_window` experts.
void bench_windows(Bench& b, DType type, RoutedExpertsArgs const& routed, ExpertGroup const* layers, int n_layers,
                   std::int32_t per_window) {
  std::int32_t const n_tokens = routed.experts.n_tokens, dim = routed.experts.dim, piece_slots = 6936;
  Vram<std::byte> workspace(expert_window_bytes(piece_slots, dim, routed.experts.hidden_dim)), x_rows(expert_rows_bytes(n_tokens, dim));
  Vram<std::int32_t> begins(std::size_t(routed.n_experts) + 1), slots{std::size_t(routed.experts.n_slots)},
      places{std::size_t(routed.experts.n_slots)};
  ExpertWindowArgs args;
  args.experts = routed.experts;
  args.experts.n_slots = piece_slots;
  args.experts.workspace = workspace.data();
  args.ids = routed.ids;
  args.begins = begins.data(), args.slots = slots.data(), args.places = places.data(), args.x_rows = x_rows.data();
  args.n_experts = routed.n_experts;
  args.slot_weights = routed.slot_weights;
  args.sum = routed.sum;
  double const group_s = b.device.graph_seconds(6, [&](int) { b.device.launch(b.device.table().group_slots, args); });
  double const s = b.device.graph_seconds(6, [&](int i) {
    args.weights = layers + (i % n_layers) * routed.n_experts;
    b.device.launch(b.device.table().group_slots, args);
    for (std::int32_t first = 0; first < routed.n_experts; first += per_window) {
      args.first_expert = first;
      args.end_expert = std::min(first + per_window, routed.n_experts);
      b.device.launch(b.device.table().expert_window, args);
    }
  });
  std::int32_t const n_windows = (routed.n_experts + per_window - 1) / per_window;
  b.tell(fmt::format("{} windows of {} experts {} {} tokens, {:.0f} us grouped, {:.0f} us a window", n_windows, per_window, name(type),
                     n_tokens, group_s * 1e6, (s - group_s) / n_windows * 1e6),
         s, 0, 6.0 * routed.experts.n_slots * dim * routed.experts.hidden_dim);
}

/// A layer of routed experts as qwen3-30b-a3b has them: 128 experts of 768, 8 for each token, of 2048.
void bench_experts(Bench& b, DType type, std::int32_t n_tokens) {
  std::int32_t const n_experts = 128, n_used = 8, dim = 2048, hidden = 768;
  std::size_t const up_bytes = std::size_t(hidden) * row_bytes(type, std::uint64_t(dim)),
                    down_bytes = std::size_t(dim) * row_bytes(type, std::uint64_t(hidden)), expert = 2 * up_bytes + down_bytes;
  int const n_layers = 3;  // more than the caches hold
  Vram<std::byte> w(random_blocks(type, expert * std::size_t(n_experts * n_layers)));
  std::vector<ExpertGroup> groups;
  for (int i = 0; i < n_experts * n_layers; ++i) {
    std::byte const* const at = w.data() + std::size_t(i) * expert;
    groups.push_back({at, at + up_bytes, at + 2 * up_bytes, 0, 0});
  }
  SplitMix64 random(5);
  std::vector<std::int32_t> ids;
  for (std::int32_t t = 0; t < n_tokens; ++t) {
    std::vector<bool> taken(std::size_t(n_experts), false);
    for (int j = 0; j < n_used;) {
      std::size_t const e = random.next() % std::size_t(n_experts);
      if (!taken[e]) taken[e] = true, ++j;
    }
    for (std::int32_t e = 0; e < n_experts; ++e)
      if (taken[std::size_t(e)]) ids.push_back(e);
  }
  std::int32_t const n_slots = n_tokens * n_used;
  Vram<ExpertGroup> weights(groups), room(std::size_t(n_experts) + std::size_t(n_slots));
  Vram<std::int32_t> device_ids(ids), slots{std::size_t(n_slots)}, counts(std::size_t(n_experts) + 1);
  Vram<float> x(random_floats(std::size_t(n_tokens) * dim)), y(std::size_t(n_slots) * dim), sum(random_floats(std::size_t(n_tokens) * dim)),
      slot_weights(random_floats(std::size_t(n_slots)));
  Vram<std::byte> workspace(experts_workspace_bytes(n_tokens, n_slots, dim, hidden));
  RoutedExpertsArgs args;
  args.experts = {x.data(), y.data(), nullptr, nullptr, workspace.data(), 0, n_tokens, n_used, dim, hidden,
                  n_slots,  type,     type,    type,    Activation::silu};
  args.ids = device_ids.data();
  args.groups = room.data();
  args.slots = slots.data();
  args.counts = counts.data();
  args.n_experts = n_experts;
  args.slot_weights = slot_weights.data();
  args.sum = sum.data();
  args.norm = n_tokens <= b.device.table().fused_rows;
  args.eps = 1e-6f;
  double const s = b.device.graph_seconds(6, [&](int i) {
    args.weights = weights.data() + (i % n_layers) * n_experts;
    b.device.launch(b.device.table().routed_experts, args);
  });
  double touched = n_experts;
  if (n_slots < 16 * n_experts) {
    std::sort(ids.begin(), ids.end());
    touched = double(std::unique(ids.begin(), ids.end()) - ids.begin());
  }
  b.tell(fmt::format("routed_experts {} {} tokens", name(type), n_tokens), s, touched * double(expert), 6.0 * n_slots * dim * hidden);
  if (n_tokens < 1024) return;
  for (std::int32_t const per_window : {3, 12}) bench_windows(b, type, args, weights.data(), n_layers, per_window);
}

/// Norms of heads, rotations and the row's own keys and values too.
void bench_decode_attention(Bench& b, DType type, AttentionArgs const& attention, KvTable const* tables, int n_layers) {
  std::size_t const n_q = std::size_t(attention.n_heads) * std::size_t(attention.head_dim),
                    n_k = std::size_t(attention.n_kv_heads) * std::size_t(attention.head_dim);
  Vram<float> q(random_floats(n_q)), k(random_floats(n_k)), v(random_floats(n_k)), weight(random_floats(std::size_t(attention.head_dim)));
  Vram<std::int32_t> positions(std::vector<std::int32_t>{attention.max_position});
  DecodeAttentionArgs args;
  args.attention = attention;
  args.attention.q = q.data();
  args.input = {q.data(), k.data(), v.data(), weight.data(), weight.data(), positions.data(), weight.data(), attention.rows};
  args.input.n_tokens = 1;
  args.input.n_heads = attention.n_heads;
  args.input.n_kv_heads = attention.n_kv_heads;
  args.input.head_dim = args.input.n_rot = attention.head_dim;
  args.input.page_tokens = attention.page_tokens;
  args.input.eps = 1e-6f;
  double const s = b.device.graph_seconds(std::max(n_layers, 2), [&](int i) {
    args.attention.tables = args.input.tables = tables + i % n_layers;
    b.device.launch(b.device.table().decode_attention[std::uint32_t(type)], args);
  });
  double const bytes = 2.0 * (attention.max_position + 1) * attention.n_kv_heads * double(kv_row_bytes(type, attention.head_dim));
  b.tell(fmt::format("attention {} and its input, 1 row at {} ({}/{} heads of {})", name(type), attention.max_position + 1,
                     attention.n_heads, attention.n_kv_heads, attention.head_dim),
         s, bytes, 0);
}

/// Where keys and values lie that one row reads: in VRAM; in the host's memory, with the kernel for that, or with the one for VRAM.
enum class KvHome : std::uint8_t { vram, host, host_as_vram };

/// Keys and values of one sequence, and rows at its end.
void bench_attention(Bench& b, DType type, std::int32_t n_rows, std::int32_t context, std::int32_t n_heads, std::int32_t n_kv_heads,
                     std::int32_t head_dim, KvHome home = KvHome::vram) {
  bool const over_link = home != KvHome::vram;
  std::int32_t const page = attention_span, n_pages = (context + page - 1) / page;
  std::size_t const page_bytes = std::size_t(n_kv_heads) * std::size_t(page) * kv_row_bytes(type, head_dim);
  int const n_layers = n_rows > 16 ? 1 : int(std::clamp<std::size_t>(cold_bytes / (2 * page_bytes * std::size_t(n_pages)), 1, 64));
  std::vector<std::byte> const values = random_blocks(type, 2 * page_bytes * std::size_t(n_pages * n_layers));
  std::optional<Locked> in_host;
  if (over_link) in_host.emplace(values);
  Vram<std::byte> kv(over_link ? std::vector<std::byte>(1) : values);
  std::byte* const first_page = over_link ? in_host->data() : kv.data();
  std::vector<std::byte*> lists;
  for (int i = 0; i < 2 * n_pages * n_layers; ++i) lists.push_back(first_page + std::size_t(i) * page_bytes);
  Vram<std::byte*> pages(lists);
  std::vector<KvTable> tables;
  for (int l = 0; l < n_layers; ++l) tables.push_back({pages.data() + 2 * l * n_pages, pages.data() + (2 * l + 1) * n_pages});
  Vram<KvTable> device_tables(tables);
  std::vector<KvRow> rows;
  for (std::int32_t t = 0; t < n_rows; ++t) rows.push_back({0, context - n_rows + t});
  Vram<KvRow> device_rows(rows);
  Vram<float> q(random_floats(std::size_t(n_rows) * std::size_t(n_heads * head_dim))), out(q.size());
  Vram<std::byte> workspace(attention_workspace_bytes(n_rows, n_heads, head_dim, context - 1) + 256);
  AttentionArgs args;
  args.q = q.data();
  args.rows = device_rows.data();
  args.out = out.data();
  args.workspace = workspace.data();
  args.n_tokens = n_rows;
  args.n_heads = n_heads;
  args.n_kv_heads = n_kv_heads;
  args.head_dim = head_dim;
  args.page_tokens = page;
  args.max_position = context - 1;
  args.scale = 0.02f;
  if (home == KvHome::host) args.share.border = 0, args.share.read = PositionShare::whole;
  double const s = b.device.graph_seconds(std::max(n_layers, 2), [&](int i) {
    args.tables = device_tables.data() + i % n_layers;
    b.device.launch(b.device.table().attention[std::uint32_t(type)], args);
  });
  if (n_rows == 1 && !over_link) bench_decode_attention(b, type, args, device_tables.data(), n_layers);
  double pairs = 0;
  for (KvRow const& r : rows) pairs += r.position + 1;
  double const bytes = 2.0 * context * n_kv_heads * double(kv_row_bytes(type, head_dim));
  b.tell(fmt::format("attention {} {} rows at {} ({}/{} heads of {}){}", name(type), n_rows, context, n_heads, n_kv_heads, head_dim,
                     home == KvHome::vram   ? ""
                     : home == KvHome::host ? " over the link"
                                            : " over the link, as from VRAM"),
         s, bytes, n_rows > 16 ? 4.0 * pairs * n_heads * head_dim : 0);
}

/// Ops whose time is that of a launch.
void bench_small(Bench& b, std::int32_t n_tokens) {
  std::int32_t const dim = 2048, n_experts = 128, n_used = 8, n_heads = 32, n_kv_heads = 4, head_dim = 128, vocab = 151936;
  KernelTable const& k = b.device.table();
  std::size_t const n = std::size_t(n_tokens);
  Vram<float> x(random_floats(n * dim)), y(n * dim), scores(random_floats(n * std::size_t(n_experts))), weights(n * n_used),
      q(random_floats(n * std::size_t(n_heads * head_dim))), logits(random_floats(std::size_t(std::min(n_tokens, 16)) * vocab)),
      freq(random_floats(std::size_t(head_dim / 2)));
  Vram<std::int32_t> ids(n * n_used), positions(std::vector<std::int32_t>(3 * n, 77)), best(n);
  Vram<std::uint8_t> position_row(std::vector<std::uint8_t>(std::size_t(head_dim / 2), 1));
  Vram<std::byte> form(activation_bytes(DType::act_f16_rows, n, std::uint64_t(dim)));
  auto const run = [&](char const* op, auto kernel, auto const& args, double bytes) {
    double const s = b.device.graph_seconds(50, [&](int) { b.device.launch(kernel, args); });
    b.tell(fmt::format("{} {} tokens", op, n_tokens), s, bytes, 0);
  };
  double const row_bytes_all = double(n) * dim * 4;
  run("rms_norm", k.rms_norm, RmsNormArgs{x.data(), nullptr, y.data(), n_tokens, dim, 1e-6f}, 2 * row_bytes_all);
  run("convert act_f16_rows", k.convert[activation_form(DType::act_f16_rows)], QuantizeArgs{x.data(), form.data(), n_tokens, dim},
      1.5 * row_bytes_all);
  run("add", k.add, AddArgs{x.data(), y.data(), std::int64_t(n) * dim}, 3 * row_bytes_all);
  run("route", k.route,
      RouteArgs{scores.data(), nullptr, ids.data(), weights.data(), n_tokens, n_experts, n_used, Gating::softmax, true, 1},
      double(n) * n_experts * 4);
  RopeArgs rope{q.data(), positions.data(), freq.data(), n_tokens, n_heads, head_dim, head_dim, RopeKind::halves, 1};
  run("rope", k.rope, rope, double(n) * n_heads * head_dim * 8);
  rope.position_row = position_row.data();
  rope.position_stride = n_tokens;
  run("rope, 3 rows of positions", k.rope, rope, double(n) * n_heads * head_dim * 8);
  if (n_tokens <= 16) run("argmax", k.argmax, ArgmaxArgs{logits.data(), best.data(), n_tokens, vocab}, double(n) * vocab * 4);
  (void)n_kv_heads;
}

/// The router of one row, of qwen3-30b-a3b and of qwen3-235b-a22b: alone; as a step has it that is helped; and with the end of such a
/// layer, whose experts are all there, with guesses of the next ones, which go to the host, or without. Weights of more layers than L2
/// holds.
void bench_router(Bench& b, std::int32_t dim) {
  std::int32_t const n_experts = 128;
  std::size_t const n_layers = 96, layer = std::size_t(dim) * std::size_t(n_experts);
  KernelTable const& k = b.device.table();
  Vram<float> x(random_floats(std::size_t(dim))), norm(random_floats(std::size_t(dim))), w(n_layers * layer), y(std::size_t{n_experts});
  Vram<float> row{std::size_t(dim)}, hidden(random_floats(std::size_t(dim))), sum{std::vector<float>(std::size_t(dim))};
  check(cudaMemset(w.data(), 0, n_layers * layer * sizeof(float)));
  Vram<HelpState> state(std::vector<HelpState>(1));
  void* const somewhere = w.data();
  Vram<ExpertGroup> table(std::vector<ExpertGroup>(std::size_t{n_experts}, {somewhere, somewhere, somewhere, 0, 0})),
      seen(std::size_t{n_experts});
  Vram<std::int32_t> ids(std::vector<std::int32_t>(8)), fetched(std::size_t{8});
  struct Host {
    HelpMail mail;
    HelpLog log;
    ExpertGuess guesses[GuessArgs::max_layers * 128];
  }* host = nullptr;
  check(cudaMallocHost(reinterpret_cast<void**>(&host), sizeof *host));
  *host = {};
  auto const weights = [&](int l) { return w.data() + std::size_t(l) % n_layers * layer; };
  auto const router_of = [&](int i) {
    RouterAheadArgs a;
    a.own.x = x.data(), a.own.norm_weight = norm.data(), a.own.eps = 1e-6f, a.own.norm = true;
    a.own.n_tokens = 1, a.own.dim = dim;
    a.own.parts[a.own.n_parts++] = {weights(i), nullptr, y.data(), n_experts, n_experts, DType::f32};
    a.n_experts = n_experts, a.layer = i % 48;
    a.state = state.data(), a.experts = table.data(), a.seen = seen.data(), a.row = row.data();
    return a;
  };
  auto const end_of = [&](int i, std::int32_t n_guessed) {
    HelpArgs a;
    a.mail = &host->mail, a.log = &host->log, a.state = state.data(), a.experts = seen.data();
    a.ids = ids.data(), a.weights = norm.data(), a.row = {hidden.data(), nullptr, nullptr, 1, dim, -1.0f};
    a.sum = sum.data(), a.hidden = hidden.data(), a.fetched_ids = fetched.data();
    a.n_used = 8, a.n_experts = n_experts, a.dim = dim, a.layer = i % 48, a.copies = true;
    for (std::int32_t d = 0; d < n_guessed; ++d)
      a.guesses.layers[d] = {weights(i + 24 * (d + 1)), norm.data(), host->guesses + d * n_experts};
    a.guesses.row = row.data(), a.guesses.eps = 1e-6f, a.guesses.n_layers = n_guessed;
    return a;
  };
  double const bytes = double(layer) * 4;
  auto const tell = [&](std::string const& what, double s, double n) { b.tell(fmt::format("{}, dim {}", what, dim), s, bytes * n, 0); };
  tell("router 1 tokens", b.device.graph_seconds(96, [&](int i) { b.device.launch(k.fused_matmul, router_of(i).own); }), 1);
  tell("router_ahead 1 tokens", b.device.graph_seconds(96, [&](int i) { b.device.launch(k.router_ahead, router_of(i)); }), 1);
  for (std::int32_t const n : {0, 1, GuessArgs::max_layers}) {
    if (k.help == nullptr) break;
    double const s = b.device.graph_seconds(96, [&](int i) {
      b.device.launch(k.router_ahead, router_of(i));
      b.device.launch(k.help, end_of(i, n));
    });
    tell(fmt::format("router_ahead, help, {} guessed", n), s, 1 + n);
  }
  check(cudaFreeHost(host));
}

void run(Choice const& choice) {
  Device device;
  Bench b{device, {device.copy_rate(), device.matrix_rate()}, choice, {}};
  fmt::print("{}: copies {:.0f} GB/s (read and written), cuBLAS {:.0f} TFLOP/s (bf16, 8192 cubed)\n", device.name(),
             b.limits.copy_bytes_per_s / 1e9, b.limits.flop_per_s / 1e12);
  std::vector<DType> types;
  for_each_format([&](auto format) {
    if (choice.wants(decltype(format)::dtype)) types.push_back(decltype(format)::dtype);
  });
  if (choice.wants("small")) {
    for (std::int32_t const n : {1, 1024}) bench_small(b, n);
    for (std::int32_t const dim : {2048, 4096}) bench_router(b, dim);
  }
  if (choice.wants("few")) {
    for (DType const type : types) {
      for (std::size_t const mib : {1, 4, 16, 64, 256}) bench_few(b, type, 1, mib << 20);
      for (std::int32_t const n : {2, 3, 4, 8, 16}) bench_few(b, type, n, std::size_t{64} << 20);
      for (std::int32_t const dim : {5120, 11520, 14336}) bench_few(b, type, 1, std::size_t{90} << 20, dim);
      bench_few(b, type, 16, std::size_t{8} << 20);
      bench_few(b, type, 16, std::size_t{64} << 20, 14336);  // longer than shared memory has room for
    }
  }
  if (choice.wants("experts")) {
    for (DType const type : types) {
      if (type == DType::f32) continue;
      for (std::int32_t const n : {1, 4, 64, 1024, 4096, 8192}) bench_experts(b, type, n);
    }
  }
  if (choice.wants("many")) {
    for (DType const type : types) {
      if (type == DType::f32) bench_many(b, type, 1024, 128, 2048);
      for (std::int32_t const n : {32, 128, 512, 2048}) bench_many(b, type, n, 4096, 4096);
      bench_many(b, type, 1024, 14336, 4096);
      if (block_elems(type) == 1) bench_many(b, type, 2048, 1280, 3420);  // rows that are no whole 16 bytes
    }
  }
  if (choice.wants("between")) bench_between(b);
  if (choice.wants("attention")) {
    for (DType const type : {DType::f16, DType::q8_0}) {
      for (std::int32_t const context : {256, 1024, 4096, 16384, 65536}) bench_attention(b, type, 1, context, 32, 4, 128);
      bench_attention(b, type, 1, 16384, 32, 8, 64);
      for (std::int32_t const context : {1024, 4096, 16384}) bench_attention(b, type, std::min(context, 2048), context, 32, 4, 128);
    }
    bench_attention(b, DType::f16, 2048, 16384, 32, 32, 64);
    bench_attention(b, DType::f16, 2048, 16384, 16, 4, 256);
  }
  if (choice.wants("image")) bench_image(b);
  if (choice.wants("encoder")) bench_encoder(b);
  if (choice.wants("link")) {
    for (DType const type : {DType::f16, DType::q8_0}) {
      for (std::int32_t const context : {256, 1024, 4096, 16384}) {
        for (KvHome const home : {KvHome::host, KvHome::host_as_vram}) bench_attention(b, type, 1, context, 32, 4, 128, home);
      }
      for (std::int32_t const head_dim : {64, 80, 96, 256}) bench_attention(b, type, 1, 16384, 16, 4, head_dim, KvHome::host);
    }
  }
  if (!choice.json.empty()) std::ofstream(choice.json) << b.json;
}

}  // namespace

int main(int argc, char** argv) {
  Choice choice;
  CLI::App app("CUDA kernels beside what the device was measured to do");
  app.add_option("--op", choice.ops, "small, few, experts, many, between, attention, image, encoder, link; default: all");
  app.add_option("--type", choice.types, "weight formats, as in q4_0; default: all");
  app.add_option("--json", choice.json, "write one line per figure to this file");
  CLI11_PARSE(app, argc, argv);
  try {
    run(choice);
  } catch (std::exception const& e) {
    fmt::print(stderr, "bench_cuda_kernels: {}\n", e.what());
    return 1;
  }
}
