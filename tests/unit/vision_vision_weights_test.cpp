// What a vision encoder takes from its projector file, and what it refuses by name.
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_edit.hpp"
#include "tiered/vision/vision_weights.hpp"
#include "vlm_fixture.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

using Edit = std::function<void(GgufWriter&)>;

GgufFile open(std::string const& model, char const* variant = "f32") {
  return GgufFile::open(vlm_path(concat(model, ".mmproj.", variant, ".gguf")));
}

std::vector<std::byte> edited(
    std::string const& model, std::set<std::string> const& dropped, Edit const& edit = [](GgufWriter&) {}) {
  return rewritten(
      open(model), [&](std::string_view n) { return dropped.count(std::string(n)) > 0; }, edit);
}

Thrown refusal(
    std::string const& model, std::set<std::string> const& dropped, Edit const& edit = [](GgufWriter&) {}) {
  std::vector<std::byte> const bytes = edited(model, dropped, edit);
  return error_of([&] {
    GgufFile const file = GgufFile::parse(bytes);
    read_vision_weights(file, read_vision_config(file));
  });
}
VisionConfig config_of(std::vector<std::byte> const& bytes) { return read_vision_config(GgufFile::parse(bytes)); }

/// Replaces a key by a number.
Thrown with_number(std::string const& model, std::string const& key, std::uint32_t value) {
  return refusal(model, {key}, [&](GgufWriter& w) { w.set(key, value); });
}

void add_again(GgufWriter& w, GgufFile const& file, char const* from, char const* to) {
  GgufTensor const& t = file.require_tensor(from);
  w.add_tensor(to, t.dtype, t.shape, t.data);
}

}  // namespace

TEST_CASE("copies without changes open") {
  for (std::string const& model : vlm_models()) CHECK_FALSE(refusal(model, {}).code);
}

TEST_CASE("the numbers of each projector") {
  VisionConfig const two = read_vision_config(open("qwen2vl"));
  CHECK(two.projector == "qwen2vl_merger");
  CHECK(two.name == "tiered vision qwen2vl f32");
  CHECK((two.patch_size == 4 && two.merge_size == 2 && two.temporal_size == 2 && two.n_channels == 3));
  CHECK((two.dim == 32 && two.n_layers == 2 && two.n_heads == 2 && two.head_dim == 16 && two.output_dim == 32));
  CHECK(two.hidden_dim == 64);  // where the file says 32
  CHECK((two.norm == VisionNorm::layer && two.norm_eps == 1e-6f && two.activation == VisionActivation::quick_gelu && !two.gated));
  CHECK((two.window_size == 0 && two.window_tokens() == 0 && two.position_side == 0 && two.n_deepstack() == 0));
  CHECK((two.min_pixels == 3136 && two.max_pixels == 12845056));
  CHECK((two.image_mean[0] == 0.48145466f && two.image_std[2] == 0.27577711f));
  CHECK((two.frame_elems() == 48 && two.patch_elems() == 96 && two.merged_dim() == 128));

  VisionConfig const mid = read_vision_config(open("qwen25vl"));
  CHECK((mid.norm == VisionNorm::rms && mid.activation == VisionActivation::silu && mid.gated && mid.hidden_dim == 44));
  CHECK((mid.window_size == 112 && mid.window_tokens() == 4));
  REQUIRE(mid.layers.size() == 3);
  CHECK((!mid.layers[0].full_attention && mid.layers[1].full_attention && !mid.layers[2].full_attention));

  VisionConfig const three = read_vision_config(open("qwen3vl"));
  CHECK((three.norm == VisionNorm::layer && three.activation == VisionActivation::gelu_tanh && three.position_side == 5));
  CHECK((three.n_deepstack() == 2 && three.layers[0].deepstack && !three.layers[1].deepstack && three.layers[2].deepstack));
  CHECK((three.image_mean[1] == 0.5f && three.image_std[1] == 0.5f && three.min_pixels == 65536 && three.max_pixels == 16777216));
}

TEST_CASE("keys that files may have and tiny ones do not") {
  std::vector<std::byte> const pixels = edited("qwen3vl", {}, [](GgufWriter& w) {
    w.set("clip.vision.image_min_pixels", std::uint32_t{1000});
    w.set("clip.vision.image_max_pixels", std::uint32_t{2000});
  });
  CHECK((config_of(pixels).min_pixels == 1000 && config_of(pixels).max_pixels == 2000));
  CHECK(config_of(edited("qwen25vl", {}, [](GgufWriter& w) { w.set("clip.vision.window_size", std::uint32_t{224}); })).window_tokens() ==
        8);
  VisionConfig const full = config_of(
      edited("qwen25vl", {"clip.vision.n_wa_pattern"}, [](GgufWriter& w) { w.set("clip.vision.n_wa_pattern", std::uint32_t{0}); }));
  CHECK((full.window_size == 0 && full.layers[0].full_attention));
  std::vector<std::byte> const several =
      edited("qwen3vl", {"clip.projector_type"}, [](GgufWriter& w) { w.set("clip.vision.projector_type", "qwen3vl_merger"); });
  CHECK(config_of(several).projector == "qwen3vl_merger");
}

TEST_CASE("older Qwen2-VL files: no width of the feed-forward, its matrices under each other's names") {
  GgufFile const file = open("qwen2vl");
  std::set<std::string> dropped{"clip.vision.feed_forward_length"};
  for (int l = 0; l < 2; ++l) {
    for (char const* part : {"up.weight", "up.bias", "down.weight", "down.bias"}) dropped.insert(concat("v.blk.", l, ".ffn_", part));
  }
  std::vector<std::byte> const bytes = edited("qwen2vl", dropped, [&](GgufWriter& w) {
    w.set("clip.vision.feed_forward_length", std::uint32_t{0});
    for (int l = 0; l < 2; ++l) {
      for (char const* part : {"weight", "bias"}) {
        add_again(w, file, concat("v.blk.", l, ".ffn_up.", part).c_str(), concat("v.blk.", l, ".ffn_down.", part).c_str());
        add_again(w, file, concat("v.blk.", l, ".ffn_down.", part).c_str(), concat("v.blk.", l, ".ffn_up.", part).c_str());
      }
    }
  });
  GgufFile const old = GgufFile::parse(bytes);
  VisionConfig const config = read_vision_config(old);
  CHECK(config.hidden_dim == 64);
  VisionWeights const weights = read_vision_weights(old, config);
  CHECK(weights[weights.layers[1].up].data == old.require_tensor("v.blk.1.ffn_down.weight").data.data());
  CHECK(weights[weights.layers[1].up].rows == 64);
  CHECK(weights[weights.layers[1].down].cols == 64);
}

TEST_CASE("projectors that nothing here runs are named") {
  auto const type = [](char const* name) { return [=](GgufWriter& w) { w.set("clip.projector_type", name); }; };
  Thrown const gemma = refusal("qwen2vl", {"clip.projector_type"}, type("gemma3"));
  CHECK(gemma.code == Errc::unsupported);
  CHECK(gemma.says("gemma3", "qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger"));
  Thrown const decoder = error_of([] { read_vision_config(GgufFile::open(vlm_path("qwen2vl.f32.gguf"))); });
  CHECK(decoder.code == Errc::unsupported);
  CHECK(decoder.says("qwen2vl", "clip"));
  Thrown const audio = refusal("qwen2vl", {"clip.has_vision_encoder"}, [](GgufWriter& w) { w.set("clip.has_vision_encoder", false); });
  CHECK(audio.code == Errc::unsupported);
  Thrown const windows = refusal("qwen2vl", {}, [](GgufWriter& w) { w.set("clip.vision.n_wa_pattern", std::uint32_t{8}); });
  CHECK(windows.code == Errc::unsupported);
  CHECK(refusal("qwen2vl", {}, [](GgufWriter& w) { w.set("clip.use_rms_norm", true); }).says("use_rms_norm", "Qwen2.5-VL"));
}

TEST_CASE("missing keys and tensors of a projector are named") {
  for (char const* key :
       {"clip.projector_type", "clip.vision.patch_size", "clip.vision.embedding_length", "clip.vision.feed_forward_length",
        "clip.vision.block_count", "clip.vision.attention.head_count", "clip.vision.attention.layer_norm_epsilon",
        "clip.vision.projection_dim", "clip.vision.image_mean", "clip.vision.image_std", "clip.vision.n_wa_pattern"}) {
    Thrown const t = refusal("qwen25vl", {key});
    CHECK(t.code == Errc::not_found);
    CHECK(t.says(key));
  }
  // Every tensor that is there is needed.
  for (std::string const& model : vlm_models()) {
    GgufFile const file = open(model);
    for (GgufTensor const& tensor : file.tensors()) {
      INFO(model << ' ' << tensor.name);
      Thrown const t = refusal(model, {std::string(tensor.name)});
      bool const whole_merger = tensor.name == "v.deepstack.0.fc1.weight" || tensor.name == "v.deepstack.2.fc1.weight";
      CHECK(t.code == (whole_merger ? Errc::bad_file : Errc::not_found));
      CHECK(t.says(tensor.name));
    }
  }
}

TEST_CASE("numbers of a projector that cannot be are refused") {
  struct Case {
    char const* model;
    char const* key;
    std::uint32_t value;
  };
  for (Case const& c : {Case{"qwen2vl", "clip.vision.patch_size", 0}, Case{"qwen2vl", "clip.vision.patch_size", 100000},
                        Case{"qwen2vl", "clip.vision.block_count", 0}, Case{"qwen2vl", "clip.vision.block_count", 1u << 30},
                        Case{"qwen2vl", "clip.vision.attention.head_count", 0}, Case{"qwen2vl", "clip.vision.attention.head_count", 3},
                        Case{"qwen2vl", "clip.vision.attention.head_count", 16}, Case{"qwen2vl", "clip.vision.embedding_length", 0},
                        Case{"qwen2vl", "clip.vision.embedding_length", 64}, Case{"qwen2vl", "clip.vision.projection_dim", 0},
                        Case{"qwen2vl", "clip.vision.projection_dim", 33}, Case{"qwen25vl", "clip.vision.feed_forward_length", 45},
                        Case{"qwen25vl", "clip.vision.window_size", 27}, Case{"qwen25vl", "clip.vision.window_size", 0},
                        Case{"qwen3vl", "clip.vision.spatial_merge_size", 0}, Case{"qwen3vl", "clip.vision.spatial_merge_size", 3},
                        Case{"qwen3vl", "clip.vision.image_min_pixels", 0}, Case{"qwen3vl", "clip.vision.image_max_pixels", 1}}) {
    INFO(c.model << ' ' << c.key << " = " << c.value);
    CHECK(with_number(c.model, c.key, c.value).code == Errc::bad_file);
  }
  for (float eps : {-1.0f, 0.0f, float(INFINITY), float(NAN)}) {
    char const* const key = "clip.vision.attention.layer_norm_epsilon";
    CHECK(refusal("qwen2vl", {key}, [&](GgufWriter& w) { w.set(key, eps); }).code == Errc::bad_file);
  }
  for (std::vector<float> const& std : {std::vector<float>{1, 1}, {1, 1, 0}, {1, 1, 1, 1}, {1, NAN, 1}}) {
    char const* const key = "clip.vision.image_std";
    CHECK(refusal("qwen2vl", {key}, [&](GgufWriter& w) { w.set(key, std); }).code == Errc::bad_file);
  }
  CHECK(refusal("qwen25vl", {}, [](GgufWriter& w) { w.set("clip.use_gelu", true); }).says("use_gelu", "use_silu"));
  char const* const key = "clip.vision.is_deepstack_layers";
  CHECK(refusal("qwen3vl", {key}, [&](GgufWriter& w) { w.set(key, std::vector<bool>{true, false}); }).code == Errc::bad_file);
  CHECK(refusal("qwen3vl", {key}, [&](GgufWriter& w) { w.set(key, std::vector<bool>{true, true, true}); }).code == Errc::bad_file);
  CHECK_FALSE(refusal("qwen3vl", {key}).code);
}

TEST_CASE("a projector's tensor of another shape or type, or that nothing would read, is named") {
  std::vector<float> const values(4096, 0.5f);
  struct Case {
    char const* model;
    char const* tensor;
    Shape shape;
  };
  for (Case const& c : {Case{"qwen2vl", "v.patch_embd.weight.1", Shape(32, 48)}, Case{"qwen2vl", "v.blk.1.ln1.bias", Shape(33)},
                        Case{"qwen2vl", "v.blk.0.attn_q.weight", Shape(32, 33)}, Case{"qwen2vl", "v.blk.0.ffn_up.weight", Shape(64, 33)},
                        Case{"qwen2vl", "v.blk.1.ffn_up.weight", Shape(63, 32)}, Case{"qwen2vl", "mm.2.bias", Shape(31)},
                        Case{"qwen3vl", "v.position_embd.weight", Shape(24, 32)}, Case{"qwen3vl", "v.position_embd.weight", Shape(36, 31)},
                        Case{"qwen3vl", "v.blk.2.attn_qkv.bias", Shape(32)}, Case{"qwen3vl", "v.deepstack.2.norm.weight", Shape(32)}}) {
    INFO(c.model << ' ' << c.tensor);
    std::uint64_t n = 0;
    REQUIRE(checked_elements(c.shape, n));
    Thrown const t = refusal(c.model, {c.tensor}, [&](GgufWriter& w) {
      w.add_tensor(c.tensor, DType::f32, c.shape, std::as_bytes(std::span(values).first(std::size_t(n))));
    });
    CHECK(t.code == Errc::bad_file);
    CHECK(t.says(c.tensor));
  }
  std::vector<std::byte> const blocks(32 * block_bytes(DType::q8_0)), halves(32 * 48 * 2);
  Thrown const patch = refusal("qwen2vl", {"v.patch_embd.weight"},
                               [&](GgufWriter& w) { w.add_tensor("v.patch_embd.weight", DType::i16, Shape(32, 3, 4, 4), halves); });
  CHECK(patch.code == Errc::unsupported);
  CHECK(patch.says("i16", "v.patch_embd.weight"));
  CHECK_FALSE(refusal("qwen2vl", {"v.blk.0.attn_q.weight"}, [&](GgufWriter& w) {
                w.add_tensor("v.blk.0.attn_q.weight", DType::q8_0, Shape(32, 32), blocks);
              }).code);
  for (char const* name :
       {"v.blk.0.ffn_gate.weight", "v.pre_ln.weight", "v.patch_embd.bias", "a.conv1d.0.weight", "v.deepstack.0.fc1.weight"}) {
    Thrown const t =
        refusal("qwen2vl", {}, [&](GgufWriter& w) { w.add_tensor(name, DType::f32, Shape(3), std::as_bytes(std::span(values).first(3))); });
    CHECK(t.code == Errc::unsupported);
    CHECK(t.says(name));
  }
}

TEST_CASE("a projector's shards hold every weight once, in order of use, aligned") {
  for (std::string const& model : vlm_models()) {
    for (char const* variant : {"f32", "f16"}) {
      INFO(model << ' ' << variant);
      GgufFile const file = open(model, variant);
      VisionConfig const config = read_vision_config(file);
      VisionWeights const w = read_vision_weights(file, config);
      ShardTable const t = w.table();
      CHECK(t.shards.size() == std::size_t(2 * config.n_layers + 2 + config.n_deepstack()));
      CHECK(t.steps.size() == t.shards.size());
      std::set<std::byte const*> seen;
      std::int32_t next = 0, layer = -1;
      std::size_t bytes = 0;
      for (std::size_t s = 0; s < t.shards.size(); ++s) {
        Shard const& shard = t.shards[s];
        CHECK((std::size_t(shard.id) == s && t.steps[s].shard == shard.id && t.steps[s].layer == shard.layer));
        CHECK((shard.layer >= layer && shard.layer <= config.n_layers));
        layer = shard.layer;
        CHECK(shard.weights.begin == next);
        next = shard.weights.end;
        std::size_t at = 0;
        for (std::int32_t i = shard.weights.begin; i < shard.weights.end; ++i) {
          Weight const& weight = t.weights[std::size_t(i)];
          CHECK((weight.shard == shard.id && weight.offset >= at && weight.offset % weight_alignment == 0));
          at = weight.offset + weight.bytes();
          CHECK(seen.insert(weight.data).second);
          bytes += weight.bytes();
        }
        CHECK(at <= shard.bytes);
      }
      CHECK(std::size_t(next) == t.weights.size());
      std::size_t in_file = 0;
      for (GgufTensor const& tensor : file.tensors()) in_file += tensor.bytes;
      std::size_t angles = 0;  // of the rotary embedding: of every layer's attention, and in no file
      for (VisionLayerWeights const& l : w.layers) angles += w[l.rope].bytes();
      CHECK(angles > 0);
      CHECK(bytes == in_file + angles);
      CHECK(w.table().shard(w.layers[0].attention).kind == ShardKind::attention);
      CHECK(w.table().shard(w.merger.shard).layer == config.n_layers);
    }
  }
}
