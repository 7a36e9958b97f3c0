// Where patches lie: windows, indices, and shares of a table of positions.
#include <cstdint>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/vision/patch_grid.hpp"

using namespace tiered;
using namespace tiered_test;

TEST_CASE("windows of a grid: the last ones are smaller, and one of whole windows has no empty ones") {
  auto const count = [](std::int32_t rows, std::int32_t cols) { return patch_windows({1, rows, cols}, 2, 4).size(); };
  CHECK(count(8, 8) == 1);
  CHECK(count(16, 8) == 2);
  CHECK(count(10, 8) == 2);
  CHECK(count(10, 18) == 6);
  CHECK(patch_windows({3, 10, 18}, 2, 0).size() == 3);
  PatchGrid const g{1, 6, 10};
  for (std::int64_t i = 0; i < g.n_patches(); ++i) CHECK(patch_index(g, 2, patch_place(g, 2, i)) == i);
}

TEST_CASE("an axis of positions: corners on corners, one place is the first") {
  CHECK((axis_taps(0, 10, 5).index[0] == 0 && axis_taps(0, 10, 5).share[0] == 1));
  AxisTaps const last = axis_taps(9, 10, 5);
  CHECK((last.index[last.share[0] == 1 ? 0 : 1] == 4));
  CHECK((axis_taps(0, 1, 5).index[0] == 0 && axis_taps(0, 1, 5).share[0] == 1));
  CHECK((axis_taps(1, 3, 1).index[1] == 0));
  AxisTaps const middle = axis_taps(1, 3, 4);  // 1.5
  CHECK((middle.index[0] == 1 && middle.index[1] == 2 && middle.share[0] == 0.5f && middle.share[1] == 0.5f));
}

TEST_CASE("a grid that no squares of patches fill is refused") {
  CHECK_FALSE(error_of([] { check_grid({1, 2, 4}, 2); }).code);
  for (PatchGrid const& g : {PatchGrid{0, 2, 2}, PatchGrid{1, 0, 2}, PatchGrid{1, 2, 3}, PatchGrid{1, 3, 2}, PatchGrid{1, 2, -2},
                             PatchGrid{1, 2, std::int64_t{1} << 40}, PatchGrid{std::int64_t{1} << 40, 2, 2}}) {
    Thrown const t = error_of([&] { check_grid(g, 2); });
    CHECK(t.code == Errc::precondition);
    CHECK(t.says("2 x 2"));
  }
}

TEST_CASE("grids one after another: each window's tokens are neighbours, frame after frame") {
  PatchGrid const grids[] = {{2, 4, 6}, {1, 2, 2}};
  WindowOrder const order = window_order(grids, 2, 2);
  CHECK(order.tokens == std::vector<std::int32_t>{0, 1, 3, 4, 2, 5, 6, 7, 9, 10, 8, 11, 12});
  CHECK(order.begins == std::vector<std::int32_t>{0, 16, 24, 40, 48, 52});
}
