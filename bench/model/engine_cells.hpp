/// One engine, and the cells that it answers: prompts of several lengths, each with tokens behind it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bounds.hpp"
#include "child.hpp"
#include "ids.hpp"
#include "machine_rates.hpp"
#include "peak_watch.hpp"
#include "predict.hpp"
#include "results.hpp"
#include "tiered/memory/host_memory.hpp"
#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"
#if TIERED_HAS_CUDA
#include "tiered/cuda.hpp"
#endif

namespace bench {

/// Errors  unsupported for any other name.
inline tiered::DType kv_type_of(std::string const& text) {
  for (tiered::DType const type : {tiered::DType::f16, tiered::DType::f32, tiered::DType::q8_0}) {
    if (text == tiered::name(type)) return type;
  }
  throw tiered::Error(tiered::Errc::unsupported, tiered::concat("--kv ", text, ": f16, f32 or q8_0"));
}

/// What one engine is asked: `question` with each of `prompts`.
struct EngineJob {
  std::string path;  ///< of the model
  Cell question;
  std::vector<int> prompts;
  int max_context = 0, n_runs = 2;  ///< runs of each prompt, the first of which is another figure
  double started_s = 0;             ///< when the process began, by now_s()
  bool reads_ahead = true;          ///< EngineOptions::read_ahead
  bool looks_ahead = true;          ///< as planned; false: see EngineOptions::look_ahead
};

/// Times of one prompt and the tokens behind it.
struct RunTimes {
  double ttft_s = 0, first_token_s = 0, decode_s = 0;
};

template <class P>
class EngineCells {
 public:
  EngineCells(std::shared_ptr<tiered::Transformer const> model, EngineJob const& job, MeasuredMachine const& machine)
      : job_(job),
        machine_(machine),
        routing_(routing_of(job.question.routing)),
        options_(engine_options(job)),
        engine_(std::move(model), options_, policy_values()) {
    basis_.table = engine_.model().table();
    basis_.table.states = states_ = states_as_kept();
    basis_.cost.hardware = engine_.profile().hardware;
    basis_.cost.capabilities = tiered::detail::capabilities_of(engine_.machine().host->kernels(), engine_.machine().device->kernels(),
                                                               options_.kv_type, engine_.model().config());
  }

  static tiered::EngineOptions engine_options(EngineJob const& job) {
    tiered::EngineOptions o;
    o.vram_bytes = std::size_t(job.question.vram_bytes);
    o.n_threads = job.question.threads;
    o.max_context = job.max_context;
    o.kv_type = kv_type_of(job.question.kv_type);
    o.link_bytes_per_s = job.question.held_link_bytes_per_s;
    o.read_ahead = job.reads_ahead;
    if (!job.looks_ahead) o.look_ahead = tiered::LookAhead::never;
    o.expert_prior = false;  // a cell says the same whatever ran before
    return o;
  }
  static tiered::PolicyValues<P> policy_values() {
    tiered::PolicyValues<P> values;
    values.placement = tiered::make_placement("seconds_per_byte");
    return values;
  }

  tiered::Engine<P>& engine() { return engine_; }

  /// `progress(run)` is called before each run.
  template <class Progress>
  Cell measure(int prompt, Progress const& progress) {
    Cell c = job_.question;
    c.prompt = prompt;
    c.machine = machine_.name;
    c.rates = machine_.rates;
    c.kernels = engine_.machine().device->kernels().name;
    TokenIds ids(engine_.model().config().vocab_size, routing_, std::uint64_t(prompt));
    tiered::ExpertCache::Counters const before = engine_.stats().experts;
    for (int i = 0; i < std::max(job_.n_runs, 2); ++i) {
      progress(i);
      take(run(prompt, c, ids), i == 0, c);
    }
    tiered::ExpertCache::Counters const after = engine_.stats().experts;
    c.load_steps = to_text(engine_.stats().load);
    note_bounds(c);
    note_prediction(c, after.hits + after.misses > before.hits + before.misses);
    return c;
  }

 private:
  std::vector<tiered::LayerState> states_as_kept() const {
    tiered::ShardTable const table = engine_.model().table();
    std::vector<tiered::LayerState> states(table.states.begin(), table.states.end());
    for (std::size_t l = 0; l < states.size(); ++l) {
      tiered::AttentionConfig const& a = engine_.model().config().layers.at(l).attention;
      if (states[l].elems_per_token > 0)
        states[l].bytes_per_token = 2 * std::size_t(a.n_kv_heads) * tiered::kv_row_bytes(options_.kv_type, a.head_dim);
    }
    return states;
  }

  RunTimes run(int n_prompt, Cell& c, TokenIds& ids) {
    std::vector<std::int32_t> const prompt = ids.next(n_prompt), more = ids.next(c.decoded);
    tiered::Sequence const sequence = engine_.new_sequence();
    RunTimes t;
    double const begin = now_s(), copied = counted_bytes();
    engine_.prefill(sequence, prompt);
    double const answered = now_s(), copied_for_prompt = counted_bytes();
    tiered::EngineStats const before = engine_.stats();
    for (std::size_t i = 0; i < more.size(); ++i) {
      engine_.decode(sequence, more[i]);
      if (i == 0) t.first_token_s = now_s() - answered;
    }
    t.ttft_s = answered - begin;
    t.decode_s = now_s() - answered;
    note_traffic(c, copied_for_prompt - copied, counted_bytes() - copied_for_prompt, before);
    return t;
  }
  static void take(RunTimes const& t, bool first, Cell& c) {
    double const per_s = t.decode_s > 0 ? c.decoded / t.decode_s : 0;
    if (first) {
      c.ttft_first_s = t.ttft_s;
    } else {
      c.ttft_s = c.ttft_s > 0 ? std::min(c.ttft_s, t.ttft_s) : t.ttft_s;
      c.first_token_s = c.first_token_s > 0 ? std::min(c.first_token_s, t.first_token_s) : t.first_token_s;
      c.decode_per_s = std::max(c.decode_per_s, per_s);
    }
  }

  /// To the device, where copies are counted; else 0.
  double counted_bytes() {
    if constexpr (requires { engine_.machine().copy->bytes_to_device(); }) return double(engine_.machine().copy->bytes_to_device());
    return 0;
  }
  static constexpr bool counts() {
    return requires(tiered::Engine<P> & e) { e.machine().copy->bytes_to_device(); };
  }
  void note_traffic(Cell& c, double for_prompt, double behind, tiered::EngineStats const& before) {
    tiered::EngineStats const after = engine_.stats();
    double const hits = double(after.experts.hits - before.experts.hits), misses = double(after.experts.misses - before.experts.misses);
    if (hits + misses > 0) c.expert_hits = hits / (hits + misses);
    double const ahead = double(after.help.n_guessed - before.help.n_guessed);
    c.ahead_per_token = c.decoded > 0 ? ahead / c.decoded : 0;
    c.ahead_right = ahead > 0 ? double(after.help.n_right - before.help.n_right) / ahead : 0;
    c.ahead_in_time = ahead > 0 ? double(after.help.n_in_time - before.help.n_in_time) / ahead : 0;
    misses_per_token_ = c.decoded > 0 ? misses / c.decoded : 0;
    c.counted = counts();
    if (!c.counted) return;
    c.streamed_prompt_bytes = for_prompt;
    c.streamed_bytes_per_token = c.decoded > 0 ? behind / c.decoded : 0;
  }

  void note_bounds(Cell& c) const {
    tiered::ModelConfig const& config = engine_.model().config();
    ModelBytes const m = model_bytes(basis_.table, config.n_layers);
    double const kv = kv_bytes(basis_.table, config, options_.kv_type, c.prompt + c.decoded / 2.0);
    DecodeBound const decode = decode_bound(m, kv, double(c.vram_bytes), routing_, c.rates);
    c.decode_physical_s = decode.physical_s;
    c.decode_practical_s = decode.practical_s;
    c.ttft_bound_s = prompt_bound(m, prompt_flops(basis_.table, c.prompt), double(c.vram_bytes), c.rates).seconds;
  }
  void note_prediction(Cell& c, bool cached) const {
    Prediction const prompt = predict(engine_.plans(), basis_, c.prompt, 0);
    Prediction const token = predict(engine_.plans(), basis_, 1, c.prompt + c.decoded / 2);
    c.ttft_predicted_s = prompt.seconds;
    c.decode_predicted_s = token.seconds;
    c.host_bytes_per_token = token.host_bytes;
    if (c.counted) return;
    c.streamed_prompt_bytes = prompt.copied_bytes;
    double const experts = misses_per_token_ * fetched_share() + c.ahead_per_token;
    c.streamed_bytes_per_token = cached ? scheduled_bytes() + experts * expert_bytes() : token.copied_bytes;
  }
  /// Of the misses of the cache: the host computes the others.
  double fetched_share() const { return double(engine_.plans().images.front().plan.fetched_misses); }
  /// That each token's schedule copies, whatever it is routed to.
  double scheduled_bytes() const {
    double bytes = 0;
    for (tiered::Action const& a : engine_.plans().images.front().schedule)
      bytes += a.kind == tiered::ActionKind::copy ? double(a.bytes) : 0;
    return bytes;
  }
  double expert_bytes() const {
    double bytes = 0, n = 0;
    for (tiered::Shard const& s : basis_.table.shards) {
      if (s.kind == tiered::ShardKind::expert) bytes += double(s.bytes), ++n;
    }
    return n > 0 ? bytes / n : 0;
  }

  EngineJob const& job_;
  MeasuredMachine const& machine_;
  Routing routing_;
  tiered::EngineOptions options_;
  tiered::Engine<P> engine_;
  std::vector<tiered::LayerState> states_;
  PredictionBasis basis_;
  double misses_per_token_ = 0;  // of the last run
};

struct SimSweepPolicies : tiered::SimPolicies {
  using Placement = tiered::AnyPlacement;
};

/// Of a device that counts what is taken of it.
struct CountedPeak {
  void watch() {}
  void stop() {}
  template <class Engine>
  std::uint64_t bytes(Engine& engine) const {
    return engine.stats().vram_peak_bytes;
  }
  std::string source() const { return "counted"; }
};

/// The engine's process: a line "loaded", then a cell for each prompt, until one fails. What it throws, the engine could not be made.
template <class P, class Peak>
void answer(EngineJob const& job, MeasuredMachine const& machine, Lines const& lines, Peak& peak) {
  tiered::GgufFile const file = tiered::GgufFile::open(job.path);
  file.check_sizes();
  lines.progress("loading");
  double const begin = now_s();
  EngineCells<P> cells(tiered::make_model(file), job, machine);
  double const loaded = now_s();
  peak.stop();
  lines({{"kind", "loaded"}});
  for (int const prompt : job.prompts) {
    Cell c = job.question;
    c.prompt = prompt;
    auto const progress = [&](int run) { lines.progress(tiered::concat("run ", run + 1, " of ", std::max(job.n_runs, 2))); };
    try {
      c = cells.measure(prompt, progress);
      c.vram_peak_bytes = peak.bytes(cells.engine());
      c.vram_source = peak.source();
    } catch (std::exception const& e) {
      c.error = e.what();
    }
    c.load_s = loaded - begin;
    c.ready_s = loaded - job.started_s;
    lines(to_json(c));
    if (!c.error.empty()) return;
  }
}

/// Errors  over_budget where this machine has less memory than the budget, as a device of its own would be missed.
inline void check_simulated_budget(std::uint64_t vram_bytes) {
  std::optional<std::uint64_t> const available = tiered::available_host_bytes();
  if (available && vram_bytes > *available) {
    throw tiered::Error(tiered::Errc::over_budget,
                        tiered::concat("a simulated device of ", tiered::format_bytes(vram_bytes), " on a machine with ",
                                       tiered::format_bytes(*available), " of memory available"));
  }
}

/// Errors  as check_simulated_budget().
inline void answer_simulated(EngineJob const& job, MeasuredMachine const& machine, Lines const& lines) {
  check_simulated_budget(job.question.vram_bytes);
  CountedPeak peak;
  answer<SimSweepPolicies>(job, machine, lines, peak);
}

#if TIERED_HAS_CUDA
struct GpuSweepPolicies : tiered::CudaPolicies {
  using Placement = tiered::AnyPlacement;
};

/// What the driver says that the process holds. The ledger is there before the context, so that it holds that too.
class LedgerPeak {
 public:
  LedgerPeak() {
    // Without NVML the figure is the runtime's, which would make a context of its own.
    if (ledger_->source() != tiered::VramSource::free_memory) watch();
  }
  /// From now on, and forgets what was before.
  void watch() {
    thread_.reset();
    thread_.emplace(Figure{ledger_});
  }
  void stop() {
    if (thread_) thread_->stop();
  }
  /// The most since watch(), this moment included.
  template <class Engine>
  std::uint64_t bytes(Engine&) {
    return thread_ ? thread_->peak() : Figure{ledger_}();
  }
  std::string source() const { return name(ledger_->source()); }

 private:
  struct Figure {
    std::shared_ptr<tiered::VramLedger> ledger;
    std::uint64_t operator()() const { return ledger->measure().figure_bytes; }
  };
  std::shared_ptr<tiered::VramLedger> ledger_ = tiered::VramLedger::of(0);
  std::optional<PeakWatch<Figure>> thread_;
};

inline void answer_on_gpu(EngineJob const& job, MeasuredMachine const& machine, Lines const& lines) {
  LedgerPeak peak;
  answer<GpuSweepPolicies>(job, machine, lines, peak);
}
#endif

}  // namespace bench
