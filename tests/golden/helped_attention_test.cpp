// Contexts that pass from VRAM into host memory while one row after another decodes, in steps of one launch: the device asks the host for
// its part of attention (HelpAttentionArgs). A device of reference kernels on a thread of its own, against a model that is all on the host.
#include <algorithm>
#include <cstdint>
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
RigOptions options(std::int32_t vram_pages, float read_share, std::int32_t read_tokens, double cache_share = 0) {
  RigOptions o{.device_embeds = true, .capture = true, .maps_host = true, .capture_rows = 1, .helps = true};
  o.page_tokens = page_tokens;
  o.kv_share = vram_pages > 0 ? float(vram_pages) / float(n_pages) : 1e-6f;
  o.read_share = read_share;
  o.read_tokens = read_tokens;
  o.fetched_misses = 0.5f;
  o.experts_in_vram = cache_share == 0;
  o.cache_share = cache_share;
  return o;
}

std::vector<std::int32_t> text(std::size_t n, std::int32_t vocab, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < n; ++i) out.push_back(3 + std::int32_t(random.below(std::uint64_t(vocab - 3))));
  return out;
}

std::vector<float> on_host(std::shared_ptr<Transformer const> const& model, std::vector<std::int32_t> const& tokens,
                           std::vector<std::size_t> const& sizes, DType kv_type) {
  RigOptions o{.vram_bytes = 0};
  o.kv_type = kv_type;
  o.page_tokens = page_tokens;
  return Rig(model, o).all(tokens, sizes);
}

float range_of(std::vector<float> const& logits) {
  auto const [least, most] = std::ranges::minmax(logits);
  return most - least;
}

}  // namespace

TEST_CASE("helped attention: a context that leaves VRAM while it decodes", "[golden][helped]") {
  for (char const* name : {"qwen3moe.f32.gguf", "llama.f32.gguf", "gemma3.f32.gguf"}) {
    auto const model = open_golden(name);
    bool const is_moe = model->config().layers.front().feed_forward == FeedForwardKind::experts;
    std::vector<std::int32_t> const tokens = text(150, model->config().vocab_size, 1);
    for (std::vector<std::size_t> const& sizes : {std::vector<std::size_t>{1}, {40, 1}, {100, 1}}) {
      std::vector<float> const expected = on_host(model, tokens, sizes, DType::f32);
      for (std::int32_t const vram_pages : {0, 1, 3}) {
        for (auto const& [read, ahead] : {std::pair{0.0f, 0}, {0.4f, 0}, {0.4f, 30}, {1.0f, 0}}) {
          for (double const cache_share : {0.0, 0.4}) {
            if (cache_share > 0 && !is_moe) continue;
            INFO(name << ", first " << sizes.front() << ", pages " << vram_pages << ", read " << read << " + " << ahead << ", cache "
                      << cache_share);
            Rig rig(model, options(vram_pages, read, ahead, cache_share));
            CHECK(worst_difference(rig.all(tokens, sizes), expected, range_of(expected)) < tolerance);
            HelpCounters const help = rig.executor.help_counters();
            std::size_t const begin = std::max<std::size_t>(sizes.front() > 1 ? sizes.front() : 0, std::size_t(vram_pages * page_tokens));
            if (cache_share == 0) CHECK(help.n_steps == tokens.size() - begin);
            CHECK(help.n_timed_out == 0);
            if (read < 1) CHECK(help.n_attention_requests > 0);
            if (read == 1) CHECK(help.n_attention_requests == 0);
            if (read == 0 && model->config().layers.front().attention.window == 0 && !is_moe)
              CHECK(help.n_attention_requests >= tokens.size() - begin);
          }
        }
      }
    }
  }
}
