/// Products of few rows on the GPU, with norms, biases, sums and gates inside: every format against double arithmetic.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/fused_problem.hpp"
#include "cuda/gpu.hpp"

using namespace tiered_test;

namespace {

std::vector<FusedCase> fused_cases() {
  std::vector<FusedCase> cases;
  for (std::int32_t const n_tokens : {1, 2, 3, 5, 8, 16}) {
    bool const odd = n_tokens % 2 == 1;
    cases.push_back({2, {7, 0, 3}, n_tokens, Then::store, odd, !odd});
    cases.push_back({1, {5, 0, 0}, n_tokens, Then::add, !odd, odd});
    cases.push_back({3, {9, 9, 0}, n_tokens, Then::gate, true, false, Values::ordinary, odd ? Activation::silu : Activation::gelu_tanh});
  }
  cases.push_back({17, {301, 33, 2}, 1, Then::store, true, true});
  cases.push_back({17, {1, 0, 0}, 1, Then::add, false, false});
  cases.push_back({17, {40, 40, 0}, 1, Then::gate, false, false});
  cases.push_back({17, {3, 2, 0}, 4, Then::store, false, false});
  for (std::int32_t const n_tokens : {1, 2, 4}) {  // rows at multiples of 16, as models have them
    cases.push_back({8, {64, 32, 32}, n_tokens, Then::store, true, false});
    cases.push_back({24, {77, 0, 0}, n_tokens, Then::add, false, true});
    cases.push_back({72, {50, 50, 0}, n_tokens, Then::gate, true, false});
  }
  for (Values const values : {Values::zeros, Values::subnormal, Values::large}) {
    cases.push_back({3, {9, 0, 0}, 3, Then::store, false, false, values});
    cases.push_back({8, {9, 6, 0}, 1, Then::store, false, false, values});
  }
  return cases;
}

/// As of a GPU with two multiprocessors, whose blocks have as many rows as in large matrices.
CudaQueue queue_of_two(Gpu& gpu) {
  CudaQueue queue = *static_cast<CudaQueue const*>(gpu.queue().native);
  queue.n_multiprocessors = 2;
  return queue;
}

}  // namespace

TEST_CASE("fused products of few rows equal double arithmetic within float rounding, in every format") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (FusedCase const& c : fused_cases()) {
      FusedProblem const p(type, c, ++seed);
      Worst const worst = p.compare(p.run(gpu));
      INFO(name(type) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << c.rows[0] << ' ' << c.rows[1] << ' ' << c.rows[2]
                      << " rows of " << p.dim << ", " << c.n_tokens << " tokens, then " << int(c.then) << (c.norm ? ", normed, " : ", ")
                      << name(c.values));
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("fused products of long rows: slices, warps that share a row, and more rows than shared memory holds") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q8_0, DType::q6_k, DType::q2_k, DType::f16, DType::f32}) {
    for (std::int32_t const n_tokens : {1, 2, 16}) {
      FusedProblem const p(type, {0, {5, 0, 0}, n_tokens, Then::store, true, false}, 7, 8192 + 256);
      Worst const worst = p.compare(p.run(gpu));
      INFO(name(type) << ", " << n_tokens << " tokens: " << worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("the longest rows that a device's table says its fused products take, and longer ones, refused or computed right") {
  CHECK(cuda_kernels(75).fused_dim[std::uint32_t(DType::f16)] == 14'144);  // (64 KiB - 4096 - 4864) / 4
  CHECK(cuda_kernels(86).fused_dim[std::uint32_t(DType::f16)] == 23'104);
  CHECK(cuda_kernels(90).fused_dim[std::uint32_t(DType::f16)] == 55'872);
  CHECK(cuda_kernels(90).fuses(DType::f16, 16, 55'872));
  CHECK_FALSE(cuda_kernels(90).fuses(DType::f16, 16, 55'880));
  CHECK_FALSE(cuda_kernels(90).fuses(DType::f16, 17, 64));
  for (DType const type : all_formats()) {  // a model's longest rows, of hidden elements, are no more than this so far
    if (block_elems(type) > 1) CHECK(cuda_kernels(75).fused_dim[std::uint32_t(type)] >= 28'672);
  }
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    std::int32_t const longest = gpu.table().fused_dim[std::uint32_t(type)] / 256 * 256;
    for (std::int32_t const n_tokens : {1, 3}) {
      INFO("TIERED_SEED=" << fresh_seed() << ": " << name(type) << ", " << n_tokens << " rows of " << longest);
      FusedProblem const fits(type, {1, {5, 0, 0}, n_tokens, Then::store, true, false}, fresh_seed(), longest);
      Worst const worst = fits.compare(fits.run(gpu));
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
    std::int32_t const longer = longest + 2048;      // the smallest rings leave room for up to 1400 more
    for (std::int32_t const n_tokens : {1, 2, 9}) {  // 9: matrix units where the device has them, which take longer rows in phases
      INFO("TIERED_SEED=" << fresh_seed() << ": " << name(type) << ", " << n_tokens << " rows of " << longer);
      FusedProblem const p(type, {1, {2, 0, 0}, n_tokens, Then::store, true, false}, fresh_seed(), longer);
      std::vector<std::vector<float>> y;
      int const status = p.run(gpu.queue(), y);
      if (n_tokens < 9 || status != 0) {
        CHECK(status == int(cudaErrorInvalidConfiguration));
        continue;
      }
      Worst const worst = p.compare(y);
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("a matrix of many rows, two of them to a warp at a time") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::f16}) {
    FusedProblem const p(type, {0, {40000, 0, 0}, 1, Then::store, false, false}, 8, 256);
    Worst const worst = p.compare(p.run(gpu));
    INFO(name(type) << ": " << worst.text());
    CHECK(worst.factor <= 1);
  }
}

TEST_CASE("one row with regular weights: one, two and four rows of weights to a warp, in one stage and in two") {
  if (!has_gpu()) return;
  Gpu gpu;
  CudaQueue few = queue_of_two(gpu);
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (FusedCase const& c :
         {FusedCase{8, {41, 0, 0}, 1, Then::store, true, true}, FusedCase{8, {50, 11, 30}, 1, Then::store, true, false},
          FusedCase{8, {803, 0, 0}, 1, Then::add, false, false}, FusedCase{16, {301, 85, 0}, 1, Then::store, true, true},
          FusedCase{8, {201, 201, 0}, 1, Then::gate, true, false}}) {
      std::int32_t const dim = block_elems(type) == 256 ? c.n_blocks * 256 : 2048;
      FusedProblem const p(type, c, ++seed, dim);
      Worst const worst = p.compare(p.run({&few, gpu.queue().status_text}));
      INFO(name(type) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << c.rows[0] << ' ' << c.rows[1] << ' ' << c.rows[2]
                      << " rows of " << dim << ", then " << int(c.then) << ": " << worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("one row with rows of blocks of 256 at multiples of 16, of 8, or anywhere: many by steps, few whole") {
  if (!has_gpu()) return;
  Gpu gpu;
  CudaQueue few = queue_of_two(gpu);
  std::uint64_t seed = fresh_seed();
  for (DType const type : {DType::q2_k, DType::q3_k, DType::q4_k, DType::q5_k, DType::q6_k, DType::iq4_xs}) {
    // Of a warp's last step, blocks: 1, 3, 5 and 8 of 8; then those of models, the last of which comes by steps though it is regular.
    for (std::int32_t const dim : {256, 768, 1280, 2048, 4096, 5120, 11520, 14336}) {
      for (std::int32_t const n_blocks : {8, 4, 1}) {
        for (FusedCase const& c :
             {FusedCase{n_blocks, {90, 37, 50}, 1, Then::store, true, true}, FusedCase{n_blocks, {1, 133, 2}, 1, Then::add, false, true},
              FusedCase{n_blocks, {67, 67, 0}, 1, Then::gate, true, false}, FusedCase{n_blocks, {41, 0, 0}, 1, Then::store, true, false},
              FusedCase{n_blocks, {9, 5, 0}, 1, Then::add, false, true}, FusedCase{n_blocks, {7, 7, 0}, 1, Then::gate, true, false}}) {
          FusedProblem const p(type, c, ++seed, dim);
          Worst const worst = p.compare(p.run({&few, gpu.queue().status_text}));
          INFO(name(type) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << c.rows[0] << ' ' << c.rows[1] << ' '
                          << c.rows[2] << " rows of " << dim << ", first " << p.shift[0] << " bytes further, then " << int(c.then) << ": "
                          << worst.text());
          CHECK(worst.factor <= 1);
        }
      }
    }
  }
}

TEST_CASE("a row's product with blocks of 256 has the same bits wherever the rows begin, and however many there are") {
  if (!has_gpu()) return;
  Gpu gpu;
  CudaQueue few = *static_cast<CudaQueue const*>(gpu.queue().native);
  few.n_multiprocessors = 2;
  Queue const queue{&few, gpu.queue().status_text};
  for (DType const type : {DType::q2_k, DType::q3_k, DType::q6_k, DType::iq4_xs}) {
    for (std::int32_t const dim : {2048, 14336}) {
      if (dim > 2048 && shared_bytes_limit(few.capability) < (160 << 10)) continue;  // no room for such rows, which other kernels add up
      // Not normed: how a norm's squares are added up is a matter of how many warps there are.
      FusedProblem const p(type, {8, {150, 0, 0}, 1, Then::store, false, false}, fresh_seed(), dim);
      std::vector<float> const many = p.run(queue)[0];
      for (std::int32_t const n_rows : {150, 60, 9}) {  // of a warp at a time four or two, two, and one
        for (std::size_t const further : {0, 8, 2}) {   // 2: only formats whose products take rows from there
          if (further == 2 && type != DType::q3_k && type != DType::q6_k) continue;
          FusedProblem moved = p;
          moved.c.rows[0] = n_rows;
          moved.w[0].insert(moved.w[0].begin(), further, std::byte{0xff});
          moved.shift[0] = further;
          std::vector<float> y = moved.run(queue)[0];
          y.resize(std::size_t(n_rows));
          INFO("TIERED_SEED=" << fresh_seed() << ": " << name(type) << ", " << n_rows << " rows of " << dim << ", " << further
                              << " bytes further");
          CHECK(same_bits(y, {many.begin(), many.begin() + n_rows}));
        }
      }
    }
  }
}

TEST_CASE("fused products of a few shapes: one row, whole and in slices, and few rows", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  CudaQueue few = queue_of_two(gpu);
  struct Shape {
    DType type;
    FusedCase c;
    std::int32_t dim;
  };
  FusedCase const two{8, {50, 11, 9}, 1, Then::store, true, true}, four{8, {150, 0, 0}, 1, Then::add, false, false},
      gate{8, {70, 70, 0}, 1, Then::gate, true, false}, small{8, {5, 0, 0}, 1, Then::store, true, false};
  std::uint64_t seed = fresh_seed();
  for (Shape const& s : {Shape{DType::q4_0, two, 2048},
                         {DType::q2_k, four, 2048},
                         {DType::q3_k, small, 2048},
                         {DType::q3_k, two, 2048},
                         {DType::q3_k, four, 4096},
                         {DType::q3_k, gate, 2048},
                         {DType::q3_k, {1, {150, 0, 0}, 1, Then::add, false, false}, 768},
                         {DType::q3_k, {8, {131, 0, 0}, 1, Then::store, true, true}, 1536},
                         {DType::q2_k, {4, {133, 0, 0}, 1, Then::store, true, true}, 1280},
                         {DType::q6_k, {1, {40, 9, 4}, 1, Then::store, true, true}, 768},
                         {DType::q6_k, gate, 1280},
                         {DType::q6_k, {8, {67, 0, 0}, 1, Then::add, false, false}, 14336},
                         {DType::iq4_xs, {4, {40, 30, 0}, 1, Then::add, false, true}, 1280},
                         {DType::q5_k, gate, 2048},
                         {DType::q6_k, two, 2048},
                         {DType::iq4_xs, two, 2048},
                         {DType::mxfp4, gate, 2048},
                         {DType::q5_1, small, 2048},
                         {DType::f16, gate, 11520},
                         {DType::f16, two, 4096},
                         {DType::f32, two, 2056},
                         {DType::f32, {8, {5, 0, 0}, 3, Then::store, true, true}, 2048},
                         {DType::q4_k, {3, {9, 0, 5}, 3, Then::store, true, true}, 768},
                         {DType::q4_0, {3, {9, 9, 0}, 5, Then::gate, true, false}, 96},
                         {DType::bf16, {3, {9, 0, 0}, 16, Then::add, true, false}, 201}}) {
    FusedProblem const p(s.type, s.c, ++seed, s.dim);
    Worst const worst = p.compare(p.run({&few, gpu.queue().status_text}));
    INFO(name(s.type) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << s.c.rows[0] << ' ' << s.c.rows[1] << ' '
                      << s.c.rows[2] << " rows of " << s.dim << ", " << s.c.n_tokens << " tokens, then " << int(s.c.then) << ": "
                      << worst.text());
    CHECK(worst.factor <= 1);
  }
}

TEST_CASE("long rows of halves, of which a block has as many stages as there is room for") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (Then const then : {Then::add, Then::store}) {
    FusedProblem const p(DType::f16, {0, {1400, 0, 0}, 1, then, then == Then::store, true}, fresh_seed(), 11520);
    Worst const worst = p.compare(p.run(gpu));
    INFO("TIERED_SEED=" << fresh_seed() << ": " << worst.text());
    CHECK(worst.factor <= 1);
  }
}

TEST_CASE("a row's fused product does not depend on the other rows of as many; what is not a number stays so") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q4_k, DType::bf16}) {
    FusedProblem p(type, {2, {21, 0, 0}, 4, Then::store, false, false}, 9);
    std::vector<float> const all = p.run(gpu)[0];
    for (std::int32_t k = 0; k < p.dim; ++k) p.x[std::size_t(k)] = k == 3 ? std::numeric_limits<float>::infinity() : 1;
    std::vector<float> const other = p.run(gpu)[0];
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::int32_t const r = std::int32_t(i) % p.stride[0];
      if (r >= 21) continue;
      if (i < std::size_t(p.stride[0])) {
        CHECK_FALSE(std::isfinite(other[i]));
      } else {
        CHECK(other[i] == all[i]);
      }
    }
  }
}

TEST_CASE("what is not a number stays so in one row with regular weights, normed or not") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q4_k, DType::bf16, DType::f32}) {
    for (bool const norm : {false, true}) {
      for (float const odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        FusedProblem p(type, {8, {21, 5, 0}, 1, Then::store, norm, false}, 10);
        p.x[3] = odd;
        std::vector<std::vector<float>> const y = p.run(gpu);
        for (std::size_t i = 0; i < 21; ++i) CHECK_FALSE(std::isfinite(y[0][i]));
      }
    }
  }
}

TEST_CASE("one row with regular weights so long that they come in slices") {
  if (!has_gpu()) return;
  Gpu gpu;
  CudaQueue few = queue_of_two(gpu);
  for (DType const type : {DType::f16, DType::bf16, DType::f32}) {
    std::uint64_t seed = fresh_seed();
    for (std::int32_t const dim : {11520, 14336, 8184, 20008}) {  // the third: not whole steps of a warp
      for (FusedCase const& c :
           {FusedCase{8, {41, 11, 30}, 1, Then::store, true, true}, FusedCase{8, {202, 0, 0}, 1, Then::add, false, false},
            FusedCase{8, {19, 0, 0}, 1, Then::add, false, true}, FusedCase{8, {51, 51, 0}, 1, Then::gate, true, false}}) {
        FusedProblem const p(type, c, ++seed, dim);
        for (bool const fewer : {false, true}) {
          Worst const worst = p.compare(p.run(fewer ? Queue{&few, gpu.queue().status_text} : gpu.queue()));
          INFO(name(type) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << c.rows[0] << ' ' << c.rows[1] << ' '
                          << c.rows[2] << " rows of " << dim << ", then " << int(c.then) << (fewer ? ", 2 blocks: " : ": ")
                          << worst.text());
          CHECK(worst.factor <= 1);
        }
      }
    }
  }
}
