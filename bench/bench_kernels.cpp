/// How fast the CPU's kernels run, each beside what the same machine reads from memory, and multiplies, in the same run.
///
/// Few tokens should take as long as reading the weights ("of read" near 100 %), many as long as the multiplications ("of peak": of
/// bfloat16 tiles where the product is made in them (of such that stay in registers, and of such that are loaded from the first-level
/// cache, as those of a matrix must), else of f32 multiply-adds; products of 8-bit integers, and of bfloat16 without tiles,
/// have units of their own and can be above 100 %). Weights and pages of keys and values lie in memory larger than the caches; activations
/// of few tokens do not, so their ops can be above 100 % too.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "amx_peak.hpp"
#include "kernels/encoder.hpp"
#include "kernels/measure.hpp"
#include "kernels/ops.hpp"
#include "kernels/peak.hpp"
#include "kernels/products.hpp"
#include "tiered/core/units.hpp"
#include "tiered/profile/read_rate.hpp"

int main(int argc, char** argv) {
  using namespace tiered;
  CLI::App app("Speed of the CPU's kernels");
  int n_threads = 0;
  std::size_t mebibytes = 256;
  std::string isa_name, json_path;
  bool f32 = false;
  bench::Choice choice;
  std::vector<std::string> const ops = {"matmul",          "matmul_set", "gated_matmul", "experts",   "rms_norm",
                                        "quantize",        "gated",      "add",          "gather",    "rope",
                                        "route",           "combine",    "embed",        "attention", "kv_write",
                                        "merge_attention", "layer_norm", "activate",     "add_taps",  "image_attention"};
  app.add_option("--op", choice.ops, "these ops only")->check(CLI::IsMember(ops));
  app.add_option("--format", choice.formats, "these types of weights, or of keys and values, only: q4_k");
  app.add_option("--tokens", choice.tokens, "rows of activations, one number or several")->check(CLI::Range(1, 65536));
  app.add_option("--dim", choice.dim, "elements of a row, a multiple of 256")->check(CLI::Range(256, 65536));
  app.add_option("-t,--threads", n_threads, "threads; 0: one for each core that may be used")->check(CLI::NonNegativeNumber);
  app.add_option("--isa", isa_name, "default: the best one of this machine")->check(CLI::IsMember({"baseline", "avx2", "avx512", "amx"}));
  app.add_option("--mib", mebibytes, "size of the weights")->check(CLI::Range(16, 65536));
  app.add_option("--json", json_path, "write the results to this file too");
  app.add_flag("--f32", f32, "f32 activations");
  CLI11_PARSE(app, argc, argv);
  try {
    CpuOptions options;
    options.isa = best_isa();
    options.n_threads = n_threads;
    options.f32_activations = f32;
    for (Isa const isa : all_isas) {
      if (isa_name == name(isa)) options.isa = isa;
    }
    CpuBackend cpu(LaneSet::threads(), options);
    choice.dim = choice.dim / 256 * 256;
    bench::Bench b{cpu, choice, bench::random_bytes(mebibytes * MiB)};
    b.read_bytes_per_s = tiered::read_rate(cpu.team(), std::vector<std::span<std::byte const>>{b.memory}, 0.5);
    b.peak_flop_per_s = bench::peak_rate(cpu.team(), *options.isa);
    std::string tiles;
    if (AmxRates const amx = options.isa == Isa::amx ? amx_bf16_flops(cpu.team()) : AmxRates{}; amx.registers > 0) {
      b.tile_flop_per_s = amx.registers;
      b.loaded_tile_flop_per_s = amx.loaded;
      tiles = fmt::format("; bfloat16 tiles: {:.1f} GFLOP/s, loaded for each product {:.1f}", amx.registers / 1e9, amx.loaded / 1e9);
    }
    fmt::print("{}, {} threads; {} of memory is read at {:.1f} GB/s; f32 multiply-adds: {:.1f} GFLOP/s{}\n", cpu.kernels().name,
               cpu.n_threads(), format_bytes(b.memory.size()), b.read_bytes_per_s / 1e9, b.peak_flop_per_s / 1e9, tiles);
    b.print_heading();
    bench::bench_products(b);
    bench::bench_ops(b);
    bench::bench_encoder(b);
    if (!json_path.empty()) b.write_json(json_path);
  } catch (std::exception const& error) {
    fmt::print(stderr, "bench_kernels: {}\n", error.what());
    return 1;
  }
}
