/// What the parts of bench_kernels share: inputs, the clock, and lines of results.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/kernels/cpu/backend.hpp"
#include "tiered/sim/split_mix.hpp"

namespace bench {

using namespace tiered;  // a header of one program only

inline double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// The shortest of several runs of `work`, in seconds: others load the machine too. For about `budget_s`, but at least three times.
template <class Work>
double best_s(double budget_s, Work work) {
  double best = 1e30, total = 0;
  for (int i = 0; i < 3 || (total < budget_s && i < 1000); ++i) {
    double const begin = now_s();
    work();
    double const s = now_s() - begin;
    best = std::min(best, s);
    total += s;
  }
  return best;
}

/// Random bits whose scales, in the places where every format has its 16-bit ones, are not special: no NaN or subnormal slows the run down.
inline std::vector<std::byte> random_bytes(std::size_t n) {
  std::vector<std::byte> bytes(n);
  SplitMix64 random(1);
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    std::uint64_t const word = (random.next() & 0x3f3f3f3f3f3f3f3fu) | 0x2020202020202020u;
    std::memcpy(bytes.data() + i, &word, 8);
  }
  return bytes;
}

inline std::vector<float> random_floats(std::size_t n) {
  std::vector<float> x(n);
  SplitMix64 random(2);
  for (float& v : x) v = random.between(-1.0f, 1.0f);
  return x;
}

/// What the user chose, empty lists meaning all.
struct Choice {
  std::vector<std::string> ops, formats;
  std::vector<std::int32_t> tokens = {1, 4, 16, 64, 512};
  std::int32_t dim = 4096;

  bool has_op(char const* op) const { return ops.empty() || std::find(ops.begin(), ops.end(), op) != ops.end(); }
  bool has_format(char const* format) const {
    return formats.empty() || std::find(formats.begin(), formats.end(), format) != formats.end();
  }
};

enum class Limit { memory, arithmetic, bf16_tiles };

struct Line {
  std::string op, what;  ///< `what`: format or sizes
  std::int32_t n_tokens = 0;
  double seconds = 0, bytes = 0, operations = 0;  ///< of one call; 0: not counted
  Limit limit = Limit::memory;                    ///< what the call is compared with
};

/// The machine, and what was measured on it so far.
struct Bench {
  CpuBackend& cpu;
  Choice choice;
  std::vector<std::byte> memory;                     ///< weights, pages: larger than the caches
  double read_bytes_per_s = 0, peak_flop_per_s = 0;  ///< of the team, in this run
  double tile_flop_per_s = 0;                        ///< of its bfloat16 tiles, operands in registers; 0: these kernels have none
  double loaded_tile_flop_per_s = 0;                 ///< the same with operands from the first-level cache
  std::vector<Line> lines = {};

  KernelTable const& table() const { return cpu.kernels(); }

  /// Measures calls one after another, args[i % size] each, so that short ones do not measure the launch alone.
  template <class Args>
  void run(Line line, Kernel<Args> kernel, std::vector<Args> const& args) {
    if (kernel == nullptr) return;
    auto const call = [&](int n) {
      for (int i = 0; i < n; ++i) launch(kernel, args[std::size_t(i) % args.size()], cpu.queue());
      cpu.synchronize();
    };
    double const all_once = best_s(0, [&] { call(int(args.size())); }) / double(args.size());
    int const n_calls = std::clamp(int(2e-3 / all_once / double(args.size())), 1, 200) * int(args.size());
    line.seconds = all_once > 0.05 ? all_once : std::min(all_once, best_s(0.3, [&] { call(n_calls); }) / n_calls);
    add(line);
  }
  template <class Args>
  void run(Line const& line, Kernel<Args> kernel, Args const& args) {
    run(line, kernel, std::vector<Args>{args});
  }

  double share(Line const& line) const {
    switch (line.limit) {
      case Limit::memory: return line.bytes / line.seconds / read_bytes_per_s;
      case Limit::arithmetic: return line.operations / line.seconds / peak_flop_per_s;
      case Limit::bf16_tiles: return line.operations / line.seconds / tile_flop_per_s;
    }
    return 0;
  }
  static char const* name_of(Limit limit) { return limit == Limit::memory ? "read" : limit == Limit::arithmetic ? "peak" : "bf16_tiles"; }

  void add(Line const& line) {
    auto const rate = [&](double amount) { return amount > 0 ? fmt::format("{:.2f}", amount / line.seconds / 1e9) : std::string("-"); };
    std::string percent = fmt::format("{:.0f}%", 100 * share(line));
    if (line.limit == Limit::bf16_tiles) percent += fmt::format(" {:.0f}%", 100 * line.operations / line.seconds / loaded_tile_flop_per_s);
    bool const memory_bound = line.limit == Limit::memory;
    fmt::print("{:10} {:22} {:>6} {:>11.1f} {:>8} {:>8} {:>9} {:>8}\n", line.op, line.what, line.n_tokens, line.seconds * 1e6,
               rate(line.bytes), memory_bound ? percent : "", rate(line.operations), memory_bound ? "" : percent);
    std::fflush(stdout);
    lines.push_back(line);
  }

  static void print_heading() {
    fmt::print("{:10} {:22} {:>6} {:>11} {:>8} {:>8} {:>9} {:>8}\n", "op", "of", "tokens", "us", "GB/s", "of read", "GFLOP/s", "of peak");
  }

  void write_json(std::string const& path) const {
    std::FILE* const file = std::fopen(path.c_str(), "w");
    if (file == nullptr) throw Error(Errc::io, concat("cannot write ", path));
    fmt::print(file,
               "{{\"isa\": \"{}\", \"threads\": {}, \"read_bytes_per_s\": {:.4g}, \"peak_flop_per_s\": {:.4g}, "
               "\"bf16_tile_flop_per_s\": {:.4g}, \"bf16_loaded_tile_flop_per_s\": {:.4g}, \"results\": [",
               table().name, cpu.n_threads(), read_bytes_per_s, peak_flop_per_s, tile_flop_per_s, loaded_tile_flop_per_s);
    char const* separator = "\n";
    for (Line const& line : lines) {
      fmt::print(file,
                 "{}{{\"op\": \"{}\", \"of\": \"{}\", \"tokens\": {}, \"seconds\": {:.6g}, \"bytes\": {:.6g}, \"operations\": {:.6g}, "
                 "\"limit\": \"{}\", \"share\": {:.4f}}}",
                 separator, line.op, line.what, line.n_tokens, line.seconds, line.bytes, line.operations, name_of(line.limit), share(line));
      separator = ",\n";
    }
    bool const written = std::fputs("\n]}\n", file) >= 0;
    if (std::fclose(file) != 0 || !written) throw Error(Errc::io, concat("cannot write ", path));
  }
};

}  // namespace bench
