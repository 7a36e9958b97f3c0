// The command line by CLI11, in a file of its own: it takes longer to compile than all the rest of tiered-run.
#include "options.hpp"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/version.hpp"

namespace app {

constexpr char const* help_footer = R"(
EXAMPLES
  tiered-run -m model.gguf -p "Once upon a time" -n 100
      everything on the CPU; the text goes to stdout, all else to stderr
  tiered-run -m model.gguf --chat -p "What is gravity?" --temp 0
      one question to an instruction-tuned model, always the same answer
  tiered-run -m model.gguf --vram 2G --plan
      what would be done within 2 GiB; reads no weights, takes a moment
  tiered-run -m model.gguf --vram 2G --stats -f prompt.txt > answer.txt
      and doing it

THE BUDGET
  --vram says how much memory of the device may be taken: weights, KV cache, buffers, all of it, at every moment. What does not
  fit is copied there for each use, behind the computation, or computed by the CPU, whatever the plan estimates to be fastest. The
  budget changes speed, never the text. SIZE is a number with K, M, G or T (powers of 1024): 512M, 2G, 1.5GiB.
  This version has no GPU back end: the device is simulated. Its memory is a part of this machine's that can hold no more than the
  budget; it computes with the CPU, so it is no faster than running without --vram, and the times in a plan are those of a made-up
  machine. It is there to look at plans, to test placements, and to learn.

EXIT CODES
  0    done                           4    the file is fine, but this program cannot run it
  1    failed while running           5    does not fit: the budget, the context, the memory
  2    wrong command line             130  interrupted by Ctrl-C; the text so far is kept (143: by SIGTERM)
  3    a file is missing or damaged
A first Ctrl-C stops cleanly, a second one at once.
)";

namespace {

/// CLI11's layout, without what its options say about themselves in a notation of its own.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_option_opts(CLI::Option const* option) const override {
    std::string text;
    std::string const type = option->get_type_name();
    if (!type.empty() && option->get_items_expected_max() > 0) text = " " + type.substr(0, type.find(':'));  // behind it: what is checked
    if (!option->get_default_str().empty()) text += " (" + option->get_default_str() + ")";
    return text;
  }
  std::string make_option_name(CLI::Option const* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    return name.substr(0, name.find('{'));
  }
};

/// What users of llama.cpp type out of habit, and what does the same here.
constexpr std::pair<std::string_view, std::string_view> unknown_flags[] = {
    {"-ngl", "layers are not counted here: give a budget, as in --vram 2G, and see --plan"},
    {"--n-gpu-layers", "layers are not counted here: give a budget, as in --vram 2G, and see --plan"},
    {"--gpu-layers", "layers are not counted here: give a budget, as in --vram 2G, and see --plan"},
    {"-ncmoe", "experts are placed by the plan: give a budget, as in --vram 2G"},
    {"--n-cpu-moe", "experts are placed by the plan: give a budget, as in --vram 2G"},
    {"-ot", "tensors are placed by the plan: see --placement and examples/own_placement.cpp"},
    {"--override-tensor", "tensors are placed by the plan: see --placement and examples/own_placement.cpp"},
    {"-cnv", "for one question and its answer: --chat"},
    {"--conversation", "for one question and its answer: --chat"},
};

/// CLI::Range that tells what is no number at all from what is out of range, and lets no NaN through.
template <class T>
CLI::Validator number(T least, T most) {
  return CLI::Validator(
      [least, most](std::string const& text) -> std::string {
        char* end = nullptr;
        double const value = std::strtod(text.c_str(), &end);
        if (text.empty() || *end != '\0' || std::isnan(value)) return tiered::concat('"', text, "\" is no number");
        if (std::is_integral_v<T> && std::isfinite(value) && value != std::trunc(value))
          return tiered::concat('"', text, "\" is no whole number");
        if (value < double(least) || value > double(most)) return tiered::concat(text, " is not in the range ", least, " to ", most);
        return "";
      },
      "");
}

void add_what_to_run(CLI::App& app, Options& o) {
  app.option_defaults()->group("What to run");
  app.add_option("-m,--model", o.model, "The model, a GGUF file; of a split one any part")->type_name("FILE")->required();
  auto* const prompt = app.add_option("-p,--prompt", o.prompt, "The prompt; \\n, \\t, \\\" and \\\\ in it are escapes")->type_name("TEXT");
  char const* const file_help = "The prompt is this file's text, less one line end; \"-\", or neither -p nor -f: standard input's";
  app.add_option("-f,--file", o.prompt_file, file_help)->type_name("FILE")->excludes(prompt);
  app.add_flag("!--no-escape", o.escapes, "Take -p as it is");
  auto* const chat = app.add_flag("--chat", o.chat, "The prompt is a question: it is put into the model's own template (ChatML)");
  app.add_option("--system-prompt", o.system_prompt, "With --chat (also: -sys)")->type_name("TEXT")->needs(chat);
  app.add_flag("!--no-display-prompt", o.display_prompt, "Print the continuation only (without --chat the prompt comes first)");
}

void add_where_to_run(CLI::App& app, Options& o, std::string& vram) {
  app.option_defaults()->group("Where to run");
  app.add_option("--vram", vram, "Budget of device memory, as in 2G; without it there is no device and all is done on the CPU")
      ->type_name("SIZE");
  std::vector<std::string> const names(std::begin(tiered::placement_names), std::end(tiered::placement_names));
  app.add_option("--placement", o.placement, "What lives in the budget: all_vram, attention_first, seconds_per_byte or stream_all")
      ->check(CLI::IsMember(names))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_flag("--plan", o.plan_only, "Print the plan to standard output and stop; no weights are read");
  app.add_option("-c,--ctx-size", o.context, "Most tokens of prompt and text together; 0: the trained length, at most 32768")
      ->check(number(0, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("-t,--threads", o.n_threads, "CPU threads; 0: one for each physical core that may be used")
      ->check(number(-1, 1024))
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--f32-activations", o.f32_activations, "Multiply with 32-bit activations: slower, for comparisons");
}

void add_what_comes_out(CLI::App& app, Options& o, std::string& seed) {
  app.option_defaults()->group("What comes out");
  app.add_option("-n,--n-predict,--predict", o.n_predict, "Most tokens to generate; -1: until the model ends or the context is full")
      ->check(number(-2, 0x7fffffff))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--temp", o.temperature, "Temperature; 0: always the likeliest token")
      ->check(number(0.f, 1000.f))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--top-k", o.top_k, "Draw among the k likeliest tokens; 0: all")
      ->check(number(-0x7fffffff, 0x7fffffff))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--top-p", o.top_p, "and of these among the fewest that have probability p together; 1: all")
      ->check(number(0.f, 1.f))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("-s,--seed", seed, "Of the draws; -1: a new one each time, which is printed")->type_name("N")->capture_default_str();
  app.add_flag("--ignore-eos", o.ignore_eos, "Never let the model end its text");
  app.add_flag("--stats", o.stats, "Print times, tokens/s and memory to stderr at the end");
}

std::uint64_t random_seed() {
  std::uint32_t seed = 0;  // 32 bits are enough, and short to type again
  if (getentropy(&seed, sizeof seed) != 0) throw tiered::Error(tiered::Errc::device, "the system gives no random numbers: choose a --seed");
  return seed;
}

/// -s: 0 to 2^64-1, or -1 for a random one.
std::uint64_t parse_seed(std::string const& text) {
  if (text == "-1") return random_seed();
  std::uint64_t seed = 0;
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error == std::errc() && end == text.data() + text.size()) return seed;
  throw UsageError{tiered::concat("--seed \"", text, "\" is no seed: write 0 to ", std::numeric_limits<std::uint64_t>::max(),
                                  ", or -1 for a random one")};
}

/// Errors of the parser in one line; what users of other programs expect gets an answer instead of a refusal.
std::string explain(CLI::ParseError const& error, CLI::App const& app, std::vector<std::string> const& arguments) {
  for (std::string const& argument : arguments) {
    for (auto const& [flag, answer] : unknown_flags) {
      if (argument == flag) return tiered::concat(flag, ": ", answer);
    }
  }
  // Found first is what is missing; of more use is the flag that does not exist.
  for (std::string const& argument : app.remaining()) {
    if (argument.starts_with('-')) return CLI::ExtrasError({argument}).what();
  }
  return error.what();
}

}  // namespace

Options parse_options(int argc, char const* const* argv) {
  Options o;
  std::string vram, seed = "-1";
  CLI::App app{
      tiered::concat("tiered-run ", tiered::version_text, ": text from a GGUF language model, inside a budget of device memory.\n"),
      "tiered-run"};
  app.set_version_flag("--version", tiered::concat("tiered-run ", tiered::version_text));
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(help_footer);
  add_what_to_run(app, o);
  add_where_to_run(app, o, vram);
  add_what_comes_out(app, o, seed);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (argument == "-sys") argument = "--system-prompt";  // one dash and three letters: llama.cpp's users know it so
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (CLI::Success const& request) {
    std::ostringstream text;
    app.exit(request, text, text);
    throw Answer{text.str()};
  } catch (CLI::ParseError const& error) {
    throw UsageError{explain(error, app, arguments)};
  }
  if (app.count("--vram") > 0) {
    std::optional<std::uint64_t> const bytes = tiered::parse_bytes(vram);
    if (!bytes) throw UsageError{tiered::concat("--vram \"", vram, "\" is no size: write 512M, 2G or 1.5GiB")};
    o.vram_bytes = std::size_t(*bytes);
  }
  if (app.count("--placement") > 0 && !o.vram_bytes) std::fputs("tiered-run: note: --placement changes nothing without --vram\n", stderr);
  o.seed = parse_seed(seed);
  return o;
}

}  // namespace app
