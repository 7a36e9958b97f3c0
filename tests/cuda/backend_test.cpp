/// CudaBackend and StreamCopyEngine: the suites of their concepts, and what streams add: tickets across streams and threads, memory of
/// every kind, graphs, times, a device that is lost.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>
#include <unistd.h>

#include "catch.hpp"
#include "conformance/backend_suite.hpp"
#include "conformance/copy_engine_suite.hpp"
#include "cuda/gpu.hpp"
#include "error_of.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/core/units.hpp"
#include "tiered/kernels/cuda/backend.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/pinned.hpp"
#include "tiered/memory/cuda/registered.hpp"
#include "tiered/memory/cuda/stream_engine.hpp"
#include "tiered/memory/cuda/stream_lane.hpp"
#include "tiered/memory/cuda/vram.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/memory/throttled.hpp"

namespace {

using namespace tiered;
using tiered_test::Bytes;
using tiered_test::DeviceFloats;
using tiered_test::enqueue_add;
using tiered_test::error_of;
using tiered_test::has_gpu;
using tiered_test::random_bytes;

VramTier arena(CudaDevice const& device, std::size_t bytes = 112 * MiB) {
  return VramTier(device, std::make_shared<VramShare>(device.ledger), bytes);
}

template <bool seeded>
class Cuda {
 public:
  using Backend = CudaBackend;
  static constexpr bool works_on_after_failures = true;

  Cuda() {
    // A kernel's first launch loads it, which may wait for all streams: one of them could be waiting for this thread by then.
    Buffer floats(backend_.memory(), 64);
    launch(backend_.kernels().add, AddArgs{reinterpret_cast<float*>(floats.data()), reinterpret_cast<float*>(floats.data()), 16},
           backend_.queue());
    backend_.synchronize();
  }
  Backend& backend() { return backend_; }
  StreamCopyEngine& copy() { return copy_; }
  StreamCopyEngine& engine() { return copy_; }
  LaneSet& lanes() { return *lanes_; }
  std::shared_ptr<LaneSet> const& shared_lanes() { return lanes_; }
  Backend another() { return Backend(lanes_, device_, arena(device_)); }
  LaneSet::Lane lane_of(Backend const& backend) { return backend.lane(); }

 private:
  std::shared_ptr<LaneSet> lanes_ = seeded ? LaneSet::seeded(5) : LaneSet::threads();
  CudaDevice device_ = CudaDevice::open();
  Backend backend_{lanes_, device_, arena(device_)};
  StreamCopyEngine copy_{lanes_, device_.ordinal};
};

/// A lane of the host that stands until it is let go.
class Held {
 public:
  explicit Held(LaneSet& lanes) : lanes_(lanes), lane_(lanes.open("held")) {
    lanes_.submit(lane_, [open = &open_] {
      while (!open->load()) std::this_thread::yield();
    });
  }
  ~Held() { let_go(); }
  Ticket ticket() const { return lanes_.record(lane_); }
  void let_go() {
    open_.store(true);
    lanes_.drain(lane_);
  }

 private:
  LaneSet& lanes_;
  LaneSet::Lane lane_;
  std::atomic<bool> open_{false};
};

template <CopyEngine E>
Ticket copy(E& engine, void* dst, void const* src, std::size_t bytes, std::vector<Ticket> const& after = {}) {
  CopyPiece const piece{static_cast<std::byte*>(dst), static_cast<std::byte const*>(src), bytes};
  return engine.submit({&piece, 1}, after);
}

/// First byte that differs, or the size.
std::size_t first_difference(std::span<std::byte const> a, std::span<std::byte const> b) {
  REQUIRE(a.size() == b.size());
  std::size_t i = 0;
  while (i < a.size() && a[i] == b[i]) ++i;
  return i;
}

Buffer filled(PinnedTier& tier, Bytes const& bytes) {
  Buffer buffer(tier, bytes.size());
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  return buffer;
}

}  // namespace

TEST_CASE("CudaBackend is a Backend", "[cuda][backend]") {
  if (!has_gpu()) return;
  tiered_test::backend_suite<Cuda<false>>();
  tiered_test::backend_does_not_wait<Cuda<false>>();
}
TEST_CASE("CudaBackend beside seeded lanes is a Backend", "[cuda][backend]") {
  if (!has_gpu()) return;
  tiered_test::backend_suite<Cuda<true>>();
}
TEST_CASE("StreamCopyEngine is a CopyEngine", "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  tiered_test::copy_engine_moves_bytes<Cuda<false>>();
  tiered_test::copy_engine_keeps_order<Cuda<false>>();
  tiered_test::copy_engine_does_not_wait<Cuda<false>>();
}
TEST_CASE("StreamCopyEngine beside seeded lanes is a CopyEngine", "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  tiered_test::copy_engine_moves_bytes<Cuda<true>>();
  tiered_test::copy_engine_keeps_order<Cuda<true>>();
}

TEST_CASE("bytes go to the device and come back, from and to memory of every kind", "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  PinnedTier pinned;
  for (std::size_t const bytes : {std::size_t{1}, std::size_t{4097}, 4 * MiB, 21 * MiB + 13}) {
    INFO(bytes << " bytes");
    Bytes const source = random_bytes(bytes + 3, bytes);
    Buffer locked = filled(pinned, source), locked_back(pinned, bytes + 3);
    Buffer on_device(model.backend().memory(), bytes), copied(model.backend().memory(), bytes);
    for (int way = 0; way < 4; ++way) {
      INFO("from " << (way % 2 ? "pinned" : "pageable") << ", to " << (way / 2 ? "pinned" : "pageable"));
      Bytes back(bytes + 3, std::byte{0});
      std::byte const* const from = way % 2 ? locked.data() : source.data();
      std::byte* const to = way / 2 ? locked_back.data() : back.data();
      std::memset(to, 0, bytes + 3);
      copy(model.copy(), on_device.data(), from + 3, bytes);
      copy(model.copy(), copied.data(), on_device.data(), bytes);
      model.copy().wait(copy(model.copy(), to + 1, copied.data(), bytes));
      REQUIRE(first_difference({to + 1, bytes}, std::span(source).subspan(3)) == bytes);
      REQUIRE(to[0] == std::byte{0});
      REQUIRE(to[bytes + 1] == std::byte{0});
    }
  }
  REQUIRE(model.copy().staging_bytes() == 16 * MiB);
}

TEST_CASE("a copy may cross from one registration to the next, and to memory that is not registered", "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  CudaDevice const device = CudaDevice::open();
  auto const page = std::size_t(::sysconf(_SC_PAGESIZE));
  Bytes source = random_bytes(64 * page, 3);
  std::size_t const first = (page - reinterpret_cast<std::uintptr_t>(source.data()) % page) % page;
  RegisterOptions options;
  options.piece_bytes = 4 * page;
  options.read_only = false;
  options.n_threads = 0;
  RegisteredMapping mapping(device, {std::span(source).subspan(first, 20 * page)}, options);
  REQUIRE(mapping.wait());
  Buffer on_device(model.backend().memory(), source.size());
  Bytes back(source.size());
  for (int round = 0; round < 2; ++round) {  // the second knows the registrations
    copy(model.copy(), on_device.data(), source.data(), source.size());
    model.copy().wait(copy(model.copy(), back.data(), on_device.data(), source.size()));
    REQUIRE(first_difference(back, source) == source.size());
    std::fill(back.begin(), back.end(), std::byte{0});
  }
  std::byte const* const inside = source.data() + first + 4 * page;
  REQUIRE(model.copy().is_dma_able(inside, 4 * page));
  REQUIRE_FALSE(model.copy().is_dma_able(inside, 4 * page + 1));
  REQUIRE_FALSE(model.copy().is_dma_able(source.data() + 50 * page, 1));
}

TEST_CASE("copies by hand and by DMA keep their order", "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  PinnedTier pinned;
  std::size_t const bytes = 6 * MiB;
  Bytes const a = random_bytes(bytes, 1), b = random_bytes(bytes, 2);
  Buffer locked = filled(pinned, a), on_device(model.backend().memory(), bytes), second(model.backend().memory(), bytes);
  Bytes back(bytes), last(bytes);
  for (int round = 0; round < 5; ++round) {
    std::memcpy(locked.data(), a.data(), bytes);
    copy(model.copy(), on_device.data(), locked.data(), bytes);  // reads a
    copy(model.copy(), locked.data(), b.data(), bytes);          // by hand, after that
    copy(model.copy(), second.data(), locked.data(), bytes);     // reads b
    copy(model.copy(), locked.data(), on_device.data(), bytes);  // writes a
    copy(model.copy(), last.data(), locked.data(), bytes);       // by hand, reads a
    model.copy().wait(copy(model.copy(), back.data(), second.data(), bytes));
    REQUIRE(first_difference(back, b) == bytes);
    REQUIRE(first_difference(last, a) == bytes);
  }
}

TEST_CASE("neither copies through staging memory nor launches wait for the host", "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  std::size_t const bytes = 40 * MiB / 2 + 5;  // more than the ring holds
  Bytes const source = random_bytes(bytes, 8);
  Bytes back(bytes);
  Buffer on_device(model.backend().memory(), bytes);
  Held held(model.lanes());
  Ticket const there = copy(model.copy(), on_device.data(), source.data(), bytes, {held.ticket()});
  model.backend().wait_for(there);
  Ticket const after = model.backend().record();
  Ticket const here = copy(model.copy(), back.data(), on_device.data(), bytes, {after});
  REQUIRE_FALSE(model.lanes().done(there));
  REQUIRE_FALSE(model.lanes().done(after));
  REQUIRE_FALSE(model.lanes().done(here));
  held.let_go();
  model.copy().wait(here);
  REQUIRE(model.lanes().done(there));
  REQUIRE(first_difference(back, source) == bytes);
}

TEST_CASE("streams and host lanes wait for each other by turns", "[cuda][stream_lane]") {
  if (!has_gpu()) return;
  CudaDevice const device = CudaDevice::open();
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    INFO("seed " << seed);
    // Not seeded: with a seeded set this never ended on the reference machine; why was not found. Engines on a GPU have threads.
    auto const lanes = LaneSet::threads();
    StreamLane first(lanes, device.ordinal, "first"), second(lanes, device.ordinal, "second", true);
    LaneSet::Lane const all[4] = {lanes->open("a"), lanes->open("b"), first.lane(), second.lane()};
    constexpr int n = 200;
    std::vector<std::atomic<bool>> ran(n);
    std::atomic<int> broken{0};
    int last[4] = {-1, -1, -1, -1};
    std::vector<Ticket> tickets;
    SplitMix64 random(seed);
    for (int i = 0; i < n; ++i) {
      std::size_t const where = random.below(4);
      int const before = last[where];
      int other = -1;
      if (i > 0 && random.below(3) != 0) {
        other = int(random.below(std::uint64_t(i)));
        lanes->wait_for(all[where], tickets[std::size_t(other)]);
      }
      lanes->submit(all[where], [&ran, &broken, i, before, other] {
        if (before >= 0 && !ran[std::size_t(before)].load(std::memory_order_relaxed)) ++broken;
        if (other >= 0 && !ran[std::size_t(other)].load(std::memory_order_relaxed)) ++broken;
        ran[std::size_t(i)].store(true, std::memory_order_relaxed);
      });
      tickets.push_back(lanes->record(all[where]));
      last[where] = i;
    }
    for (Ticket const ticket : tickets) lanes->wait(ticket);
    for (auto const& r : ran) broken += !r.load();
    REQUIRE(broken.load() == 0);
  }
}

TEST_CASE("one stream waits for another, by its newest ticket and by older ones", "[cuda][stream_lane]") {
  if (!has_gpu()) return;
  CudaDevice const device = CudaDevice::open();
  auto const lanes = LaneSet::threads();
  PinnedTier pinned;
  VramTier vram = arena(device, 8 * MiB);
  Buffer source = filled(pinned, random_bytes(1 * MiB, 4)), there(vram, 1 * MiB), back(pinned, 1 * MiB);
  StreamLane up(lanes, device.ordinal, "up"), down(lanes, device.ordinal, "down");
  for (int i = 0; i < 300; ++i) {
    std::memset(source.data(), i & 0xff, source.bytes());
    tiered_test::cuda_check(cudaMemcpyAsync(there.data(), source.data(), source.bytes(), cudaMemcpyDefault, up.stream()));
    Ticket const uploaded = up.ticket();
    if (i % 3 == 1) up.ticket();
    down.wait_for(uploaded);
    tiered_test::cuda_check(cudaMemcpyAsync(back.data(), there.data(), back.bytes(), cudaMemcpyDefault, down.stream()));
    Ticket const downloaded = down.ticket();
    if (i % 2) up.wait_for(downloaded);
    lanes->wait(downloaded);
    REQUIRE(lanes->done(uploaded));
    REQUIRE(first_difference(back.span(), source.span()) == back.bytes());
  }
}

TEST_CASE("a stream waits for tickets of any age", "[cuda][stream_lane]") {
  if (!has_gpu()) return;
  CudaDevice const device = CudaDevice::open();
  for (int const age : {0, 1, 60, 64, 65, 127, 128, 129, 300}) {
    INFO(age << " tickets before the newest");
    auto const lanes = LaneSet::threads();
    StreamLane first(lanes, device.ordinal, "first"), second(lanes, device.ordinal, "second");
    for (int round = 0; round < 2; ++round) {  // in the second, events are recorded already
      Held held(*lanes);
      first.wait_for(held.ticket());
      Ticket const ticket = first.ticket();
      for (int i = 0; i < age; ++i) first.ticket();
      second.wait_for(ticket);
      Ticket const after = second.ticket();
      REQUIRE_FALSE(lanes->done(ticket));
      REQUIRE_FALSE(lanes->done(after));
      held.let_go();
      lanes->wait(after);
      REQUIRE(lanes->done(ticket));
    }
  }
}

TEST_CASE("a lane that sees its work records it once", "[cuda][stream_lane]") {
  if (!has_gpu()) return;
  CudaDevice const device = CudaDevice::open();
  auto const lanes = LaneSet::threads();
  StreamLane lane(lanes, device.ordinal, "lane", true);
  REQUIRE(lane.ticket() == Ticket{lane.lane(), 0});
  lane.touch();
  Ticket const first = lane.ticket();
  REQUIRE(first.value == 1);
  REQUIRE(lane.ticket() == first);
  lanes->wait(first);
  REQUIRE(lanes->done(first));
}

TEST_CASE("a DMA after a failed ticket runs, and its error is for whoever waits", "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  PinnedTier pinned;
  Buffer source = filled(pinned, random_bytes(1000, 1)), on_device(model.backend().memory(), 1000);
  LaneSet::Lane const failing = model.lanes().open("failing");
  Ticket const before = copy(model.copy(), on_device.data(), source.data(), 1000);
  model.lanes().submit(failing, [] { throw Error(Errc::io, "no bytes"); });
  Ticket const after = copy(model.copy(), on_device.data(), source.data(), 1000, {model.lanes().record(failing)});
  model.backend().wait_for(after);
  REQUIRE(error_of([&] { model.copy().wait(after); }).code == Errc::io);
  REQUIRE(error_of([&] { model.backend().synchronize(); }).code == Errc::io);
  model.copy().wait(before);
  model.backend().recover();
  model.backend().synchronize();
  Bytes back(1000);
  model.copy().wait(copy(model.copy(), back.data(), on_device.data(), 1000));
  REQUIRE(first_difference(back, source.span()) == 1000);
}

TEST_CASE("a graph is launched as one, again and again, and updated", "[cuda][backend]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  CudaBackend& backend = model.backend();
  constexpr std::size_t n = 1000;
  std::vector<float> const ones(n, 1.f);
  DeviceFloats<Cuda<false>> x(model, n), y(model, n), z(model, n);
  for (auto* floats : {&x, &y, &z}) backend.wait_for(floats->put(ones));
  auto const capture = [&](CudaGraph& graph, DeviceFloats<Cuda<false>>& to, int n_adds) {
    backend.begin_capture();
    for (int i = 0; i < n_adds; ++i) enqueue_add(model, x, to, n);
    return backend.end_capture(graph);
  };
  CudaGraph graph;
  REQUIRE_FALSE(graph);
  REQUIRE_FALSE(capture(graph, y, 10));
  REQUIRE(graph.n_nodes() == 10);
  REQUIRE(y.get(backend.record()) == ones);  // nothing ran
  for (int i = 0; i < 3; ++i) backend.launch_graph(graph);
  REQUIRE(y.get(backend.record()) == std::vector<float>(n, 31.f));

  REQUIRE(capture(graph, z, 10));  // the same kernels, other arguments
  backend.launch_graph(graph);
  REQUIRE(z.get(backend.record()) == std::vector<float>(n, 11.f));
  REQUIRE_FALSE(capture(graph, z, 4));
  backend.launch_graph(graph);
  REQUIRE(z.get(backend.record()) == std::vector<float>(n, 15.f));
  REQUIRE(y.get(backend.record()) == std::vector<float>(n, 31.f));
}

TEST_CASE("while work is captured, the stream neither records nor waits", "[cuda][backend]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  CudaBackend& backend = model.backend();
  Held held(model.lanes()), other(model.lanes());
  backend.wait_for(held.ticket());
  Ticket const before = backend.record();
  backend.begin_capture();
  REQUIRE(error_of([&] { backend.record(); }).code == Errc::precondition);
  REQUIRE(error_of([&] { backend.wait_for(other.ticket()); }).code == Errc::precondition);
  REQUIRE(error_of([&] { backend.begin_capture(); }).code == Errc::precondition);
  std::thread waiter([&] { model.lanes().wait(before); });  // asks how the stream is, and must not end the capture by it
  for (int i = 0; i < 100; ++i) backend.stream().poll();
  held.let_go();
  waiter.join();
  Buffer floats(backend.memory(), 64);
  launch(backend.kernels().add, AddArgs{reinterpret_cast<float*>(floats.data()), reinterpret_cast<float*>(floats.data()), 16},
         backend.queue());
  REQUIRE(backend.end_capture().n_nodes() == 1);

  backend.begin_capture();
  backend.abandon_capture();
  backend.abandon_capture();
  REQUIRE(error_of([&] { backend.end_capture(); }).code == Errc::precondition);
  REQUIRE(error_of([&] { backend.launch_graph(CudaGraph()); }).code == Errc::precondition);
  backend.synchronize();
}

TEST_CASE("times of streams are on the clock of the lanes", "[cuda][stream_lane]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  PinnedTier pinned;
  Buffer source = filled(pinned, random_bytes(16 * MiB, 1)), on_device(model.backend().memory(), 16 * MiB);
  LaneSet::Lane const host = model.lanes().open("host");
  Ticket const untimed = copy(model.copy(), on_device.data(), source.data(), source.bytes());
  model.copy().wait(untimed);
  REQUIRE_FALSE(model.copy().times({}, untimed));
  model.lanes().keep_times();
  double const started = model.lanes().seconds();
  for (int round = 0; round < 3; ++round) {
    model.lanes().submit(host, [] {});
    Ticket const first = model.lanes().record(host);
    Ticket const begin = model.backend().record();
    Ticket const copied = copy(model.copy(), on_device.data(), source.data(), source.bytes(), {first});
    model.backend().wait_for(copied);
    Ticket const end = model.backend().record();
    model.lanes().wait(end);
    auto const of_host = model.lanes().times({}, first), of_copy = model.copy().times({}, copied),
               of_backend = model.backend().times(begin, end);
    REQUIRE(of_host);
    REQUIRE(of_copy);
    REQUIRE(of_backend);
    INFO("host " << of_host->first << ' ' << of_host->second << ", copy " << of_copy->first << ' ' << of_copy->second << ", backend "
                 << of_backend->first << ' ' << of_backend->second);
    REQUIRE(of_copy->second - of_copy->first > 16 * 1.0 * MiB / 200e9);  // no link is that fast
    REQUIRE(of_backend->first <= of_backend->second);
    // A device's clock is set by a wake-up of this thread: seconds are right, microseconds where the machine is quiet.
    for (auto const& times : {of_host, of_copy, of_backend}) {
      REQUIRE(times->first > started - 1);
      REQUIRE(times->second < model.lanes().seconds() + 1);
    }
    model.lanes().forget_times();
    REQUIRE_FALSE(model.copy().times({}, copied));
  }
}

TEST_CASE("addresses are known by kind, and forgotten on demand", "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  CudaDevice const device = CudaDevice::open();
  CudaAddresses addresses;
  PinnedTier pinned;
  VramTier vram = arena(device, 8 * MiB);
  Buffer locked(pinned, 10000), there(vram, 10000);
  Bytes pageable(10000);
  using Kind = CudaAddresses::Kind;
  for (int round = 0; round < 2; ++round) {
    REQUIRE(addresses.find(pageable.data() + 5, 100).kind == Kind::pageable);
    REQUIRE(addresses.find(pageable.data() + 5, 100).bytes == 100);
    REQUIRE(addresses.find(locked.data() + 5, 100).kind == Kind::pinned);
    REQUIRE(addresses.find(locked.data() + 5, 9995).bytes == 9995);
    REQUIRE(addresses.find(there.data() + 9999, 1).kind == Kind::device);
    REQUIRE(addresses.find(there.data() + 1, 9000).bytes == 9000);
  }
  REQUIRE(addresses.size() == 2);
  addresses.forget(locked.data() + 50, 1);
  REQUIRE(addresses.size() == 1);
  addresses.add(pageable.data(), pageable.size(), Kind::pinned);
  REQUIRE(addresses.find(pageable.data() + 9990, 100).bytes == 10);
}

TEST_CASE("which way a copy goes is known by its addresses, and engines of one held link bring all bytes both ways",
          "[cuda][copy_engine]") {
  if (!has_gpu()) return;
  using Throttled = ThrottledCopyEngine<StreamCopyEngine>;
  Cuda<false> cuda;
  CudaDevice const device = CudaDevice::open();
  auto const link = Throttled::make_link(20e9);
  Throttled weights(cuda.shared_lanes(), link, device.ordinal), states(cuda.shared_lanes(), link, device.ordinal);
  constexpr std::size_t n = 9 * MiB;  // several parts
  PinnedTier pinned;
  Bytes const pattern = random_bytes(n, 21);
  Bytes plain(n);
  Buffer near = filled(pinned, pattern), back(pinned, n), one(cuda.backend().memory(), n), other(cuda.backend().memory(), n);
  auto const way = [&](std::byte* dst, std::byte const* src) { return weights.way_of({dst, src, n}); };
  CHECK(way(one.data(), near.data()) == LinkWay::to_device);
  CHECK(way(one.data(), plain.data()) == LinkWay::to_device);
  CHECK(way(back.data(), one.data()) == LinkWay::to_host);
  CHECK(way(plain.data(), one.data()) == LinkWay::to_host);
  CHECK(way(other.data(), one.data()) == LinkWay::none);
  CHECK(way(plain.data(), near.data()) == LinkWay::none);
  CHECK(weights.way_of({one.data(), near.data(), 0}) == LinkWay::none);

  Ticket const there = copy(weights, one.data(), near.data(), n), across = copy(weights, other.data(), one.data(), n, {there});
  Ticket const here = copy(states, back.data(), other.data(), n, {across});
  states.wait(copy(states, plain.data(), one.data(), n, {there}));
  states.wait(here);
  CHECK(first_difference(back.span(), pattern) == n);
  CHECK(first_difference(plain, pattern) == n);
}

TEST_CASE("a launch that fails says so in CUDA's words", "[cuda][backend]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  Kernel<AddArgs> const fails = [](AddArgs const&, Queue) { return int(cudaErrorInvalidConfiguration); };
  REQUIRE(error_of([&] { launch(fails, AddArgs{}, model.backend().queue()); }).says("9", "invalid configuration argument"));
}

TEST_CASE("what cuBLAS refuses says so by its name and number", "[cuda][backend]") {
  CHECK(kernel_status(CUBLAS_STATUS_SUCCESS) == 0);
  Kernel<AddArgs> const fails = [](AddArgs const&, Queue) { return kernel_status(CUBLAS_STATUS_EXECUTION_FAILED); };
  tiered_test::Thrown const t = error_of([&] { launch(fails, AddArgs{}, Queue{nullptr, &kernel_status_text}); });
  CHECK(t.code == Errc::device);
  CHECK(t.says("CUBLAS_STATUS_EXECUTION_FAILED", "(13)"));
  for (int status = 1; status < 32; ++status) CHECK(std::string(kernel_status_text(cublas_status_base + status)).size() > 10);

  if (!has_gpu()) return;
  CudaQueue no_library;  // for a product that is cuBLAS's own
  no_library.capability = 90;
  no_library.n_multiprocessors = 1;
  MatmulArgs args;
  args.n_tokens = args.rows = args.dim = 64;
  args.y_stride = 64;
  CHECK(cuda_kernels().matmul[std::uint32_t(DType::f16)](args, Queue{&no_library}) == kernel_status(CUBLAS_STATUS_NOT_INITIALIZED));
}

TEST_CASE("whoever waits for a stream works on with the device that it had", "[cuda][stream_lane]") {
  if (!has_gpu()) return;
  int n_devices = 0, device_after = -1;
  tiered_test::cuda_check(cudaGetDeviceCount(&n_devices));
  auto const lanes = LaneSet::threads();
  CudaDevice const device = CudaDevice::open(n_devices - 1);  // another one than the thread's where there are two
  StreamLane stream(lanes, device.ordinal, "stream");
  std::thread([&] {
    if (n_devices > 1) cudaSetDevice(0), cudaFree(nullptr);  // with a context of its own
    stream.poll();
    cudaGetDevice(&device_after);
  }).join();
  CHECK(device_after == (n_devices > 1 ? 0 : device.ordinal));
  CudaDevice::open(0);  // this thread's again, for the tests that follow
}

/// Ends the process's use of the device: by itself only, "[lost]".
TEST_CASE("a device that is lost is noticed by whoever waits", "[.][lost]") {
  if (!has_gpu()) return;
  Cuda<false> model;
  LaneSet::Lane const host = model.lanes().open("host");
  auto* const nowhere = reinterpret_cast<float*>(std::uintptr_t{1} << 40);
  Held held(model.lanes());  // or a call on the way here would be told of the failure already
  model.backend().wait_for(held.ticket());
  launch(model.backend().kernels().add, AddArgs{nowhere, nowhere, 1000}, model.backend().queue());
  Ticket const never = model.backend().record();
  model.lanes().wait_for(host, never);
  model.lanes().submit(host, [] {});
  held.let_go();
  REQUIRE(error_of([&] { model.lanes().wait(never); }).says("illegal memory access", "lost"));
  REQUIRE(error_of([&] { model.lanes().synchronize(host); }).code == Errc::device);
  model.backend().recover();
  REQUIRE(error_of([&] { model.backend().synchronize(); }).code == Errc::device);
}
