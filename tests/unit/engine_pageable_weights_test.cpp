// A machine that page-locks weights in the background, and says what came of it.
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// All but the last of the ranges that it was given.
struct Sources {
  std::vector<std::span<std::byte const>> ranges;
  std::string error;
  bool covers(void const* data, std::size_t bytes) const {
    auto const* const at = static_cast<std::byte const*>(data);
    for (std::size_t i = 0; i + 1 < ranges.size(); ++i) {
      if (at >= ranges[i].data() && at + bytes <= ranges[i].data() + ranges[i].size()) return true;
    }
    return false;
  }
  std::string first_error() const { return error; }
};
struct LockingMachine : decltype(SimPolicies::make_machine({})) {
  std::unique_ptr<Sources> sources;
  void register_sources(std::vector<std::span<std::byte const>> const& ranges) { sources = std::make_unique<Sources>(Sources{ranges, {}}); }
  void drop_sources() { sources.reset(); }
  bool device_reads(std::span<std::byte const> bytes) { return sources->covers(bytes.data(), bytes.size()); }
};
struct LockingPolicies : SimPolicies {
  static LockingMachine make_machine(MachineOptions const& o) { return {SimPolicies::make_machine(o), nullptr}; }
};

}  // namespace

TEST_CASE("an engine says why weights are not page-locked, from when it is known", "[engine]") {
  auto const model = open_golden("llama.f32.gguf");
  EngineOptions options;
  options.max_context = 96;
  options.n_threads = 1;
  for (std::size_t const vram_bytes : {std::size_t{0}, 8 * MiB}) {
    options.vram_bytes = vram_bytes;
    Engine<LockingPolicies> engine(model, options);
    CHECK(engine.stats().pageable_weights.empty());
    if (vram_bytes == 0) {
      CHECK(engine.machine().sources == nullptr);
      continue;
    }
    engine.machine().sources->error = "the driver refused a piece; 1 MiB of 2 MiB";
    CHECK(engine.stats().pageable_weights == "the driver refused a piece; 1 MiB of 2 MiB");
    ReadableBytes const readable = engine.core().parts().host_access.weights;
    std::vector<std::span<std::byte const>> const& ranges = engine.machine().sources->ranges;
    CHECK(readable.has(ranges.front().data(), ranges.front().size()));
    CHECK_FALSE(readable.has(ranges.back().data(), 1));  // each by itself, not all as the embedding
  }
}
