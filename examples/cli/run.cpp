#include "run.hpp"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "files.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/function_ref.hpp"
#include "tiered/core/text.hpp"

namespace app {

using tiered::concat;

void say(std::string const& text) { std::fputs(text.c_str(), stderr); }

namespace {

bool has_content(std::string const& file) {
  std::error_code error;
  auto const bytes = std::filesystem::file_size(file, error);
  return error ? std::filesystem::exists(file, error) : bytes > 0;  // what cannot be read is an error, not a new session
}

std::string list_tokens(tiered::Tokenizer const& tokenizer, std::vector<std::int32_t> const& tokens) {
  std::string out = concat("prompt, ", tokens.size(), " tokens:");
  for (std::int32_t const id : tokens)
    out += concat(' ', id, " '", id < tokenizer.size() ? tokenizer.decode(id, {.show_special = true}) : "", '\'');
  return out + '\n';
}

/// Where an error is on its way: what fails here is said, and does not take its place.
void also(tiered::FunctionRef<void()> action) {
  try {
    action();
  } catch (std::exception const& e) {
    say(concat("tiered-run: warning: ", e.what(), '\n'));
  }
}

void check_context(tiered::MediaPrompt const& prompt, std::int32_t context, Options const& o) {
  std::size_t const n_prompt = prompt.tokens.size(), needed = n_prompt + (o.n_predict == 0 ? 0 : 1);
  if (needed <= std::size_t(context)) return;
  throw tiered::Error(tiered::Errc::over_budget,
                      concat("the prompt has ", n_prompt, " tokens", of_media(prompt), ", the context ", context, ": nothing was cut; -c ",
                             needed, " or more would take it", prompt.spans.empty() ? "" : ", --image-max-tokens makes images smaller"));
}

}  // namespace

void Run::load() {
  if (o_.session.file.empty() || !has_content(o_.session.file)) return;
  runner_.load(o_.session.file);
  if (!o_.quiet) say(concat("session ", o_.session.file, ": ", runner_.conversation().length(), " tokens\n\n"));
}

Report Run::report(Turn const& turn) {
  Report r;
  tiered::EngineStats const stats = runner_.stats();
  r.load_s = load_s_;
  r.turn = turn;
  r.stopped = why_it_ended(turn, o_, runner_.max_context());
  r.vram_peak_bytes = stats.vram_peak_bytes;
  r.host_kv_bytes = stats.host_kv_held_bytes;
  r.experts = stats.experts;
  r.shared = stats.shared;
  r.help = stats.help;
  r.load = stats.load;
  if (tiered::BoundedTrace const* const trace = runner_.trace()) {
    tiered::TraceTables const tables(runner_.table(), runner_.encoder_table());
    r.idle = tiered::steps_idle(trace->events(), tables, trace->steps(), tiered::TraceStepKind::token);
    r.encoder_idle = tiered::steps_idle(trace->events(), tables, trace->steps(), tiered::TraceStepKind::media);
  }
  r.media_s = pictures_.take_seconds();
  r.n_media = pictures_.take_number();
  r.prior_bytes = runner_.expert_prior().filled_bytes;
  if (runner_.profile().source != tiered::ProfileSource::simulated && o_.device != DeviceKind::none) {
    r.planned_s = runner_.plans().tiers.front().estimate.seconds;
    r.planned_context = std::min(runner_.max_context(), tiered::typical_context);
  }
  if (turn.n_decoded > 0 && (o_.stats || !o_.json))
    r.bound = measure_bound(runner_, o_, double(turn.n_prompt) + double(turn.n_decoded + 1) / 2);
  return r;
}

/// At the end of a text.
void Run::tell(Turn const& turn) {
  if (o_.stats || o_.json) {
    Report const r = report(turn);
    if (o_.stats) say(to_text(r, o_));
    if (o_.json) so_far_ = to_json(r, o_, gguf_, tokenizer_, runner_);
  }
  if (!o_.stats && turn.end == tiered::EndReason::context_full)
    say(concat("tiered-run: stopped: ", why_it_ended(turn, o_, runner_.max_context()), '\n'));
  write_trace();
}

void Run::write_trace() const {
  tiered::BoundedTrace const* const trace = runner_.trace();
  if (trace == nullptr) return;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(o_.trace_file.c_str(), "we"), &std::fclose);
  int reason = file == nullptr ? errno : 0;  // the first one: those after it say less
  if (reason == 0) {
    auto const write = [&](std::string_view text) {
      if (reason == 0 && std::fwrite(text.data(), 1, text.size(), file.get()) != text.size()) reason = errno;
    };
    tiered::write_trace_json(write, trace->events(), {runner_.table(), runner_.encoder_table()}, trace->steps(), trace->n_cut());
    if (std::fclose(file.release()) != 0 && reason == 0) reason = errno;
  }
  if (reason != 0) throw tiered::Error(tiered::Errc::io, concat("trace file ", o_.trace_file, ": ", std::strerror(reason)));
  if (trace->n_cut() > 0)
    say(concat("tiered-run: note: ", o_.trace_file, " has the first ", trace->events().size(), " events; ", trace->n_cut(),
               " more were cut\n"));
}

void Run::save_state() const { runner_.save(checked_output(o_.session.file, OutputKind::session)); }

/// The state behind the prompt, before a token of the text is in it.
void Run::keep_prompt() const {
  if (!o_.session.file.empty() && !o_.session.read_only && !o_.session.with_text) save_state();
}

/// All of the text; the last token that was drawn is not in the state yet.
void Run::keep_text(Turn const& turn) const {
  if (!keeps_text()) return;
  std::size_t const length = std::size_t(runner_.conversation().length());
  std::size_t const whole = std::size_t(turn.n_prompt) + turn.tokens.size() - turn.n_dropped;
  if (!turn.tokens.empty() && length + 1 == whole && whole <= std::size_t(runner_.max_context())) {
    runner_.cancel_token().reset();  // a second signal ends the program
    runner_.process(turn.tokens.back().id);
  }
  save_state();
}

tiered::MediaPrompt Run::stored_prompt() const {
  return tiered::behind(runner_.conversation().tokens(), runner_.conversation().media(), {});
}

/// --session: the prompt comes behind the text that is there, unless it begins with that text itself.
tiered::MediaPrompt Run::whole_prompt(std::string& shown, std::vector<std::int32_t> prompt, std::vector<tiered::Media> media) const {
  auto const stored = runner_.conversation().tokens();
  if (!o_.session.goes_on || stored.empty()) return pictures_.prompt(std::move(prompt), std::move(media));
  std::string const text = tokenizer_.decode(stored, {.show_special = true});
  tiered::MediaPrompt alone = pictures_.prompt(prompt, media);
  if (tokenizer_.decode(alone.tokens, {.show_special = true}).starts_with(text)) return alone;
  if (o_.chat.mode == Mode::question) {
    throw UsageError{concat("--session ", o_.session.file,
                            " holds another text, which a question does not go on with: -cnv -st -p TEXT goes on with a conversation")};
  }
  if (!o_.quiet) say(concat("the prompt comes behind the ", stored.size(), " tokens of ", o_.session.file, "\n\n"));
  if (prompt.front() == tokenizer_.bos()) prompt.erase(prompt.begin());
  if (o_.display_prompt) shown.insert(0, tokenizer_.decode(stored));
  tiered::Conversation const& conversation = runner_.conversation();
  return tiered::behind(stored, conversation.media(),
                        pictures_.prompt(std::move(prompt), std::move(media), conversation.sequence().rope_position()));
}

void Run::text(std::string shown, std::vector<std::int32_t> tokens, std::vector<tiered::Media> media, Progress& progress) {
  bool const goes_on = tokens.empty();
  tiered::MediaPrompt const prompt = goes_on ? stored_prompt() : whole_prompt(shown, std::move(tokens), std::move(media));
  if (prompt.tokens.empty()) throw UsageError{"the prompt is empty: give one with -p, with -f or on standard input"};
  if (goes_on && o_.display_prompt) shown = tokenizer_.decode(prompt.tokens);
  if (o_.verbose) say(list_tokens(tokenizer_, prompt.tokens));
  check_context(prompt, runner_.max_context(), o_);
  tiered::GenerationOptions options = generation_options(o_);
  if (options.n_keep >= prompt.n_tokens()) options.n_keep = -1;  // all of it
  runner_.set_options(std::move(options));
  Turn turn;
  TextOutput out;
  try {
    if (!o_.json) out.write(shown);
    progress.show(0, prompt.tokens.size());
    generate(
        runner_, prompt, o_, turn,
        [&](std::string_view text) {
          if (!o_.json) out.write(text);
        },
        [&] { keep_prompt(); });
    out.end_line();
  } catch (OutputError const&) {
    progress.clear();
    also([&] { tell(turn); });
    also([&] { keep_text(turn); });
    if (!Interrupt::terminated()) throw;
    throw tiered::Error(tiered::Errc::cancelled, "interrupted");  // the terminal is gone
  } catch (tiered::Error const&) {
    progress.clear();
    also([&] { out.end_line(); });
    also([&] { tell(turn); });
    throw;
  }
  progress.clear();
  tell(turn);
  keep_text(turn);
  if (turn.end == tiered::EndReason::cancelled) throw tiered::Error(tiered::Errc::cancelled, "interrupted");
}

ExitCode Run::conversation(ChatFormat const& format, std::optional<std::string> const& first, std::vector<Picture> pictures) {
  tiered::GenerationOptions options = generation_options(o_);
  if (options.n_keep >= runner_.max_context()) options.n_keep = -1;
  runner_.set_options(std::move(options));
  Chat chat({&runner_, &tokenizer_, &format, &pictures_, &o_, [this](Turn const& turn) { return to_text(report(turn), o_) + '\n'; },
             [this] { keep_prompt(); }});
  std::string const file = messages_file(o_.session.file);
  if (runner_.conversation().length() > 0 && o_.session.with_text && (o_.session.goes_on || has_content(file)))
    chat.messages() = load_messages(file, pictures_);
  chat.attach(std::move(pictures));
  auto const keep = [&] {
    if (!keeps_text() || runner_.conversation().length() == 0) return;
    save_state();
    save_messages(chat.messages(), checked_output(file, OutputKind::messages));
  };
  ExitCode code = ok;
  try {
    code = chat.run(first);
  } catch (OutputError const&) {
    also(keep);
    if (!Interrupt::terminated()) throw;
    return ExitCode(Interrupt::exit_code());  // the terminal is gone
  } catch (tiered::Error const&) {
    also(keep);
    throw;
  } catch (UsageError const&) {  // of a command
    also(keep);
    throw;
  }
  keep();
  write_trace();
  return code;
}

}  // namespace app
