#include "turn.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "tiered/core/text.hpp"

namespace app {

using tiered::concat;
using tiered::EndReason;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

tiered::GenerationOptions generation_options(Options const& o) {
  tiered::GenerationOptions out;
  SamplingOptions const& s = o.sampling;
  out.sampler.temperature = s.temperature;
  out.sampler.top_k = std::max(s.top_k, 0);
  out.sampler.top_p = std::max(s.top_p, std::numeric_limits<float>::min());
  out.sampler.min_p = s.min_p;
  out.sampler.typical_p = std::max(s.typical, std::numeric_limits<float>::min());
  out.sampler.repeat_penalty = s.repeat_penalty;
  out.sampler.repeat_last_n = s.repeat_last_n;
  out.sampler.presence_penalty = s.presence_penalty;
  out.sampler.frequency_penalty = s.frequency_penalty;
  for (auto const& [token, bias] : s.logit_bias) out.sampler.logit_bias.push_back({token, bias});
  out.sampler.seed = s.seed;
  out.ignore_eos = s.ignore_eos;
  out.max_tokens = std::max(o.n_predict, -1);
  out.stop = o.stops;
  out.stop.insert(out.stop.end(), o.reverse_prompts.begin(), o.reverse_prompts.end());
  if (o.logprobs > 0) out.n_logprobs = o.logprobs;
  if (o.context_shift) out.context_full = tiered::ContextFull::shift;
  out.n_keep = o.keep;
  return out;
}

namespace {

/// A context shift is never silent.
void tell_dropped(std::int32_t n_dropped) {
  std::fputs(concat("\ntiered-run: note: the context was full: ", n_dropped, " tokens were forgotten, as --context-shift says\n").c_str(),
             stderr);
}

void keep_token(Turn& turn, tiered::GenerationEvent& e) {
  turn.tokens.push_back({e.token, e.text, e.logprob ? e.logprob->logprob : 0, std::move(e.top_logprobs)});
}

}  // namespace

void generate(Runner& runner, tiered::MediaPrompt const& prompt, Options const& o, Turn& turn,
              tiered::FunctionRef<void(std::string_view)> write, tiered::FunctionRef<void()> after_prompt) {
  tiered::BoundedTrace* const trace = runner.trace();
  std::uint64_t const copied_before = runner.copied_bytes();
  auto const copied = [&] { return runner.copied_bytes() - copied_before; };
  turn.n_prompt = prompt.n_tokens();
  if (trace != nullptr) trace->begin_step(concat("prompt, ", prompt.n_tokens(), " tokens"));
  double const begin = now_s();
  turn.n_reused = runner.start(prompt, turn.encode_s, turn.media).n_reused;
  turn.first_token_s = now_s() - begin;
  turn.prefill_s = turn.first_token_s - turn.encode_s;
  turn.copied_bytes = turn.prefill_copied_bytes = copied();
  after_prompt();
  for (bool first = true;; first = false) {
    if (trace != nullptr && !first) trace->begin_step(concat("token ", turn.tokens.size()), tiered::TraceStepKind::token);
    std::int32_t const length = runner.conversation().length();
    double const before = now_s();
    tiered::GenerationEvent e = runner.next();
    if (runner.conversation().length() != length || e.n_dropped > 0) {  // else it took no step
      turn.decode_s += now_s() - before;
      turn.copied_bytes = copied();
      if (++turn.n_decoded == 1) turn.first_decode_copied_bytes = turn.copied_bytes - turn.prefill_copied_bytes;
    }
    if (e.n_dropped > 0) {
      turn.n_dropped += std::size_t(e.n_dropped);
      tell_dropped(e.n_dropped);
    }
    turn.text += e.text;
    if (!e.is_end()) keep_token(turn, e);
    turn.end = e.end;
    if (std::find(o.reverse_prompts.begin(), o.reverse_prompts.end(), e.stop_string) != o.reverse_prompts.end()) {
      turn.text += e.stop_string;
      e.text += e.stop_string;
    }
    turn.stop_string = e.stop_string;
    write(e.text);
    if (e.is_end()) return;
  }
}

std::string why_it_ended(Turn const& turn, Options const& o, std::int32_t max_context) {
  switch (turn.end) {
    case EndReason::none: return "by an error";
    case EndReason::eos: return "at the end of the text";
    case EndReason::length: return concat("after ", turn.tokens.size(), " tokens, as -n says");
    case EndReason::stop_string: return concat("at \"", turn.stop_string, '"');
    case EndReason::context_full:
      return concat("the context of ", max_context, " tokens is full: -c gives more",
                    o.context_shift ? "" : ", --context-shift forgets some");
    case EndReason::cancelled: return "by a signal";
  }
  return "?";
}

}  // namespace app
