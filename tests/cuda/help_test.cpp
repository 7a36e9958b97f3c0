// A device that waits for the host within a launch: what it posts, what it is given, and that it can be let go.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>

#include "catch.hpp"
#include "cuda/asking_gpu.hpp"
#include "cuda/limited_gpu.hpp"
#include "tiered/memory/buffer.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

/// One layer's end: a router's choice among experts of which some are not there.
struct Layer {
  static constexpr std::int32_t n_experts = 24, n_used = 8, layer = 5;
  Layer(std::int32_t dim_, SplitMix64& random)
      : dim(dim_),
        x(random_floats(std::size_t(dim), random)),
        norm(random_floats(std::size_t(dim), random)),
        sum(random_floats(std::size_t(dim), random)),
        host_sum(random_floats(std::size_t(dim), random)),
        weights(random_floats(n_used, random)) {
    for (std::int32_t e = 0; e < n_experts; ++e) there.push_back(random.below(4) != 0);
    for (std::int32_t j = 0; j < n_used; ++j) ids.push_back(j * 3 + std::int32_t(random.below(3)));
  }
  bool misses() const {
    return std::ranges::any_of(ids, [&](std::int32_t id) { return !there[std::size_t(id)]; });
  }
  std::uint32_t missing() const {
    std::uint32_t bits = 0;
    for (std::size_t j = 0; j < ids.size(); ++j) bits |= there[std::size_t(ids[j])] ? 0u : 1u << j;
    return bits;
  }
  std::vector<float> normed() const {
    double squares = 0;
    for (float const v : x) squares += double(v) * double(v);
    double const factor = 1 / std::sqrt(squares / double(dim) + 1e-6);
    std::vector<float> out;
    for (std::size_t i = 0; i < x.size(); ++i) out.push_back(float(double(x[i]) * factor * double(norm[i])));
    return out;
  }
  std::int32_t dim;
  std::vector<float> x, norm, sum, host_sum, weights;
  std::vector<bool> there;
  std::vector<std::int32_t> ids;
};

/// The op's memory on both sides.
struct Room {
  Room(Layer const& l, PinnedTier& pinned)
      : layer(l),
        host(pinned, 64 * KiB + 4 * std::size_t(l.dim) * sizeof(float) + 2 * MiB, 4096),
        hidden(l.x),
        sum(l.sum),
        norm(l.norm),
        weights(l.weights),
        row(std::size_t(l.dim)),
        ids(l.ids),
        fetched(std::size_t(Layer::n_used)),
        state(std::vector<HelpState>{{7, 0}}),
        table(groups()) {
    std::memset(host.data(), 0, host.bytes());
    mail = new (host.data()) HelpMail;
    log = new (host.data() + 16 * KiB) HelpLog;
    host_ids = reinterpret_cast<std::int32_t*>(host.data() + 20 * KiB);
    host_weights = reinterpret_cast<float*>(host.data() + 24 * KiB);
    host_row = reinterpret_cast<float*>(host.data() + 64 * KiB);
    host_sum = host_row + l.dim;
    std::memcpy(host_sum, l.host_sum.data(), l.host_sum.size() * sizeof(float));
    large = host.data() + 64 * KiB + 4 * std::size_t(l.dim) * sizeof(float);
  }
  std::vector<ExpertGroup> groups() const {
    std::vector<ExpertGroup> out;
    for (std::int32_t e = 0; e < Layer::n_experts; ++e) {
      void const* const somewhere = reinterpret_cast<void const*>(std::uintptr_t(64 * (e + 1)));  // nobody reads there
      out.push_back(layer.there[std::size_t(e)] ? ExpertGroup{somewhere, somewhere, somewhere, 0, 0} : ExpertGroup{});
    }
    return out;
  }
  HelpArgs args() {
    HelpArgs a;
    a.mail = mail;
    a.state = state.data();
    a.experts = table.data();
    a.ids = ids.data();
    a.weights = weights.data();
    a.row = {hidden.data(), norm.data(), row.data(), 1, layer.dim, 1e-6f};
    a.sum = sum.data();
    a.hidden = hidden.data();
    a.fetched_ids = fetched.data();
    a.log = log;
    a.host_ids = host_ids;
    a.host_weights = host_weights;
    a.host_row = host_row;
    a.host_sum = host_sum;
    a.n_used = Layer::n_used;
    a.n_experts = Layer::n_experts;
    a.dim = layer.dim;
    a.layer = Layer::layer;
    a.copies = true;
    return a;
  }
  Layer const& layer;
  Buffer host;
  DeviceArray<float> hidden, sum, norm, weights, row;
  DeviceArray<std::int32_t> ids, fetched;
  DeviceArray<HelpState> state;
  DeviceArray<ExpertGroup> table;
  HelpMail* mail;
  HelpLog* log;
  std::int32_t* host_ids;
  float *host_weights, *host_row, *host_sum;
  std::byte* large;
};

constexpr std::uint64_t number = 7 * 1024 + Layer::layer + 1;

std::vector<std::byte> random_bytes(std::size_t n, SplitMix64& random) {
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = std::byte(random.below(256));
  return bytes;
}

/// Until the device has asked.
void wait_for_request(Room const& room) {
  while (std::atomic_ref(room.mail->request).load(std::memory_order_acquire) != number) std::this_thread::yield();
}

/// What the row is after the op, in its order of sums.
std::vector<float> expected_row(Layer const& l, bool has_sum) {
  std::vector<float> out;
  for (std::size_t i = 0; i < l.x.size(); ++i) {
    float const here = l.x[i] + l.sum[i];
    out.push_back(has_sum ? here + l.host_sum[i] : here);
  }
  return out;
}

}  // namespace

TEST_CASE("CUDA help: where an expert is missing the host is asked, and what it lists is copied", "[cuda]") {
  auto const gpu = AskingGpu::open();
  if (!gpu) return;
  SplitMix64& random = gpu->random;
  for (int round = 0; round < 60; ++round) {
    Layer const l(std::int32_t(8 * (1 + random.below(300)) + random.below(2)), random);
    INFO("TIERED_SEED=" << fresh_seed() << ", round " << round << ", dim " << l.dim);
    Room room(l, gpu->pinned);
    bool const has_sum = random.below(2) == 1;
    std::size_t const n_large = (1 + random.below(100000)) * 4;
    std::vector<std::byte> const bytes = random_bytes(n_large, random);
    std::memcpy(room.large, bytes.data(), n_large);
    DeviceArray<std::byte> target(n_large);
    std::vector<std::int32_t> const fetched = {3, -1, 1, -1, 0, -1, -1, 2};
    std::memcpy(room.large + MiB, fetched.data(), fetched.size() * sizeof(std::int32_t));
    gpu->launch(gpu->table().help, room.args());
    if (l.misses()) {
      wait_for_request(room);
      CHECK(room.mail->layer == Layer::layer);
      CHECK(room.mail->missing == l.missing());
      CHECK(std::equal(l.ids.begin(), l.ids.end(), room.host_ids));
      CHECK(std::equal(l.weights.begin(), l.weights.end(), room.host_weights));
      std::vector<float> const normed = l.normed();
      for (std::size_t i = 0; i < normed.size(); ++i)
        REQUIRE(std::fabs(room.host_row[i] - normed[i]) <= 1e-5f * (1 + std::fabs(normed[i])));
      room.mail->parts[0] = {room.large, target.data(), std::int32_t(n_large)};
      room.mail->parts[1] = {room.large + MiB, room.fetched.data(), std::int32_t(fetched.size() * sizeof(std::int32_t))};
      room.mail->n_parts = 2;
      std::atomic_ref(room.mail->decided).store(number, std::memory_order_release);
      room.mail->has_sum = has_sum;
      std::atomic_ref(room.mail->answered).store(number, std::memory_order_release);
    }
    gpu->finish();
    CHECK(room.mail->request == (l.misses() ? number : 0));
    CHECK(room.hidden.download() == expected_row(l, l.misses() && has_sum));
    CHECK(room.sum.download() == std::vector<float>(std::size_t(l.dim)));
    CHECK(std::equal(l.ids.begin(), l.ids.end(), room.log->ids));
    CHECK((room.log->asked_ns != 0) == l.misses());
    CHECK(room.log->missing == l.missing());
    CHECK(room.log->begin_ns <= room.log->end_ns);
    CHECK(room.fetched.download() == (l.misses() ? fetched : std::vector<std::int32_t>(Layer::n_used, -1)));
    if (!l.misses()) continue;
    CHECK(target.download() == bytes);
    std::vector<float> const row = room.row.download();
    CHECK(std::memcmp(row.data(), room.host_row, row.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("CUDA help: blocks that find a table which is changed already copy what was decided", "[cuda]") {
  auto const gpu = AskingGpu::open();
  if (!gpu) return;
  Layer l(256, gpu->random);
  l.there.assign(Layer::n_experts, true);
  std::vector<std::byte> const bytes = random_bytes(256 * KiB, gpu->random);
  for (bool const is_decided : {true, false}) {
    Room room(l, gpu->pinned);
    std::memcpy(room.large, bytes.data(), bytes.size());
    DeviceArray<std::byte> target(bytes.size());
    HelpState const state{7, is_decided ? number : number - 1};
    room.state.upload({state});
    room.mail->parts[0] = {room.large, target.data(), std::int32_t(bytes.size())};
    room.mail->n_parts = 1;
    gpu->launch(gpu->table().help, room.args());
    gpu->finish();
    CHECK(room.mail->request == 0);
    CHECK((target.download() == bytes) == is_decided);
  }
}

TEST_CASE("CUDA help: a host that gives up lets the device go", "[cuda]") {
  auto const gpu = AskingGpu::open();
  if (!gpu) return;
  Layer l(256, gpu->random);
  l.there[std::size_t(l.ids[0])] = false;
  for (bool const before : {true, false}) {
    Room room(l, gpu->pinned);
    if (before) room.mail->given_up = 1;
    gpu->launch(gpu->table().help, room.args());
    if (!before) {
      wait_for_request(room);
      std::atomic_ref(room.mail->given_up).store(1, std::memory_order_release);
    }
    gpu->finish();
    CHECK(room.hidden.download() == expected_row(l, false));
  }
  Room late(l, gpu->pinned);
  HelpArgs args = late.args();
  args.patience_ns = 1000;
  gpu->launch(gpu->table().help, args);
  gpu->finish();
  CHECK((late.mail->timed_out == 1 && late.mail->request == number));
  CHECK(late.state.download()[0].failed == number);
  CHECK(late.hidden.download() == expected_row(l, false));
}

namespace {

/// All but experts in VRAM, of these four in ten: each token asks for some.
Engine<test::LimitedPolicies> small_engine(std::shared_ptr<Transformer const> const& model, LookAhead look_ahead = LookAhead::planned) {
  EngineOptions options;
  options.look_ahead = look_ahead;
  options.vram_bytes = 4 * GiB;
  options.max_context = 256;
  options.n_threads = 2;
  options.hardware = HardwareProfile::simulated();
  return test::make_limited(model, options, AnyPlacement(test::ExpertsInCache{0.4}), 8 * MiB);
}

}  // namespace

TEST_CASE("cuda: a mixture that does not fit decodes in one launch a token, and asks for what is missing", "[cuda][golden]") {
  if (!has_gpu()) return;
  auto engine = small_engine(test::open_golden("qwen3moe.f16.gguf"));
  HelpCounters const before = engine.stats().help;
  Sequence const sequence = engine.new_sequence();
  engine.prefill(sequence, std::vector<std::int32_t>{1, 2, 3, 4, 5});
  for (std::int32_t i = 0; i < 40; ++i) engine.decode(sequence, 3 + i * 11 % 50);
  HelpCounters const help = engine.stats().help;
  CHECK(help.n_steps == before.n_steps + 40);
  CHECK(help.n_requests > before.n_requests);
}

TEST_CASE("cuda: experts that come ahead of their layers leave the logits where they are", "[cuda][golden]") {
  if (!has_gpu()) return;
  auto const model = test::open_golden("qwen3moe.f16.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  auto engine = small_engine(model, LookAhead::always);
  HelpCounters const before = engine.stats().help;
  double const tolerance = test::quantised_tolerance(*model, f);
  for (int round = 0; round < 5; ++round) {
    std::vector<float> const got = test::all_logits(engine, f.tokens, {2, 1});
    CHECK(test::median_row_rms(got, f) < tolerance);
    CHECK(test::compare(got, f).rms < 4 * tolerance);
  }
  HelpCounters const help = engine.stats().help;
  CHECK(help.n_steps > before.n_steps);
  CHECK(help.n_guessed > before.n_guessed);
  CHECK(help.n_in_time <= help.n_right);
}

TEST_CASE("cuda: memory is allocated and page-locked by others while a device waits for its host", "[cuda][golden]") {
  if (!has_gpu()) return;
  auto engine = small_engine(test::open_golden("qwen3moe.f16.gguf"));
  std::atomic<bool> ends = false;
  std::atomic<int> n_rounds = 0;
  std::jthread const other([&] {
    std::vector<std::byte> bytes(4 * MiB);
    while (!ends) {
      void *device = nullptr, *pinned = nullptr;
      bool ok = cudaMalloc(&device, 8 * MiB) == cudaSuccess && cudaFree(device) == cudaSuccess;
      ok = ok && cudaHostAlloc(&pinned, MiB, cudaHostAllocDefault) == cudaSuccess && cudaFreeHost(pinned) == cudaSuccess;
      ok = ok && cudaHostRegister(bytes.data(), bytes.size(), cudaHostRegisterDefault) == cudaSuccess;
      ok = ok && cudaHostUnregister(bytes.data()) == cudaSuccess;
      n_rounds += ok ? 1 : 0;
      if (!ok) return;
    }
  });
  Sequence sequence = engine.new_sequence();
  engine.prefill(sequence, std::vector<std::int32_t>{1, 2, 3, 4, 5});
  for (int i = 0; i < 40 || (n_rounds < 20 && i < 200); ++i) {  // each a step at least, some of them one that is done again
    sequence.truncate(5);
    engine.decode(sequence, 3 + i * 11 % 50);
  }
  ends = true;
  CHECK(n_rounds >= 20);
}
