/// What tests of vision encoders in an engine share: the fixtures' projectors, and how far encodings are, and may be, from each other.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "golden/engine_helpers.hpp"
#include "tiered/engine/sim_policies.hpp"
#include "tiered/engine/vision_encoder.hpp"
#include "tiered/kernels/cpu/table.hpp"
#include "vlm_fixture.hpp"

namespace tiered::test {

/// Largest difference over the largest value.
inline double difference(std::vector<float> const& got, std::vector<float> const& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    largest = (std::max)(largest, std::fabs(double(expected[i])));
    worst = (std::max)(worst, std::fabs(double(got[i]) - double(expected[i])));
  }
  return worst / largest;
}
inline double difference(VisionEncoding const& got, std::vector<float> const& tokens, std::vector<std::vector<float>> const& deepstack) {
  double worst = difference(got.tokens, tokens);
  if (got.deepstack.size() != deepstack.size()) return INFINITY;
  for (std::size_t i = 0; i < deepstack.size(); ++i) worst = (std::max)(worst, difference(got.deepstack[i], deepstack[i]));
  return worst;
}
inline bool same_bits(VisionEncoding const& a, VisionEncoding const& b) {
  return a.n_tokens == b.n_tokens && a.tokens == b.tokens && a.deepstack == b.deepstack;
}

/// Root mean square of the differences over that of the values.
inline double rms_difference(std::vector<float> const& got, std::vector<float> const& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double values = 0, differences = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    values += std::pow(double(expected[i]), 2);
    differences += std::pow(double(got[i]) - double(expected[i]), 2);
  }
  double const relative = std::sqrt(differences / values);
  return std::isfinite(relative) ? relative : INFINITY;
}
inline double rms_difference(VisionEncoding const& got, std::vector<float> const& tokens,
                             std::vector<std::vector<float>> const& deepstack) {
  double worst = rms_difference(got.tokens, tokens);
  if (got.deepstack.size() != deepstack.size()) return INFINITY;
  for (std::size_t i = 0; i < deepstack.size(); ++i) worst = (std::max)(worst, rms_difference(got.deepstack[i], deepstack[i]));
  return worst;
}

/// What rounding leaves of tokens, root mean square over that of the tokens. A value's largest relative error being u, its error is uniform
/// in one step, which is 2u of the power of two below it, and values spread evenly over the logarithms of an octave: sqrt(u^2 / 3 * 3/8 /
/// ln 2) = 0.425 u. All roundings on the way are independent of each other; sums with rows that are not rounded only make them less.
inline double rounding_noise(double u, int n_roundings) { return 0.425 * u * std::sqrt(double(n_roundings)); }

/// By how much products with F16 weights may let tokens differ from exact ones, largest over largest: 1e-3. But where the host rounds to
/// bfloat16, as it does unless EngineOptions::f32_activations, rows of all products and the weights as well, by what these roundings
/// leave: for as many errors as values about what root mean squares are. In double arithmetic with them the fixtures are off by up to
/// 9.4e-3; root mean squares by 6.9e-3, 0.66 to 0.85 of the noise.
inline double f16_tolerance(VisionConfig const& c, KernelTable const& host = cpu_kernels(best_isa())) {
  bool const rounds = host.activation[std::uint32_t(DType::f16)] == DType::act_bf16;
  return rounds ? gain * rounding_noise(0x1p-8, 2 * (4 * c.n_layers + 3)) : 1e-3;
}

/// Between encodings by the same kernels whose sums were added in other orders: last bits of such a sum may turn what is rounded later,
/// keys and values, which are halves, and what the host's products read.
inline double order_tolerance(VisionConfig const& c) {
  bool const rounds = cpu_kernels(best_isa()).activation[std::uint32_t(DType::f16)] != DType::f32;
  return rounds ? f16_tolerance(c) : 1e-4;
}

/// The same bits; or, where the device attended to keys and values by pages, whose sums are added in another order, nearly so.
template <class Encoder>
bool alike(Encoder const& encoder, VisionEncoding const& a, VisionEncoding const& b) {
  bool const by_pages = std::ranges::any_of(encoder.plans().images, [](PlanImage const& image) { return image.limits.kv_on_host; });
  return by_pages ? difference(a, b.tokens, b.deepstack) < order_tolerance(encoder.config()) : same_bits(a, b);
}

inline std::shared_ptr<Transformer const> open_decoder(std::string const& name) {
  return make_model(GgufFile::open(tiered_test::vlm_path(name + ".gguf")));
}
inline std::shared_ptr<VisionModel const> open_projector(std::string const& name) {
  return make_vision_model(GgufFile::open(tiered_test::vlm_path(name + ".gguf")));
}

/// All cases of a fixture through an encoder, one after the other.
template <class Encoder>
std::vector<VisionEncoding> encode_all(Encoder& encoder, tiered_test::VlmFixture const& fixture) {
  std::vector<VisionEncoding> out;
  for (tiered_test::VlmCase const& c : fixture.cases) out.push_back(encoder.encode(tiered_test::vlm_patches(c, encoder.config()), c.grids));
  return out;
}

/// The same on the host alone.
inline std::vector<VisionEncoding> encode_on_host(std::string const& model, std::string const& variant,
                                                  tiered_test::VlmFixture const& fixture, bool f32_activations = false) {
  EngineOptions const options{.max_context = 256, .n_threads = 1, .f32_activations = f32_activations};
  Engine<CpuPolicies> engine(open_decoder(model + "." + variant), options);
  VisionEncoder encoder(engine, open_projector(model + ".mmproj." + variant), {.max_patches = 1024});
  return encode_all(encoder, fixture);
}

/// Every shard resident, streamed or left to the host, by seed.
struct RandomVisionPlacement {
  std::uint64_t seed = 0;

  Placements place(PlanRequest const& r) const {
    SplitMix64 random(seed * 7919 + std::uint64_t(r.rows.n) + r.scratch_bytes + r.ring_bytes);
    Placements out{r};
    VramAccount vram{r};
    if (vram.used_bytes() > r.budget.vram_bytes) return out;
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      std::uint64_t const choice = random.below(4);
      if (r.shards[i].kind == ShardKind::embedding) continue;  // of the decoder, which has the same policies
      if (choice == 0 && vram.try_resident(i)) {
        out.shards[i] = {Tier::vram, 1};
      } else if (choice < 3 && r.ring_bytes > 0) {
        out.shards[i] = {Tier::pinned, 1};
      }
    }
    return out;
  }
};

}  // namespace tiered::test
