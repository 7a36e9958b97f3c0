/// The Backend suite over the CPU and the simulated device, on lanes with threads and on seeded ones.
#include "conformance/backend_suite.hpp"

#include <memory>
#include <utility>

#include "conformance/memory_tier_suite.hpp"
#include "tiered/kernels/cpu/backend.hpp"
#include "tiered/memory/memcpy_engine.hpp"
#include "tiered/sim/sim_backend.hpp"
#include "tiered/sim/sim_copy_engine.hpp"

namespace {

template <bool seeded>
class Lanes {
 public:
  tiered::LaneSet& lanes() { return *lanes_; }

 protected:
  std::shared_ptr<tiered::LaneSet> lanes_ = seeded ? tiered::LaneSet::seeded(5) : tiered::LaneSet::threads();
};

template <bool seeded, int n_threads>
class Cpu : public Lanes<seeded> {
 public:
  using Backend = tiered::CpuBackend;
  Backend& backend() { return backend_; }
  tiered::MemcpyEngine& copy() { return copy_; }
  Backend another() { return Backend(this->lanes_, options()); }
  tiered::LaneSet::Lane lane_of(Backend const& backend) { return backend.lane(); }

 private:
  static tiered::CpuOptions options() {
    tiered::CpuOptions options;
    options.n_threads = n_threads;
    return options;
  }
  Backend backend_{this->lanes_, options()};
  tiered::MemcpyEngine copy_{this->lanes_};
};

template <bool seeded, int n_threads>
class Sim : public Lanes<seeded> {
 public:
  using Backend = tiered::SimBackend;
  Backend& backend() { return backend_; }
  tiered::SimCopyEngine& copy() { return copy_; }
  Backend another() { return Backend(this->lanes_, options()); }
  tiered::LaneSet::Lane lane_of(Backend const& backend) { return backend.lane(); }

 private:
  static tiered::SimOptions options() {
    tiered::SimOptions options;
    options.vram_bytes = 1 << 20;
    options.n_threads = n_threads;
    return options;
  }
  Backend backend_{this->lanes_, options()};
  tiered::SimCopyEngine copy_{this->lanes_};
};

/// The memory of a backend, as the suite of tiers wants it.
class SimMemory {
 public:
  explicit SimMemory(std::size_t capacity_bytes) : backend_(tiered::LaneSet::threads(), {capacity_bytes}) {}
  tiered::SimTier& tier() { return backend_.memory(); }

 private:
  tiered::SimBackend backend_;
};

}  // namespace

TEST_CASE("CpuBackend is a Backend", "[conformance][backend]") {
  tiered_test::backend_suite<Cpu<false, 2>>();
  tiered_test::backend_does_not_wait<Cpu<false, 2>>();
}
TEST_CASE("CpuBackend on seeded lanes is a Backend", "[conformance][backend]") { tiered_test::backend_suite<Cpu<true, 1>>(); }
TEST_CASE("SimBackend is a Backend", "[conformance][backend]") {
  tiered_test::backend_suite<Sim<false, 2>>();
  tiered_test::backend_does_not_wait<Sim<false, 2>>();
}
TEST_CASE("SimBackend on seeded lanes is a Backend", "[conformance][backend]") { tiered_test::backend_suite<Sim<true, 1>>(); }
TEST_CASE("the memory of a SimBackend is a MemoryTier", "[conformance][backend]") { tiered_test::memory_tier_suite<SimMemory>(); }
