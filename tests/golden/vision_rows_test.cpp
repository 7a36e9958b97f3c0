// Rotary positions of several rows, and vectors instead of tokens: against transformers, against models without them, and wherever a model
// is placed.
#include <algorithm>
#include <cstring>

#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_edit.hpp"
#include "golden/vision_rows.hpp"
#include "temp_dir.hpp"
#include "tiered/engine/session.hpp"

using namespace tiered;
using namespace tiered::test;
using tiered_test::TempDir;

namespace {

EngineOptions options_for(bool f32, Isa isa = best_isa()) {
  EngineOptions options;
  options.max_context = 256;
  options.n_sequences = 2;
  options.n_threads = 2;
  options.isa = isa;
  options.f32_activations = f32;
  options.kv_type = f32 ? DType::f32 : DType::f16;
  return options;
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (Isa const isa : all_isas) {
    if (available(isa)) isas.push_back(isa);
  }
  return isas;
}

/// The same weights as of an architecture that has one rotary position a row.
std::shared_ptr<Transformer const> without_sections(std::string const& name, std::string const& plain) {
  GgufFile const file = GgufFile::open(golden_path(name + ".f32.gguf"));
  std::vector<std::byte> const bytes = tiered_test::rewritten(
      file, [&](std::string_view key) { return key == "general.architecture" || key.starts_with(name + "."); },
      [&](GgufWriter& w) {
        w.set("general.architecture", plain);
        for (GgufValue const& v : file.metadata()) {
          if (!v.key().starts_with(name + ".") || v.key().ends_with("dimension_sections")) continue;
          std::string const key = plain + std::string(v.key().substr(name.size()));
          v.type() == GgufType::f32 ? w.set(key, v.as<float>()) : w.set(key, v.as<std::uint32_t>());
        }
      });
  static std::vector<std::vector<std::byte>> kept;  // models keep what they were parsed from mapped, not alive
  kept.push_back(bytes);
  return make_model(GgufFile::parse(kept.back()));
}

}  // namespace

TEST_CASE("tokens, an image, a video: logits equal transformers' to 1e-4 of their range", "[golden][vision]") {
  for (char const* const name_of : vision_models) {
    VisionFixture const f = open_vision(name_of);
    for (Isa const isa : available_isas()) {
      INFO(name_of << " " << name(isa));
      Engine<CpuPolicies> engine(open_golden(std::string(name_of) + ".f32.gguf"), options_for(true, isa));
      CHECK(worst_of(vision_logits(engine, f, {f.tokens.size()}, f.tokens.size()), f) < 1e-4);
    }
  }
}

TEST_CASE("steps of any sizes, and text that says no positions, give the bits of one step", "[golden][vision]") {
  for (char const* const name_of : vision_models) {
    VisionFixture const f = open_vision(name_of);
    std::size_t const n = f.tokens.size(), text = n - n_text_at_end;
    for (bool const f32 : {false, true}) {
      INFO(name_of << (f32 ? " f32" : ""));
      Engine<CpuPolicies> engine(open_golden(std::string(name_of) + ".f32.gguf"), options_for(f32));
      std::vector<float> const whole = vision_logits(engine, f, {n}, n);
      for (std::size_t const from : {n, text, text + 4}) {
        CHECK(vision_logits(engine, f, {7, 1, 16, 3}, from) == whole);
        CHECK(vision_logits(engine, f, {1}, from) == whole);
      }
      // Positions matter: as text from the first vector on.
      CHECK(vision_logits(engine, f, {n}, 6) != whole);
    }
  }
}

TEST_CASE("text alone gives the bits of the model without sections", "[golden][vision]") {
  for (auto const& [name_of, plain] : {std::pair{"qwen2vl", "qwen2"}, {"qwen3vl", "qwen3"}}) {
    INFO(name_of);
    GoldenFixture const f = read_golden(golden_path(std::string(name_of) + ".golden"));
    auto const model = open_golden(std::string(name_of) + ".f32.gguf");
    REQUIRE(model->config().n_position_rows() == 3);
    for (Isa const isa : available_isas()) {
      Engine<CpuPolicies> with(model, options_for(false, isa)), without(without_sections(name_of, plain), options_for(false, isa));
      REQUIRE(without.model().config().n_position_rows() == 1);
      CHECK(all_logits(with, f.tokens, {f.prompt_size, 1}) == all_logits(without, f.tokens, {f.prompt_size, 1}));
    }
  }
}

TEST_CASE("vectors that are the tokens' embeddings give the tokens' bits", "[golden][vision]") {
  for (char const* const name_of : {"llama", "qwen2vl", "qwen3moe"}) {
    INFO(name_of);
    auto const model = open_golden(std::string(name_of) + ".f32.gguf");
    GoldenFixture const f = read_golden(golden_path(std::string(name_of) + ".golden"));
    std::size_t const dim = std::size_t(model->config().dim), n = f.tokens.size();
    GgufTensor const& table = model->file().require_tensor("token_embd.weight");
    REQUIRE(table.dtype == DType::f32);
    std::vector<float> vectors(n * dim);
    for (std::size_t i = 0; i < n; ++i) {
      std::size_t const bytes = dim * sizeof(float);
      std::memcpy(vectors.data() + i * dim, table.data.data() + std::size_t(f.tokens[i]) * bytes, bytes);
    }
    Engine<CpuPolicies> engine(model, options_for(false));
    std::vector<float> const expected = all_logits(engine, f.tokens, {n});
    for (std::size_t const every : {std::size_t{1}, std::size_t{2}, std::size_t{3}}) {
      for (std::size_t const size : {n, std::size_t{5}, std::size_t{1}}) {
        Sequence const sequence = engine.new_sequence();
        std::vector<float> got;
        for (std::size_t begin = 0; begin < n; begin += size) {
          std::vector<Row> rows = rows_of(sequence.id(), f.tokens, begin, std::min(n, begin + size));
          for (std::size_t i = 0; i < rows.size(); ++i) {
            if ((begin + i) / 4 % every != 0) continue;
            rows[i].embedding = std::int32_t(begin + i);
            rows[i].token = -1;  // nobody looks at it
          }
          append(got, engine.step({rows, vectors}));
        }
        CHECK(got == expected);
      }
    }
  }
}

TEST_CASE("placement changes no bit of rows with vectors and rotary positions", "[golden][vision][sweep]") {
  for (char const* const name_of : vision_models) {
    VisionFixture const f = open_vision(name_of);
    auto const model = open_golden(std::string(name_of) + ".f32.gguf");
    std::size_t const n = f.tokens.size(), text = n - n_text_at_end;
    EngineOptions options = options_for(false);
    Engine<CpuPolicies> cpu(model, options);
    std::vector<float> const expected = vision_logits(cpu, f, {n}, n);
    std::size_t most = 4 * MiB, used = 0;
    for (Shard const& s : model->table().shards) most += 4 * s.bytes;
    for (std::string const policy : {"all_vram", "attention_first", "seconds_per_byte", "stream_all"}) {
      for (int i = 0; i < 8; ++i) {
        options.vram_bytes = most >> i;
        INFO(name_of << " " << policy << " " << options.vram_bytes);
        PolicyValues<SweepPolicies> values{.placement = make_placement(policy)};
        Engine<SweepPolicies> engine(model, options, values);
        CHECK(vision_logits(engine, f, {20, 11, 1}, text) == expected);
        used = std::max(used, engine.stats().vram_peak_bytes);
      }
    }
    CHECK(used > 0);
  }
}

TEST_CASE("a sequence knows where its text goes on, also cut back, saved and restored", "[golden][vision]") {
  VisionFixture const f = open_vision("qwen2vl");
  std::size_t const n = f.tokens.size(), text = n - n_text_at_end, vocab = f.vocab_size;
  Engine<CpuPolicies> engine(open_golden("qwen2vl.f32.gguf"), options_for(false));
  std::vector<float> const whole = vision_logits(engine, f, {n}, n);
  auto const tail = [&](std::size_t from) { return std::vector<float>(whole.begin() + std::ptrdiff_t(from * vocab), whole.end()); };
  Sequence sequence = engine.new_sequence();
  CHECK(sequence.rope_position() == 0);
  engine.step(VisionBatch(f, sequence.id(), 0, n));
  CHECK(sequence.length() == std::int32_t(n));
  CHECK(sequence.rope_position() == f.positions[n - 1] + 1);
  CHECK(sequence.rope_position() < sequence.length());
  for (std::size_t const cut :
       {text + 3, text, text - 3, std::size_t{20}, std::size_t{18}, std::size_t{11}, std::size_t{6}, std::size_t{2}}) {
    INFO("cut back to " << cut);
    sequence.truncate(std::int32_t(cut));
    std::int32_t most = -1;
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t i = 0; i < cut; ++i) most = std::max(most, f.positions[k * n + i]);
    }
    CHECK(sequence.rope_position() == most + 1);
    std::vector<float> got;
    if (cut < text) append(got, engine.step(VisionBatch(f, sequence.id(), cut, text)));
    append(got, engine.step(VisionBatch(f, sequence.id(), std::max(cut, text), n, false)));
    CHECK(got == tail(cut));
  }

  TempDir const folder;
  sequence.truncate(std::int32_t(text));
  std::vector<std::int32_t> tokens(f.tokens.begin(), f.tokens.begin() + std::ptrdiff_t(text));
  std::ranges::replace(tokens, -1, 5);  // what a prompt has there
  save_session(engine, Conversation(std::move(sequence), tokens), folder / "a.session");
  Engine<CpuPolicies> other(open_golden("qwen2vl.f32.gguf"), options_for(false));
  Conversation const restored = load_session(other, folder / "a.session");
  CHECK(restored.sequence().rope_position() == f.positions[text]);
  std::vector<float> got;
  append(got, other.step(VisionBatch(f, restored.sequence().id(), text, n, false)));
  CHECK(got == tail(text));
}

TEST_CASE("rotary positions and vectors that cannot be are refused, and nothing is done", "[golden][vision]") {
  VisionFixture const f = open_vision("qwen2vl");
  Engine<CpuPolicies> engine(open_golden("qwen2vl.f32.gguf"), options_for(false)), plain(open_golden("qwen2.f32.gguf"), options_for(false));
  Sequence const sequence = engine.new_sequence(), other = plain.new_sequence();
  std::vector<Row> rows{{sequence.id(), 0, 5, true}}, other_rows{{other.id(), 0, 5, true}};
  std::vector<std::int32_t> const one{0, 0, 0}, two{0, 0, 0, 0, 0, 0}, below{0, -1, 0}, above{0, 0, 1 << 30};
  auto const refused = [&](auto& e, Batch const& batch) {
    Thrown const t = error_of([&] { e.step(batch); });
    CHECK(t.code.has_value());
    return t;
  };
  CHECK(refused(plain, {other_rows, {}, one}).code == Errc::precondition);
  CHECK(refused(engine, {rows, {}, two}).code == Errc::precondition);
  CHECK(refused(engine, {rows, {}, below}).says("-1"));
  CHECK(refused(engine, {rows, {}, above}).says("1073741824"));
  CHECK(refused(engine, {rows, std::span(f.vectors).first(f.width - 1)}).code == Errc::precondition);
  rows[0].embedding = 2;
  CHECK(refused(engine, {rows, std::span(f.vectors).first(2 * f.width)}).says("2"));
  rows[0].embedding = -2;
  CHECK(refused(engine, {rows, f.vectors}).code == Errc::precondition);
  rows[0].embedding = -1;
  rows[0].token = -1;
  CHECK(refused(engine, {rows, f.vectors}).says("token -1"));
  CHECK(sequence.length() == 0);
  rows[0].embedding = 1;
  CHECK(engine.step({rows, f.vectors, one}).n_rows() == 1);
}

TEST_CASE("vectors that enter several layers come in as many planes", "[golden][vision]") {
  VisionFixture const f = open_vision("qwen3vl");
  REQUIRE(f.n_planes == 2);
  Engine<CpuPolicies> engine(open_golden("qwen3vl.f32.gguf"), options_for(false));
  REQUIRE(engine.model().config().n_deepstack_layers == 1);
  VisionFixture other = f;
  for (float& v : std::span(other.vectors).subspan(f.vectors.size() / 2)) v = 0;
  std::size_t const n = f.tokens.size(), before = 6 * f.vocab_size;
  std::vector<float> const got = vision_logits(engine, f, {n}, n), without = vision_logits(engine, other, {n}, n);
  CHECK(std::equal(got.begin(), got.begin() + std::ptrdiff_t(before), without.begin()));
  CHECK(worst_of(without, f) > 1e-2);
  Sequence const sequence = engine.new_sequence();
  std::vector<Row> rows{{sequence.id(), 0, -1, true, 0}};
  Thrown const t = error_of([&] { engine.step({rows, std::span(f.vectors).first(f.width)}); });
  CHECK(t.code == Errc::precondition);
  CHECK(t.says("2 planes"));
}
