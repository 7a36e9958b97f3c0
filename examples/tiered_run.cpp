/// tiered-run: text from a GGUF model inside a VRAM budget. Text goes to stdout, everything else to stderr.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/options.hpp"
#include "cli/prompt.hpp"
#include "cli/report.hpp"
#include "cli/terminal.hpp"
#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"

namespace {

using namespace app;
using tiered::concat;
using tiered::format_bytes;

/// The simulated device with a placement that is chosen on the command line. Without a budget: tiered::CpuPolicies as they are.
struct DevicePolicies : tiered::SimPolicies {
  using Placement = tiered::AnyPlacement;
};

template <class P>
tiered::PolicyValues<P> policy_values(Options const& o) {
  tiered::PolicyValues<P> values;
  if constexpr (std::same_as<P, DevicePolicies>) values.placement = tiered::make_placement(o.placement);
  return values;
}

void say(std::string const& text) { std::fputs(text.c_str(), stderr); }

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// Reads the weights into the page cache, where there is room for them: else the first prompt would, without a word.
void page_in(tiered::GgufFile const& gguf) {
  gguf.check_sizes();
  std::optional<std::uint64_t> const available = available_memory();
  if (available && gguf.total_bytes() > *available) return;
  Progress progress("loading");
  constexpr std::size_t page = 4096, stride = 16 * tiered::MiB;
  std::uint64_t done = 0;
  for (int part = 0; part < gguf.n_parts(); ++part) {
    std::span<std::byte const> const bytes = gguf.mapping(part)->bytes();
    for (std::size_t begin = 0; begin < bytes.size(); begin += stride) {
      std::span<std::byte const> const piece = bytes.subspan(begin, std::min(stride, bytes.size() - begin));
      gguf.mapping(part)->advise_willneed(piece);
      for (std::size_t i = 0; i < piece.size(); i += page) static_cast<void>(*static_cast<std::byte const volatile*>(piece.data() + i));
      progress.show(done += piece.size(), gguf.total_bytes());
      if (Interrupt::requested()) throw tiered::Error(tiered::Errc::cancelled, "interrupted while loading");
    }
  }
}

/// Which tokens may be drawn, or empty for all: not those that end a text under --ignore-eos, nor rows of the output matrix that
/// stand for no token.
std::vector<std::uint8_t> allowed_tokens(tiered::Tokenizer const& tokenizer, std::int32_t vocab_size, Options const& o) {
  std::vector<std::uint8_t> allowed;
  if (!o.ignore_eos && vocab_size <= tokenizer.size()) return allowed;
  for (std::int32_t id = 0; id < vocab_size; ++id) {
    allowed.push_back(id < tokenizer.size() && !(o.ignore_eos && tokenizer.is_end_of_generation(id)));
  }
  return allowed;
}

tiered::Sampler make_sampler(Options const& o) {
  tiered::SamplerOptions options;
  options.temperature = o.temperature;
  options.top_k = std::max(o.top_k, 0);
  options.top_p = std::max(o.top_p, std::numeric_limits<float>::min());
  options.seed = o.seed;
  return tiered::Sampler(options);
}

template <class Engine>
std::uint64_t copied_bytes(Engine& engine) {
  if constexpr (requires { engine.machine().copy->bytes_to_device(); }) return engine.machine().copy->bytes_to_device();
  return 0;
}

/// The prompt and what follows it. Text that has been written stays written, whatever happens; `stats` is true at any moment.
template <class Engine>
void generate(Engine& engine, tiered::Tokenizer const& tokenizer, Prompt const& prompt, Options const& o, RunStats& stats) {
  tiered::Sampler sampler = make_sampler(o);
  std::vector<std::uint8_t> const allowed = allowed_tokens(tokenizer, engine.model().config().vocab_size, o);
  tiered::StreamDecoder decoder(tokenizer);
  TextOutput out;
  struct EndOfText {
    TextOutput& out;
    tiered::StreamDecoder& decoder;
    void operator()() const {
      if (!decoder.finish().empty()) out.write("\uFFFD");  // half a character, and the other half will not come
      out.end_line();
    }
  } const end{out, decoder};

  out.write(prompt.shown);
  tiered::Sequence const sequence = engine.new_sequence();
  double const start = now_s();
  try {
    std::span<float const> logits = engine.prefill(sequence, prompt.tokens);
    stats.prefill_s = now_s() - start;
    stats.prefill_copied_bytes = copied_bytes(engine);
    std::size_t const most = o.n_predict < 0 ? std::numeric_limits<std::size_t>::max() : std::size_t(o.n_predict);
    for (;;) {
      if (stats.n_generated == most) {
        stats.stopped = concat("after ", most, " tokens, as -n says");
        break;
      }
      std::int32_t const token = sampler.sample(logits, allowed);
      if (stats.n_decoded == 0) stats.first_token_s = now_s() - start;
      if (tokenizer.is_end_of_generation(token)) {
        stats.stopped = "at the end of the text";
        break;
      }
      ++stats.n_generated;
      out.write(decoder.push(token));
      if (stats.n_generated == most) continue;
      if (sequence.length() == engine.max_context()) {
        stats.stopped = concat("the context of ", engine.max_context(), " tokens is full: -c gives more");
        break;
      }
      double const before = now_s();
      logits = engine.decode(sequence, token);
      stats.decode_s += now_s() - before;
      if (++stats.n_decoded == 1) stats.first_decode_copied_bytes = copied_bytes(engine) - stats.prefill_copied_bytes;
    }
  } catch (...) {
    stats.stopped = Interrupt::requested() ? "by a signal" : "by an error";
    end();
    throw;
  }
  end();
}

void check_budget(Options const& o) {
  std::optional<std::uint64_t> const available = available_memory();
  if (o.vram_bytes && available && *o.vram_bytes > *available) {
    throw tiered::Error(tiered::Errc::over_budget,
                        concat("--vram ", format_bytes(*o.vram_bytes), " is more than the ", format_bytes(*available),
                               " of memory that are available here; the simulated device has no other (--plan alone works)"));
  }
}

/// Errors  Errc::bad_file where a token of the prompt could have no row.
void check_vocabulary(tiered::GgufFile const& gguf, tiered::Tokenizer const& tokenizer, tiered::Transformer const& model) {
  std::int32_t const rows = model.config().vocab_size;
  if (tokenizer.size() <= rows) return;
  throw tiered::Error(tiered::Errc::bad_file,
                      concat(gguf.path(), ": its tokenizer has ", tokenizer.size(), " tokens, its embedding only ", rows, " rows"));
}

void check_context(Prompt const& prompt, std::int32_t context, Options const& o) {
  std::size_t const n = prompt.tokens.size(), needed = n + (o.n_predict == 0 ? 0 : 1);
  if (needed <= std::size_t(context)) return;
  throw tiered::Error(tiered::Errc::over_budget, concat("the prompt has ", n, " tokens, the context ", context, ": nothing was cut; -c ",
                                                        needed, " or more would take it"));
}

void announce(tiered::GgufFile const& gguf, tiered::Transformer const& model, tiered::EnginePlans const& plans, Options const& o) {
  std::int32_t const trained = model.config().max_seq_len;
  say(concat(describe(gguf, model.config()), '\n', describe_device(o, plans.vram_bytes), '\n'));
  if (plans.vram_bytes > 0) say(describe_plan(plans.tiers.front(), model.table()));
  if (plans.max_context > trained) {
    say(concat("tiered-run: warning: -c ", plans.max_context, " is more than the ", trained,
               " tokens that the model was trained for: expect nonsense beyond them\n"));
  }
}

/// --plan: no engine, no weights.
template <class P>
void print_plan(tiered::GgufFile const& gguf, tiered::Transformer const& model, tiered::EngineOptions const& engine_options,
                Options const& o) {
  tiered::KernelTable const& kernels = tiered::cpu_kernels(tiered::best_isa(), o.f32_activations);
  tiered::EnginePlans const plans = tiered::make_plans<P>(model, engine_options, policy_values<P>(o), kernels, kernels);
  TextOutput out;
  out.write(concat(describe(gguf, model.config()), '\n', describe_device(o, plans.vram_bytes), "\ncontext ", plans.max_context, " tokens\n",
                   plan_report(plans, model.table(), o)));
}

template <class P>
ExitCode run(tiered::GgufFile const& gguf, Options const& o) {
  std::shared_ptr<tiered::Transformer const> const model = tiered::make_model(gguf);
  tiered::EngineOptions options;
  options.vram_bytes = o.vram_bytes.value_or(0);
  options.max_context = o.context;
  options.n_threads = std::max(o.n_threads, 0);
  options.f32_activations = o.f32_activations;
  if (o.plan_only) return print_plan<P>(gguf, *model, options, o), ok;

  check_budget(o);
  tiered::Tokenizer const tokenizer = tiered::make_tokenizer(gguf);
  check_vocabulary(gguf, tokenizer, *model);
  Prompt const prompt = make_prompt(gguf, tokenizer, o);
  Interrupt::install();
  Progress progress("reading the prompt", "tokens");
  options.progress = [](void* p, std::int32_t done, std::int32_t total) {
    if (total > 1) static_cast<Progress*>(p)->show(std::uint64_t(done), std::uint64_t(total));
    if (done == total) static_cast<Progress*>(p)->clear();
  };
  options.progress_context = &progress;

  RunStats stats;
  double const start = now_s();
  tiered::Engine<P> engine(model, options, policy_values<P>(o));
  announce(gguf, *model, engine.plans(), o);
  check_context(prompt, engine.max_context(), o);
  say(concat("context ", engine.max_context(), " tokens, ", engine.machine().host->n_threads(), " threads, ",
             engine.machine().host->kernels().name, " kernels"));
  say(o.temperature > 0 ? concat(", seed ", o.seed, "\n\n") : ", greedy\n\n");
  page_in(gguf);
  stats.load_s = now_s() - start;
  stats.n_prompt = prompt.tokens.size();
  auto const finish = [&] {
    auto const s = engine.stats();
    stats.vram_budget_bytes = o.vram_bytes;
    stats.vram_peak_bytes = s.vram_peak_bytes;
    stats.host_kv_bytes = s.host_kv_bytes;
    stats.experts = s.experts;
    stats.copied_bytes = copied_bytes(engine);
    if (stats.prefill_s == 0) stats.prefill_copied_bytes = stats.copied_bytes;
    progress.clear();
    if (o.stats)
      say(to_text(stats));
    else if (stats.stopped.starts_with("the context"))
      say(concat("tiered-run: stopped: ", stats.stopped, '\n'));
  };
  Interrupt::Watch const watch(engine.cancel_token());
  try {
    progress.show(0, prompt.tokens.size());
    generate(engine, tokenizer, prompt, o, stats);
  } catch (...) {
    finish();
    throw;
  }
  finish();
  return ok;
}

int run(Options const& o) {
  CutFile::watch(o.model);
  tiered::GgufFile const gguf = tiered::GgufFile::open(o.model);
  return o.vram_bytes.value_or(0) > 0 ? run<DevicePolicies>(gguf, o) : run<tiered::CpuPolicies>(gguf, o);
}

int run(int argc, char** argv) {
  try {
    return run(parse_options(argc, argv));
  } catch (Answer const& answer) {
    return TextOutput().write(answer.text), ok;
  }
}

int complain(ExitCode code, std::string const& message) {
  say(concat("tiered-run: error: ", message, code == usage ? "\nSee tiered-run --help\n" : "\n"));
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  try {
    return run(argc, argv);
  } catch (UsageError const& e) {
    return complain(usage, e.message);
  } catch (OutputError const& e) {
    return complain(failed, e.what());
  } catch (tiered::Error const& e) {
    if (e.code() != tiered::Errc::cancelled) return complain(exit_code(e.code()), e.what());
    say("tiered-run: interrupted\n");
    return Interrupt::exit_code();
  } catch (std::bad_alloc const&) {
    return complain(does_not_fit, "the system has no more memory");
  } catch (std::exception const& e) {
    return complain(failed, e.what());
  }
}
