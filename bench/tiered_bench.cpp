/// tiered-bench: how fast a whole model runs, beside what the machine's memory gives and beside other engines in the same run.
///
/// For each prompt length: a prompt of random tokens, then tokens behind it, one at a time, also random, as other benches draw
/// them. Of several runs the best one counts, for everybody: what disturbs a run only ever makes it slower.
///
/// "of read": of the rate at which memory is read. "of peak": of what AMX tiles of bfloat16 do where the kernels use them (those that
/// stay in registers, and those that are loaded for each product), else of f32 multiply-adds; products of 8-bit integers have units of
/// their own and can be above 100 %.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "amx_peak.hpp"
#include "kernels/peak.hpp"
#include "model/bounds.hpp"
#include "model/by_hand.hpp"
#include "model/figure.hpp"
#include "model/ids.hpp"
#include "model/peer.hpp"
#include "model/run_once.hpp"
#include "model/sweep.hpp"
#include "model/synthetic.hpp"
#include "model/synthetic_projector.hpp"
#include "model/vision_bench.hpp"
#include "model/vision_figure.hpp"
#include "tiered/profile/read_rate.hpp"
#include "tiered/tiered.hpp"
#if TIERED_HAS_CUDA
#include "cuda/measure.hpp"
#include "tiered/cuda.hpp"
#endif

namespace {

using namespace bench;
using nlohmann::json;

struct Options {
  std::string model, json_file;
  std::vector<int> prompts = {512};
  std::vector<int> threads = {0};
  std::vector<std::string> peers;
  int n_decode = 64, n_runs = 3;
  std::string kv_type = "f16", isa, vram, link, ids, device = TIERED_HAS_CUDA ? "gpu" : "sim";
  bool by_hand = false;
};

/// 0 for no text. Errors  precondition where it is no rate.
double rate_of(std::string const& link) {
  std::optional<double> const rate = link.empty() ? 0.0 : tiered::parse_rate(link);
  if (!rate) throw tiered::Error(tiered::Errc::precondition, tiered::concat("--link ", link, " is no rate: 12G is 12 GB/s"));
  return *rate;
}

/// Errors  precondition where there is no budget, or a size or rate is none.
tiered::EngineOptions device_options(Options const& o, int n_threads) {
  std::optional<std::uint64_t> const budget = tiered::parse_bytes(o.vram);
  if (!budget) throw tiered::Error(tiered::Errc::precondition, tiered::concat("--vram ", o.vram, " is no size"));
  tiered::EngineOptions options;
  options.vram_bytes = *budget;
  options.n_threads = n_threads;
  options.max_context = *std::max_element(o.prompts.begin(), o.prompts.end()) + o.n_decode;
  options.kv_type = kv_type_of(o.kv_type);
  options.expert_prior = false;  // figures are the same whatever ran before
  options.link_bytes_per_s = rate_of(o.link);
  return options;
}

/// Bytes that a decoded token reads: every matrix it goes through, the experts it is routed to, and the keys and values behind it.
double bytes_per_token(tiered::Transformer const& model, tiered::DType kv_type, double context) {
  ModelBytes const m = model_bytes(model.table(), model.config().n_layers);
  return m.dense + m.experts_of_token + kv_bytes(model.table(), model.config(), kv_type, context);
}

struct Result {
  int n_threads = 0, n_prompt = 0;
  std::string kernels;
  Speed ours;
  char const* unit = "";           ///< what `peak` is of
  double read_rate = 0, peak = 0;  ///< of these threads: bytes, operations per second
  double loaded_peak = 0;          ///< of tiles that are loaded for each product; 0: `peak` is of no tiles
  double token_bytes = 0, prompt_flops = 0;
  std::size_t vram_budget = 0, vram_figure = 0;  ///< of a GPU: the budget, and what the driver says the process holds

  std::string share_of_peak(double prefill) const {
    double const flops = prefill * prompt_flops;
    if (loaded_peak > 0) return fmt::format("{:.0f}% {:.0f}%", 100 * flops / peak, 100 * flops / loaded_peak);
    return peak > 0 ? fmt::format("{:.0f}%", 100 * flops / peak) : std::string("-");
  }
  std::vector<std::optional<Speed>> peers;
};

void print(Result const& r, Options const& o) {
  double const bound = r.read_rate / r.token_bytes;
  fmt::print("{:>7} {:>7} {:>6} {:<24} {:>10.1f} {:>9.2f} {:>8} {:>10.2f} {:>8.1f} {:>7.0f}%\n", r.n_threads, r.n_prompt, o.n_decode,
             fmt::format("tiered ({})", r.kernels), r.ours.prefill, r.ours.prefill * r.prompt_flops / 1e12, r.share_of_peak(r.ours.prefill),
             r.ours.decode, r.ours.decode * r.token_bytes / 1e9, 100 * r.ours.decode / bound);
  for (std::size_t i = 0; i < r.peers.size(); ++i) {
    std::string const name = peer_name(o.peers[i]);
    if (!r.peers[i]) {
      fmt::print("{:>22} {:<24} {}\n", "", name, "failed");
      continue;
    }
    Speed const p = *r.peers[i];
    fmt::print("{:>22} {:<24} {:>10.1f} {:>9.2f} {:>8} {:>10.2f} {:>8.1f} {:>7.0f}%   tiered is {:.2f}x, {:.2f}x\n", "", name, p.prefill,
               p.prefill * r.prompt_flops / 1e12, r.share_of_peak(p.prefill), p.decode, p.decode * r.token_bytes / 1e9,
               100 * p.decode / bound, r.ours.prefill / p.prefill, p.decode > 0 ? r.ours.decode / p.decode : 0.0);
  }
  std::fflush(stdout);
}

json to_json(Result const& r, Options const& o) {
  auto const speed = [](Speed const& s) { return json{{"prefill_tokens_per_s", s.prefill}, {"decode_tokens_per_s", s.decode}}; };
  json j{{"threads", r.n_threads},
         {"prompt", r.n_prompt},
         {"decoded", o.n_decode},
         {"kernels", r.kernels},
         {"kv_type", o.kv_type},
         {"tiered", speed(r.ours)},
         {"read_bytes_per_s", r.read_rate},
         {"peak_flop_per_s", r.peak},
         {"peak_of", r.unit},
         {"loaded_peak_flop_per_s", r.loaded_peak},
         {"bytes_per_token", r.token_bytes},
         {"vram_budget_bytes", r.vram_budget},
         {"vram_figure_bytes", r.vram_figure},
         {"flops_per_prompt_token", r.prompt_flops}};
  for (std::size_t i = 0; i < r.peers.size(); ++i)
    j["peers"].push_back({{"path", o.peers[i]}, {"speed", r.peers[i] ? speed(*r.peers[i]) : json()}});
  return j;
}

/// What these kernels' units for products do at most: AMX tiles of bfloat16, else multiply-adds of f32 (0: not known).
void measure_peak(tiered::Team& team, tiered::Isa isa, Result& r) {
  AmxRates const tiles = isa == tiered::Isa::amx ? amx_bf16_flops(team) : AmxRates{};
  r.unit = tiles.registers > 0 ? "bfloat16 in tiles" : "f32";
  r.peak = std::max(r.peak, tiles.registers > 0 ? tiles.registers : peak_rate(team, isa));
  r.loaded_peak = std::max(r.loaded_peak, tiles.loaded);
}

/// All prompt lengths on an engine of so many threads, which are gone when it returns.
std::vector<Result> measure_tiered(std::shared_ptr<tiered::Transformer const> const& model, int n_threads, Options const& o) {
  int const longest = *std::max_element(o.prompts.begin(), o.prompts.end());
  tiered::EngineOptions options;
  options.n_threads = n_threads;
  options.max_context = longest + o.n_decode;
  options.kv_type = kv_type_of(o.kv_type);
  options.isa = tiered::best_isa();
  for (tiered::Isa const isa : tiered::all_isas) {
    if (o.isa == tiered::name(isa)) options.isa = isa;
  }
  tiered::Engine<> engine(model, options);
  tiered::Team& team = engine.machine().host->team();
  Result common;
  common.n_threads = team.size();
  common.kernels = engine.machine().host->kernels().name;
  common.read_rate = tiered::read_rate(team, weights_of(model->table()), 0.5);
  measure_peak(team, *options.isa, common);
  TokenIds ids(model->config().vocab_size, routing_for(model->file(), o.ids), 1);
  run_once(engine, std::min(longest, 32), std::min(o.n_decode, 4), ids);  // first touch of everything
  std::vector<Result> results;
  for (int n_prompt : o.prompts) {
    Result& r = results.emplace_back(common);
    r.n_prompt = n_prompt;
    for (int i = 0; i < o.n_runs; ++i) r.ours = best(r.ours, run_once(engine, n_prompt, o.n_decode, ids));
    r.token_bytes = bytes_per_token(*model, options.kv_type, n_prompt + o.n_decode / 2.0);
    r.prompt_flops = prompt_flops(model->table(), n_prompt) / n_prompt;
  }
  measure_peak(team, *options.isa, common);  // once more: one of the two may have been disturbed
  for (Result& r : results) r.peak = common.peak, r.loaded_peak = common.loaded_peak;
  return results;
}

#if TIERED_HAS_CUDA
struct GpuPolicies : tiered::CudaPolicies {
  using Placement = tiered::AnyPlacement;
};

/// The same on a GPU, inside a budget. Its rates are measured once the engine is gone.
std::vector<Result> measure_gpu(std::shared_ptr<tiered::Transformer const> const& model, int n_threads, Options const& o) {
  int const longest = *std::max_element(o.prompts.begin(), o.prompts.end());
  tiered::EngineOptions const options = device_options(o, n_threads);
  std::vector<Result> results;
  {
    double const start = now_s();
    tiered::Engine<GpuPolicies> engine(model, options, {.placement = tiered::make_placement("seconds_per_byte")});
    double const loaded = now_s();
    TokenIds ids(model->config().vocab_size, routing_for(model->file(), o.ids), 1);
    run_once(engine, std::min(longest, 32), std::min(o.n_decode, 4), ids);
    fmt::print("loaded in {:.2f} s, first tokens after {:.2f} s more\n  {}\n{}", loaded - start, now_s() - loaded,
               tiered::to_text(engine.stats().load), engine.machine().gpu.ledger->report());
    for (int n_prompt : o.prompts) {
      Result& r = results.emplace_back();
      r.n_prompt = n_prompt;
      r.n_threads = n_threads;
      r.kernels = engine.machine().device->kernels().name;
      for (int i = 0; i < o.n_runs; ++i) r.ours = best(r.ours, run_once(engine, n_prompt, o.n_decode, ids));
      r.token_bytes = bytes_per_token(*model, options.kv_type, n_prompt + o.n_decode / 2.0);
      r.prompt_flops = prompt_flops(model->table(), n_prompt) / n_prompt;
      r.vram_budget = options.vram_bytes;
      r.vram_figure = engine.machine().gpu.ledger->measure().figure_bytes;
      fmt::print("prompt of {}: the process holds {} of a budget of {}\n", n_prompt, tiered::format_bytes(r.vram_figure),
                 tiered::format_bytes(r.vram_budget));
    }
  }
  bench::Device device;
  double const copy_rate = device.copy_rate(), matrix_rate = device.matrix_rate();
  for (Result& r : results) r.read_rate = copy_rate, r.peak = matrix_rate, r.unit = "bfloat16 by cuBLAS";
  return results;
}
#endif

/// Ours, then the peers, alone on the machine.
std::vector<Result> measure(std::shared_ptr<tiered::Transformer const> const& model, int n_threads, Options const& o) {
#if TIERED_HAS_CUDA
  std::vector<Result> results = o.vram.empty() ? measure_tiered(model, n_threads, o) : measure_gpu(model, n_threads, o);
#else
  if (!o.vram.empty()) throw tiered::Error(tiered::Errc::unsupported, "--vram: this program was built without CUDA");
  std::vector<Result> results = measure_tiered(model, n_threads, o);
#endif
  for (Result& r : results) {
    for (std::string const& path : o.peers) {
      try {
        r.peers.emplace_back(ask_peer(path, {o.model, o.kv_type, r.n_threads, r.n_prompt, o.n_decode, o.n_runs, r.vram_budget > 0}));
      } catch (tiered::Error const& e) {
        fmt::print(stderr, "tiered-bench: {}\n", e.what());
        r.peers.emplace_back(std::nullopt);
      }
    }
    print(r, o);
  }
  return results;
}

struct SimPolicies : tiered::SimPolicies {
  using Placement = tiered::AnyPlacement;
};

/// --by-hand, with each number of threads.
void run_by_hand(std::shared_ptr<tiered::Transformer const> const& model, Options const& o) {
  if (o.vram.empty())
    throw tiered::Error(tiered::Errc::precondition, "--by-hand compares placements in a budget: give one, as in --vram 8G");
  Routing const routing = routing_for(model->file(), o.ids);
  for (int n_threads : o.threads) {
    if (n_threads == 0) n_threads = tiered::default_thread_count();
    tiered::EngineOptions const options = device_options(o, n_threads);
    std::vector<HandResult> results;
    if (o.device == "sim") {
      results = compare_by_hand<SimPolicies>(model, options, o.prompts, o.n_decode, o.n_runs, routing, stderr);
    } else {
#if TIERED_HAS_CUDA
      results = compare_by_hand<GpuPolicies>(model, options, o.prompts, o.n_decode, o.n_runs, routing, stderr);
#else
      throw tiered::Error(tiered::Errc::unsupported, "--device gpu: this program was built without CUDA");
#endif
    }
    fmt::print("{} of VRAM, {} threads{}\n{}", tiered::format_bytes(options.vram_bytes), n_threads,
               o.link.empty() ? std::string() : tiered::concat(", a link of ", o.link), by_hand_text(results, o.prompts));
  }
}

void write_file(std::string const& path, std::string const& text) {
  std::FILE* const out = std::fopen(path.c_str(), "w");
  bool const written = out != nullptr && std::fputs(text.c_str(), out) >= 0;
  if (out == nullptr || std::fclose(out) != 0 || !written)
    throw tiered::Error(tiered::Errc::io, tiered::concat(path, ": cannot be written: ", std::strerror(errno)));
}

void run(Options const& o) {
  tiered::GgufFile const file = tiered::GgufFile::open(o.model);
  file.check_sizes();
  auto const model = tiered::make_model(file);
  tiered::ModelConfig const& c = model->config();
  fmt::print("{}: {} layers, dim {}, {} of weights, {} of them read for a token\n", o.model.substr(o.model.find_last_of('/') + 1),
             c.n_layers, c.dim, tiered::format_bytes(file.total_bytes()),
             tiered::format_bytes(std::size_t(bytes_per_token(*model, tiered::DType::f16, 0))));
  if (!o.link.empty() && o.vram.empty())
    throw tiered::Error(tiered::Errc::precondition, "--link is of a device: give a budget, as in --vram 8G");
  if (o.by_hand) return run_by_hand(model, o);
  std::vector<Result> results;
  json all;
  for (int n_threads : o.threads) {
    if (n_threads == 0) n_threads = tiered::default_thread_count();
    fmt::print("{:>7} {:>7} {:>6} {:<24} {:>10} {:>9} {:>8} {:>10} {:>8} {:>8}\n", "threads", "prompt", "tokens", "engine", "prompt t/s",
               "TFLOP/s", "of peak", "decode t/s", "GB/s", "of read");
    std::vector<Result> const of_these = measure(model, n_threads, o);
    Result const& first = of_these.front();
    std::string const loaded = first.loaded_peak > 0 ? fmt::format(" ({:.2f} loaded for each product)", first.loaded_peak / 1e12) : "";
    fmt::print("{} threads read memory at {:.1f} GB/s, and multiply {} at {:.2f} TFLOP/s{} at most\n", first.n_threads,
               first.read_rate / 1e9, first.unit, first.peak / 1e12, loaded);
    for (Result const& r : of_these) all["results"].push_back(to_json(r, o));
  }
  if (o.json_file.empty()) return;
  all["model"] = o.model;
  write_file(o.json_file, all.dump(2) + "\n");
}

struct MakeOptions {
  std::vector<std::string> model_and_path;
  std::string routing = "topics";
};

void make(MakeOptions const& o) {
  std::string const &name = o.model_and_path.at(0), &path = o.model_and_path.at(1);
  int const n_threads = tiered::default_thread_count();
  SyntheticProjector const* const projector = find_synthetic_projector(name);
  double const begin = now_s();
  std::uint64_t const bytes =
      projector != nullptr ? make_synthetic(*projector, path, n_threads)
                           : make_synthetic(synthetic_model(name, synthetic_projector_names()), path, routing_of(o.routing), n_threads);
  double const s = now_s() - begin;
  fmt::print("{}: {}, {} routing, in {:.2f} s ({:.2f} GB/s)\n", path, tiered::format_bytes(bytes), o.routing, s, double(bytes) / s / 1e9);
}

struct SweepCommand {
  SweepOptions sweep;
  std::vector<std::string> budgets = {"2G", "4G", "8G", "16G"};
  std::string device = TIERED_HAS_CUDA ? "gpu" : "sim", svg_file, link;
  double tflops = 0;
};

std::uint64_t size_of(char const* option, std::string const& text) {
  std::optional<std::uint64_t> const bytes = tiered::parse_bytes(text);
  if (!bytes) throw tiered::Error(tiered::Errc::precondition, tiered::concat(option, ' ', text, " is no size"));
  return *bytes;
}

/// Without a model nothing is measured, and the figure is drawn from what the file holds.
int run_sweep(SweepCommand const& command) {
  SweepOptions o = command.sweep;
  o.simulated = command.device == "sim";
  o.flops = command.tflops * 1e12;
  o.link_bytes_per_s = rate_of(command.link);
  for (std::string const& text : command.budgets) o.budgets.push_back(size_of("--vram", text));
  Sweep sweep(o);
  int const n_failed = sweep.run();
  if (!command.svg_file.empty()) write_file(command.svg_file, draw(sweep.results()));
  return n_failed > 0 ? 1 : 0;
}

struct VisionCommand {
  VisionBenchOptions bench;
  std::vector<std::string> budgets = {"2G", "4G", "8G", "14.5G"}, images = {"480p", "720p", "1080p", "1440p", "4K"};
  std::string device = TIERED_HAS_CUDA ? "gpu" : "sim", svg_file, link, resident = "24G";
  double tflops = 0;
};

/// Without a model nothing is measured, and the figure is drawn from what the file holds.
int run_vision(VisionCommand const& command) {
  VisionBenchOptions o = command.bench;
  o.simulated = command.device == "sim";
  o.flops = command.tflops * 1e12;
  o.link_bytes_per_s = rate_of(command.link);
  for (std::string const& text : command.budgets) o.budgets.push_back(size_of("--vram", text));
  o.resident_bytes = command.resident == "no" ? 0 : size_of("--resident", command.resident);
  for (std::string const& text : command.images) o.images.push_back(picture_size(text));
  VisionBench vision(o);
  int const n_failed = o.model.empty() ? 0 : vision.run();
  if (!command.svg_file.empty()) write_file(command.svg_file, draw_vision(vision.results()));
  return n_failed > 0 ? 1 : 0;
}

void add_common(CLI::App& app, std::string& kv_type, std::string& ids, std::vector<std::string>& peers) {
  app.add_option("--kv", kv_type, "type of keys and values: f16, f32 or q8_0");
  app.add_option("--ids", ids,
                 "token ids: topics (runs of 256 of one topic, for synthetic files) or uniform; default: what the file says, or uniform")
      ->check(CLI::IsMember({"topics", "uniform"}));
  app.add_option(
      "--peer", peers,
      "a llama-bench, llama-batched-bench or sweep-bench to run beside, and words to hand on: \"PATH --n-cpu-moe 30\"; may be given "
      "several times");
}

void add_options(CLI::App& app, Options& o, MakeOptions& m) {
  app.add_option("-m,--model", o.model, "GGUF file");
  app.add_option("-p,--prompt", o.prompts, "prompt lengths")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("-n,--decode", o.n_decode, "tokens decoded behind each prompt")->check(CLI::NonNegativeNumber);
  app.add_option("-t,--threads", o.threads, "thread counts; 0: one for each core that may be used")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
  app.add_option("-r,--runs", o.n_runs, "runs, of which the best counts")->check(CLI::PositiveNumber);
  app.add_option("--vram", o.vram, "on a GPU, inside this budget, as in 2G");
  app.add_option("--link", o.link, "with --vram: copies between host and device held to a rate, as in 12G: what a slower link would do");
  CLI::Option* const by_hand = app.add_flag(
      "--by-hand", o.by_hand, "with --vram: the plan beside placements that need none: all on the CPU, attention first, stream all, ...");
  app.add_option("--device", o.device, "of --by-hand: gpu, or sim: a simulated one")->check(CLI::IsMember({"gpu", "sim"}))->needs(by_hand);
  add_common(app, o.kv_type, o.ids, o.peers);
  app.add_option("--isa", o.isa, "kernels; default: the best of this machine")->check(CLI::IsMember({"baseline", "avx2", "avx512", "amx"}));
  app.add_option("--json", o.json_file, "write all figures to this file");
  for (char const* const other : {"--peer", "--isa", "--json"}) app.get_option(other)->excludes(by_hand);  // none would do anything
  app.add_option("--make", m.model_and_path,
                 "make a model, or a projector of images, of random weights: NAME PATH; a wrong name gets the list")
      ->expected(2);
  app.add_option("--routing", m.routing, "of --make: topics, as real models route, or uniform")
      ->check(CLI::IsMember({"topics", "uniform"}));
}

CLI::App& add_sweep(CLI::App& app, SweepCommand& c) {
  CLI::App& sub =
      *app.add_subcommand("sweep", "A grid of models, budgets and prompts, each with its bound, on a GPU or a simulated device");
  sub.add_option("-m,--model", c.sweep.models, "GGUF file; may be given several times; none: only draw what the results hold");
  sub.add_option("--vram", c.budgets, "budgets, as in 2G,4G")->delimiter(',');
  sub.add_option("-p,--prompt", c.sweep.prompts, "prompt lengths")->delimiter(',')->check(CLI::PositiveNumber);
  sub.add_option("-n,--decode", c.sweep.n_decode, "tokens decoded behind each prompt")->check(CLI::NonNegativeNumber);
  sub.add_option("-r,--runs", c.sweep.n_runs, "runs of each prompt: the first is a figure of its own, the best of the others counts")
      ->check(CLI::Range(2, 1000));
  sub.add_option("-t,--threads", c.sweep.n_threads, "of the CPU; 0: one for each core that may be used")->check(CLI::NonNegativeNumber);
  add_common(sub, c.sweep.kv_type, c.sweep.ids, c.sweep.peers);
  sub.add_option("--link", c.link, "copies between host and device held to a rate, as in 12G: what a slower link would do");
  sub.add_option("--device", c.device, "gpu, or sim: a simulated one")->check(CLI::IsMember({"gpu", "sim"}));
  sub.add_flag("--engine-per-prompt", c.sweep.engine_per_prompt, "an engine for each prompt length, its context no longer than that needs");
  sub.add_flag("!--no-read-ahead", c.sweep.reads_ahead,
               "the CPU's caches read no experts ahead of their layers on guesses: for comparison");
  sub.add_flag("!--no-look-ahead", c.sweep.looks_ahead, "no experts are brought ahead of their layers on guesses: for comparison");
  sub.add_option("--tflops", c.tflops, "that bounds think prompts reach; default: half of a matrix product's");
  sub.add_option("--json", c.sweep.json_file, "results, a line each, appended; what they answer is not measured again");
  sub.add_option("--svg", c.svg_file, "draw all results");
  return sub;
}

CLI::App& add_vision(CLI::App& app, VisionCommand& c) {
  CLI::App& sub = *app.add_subcommand(
      "vision", "Images of several sizes inside several budgets, encoded beside a decoder, on a GPU or a simulated device");
  CLI::Option* const model = sub.add_option("-m,--model", c.bench.model, "GGUF file; none: only draw what the results hold");
  model->needs(sub.add_option("--mmproj", c.bench.projector, "its projector")->needs(model));
  sub.add_option("--vram", c.budgets, "budgets, as in 2G,4G")->delimiter(',');
  sub.add_option("--resident", c.resident, "a budget for all weights at once, whose first tokens the others are compared with; no: none");
  sub.add_option("--images", c.images, "sizes, as in 480p,720p,1080p,1440p,4K,8K,640x480")->delimiter(',');
  sub.add_option("-n,--decode", c.bench.n_decode, "tokens decoded behind each prompt")->check(CLI::NonNegativeNumber);
  sub.add_option("--text", c.bench.n_text, "tokens of text around each image")->check(CLI::PositiveNumber);
  sub.add_option("-r,--runs", c.bench.n_runs, "runs of all images: the first is a figure of its own, the best of the others counts")
      ->check(CLI::Range(2, 1000));
  sub.add_option("-t,--threads", c.bench.n_threads, "of the CPU; 0: one for each core that may be used")->check(CLI::NonNegativeNumber);
  sub.add_option("--kv", c.bench.kv_type, "type of keys and values: f16, f32 or q8_0");
  sub.add_option("--link", c.link, "copies between host and device held to a rate, as in 12G: what a slower link would do");
  sub.add_option("--device", c.device, "gpu, or sim: a simulated one")->check(CLI::IsMember({"gpu", "sim"}));
  sub.add_option("--tflops", c.tflops, "that bounds think prompts reach; default: half of a matrix product's");
  sub.add_option("--json", c.bench.json_file, "results, a line each, appended; what they answer is not measured again");
  sub.add_option("--svg", c.svg_file, "draw all results");
  return sub;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Speed of a whole model, beside what memory gives and beside other engines");
  Options o;
  MakeOptions m;
  SweepCommand s;
  add_options(app, o, m);
  VisionCommand v;
  CLI::App const &sweep = add_sweep(app, s), &vision = add_vision(app, v);
  CLI11_PARSE(app, argc, argv);
  try {
    if (sweep.parsed()) return run_sweep(s);
    if (vision.parsed()) return run_vision(v);
    if (!m.model_and_path.empty()) return make(m), 0;
    if (o.model.empty()) throw tiered::Error(tiered::Errc::precondition, "there is no model: -m FILE, or see --help");
    run(o);
  } catch (std::exception const& e) {
    fmt::print(stderr, "tiered-bench: {}\n", e.what());
    return 1;
  }
}
