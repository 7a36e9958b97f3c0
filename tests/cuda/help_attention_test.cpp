// Attention to keys and values of which some lie in the host's memory, within a launch: what the device posts and stores there, what it
// reads by itself, and what it adds; and engines whose contexts leave VRAM.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "cuda/asking_gpu.hpp"
#include "cuda/attention_check.hpp"
#include "cuda/limited_gpu.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/cuda/registered_tier.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

constexpr std::int32_t layer = 5;
constexpr std::uint64_t step = 9, number = step * 1024 + layer + 1;

/// One row's attention: pages before the border in VRAM, the others in registered memory of the host, where the row's own keys and values
/// are yet to come.
struct Problem {
  Problem(AttentionCase const& case_, DType kv_, PositionShare share_, SplitMix64& random, PinnedTier& pinned, RegisteredTier& registered)
      : c(case_),
        kv(kv_),
        share(share_),
        pages(c, kv, random),
        q(queries_of(c, random)),
        in_vram(pages.bytes),
        in_host(registered, pages.bytes.size(), 4096),
        posted(pinned, 64 * KiB + 4 * q.size() * sizeof(float), 4096),
        queries(q),
        k_row(last_of(pages.k)),
        v_row(last_of(pages.v)),
        out(q.size()),
        log_sum_exp(std::size_t(c.n_heads)),
        rows(c.rows),
        step_there(std::vector<std::uint64_t>{step}),
        workspace(attention_workspace_bytes(1, c.n_heads, c.head_dim, c.rows[0].position)),
        pointers(mixed_pointers()),
        tables(pages.tables_over(pointers.data(), 1)) {
    pages.write();
    whole = pages.bytes;
    forget_own_row();
    in_vram.upload(pages.bytes);
    std::memcpy(in_host.data(), pages.bytes.data(), pages.bytes.size());
    std::memset(posted.data(), 0, posted.bytes());
    mail = new (posted.data()) AttentionMail;
    log = new (posted.data() + 4096) AttentionHelpLog;
    host_q = reinterpret_cast<float*>(posted.data() + 64 * KiB);
    host_part = host_q + q.size();
    host_log = host_part + q.size();
  }
  std::vector<float> last_of(std::vector<float> const& all) const {
    std::size_t const n = std::size_t(c.n_kv_heads) * std::size_t(c.head_dim);
    return {all.end() - std::ptrdiff_t(n), all.end()};
  }
  std::size_t page_bytes() const { return std::size_t(c.n_kv_heads) * std::size_t(c.page_tokens) * kv_row_bytes(kv, c.head_dim); }
  std::vector<std::byte*> mixed_pointers() {
    std::vector<std::byte*> there = pages.pointers_into(in_vram.data());
    std::vector<std::byte*> const here = pages.pointers_into(in_host.data());
    std::size_t const n = there.size() / 2, n_there = std::size_t(share.border / c.page_tokens);
    for (std::size_t p = n_there; p < n; ++p) there[p] = here[p], there[n + p] = here[n + p];
    return there;
  }
  /// The bytes of the last position.
  void forget_own_row() {
    std::size_t const row = kv_row_bytes(kv, c.head_dim), n = pages.bytes.size() / page_bytes() / 2;
    std::int32_t const position = c.rows[0].position;
    for (std::size_t half : {std::size_t(0), n}) {
      for (std::int32_t h = 0; h < c.n_kv_heads; ++h) {
        std::size_t const at =
            (half + std::size_t(position / c.page_tokens)) * page_bytes() + std::size_t(h * c.page_tokens + position % c.page_tokens) * row;
        std::fill_n(pages.bytes.begin() + std::ptrdiff_t(at), row, std::byte{0xff});
      }
    }
  }
  AttentionArgs own() {
    AttentionArgs a = args_of(c, 1, c.rows[0].position);
    a.q = queries.data();
    a.rows = rows.data();
    a.tables = tables.data();
    a.out = out.data();
    a.log_sum_exp = log_sum_exp.data();
    a.workspace = workspace.data();
    a.share = share;
    return a;
  }
  HelpAttentionArgs help() {
    HelpAttentionArgs a;
    a.mail = mail;
    a.step = step_there.data();
    a.row = rows.data();
    a.q = queries.data();
    a.out = out.data();
    a.log_sum_exp = log_sum_exp.data();
    a.log = log;
    a.host_q = host_q;
    a.host_part = host_part;
    a.host_log_sum_exp = host_log;
    a.n_heads = c.n_heads;
    a.head_dim = c.head_dim;
    a.layer = layer;
    a.window = c.window;
    a.share = share;
    return a;
  }
  void launch(Gpu& gpu, std::uint64_t patience_ns = 0) {
    HelpAttentionArgs a = help();
    if (patience_ns > 0) a.patience_ns = patience_ns;
    KvWriteArgs const write{k_row.data(), v_row.data(), rows.data(), tables.data(), 1, c.n_kv_heads, c.head_dim, c.page_tokens};
    tiered::launch(gpu.table().kv_write[std::uint32_t(kv)], write, gpu.queue());
    tiered::launch(gpu.table().attention_ask, a, gpu.queue());
    tiered::launch(gpu.table().attention[std::uint32_t(kv)], own(), gpu.queue());
    tiered::launch(gpu.table().attention_answer, a, gpu.queue());
  }
  std::int32_t host_begin() const {
    std::int32_t const position = c.rows[0].position;
    return share.host_begin(c.window > 0 ? std::max(position - c.window + 1, 0) : 0, position);
  }
  void await_request() const {
    while (std::atomic_ref(mail->request).load(std::memory_order_acquire) != number) std::this_thread::yield();
  }
  /// The host's part, of what is in its memory now.
  void answer() {
    std::vector<std::byte*> const here = pages.pointers_into(in_host.data());
    std::vector<KvTable> const table = pages.tables_over(here.data(), 1);
    AttentionArgs a = args_of(c, 1, c.rows[0].position);
    a.q = host_q;
    a.rows = c.rows.data();
    a.tables = table.data();
    a.out = host_part;
    a.log_sum_exp = host_log;
    a.positions.begin = host_begin();
    reference::attention(a, kv);
    std::atomic_ref(mail->answered).store(number, std::memory_order_release);
  }

  AttentionCase const& c;
  DType kv;
  PositionShare share;
  Pages pages;
  std::vector<float> q;
  std::vector<std::byte> whole;  ///< all pages with the row's own keys and values
  DeviceArray<std::byte> in_vram;
  Buffer in_host, posted;
  DeviceArray<float> queries, k_row, v_row, out, log_sum_exp;
  DeviceArray<KvRow> rows;
  DeviceArray<std::uint64_t> step_there;
  DeviceArray<std::byte> workspace;
  DeviceArray<std::byte*> pointers;
  DeviceArray<KvTable> tables;
  AttentionMail* mail;
  AttentionHelpLog* log;
  float *host_q, *host_part, *host_log;
};

std::vector<AttentionCase> cases() {
  return {
      {8, 2, 128, 256, 0, run_of(0, 1999, 1)}, {32, 4, 128, 256, 0, run_of(0, 3000, 1)}, {4, 4, 64, 64, 0, run_of(0, 700, 1)},
      {8, 1, 96, 64, 300, run_of(0, 999, 1)},  {7, 1, 80, 256, 0, run_of(0, 1023, 1)},   {8, 1, 256, 256, 600, run_of(0, 1500, 1)},
      {6, 3, 40, 16, 0, run_of(0, 333, 1)},    {4, 2, 33, 16, 50, run_of(0, 400, 1)},
  };
}

}  // namespace

TEST_CASE("CUDA helped attention: the device's positions, over the link too, and the host's are those of the whole", "[cuda]") {
  auto const gpu = AskingGpu::open();
  if (!gpu || !gpu->device.reads_registered_memory) return;
  RegisteredTier registered;
  SplitMix64& random = gpu->random;
  for (AttentionCase const& c : cases()) {
    for (DType const kv : kv_types) {
      for (std::int32_t const read : {0, 300, 700, 1024}) {
        std::int32_t const n_pages = c.rows[0].position / c.page_tokens + 1;
        PositionShare const share{std::int32_t(random.below(std::uint64_t(n_pages))) * c.page_tokens, read,
                                  std::int32_t(random.below(200))};
        INFO("TIERED_SEED=" << fresh_seed() << ", " << describe(kv, c) << ", border " << share.border << ", read " << read << " + "
                            << share.ahead);
        Problem p(c, kv, share, random, gpu->pinned, registered);
        p.launch(gpu->gpu);
        bool const asks = p.host_begin() <= c.rows[0].position;
        if (asks) {
          p.await_request();
          CHECK(p.mail->layer == layer);
          CHECK(std::equal(p.q.begin(), p.q.end(), p.host_q));
          p.answer();
        }
        gpu->finish();
        CHECK(p.mail->request == (asks ? number : 0));
        CHECK((p.log->asked_ns != 0) == asks);
        CHECK(p.log->begin_ns <= p.log->own_ns);
        CHECK(p.log->own_ns <= p.log->end_ns);
        // The row's own keys and values came to the page that is theirs, and nothing else changed there.
        std::size_t const from = std::size_t(share.border / c.page_tokens) * p.page_bytes(), n_keys = p.whole.size() / 2;
        CHECK(std::memcmp(p.in_host.data() + from, p.whole.data() + from, n_keys - from) == 0);
        CHECK(std::memcmp(p.in_host.data() + n_keys + from, p.whole.data() + n_keys + from, n_keys - from) == 0);
        p.pages.bytes = p.whole;
        Outputs const expected = expected_of(c, kv, p.pages, p.q);
        check_close(p.out.download(), expected.out, 2 * tolerance(c, kv, 1, c.rows[0].position + 1));
      }
    }
  }
}

TEST_CASE("CUDA helped attention: parts that saw nothing count nothing, whatever is in them", "[cuda]") {
  auto const gpu = AskingGpu::open();
  if (!gpu) return;
  RegisteredTier registered;
  SplitMix64& random = gpu->random;
  AttentionCase const c{6, 3, 40, 16, 0, run_of(0, 333, 1)};
  Problem p(c, DType::f32, {16, 0, 0}, random, gpu->pinned, registered);
  float const nothing = -INFINITY, garbage = NAN;
  std::vector<float> const own = random_floats(p.q.size(), random);
  std::vector<float> own_log(std::size_t(c.n_heads)), expected;
  p.out.upload(own);
  for (std::int32_t h = 0; h < c.n_heads; ++h) {
    own_log[std::size_t(h)] = h % 3 == 0 ? nothing : 0.5f * float(h);
    p.host_log[h] = h % 2 == 0 ? nothing : 0.25f;
    for (std::int32_t i = 0; i < c.head_dim; ++i) {
      std::size_t const at = std::size_t(h * c.head_dim + i);
      p.host_part[at] = h % 2 == 0 ? garbage : float(i);
      double const w_own = h % 3 == 0 ? 0 : std::exp(0.5 * h), w_host = h % 2 == 0 ? 0 : std::exp(0.25), sum = w_own + w_host;
      expected.push_back(sum == 0 ? 0.0f : float((w_own * double(own[at]) + (h % 2 == 0 ? 0 : w_host * i)) / sum));
    }
  }
  p.log_sum_exp.upload(own_log);
  p.mail->answered = number;
  gpu->gpu.run(gpu->table().attention_answer, p.help());
  std::vector<float> const got = p.out.download();
  for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(std::fabs(got[i] - expected[i]) <= 1e-5f * (1 + std::fabs(expected[i])));
}

TEST_CASE("CUDA helped attention: a host that gives up, or does not come, lets the device go with its own part", "[cuda]") {
  auto const gpu = AskingGpu::open();
  if (!gpu) return;
  RegisteredTier registered;
  SplitMix64& random = gpu->random;
  AttentionCase const c{8, 2, 128, 256, 0, run_of(0, 1999, 1)};
  for (int which = 0; which < 3; ++which) {
    INFO("given up " << (which == 0 ? "before" : which == 1 ? "while it waits" : "by the device"));
    Problem p(c, DType::f16, {512, 400, 0}, random, gpu->pinned, registered);
    if (which == 0) p.mail->given_up = 1;
    p.launch(gpu->gpu, which == 2 ? 1000 : 0);
    if (which == 1) {
      p.await_request();
      std::atomic_ref(p.mail->given_up).store(1, std::memory_order_release);
    }
    gpu->finish();
    CHECK(p.mail->timed_out == (which == 2 ? 1u : 0u));
    CHECK(p.mail->given_up == 1u);
    Outputs const expected = expected_of(c, p.kv, p.pages, p.q, {0, p.host_begin()});
    check_close({p.out.download(), p.log_sum_exp.download()}, expected, 2 * tolerance(c, p.kv, 1, c.rows[0].position + 1));
  }
}

TEST_CASE("cuda: behind a context that VRAM has not all of decode is one launch a token, and gives the CPU's logits", "[cuda][golden]") {
  if (!has_gpu()) return;
  for (char const* name : {"llama.f16.gguf", "qwen3moe.f16.gguf"}) {
    auto const model = test::open_golden(name);
    for (DType const kv_type : {DType::f16, DType::q8_0}) {
      INFO(name << ", " << tiered::name(kv_type));
      EngineOptions options;
      options.max_context = 65536;
      options.n_threads = 2;
      options.kv_type = kv_type;
      options.hardware = HardwareProfile::simulated();
      // In the 12 us that it takes to ask, the device would read the 2000 to 6000 positions of so small a model that VRAM has not.
      options.hardware->hop_latency_s = 1e-7;
      std::vector<std::int32_t> tokens;
      for (std::int32_t i = 0; i < 6000; ++i) tokens.push_back(3 + i * 11 % 50);
      auto const run = [&](auto& engine) {
        Sequence const sequence = engine.new_sequence();
        engine.prefill(sequence, tokens);
        std::vector<float> all;
        for (std::int32_t i = 0; i < 40; ++i) {
          std::span<float const> const logits = engine.decode(sequence, 3 + i * 7 % 50);
          all.insert(all.end(), logits.begin(), logits.end());
        }
        return all;
      };
      EngineOptions on_cpu = options;
      on_cpu.f32_activations = true;
      Engine<CpuPolicies> cpu(model, on_cpu);
      std::vector<float> const expected = run(cpu);
      options.vram_bytes = 4 * GiB;
      auto engine = test::make_limited(model, options, AnyPlacement(test::ExpertsInCache{0.4, 1.0 / 32}), 3 * MiB);
      std::vector<float> const got = run(engine);
      HelpCounters const help = engine.stats().help;
      CHECK(help.n_attention_requests > 0);
      CHECK(help.n_steps >= 40);
      CHECK(help.n_timed_out == 0);
      auto const [least, most] = std::minmax_element(expected.begin(), expected.end());
      std::size_t const vocab = std::size_t(model->config().vocab_size);
      std::vector<double> rows;  // of which the median: a row whose router, at a near tie, took another expert does not move it
      for (std::size_t row = 0; row < got.size(); row += vocab) {
        double sum = 0;
        for (std::size_t i = row; i < row + vocab; ++i) sum += std::pow(double(got[i]) - double(expected[i]), 2);
        rows.push_back(std::sqrt(sum / double(vocab)) / (double(*most) - double(*least)));
      }
      std::ranges::nth_element(rows, rows.begin() + std::ptrdiff_t(rows.size() / 2));
      double const rms = rows[rows.size() / 2];
      INFO("root mean square " << rms);
      // Weights in 16 bits: activations are rounded to those, keys and values to their own type, once in a product and layer.
      double const rounding = kv_type == DType::q8_0 ? 1.0 / 254 : 0x1p-11;
      CHECK(rms < test::gain * std::sqrt(7.0 * model->config().n_layers + 1) * rounding);
    }
  }
}
