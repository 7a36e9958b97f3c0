// What a model takes from its file, and what it refuses by name.
#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_edit.hpp"
#include "golden_data.hpp"
#include "tiered/model/registry.hpp"
#include "tiered/model/transformer.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

GgufFile open(char const* name) { return GgufFile::open(golden_path(name)); }

/// Opens `name` with a key or tensor left out and others put in.
Thrown refusal(
    char const* name, std::string const& dropped, std::function<void(GgufWriter&)> const& edit = [](GgufWriter&) {}) {
  GgufFile const file = open(name);
  std::vector<std::byte> const bytes = rewritten(
      file, [&](std::string_view n) { return n == dropped; }, edit);
  return error_of([&] { Transformer{GgufFile::parse(bytes)}; });
}

}  // namespace

TEST_CASE("a copy without changes opens") { CHECK_FALSE(refusal("qwen3.f32.gguf", "").code); }

TEST_CASE("architectures and scalings that nothing here runs are named") {
  CHECK(refusal("llama.f32.gguf", "general.architecture", [](GgufWriter& w) {
          w.set("general.architecture", "mamba");
        }).says(" \"mamba\" is", "llama", "gemma3"));
  CHECK(refusal("llama.f32.gguf", "general.architecture", [](GgufWriter& w) { w.set("general.architecture", "mamba"); }).code ==
        Errc::unsupported);
  Thrown const yarn = refusal("qwen2.f32.gguf", "", [](GgufWriter& w) {
    w.set("qwen2.rope.scaling.type", "yarn");
    w.set("qwen2.rope.scaling.factor", 4.0f);
  });
  CHECK(yarn.code == Errc::unsupported);
  CHECK(yarn.says("yarn"));
  CHECK(refusal("llama.f32.gguf", "", [](GgufWriter& w) { w.set("llama.expert_count", std::uint32_t{8}); }).says("experts"));
  CHECK(refusal("gemma3.f32.gguf", "", [](GgufWriter& w) { w.set("gemma3.final_logit_softcapping", 30.0f); }).code == Errc::unsupported);
}

TEST_CASE("missing keys and tensors are named") {
  for (char const* key : {"llama.block_count", "llama.embedding_length", "llama.attention.head_count", "llama.context_length",
                          "llama.attention.layer_norm_rms_epsilon"}) {
    Thrown const t = refusal("llama.f32.gguf", key);
    CHECK(t.code == Errc::not_found);
    CHECK(t.says(key));
  }
  for (char const* tensor : {"token_embd.weight", "output_norm.weight", "blk.1.attn_q.weight", "blk.0.ffn_down.weight"}) {
    Thrown const t = refusal("llama.f32.gguf", tensor);
    CHECK(t.code == Errc::not_found);
    CHECK(t.says(tensor));
  }
  CHECK(refusal("qwen3.f32.gguf", "blk.0.attn_k_norm.weight").code == Errc::not_found);
  CHECK(refusal("gemma3.f32.gguf", "blk.0.post_ffw_norm.weight").code == Errc::not_found);
  CHECK(refusal("qwen3moe.f32.gguf", "blk.0.ffn_up_exps.weight").code == Errc::not_found);
}

TEST_CASE("numbers that cannot be are refused with their value") {
  struct Case {
    char const* key;
    std::uint32_t value;
  };
  for (Case const& c : {Case{"llama.block_count", 0}, Case{"llama.block_count", 1000000}, Case{"llama.attention.head_count", 0},
                        Case{"llama.embedding_length", 0}, Case{"llama.context_length", 0}, Case{"llama.attention.head_count_kv", 3},
                        Case{"llama.rope.dimension_count", 7}}) {
    INFO(c.key << " = " << c.value);
    Thrown const t = refusal("llama.f32.gguf", c.key, [&](GgufWriter& w) { w.set(c.key, c.value); });
    CHECK(t.code == Errc::bad_file);
  }
  Thrown const eps = refusal("llama.f32.gguf", "llama.attention.layer_norm_rms_epsilon",
                             [](GgufWriter& w) { w.set("llama.attention.layer_norm_rms_epsilon", -1.0f); });
  CHECK(eps.code == Errc::bad_file);
  CHECK(eps.says("-1"));
  CHECK(refusal("qwen3moe.f32.gguf", "qwen3moe.expert_used_count", [](GgufWriter& w) {
          w.set("qwen3moe.expert_used_count", std::uint32_t{99});
        }).code == Errc::bad_file);
}

TEST_CASE("sections of rotary positions: one behind the other, or interleaved") {
  auto const row_of = [](std::vector<std::int32_t> const& sections, std::int32_t n_pairs, bool interleaved) {
    GgufWriter w;
    w.set("a.rope.dimension_sections", sections);
    std::vector<std::byte> const bytes = w.to_bytes();
    GgufFile const file = GgufFile::parse(bytes);
    return arch::read_position_row(arch::Keys(file, "a"), n_pairs, interleaved);
  };
  using Row = std::vector<std::uint8_t>;
  CHECK(row_of({2, 3, 3, 0}, 8, false) == Row{0, 0, 1, 1, 1, 2, 2, 2});
  CHECK(row_of({4, 2, 2, 0}, 8, true) == Row{0, 1, 2, 0, 1, 2, 0, 0});
  CHECK(row_of({3, 3, 2}, 8, true) == Row{0, 1, 2, 0, 1, 2, 0, 1});
  CHECK(row_of({8, 0, 0}, 8, true) == Row(8, 0));
  Row const qwen2vl = row_of({16, 24, 24, 0}, 64, false), qwen3vl = row_of({24, 20, 20, 0}, 64, true);
  CHECK(std::ranges::count(qwen2vl, 1) == 24);
  CHECK((qwen2vl[15] == 0 && qwen2vl[16] == 1 && qwen2vl[39] == 1 && qwen2vl[40] == 2));
  CHECK(std::ranges::count(qwen3vl, 0) == 24);
  CHECK((qwen3vl[58] == 1 && qwen3vl[59] == 2 && qwen3vl[60] == 0 && qwen3vl[61] == 0 && qwen3vl[62] == 0));

  auto const refused = [&](std::vector<std::int32_t> const& sections) { return error_of([&] { row_of(sections, 8, false); }); };
  CHECK(refused({2, 3, 2, 0}).code == Errc::bad_file);
  CHECK(refused({4, 4}).code == Errc::bad_file);
  CHECK(refused({-1, 5, 4}).says("-1"));
  CHECK(refused({9, -1, 0}).code == Errc::bad_file);
  CHECK(refused({2, 2, 2, 2}).code == Errc::unsupported);
  CHECK(refusal("qwen2vl.f32.gguf", "qwen2vl.rope.dimension_sections").says("qwen2vl.rope.dimension_sections"));
}

TEST_CASE("a tensor of another shape, or that nothing would read, is named") {
  std::vector<float> const values(64 * 96, 0.5f), three{1, 1, 1};
  Thrown const shape = refusal("llama.f32.gguf", "output_norm.weight",
                               [&](GgufWriter& w) { w.add_tensor("output_norm.weight", DType::f32, Shape(3), three); });
  CHECK(shape.code == Errc::bad_file);
  CHECK(shape.says("output_norm.weight", "[3]"));
  Thrown const extra =
      refusal("llama.f32.gguf", "", [&](GgufWriter& w) { w.add_tensor("blk.0.attn_mystery.weight", DType::f32, Shape(64, 96), values); });
  CHECK(extra.code == Errc::unsupported);
  CHECK(extra.says("blk.0.attn_mystery.weight"));
}

TEST_CASE("a type that nothing decodes is named with its tensor") {
  GgufFile const file = open("llama_k.mixed.gguf");
  GgufTensor const& q = file.require_tensor("blk.0.attn_q.weight");
  REQUIRE(q.shape.cols() == 256);
  std::vector<std::byte> const bytes(std::size_t(q.shape.rows()) * block_bytes(DType::iq3_xxs));
  Thrown const t = refusal("llama_k.mixed.gguf", "blk.0.attn_q.weight",
                           [&](GgufWriter& w) { w.add_tensor("blk.0.attn_q.weight", DType::iq3_xxs, q.shape, bytes); });
  CHECK(t.code == Errc::unsupported);
  CHECK(t.says("iq3_xxs", "blk.0.attn_q.weight"));
}

TEST_CASE("shards hold every tensor once, in order of use, aligned, without overlap") {
  for (GoldenCase const& c : golden_cases()) {
    INFO(c.gguf);
    Transformer const model(open(c.gguf));
    ShardTable const t = model.table();
    std::set<std::byte const*> seen;
    std::size_t in_file = 0;
    for (std::size_t s = 0; s < t.shards.size(); ++s) {
      Shard const& shard = t.shards[s];
      CHECK(std::size_t(shard.id) == s);
      std::size_t end = 0;
      std::int32_t rows = 0;
      for (std::int32_t i = shard.weights.begin; i < shard.weights.end; ++i) {
        Weight const& w = t.weights[std::size_t(i)];
        CHECK(w.offset % weight_alignment == 0);
        CHECK(w.offset >= end);
        CHECK(w.first_row == rows);
        CHECK(t.row_offset(shard, w.first_row) == w.offset);
        end = w.offset + w.bytes();
        rows += w.rows;
        if (seen.insert(w.data).second) in_file += w.bytes();
      }
      CHECK(end <= shard.bytes);
      CHECK(rows == shard.n_rows);
      CHECK(t.row_offset(shard, rows) == shard.bytes);
    }
    std::size_t expected = 0;
    for (GgufTensor const& tensor : model.file().tensors()) expected += tensor.name == "rope_freqs.weight" ? 0 : tensor.data.size();
    std::size_t ropes = 0;
    for (LayerConfig const& l : model.config().layers) {
      RopeTable const& table = model.config().rope_tables[std::size_t(l.attention.rope_table)];
      ropes += table.inv_freq.size() * sizeof(float) + (table.position_row.size() + 3) / 4 * 4;
    }
    CHECK(in_file == expected + ropes);
  }
}

TEST_CASE("the rows of positions stand behind the angles that they choose for") {
  for (char const* name : {"qwen2vl.f32.gguf", "qwen3vl.f32.gguf"}) {
    Transformer const model(open(name));
    RopeTable const& table = model.config().rope_tables.front();
    std::size_t const n_pairs = table.inv_freq.size();
    CHECK(model.config().n_position_rows() == rope_position_rows);
    CHECK(table.position_row.size() == n_pairs);
    std::size_t n_found = 0;
    for (Weight const& w : model.table().weights) {
      if (w.rows != 1 || std::size_t(w.cols) != n_pairs + (n_pairs + 3) / 4) continue;
      ++n_found;
      CHECK(std::equal(table.inv_freq.begin(), table.inv_freq.end(), reinterpret_cast<float const*>(w.data)));
      CHECK(std::equal(table.position_row.begin(), table.position_row.end(),
                       reinterpret_cast<std::uint8_t const*>(w.data) + n_pairs * sizeof(float)));
    }
    CHECK(n_found == std::size_t(model.config().n_layers));
  }
  CHECK(Transformer(open("qwen2.f32.gguf")).config().n_position_rows() == 1);
}

TEST_CASE("Gemma 3: five local layers before each global one, with a rope base of their own") {
  Transformer const model(open("gemma3.f32.gguf"));
  for (std::int32_t l = 0; l < model.config().n_layers; ++l) {
    AttentionConfig const& a = model.config().layers[std::size_t(l)].attention;
    bool const global = (l + 1) % 6 == 0;
    CHECK((a.window == 0) == global);
    CHECK(a.rope_table == (global ? 0 : 1));
  }
  CHECK(model.config().rope_tables[1].inv_freq[1] ==
        Approx(std::pow(10000.0, -2.0 / double(2 * model.config().rope_tables[1].inv_freq.size()))));
}
