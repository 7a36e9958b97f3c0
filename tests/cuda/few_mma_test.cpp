/// Products of few rows by matrix units: every format, numbers of rows on both sides of the units' sizes, units that end early, rows at any
/// alignment, warps that share rows, phases.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/fused_problem.hpp"
#include "cuda/gpu.hpp"
#include "tiered/kernels/cuda/few_mma_tuning.hpp"

using namespace tiered_test;

namespace {

void check(Queue queue, DType type, FusedCase const& c, std::uint64_t seed, std::int32_t dim = 0) {
  FusedProblem const p(type, c, seed, dim);
  Worst const worst = p.compare(p.run(queue));
  INFO(name(type) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << c.rows[0] << ' ' << c.rows[1] << ' ' << c.rows[2]
                  << " rows of " << p.dim << ", " << c.n_tokens << " tokens, then " << int(c.then) << (c.norm ? ", normed, " : ", ")
                  << name(c.values));
  INFO(worst.text());
  CHECK(worst.factor <= 1);
}

void check(Gpu& gpu, DType type, FusedCase const& c, std::uint64_t seed, std::int32_t dim = 0) { check(gpu.queue(), type, c, seed, dim); }

bool is_float(DType type) { return block_elems(type) == 1; }

}  // namespace

TEST_CASE("matrix units are asked for as their knobs say, and never before sm_80") {
  for_each_format([](auto format) {
    using F = decltype(format);
    for (int n = 1; n <= 16; ++n) {
      CHECK_FALSE(cuda::few_mma_takes<F>(n, 75));
      CHECK(cuda::few_mma_takes<F>(n, 80) == (n >= cuda::few_mma_from<F>));
    }
    CHECK(cuda::few_mma_from<F> > 1);
  });
}

TEST_CASE("2 to 16 rows equal double arithmetic within float rounding, in every format, at any alignment") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (std::int32_t const n_tokens : {2, 4, 5, 7, 8, 9, 15, 16}) {
      bool const odd = n_tokens % 2 == 1;
      check(gpu, type, {3, {13, 0, 0}, n_tokens, Then::store, odd, !odd}, ++seed);
      check(gpu, type, {2, {9, 1, 6}, n_tokens, Then::add, !odd, odd}, ++seed);
      check(gpu, type, {3, {7, 7, 0}, n_tokens, Then::gate, odd, false, Values::ordinary, odd ? Activation::gelu_tanh : Activation::silu},
            ++seed);
    }
  }
}

TEST_CASE("rows at multiples of 16, as models have them, in every format") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (std::int32_t const n_tokens : {5, 6, 16}) {
      check(gpu, type, {0, {40, 8, 24}, n_tokens, Then::store, true, false}, ++seed, 1024);
      check(gpu, type, {0, {23, 23, 0}, n_tokens, Then::gate, true, false}, ++seed, 768);
    }
  }
}

TEST_CASE("steps, stages and eights of them that end early") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q5_1, DType::q8_0, DType::mxfp4}) {
    std::uint64_t seed = fresh_seed();
    for (std::int32_t const n_blocks : {1, 7, 9, 15, 17, 31, 33}) {
      check(gpu, type, {n_blocks, {10, 0, 0}, 5, Then::store, false, true}, ++seed);
      check(gpu, type, {n_blocks, {10, 0, 0}, 12, Then::store, true, false}, ++seed);
    }
  }
  for (DType const type : {DType::f16, DType::bf16, DType::f32}) {
    std::uint64_t seed = fresh_seed();
    for (std::int32_t const dim : {1, 8, 15, 31, 33, 127, 129, 300}) {
      check(gpu, type, {1, {10, 0, 0}, 9, Then::store, false, true}, ++seed, dim);
      check(gpu, type, {1, {10, 0, 0}, 6, Then::store, true, false}, ++seed, dim);
    }
  }
}

TEST_CASE("long rows: warps that share them, and phases where they are longer than shared memory") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q4_1, DType::q2_k, DType::q6_k, DType::bf16, DType::f32}) {
    std::uint64_t seed = fresh_seed();
    for (std::int32_t const n_tokens : {5, 8, 16}) {
      for (std::int32_t const dim : {4096 + 256, 14336}) {
        check(gpu, type, {0, {5, 0, 0}, n_tokens, Then::store, true, false}, ++seed, dim);
      }
      check(gpu, type, {0, {2900, 0, 0}, n_tokens, Then::store, false, true}, ++seed, 256);
    }
  }
}

TEST_CASE("blocks prepare activations for themselves where the workspace has no room") {
  if (!has_gpu()) return;
  Gpu gpu;
  CudaQueue bare = *static_cast<CudaQueue const*>(gpu.queue().native);
  bare.workspace_bytes = 0;
  Queue const queue{&bare, &kernel_status_text};
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (std::int32_t const n_tokens : {5, 8, 11}) {
      bool const odd = n_tokens % 2 == 1;
      check(queue, type, {3, {13, 0, 0}, n_tokens, Then::store, odd, !odd}, ++seed);
      check(queue, type, {0, {5, 0, 0}, n_tokens, Then::add, true, false}, ++seed, 14336);
    }
  }
}

TEST_CASE("zeros are zeros, and what is large does not overflow on the way", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (Values const values : {Values::zeros, Values::large}) {
      for (std::int32_t const n_tokens : {5, 11}) check(gpu, type, {3, {9, 0, 0}, n_tokens, Then::store, false, false, values}, ++seed);
    }
    if (!is_float(type)) check(gpu, type, {3, {9, 0, 0}, 11, Then::store, false, false, Values::subnormal}, ++seed);
  }
}

TEST_CASE("a row's product is the same with any rows beside it, as long as both have up to 8, or more", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q4_k, DType::q6_k, DType::bf16}) {
    FusedProblem const few(type, {5, {21, 0, 0}, 5, Then::store, true, false}, 9),
        many(type, {5, {21, 0, 0}, 12, Then::store, true, false}, 9);
    std::vector<float> const of_few = few.run(gpu)[0], of_many = many.run(gpu)[0];
    for (std::int32_t const n : {6, 8, 9, 16}) {
      FusedProblem p(type, {5, {21, 0, 0}, n, Then::store, true, false}, 9);
      FusedProblem const& same = n <= 8 ? few : many;
      p.norm_weight = same.norm_weight;
      p.w[0] = same.w[0];
      p.shift[0] = same.shift[0];
      std::int32_t const n_same = std::min(n, same.c.n_tokens);
      for (std::int32_t i = 0; i < n_same * p.dim; ++i) p.x[std::size_t(i)] = same.x[std::size_t(i)];
      for (std::int32_t i = n_same * p.dim; i < n * p.dim; ++i)  // beside them: what must stay where it is
        p.x[std::size_t(i)] = i % 7 == 0 ? std::numeric_limits<float>::quiet_NaN() : 1e20f;
      std::vector<float> const y = p.run(gpu)[0], &expected = n <= 8 ? of_few : of_many;
      for (std::int32_t t = 0; t < n; ++t) {
        for (std::int32_t r = 0; r < 21; ++r) {
          float const got = y[std::size_t(t * p.stride[0] + r)];
          if (t < n_same) CHECK(got == expected[std::size_t(t * p.stride[0] + r)]);
          if (t >= n_same) CHECK_FALSE(std::isfinite(got));
        }
      }
    }
  }
}
