/// How fast the CPU's matrix products run, beside what the memory gives in the same run.
///
/// Weights are read from a matrix larger than the caches. With few tokens memory should be the limit (share of the read rate near
/// 100 %), with many the arithmetic (GFLOP/s).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "tiered/core/units.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cpu/backend.hpp"
#include "tiered/kernels/format/format.hpp"
#include "tiered/sim/split_mix.hpp"

namespace {

using namespace tiered;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// The shortest of several runs of `work`, in seconds.
template <class Work>
double best_s(int n_runs, Work work) {
  double best = 1e30;
  for (int i = 0; i < n_runs; ++i) {
    double const begin = now_s();
    work();
    best = std::min(best, now_s() - begin);
  }
  return best;
}

/// Bytes per second that the team reads from `bytes`.
double read_rate(Team& team, std::vector<std::byte> const& bytes) {
  std::vector<std::uint64_t> sums(1);
  std::int64_t const n_words = std::int64_t(bytes.size() / 8);
  double const s = best_s(7, [&] {
    team.parallel_for(n_words, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
      std::uint64_t sum[8] = {};
      auto const* const words = reinterpret_cast<std::uint64_t const*>(bytes.data());
      for (std::int64_t i = begin; i + 8 <= end; i += 8) {
        for (int l = 0; l < 8; ++l) sum[l] ^= words[i + l];
      }
      std::uint64_t volatile kept = sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
      (void)kept;
    });
  });
  return double(bytes.size()) / s;
}

/// Random bits whose scales, in the places where every format has its 16-bit ones, are not special: no NaN or subnormal slows the run down.
std::vector<std::byte> random_bytes(std::size_t n) {
  std::vector<std::byte> bytes(n);
  SplitMix64 random(1);
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    std::uint64_t const word = (random.next() & 0x3f3f3f3f3f3f3f3fu) | 0x2020202020202020u;
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

struct Result {
  double seconds = 0, weight_bytes = 0, n_products = 0;
};

Result measure(CpuBackend& cpu, DType type, std::int32_t n_tokens, std::int32_t dim, std::vector<std::byte> const& weights) {
  KernelTable const& table = cpu.kernels();
  std::uint64_t const row = row_bytes(type, std::uint64_t(dim));
  // As many rows as the buffer has, but no more than 10^10 products.
  double const most_rows = std::min(double(weights.size() / row), 1e10 / dim / n_tokens);
  std::int32_t const rows = std::max(64, std::int32_t(most_rows));
  DType const activation = table.activation[std::uint32_t(type)];
  std::vector<float> const x(std::size_t(n_tokens) * std::size_t(dim), 0.5f);
  std::vector<std::byte> quantized(std::size_t(n_tokens) * row_bytes(activation, std::uint64_t(dim)));
  void const* input = x.data();
  if (activation != DType::f32) {
    launch(table.quantize, QuantizeArgs{x.data(), quantized.data(), n_tokens, dim}, cpu.queue());
    input = quantized.data();
  }
  std::vector<float> y(std::size_t(n_tokens) * std::size_t(rows));
  MatmulArgs const args{weights.data(), input, nullptr, y.data(), n_tokens, rows, dim, rows};
  double const s = best_s(n_tokens < 64 ? 5 : 3, [&] {
    launch(table.matmul[std::uint32_t(type)], args, cpu.queue());
    cpu.synchronize();
  });
  return {s, double(rows) * double(row), double(rows) * dim * n_tokens};
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Speed of the CPU's matrix products");
  int n_threads = 0;
  std::int32_t dim = 4096;
  std::size_t mebibytes = 256;
  std::string isa_name, only;
  std::vector<std::int32_t> tokens = {1, 4, 16, 64, 512};
  bool f32 = false;
  app.add_option("-t,--threads", n_threads, "threads; 0: one for each core that may be used");
  app.add_option("--dim", dim, "elements of a row, a multiple of 256")->check(CLI::PositiveNumber);
  app.add_option("--mib", mebibytes, "size of the weights")->check(CLI::Range(1, 65536));
  app.add_option("--isa", isa_name, "baseline or avx2; default: the best one")->check(CLI::IsMember({"baseline", "avx2", "avx512", "amx"}));
  app.add_option("--format", only, "only this weight format, such as q4_k");
  app.add_option("--tokens", tokens, "rows of activations");
  app.add_flag("--f32", f32, "f32 activations");
  CLI11_PARSE(app, argc, argv);
  try {
    CpuOptions options{.n_threads = n_threads, .f32_activations = f32};
    for (Isa const isa : all_isas) {
      if (isa_name == name(isa)) options.isa = isa;
    }
    CpuBackend cpu(LaneSet::threads(), options);
    dim = std::max(256, dim / 256 * 256);
    std::vector<std::byte> const weights = random_bytes(mebibytes * MiB);
    double const rate = read_rate(cpu.team(), weights);
    fmt::print("{}, {} threads, rows of {}, {} of weights; memory is read at {:.1f} GB/s\n", cpu.kernels().name, cpu.n_threads(), dim,
               format_bytes(weights.size()), rate / 1e9);
    fmt::print("{:8} {:>7} {:>9} {:>9} {:>9}\n", "format", "tokens", "GB/s", "of read", "GFLOP/s");
    for_each_format([&](auto format) {
      constexpr DType type = decltype(format)::dtype;
      if (!only.empty() && only != name(type)) return;
      for (std::int32_t const n_tokens : tokens) {
        Result const r = measure(cpu, type, std::max(1, n_tokens), dim, weights);
        fmt::print("{:8} {:>7} {:>9.2f} {:>8.0f}% {:>9.1f}\n", name(type), n_tokens, r.weight_bytes / r.seconds / 1e9,
                   100 * r.weight_bytes / r.seconds / rate, 2 * r.n_products / r.seconds / 1e9);
      }
    });
  } catch (std::exception const& error) {
    fmt::print(stderr, "bench_kernels: {}\n", error.what());
    return 1;
  }
}
