/// Products at the ends of what they may read, and rows so long that kernels cut them: the same bits whatever the number of tokens.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"
#include "tiered/kernels/reference/quantize.hpp"

using namespace tiered_test;

namespace {

/// Bytes that end where nothing more can be read.
class Guarded {
 public:
  explicit Guarded(std::vector<std::byte> const& bytes) {
    std::size_t const page = std::size_t(::sysconf(_SC_PAGESIZE)), used = (bytes.size() + page - 1) / page * page;
    size_ = used + page;
    void* const p = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(p != MAP_FAILED);
    base_ = static_cast<std::byte*>(p);
    data_ = base_ + (used - bytes.size());
    std::memcpy(data_, bytes.data(), bytes.size());
    REQUIRE(::mprotect(base_ + used, page, PROT_NONE) == 0);
  }
  Guarded(Guarded const&) = delete;
  Guarded& operator=(Guarded const&) = delete;
  ~Guarded() { ::munmap(base_, size_); }
  std::byte const* data() const { return data_; }

 private:
  std::byte *base_ = nullptr, *data_ = nullptr;
  std::size_t size_ = 0;
};

struct Inputs {
  Inputs(DType weights, DType activation, std::int32_t dim, std::int32_t rows, std::int32_t n_tokens, std::uint64_t seed) {
    SplitMix64 random(seed);
    w = random_weights(weights, std::int64_t(rows) * dim, random);
    std::vector<float> const floats = random_floats(std::size_t(n_tokens) * std::size_t(dim), random);
    x.resize(std::size_t(n_tokens) * row_bytes(activation, std::uint64_t(dim)));
    if (activation == DType::f32) {
      std::memcpy(x.data(), floats.data(), x.size());
    } else {
      reference::quantize(QuantizeArgs{floats.data(), x.data(), n_tokens, dim});
    }
  }
  std::vector<std::byte> w, x;
};

}  // namespace

TEST_CASE("a product reads nothing beyond its weights and activations") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const type : all_formats()) {
      DType const activation = cpu.table().activation[std::uint32_t(type)];
      if (activation == DType::act_bf16) continue;  // panels, not rows
      std::int32_t const elems = std::int32_t(std::max<std::uint64_t>(block_elems(type), 16));
      for (std::int32_t const n_blocks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 22, 24, 33, 45}) {
        for (std::int32_t const rows : {1, 3, 4, 16}) {
          for (std::int32_t const n_tokens : {1, 3, 9}) {
            INFO(name(isa) << ' ' << name(type) << ": " << rows << " x " << n_blocks * elems << ", " << n_tokens << " tokens");
            Inputs const in(type, activation, n_blocks * elems, rows, n_tokens, 5);
            Guarded const w(in.w), x(in.x);
            std::vector<float> y = poisoned(std::size_t(rows) * std::size_t(n_tokens)), expected = y;
            MatmulArgs args{w.data(), x.data(), nullptr, y.data(), n_tokens, rows, n_blocks * elems, rows};
            cpu.run(cpu.table().matmul[std::uint32_t(type)], args);
            args.w = in.w.data();
            args.x = in.x.data();
            args.y = expected.data();
            cpu.run(cpu.table().matmul[std::uint32_t(type)], args);
            CHECK(same_bits(y, expected));
          }
        }
      }
    }
  }
}

TEST_CASE("products of long rows are the same with one token or many") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const type : all_formats()) {
      DType const activation = cpu.table().activation[std::uint32_t(type)];
      if (activation == DType::act_bf16) continue;  // panels, not rows
      for (std::int32_t const dim : {5 * 32, 18 * 32, 22 * 32, 3 * 256, 29 * 32, 10 * 256, 4096 + 256, 35 * 1024}) {
        if (dim % std::int32_t(block_elems(type)) != 0) continue;
        INFO(name(isa) << ' ' << name(type) << ", rows of " << dim);
        std::int32_t const rows = 21, n_tokens = 28;
        Inputs const in(type, activation, dim, rows, n_tokens, 6);
        std::vector<float> all = poisoned(std::size_t(rows) * std::size_t(n_tokens)), some = all;
        MatmulArgs args{in.w.data(), in.x.data(), nullptr, all.data(), n_tokens, rows, dim, rows};
        cpu.run(cpu.table().matmul[std::uint32_t(type)], args);
        for (std::int32_t t = 0, step = 1; t < n_tokens; t += step, ++step) {  // 1 to 7 tokens
          args.n_tokens = std::min(step, n_tokens - t);
          args.x = in.x.data() + std::uint64_t(t) * row_bytes(activation, std::uint64_t(dim));
          args.y = some.data() + t * rows;
          cpu.run(cpu.table().matmul[std::uint32_t(type)], args);
        }
        CHECK(same_bits(all, some));
      }
    }
  }
}
