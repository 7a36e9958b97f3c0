// Contexts that pass from VRAM into host memory while one row after another decodes, in steps of one launch: the device asks the host for
// its part of attention (HelpAttentionArgs). A device of reference kernels on a thread of its own, against a model that is all on the host.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "error_of.hpp"
#include "golden/fused_rig.hpp"
#include "golden/uneven_layers.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

constexpr std::int32_t max_context = 256, page_tokens = 16, n_pages = max_context / page_tokens;

/// Of 16 pages of 16 tokens as many in VRAM. All weights there, or all but some experts.
RigOptions options(std::int32_t vram_pages, float read_share, std::int32_t read_tokens, double cache_share = 0,
                   LookAhead look_ahead = LookAhead::never) {
  RigOptions o{.device_embeds = true, .capture = true, .maps_host = true, .capture_rows = 1, .helps = true};
  o.page_tokens = page_tokens;
  o.kv_share = vram_pages > 0 ? float(vram_pages) / float(n_pages) : 1e-6f;
  o.read_share = read_share;
  o.read_tokens = read_tokens;
  o.fetched_misses = 0.5f;
  o.experts_in_vram = cache_share == 0;
  o.cache_share = cache_share;
  o.look_ahead = look_ahead;
  o.help_patience_ns = 100'000'000'000;  // whatever else this machine does
  return o;
}

std::vector<std::int32_t> text(std::size_t n, std::int32_t vocab, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(3 + std::int32_t(random.below(std::uint64_t(vocab - 3))));
  return out;
}

RigOptions host_options(DType kv_type, std::int32_t n_sequences = 1) {
  RigOptions o{.vram_bytes = 0};
  o.kv_type = kv_type;
  o.page_tokens = page_tokens;
  o.n_sequences = n_sequences;
  return o;
}

float range_of(std::vector<float> const& logits) {
  auto const [least, most] = std::ranges::minmax(logits);
  return most - least;
}

/// What the last bit of a key or value may move, where both ways round it for themselves: a step of its type in each layer, which later
/// layers enlarge. Sums in f32 are rounded some times more.
double tolerance_of(DType kv_type, Transformer const& model) {
  double const step = kv_type == DType::f16 ? 1.0 / 2048 : kv_type == DType::q8_0 ? 1.0 / 254 : 0;
  return tolerance + gain * step * model.config().n_layers;
}

/// Rows of two sequences, mostly one by one; a sequence is cut back and goes on with other tokens.
std::vector<float> talk(Rig& rig, std::vector<std::int32_t> const& tokens) {
  std::vector<float> out;
  auto next = tokens.begin();
  auto const step = [&](std::int32_t slot, std::int32_t n) {
    std::vector<std::pair<std::int32_t, std::int32_t>> rows;
    for (; n > 0; --n) rows.push_back({slot, *next++});
    std::vector<float> const logits = rig.step(rows);
    out.insert(out.end(), logits.begin(), logits.end());
  };
  for (std::int32_t const n : {15, 1, 1, 100, 1, 1}) step(0, n);
  for (std::int32_t const n : {1, 1, 145, 1, 1}) step(1, n);
  for (int i = 0; i < 12; ++i) step(i % 2, 1);
  rig.lengths[0] = 68;
  rig.kv.release(0, 68);
  for (std::int32_t const n : {1, 1, 2, 1, 80, 1, 1}) step(0, n);
  for (int i = 0; i < 12; ++i) step(i % 3 == 0, 1);
  return out;
}

}  // namespace

TEST_CASE("helped attention: who has which position", "[golden][helped]") {
  PositionShare share{100, 0, 50};
  CHECK(share.host_begin(0, 99) == 100);  // the host has none
  CHECK(share.host_begin(0, 100) == 100);
  CHECK(share.host_begin(0, 5000) == 100);  // the device reads none
  CHECK(share.host_begin(300, 5000) == 300);
  share.read = 512;
  CHECK(share.host_begin(0, 99) == 100);
  CHECK(share.host_begin(0, 150) == 151);  // few: all are read
  CHECK(share.host_begin(0, 4999) == (100 + (4900 + 50) / 2) / 64 * 64);
  CHECK(share.host_begin(4000, 4999) == (4000 + (1000 + 50) / 2) / 64 * 64);
  share.read = PositionShare::whole;
  for (std::int32_t const position : {100, 163, 164, 5000, 1 << 20}) CHECK(share.host_begin(0, position) == position + 1);
  for (std::int32_t position = 0; position < 3000; ++position) {  // never before the border, nor far behind the share
    share = {100, 300, 0};
    std::int32_t const at = share.host_begin(0, position);
    CHECK((at >= std::min(100, position + 1) && at <= position + 1));
    if (at <= position) CHECK(at - 100 <= (position - 99) * 300 / 1024);
  }
}

TEST_CASE("helped attention: a context that leaves VRAM while it decodes", "[golden][helped]") {
  for (char const* name : {"qwen3moe.f32.gguf", "llama.f32.gguf", "gemma3.f32.gguf"}) {
    auto const model = open_golden(name);
    bool const is_moe = model->config().layers.front().feed_forward == FeedForwardKind::experts;
    std::vector<std::int32_t> const tokens = text(150, model->config().vocab_size, 1);
    for (std::vector<std::size_t> const& sizes : {std::vector<std::size_t>{1}, {125, 1}}) {
      std::vector<float> const expected = Rig(model, host_options(DType::f32)).all(tokens, sizes);
      for (std::int32_t const vram_pages : {0, 2}) {
        for (auto const& [read, ahead] : {std::pair{0.0f, 0}, {0.5f, 0}, {0.5f, 400}, {1.0f, 0}}) {
          for (auto const& [cache_share, look_ahead] :
               {std::pair{0.0, LookAhead::never}, {0.4, LookAhead::never}, {0.4, LookAhead::always}}) {
            if ((cache_share > 0 && !is_moe) || (sizes.front() == 1 && (read == 1 || ahead > 0))) continue;
            INFO(name << ", first " << sizes.front() << ", pages " << vram_pages << ", read " << read << " + " << ahead << ", cache "
                      << cache_share << (look_ahead == LookAhead::always ? ", guesses" : ""));
            Rig rig(model, options(vram_pages, read, ahead, cache_share, look_ahead));
            CHECK(worst_difference(rig.all(tokens, sizes), expected, range_of(expected)) < tolerance);
            HelpCounters const help = rig.executor.help_counters();
            std::size_t const n_beyond =
                tokens.size() - std::max(sizes.front() > 1 ? sizes.front() : 0, std::size_t(vram_pages * page_tokens));
            if (cache_share == 0) CHECK(help.n_steps == n_beyond);
            if (cache_share > 0) CHECK(help.n_steps == tokens.size() - (sizes.front() > 1 ? sizes.front() : 0));
            CHECK(help.n_timed_out == 0);
            bool const reads_all = read == 1 || ahead > 0;
            CHECK((help.n_attention_requests == 0) == reads_all);
            CHECK((help.n_guessed > 0) == (look_ahead == LookAhead::always));
            CHECK((help.n_requests > 0) == (cache_share > 0));
            if (read == 0) CHECK(help.n_attention_requests == n_beyond * std::size_t(model->config().n_layers));
          }
        }
      }
    }
  }
}

TEST_CASE("helped attention: 16-bit and 8-bit keys and values, layers that differ in size, sequences by turns", "[golden][helped]") {
  for (DType const kv_type : {DType::f32, DType::f16, DType::q8_0}) {
    for (char const* name : {"qwen3moe.f32.gguf", "llama.f32.gguf", "uneven", "gemma3.f32.gguf"}) {
      auto const model = name == std::string("uneven") ? open_uneven("llama.f32.gguf") : open_golden(name);
      std::vector<std::int32_t> const tokens = text(400, model->config().vocab_size, 2);
      Rig host(model, host_options(kv_type, 2));
      std::vector<float> const expected = talk(host, tokens);
      bool const is_moe = model->config().layers.front().feed_forward == FeedForwardKind::experts;
      for (std::int32_t const vram_pages : {0, 1, 2}) {
        for (float const read : {0.0f, 0.5f}) {
          INFO(name << ", KV of type " << tiered::name(kv_type) << ", pages " << vram_pages << ", read " << read);
          RigOptions o = options(vram_pages, read, 0, is_moe ? 0.4 : 0.0);
          o.kv_type = kv_type;
          o.n_sequences = 2;
          Rig rig(model, o);
          CHECK(worst_difference(talk(rig, tokens), expected, range_of(expected)) < tolerance_of(kv_type, *model));
          CHECK(rig.executor.help_counters().n_attention_requests > 0);
          CHECK(rig.executor.help_counters().n_steps >= 15);
        }
      }
    }
  }
}

TEST_CASE("helped attention: a share that follows what steps take moves on both sides at once, in the same graph", "[golden][helped]") {
  for (char const* name : {"qwen3moe.f32.gguf", "llama.f32.gguf", "gemma3.f32.gguf"}) {
    auto const model = open_golden(name);
    bool const is_moe = model->config().layers.front().feed_forward == FeedForwardKind::experts;
    std::vector<std::int32_t> const tokens = text(240, model->config().vocab_size, 8);
    std::vector<float> const expected = Rig(model, host_options(DType::f32)).all(tokens, {190, 1});
    for (bool const link_is_slow : {false, true}) {
      INFO(name << (link_is_slow ? ", a slow link" : ", a fast link"));
      Rig rig(model, options(1, 0.5f, 0, is_moe ? 0.4 : 0.0));
      rig.device.after_attention = [&](HelpAttentionArgs const& a) {
        if (!a.asks(a.row->position)) return;
        a.log->asked_ns = 1000;
        a.log->answered_ns = a.log->own_ns = link_is_slow ? 1000 + 1'000'000'000 : 1001;
      };
      std::vector<float> got = rig.all({tokens.begin(), tokens.begin() + 191}, {190, 1});
      std::size_t const n_graphs = rig.device.n_graphs;
      std::vector<float> const rest = rig.all({tokens.begin() + 191, tokens.end()}, {1});
      got.insert(got.end(), rest.begin(), rest.end());
      CHECK(rig.device.n_graphs == n_graphs);
      CHECK(worst_difference(got, expected, range_of(expected)) < tolerance);
      HelpCounters const help = rig.executor.help_counters();
      CHECK(help.n_attention_requests > 0);
      CHECK(help.n_timed_out == 0);
      CHECK((help.attention_read_share < 0.25) == link_is_slow);
      CHECK((help.attention_read_share > 0.75) == !link_is_slow);
    }
  }
}

TEST_CASE("helped attention: loaded and captured ahead, steps are launches alone, and a request that loading left is nobody's",
          "[golden][helped]") {
  for (char const* name : {"qwen3moe.f32.gguf", "llama.f32.gguf"}) {
    auto const model = open_golden(name);
    std::vector<std::int32_t> const tokens = text(60, model->config().vocab_size, 3);
    std::vector<float> const expected = Rig(model, host_options(DType::f32)).all(tokens, {1});
    for (std::int32_t const vram_pages : {0, 1}) {
      INFO(name << ", pages " << vram_pages);
      Rig rig(model, options(vram_pages, 0.3f, 0));
      std::vector<float> logits(std::size_t(model->config().vocab_size));
      rig.kv.reserve(0, 1);
      rig.executor.activate(rig.image_for(1));
      REQUIRE(rig.executor.helps_attention());
      rig.executor.load_helped_attention(logits.data());
      CHECK(rig.device.n_graphs == 1);
      rig.executor.capture(1);
      std::size_t const n_graphs = rig.device.n_graphs, n_before = rig.device.n_graph_launches;
      CHECK(worst_difference(rig.all(tokens, {1}), expected, range_of(expected)) < tolerance);
      CHECK(rig.device.n_graphs == n_graphs);
      CHECK(rig.device.n_graph_launches == n_before + tokens.size());
    }
  }
}

TEST_CASE("helped attention: where the device loses patience a step is done again", "[golden][helped]") {
  for (char const* name : {"qwen3moe.f32.gguf", "llama.f32.gguf"}) {
    auto const model = open_golden(name);
    std::vector<std::int32_t> const tokens = text(60, model->config().vocab_size, 4);
    std::vector<float> const expected = Rig(model, host_options(DType::f32)).all(tokens, {1});
    bool const is_moe = model->config().layers.front().feed_forward == FeedForwardKind::experts;
    for (std::uint64_t const patience_ns : {1, 5'000, 20'000, 100'000}) {  // the longer ones: now and then, anywhere
      INFO(name << ", " << patience_ns << " ns");
      RigOptions o = options(1, 0, 0, is_moe ? 0.4 : 0.0);
      o.help_patience_ns = patience_ns;
      Rig rig(model, o);
      CHECK(worst_difference(rig.all(tokens, {1}), expected, range_of(expected)) < tolerance);
      HelpCounters const help = rig.executor.help_counters();
      if (is_moe) CHECK(help.n_steps + help.n_timed_out >= tokens.size());  // either may be waited for in vain
      if (!is_moe) CHECK(help.n_steps + help.n_timed_out == tokens.size() - page_tokens);
      if (patience_ns == 1) CHECK(help.n_timed_out > 0);
    }
  }
}

TEST_CASE("helped attention: where attention alone was waited for in vain, the cache keeps its experts", "[golden][helped]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  std::vector<std::int32_t> const tokens = text(60, model->config().vocab_size, 7);
  std::vector<float> const expected = Rig(model, host_options(DType::f32)).all(tokens, {1});
  for (LookAhead const look_ahead : {LookAhead::never, LookAhead::always}) {
    for (double const cache_share : {0.4, 1.5}) {
      for (std::uint64_t const patience_ns : {1, 20'000}) {  // the longer one: now and then, anywhere
        INFO("cache " << cache_share << ", " << patience_ns << " ns" << (look_ahead == LookAhead::always ? ", guesses" : ""));
        bool const has_room = cache_share > 1;  // for all: no expert makes way for another
        Rig rig(model, options(1, 0, 0, cache_share, look_ahead));
        rig.device.attention_patience_ns = patience_ns;
        std::vector<float> got;
        for (std::int32_t const token : tokens) {
          std::size_t const n_before = rig.cache.size();
          std::vector<float> const logits = rig.step({{0, token}});
          got.insert(got.end(), logits.begin(), logits.end());
          if (has_room) CHECK(rig.cache.size() >= n_before);
        }
        CHECK(worst_difference(got, expected, range_of(expected)) < tolerance);
        HelpCounters const help = rig.executor.help_counters();
        if (patience_ns == 1) CHECK(help.n_timed_out > 0);
        CHECK(help.n_steps + help.n_timed_out == tokens.size());
      }
    }
  }
}

TEST_CASE("helped attention: an error of the host, or a cancelled step, lets the device go, and the next step is right",
          "[golden][helped]") {
  auto const model = open_golden("llama.f32.gguf");
  std::vector<std::int32_t> const tokens = text(60, model->config().vocab_size, 5);
  std::vector<float> const expected = Rig(model, host_options(DType::f32)).all(tokens, {1});
  std::atomic<bool> cancelled = false;
  RigOptions o = options(1, 0, 0);
  o.cancelled = &cancelled;
  Rig rig(model, o);
  rig.all({tokens.begin(), tokens.begin() + 40}, {1});
  rig.host.launches.clear();
  rig.host.fail_at = 0;  // its part for the next request
  CHECK(error_of([&] { rig.step({{0, tokens[40]}}); }).code == Errc::device);
  rig.host.fail_at = ~std::size_t{0};
  rig.executor.recover();
  cancelled = true;
  --rig.lengths[0];
  CHECK(error_of([&] { rig.step({{0, tokens[40]}}); }).code == Errc::cancelled);
  cancelled = false;
  rig.executor.recover();
  --rig.lengths[0];
  std::vector<float> got;
  for (std::size_t i = 40; i < tokens.size(); ++i) {
    std::vector<float> const logits = rig.step({{0, tokens[i]}});
    got.insert(got.end(), logits.begin(), logits.end());
  }
  CHECK(worst_difference(got, {expected.end() - std::ptrdiff_t(got.size()), expected.end()}, range_of(expected)) < tolerance);
}

TEST_CASE("helped attention: a trace says what the host attended to, and what the device read", "[golden][helped]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  std::vector<std::int32_t> const tokens = text(200, model->config().vocab_size, 6);
  TraceLog trace;
  RigOptions o = options(1, 0.5f, 0, 0.4);
  o.trace = &trace;
  Rig rig(model, o);
  rig.all({tokens.begin(), tokens.end() - 1}, {190, 1});
  trace.clear();
  rig.step({{0, tokens.back()}});
  std::size_t const n_layers = std::size_t(model->config().n_layers);
  auto const of_attention = [&](ActionKind kind, DeviceId device) {
    return std::size_t(std::ranges::count_if(trace, [&](TraceEntry const& e) {
      return e.action.kind == kind && e.action.device == device && model->table().shard(e.action.shard).kind == ShardKind::attention;
    }));
  };
  CHECK(of_attention(ActionKind::run, first_gpu) == n_layers);
  CHECK(of_attention(ActionKind::run, host_device) == n_layers);
  CHECK(of_attention(ActionKind::copy, first_gpu) == n_layers);
  std::size_t bytes = 0;
  for (TraceEntry const& e : trace) bytes += e.action.kind == ActionKind::copy ? e.action.bytes : 0;
  std::int32_t const n_read = PositionShare{page_tokens, 512, 0}.host_begin(0, 199) - page_tokens;
  CHECK(n_read > 0);
  CHECK(bytes >= std::size_t(n_read) * 2 * rig.kv.page_bytes(0) / page_tokens * n_layers);
}
