// Weights that are not page-locked, or not by this engine alone: kernels read none that they may not, and engines do not part them.
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sys/mman.h>

#include "catch.hpp"
#include "cuda/gpu.hpp"
#include "cuda/limited_gpu.hpp"

using namespace tiered;
using namespace tiered::test;
using tiered_test::cuda_check;
using tiered_test::has_gpu;

namespace {

/// Each weight in pages of its own, which makes it a piece of its own. It reaches across a border of pages; of some, somebody else has
/// registered those behind the border: the driver refuses the piece, and what lies before is not page-locked.
class ApartWeights {
 public:
  enum class Taken { none, some, all };
  explicit ApartWeights(Taken taken = Taken::none, std::byte const* free = nullptr) : taken_(taken), free_(free) {}

  std::span<std::byte const> bring(std::span<std::byte const> bytes) {
    blocks_->push_back(std::make_unique<Block>(bytes.size()));
    Block& block = *blocks_->back();
    std::memcpy(block.weight(), bytes.data(), bytes.size());
    bool const takes = taken_ == Taken::all || (taken_ == Taken::some && blocks_->size() / 12 % 2 == 0);
    if (takes && bytes.data() != free_) block.take();
    return {block.weight(), bytes.size()};
  }

  Tier tier() const { return Tier::pageable; }

 private:
  static constexpr std::size_t page = 4096, before = 512;
  struct Block {
    explicit Block(std::size_t weight_bytes) : bytes((page + weight_bytes + page - 1) / page * page + page) {  // the last stays apart
      at = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      expects(at != MAP_FAILED, "there is memory for a small model");
      ::mprotect(at + bytes - page, page, PROT_NONE);
    }
    Block(Block const&) = delete;
    Block& operator=(Block const&) = delete;
    ~Block() {
      if (taken) static_cast<void>(cudaHostUnregister(at + page));
      ::munmap(at, bytes);
    }
    std::byte* weight() const { return at + page - before; }
    void take() {
      cuda_check(cudaHostRegister(at + page, bytes - 2 * page, cudaHostRegisterPortable));
      taken = true;
    }
    std::size_t bytes;
    std::byte* at = nullptr;
    bool taken = false;
  };
  Taken taken_;
  std::byte const* free_;
  std::shared_ptr<std::vector<std::unique_ptr<Block>>> blocks_ = std::make_shared<std::vector<std::unique_ptr<Block>>>();
};

struct ApartPolicies : LimitedPolicies {
  using HostMemory = ApartWeights;
};

EngineOptions small_options() {
  EngineOptions options;
  options.vram_bytes = 4 * GiB;
  options.max_context = 256;
  options.n_threads = 2;
  options.hardware = HardwareProfile::simulated();
  return options;
}

}  // namespace

TEST_CASE("cuda: experts that are not page-locked are the host's, and the copy engine's for later", "[cuda][golden]") {
  if (!has_gpu()) return;
  auto const model = open_golden("qwen3moe.f16.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  ShardTable const table = model->table();
  std::byte const* const embedding = table.weights[std::size_t(table.shard(table.steps.front().shard).weights.begin)].data;
  double const tolerance = quantised_tolerance(*model, f);
  using Taken = ApartWeights::Taken;
  for (Taken const taken : {Taken::none, Taken::some, Taken::all}) {
    for (LookAhead const look_ahead : {LookAhead::never, LookAhead::always}) {
      INFO((taken == Taken::none ? "all page-locked" : taken == Taken::all ? "none page-locked" : "some page-locked"));
      EngineOptions options = small_options();
      options.look_ahead = look_ahead;
      limited_plan_bytes() = 8 * MiB;
      ApartWeights const weights(taken, embedding);  // ends after the engine
      Engine<ApartPolicies> engine(model, options, {.host_memory = weights, .placement = AnyPlacement(ExpertsInCache{0.4})});
      engine.machine().sources->wait();
      CHECK(engine.stats().pageable_weights.empty() == (taken == Taken::none));
      CHECK_FALSE(engine.machine().sources->failed());
      HelpCounters const before = engine.stats().help;
      for (int round = 0; round < 3; ++round) {
        std::vector<float> const got = all_logits(engine, f.tokens, {2, 1});
        CHECK(median_row_rms(got, f) < tolerance);
        CHECK(compare(got, f).rms < 4 * tolerance);
      }
      HelpCounters const help = engine.stats().help;
      CHECK(help.n_steps > before.n_steps);
      CHECK(help.n_requests > before.n_requests);
      if (taken == Taken::all) CHECK(help.n_fetched == before.n_fetched);
      WARN("fetched " << help.n_fetched - before.n_fetched << ", by the host " << help.n_on_host - before.n_on_host);
    }
  }
}

TEST_CASE("cuda: two engines on one model: when the first ends, the second's weights stay page-locked", "[cuda][golden]") {
  if (!has_gpu()) return;
  auto const model = open_golden("qwen3moe.f16.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  double const tolerance = quantised_tolerance(*model, f);
  auto const make = [&] { return make_limited(model, small_options(), AnyPlacement(ExpertsInCache{0.4}), 8 * MiB); };
  std::optional<Engine<LimitedPolicies>> first(make());
  Engine<LimitedPolicies> second = make();
  CHECK(first->machine().sources->wait());
  CHECK(second.machine().sources->wait());
  CHECK(second.stats().pageable_weights.empty());
  HelpCounters const before = second.stats().help;
  all_logits(second, f.tokens, {2, 1});
  CHECK(second.stats().help.n_steps > before.n_steps);
  first.reset();
  for (Weight const& w : model->table().weights) {
    cudaPointerAttributes attributes{};
    cuda_check(cudaPointerGetAttributes(&attributes, w.data));
    CHECK(attributes.type == cudaMemoryTypeHost);
  }
  std::vector<float> const got = all_logits(second, f.tokens, {2, 1});
  CHECK(median_row_rms(got, f) < tolerance);
  CHECK(compare(got, f).rms < 4 * tolerance);
}
