/// CpuBackend, its queue and its tables: order, errors, launch hooks, seeded lanes, instruction sets.
#include "tiered/kernels/cpu/backend.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cpu/table.hpp"

using namespace tiered;
using tiered_test::error_of;

namespace {

std::vector<std::shared_ptr<LaneSet>> both_modes() { return {LaneSet::threads(), LaneSet::seeded(3)}; }

/// Doubles `values` by y += y's copy, one op after another.
void enqueue_adds(CpuBackend& cpu, std::vector<float> const& x, std::vector<float>& y, int times) {
  for (int i = 0; i < times; ++i) launch(cpu.kernels().add, AddArgs{x.data(), y.data(), std::int64_t(x.size())}, cpu.queue());
}

RouteArgs impossible_route() {
  RouteArgs args;
  args.n_tokens = args.n_experts = 1;
  args.n_used = 2;
  return args;
}

}  // namespace

TEST_CASE("ops of a queue run in order, after launch() returned; record() is done when they are") {
  for (auto const& lanes : both_modes()) {
    CpuBackend cpu(lanes, {.n_threads = 2});
    std::vector<float> const x(1000, 1.0f);
    std::vector<float> y(1000, 0.0f), z(1000, 0.0f);
    enqueue_adds(cpu, x, y, 50);
    enqueue_adds(cpu, y, z, 1);  // needs all 50
    lanes->wait(cpu.record());
    CHECK(z == std::vector<float>(1000, 50.0f));
    cpu.synchronize();
  }
}

TEST_CASE("an op keeps a copy of its arguments") {
  CpuBackend cpu(LaneSet::seeded(1), {.n_threads = 1});
  std::vector<float> const x(8, 2.0f);
  std::vector<float> y(8, 1.0f);
  {
    AddArgs args{x.data(), y.data(), 8};
    launch(cpu.kernels().add, args, cpu.queue());
    args = {};
  }
  CHECK(y[0] == 1.0f);  // nobody has run it yet
  cpu.synchronize();
  CHECK(y == std::vector<float>(8, 3.0f));
}

TEST_CASE("work starts after the ticket that the queue waits for, of any lane") {
  for (auto const& lanes : both_modes()) {
    CpuBackend first(lanes, {.n_threads = 1, .lane_name = "first"}), second(lanes, {.n_threads = 2, .lane_name = "second"});
    std::vector<float> const x(4096, 1.0f);
    std::vector<float> y(4096, 0.0f), z(4096, 0.0f);
    enqueue_adds(first, x, y, 20);
    second.wait_for(first.record());
    enqueue_adds(second, y, z, 1);
    second.synchronize();
    CHECK(z == std::vector<float>(4096, 20.0f));
    CHECK(first.lane() != second.lane());
  }
}

TEST_CASE("a kernel that throws: synchronize() says so, until errors are cleared") {
  for (auto const& lanes : both_modes()) {
    CpuBackend cpu(lanes, {.n_threads = 2});
    launch(cpu.kernels().route, impossible_route(), cpu.queue());
    auto const thrown = error_of([&] { cpu.synchronize(); });
    CHECK(thrown.code == Errc::unsupported);
    CHECK(thrown.says("2 of 1"));
    lanes->clear_errors();
    std::vector<float> const x(8, 1.0f);
    std::vector<float> y(8, 0.0f);
    enqueue_adds(cpu, x, y, 1);
    cpu.synchronize();
    CHECK(y[7] == 1.0f);
  }
}

TEST_CASE("a launch hook sees every launch and can fail it; a failed one does not run") {
  CpuBackend cpu(LaneSet::threads(), {.n_threads = 1});
  struct Counter {
    int launches = 0, fail_at = 2;
  } counter;
  cpu.before_launch(
      [](void* hook) {
        auto& c = *static_cast<Counter*>(hook);
        return ++c.launches == c.fail_at ? 77 : 0;
      },
      &counter);
  std::vector<float> const x(8, 1.0f);
  std::vector<float> y(8, 0.0f);
  enqueue_adds(cpu, x, y, 1);
  auto const thrown = error_of([&] { enqueue_adds(cpu, x, y, 1); });
  CHECK(thrown.code == Errc::device);
  CHECK(thrown.says("77"));
  enqueue_adds(cpu, x, y, 1);
  cpu.before_launch(nullptr, nullptr);
  enqueue_adds(cpu, x, y, 1);
  cpu.synchronize();
  CHECK(counter.launches == 3);
  CHECK(y[0] == 3.0f);
}

TEST_CASE("queue and table stay where they are when a backend is moved; its end waits for its work") {
  auto const lanes = LaneSet::threads();
  std::vector<float> const x(100000, 1.0f);
  std::vector<float> y(100000, 0.0f);
  {
    CpuBackend cpu(lanes, {.n_threads = 2});
    Queue const queue = cpu.queue();
    CpuBackend moved = std::move(cpu);
    CHECK(moved.queue().native == queue.native);
    launch(moved.kernels().add, AddArgs{x.data(), y.data(), 100000}, queue);
    enqueue_adds(moved, x, y, 30);
  }
  CHECK(y == std::vector<float>(100000, 31.0f));
}

TEST_CASE("a backend's memory is bounded as asked") {
  CpuBackend cpu(LaneSet::seeded(1), {.n_threads = 1, .memory_bytes = 1000});
  Block const block = cpu.memory().allocate(800, 64);
  CHECK(error_of([&] { cpu.memory().allocate(300, 64); }).code == Errc::out_of_memory);
  cpu.memory().deallocate(block);
  CHECK(cpu.memory().used_bytes() == 0);
}

TEST_CASE("thread counts: the default where 0 is given, nonsense is refused") {
  CpuBackend cpu(LaneSet::seeded(1));
  CHECK(cpu.n_threads() == default_thread_count());
  CHECK(error_of([] { CpuBackend bad(LaneSet::seeded(1), {.n_threads = -1}); }).code == Errc::precondition);
}

TEST_CASE("instruction sets: the best one is available, one that is not is refused by name") {
  CHECK(available(Isa::baseline));
  CHECK(available(best_isa()));
  CHECK(std::string(CpuBackend(LaneSet::seeded(1), {.n_threads = 1}).kernels().name) == name(best_isa()));
  for (Isa const isa : {Isa::baseline, Isa::avx2, Isa::avx512, Isa::amx}) {
    if (available(isa)) {
      CHECK(std::string(cpu_kernels(isa).name) == name(isa));
      CHECK(&cpu_kernels(isa) != &cpu_kernels(isa, true));
    } else {
      auto const thrown = error_of([&] { CpuBackend bad(LaneSet::seeded(1), {.isa = isa, .n_threads = 1}); });
      CHECK(thrown.code == Errc::unsupported);
      CHECK(thrown.says(name(isa)));
    }
  }
}

TEST_CASE("a table has every op") {
  for (bool const f32 : {false, true}) {
    KernelTable const& table = cpu_kernels(best_isa(), f32);
    CHECK(table.rms_norm != nullptr);
    CHECK(table.rope != nullptr);
    CHECK(table.kv_write[std::uint32_t(DType::f16)] != nullptr);
    CHECK(table.attention[std::uint32_t(DType::f16)] != nullptr);
    CHECK(table.gated != nullptr);
    CHECK(table.add != nullptr);
    CHECK(table.gather != nullptr);
    CHECK(table.route != nullptr);
    CHECK(table.experts != nullptr);
    CHECK(table.combine != nullptr);
    CHECK(table.convert[activation_form(DType::act_q8)] != nullptr);
    for (DType const type : {DType::f32, DType::q4_1, DType::q6_k, DType::mxfp4}) CHECK(table.embed[std::uint32_t(type)] != nullptr);
  }
}

TEST_CASE("ops on the one row of a decode step stay on one thread; larger ones are spread") {
  CpuBackend cpu(LaneSet::threads(), {.n_threads = 2});
  constexpr std::int32_t dim = 8192;
  std::vector<float> x(dim, 1.0f), y(dim, 0.0f), weight(dim, 1.0f), frequency(64, 0.5f);
  std::vector<std::int32_t> const positions{7};
  std::vector<std::byte> converted(activation_bytes(DType::act_q8, 1, dim));
  RmsNormArgs norm;
  norm.x = x.data();
  norm.weight = weight.data();
  norm.y = y.data();
  norm.n_rows = 1;
  norm.dim = dim;
  launch(cpu.kernels().rms_norm, norm, cpu.queue());
  RopeArgs rope;
  rope.x = x.data();
  rope.positions = positions.data();
  rope.inv_freq = frequency.data();
  rope.n_tokens = 1;
  rope.n_heads = 64;
  rope.head_dim = rope.n_rot = 128;
  launch(cpu.kernels().rope, rope, cpu.queue());
  launch(cpu.kernels().convert[activation_form(DType::act_q8)], QuantizeArgs{x.data(), converted.data(), 1, dim}, cpu.queue());
  launch(cpu.kernels().add, AddArgs{x.data(), y.data(), dim}, cpu.queue());
  launch(cpu.kernels().gated, GatedArgs{x.data(), y.data(), y.data(), 1536, Activation::silu}, cpu.queue());
  cpu.synchronize();
  CHECK(cpu.team().activity().n_loops == 0);

  std::vector<float> const large(4 * dim, 1.0f);
  std::vector<float> sums(4 * dim, 1.0f);
  launch(cpu.kernels().add, AddArgs{large.data(), sums.data(), 4 * dim}, cpu.queue());
  cpu.synchronize();
  CHECK(cpu.team().activity().n_loops == 1);
}

TEST_CASE("backends that share a team compute as with one of their own, at the same time") {
  auto const team = std::make_shared<Team>(3);
  auto const first_lanes = LaneSet::threads(), second_lanes = LaneSet::threads();
  CpuBackend first(first_lanes, {.team = team}), second(second_lanes, {.team = team}), own(LaneSet::threads(), {.n_threads = 3});
  CHECK(&first.team() == team.get());
  CHECK(&second.team() == team.get());
  CHECK(first.n_threads() == 3);
  std::vector<float> x(100000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(i % 97) / 7;
  std::vector<float> a(x.size(), 0.5f), b = a, c = a;
  for (int round = 0; round < 20; ++round) {
    enqueue_adds(first, x, a, 3);
    enqueue_adds(second, x, b, 3);
    enqueue_adds(own, x, c, 3);
  }
  first.synchronize();
  second.synchronize();
  own.synchronize();
  CHECK(a == c);
  CHECK(b == c);
  CHECK(team->activity().n_loops == 120);
}

TEST_CASE("thread counts that contradict each other are refused, with the numbers") {
  auto const refusal = [](CpuOptions const& options) { return error_of([&] { CpuBackend cpu(LaneSet::seeded(1), options); }); };
  CHECK(refusal({.n_threads = -1}).code == Errc::precondition);
  CHECK(refusal({.n_threads = 2, .team = std::make_shared<Team>(2)}).code == Errc::precondition);
  CHECK(refusal({.pin = true, .team = std::make_shared<Team>(2)}).code == Errc::precondition);
  std::size_t const n_cpus = allowed_cpus().size();
  auto const too_many = refusal({.n_threads = int(n_cpus) + 1, .pin = true});
  CHECK(too_many.code == Errc::precondition);
  CHECK(too_many.says(std::to_string(n_cpus + 1), std::to_string(n_cpus)));
  if (n_cpus > 0) CHECK(CpuBackend(LaneSet::seeded(1), {.n_threads = int(n_cpus), .pin = true}).n_threads() == int(n_cpus));
}
