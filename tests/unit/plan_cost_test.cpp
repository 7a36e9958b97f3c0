#include "tiered/plan/cost.hpp"

#include <cmath>

#include "catch.hpp"
#include "fake_model.hpp"

using namespace tiered;

TEST_CASE("costs are not negative, finite and monotone in the rows", "[plan][cost]") {
  AnalyticCost const cost;
  SplitMix64 random{7};
  for (int round = 0; round < 50; ++round) {
    fake::Model const model{fake::random_spec(random)};
    ShardTable const table = model.table();
    for (Shard const& s : table.shards) {
      PassCost before;
      for (std::int32_t n : {1, 2, 3, 8, 15, 16, 17, 64, 100, 512, 513, 4096}) {
        PassCost const now = cost.cost(s, Rows{n, 4096, 1});
        INFO("kind " << name(s.kind) << " n " << n);
        REQUIRE(now.host_s >= before.host_s);
        REQUIRE(now.copy_s >= before.copy_s);
        REQUIRE(std::isfinite(now.host_s));
        if (s.kind == ShardKind::embedding) continue;
        REQUIRE(now.gpu_s >= before.gpu_s);
        REQUIRE(std::isfinite(now.gpu_s));
        before = now;
      }
    }
  }
}

TEST_CASE("a layer's state costs more for more rows, more context, and less within a window", "[plan][cost]") {
  AnalyticCost const cost;
  LayerState const full{.bytes_per_token = 2048, .macs_per_position = 4096};
  LayerState const windowed{.bytes_per_token = 2048, .macs_per_position = 4096, .window = 512};
  PassCost before;
  for (std::int32_t n : {1, 16, 64, 512, 1000, 4096, 8192}) {
    PassCost const now = cost.cost(full, Rows{n, 4096, 1}), less = cost.cost(windowed, Rows{n, 4096, 1});
    REQUIRE(now.host_s >= before.host_s);
    REQUIRE(now.gpu_s >= before.gpu_s);
    REQUIRE(less.host_s <= now.host_s);
    REQUIRE(less.gpu_s <= now.gpu_s);
    before = now;
  }
  REQUIRE(cost.cost(full, Rows{1, 8192, 1}).host_s > cost.cost(full, Rows{1, 1024, 1}).host_s);
  // rows.context is of all sequences together: four with a quarter each read as much as one, and do a quarter for each row.
  REQUIRE(cost.cost(full, Rows{4, 8192, 4}).copy_s == cost.cost(full, Rows{1, 8192, 1}).copy_s);
  REQUIRE(cost.cost(full, Rows{4, 8192, 4}).host_s == Approx(cost.cost(full, Rows{1, 8192, 1}).host_s).epsilon(0.01));
}

TEST_CASE("an expert costs what it costs times the probability that any row uses it", "[plan][cost]") {
  Shard expert;
  expert.kind = ShardKind::expert;
  expert.bytes = 1 << 20;
  expert.macs_per_token = double(1 << 21);
  expert.use_probability = 0.125;
  REQUIRE(use_probability(expert, 0) == 0);
  REQUIRE(use_probability(expert, 1) == Approx(0.125));
  REQUIRE(use_probability(expert, 2) == Approx(1 - 0.875 * 0.875));
  REQUIRE(use_probability(expert, 1000) == Approx(1));
  AnalyticCost const cost;
  Shard always = expert;
  always.use_probability = 1;
  PassCost const one = cost.cost(expert, Rows{1, 1, 1}), sure = cost.cost(always, Rows{1, 1, 1});
  REQUIRE(one.copy_s == Approx(0.125 * sure.copy_s));
  REQUIRE(one.host_s == Approx(0.125 * sure.host_s));
  REQUIRE(one.gpu_s == Approx(0.125 * sure.gpu_s));
}

TEST_CASE("a device runs all experts of a block in one launch, at the rate of so many rows in all; the host at that of each one's",
          "[plan][cost]") {
  Shard expert;
  expert.kind = ShardKind::expert;
  expert.bytes = 1 << 20;
  expert.macs_per_token = double(1 << 21);
  expert.use_probability = 1.0 / 16;
  AnalyticCost cost;
  cost.hardware.gpu.launch_s = cost.hardware.host.launch_s = 0;
  for (DeviceRates* device : {&cost.hardware.gpu, &cost.hardware.host}) {
    for (MatmulRates& rates : device->matmul) rates = {1e15, {{{1, 1e12}, {64, 1e12}, {1024, 16e12}}}};
  }
  // 1024 rows, 64 of them to this expert: 2^28 flops.
  PassCost const many = cost.cost(expert, Rows{1024, 1024, 1});
  CHECK(many.gpu_s == Approx(double(1 << 28) / 16e12));
  CHECK(many.host_s == Approx(double(1 << 28) / 1e12));
  CHECK(cost.cost(expert, Rows{1, 1, 1}).gpu_s == Approx(double(1 << 22) / 1e12 / 16));
}

TEST_CASE("long contexts are read at a device's rate for weights, not at that of the few positions that were measured", "[plan][cost]") {
  LayerState const state{.bytes_per_token = 2048, .macs_per_position = 1};
  AnalyticCost cost;
  cost.hardware.gpu.launch_s = 0;
  cost.hardware.gpu.attention_bytes_per_s = 0.5e12;
  for (MatmulRates& rates : cost.hardware.gpu.matmul) rates.bytes_per_s = 3e12;
  auto const device_s = [&](std::int32_t context) { return cost.cost(state, Rows{1, context, 1}).gpu_s; };
  CHECK(device_s(4096) == Approx(2048 * 4096 / 0.5e12));
  CHECK(device_s(16384) == Approx(2048 * 4096 / 0.5e12 + 2048 * 12288 / 1.5e12));
  cost.hardware.gpu.attention_bytes_per_s = 2e12;
  CHECK(device_s(16384) == Approx(2048 * 16384 / 2e12));
  CHECK(cost.cost(state, Rows{1, 16384, 1}).host_s > 3.9 * cost.cost(state, Rows{1, 4096, 1}).host_s);
}

TEST_CASE("a device without a kernel for one of a shard's types costs infinitely much", "[plan][cost]") {
  fake::Model const model{fake::small_dense()};
  Shard const attention = model.table().shards[1];
  REQUIRE((attention.dtypes & dtype_bit(DType::q6_k)) != 0);
  AnalyticCost cost;
  cost.capabilities.gpu_matmul &= ~dtype_bit(DType::q6_k);
  REQUIRE(std::isinf(cost.cost(attention, Rows{}).gpu_s));
  REQUIRE(std::isfinite(cost.cost(attention, Rows{}).host_s));
  cost.capabilities = {};
  cost.capabilities.host_attention = false;
  REQUIRE(std::isinf(cost.cost(model.table().states[0], Rows{1, 10, 1}).host_s));
}

TEST_CASE("the head meets one row of a sequence, however long the prompt", "[plan][cost]") {
  fake::Model const model{fake::small_dense()};
  Shard const output = model.table().shards.back();
  REQUIRE(output.kind == ShardKind::output);
  AnalyticCost const cost;
  REQUIRE(cost.cost(output, Rows{512, 512, 1}) == cost.cost(output, Rows{1, 512, 1}));
}

TEST_CASE("of what is attended to, the first positions are in VRAM as far as a share goes, and long contexts count for an eighth",
          "[plan][cost]") {
  CHECK(attended_in_vram(0, 0.25, 0) == 0);
  CHECK(attended_in_vram(1, 0.25, 0) == 1);
  CHECK(attended_in_vram(0.25, 0.25, 0) == Approx(1 - 0.75 / 8));
  CHECK(attended_in_vram(0.125, 0.25, 0) == Approx(0.5 - 0.375 / 8));
  CHECK(attended_in_vram(0.5, 1, 0) == Approx(0.5));
  CHECK(attended_in_vram(0.5, 0.25, 128) == Approx(7.0 / 8));  // a window is at the end
  CHECK(attended_in_vram(0.125, 0.25, 128) == 0);
}

TEST_CASE("many rows bring keys and values from host memory where that is faster, few never do", "[plan][cost]") {
  PassCost const slow_host{10, 1, 2}, slow_link{3, 1, 20};
  CHECK(host_attention(slow_host, 1, 512).streams);
  CHECK(host_attention(slow_host, 1, 512).seconds() == 2);
  CHECK_FALSE(host_attention(slow_host, 1, 16).streams);
  CHECK(host_attention(slow_host, 1, 16).seconds() == 12);
  CHECK_FALSE(host_attention(slow_link, 1, 512).streams);
  CHECK(host_attention(slow_link, 1, 512).seconds() == 5);
  // A quarter in VRAM: both at once; brought, one after the other.
  CHECK(attention_s(slow_link, 0.25, true, 1, 512, true) == Approx(0.75 * 3 + 2));
  CHECK(attention_s(slow_link, 0.25, false, 1, 512, true) == Approx(0.25 + 2));
  CHECK(attention_s(slow_host, 0.25, true, 1, 512, true) == Approx(0.25 + 0.75 * 2));
  CHECK(attention_s(slow_host, 0.25, true, 1, 512, false) == Approx(0.75 * 10 + 2));
  CHECK(attention_s(slow_host, 1, true, 1, 512, false) == 1);
}

TEST_CASE("host and link attend to what is in host memory so that both end together, or the link does it all", "[plan][cost]") {
  MutualRates const mutual{0.5, 0.8};
  PassCost const state{10, 1, 16};  // 20 and 20 beside each other
  ReadAttention const both = read_attention(state, 0, mutual);
  CHECK(both.read == Approx(0.5));
  CHECK(both.seconds == Approx(10));
  ReadAttention const later = read_attention(state, 1, mutual);  // the host has 2 s less
  CHECK(later.read == Approx(22.0 / 40));
  CHECK(later.read * 16 / 0.8 == Approx((1 - later.read) * 10 / 0.5 + 2));
  CHECK(later.seconds == Approx(11));
  CHECK(read_attention(state, 10, mutual).read == 1);  // before the host has heard of it
  CHECK(read_attention(state, 10, mutual).seconds == 16);
  CHECK(read_attention({HUGE_VAL, 1, 16}, 0, mutual).read == 1);
  CHECK(read_attention({10, 32, 16}, 0, mutual).read == Approx(20.0 / 60));  // a device that is slower than its link
  CHECK(both.link_s == both.seconds);
  CHECK(read_attention({10, 32, 16}, 0, mutual).link_s == Approx(20.0 / 60 * 16 / 0.8));  // which then is idle at times
  CHECK(read_attention(state, 10, mutual).link_s == 16);
}

TEST_CASE("one row's launched attention takes as long as the longer of what VRAM has and of what host memory has", "[plan][cost]") {
  MutualRates const mutual{0.5, 0.8};
  PassCost const state{10, 1, 16};
  CHECK(launched_attention(state, 0.5, 0, mutual).link_s == Approx(5));
  CHECK(launched_attention(state, 0.5, 0, mutual).copy_s == Approx(4));  // half of it, alone 8
  CHECK(launched_attention(state, 0.5, 0, mutual).host_s == Approx(2.5));
  CHECK(launched_attention(state, 0.5, 0, mutual).seconds == Approx(5));
  CHECK(launched_attention(state, 1, 1, mutual).link_s == 0);
  CHECK(launched_attention(state, 1, 1, mutual).seconds == 1);
  CHECK(launched_attention({10, 40, 16}, 0.9, 0, mutual).seconds == Approx(36));
  CHECK(launched_attention({HUGE_VAL, 1, 16}, 0.5, 0, mutual).host_s == 0);
}

TEST_CASE("room for the positions of most contexts is not taken for quicker than room for all", "[plan][cost]") {
  MutualRates const mutual{0.9, 0.9};
  PassCost const state{100, 12, 180};  // of what most contexts have
  auto const launched_s = [&](double share, double grown) { return launched_attention(state, {share, 0.25, 0, grown}, 0, mutual).seconds; };
  auto const split_s = [&](double share, double grown) { return attention_s(state, {share, 0.25, 0, grown}, true, 0, 1, false); };
  auto const check = [](auto const& seconds) {
    CHECK(seconds(1, 1 / long_contexts) == 12);
    for (double const share : {0.25, 0.5, 0.75, 0.9}) {
      CAPTURE(share);
      CHECK(seconds(share, 0) == 12);
      CHECK(seconds(share, 1) >= (share < 0.9 ? 12.5 : 10));
      CHECK(seconds(share, 1 / long_contexts) == Approx(12 + (seconds(share, 1) - 12) / 8));
    }
    CHECK(seconds(0.5, 1 / long_contexts) > 12.5);
  };
  check(launched_s);
  check(split_s);
  double const never = attention_s({HUGE_VAL, 1, 2}, AttendedTo{0, 0.25}, true, 0, 1, false);  // no host attends to it
  CHECK((std::isinf(never) && never > 0));
  CHECK(std::isinf(attention_s({HUGE_VAL, 1, 2}, AttendedTo{0.5, 0.25}, true, 0, 1, false)));
  CHECK(attention_s({HUGE_VAL, 1, 2}, AttendedTo{1, 0.25}, true, 0, 1, false) == 1);
}

TEST_CASE("attention that arithmetic bounds loses to the link only what memory cannot give", "[plan][cost]") {
  HardwareProfile h = HardwareProfile::simulated();
  h.mutual = {0.8, 0.9};
  for (MatmulRates& rates : h.host.matmul) rates.bytes_per_s = 100e9;
  h.host.attention_bytes_per_s = 100e9;
  CHECK(attention_beside_link(h).host_share == Approx(0.8));
  CHECK(attention_beside_link(h).h2d_share == 0.9);
  h.host.attention_bytes_per_s = 90e9;
  CHECK(attention_beside_link(h).host_share == Approx(8.0 / 9));
  h.host.attention_bytes_per_s = 60e9;
  CHECK(attention_beside_link(h).host_share == 1);
  h.host.attention_bytes_per_s = 140e9;  // of a cache
  CHECK(attention_beside_link(h).host_share == Approx(8.0 / 14));
  h.host.attention_bytes_per_s = 0;  // not measured
  CHECK(attention_beside_link(h).host_share == Approx(0.8));
}
