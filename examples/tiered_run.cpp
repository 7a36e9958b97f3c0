/// tiered-run: text from a GGUF model inside a VRAM budget. Text goes to stdout, everything else to stderr.
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/background.hpp"
#include "cli/files.hpp"
#include "cli/options.hpp"
#include "cli/pictures.hpp"
#include "cli/prompt.hpp"
#include "cli/report.hpp"
#include "cli/run.hpp"
#include "cli/runner.hpp"
#include "cli/terminal.hpp"
#include "cli/unused.hpp"
#include "cli/weights.hpp"
#include "tiered/kernels/cpu/topology.hpp"
#include "tiered/memory/host_memory.hpp"
#include "tiered/memory/page_toucher.hpp"
#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"
#if TIERED_HAS_CUDA
#include "tiered/cuda.hpp"
#endif

namespace {

using namespace app;
using tiered::concat;
using tiered::format_bytes;

struct HostPolicies : tiered::CpuPolicies {
  using HostMemory = ChosenMemory;
};
/// The simulated device with a placement that is chosen on the command line.
struct DevicePolicies : tiered::SimPolicies {
  using HostMemory = ChosenMemory;
  using Placement = tiered::AnyPlacement;
  using Eviction = tiered::AnyEviction;
};
#if TIERED_HAS_CUDA
struct GpuPolicies : tiered::CudaPolicies {
  using HostMemory = ChosenMemory;
  using Placement = tiered::AnyPlacement;
  using Eviction = tiered::AnyEviction;
};
#endif
template <class P>
struct Traced : P {
  using Trace = tiered::BoundedTrace;
};

template <class P>
tiered::PolicyValues<P> policy_values(Options const& o) {
  tiered::PolicyValues<P> values;
  if constexpr (std::same_as<typename P::Placement, tiered::AnyPlacement>) values.placement = tiered::make_placement(o.placement);
  if constexpr (std::same_as<typename P::Eviction, tiered::AnyEviction>) values.eviction = tiered::make_eviction(o.eviction);
  return values;
}

using Model = std::shared_ptr<tiered::Transformer const>;

template <class P>
std::unique_ptr<Runner> make_runner(Model const& model, tiered::EngineOptions const& options, Options const& o,
                                    tiered::Tokenizer const& tokenizer, Pictures const& pictures, ChosenMemory memory,
                                    std::shared_ptr<WeightSpans const> weights) {
  tiered::PolicyValues<P> values = policy_values<P>(o);
  values.host_memory = std::move(memory);
  auto runner = std::make_unique<EngineRunner<P>>(model, options, std::move(values), tokenizer, std::move(weights));
  if (pictures.can_see()) runner->see(pictures.model(), {pictures.max_patches()}, policy_values<P>(o));
  return runner;
}

/// --plan: no engine, no weights but for a sample where a GPU is measured for the first time; its context is made, to know what it leaves
/// of the budget. What was planned with is put into `options`.
template <class P>
tiered::EnginePlans only_plan(Model const& model, tiered::EngineOptions& options, Options const& o) {
  tiered::KernelTable const& kernels = tiered::cpu_kernels(tiered::best_isa(), o.f32_activations);
#if TIERED_HAS_CUDA
  if constexpr (std::same_as<P, GpuPolicies>) {
    bool const outside = options.vram_excludes_context;
    tiered::MachineOptions how{options.vram_bytes, options.n_threads, o.f32_activations, false, {}, options.device, outside};
    how.link_bytes_per_s = options.link_bytes_per_s;
    auto machine = P::make_machine(how);
    options.vram_bytes = machine.plan_bytes();
    options.hardware = tiered::profile_machine(machine, *model, model->table().weights, options).hardware;
    return tiered::make_plans<P>(*model, options, policy_values<P>(o), kernels, machine.device->kernels(), device_reads_host(machine));
  }
#endif
  if (options.link_bytes_per_s > 0) options.hardware = tiered::with_link(tiered::HardwareProfile::simulated(), options.link_bytes_per_s);
  return tiered::make_plans<P>(*model, options, policy_values<P>(o), kernels, kernels);
}

template <class P>
void print_plan(tiered::GgufFile const& gguf, Model const& model, tiered::EngineOptions options, Options const& o) {
  tiered::EnginePlans const plans = only_plan<P>(model, options, o);
  if (o.json) return TextOutput().write(dump(plan_json(gguf, model->config(), plans, o)));
  TextOutput().write(concat(describe(gguf, model->config()), '\n', describe_device(o, plans.vram_bytes), "\ncontext ", plans.max_context,
                            " tokens\n", plan_report(plans, model->table(), o, options.hardware)));
}

#if TIERED_HAS_CUDA
/// Whether there is a device, and what of it may be taken where nobody said.
bool find_gpu(Options& o) {
  constexpr std::size_t left_free = 512 * tiered::MiB;
  if (o.device == DeviceKind::automatic) {
    int n = 0, driver = 0;
    cudaError_t const status = cudaGetDeviceCount(&n);
    static_cast<void>(cudaDriverGetVersion(&driver));  // 0 where there is none
    static_cast<void>(cudaGetLastError());
    if (status == cudaErrorInsufficientDriver && driver != 0 && !o.quiet) {
      say(concat("tiered-run: note: no GPU is used: the driver is for CUDA ", tiered::cuda_version_text(driver),
                 ", older than what this program was built with\n"));
    }
    if (status != cudaSuccess || n == 0) return false;
  }
  tiered::CudaDevice const device = tiered::CudaDevice::open();
  o.device_name = device.name;
  if (!o.vram_bytes) {
    std::size_t const free = device.free_bytes() + device.ledger->total_bytes();
    o.vram_bytes = free > left_free ? free - left_free : free;
  }
  return true;
}
#endif

/// While a device is opened: page-locking weights for its copies is slow where their pages are not there.
/// Errors  Errc::io for a file that was cut.
std::unique_ptr<tiered::PageToucher> touch_pages(tiered::GgufFile const& gguf, Options const& o) {
  bool const may_use_gpu = o.device == DeviceKind::automatic || o.device == DeviceKind::cuda;
  if (!TIERED_HAS_CUDA || !may_use_gpu || !o.mmap || o.plan_only || o.vram_bytes == std::size_t{0}) return nullptr;
  gguf.check_sizes();
  std::vector<tiered::PageToucher::Bytes> parts;
  for (int part = 0; part < gguf.n_parts(); ++part) parts.push_back(gguf.mapping(part)->bytes());
  return std::make_unique<tiered::PageToucher>(std::move(parts), std::clamp(tiered::default_thread_count() / 4, 1, 4));
}

void settle_device(Options& o) {
  if (o.device == DeviceKind::automatic && o.vram_bytes == std::size_t{0}) o.device = DeviceKind::none;
  bool const may_use_gpu = o.device == DeviceKind::automatic || o.device == DeviceKind::cuda;
#if TIERED_HAS_CUDA
  if (may_use_gpu && find_gpu(o)) {
    o.device = DeviceKind::cuda;
    return;
  }
#else
  if (may_use_gpu && o.device == DeviceKind::cuda)
    throw tiered::Error(tiered::Errc::unsupported, "--device cuda: this program was built without CUDA");
#endif
  if (o.device == DeviceKind::automatic) o.device = o.vram_bytes.value_or(0) > 0 ? DeviceKind::simulated : DeviceKind::none;
}

void check_budget(Options const& o) {
  if (o.device != DeviceKind::simulated) return;
  std::optional<std::uint64_t> const available = tiered::available_host_bytes();
  if (o.vram_bytes && available && *o.vram_bytes > *available) {
    throw tiered::Error(tiered::Errc::over_budget,
                        concat("--vram ", format_bytes(*o.vram_bytes), " is more than the ", format_bytes(*available),
                               " of memory that are available here; the simulated device has no other (--plan alone works)"));
  }
}

/// Errors  Errc::bad_file where a token of the prompt could have no row; UsageError for a bias on a token that is none.
void check_vocabulary(tiered::GgufFile const& gguf, tiered::Tokenizer const& tokenizer, tiered::Transformer const& model,
                      Options const& o) {
  std::int32_t const rows = model.config().vocab_size;
  if (tokenizer.size() > rows) {
    throw tiered::Error(tiered::Errc::bad_file,
                        concat(gguf.path(), ": its tokenizer has ", tokenizer.size(), " tokens, its embedding only ", rows, " rows"));
  }
  for (auto const& [token, bias] : o.sampling.logit_bias) {
    if (token >= rows) throw UsageError{concat("--logit-bias: token ", token, " is not in a vocabulary of ", rows)};
  }
}

void announce(tiered::GgufFile const& gguf, Runner& runner, Options const& o) {
  std::int32_t const trained = runner.config().max_seq_len;
  tiered::EnginePlans const& plans = runner.plans();
  if (!o.quiet) {
    say(concat(describe(gguf, runner.config()), '\n', describe_device(o, plans.vram_bytes), '\n'));
    if (plans.vram_bytes > 0) say(describe_plan(plans.tiers.front(), runner.table()));
  }
  if (plans.max_context > trained) {
    say(concat("tiered-run: warning: -c ", plans.max_context, " is more than the ", trained,
               " tokens that the model was trained for: expect nonsense beyond them\n"));
  }
  for (std::string const& note : {runner.slow_copies(), runner.profile().note, runner.expert_prior().note}) {
    if (!note.empty()) say(concat("tiered-run: note: ", note, '\n'));
  }
  if (o.quiet) return;
  if (std::string const encoder = runner.encoder_text(); !encoder.empty()) say(encoder + '\n');
  say(concat("context ", plans.max_context, " tokens, ", runner.team().size(), " threads, ", runner.kernels_name(), " kernels"));
  say(o.sampling.temperature > 0 ? concat(", seed ", o.sampling.seed, "\n\n") : ", greedy\n\n");
}

tiered::EngineOptions engine_options(Options const& o, Progress& progress) {
  tiered::EngineOptions options;
  options.vram_bytes = o.vram_bytes.value_or(0);
  options.max_context = o.context;
  options.n_threads = std::max(o.n_threads, 0);
  options.f32_activations = o.f32_activations;
  options.deterministic = o.deterministic;
  options.expert_prior = o.expert_prior;
  options.kv_type = o.kv_type;
  options.vram_excludes_context = o.vram_excludes_context;
  options.link_bytes_per_s = o.link_bytes_per_s;
  options.progress = [](void* p, std::int32_t done, std::int32_t total) {
    if (total > 1) static_cast<Progress*>(p)->show(std::uint64_t(done), std::uint64_t(total));
    if (done == total) static_cast<Progress*>(p)->clear();
  };
  options.progress_context = &progress;
  return options;
}

/// What the model will read, as far as it is known before it is loaded.
struct Input {
  std::optional<ChatFormat> format;  ///< of a question or a conversation
  std::optional<std::string> first;  ///< what a conversation begins with
  std::string shown;                 ///< what goes to stdout before the text
  std::vector<std::int32_t> tokens;  ///< of a text; none: the session's
  std::vector<Picture> pictures;     ///< of --image and --video: of the text, or of the first message
};

/// A text with a mark for each medium: its own, or before it where it has none.
std::string with_marks(std::string text, std::vector<tiered::Media> const& media) {
  constexpr tiered::MediaMarks marks;
  bool const has_marks = text.find(marks.image) != text.npos || text.find(marks.video) != text.npos;
  std::string before;
  for (tiered::Media const& medium : media) before += has_marks ? "" : mark_of(medium.info().kind == tiered::PromptKind::video);
  return before + text;
}

/// Errors  of reading, of the template; UsageError for an empty prompt, unless there are media or may be a session.
Input read_input(tiered::GgufFile const& gguf, tiered::Tokenizer const& tokenizer, Pictures& pictures, Options const& o) {
  Input in;
  in.pictures = pictures.given();
  std::vector<tiered::Media> const media = media_of(in.pictures);
  if (o.chat.mode != Mode::raw) in.format.emplace(gguf, o.chat);
  if (o.chat.mode == Mode::conversation) {
    if (o.has_prompt()) in.first = read_prompt(o);
    return in;
  }
  std::string const text = read_prompt(o);
  if (o.chat.mode == Mode::question) {
    if (text.empty() && media.empty()) throw UsageError{"the question is empty"};
    std::vector<tiered::ChatMessage> messages;
    if (o.chat.system_prompt) messages.push_back({"system", *o.chat.system_prompt});
    messages.push_back(user_message(text, in.pictures).chat);
    in.tokens = encode_text(tokenizer, pictures.written(in.format->render(messages), media, true));
    return in;
  }
  if (text.empty() && !o.session.file.empty() && media.empty()) return in;
  if (text.empty() && media.empty()) throw UsageError{"the prompt is empty: give one with -p, with -f or on standard input"};
  in.tokens = encode_text(tokenizer, pictures.written(with_marks(text, media), media, false));
  if (in.tokens.empty()) throw UsageError{"this model has no token for any byte of the prompt"};
  if (o.display_prompt) in.shown = text;
  return in;
}

using LateTokenizer = Background<tiered::Tokenizer>;

template <class P>
ExitCode run(tiered::GgufFile const& gguf, LateTokenizer& late_tokenizer, Options const& o, nlohmann::json& so_far) {
  Model const model = tiered::make_model(gguf);
  tell_unused(o, !tiered::ExpertLayers(model->table().shards).layers.empty());
  Progress progress("reading the prompt", "tokens");
  tiered::EngineOptions const options = engine_options(o, progress);
  if (o.plan_only) return print_plan<P>(gguf, model, options, o), ok;

  check_budget(o);
  tiered::Tokenizer const& tokenizer = late_tokenizer.get();
  check_vocabulary(gguf, tokenizer, *model, o);
  Pictures pictures(o, model->config(), tokenizer);
  Input const input = read_input(gguf, tokenizer, pictures, o);
  bool const talks = o.chat.mode == Mode::conversation;
  talks ? Interrupt::install_for_conversation() : Interrupt::install();

  double const start = now_s();
  Progress loading("loading");
  auto const weights = std::make_shared<WeightSpans>();
  ChosenMemory memory(gguf, o.mmap, o.mlock, loading, weights);
  std::unique_ptr<Runner> const runner = o.trace_file.empty()
                                             ? make_runner<P>(model, options, o, tokenizer, pictures, std::move(memory), weights)
                                             : make_runner<Traced<P>>(model, options, o, tokenizer, pictures, std::move(memory), weights);
  loading.clear();
  pictures.use_team(runner->team());
  announce(gguf, *runner, o);
  if (o.mmap && (o.mlock || !runner->locks_weights())) page_in(gguf, o.mlock, loading);
  Run run(o, gguf, tokenizer, pictures, *runner, now_s() - start, so_far);
  run.load();
  Interrupt::Watch const watch(runner->cancel_token());
  if (talks) return run.conversation(*input.format, input.first, input.pictures);
  return run.text(input.shown, input.tokens, media_of(input.pictures), progress), ok;
}

ExitCode run(Options o, nlohmann::json& so_far) {
  CutFile::watch(o.pictures.projector.empty() ? o.model : concat(o.model, " or ", o.pictures.projector));
  tiered::GgufFile const gguf = tiered::GgufFile::open(o.model);
  ChatOptions& chat = o.chat;
  if (chat.mode == Mode::automatic) {
    bool const has_format =
        has_chat_template(gguf) || chat.template_name || chat.template_file || !chat.in_prefix.empty() || !chat.in_suffix.empty();
    chat.mode = has_format ? Mode::conversation : Mode::raw;
  }
  if (!o.plan_only) check_outputs(o);
  LateTokenizer tokenizer([&gguf] { return tiered::make_tokenizer(gguf); });  // takes half as long as opening a device
  if (chat.system_file) chat.system_prompt = read_text(*chat.system_file, "system prompt file");
  auto pages = touch_pages(gguf, o);
  settle_device(o);
  if (o.device != DeviceKind::cuda) pages.reset();
#if TIERED_HAS_CUDA
  if (o.device == DeviceKind::cuda) return run<GpuPolicies>(gguf, tokenizer, o, so_far);
#endif
  if (o.device == DeviceKind::simulated) return run<DevicePolicies>(gguf, tokenizer, o, so_far);
  return run<HostPolicies>(gguf, tokenizer, o, so_far);
}

/// What went wrong, in words to stderr and, of --json, with what there is besides to stdout.
struct Complaint {
  bool json = false;
  nlohmann::json so_far;

  int operator()(int exit_code, char const* code, std::string const& message) {
    say(concat("tiered-run: ", code == std::string_view("cancelled") ? "" : "error: ", message,
               exit_code == usage ? "\nSee tiered-run --help\n" : "\n"));
    if (!json || code == std::string_view("output")) return exit_code;
    if (!so_far.is_object()) so_far = nlohmann::json::object();
    so_far.update(error_json(code, message, exit_code));
    return write(exit_code);
  }
  int write(int exit_code) {
    so_far["exit_code"] = exit_code;
    try {
      TextOutput().write(dump(so_far));
    } catch (OutputError const& e) {
      say(concat("tiered-run: error: ", e.what(), '\n'));
      return failed;
    }
    return exit_code;
  }
};

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  report_large_files();
  Complaint complain{asks_for_json(argc, argv), {}};
  try {
    Options const options = parse_options(argc, argv);
    ExitCode const code = run(options, complain.so_far);
    return options.json && !options.plan_only ? complain.write(code) : code;
  } catch (Answer const& answer) {
    try {
      return TextOutput().write(answer.text), ok;
    } catch (OutputError const& e) {
      return complain(failed, "output", e.what());
    }
  } catch (UsageError const& e) {
    return complain(usage, "usage", e.message);
  } catch (OutputError const& e) {
    return complain(failed, "output", e.what());
  } catch (tiered::Error const& e) {
    bool const stopped = e.code() == tiered::Errc::cancelled;
    return complain(stopped ? Interrupt::exit_code() : exit_code(e.code()), name(e.code()), stopped ? "interrupted" : e.what());
  } catch (std::bad_alloc const&) {
    return complain(does_not_fit, "out_of_memory", "the system has no more memory");
  } catch (std::exception const& e) {
    return complain(failed, "internal", e.what());
  }
}
