// Rotary positions of several rows, and vectors instead of tokens, in fused ops, captured steps, steps in which the device asks the host,
// and attention in two places: a device of reference kernels against a model that is all on the host.
#include <array>
#include <vector>

#include "catch.hpp"
#include "golden/fused_rig.hpp"
#include "golden/vision_rows.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// A prompt of n_prompt tokens, then one by one, each turned by something else than the one before.
std::vector<float> turned(Rig& rig, std::vector<std::int32_t> const& tokens, std::size_t n_prompt) {
  rig.rope_shift = {};
  std::vector<float> out = rig.all({tokens.begin(), tokens.begin() + std::ptrdiff_t(n_prompt)}, {n_prompt});
  for (std::size_t i = n_prompt; i < tokens.size(); ++i) {
    std::int32_t const n = std::int32_t(i);
    rig.rope_shift = {3 * n % 7, n % 5, 2 * n % 11};
    std::vector<float> const logits = rig.step({{0, tokens[i]}});
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

/// A whole fixture in blocks of as many rows.
std::vector<float> in_blocks(Rig& rig, VisionFixture const& f, std::vector<std::size_t> const& sizes) {
  std::size_t const n = f.tokens.size();
  std::vector<float> out;
  for (std::size_t begin = 0, end = 0, b = 0, n_vectors = 0; begin < n; begin = end, ++b) {
    end = std::min(n, begin + sizes[std::min(b, sizes.size() - 1)]);
    std::vector<BlockRow> rows;
    for (std::size_t i = begin; i < end; ++i) {
      BlockRow row{0, std::int32_t(i), std::max(f.tokens[i], 0), true};
      for (std::size_t k = 0; k < rope_position_rows; ++k) row.rope_positions[k] = f.positions[k * n + i];
      if (f.tokens[i] < 0) row.embedding = f.vectors.data() + n_vectors++ * f.width;
      row.next_plane = std::ptrdiff_t(f.n_vectors * f.width);
      rows.push_back(row);
    }
    rig.kv.reserve(0, std::int32_t(end));
    std::size_t const at = out.size();
    out.resize(at + rows.size() * f.vocab_size);
    rig.executor.activate(rig.image_for(rows.size()));
    rig.executor.run_block(rows, out.data() + at);
  }
  return out;
}

}  // namespace

TEST_CASE("captured: each replay turns rows by the positions of its step", "[golden][fused][vision]") {
  for (std::string const name_of : vision_models) {
    INFO(name_of);
    auto const model = open_golden(name_of + ".f32.gguf");
    GoldenFixture const f = read_golden(golden_path(name_of + ".golden"));
    Rig host(model, {.vram_bytes = 0}), direct(model, {.device_embeds = true}), captured(model, {.device_embeds = true, .capture = true});
    std::vector<float> const expected = turned(host, f.tokens, 20), got = turned(captured, f.tokens, 20);
    CHECK(got == turned(direct, f.tokens, 20));
    CHECK(worst_difference(got, expected, f.logit_range) < tolerance);
    CHECK(captured.device.n_graphs == 1);
    CHECK(captured.device.n_graph_launches == f.tokens.size() - 20);
    CHECK(worst_difference(host.all(f.tokens, {1}), expected, f.logit_range) > 100 * tolerance);
  }
}

TEST_CASE("fused: rotary positions where keys and values are in two places, with help and without", "[golden][fused][vision]") {
  for (std::string const name_of : vision_models) {
    auto const model = open_golden(name_of + ".f32.gguf");
    GoldenFixture const f = read_golden(golden_path(name_of + ".golden"));
    RigOptions o{.vram_bytes = 0};
    o.page_tokens = 16;
    Rig host(model, o);
    std::vector<float> const expected = turned(host, f.tokens, 12);
    for (bool const helps : {false, true}) {
      INFO(name_of << (helps ? ", helped" : ""));
      RigOptions split{.device_embeds = true, .capture = true, .maps_host = true, .capture_rows = 1, .helps = helps};
      split.page_tokens = 16;
      split.kv_share = 1.f / 16;
      split.experts_in_vram = true;
      split.help_patience_ns = 100'000'000'000;
      Rig rig(model, split);
      CHECK(worst_difference(turned(rig, f.tokens, 12), expected, f.logit_range) < tolerance);
      CHECK((rig.executor.help_counters().n_attention_requests > 0) == helps);
      CHECK(rig.device.n_graph_launches >= 4);
    }
  }
}

TEST_CASE("fused: vectors enter blocks of any chunks, and steps that would be captured", "[golden][fused][vision]") {
  for (std::string const name_of : vision_models) {
    auto const model = open_golden(name_of + ".f32.gguf");
    VisionFixture const f = open_vision(name_of);
    for (std::int32_t const chunk : {0, 7}) {
      for (bool const embeds : {false, true}) {
        for (std::vector<std::size_t> const& sizes : {std::vector<std::size_t>{16}, {1}, {11, 3, 1}}) {
          INFO(name_of << ", chunks of " << chunk << (embeds ? ", the device embeds" : "") << ", first " << sizes.front());
          Rig rig(model, {.device_embeds = embeds, .capture = true, .chunk = chunk, .own_kv_copy = embeds});
          CHECK(worst_of(in_blocks(rig, f, sizes), f) < 1e-4);
          if (embeds && sizes.front() == 1) CHECK(rig.device.n_graph_launches == f.tokens.size() - f.n_vectors);
        }
      }
    }
  }
}
