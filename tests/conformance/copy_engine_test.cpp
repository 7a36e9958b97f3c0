/// The CopyEngine suite over every engine that needs no device, on lanes with threads and on seeded ones.
#include "conformance/copy_engine_suite.hpp"

#include <memory>

#include "tiered/memory/memcpy_engine.hpp"
#include "tiered/memory/thread_engine.hpp"
#include "tiered/memory/throttled.hpp"
#include "tiered/sim/sim_copy_engine.hpp"

namespace {

template <class Engine, bool seeded, int n_threads = 0>
class On {
 public:
  On() : lanes_(seeded ? tiered::LaneSet::seeded(11) : tiered::LaneSet::threads()) {
    if constexpr (n_threads > 0) {
      engine_ = std::make_unique<Engine>(lanes_, n_threads);
    } else {
      engine_ = std::make_unique<Engine>(lanes_);
    }
  }
  Engine& engine() { return *engine_; }
  tiered::LaneSet& lanes() { return *lanes_; }

 private:
  std::shared_ptr<tiered::LaneSet> lanes_;
  std::unique_ptr<Engine> engine_;
};

/// Held to a rate that costs the suite no time worth mention.
template <class E>
struct Fast : tiered::ThrottledCopyEngine<E> {
  explicit Fast(std::shared_ptr<tiered::LaneSet> lanes) : tiered::ThrottledCopyEngine<E>(std::move(lanes), 1e11) {}
};

using tiered::MemcpyEngine;
using tiered::SimCopyEngine;
using tiered::ThreadCopyEngine;

}  // namespace

TEST_CASE("MemcpyEngine is a CopyEngine", "[conformance][copy_engine]") {
  tiered_test::copy_engine_moves_bytes<On<MemcpyEngine, false>>();
  tiered_test::copy_engine_keeps_order<On<MemcpyEngine, false>>();
}
TEST_CASE("MemcpyEngine on seeded lanes is a CopyEngine", "[conformance][copy_engine]") {
  tiered_test::copy_engine_moves_bytes<On<MemcpyEngine, true>>();
  tiered_test::copy_engine_keeps_order<On<MemcpyEngine, true>>();
}
TEST_CASE("ThreadCopyEngine is a CopyEngine", "[conformance][copy_engine]") {
  tiered_test::copy_engine_moves_bytes<On<ThreadCopyEngine, false, 3>>();
  tiered_test::copy_engine_keeps_order<On<ThreadCopyEngine, false, 3>>();
  tiered_test::copy_engine_does_not_wait<On<ThreadCopyEngine, false, 3>>();
}
TEST_CASE("ThreadCopyEngine without helpers is a CopyEngine", "[conformance][copy_engine]") {
  tiered_test::copy_engine_moves_bytes<On<ThreadCopyEngine, false, 1>>();
  tiered_test::copy_engine_does_not_wait<On<ThreadCopyEngine, false, 1>>();
}
TEST_CASE("ThreadCopyEngine on seeded lanes is a CopyEngine", "[conformance][copy_engine]") {
  tiered_test::copy_engine_moves_bytes<On<ThreadCopyEngine, true, 3>>();
  tiered_test::copy_engine_keeps_order<On<ThreadCopyEngine, true, 3>>();
}
TEST_CASE("SimCopyEngine is a CopyEngine", "[conformance][copy_engine]") {
  tiered_test::copy_engine_moves_bytes<On<SimCopyEngine, false>>();
  tiered_test::copy_engine_keeps_order<On<SimCopyEngine, false>>();
  tiered_test::copy_engine_does_not_wait<On<SimCopyEngine, false>>();
}
TEST_CASE("a ThrottledCopyEngine is a CopyEngine", "[conformance][copy_engine]") {
  tiered_test::copy_engine_moves_bytes<On<Fast<SimCopyEngine>, false>>();
  tiered_test::copy_engine_keeps_order<On<Fast<SimCopyEngine>, false>>();
  tiered_test::copy_engine_does_not_wait<On<Fast<SimCopyEngine>, false>>();
  tiered_test::copy_engine_moves_bytes<On<Fast<SimCopyEngine>, true>>();
  tiered_test::copy_engine_keeps_order<On<Fast<SimCopyEngine>, true>>();
  tiered_test::copy_engine_moves_bytes<On<Fast<MemcpyEngine>, false>>();
  tiered_test::copy_engine_keeps_order<On<Fast<MemcpyEngine>, false>>();
}
TEST_CASE("SimCopyEngine on seeded lanes is a CopyEngine", "[conformance][copy_engine]") {
  tiered_test::copy_engine_moves_bytes<On<SimCopyEngine, true>>();
  tiered_test::copy_engine_keeps_order<On<SimCopyEngine, true>>();
}

TEST_CASE("a MemcpyEngine without lanes copies at once and refuses tickets of lanes", "[memory][memcpy_engine]") {
  MemcpyEngine engine;
  std::byte source{5}, target{0};
  tiered::CopyPiece const piece{&target, &source, 1};
  tiered::Ticket const done{}, unknown{1, 1};
  REQUIRE(engine.submit({&piece, 1}, {&done, 1}) == tiered::Ticket{});
  REQUIRE(target == std::byte{5});
  REQUIRE(tiered_test::error_of([&] { engine.submit({&piece, 1}, {&unknown, 1}); }).code == tiered::Errc::precondition);
  REQUIRE(tiered_test::error_of([&] { engine.wait(unknown); }).code == tiered::Errc::precondition);
  REQUIRE(tiered_test::error_of([&] { static_cast<void>(engine.done(unknown)); }).code == tiered::Errc::precondition);
}

TEST_CASE("a ThreadCopyEngine has at least one thread", "[memory][thread_engine]") {
  REQUIRE_THROWS_AS(ThreadCopyEngine(tiered::LaneSet::threads(), 0), tiered::Error);
}
