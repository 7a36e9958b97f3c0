/// The largest of each row, by the CPU tables.
#include <cstdint>
#include <limits>
#include <vector>

#include "argmax_cases.hpp"
#include "catch.hpp"
#include "cpu_cases.hpp"
#include "tiered/kernels/reference/argmax.hpp"

using namespace tiered_test;

TEST_CASE("the reference's argmax takes the least of equals, and a number before what is none") {
  float const nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  std::vector<float> const rows = {1, 3, 3, 2, nan, -inf, nan, -inf, nan, nan, nan, nan, -0.0f, 0.0f, -1, nan, nan, 1, inf, inf};
  std::vector<std::int32_t> ids(5, -1);
  reference::argmax(ArgmaxArgs{rows.data(), ids.data(), 5, 4});
  CHECK(ids == std::vector<std::int32_t>{1, 1, 0, 0, 2});
}

TEST_CASE("CPU argmax") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa, false, 3);
    for (ArgmaxCase const& c : argmax_cases()) {
      std::vector<float> const values = c.values();
      std::vector<std::int32_t> expected(std::size_t(c.n_rows), -1), ids = expected;
      reference::argmax(ArgmaxArgs{values.data(), expected.data(), c.n_rows, c.n});
      cpu.run(cpu.table().argmax, ArgmaxArgs{values.data(), ids.data(), c.n_rows, c.n});
      INFO(name(isa) << ' ' << c.n_rows << " rows of " << c.n);
      CHECK(ids == expected);
    }
  }
}
