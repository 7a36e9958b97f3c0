// Copies that a thread of their own submits.
#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/pipeline/copy_submitter.hpp"
#include "tiered/sim/sim_copy_engine.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

/// Whose submit() can be held up, and can fail.
class SlowEngine {
 public:
  explicit SlowEngine(std::shared_ptr<LaneSet> lanes) : engine_(std::move(lanes)) {}
  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    while (holds) std::this_thread::yield();
    if (n_submitted++ == fails_at) throw Error(Errc::device, "no more copies");
    return engine_.submit(pieces, after);
  }
  bool done(Ticket ticket) const { return engine_.done(ticket); }
  void wait(Ticket ticket) { engine_.wait(ticket); }

  std::atomic<bool> holds{false};
  std::atomic<std::uint64_t> n_submitted{0};
  std::uint64_t fails_at = ~std::uint64_t{0};

 private:
  SimCopyEngine engine_;
};
static_assert(CopyEngine<SlowEngine>);

struct Fixture {
  CopyPiece piece(std::size_t i) { return {to.data() + i * 64, from.data() + i * 64, 64}; }
  CopySubmitter::Number order(CopySubmitter& submitter, std::size_t i) {
    CopyPiece const p = piece(i);
    return submitter.order(lane, {&p, 1}, {});
  }
  bool has(std::size_t i) const {
    return std::equal(from.begin() + std::ptrdiff_t(i) * 64, from.begin() + std::ptrdiff_t(i + 1) * 64,
                      to.begin() + std::ptrdiff_t(i) * 64);
  }
  explicit Fixture(std::size_t n = CopySubmitter::most_orders) : from(n * 64), to(n * 64) {
    SplitMix64 random(7);
    for (std::byte& b : from) b = std::byte(1 + random.below(255));
  }
  std::vector<std::byte> from, to;
  std::shared_ptr<LaneSet> lanes = LaneSet::threads();
  SlowEngine engine{lanes};
  CopyLane lane{engine};
};

}  // namespace

TEST_CASE("CopySubmitter: copies are made in their order, and are done once their bytes are there") {
  constexpr std::size_t n = 2000;
  Fixture f(n);
  CopySubmitter submitter;
  std::size_t first = 0;  // not known to be done
  Ticket last;
  for (std::size_t i = 0; i < n; ++i) {
    REQUIRE(f.order(submitter, i) == i + 1);
    while (i - first + 2 > CopySubmitter::most_orders / 2) {
      while (!submitter.done(first + 1)) std::this_thread::yield();
      REQUIRE(f.has(first));
      CopySubmitter::Tickets const t = submitter.tickets(++first);
      CHECK(t.before == last);
      CHECK(t.filled.value > last.value);
      last = t.filled;
    }
  }
  submitter.quiet();
  f.lane.wait(f.lane.last());
  CHECK(f.to == f.from);
}

TEST_CASE("CopySubmitter: who orders does not wait for what submits; quiet() does") {
  Fixture f;
  CopySubmitter submitter;
  f.engine.holds = true;
  for (std::size_t i = 0; i < CopySubmitter::most_orders; ++i) f.order(submitter, i);
  CHECK(!submitter.done(1));
  CHECK(f.engine.n_submitted == 0);
  CHECK(error_of([&] { f.order(submitter, 0); }).code == Errc::precondition);
  f.engine.holds = false;
  submitter.quiet();
  CHECK(f.engine.n_submitted == CopySubmitter::most_orders);
  f.lane.wait(f.lane.last());
  CHECK(f.to == f.from);
  f.order(submitter, 0);  // one after a pause, and one that nobody waits for
  submitter.quiet();
}

TEST_CASE("CopySubmitter: what was ordered is submitted before it goes") {
  Fixture f;
  {
    CopySubmitter submitter;
    for (std::size_t i = 0; i < CopySubmitter::most_orders; ++i) f.order(submitter, i);
  }
  CHECK(f.engine.n_submitted == CopySubmitter::most_orders);
  f.lane.wait(f.lane.last());
  CHECK(f.to == f.from);
  CopySubmitter const unused;
  unused.quiet();
}

TEST_CASE("CopySubmitter: the first error goes to all who ask, and nothing is submitted behind it") {
  Fixture f;
  f.engine.fails_at = 2;
  CopySubmitter submitter;
  f.engine.holds = true;
  for (std::size_t i = 0; i < 4; ++i) f.order(submitter, i);
  f.engine.holds = false;
  CHECK(error_of([&] { submitter.quiet(); }).code == Errc::device);
  CHECK(error_of([&] { submitter.done(1); }).code == Errc::device);
  CHECK(error_of([&] { f.order(submitter, 4); }).code == Errc::device);
  submitter.drain();
  CHECK(f.engine.n_submitted == 3);
  f.lane.wait(f.lane.last());
  CHECK((f.has(0) && f.has(1) && !f.has(2) && !f.has(3)));
}
