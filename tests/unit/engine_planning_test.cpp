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
