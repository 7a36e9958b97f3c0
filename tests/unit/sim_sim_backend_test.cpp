/// SimBackend: its own capped memory, faults at every launch, virtual time. The rules of every backend are in
/// conformance/backend_suite.hpp.
#include "tiered/sim/sim_backend.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tiered/core/error.hpp"
#include "tiered/kernels/cpu/backend.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/sim/sim_copy_engine.hpp"

using tiered::Buffer;
using tiered::CopyPiece;
using tiered::FaultKind;
using tiered::Faults;
using tiered::LaneSet;
using tiered::SimBackend;
using tiered::SimClock;
using tiered::SimCopyEngine;
using tiered::Ticket;

namespace {

constexpr std::size_t n = 64, n_bytes = n * sizeof(float);

void enqueue_add(SimBackend& backend, Buffer& x, Buffer& y) {
  tiered::launch(backend.kernels().add, tiered::AddArgs{reinterpret_cast<float const*>(x.data()), reinterpret_cast<float*>(y.data()), n},
                 backend.queue());
}

/// Streams ten blocks of weights through a ring of two slots and adds them up: a small engine, with everything that can fail.
/// Returns the sum of the first column, or what went wrong.
struct Outcome {
  std::optional<tiered::Errc> error;
  float sum = 0;
};
Outcome stream_and_add(std::shared_ptr<LaneSet> const& lanes, SimBackend& backend, SimCopyEngine& copy) {
  std::vector<std::vector<float>> weights(10, std::vector<float>(n));
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i].assign(n, float(i + 1));
  std::vector<float> sum(n, 0.f);
  try {
    Buffer slots[2] = {Buffer(backend.memory(), n_bytes), Buffer(backend.memory(), n_bytes)}, y(backend.memory(), n_bytes);
    auto const work = [&] {
      auto const submit = [&](std::byte* dst, void const* src, Ticket after) {
        CopyPiece const piece{dst, static_cast<std::byte const*>(src), n_bytes};
        return copy.submit({&piece, 1}, {&after, 1});
      };
      backend.wait_for(submit(y.data(), sum.data(), {}));
      Ticket read[2] = {};
      for (std::size_t i = 0; i < weights.size(); ++i) {
        backend.wait_for(submit(slots[i % 2].data(), weights[i].data(), read[i % 2]));
        enqueue_add(backend, slots[i % 2], y);
        read[i % 2] = backend.record();
      }
      copy.wait(submit(reinterpret_cast<std::byte*>(sum.data()), y.data(), backend.record()));
    };
    try {
      work();
    } catch (...) {
      lanes->clear_errors();  // waits, so that nothing works on the buffers when they go
      throw;
    }
  } catch (tiered::Error const& error) {
    return {error.code(), 0.f};
  }
  return {std::nullopt, sum[0]};
}

}  // namespace

TEST_CASE("with a fault at every place in turn: a typed error, no memory kept, and usable again", "[sim][backend]") {
  for (bool const seeded : {false, true}) {
    for (FaultKind kind : {FaultKind::allocation, FaultKind::copy, FaultKind::launch}) {
      auto const lanes = seeded ? LaneSet::seeded(1) : LaneSet::threads();
      auto const faults = std::make_shared<Faults>();
      SimBackend backend(lanes, {3 * n_bytes, 2, std::nullopt, false, faults});
      SimCopyEngine copy(lanes, {&backend.memory(), faults});
      std::uint64_t n_failed = 0;
      for (std::uint64_t nth = 1;; ++nth) {
        INFO(name(kind) << " " << nth << (seeded ? " seeded" : ""));
        faults->reset();
        faults->fail_at(kind, nth);
        Outcome const outcome = stream_and_add(lanes, backend, copy);
        REQUIRE(backend.memory().used_bytes() == 0);
        if (faults->fired() == 0) {
          REQUIRE_FALSE(outcome.error);
          REQUIRE(outcome.sum == 55.f);
          break;
        }
        REQUIRE(outcome.error == tiered::errc_of(kind));
        faults->fail_at(kind, 0);
        REQUIRE(stream_and_add(lanes, backend, copy).sum == 55.f);
        ++n_failed;
      }
      REQUIRE(n_failed == (kind == FaultKind::allocation ? 3u : kind == FaultKind::copy ? 12u : 10u));
      REQUIRE(backend.memory().peak_bytes() == 3 * n_bytes);
    }
  }
}

TEST_CASE("a ring without its tickets is found by some seed", "[sim][backend]") {
  // The copy into a slot does not wait for the kernel that reads it: wrong, but right by luck in many orders.
  int n_wrong = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto const lanes = LaneSet::seeded(seed);
    SimBackend backend(lanes, {1 << 16});
    SimCopyEngine copy(lanes);
    Buffer slot(backend.memory(), n_bytes), y(backend.memory(), n_bytes);
    std::vector<float> const zeros(n, 0.f), ones(n, 1.f), twos(n, 2.f);
    auto const put = [&](Buffer& to, std::vector<float> const& from) {
      CopyPiece const piece{to.data(), reinterpret_cast<std::byte const*>(from.data()), n_bytes};
      return copy.submit({&piece, 1}, {});
    };
    put(y, zeros);
    backend.wait_for(put(slot, ones));
    enqueue_add(backend, slot, y);
    backend.wait_for(put(slot, twos));
    enqueue_add(backend, slot, y);
    backend.synchronize();
    n_wrong += *reinterpret_cast<float const*>(y.data()) != 3.f;
  }
  REQUIRE(n_wrong > 0);
  REQUIRE(n_wrong < 50);
}

TEST_CASE("a kernel that runs before its copy yields no number", "[sim][backend]") {
  auto const lanes = LaneSet::threads();
  SimBackend backend(lanes, {1 << 16});
  Buffer x(backend.memory(), n_bytes), y(backend.memory(), n_bytes);
  enqueue_add(backend, x, y);
  backend.synchronize();
  REQUIRE(std::isnan(*reinterpret_cast<float const*>(y.data())));
}

TEST_CASE("the simulated device computes with the CPU's own table", "[sim][backend]") {
  auto const lanes = LaneSet::threads();
  SimBackend const quantised(lanes, {1 << 16}), exact(lanes, {1 << 16, 1, tiered::Isa::baseline, true});
  REQUIRE(&quantised.kernels() == &tiered::cpu_kernels(tiered::best_isa()));
  REQUIRE(&exact.kernels() == &tiered::cpu_kernels(tiered::Isa::baseline, true));
  REQUIRE_THROWS_AS(SimBackend(lanes, {1 << 16, 1, tiered::Isa::amx}), tiered::Error);
  REQUIRE_THROWS_AS(SimBackend(lanes, {1 << 16, 0}), tiered::Error);
}

TEST_CASE("a backend that moves keeps its memory and its queue where they are", "[sim][backend]") {
  SimBackend backend(LaneSet::threads(), {1 << 16});
  void* const native = backend.queue().native;
  Buffer x(backend.memory(), n_bytes), y(backend.memory(), n_bytes);
  for (int i = 0; i < 100; ++i) enqueue_add(backend, x, y);
  SimBackend moved(std::move(backend));
  REQUIRE(moved.queue().native == native);
  REQUIRE(moved.memory().used_bytes() == 2 * n_bytes);
  moved.synchronize();
  x = Buffer();  // before the memory that they came from
  y = Buffer();
  REQUIRE(moved.memory().used_bytes() == 0);
}

TEST_CASE("copies behind compute take the longer of the two in virtual time", "[sim][backend]") {
  auto const lanes = LaneSet::seeded(0);
  auto const clock = std::make_shared<SimClock>();
  SimBackend backend(lanes, {3 * n_bytes, 1, std::nullopt, false, nullptr, clock, 2.0});
  SimCopyEngine copy(lanes, {&backend.memory(), nullptr, clock, double(n_bytes)});  // one second a block
  REQUIRE(stream_and_add(lanes, backend, copy).sum == 55.f);
  // y, the first block, ten kernels of 2 s with the copies behind them, the sum on its way back.
  REQUIRE(clock->seconds() == 1.0 + 1.0 + 10 * 2.0 + 1.0);
  auto const copies = copy.record();
  REQUIRE(copies.size() == 12);
  for (std::size_t i = 3; i <= 10; ++i) REQUIRE(copies[i].span.end_s < clock->seconds() - 1.0);
  REQUIRE(copies[2].span == tiered::SimSpan{2.0, 3.0});  // while the first kernel runs, from 2 to 4
}
