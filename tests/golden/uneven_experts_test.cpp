// Experts whose bytes differ from layer to layer, in caches of the least size that a plan may give.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gguf_edit.hpp"
#include "golden/fused_rig.hpp"
#include "temp_dir.hpp"
#include "tiered/plan/experts.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

bool is_of_experts(std::string_view name) { return name.find("_exps.") != std::string_view::npos; }

/// Every second layer from the l-th on has the experts of one file, the others those of the second: half as large.
std::shared_ptr<Transformer const> open_uneven_experts(char const* large, char const* small, std::int32_t l) {
  GgufFile const file = GgufFile::open(golden_path(large)), other = GgufFile::open(golden_path(small));
  auto const is_replaced = [&](std::string_view name) {
    return is_of_experts(name) && std::stoi(std::string(name.substr(4))) % 2 != l;  // blk.N.
  };
  std::vector<std::byte> const bytes = rewritten(file, is_replaced, [&](GgufWriter& writer) {
    for (GgufTensor const& t : other.tensors()) {
      if (is_replaced(t.name)) writer.add_tensor(t.name, t.dtype, t.shape, t.data);
    }
  });
  TempDir const folder;  // what is mapped outlives it
  return make_model(GgufFile::open(folder.write("uneven.gguf", std::span(bytes))));
}

}  // namespace

TEST_CASE("a deterministic plan's least cache has room for what a token uses, however the sizes of experts differ", "[golden][fused]") {
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 6; ++i) tokens.insert(tokens.end(), f.tokens.begin(), f.tokens.end());
  tokens.resize(std::min<std::size_t>(tokens.size(), 200));
  for (std::int32_t const l : {0, 1}) {
    auto const model = open_uneven_experts("qwen3moe.f32.gguf", "qwen3moe.f16.gguf", l);
    ExpertLayers const experts(model->table().shards);
    REQUIRE(experts.layers.front().working_bytes != experts.layers[1].working_bytes);
    std::vector<float> expected;
    for (double const share : {double(experts.min_cache_bytes()) / double(all_bytes(*model)), 1.5}) {
      INFO("layer " << l << ", a cache of " << share << " of all weights");
      Rig rig(model, {.device_embeds = true, .maps_host = true, .deterministic = true, .cache_share = share, .cached_experts = true});
      CHECK(rig.cache.bytes() >= experts.min_cache_bytes());
      if (share < 1) CHECK(rig.cache.bytes() < experts.min_cache_bytes() + weight_alignment);
      std::vector<float> const got = rig.all(tokens, {1});
      CHECK(std::ranges::count(rig.host.launches, "experts") == 0);
      if (expected.empty()) expected = got;
      CHECK((got == expected));
    }
  }
}
