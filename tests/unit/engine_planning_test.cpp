// What a plan asks of kernels.
#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/kernels/reference/table.hpp"

using namespace tiered;
using namespace tiered::test;

TEST_CASE("a device attends where it has kernels for the type of keys and values and for heads of their size") {
  ModelConfig const config = open_golden("llama.f32.gguf")->config();
  KernelTable limited = reference::kernels();
  auto const gpu_attends = [&](DType kv_type) {
    return detail::capabilities_of(reference::kernels(), limited, kv_type, config).gpu_attention;
  };
  CHECK(gpu_attends(DType::f16));
  CHECK_FALSE(gpu_attends(DType::q4_0));
  limited.largest_head = config.layers.back().attention.head_dim;
  CHECK(gpu_attends(DType::f16));
  limited.largest_head -= 1;
  CHECK_FALSE(gpu_attends(DType::f16));
  CHECK(detail::capabilities_of(reference::kernels(), limited, DType::f16, config).host_attention);
}

TEST_CASE("plans price attention within a launch, and experts that come ahead, where the machine and the options have them") {
  auto const model = open_golden("llama.f32.gguf");
  KernelTable device = reference::kernels();
  device.help = [](HelpArgs const&, Queue) { return 0; };
  device.router_ahead = [](RouterAheadArgs const&, Queue) { return 0; };
  device.attention_ask = device.attention_answer = [](HelpAttentionArgs const&, Queue) { return 0; };
  KernelTable host = reference::kernels();
  struct Priced {
    bool launches_attention, looks_ahead, reads_ahead = false;
    bool operator==(Priced const&) const = default;
  };
  auto const priced = [&](EngineOptions const& options, KernelTable const& kernels, bool reads_host) {
    Priced out{};
    auto const measure = [](ScratchMeter&, std::int32_t, std::int32_t) { return std::size_t{0}; };
    auto const plan = [&](ShardTable const&, PlannerInput const& input) {
      out = {input.launches_attention, input.looks_ahead, input.reads_ahead};
      return std::vector<TierPlan>();
    };
    EnginePlans const plans = detail::make_plans(model->table(), model->config(), options, host, kernels, measure, plan, reads_host);
    CHECK(plans.looks_ahead == out.looks_ahead);
    CHECK(plans.reads_ahead == out.reads_ahead);
    return out;
  };
  EngineOptions options;
  CHECK(priced(options, device, true) == Priced{true, true});
  CHECK(priced(options, device, false) == Priced{false, false});
  CHECK(priced(options, reference::kernels(), true) == Priced{false, false});
  host.read_ahead = [](ReadAheadArgs const&, Queue) { return 0; };
  CHECK(priced(options, device, true) == Priced{true, true, true});
  options.read_ahead = false;
  CHECK(priced(options, device, true) == Priced{true, true});
  options.read_ahead = true;
  options.look_ahead = LookAhead::never;
  CHECK(priced(options, device, true) == Priced{true, false});
  KernelTable blocking = device;
  blocking.help = nullptr;
  options.look_ahead = LookAhead::planned;
  CHECK(priced(options, blocking, true) == Priced{true, false});
  struct Reads {
    bool reads;
    bool reads_host() const { return reads; }
  };
  CHECK(device_reads_host(Reads{true}));
  CHECK_FALSE(device_reads_host(Reads{false}));
  CHECK_FALSE(device_reads_host(0));  // says nothing
}
