#include "unused.hpp"

#include <cstdio>
#include <string>

#include "tiered/core/text.hpp"

namespace app {
namespace {

using tiered::concat;

class Unused {
 public:
  explicit Unused(Options const& o) : o_(o) {}

  /// What changes nothing if this is so, and why.
  void operator()(bool is_so, char const* option, char const* why) const {
    if (is_so && o_.was_given(option)) say(concat(option, " changes nothing", why));
  }
  /// llama.cpp's names for what the plan decides.
  void accepted(char const* option, char const* shown, char const* why) const {
    if (o_.was_given(option)) say(concat(shown, " changes nothing: ", why));
  }

 private:
  void say(std::string const& text) const {
    if (!o_.quiet) std::fputs(concat("tiered-run: note: ", text, '\n').c_str(), stderr);
  }
  Options const& o_;
};

void tell_unused_by_device(Options const& o, bool has_experts, Unused const& unused) {
  bool const no_device = o.device == DeviceKind::none;
  unused(no_device, "--placement", " without --vram");
  unused(no_device, "--eviction", " without --vram");
  unused(!no_device && !has_experts, "--eviction", ": the model has no experts");
  unused(o.device != DeviceKind::cuda, "--vram-excludes-context", " without a CUDA device");
  if (o.expert_prior != true) return;  // to do without what is not there is no mistake
  unused(no_device, "--expert-prior", " without --vram");
  unused(!no_device && !has_experts, "--expert-prior", ": the model has no experts");
  unused(!no_device && has_experts && o.deterministic, "--expert-prior",
         " with --deterministic: what is cached must not depend on earlier runs");
}

void tell_unused_by_text(Options const& o, Unused const& unused) {
  bool const talks = o.chat.mode == Mode::conversation;
  SamplingOptions const& s = o.sampling;
  unused(!o.context_shift, "--keep", " without --context-shift");
  unused(o.chat.mode == Mode::raw, "--single-turn", " without -cnv, a conversation");
  unused(!talks, "--multiline-input", " without -cnv, a conversation");
  unused(talks, "--verbose", " in a conversation");
  unused(o.display_prompt && (o.json || o.chat.mode == Mode::question), "--display-prompt",
         " with --json or --chat: the text is the answer");
  unused(!talks && o.session.read_only, "--prompt-cache-all", " with --prompt-cache-ro");
  bool const greedy = s.temperature == 0;
  unused(greedy, "--seed", " with --temp 0");
  for (char const* const option : {"--top-k", "--top-p", "--min-p"}) unused(greedy && s.typical >= 1, option, " with --temp 0");
  unused(s.repeat_penalty == 1 && s.presence_penalty == 0 && s.frequency_penalty == 0, "--repeat-last-n", " without a penalty");
}

}  // namespace

void tell_unused(Options const& o, bool has_experts) {
  if (o.device == DeviceKind::none && o.link_bytes_per_s > 0)
    throw UsageError{"--link holds copies to a device to a rate, and there is none: give a budget for one, as in --vram 2G"};
  Unused const unused(o);
  for (char const* const option : {"--trace", "--session", "--prompt-cache", "--stats", "--logprobs", "--verbose", "--mlock", "--mmap"})
    unused(o.plan_only, option, " with --plan");
  constexpr char const* plan_decides = "the plan decides how many tokens go together";
  unused.accepted("--batch-size", "-b", plan_decides);
  unused.accepted("--ubatch-size", "-ub", plan_decides);
  if (o.batch_threads != o.n_threads) unused.accepted("--threads-batch", "-tb", "prompts are read by the -t threads");
  for (char const* const option : {"--image-min-tokens", "--image-max-tokens", "--video-fps", "--video-frames"})
    unused(o.pictures.projector.empty(), option, " without --mmproj");
  unused(o.plan_only, "--mmproj", " with --plan");
  tell_unused_by_device(o, has_experts, unused);
  if (!o.plan_only) tell_unused_by_text(o, unused);
}

}  // namespace app
