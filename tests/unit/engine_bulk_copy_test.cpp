// Residents that come in the background while an engine is warmed up: all of them, once, and the same text.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/engine/detail/bulk_residents.hpp"
#include "tiered/engine/detail/warm_up.hpp"
#include "tiered/memory/bulk_copy.hpp"
#include "tiered/memory/detail/piece_pack.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct Seen {
  std::size_t n_bytes = 0;
  int n_starts = 0, n_waits = 0, n_cancels = 0;
  bool fails = false;
};

/// Copies as late as it may: in wait().
class LateCopy final : public BulkCopy {
 public:
  explicit LateCopy(Seen* seen) : seen_(seen) {}
  void start(std::vector<CopyPiece> pieces) override {
    ++seen_->n_starts;
    pieces_ = std::move(pieces);
  }
  void wait() override {
    ++seen_->n_waits;
    if (seen_->fails) throw Error(Errc::device, "the link is down");
    for (CopyPiece const& piece : pieces_) detail::copy_piece(piece), seen_->n_bytes += piece.bytes;
    pieces_.clear();
  }
  void cancel() noexcept override {
    ++seen_->n_cancels;
    pieces_.clear();
  }
  std::pair<double, double> times() const override { return {0, 0}; }

 private:
  Seen* seen_;
  std::vector<CopyPiece> pieces_;
};

struct BulkMachine : decltype(SimPolicies::make_machine({})) {
  std::unique_ptr<LateCopy> bulk;
  void settle() {}
};
struct BulkPolicies : SimPolicies {
  using Placement = AnyPlacement;
  static BulkMachine make_machine(MachineOptions const& o) { return {SimPolicies::make_machine(o), nullptr}; }
};

EngineOptions options_of(std::size_t vram_bytes) {
  EngineOptions options;
  options.max_context = 96;
  options.n_threads = 1;
  options.vram_bytes = vram_bytes;
  return options;
}

template <class P>
Engine<P> make_engine(std::shared_ptr<Transformer const> const& model, std::string const& placement, std::size_t vram_bytes, Seen* seen) {
  EngineOptions const options = options_of(vram_bytes);
  auto machine = P::make_machine({vram_bytes, 1, false, false});
  if constexpr (requires { machine.bulk; }) {
    if (seen != nullptr) machine.bulk = std::make_unique<LateCopy>(seen);
  }
  return Engine<P>(model, options, {.placement = make_placement(placement)}, std::move(machine));
}

}  // namespace

TEST_CASE("an engine whose residents come in the background computes what others compute") {
  std::vector<std::int32_t> const tokens{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
  std::size_t n_bytes = 0;
  for (char const* file : {"llama.f32.gguf", "llama.mixed.gguf", "qwen3moe.mixed.gguf"}) {
    auto const model = open_golden(file);
    std::size_t all_bytes = 0;
    for (Shard const& s : model->table().shards) all_bytes += s.bytes;
    for (std::string const placement : {"all_vram", "stream_all", "attention_first", "seconds_per_byte"}) {
      for (int shift = 0; shift < 4; ++shift) {
        std::size_t const bytes = (2 * all_bytes + 2 * MiB) >> shift;
        INFO(file << " " << placement << " " << bytes);
        Seen seen;
        Engine<BulkPolicies> plain = make_engine<BulkPolicies>(model, placement, bytes, nullptr);
        Engine<BulkPolicies> bulk = make_engine<BulkPolicies>(model, placement, bytes, &seen);
        CHECK(seen.n_starts <= 1);
        CHECK(seen.n_waits == seen.n_starts);
        n_bytes += seen.n_bytes;
        CHECK(all_logits(bulk, tokens, {17, 1}) == all_logits(plain, tokens, {17, 1}));
      }
    }
  }
  CHECK(n_bytes > 0);
}

TEST_CASE("where a background copy fails, so does loading, and it is cancelled") {
  auto const model = open_golden("llama.f32.gguf");
  Seen seen;
  seen.fails = true;
  CHECK(error_of([&] { make_engine<BulkPolicies>(model, "all_vram", 16 * MiB, &seen); }).says("the link is down"));
  CHECK(seen.n_cancels == 1);
}

TEST_CASE("what comes in the background is in no layer that the samples run, and at one place in all plans") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  ShardTable const table = model->table();
  for (std::size_t const bytes : {400 * KiB, 1 * MiB, 16 * MiB}) {
    Engine<BulkPolicies> engine = make_engine<BulkPolicies>(model, "attention_first", bytes, nullptr);
    std::vector<PlanImage> const& plans = engine.plans().images;
    std::vector<PlanImage> samples;
    for (PlanImage const& image : plans) samples.push_back(detail::sample_of(image, table, model->config()));
    std::vector<bool> const needed = detail::shards_of(samples, table.shards);
    for (PlanImage const& sample : samples) {
      for (Action const& a : sample.schedule) CHECK(needed[std::size_t(a.shard)]);
    }
    for (ShardId const id : detail::residents_beside(samples, plans, table.shards)) {
      CHECK_FALSE(needed[std::size_t(id)]);
      for (PlanImage const& image : plans) CHECK(image.vram.resident[std::size_t(id)] == plans.front().vram.resident[std::size_t(id)]);
      CHECK(plans.front().vram.resident[std::size_t(id)] != VramLayout::none);
    }
  }
}
