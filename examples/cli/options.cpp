// The command line by CLI11, in a file of its own: it takes longer to compile than all the rest of tiered-run.
#include "options.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "help.hpp"
#include "line_editor.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_eviction.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/version.hpp"

namespace app {
namespace {

using tiered::concat;
using Pair = std::pair<std::string_view, std::string_view>;

/// One dash and several letters, which CLI11 would take for several flags; llama.cpp's users know them so.
constexpr Pair short_names[] = {
    {"-bf", "--binary-file"},     {"-cnv", "--conversation"},     {"-no-cnv", "--no-conversation"},  {"-st", "--single-turn"},
    {"-sys", "--system-prompt"},  {"-ub", "--ubatch-size"},       {"-sysf", "--system-prompt-file"}, {"-mli", "--multiline-input"},
    {"-co", "--color"},           {"-tb", "--threads-batch"},     {"-ctk", "--cache-type-k"},        {"-ctv", "--cache-type-v"},
    {"-mm", "--mmproj"},          {"-fa", "--flash-attn"},        {"--predict", "--n-predict"},      {"--temperature", "--temp"},
    {"--typical-p", "--typical"}, {"--log-verbose", "--verbose"}, {"--verbose-prompt", "--verbose"},
};

constexpr std::string_view no_layers = "layers are not counted here: give a budget, as in --vram 2G, and see --plan";
constexpr std::string_view no_experts = "experts are placed by the plan: give a budget, as in --vram 2G, and see --plan";
constexpr std::string_view no_tensors =
    "tensors are placed by the plan: give a budget, as in --vram 2G; see --placement and "
    "examples/own_placement.cpp";
constexpr std::string_view no_download = "nothing is downloaded here: give a file with -m";
constexpr std::string_view one_order = "the samplers have one order here, llama.cpp's own; each can be switched off by its value";

/// What users of llama.cpp type out of habit, and what does the same here.
constexpr Pair refused_flags[] = {
    {"-ngl", no_layers},
    {"--n-gpu-layers", no_layers},
    {"--gpu-layers", no_layers},
    {"-cmoe", no_experts},
    {"--cpu-moe", no_experts},
    {"-ncmoe", no_experts},
    {"--n-cpu-moe", no_experts},
    {"-ot", no_tensors},
    {"-hf", no_download},
    {"-hfr", no_download},
    {"--override-tensor", no_tensors},
    {"--hf-repo", no_download},
    {"-mu", no_download},
    {"--samplers", one_order},
    {"--model-url", no_download},
    {"--sampling-seq", one_order},
    {"-i", "a conversation is had with -cnv"},
    {"--interactive", "a conversation is had with -cnv"},
};

/// Of what stands beside a name, or nothing.
template <std::size_t n>
std::string_view beside(Pair const (&table)[n], std::string_view name) {
  for (auto const& [first, second] : table) {
    if (first == name) return second;
  }
  return {};
}

/// CLI11's layout, with the names above, without what its options say about themselves in a notation of its own.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(36); }
  std::string make_option_opts(CLI::Option const* option) const override {
    std::string text;
    std::string const type = option->get_type_name();
    if (!type.empty() && option->get_items_expected_max() > 0) text = " " + type.substr(0, type.find(':'));  // behind it: what is checked
    if (!option->get_default_str().empty()) text += " (" + option->get_default_str() + ")";
    return text;
  }
  std::string make_option_name(CLI::Option const* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    name = name.substr(0, name.find('{'));
    for (auto const& [brief, full] : short_names) {
      if (!brief.starts_with("--") && option->check_lname(std::string(full.substr(2)))) name = concat(brief, ',', name);
    }
    return name;
  }
};

/// CLI::Range that tells what is no number at all from what is out of range, and lets no NaN through.
template <class T>
CLI::Validator number(T least, T most) {
  return CLI::Validator(
      [least, most](std::string const& text) -> std::string {
        char* end = nullptr;
        double const value = std::strtod(text.c_str(), &end);
        if (text.empty() || *end != '\0' || std::isnan(value)) return concat('"', text, "\" is no number");
        if (std::is_integral_v<T> && std::isfinite(value) && value != std::trunc(value)) return concat('"', text, "\" is no whole number");
        if (value < double(least) || value > double(most)) return concat(text, " is not in the range ", least, " to ", most);
        return "";
      },
      "");
}

/// What is parsed by us, after CLI11 is done.
struct Raw {
  std::string vram, link, seed = "-1", kv_k = "f16", kv_v = "f16", color, flash_attention, session, prompt_cache, device = "auto";
  std::vector<std::string> logit_bias;
  bool chat = false, conversation = false, no_conversation = false, cache_read_only = false, cache_all = false, accepted = false;
  std::int32_t batch = 0, micro_batch = 0;
  std::int64_t video_frames = 0;
};

void add_what_to_run(CLI::App& app, Options& o) {
  app.option_defaults()->group("What to run");
  app.add_option("-m,--model", o.model, "The model, a GGUF file; of a split one any part")->type_name("FILE")->required();
  auto* const prompt =
      app.add_option("-p,--prompt", o.prompt, "The prompt; \\n, \\t, \\x41, \\\" and \\\\ in it are escapes")->type_name("TEXT");
  char const* const file_help = "The prompt is this file's text, less one line end; \"-\", or neither -p nor -f: standard input's";
  auto* const file = app.add_option("-f,--file", o.prompt_file, file_help)->type_name("FILE")->excludes(prompt);
  app.add_option("--binary-file", o.binary_file, "The prompt is all of this file")->type_name("FILE")->excludes(prompt)->excludes(file);
  app.add_flag("-e,--escape,!--no-escape", o.escapes, "Whether -p, -sys, -r and --in-* have escapes (yes)");
  app.add_flag("--display-prompt,!--no-display-prompt", o.display_prompt, "Whether the prompt comes before its continuation (yes)");
}

void add_conversation(CLI::App& app, Options& o, Raw& raw) {
  app.option_defaults()->group("Conversations");
  auto* const chat = app.add_flag("--chat", raw.chat, "The prompt is a question: it is put into the model's own template");
  auto* const on = app.add_flag("--conversation", raw.conversation, "Go on after an answer; as when there is no prompt, but a terminal");
  app.add_flag("--no-conversation", raw.no_conversation, "Never")->excludes(chat)->excludes(on);
  app.add_flag("--single-turn", o.chat.single_turn, "End after the first answer");
  auto* const text = app.add_option("--system-prompt", o.chat.system_prompt, "What the model is told before all else")->type_name("TEXT");
  app.add_option("--system-prompt-file", o.chat.system_file, "The same from a file")->type_name("FILE")->excludes(text);
  auto* const name = app.add_option("--chat-template", o.chat.template_name, "A built-in template's name, or Jinja; else the model's own")
                         ->type_name("TEXT");
  auto* const file =
      app.add_option("--chat-template-file", o.chat.template_file, "The same from a file")->type_name("FILE")->excludes(name);
  app.add_flag("--jinja,!--no-jinja", raw.accepted, "Accepted: templates are always Jinja");
  app.add_option("--in-prefix", o.chat.in_prefix, "Before each message, instead of a template")
      ->type_name("TEXT")
      ->excludes(name)
      ->excludes(file);
  app.add_option("--in-suffix", o.chat.in_suffix, "Behind each message, instead of a template")
      ->type_name("TEXT")
      ->excludes(name)
      ->excludes(file);
  app.add_flag("--multiline-input", o.chat.multiline, "Messages have many lines; one that ends with \\ or / is the last");
  app.add_flag("--simple-io", o.chat.simple_io, "No line editor, no colours, no history");
  app.add_option("--color", raw.color, "on, off or auto (on a terminal)")->type_name("WHEN")->expected(0, 1);
}

void add_pictures(CLI::App& app, PictureOptions& p, Raw& raw) {
  app.option_defaults()->group("Images and videos");
  auto const many = [&app](char const* name, std::vector<std::string>& files, char const* type, char const* help) {
    return app.add_option(name, files, help)->type_name(type)->allow_extra_args(false);
  };
  auto* const projector =
      app.add_option("--mmproj", p.projector, "The projector of a vision-language model, a GGUF file")->type_name("FILE");
  many("--image", p.images, "FILE", "An image (JPEG, PNG, WebP, BMP, GIF) that the prompt is about; may be given often")->needs(projector);
  many("--video", p.videos, "PATH", "A video: a folder of images, or a file where FFmpeg was there; may be given often")->needs(projector);
  app.add_option("--video-fps", p.video_fps, "Frames taken of each second; those of a folder were taken so often")
      ->check(number(1e-3, 1e3))
      ->type_name("X")
      ->capture_default_str();
  app.add_option("--video-frames", raw.video_frames, "So many frames of a video instead")->check(number(1, 1 << 20))->type_name("N");
  for (auto const& [name, value, help] :
       {std::tuple{"--image-min-tokens", &p.min_tokens, "An image, or two frames, is at least as large"},
        std::tuple{"--image-max-tokens", &p.max_tokens, "and at most; 0: as the projector's file says"}}) {
    app.add_option(name, *value, help)->check(number(0, 1 << 20))->type_name("N")->capture_default_str();
  }
}

void add_where_to_run(CLI::App& app, Options& o, Raw& raw) {
  app.option_defaults()->group("Where to run");
  app.add_option("--vram", raw.vram, "Budget of device memory, as in 2G; without it, what the GPU has free less 512M")->type_name("SIZE");
  app.add_flag("--vram-excludes-context", o.vram_excludes_context,
               "The budget does not count what the CUDA context takes, as engines do that do not know it: for comparison");
  app.add_option("--link", raw.link, "Holds copies between host and device to a rate, as in 12G: what a slower link would do")
      ->type_name("RATE");
  app.add_option("--device", raw.device, "auto, none, cuda, or sim: a simulated one, no faster than the CPU")
      ->check(CLI::IsMember({"auto", "none", "cuda", "sim"}))
      ->type_name("NAME")
      ->capture_default_str();
  std::vector<std::string> const names(std::begin(tiered::placement_names), std::end(tiered::placement_names));
  app.add_option("--placement", o.placement, "What lives in the budget: all_vram, attention_first, seconds_per_byte or stream_all")
      ->check(CLI::IsMember(names))
      ->type_name("NAME")
      ->capture_default_str();
  std::vector<std::string> const evictions(std::begin(tiered::eviction_names), std::end(tiered::eviction_names));
  app.add_option("--eviction", o.eviction, "Which expert leaves a full cache: lru, frequency_decay or prior_frequency")
      ->check(CLI::IsMember(evictions))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_flag("--expert-prior,!--no-expert-prior", o.expert_prior,
               "Whether the cache begins with the experts that earlier runs used, and this run's are kept (on a GPU)");
  app.add_flag("--plan", o.plan_only, "Print the plan to standard output and stop; no weights are read");
  app.add_option("-c,--ctx-size", o.context, "Most tokens of prompt and text together; 0: the trained length, at most 32768")
      ->check(number(0, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("-t,--threads", o.n_threads, "CPU threads; 0: one for each physical core that may be used")
      ->check(number(-1, 1024))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--threads-batch", o.batch_threads, "Accepted: prompts are read by the same threads")
      ->check(number(-1, 1024))
      ->type_name("N");
  app.add_option("-b,--batch-size", raw.batch, "Accepted: the plan decides how many tokens go together")
      ->check(number(1, 1 << 24))
      ->type_name("N");
  app.add_option("--ubatch-size", raw.micro_batch, "As -b")->check(number(1, 1 << 24))->type_name("N");
  app.add_option("--cache-type-k", raw.kv_k, "Type of the keys that are kept: f32, f16 or q8_0")->type_name("TYPE")->capture_default_str();
  app.add_option("--cache-type-v", raw.kv_v, "And of the values: the same")->type_name("TYPE")->capture_default_str();
  app.add_option("--flash-attn", raw.flash_attention, "Accepted: it always is")->type_name("WHEN")->expected(0, 1);
  app.add_flag("--mmap,!--no-mmap", o.mmap, "Whether weights are used where the file is mapped, or read into memory (mapped)");
  app.add_flag("--mlock", o.mlock, "Keep the weights in memory, whatever else wants it");
  app.add_flag("--warmup,!--no-warmup", raw.accepted, "Accepted: there is nothing to warm up");
  app.add_flag("--deterministic", o.deterministic, "The same text whatever a GPU has cached of a mixture's experts: slower");
  app.add_flag("--f32-activations", o.f32_activations, "Multiply with 32-bit activations: slower, for comparisons");
}

void add_sampling(CLI::App& app, SamplingOptions& s, Raw& raw) {
  app.option_defaults()->group("How tokens are drawn");
  auto const real = [&app](char const* name, float& value, float least, float most, char const* help) {
    app.add_option(name, value, help)->check(number(least, most))->type_name("X")->capture_default_str();
  };
  auto const whole = [&app](char const* name, std::int32_t& value, std::int32_t least, char const* help) {
    app.add_option(name, value, help)->check(number(least, 0x7fffffff))->type_name("N")->capture_default_str();
  };
  app.add_option("-s,--seed", raw.seed, "Of the draws; -1: a new one each time, which is printed")->type_name("N")->capture_default_str();
  real("--temp", s.temperature, 0, 1000, "Temperature; 0: always the likeliest token");
  whole("--top-k", s.top_k, -0x7fffffff, "Draw among the k likeliest tokens; 0: all");
  real("--top-p", s.top_p, 0, 1, "and of these among the fewest that have probability p together; 1: all");
  real("--min-p", s.min_p, 0, 1, "and of these among those with p times the probability of the likeliest; 0: all");
  real("--typical", s.typical, 0, 1, "and the most typical that have probability p together; 1: all");
  real("--repeat-penalty", s.repeat_penalty, 1e-6f, 1e6f, "Divides the logits of recent tokens, or multiplies if below 0; 1: does not");
  whole("--repeat-last-n", s.repeat_last_n, -1, "How many tokens are recent; 0: none, -1: all of the context");
  real("--presence-penalty", s.presence_penalty, -1000, 1000, "Taken off the logits of recent tokens");
  real("--frequency-penalty", s.frequency_penalty, -1000, 1000, "Taken off for each time");
  app.add_option("-l,--logit-bias", raw.logit_bias, "Added to a token's logit, as in 15043+1, 15043-1.5 or 2-inf; may be given often")
      ->type_name("ID(+/-)X")
      ->allow_extra_args(false);
  app.add_flag("--ignore-eos", s.ignore_eos, "Never let the model end its text");
}

void add_when_it_ends(CLI::App& app, Options& o) {
  app.option_defaults()->group("When it ends");
  app.add_option("-n,--n-predict", o.n_predict, "Most tokens to generate; -1: until the model ends or the context is full")
      ->check(number(-2, 0x7fffffff))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("-r,--reverse-prompt", o.reverse_prompts, "End after this text; may be given often")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_option("--stop", o.stops, "End before this text, which is not printed; may be given often")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  app.add_flag("--context-shift,!--no-context-shift", o.context_shift,
               "When the context is full: forget its middle, or the oldest turns, and say so (no)");
  app.add_option("--keep", o.keep, "How many tokens of the prompt are never forgotten; -1: all")
      ->check(number(-1, 1 << 24))
      ->type_name("N")
      ->capture_default_str();
}

void add_what_comes_out(CLI::App& app, Options& o) {
  app.option_defaults()->group("What comes out");
  app.add_flag("--stats,--perf,!--no-perf", o.stats, "Print times, speeds and their bounds, and memory to stderr at the end");
  app.add_flag("--json", o.json, "One JSON object to stdout instead of text; with --plan, the plan");
  app.add_option("--logprobs", o.logprobs, "With --json: the N likeliest tokens at each place")->check(number(0, 1000))->type_name("N");
  app.add_option("--trace", o.trace_file, "Write when each part of each step ran, for ui.perfetto.dev")->type_name("FILE");
  app.add_flag("-v,--verbose", o.verbose, "Print the prompt's tokens to stderr too");
  app.add_flag("--log-disable", o.quiet, "Print nothing to stderr but errors, warnings and what was asked for");
}

void add_sessions(CLI::App& app, Raw& raw) {
  app.option_defaults()->group("State between runs");
  auto* const session =
      app.add_option("--session", raw.session, "Go on from this file if it exists, with a prompt behind its text; keep all in it")
          ->type_name("FILE");
  auto* const cache =
      app.add_option("--prompt-cache", raw.prompt_cache, "Begin as far as this file goes with the prompt, and keep the prompt in it")
          ->type_name("FILE")
          ->excludes(session);
  app.add_flag("--prompt-cache-all", raw.cache_all, "and the text after all")->needs(cache);
  app.add_flag("--prompt-cache-ro", raw.cache_read_only, "and never write to it")->needs(cache);
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
  throw UsageError{
      concat("--seed \"", text, "\" is no seed: write 0 to ", std::numeric_limits<std::uint64_t>::max(), ", or -1 for a random one")};
}

std::pair<std::int32_t, float> parse_bias(std::string const& text) {
  std::int32_t token = -1;
  char const* const end = text.data() + text.size();
  auto const [sign, error] = std::from_chars(text.data(), end, token);
  if (error == std::errc() && token >= 0 && sign != end && (*sign == '+' || *sign == '-')) {
    char* rest = nullptr;
    float const bias = std::strtof(sign + 1, &rest);
    if (sign + 1 != end && rest == end && !std::isnan(bias) && std::isalnum(static_cast<unsigned char>(sign[1])) != 0)
      return {token, std::min(*sign == '-' ? -bias : bias, 1e30f)};  // infinity would leave no probabilities
  }
  throw UsageError{concat("--logit-bias \"", text, "\": write a token's number, + or -, and a number, as in 15043+1 or 2-inf")};
}

/// Errors  UsageError for what the KV cache has no kernels for.
tiered::DType parse_kv_type(Raw const& raw) {
  static constexpr std::pair<std::string_view, tiered::DType> types[] = {
      {"f32", tiered::DType::f32}, {"f16", tiered::DType::f16}, {"q8_0", tiered::DType::q8_0}};
  auto const parse = [](char const* flag, std::string const& text) {
    for (auto const& [name, type] : types) {
      if (text == name) return type;
    }
    throw UsageError{concat(flag, " \"", text, "\": the KV cache can be f32, f16 or q8_0")};
  };
  tiered::DType const type = parse("-ctk", raw.kv_k);
  parse("-ctv", raw.kv_v);
  if (raw.kv_k != raw.kv_v) {
    throw UsageError{concat("-ctk ", raw.kv_k, " with -ctv ", raw.kv_v, ": keys and values have one type here; give both, as in -ctk ",
                            raw.kv_k, " -ctv ", raw.kv_k)};
  }
  return type;
}

std::optional<bool> parse_when(std::string const& text, char const* flag) {
  for (std::string_view const word : {"", "on", "enabled", "true", "1"}) {
    if (text == word) return true;
  }
  for (std::string_view const word : {"off", "disabled", "false", "0"}) {
    if (text == word) return false;
  }
  if (text == "auto" || text == "-1") return std::nullopt;
  throw UsageError{concat(flag, " \"", text, "\": write on, off or auto")};
}

void finish_conversation(CLI::App const& app, Options& o, Raw const& raw) {
  bool const at_terminal = isatty(STDIN_FILENO) != 0;
  if (raw.no_conversation)
    o.chat.mode = Mode::raw;
  else if (raw.conversation)
    o.chat.mode = Mode::conversation;
  else if (raw.chat || !o.pictures.images.empty() || !o.pictures.videos.empty())
    o.chat.mode = o.has_prompt() || !at_terminal || o.json ? Mode::question : Mode::conversation;
  else if (o.has_prompt() || !at_terminal || o.json)
    o.chat.mode = Mode::raw;
  if (o.chat.mode == Mode::raw && !o.plan_only) {
    for (char const* const flag : {"--system-prompt", "--system-prompt-file", "--chat-template", "--chat-template-file"}) {
      if (app.count(flag) > 0) throw UsageError{concat(flag, " needs --chat, for a question, or -cnv, for a conversation")};
    }
    if (app.count("--in-prefix") + app.count("--in-suffix") > 0) throw UsageError{"--in-prefix and --in-suffix need -cnv, a conversation"};
  }
  if (o.json && o.chat.mode == Mode::conversation) throw UsageError{"--json is for one answer, not for a conversation: --chat -p TEXT"};
  if (app.count("--color") > 0) o.chat.color = parse_when(raw.color, "--color");
  if (o.chat.simple_io && !o.chat.color) o.chat.color = false;
}

void finish_pictures(CLI::App const& app, PictureOptions& p, Raw const& raw) {
  if (app.count("--mmproj") > 0 && p.projector.empty()) throw UsageError{"--mmproj: the value is empty"};
  if (raw.video_frames > 0) p.video_frames = raw.video_frames;
  if (p.max_tokens > 0 && p.min_tokens > p.max_tokens) {
    throw UsageError{concat("--image-min-tokens ", p.min_tokens, " is more than --image-max-tokens ", p.max_tokens)};
  }
}

/// What CLI11 does not know: values that depend on each other or have a notation of their own.
void finish(CLI::App const& app, Options& o, Raw const& raw) {
  if (app.count("--vram") > 0) {
    std::optional<std::uint64_t> const bytes = tiered::parse_bytes(raw.vram);
    if (!bytes) throw UsageError{concat("--vram \"", raw.vram, "\" is no size: write 512M, 2G or 1.5GiB")};
    o.vram_bytes = std::size_t(*bytes);
  }
  if (app.count("--link") > 0) {
    std::optional<double> const rate = tiered::parse_rate(raw.link);
    if (!rate) throw UsageError{concat("--link \"", raw.link, "\" is no rate: write 12G or 500M, bytes per second")};
    o.link_bytes_per_s = *rate;
  }
  o.device = raw.device == "none"   ? DeviceKind::none
             : raw.device == "cuda" ? DeviceKind::cuda
             : raw.device == "sim"  ? DeviceKind::simulated
                                    : DeviceKind::automatic;
  if (o.device == DeviceKind::none && o.vram_bytes) throw UsageError{"--vram is a budget for a device, and --device none asks for none"};
  if (o.device == DeviceKind::simulated && !o.vram_bytes) throw UsageError{"--device sim needs a budget, as in --vram 2G"};
  o.sampling.seed = parse_seed(raw.seed);
  for (std::string const& text : raw.logit_bias) o.sampling.logit_bias.push_back(parse_bias(text));
  o.kv_type = parse_kv_type(raw);
  if (app.count("--flash-attn") > 0 && parse_when(raw.flash_attention, "--flash-attn") == std::optional(false))
    throw UsageError{"-fa off: attention is always computed in one pass here, at no cost"};
  finish_pictures(app, o.pictures, raw);
  finish_conversation(app, o, raw);
  for (char const* const flag : {"--session", "--prompt-cache", "--trace", "--chat-template", "--chat-template-file"}) {
    if (app.count(flag) > 0 && app.get_option(flag)->as<std::string>().empty()) throw UsageError{concat(flag, ": the value is empty")};
  }
  bool const goes_on = !raw.session.empty();
  o.session = {goes_on ? raw.session : raw.prompt_cache, raw.cache_read_only, raw.cache_all || goes_on, goes_on};
  if (o.logprobs > 0 && !o.json) throw UsageError{"--logprobs needs --json"};
  if (o.escapes) {
    for (auto* const texts : {&o.stops, &o.reverse_prompts}) {
      for (std::string& text : *texts) text = without_escapes(text);
    }
    o.chat.in_prefix = without_escapes(o.chat.in_prefix), o.chat.in_suffix = without_escapes(o.chat.in_suffix);
    if (o.chat.system_prompt) o.chat.system_prompt = without_escapes(*o.chat.system_prompt);
  }
  for (auto const* const texts : {&o.stops, &o.reverse_prompts}) {
    for (std::string const& text : *texts) {
      if (text.empty()) throw UsageError{concat(texts == &o.stops ? "--stop" : "--reverse-prompt", ": the text is empty")};
    }
  }
  for (CLI::Option const* const option : app.get_options()) {
    if (option->count() > 0 && !option->get_lnames().empty()) o.given.push_back(concat("--", option->get_lnames().front()));
  }
}

/// Long names for short ones, wherever a flag and not its value stands.
/// Errors  UsageError for flags of llama.cpp that have no meaning here, with what has.
std::vector<std::string> with_long_names(CLI::App const& app, int argc, char const* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    std::string const name = argument.substr(0, argument.find('='));
    if (std::string_view const answer = beside(refused_flags, name); !answer.empty()) throw UsageError{concat(name, ": ", answer)};
    if (std::string_view const full = beside(short_names, name); !full.empty()) argument = concat(full, argument.substr(name.size()));
    CLI::Option const* const option = app.get_option_no_throw(argument);
    if (option != nullptr && option->get_items_expected_min() > 0) ++i;
  }
  return arguments;
}

/// Errors of the parser in one line.
std::string explain(CLI::ParseError const& error, CLI::App const& app) {
  // Found first is what is missing; of more use is the flag that does not exist.
  for (std::string const& argument : app.remaining()) {
    if (argument.starts_with('-')) return CLI::ExtrasError({argument}).what();
  }
  return error.what();
}

}  // namespace

std::string without_escapes(std::string_view text) {
  static constexpr std::string_view names = "nrt'\"\\", values = "\n\r\t'\"\\";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::size_t const known = text[i] == '\\' && i + 1 < text.size() ? names.find(text[i + 1]) : names.npos;
    unsigned char byte = 0;
    if (known != names.npos) {
      out += values[known];
      ++i;
    } else if (text.substr(i).starts_with("\\x") && i + 4 <= text.size() &&
               std::from_chars(text.data() + i + 2, text.data() + i + 4, byte, 16).ptr == text.data() + i + 4) {
      out += char(byte);
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool asks_for_json(int argc, char const* const* argv) {
  return std::any_of(argv + std::min(argc, 1), argv + argc, [](char const* argument) { return std::string_view(argument) == "--json"; });
}

Options parse_options(int argc, char const* const* argv) {
  Options o;
  Raw raw;
  CLI::App app{concat("tiered-run ", tiered::version_text, ": text from a GGUF language model, inside a budget of device memory.\n"),
               "tiered-run"};
  app.set_version_flag("--version", concat("tiered-run ", tiered::version_text, "\nlines are read by ", line_editor_name()));
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(help_footer);
  add_what_to_run(app, o);
  add_pictures(app, o.pictures, raw);
  add_conversation(app, o, raw);
  add_where_to_run(app, o, raw);
  add_sampling(app, o.sampling, raw);
  add_when_it_ends(app, o);
  add_what_comes_out(app, o);
  add_sessions(app, raw);
  std::vector<std::string> arguments = with_long_names(app, argc, argv);
  try {
    std::reverse(arguments.begin(), arguments.end());
    app.parse(std::move(arguments));
  } catch (CLI::Success const& request) {
    std::ostringstream text;
    app.exit(request, text, text);
    throw Answer{text.str()};
  } catch (CLI::ParseError const& error) {
    throw UsageError{explain(error, app)};
  }
  finish(app, o, raw);
  return o;
}

}  // namespace app
