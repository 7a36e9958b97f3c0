#include "tiered/pipeline/idle_reading.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"

using namespace tiered;

namespace {

/// Shards of matrices of 2 rows and vectors, at made-up addresses that say which they are.
struct Table {
  std::vector<Weight> weights;
  std::vector<Shard> shards;

  static std::byte const* address(std::size_t weight) { return reinterpret_cast<std::byte const*>(4096 * (weight + 1)); }
  void add(ShardKind kind, std::vector<int> const& rows) {
    Shard s;
    s.id = ShardId(shards.size());
    s.kind = kind;
    s.weights.begin = std::int32_t(weights.size());
    for (int const n : rows) weights.push_back({address(weights.size()), DType::f32, n, 8, s.id, 0, 0});
    s.weights.end = std::int32_t(weights.size());
    shards.push_back(s);
  }
  ShardTable table() const { return {shards, {}, {}, weights}; }
};

std::vector<std::size_t> weights_of(ReadAheadArgs const& args) {
  std::vector<std::size_t> out;
  for (std::int32_t i = 0; i < args.n_parts; ++i) {
    out.push_back(std::size_t(static_cast<std::byte const*>(args.parts[i].data) - static_cast<std::byte const*>(nullptr)) / 4096 - 1);
    CHECK(args.parts[i].bytes == 2 * 8 * sizeof(float));
  }
  return out;
}

}  // namespace

TEST_CASE("threads that wait read the last matrix of their step and what the next step on the host begins with") {
  Table t;
  t.add(ShardKind::embedding, {2});              // weight 0
  t.add(ShardKind::attention, {1, 2, 2, 2, 2});  // 1: norm, 2..5: q, k, v, out
  t.add(ShardKind::ffn, {1, 2, 2, 2});           // 6, 7..9: gate, up, down
  t.add(ShardKind::attention, {1, 2, 2, 2, 2});  // 10, 11..14: on the device
  t.add(ShardKind::ffn, {1, 2, 2, 2});           // 15, 16..18: by rows, in two actions
  t.add(ShardKind::output, {1, 2});              // 19, 20
  auto const run = [](std::uint32_t shard, DeviceId device) {
    Action a;
    a.kind = ActionKind::run;
    a.shard = ShardId{shard};
    a.device = device;
    return a;
  };
  Schedule const schedule{run(0, host_device), run(1, host_device), run(2, host_device), run(3, first_gpu),
                          run(4, host_device), run(4, host_device), run(5, host_device)};
  IdleReading reading;
  CHECK(reading.of(1).n_parts == 0);
  reading.prepare(schedule, t.table());
  CHECK(weights_of(reading.of(0)).empty());
  CHECK(weights_of(reading.of(1)) == std::vector<std::size_t>{5, 7, 8});
  CHECK(weights_of(reading.of(2)) == std::vector<std::size_t>{9, 16, 17});
  CHECK(weights_of(reading.of(3)).empty());
  CHECK(weights_of(reading.of(4)) == std::vector<std::size_t>{18, 20});
  CHECK(weights_of(reading.of(5)).empty());
  CHECK(weights_of(reading.of(6)) == std::vector<std::size_t>{2, 3, 4});  // the next token's
  reading.clear();
  CHECK(reading.of(1).n_parts == 0);
  reading.prepare({}, t.table());
  CHECK(reading.of(0).n_parts == 0);
}
