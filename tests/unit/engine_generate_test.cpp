// What a generation does with the tokens of a model: with models that say what a script says, and with real ones.
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/engine/generate.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

constexpr std::int32_t eos = 2, n_tokens = 3 + 256 + 3, extra_rows = 5;

/// Ids 3 to 258 are the bytes, 259 is "ab", 260 the control token "<end>", 261 an exclamation mark and the begin of a character.
Tokenizer byte_tokenizer() {
  std::vector<std::string> texts{"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types{2, 3, 3};
  char const* const digits = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) {
    texts.push_back(std::string("<0x") + digits[b / 16] + digits[b % 16] + ">");
    types.push_back(6);
  }
  texts.push_back("ab"), types.push_back(1);
  texts.push_back("<end>"), types.push_back(3);
  texts.push_back("!\xe2"), types.push_back(1);
  VocabData data;
  data.model = "llama";
  data.tokens.assign(texts.begin(), texts.end());
  data.scores.assign(texts.size(), 0.f);
  data.types = types;
  data.eos = eos;
  data.unk = 0;
  return make_tokenizer(data);
}

std::vector<std::int32_t> bytes_of(std::string const& text) {
  std::vector<std::int32_t> ids;
  for (char c : text) ids.push_back(3 + std::int32_t(static_cast<unsigned char>(c)));
  return ids;
}

/// An engine whose model says what `script` says, whatever it is given; the next best is always "ab".
struct ScriptedEngine {
  struct Model {
    struct {
      std::int32_t vocab_size = n_tokens + extra_rows;
    } numbers;
    auto const& config() const { return numbers; }
  };

  ScriptedEngine(std::vector<std::int32_t> tokens, std::int32_t max_tokens) : script(std::move(tokens)), context(max_tokens) {
    table->slots.resize(2);
  }
  std::int32_t max_context() const { return context; }
  Model const& model() const { return the_model; }
  Sequence new_sequence() {
    for (auto& slot : table->slots) {
      if (slot.used) continue;
      slot = {SequenceId{++table->last_id}, 0, true, false};
      return Sequence(table, slot.id);
    }
    throw Error(Errc::precondition, "no slot");
  }
  std::span<float const> prefill(Sequence const& sequence, std::span<std::int32_t const> tokens) {
    auto& slot = table->slots[std::size_t(table->find(sequence.id()))];
    if (slot.length + std::int32_t(tokens.size()) > context) throw Error(Errc::over_budget, "context");
    steps.emplace_back(tokens.begin(), tokens.end());
    if (fail_in > 0 && --fail_in == 0) {
      slot.length += std::int32_t(tokens.size() / 2);
      throw Error(fail_with, "as told");
    }
    slot.length += std::int32_t(tokens.size());
    logits.assign(std::size_t(n_tokens + extra_rows), 0.f);
    logits[259] = 5;
    logits[std::size_t(script.at(next++))] = 10;
    return logits;
  }

  std::vector<std::int32_t> script;
  std::int32_t context;
  Model the_model;
  std::shared_ptr<detail::SequenceTable> table = std::make_shared<detail::SequenceTable>();
  std::size_t next = 0;
  std::vector<std::vector<std::int32_t>> steps;
  std::vector<float> logits;
  int fail_in = 0;
  Errc fail_with = Errc::cancelled;
};

struct Said {
  std::string text;
  std::vector<std::string> pieces;  ///< one for each token
  std::vector<std::int32_t> tokens, dropped;
  GenerationEvent end;
};

template <class E>
Said listen(Generation<E>& generation) {
  Said said;
  for (;;) {
    GenerationEvent e = generation.next();
    said.text += e.text;
    said.dropped.push_back(e.n_dropped);
    if (e.is_end()) return said.end = std::move(e), said;
    said.tokens.push_back(e.token);
    said.pieces.push_back(e.text);
  }
}

std::vector<std::int32_t> with_eos(std::string const& text) {
  std::vector<std::int32_t> ids = bytes_of(text);
  ids.push_back(eos);
  return ids;
}

std::vector<std::int32_t> const prompt{5, 6, 7};

}  // namespace

TEST_CASE("the model ends its text, and the sequence never holds what was not processed") {
  ScriptedEngine engine(with_eos("hi"), 20);
  Generation generation(engine, byte_tokenizer());
  PromptUse const use = generation.start(prompt);
  CHECK(use.n_tokens == 3);
  CHECK(use.n_reused == 0);
  Said const said = listen(generation);
  CHECK(said.text == "hi");
  CHECK(said.tokens == bytes_of("hi"));
  CHECK(said.end.end == EndReason::eos);
  CHECK(said.end.token == eos);
  CHECK(engine.steps == std::vector<std::vector<std::int32_t>>{prompt, bytes_of("h"), bytes_of("i")});
  CHECK(generation.conversation().length() == 5);
  GenerationEvent const again = generation.next();
  CHECK(again.end == EndReason::eos);
  CHECK(again.text.empty());
  CHECK(engine.steps.size() == 3);
  CHECK(name(EndReason::eos) == std::string("eos"));
}

TEST_CASE("max_tokens ends a text without a step for what nobody asks") {
  for (std::int32_t most : {0, 1, 3}) {
    ScriptedEngine engine(with_eos("hello"), 20);
    Generation generation(engine, byte_tokenizer(), {.max_tokens = most});
    generation.start(prompt);
    Said const said = listen(generation);
    CHECK(said.text == std::string("hello").substr(0, std::size_t(most)));
    CHECK(said.end.end == EndReason::length);
    CHECK(said.end.token == -1);
    CHECK(engine.steps.size() == std::size_t(std::max(most, 1)));
  }
}

TEST_CASE("a stop string ends a text across tokens, and is not shown") {
  ScriptedEngine engine(with_eos("one\n\ntwo"), 20);
  Generation generation(engine, byte_tokenizer(), {.stop = {"xyz", "\n\nt"}});
  generation.start(prompt);
  Said const said = listen(generation);
  CHECK(said.text == "one");
  CHECK(said.end.end == EndReason::stop_string);
  CHECK(said.end.stop_string == "\n\nt");
  CHECK(said.tokens.size() == 6);
  CHECK(said.pieces == std::vector<std::string>{"o", "n", "e", "", "", ""});
}

TEST_CASE("what could have become a stop string is shown when the text ends") {
  ScriptedEngine engine(with_eos("one\n\n"), 20);
  Generation generation(engine, byte_tokenizer(), {.stop = {"\n\nt"}});
  generation.start(prompt);
  Said const said = listen(generation);
  CHECK(said.text == "one\n\n");
  CHECK(said.end.text == "\n\n");
  CHECK(said.end.end == EndReason::eos);
  CHECK(said.end.stop_string.empty());
}

TEST_CASE("characters come whole; half a one at the end is told as such") {
  ScriptedEngine engine(with_eos("a\xe2\x82\xac\xf0\x9f\x98"), 20);
  Generation generation(engine, byte_tokenizer(), {.stop = {"\xe2\x82\xad"}});  // begins with the same two bytes
  generation.start(prompt);
  Said const said = listen(generation);
  CHECK(said.pieces == std::vector<std::string>{"a", "", "", "\xe2\x82\xac", "", "", ""});
  CHECK(said.end.text == "\xef\xbf\xbd");
  engine.next = 0;
  engine.script = with_eos("b\xe2\x82\xad\xf0\x9f");
  generation.start(prompt);
  Said const stopped = listen(generation);
  CHECK(stopped.text == "b");
  CHECK(stopped.end.end == EndReason::stop_string);
}

TEST_CASE("what stands behind a stop string in the same token is gone too") {
  ScriptedEngine engine({bytes_of("a").front(), 261}, 20);
  Generation generation(engine, byte_tokenizer(), {.stop = {"!"}});
  generation.start(prompt);
  Said const said = listen(generation);
  CHECK(said.text == "a");
  CHECK(said.end.stop_string == "!");
  CHECK(said.end.token == -1);
}

TEST_CASE("tokens that end a text, and those that stand for none") {
  ScriptedEngine engine({eos, eos, 260, 260, n_tokens + 1, eos}, 30);
  Generation ignoring(engine, byte_tokenizer(), {.max_tokens = 2, .ignore_eos = true});
  ignoring.start(prompt);
  CHECK(listen(ignoring).text == "abab");
  Generation own(engine, byte_tokenizer(), {.end_tokens = {260}});
  own.start(prompt);
  Said const ended = listen(own);
  CHECK(ended.end.end == EndReason::eos);
  CHECK(ended.end.token == 260);
  CHECK(ended.text.empty());
  own.set_options({.max_tokens = 2, .decode = {.show_special = true}});
  own.start(prompt);  // "<end>", then a row of the output matrix that is no token: the next best
  CHECK(listen(own).text == "<end>ab");
}

TEST_CASE("a full context ends a text, and says so") {
  ScriptedEngine engine(with_eos("abcdefgh"), 6);
  Generation generation(engine, byte_tokenizer());
  generation.start(prompt);
  Said const said = listen(generation);
  CHECK(said.text == "abcd");  // 3 processed behind the prompt, and one more that has no position
  CHECK(said.end.end == EndReason::context_full);
  CHECK(generation.conversation().length() == 6);
  CHECK(said.dropped == std::vector<std::int32_t>(5, 0));
  engine.next = 0;
  generation.start(std::vector<std::int32_t>(6, 4));
  CHECK(listen(generation).text == "a");
  Thrown const t = error_of([&] { generation.start(std::vector<std::int32_t>(7, 4)); });
  CHECK(t.code == Errc::over_budget);
  CHECK(t.says("7", "6"));
}

TEST_CASE("a context shift drops the oldest tokens behind those to keep, processes the rest again, and says so") {
  for (std::int32_t n_keep : {0, 2, -1}) {
    INFO("n_keep " << n_keep);
    ScriptedEngine engine(with_eos("abcdefghijkl"), 8);
    Generation generation(engine, byte_tokenizer(), {.context_full = ContextFull::shift, .n_keep = n_keep});
    generation.start(prompt);
    Said const said = listen(generation);
    CHECK(said.text == "abcdefghijkl");
    CHECK(said.end.end == EndReason::eos);
    std::int32_t const kept = n_keep < 0 ? 3 : n_keep;
    // The engine saw a b c d e; f has no room.
    std::vector<std::int32_t> held = prompt;
    for (std::int32_t id : bytes_of("abcde")) held.push_back(id);
    std::int32_t const n_dropped = (8 - kept + 1) / 2;
    std::vector<std::int32_t> again(held.begin() + kept + n_dropped, held.end());
    again.push_back(bytes_of("f").front());
    REQUIRE(engine.steps.size() > 7);
    CHECK(engine.steps[6] == again);
    CHECK(said.dropped[6] == n_dropped);  // told with the token that comes out of it
    for (std::size_t i = 0; i < 6; ++i) CHECK(said.dropped[i] == 0);
    if (kept > 0) CHECK(generation.conversation().tokens().front() == prompt.front());
  }
}

TEST_CASE("where nothing may be dropped, a shift is no way out") {
  ScriptedEngine engine(with_eos("abc"), 3);
  Generation generation(engine, byte_tokenizer(), {.context_full = ContextFull::shift, .n_keep = -1});
  generation.start(prompt);
  Said const said = listen(generation);
  CHECK(said.text == "a");
  CHECK(said.end.end == EndReason::context_full);
}

TEST_CASE("a cancelled generation ends, keeps what was done, and goes on with the next prompt") {
  ScriptedEngine engine(with_eos("abcdef"), 20);
  Generation generation(engine, byte_tokenizer(), {.stop = {"bx"}});
  generation.start(prompt);
  CHECK(generation.next().text == "a");
  CHECK(generation.next().text.empty());  // b may become a stop string
  engine.fail_in = 1;
  GenerationEvent const end = generation.next();
  CHECK(end.end == EndReason::cancelled);
  CHECK(end.text == "b");
  CHECK(generation.next().end == EndReason::cancelled);
  engine.fail_in = 1;
  std::vector<std::int32_t> const longer{5, 6, 7, 8, 9, 10, 11};
  CHECK(generation.start(longer).n_tokens == 7);
  CHECK(generation.next().end == EndReason::cancelled);
  CHECK(generation.conversation().length() == 5);  // two of the four new ones
  CHECK(generation.start(longer).n_reused == 5);
  CHECK(generation.next().token >= 0);
}

TEST_CASE("after an error nothing follows but another start") {
  ScriptedEngine engine(with_eos("abcdef"), 20);
  Generation generation(engine, byte_tokenizer());
  CHECK(error_of([&] { generation.next(); }).code == Errc::precondition);
  generation.start(prompt);
  generation.next();
  engine.fail_in = 1;
  engine.fail_with = Errc::device;
  CHECK(error_of([&] { generation.next(); }).code == Errc::device);
  CHECK(error_of([&] { generation.next(); }).code == Errc::precondition);
  engine.fail_in = 1;
  CHECK(error_of([&] { generation.start(prompt); }).code == Errc::device);
  CHECK(error_of([&] { generation.next(); }).code == Errc::precondition);
  generation.start(prompt);
  CHECK(generation.next().token >= 0);
  CHECK(error_of([&] { generation.start({}); }).code == Errc::precondition);
  CHECK(error_of([&] { generation.start(std::vector<std::int32_t>{1, 1 << 20}); }).says("1048576"));
}

TEST_CASE("options that mean nothing are refused and leave those that were there") {
  ScriptedEngine engine(with_eos("abcdef"), 8);
  Generation generation(engine, byte_tokenizer(), {.max_tokens = 2});
  CHECK(error_of([&] { generation.set_options({.max_tokens = -2}); }).code == Errc::precondition);
  CHECK(error_of([&] { generation.set_options({.stop = {""}}); }).code == Errc::precondition);
  CHECK(error_of([&] { generation.set_options({.n_logprobs = -2}); }).code == Errc::precondition);
  CHECK(error_of([&] { generation.set_options({.n_keep = 8}); }).says("8"));
  CHECK(error_of([&] { generation.set_options({.sampler = {.top_p = 2}}); }).code == Errc::precondition);
  generation.start(prompt);
  CHECK(listen(generation).text == "ab");
}

TEST_CASE("log-probabilities are the model's, whatever is banned") {
  ScriptedEngine engine({eos, eos}, 20);
  Generation generation(engine, byte_tokenizer(), {.max_tokens = 1, .ignore_eos = true, .n_logprobs = 2});
  generation.start(prompt);
  GenerationEvent const e = generation.next();
  CHECK(e.token == 259);
  REQUIRE(e.logprob);
  REQUIRE(e.top_logprobs.size() == 2);
  CHECK(e.logprob->token == 259);
  CHECK(e.top_logprobs[0].token == eos);
  CHECK(e.top_logprobs[1] == *e.logprob);
  CHECK(std::fabs(e.top_logprobs[0].logprob - e.logprob->logprob - 5) < 1e-12);
  generation.set_options({.max_tokens = 1});
  generation.start(prompt);
  GenerationEvent const end = generation.next();
  CHECK_FALSE(end.logprob);
  CHECK(end.end == EndReason::eos);
}

TEST_CASE("penalties see the prompt") {
  ScriptedEngine engine(bytes_of("xy"), 20);
  std::vector<std::int32_t> const with_x{5, bytes_of("x").front()};
  Generation generation(engine, byte_tokenizer(), {.sampler = {.repeat_penalty = 4}, .max_tokens = 2});
  generation.start(with_x);
  CHECK(listen(generation).text == "aby");  // 10 / 4 is less than 5
}

// ---- real models

namespace {

EngineOptions options_of(std::int32_t context, std::int32_t n_sequences = 1) {
  EngineOptions options;
  options.max_context = context;
  options.n_sequences = n_sequences;
  options.n_threads = 1;
  return options;
}

}  // namespace

TEST_CASE("real models say what a plain loop says, two conversations at a time") {
  for (char const* file : {"llama_tied.f32.gguf", "qwen3moe.f32.gguf"}) {
    INFO(file);
    GgufFile const gguf = GgufFile::open(golden_path(file));
    Tokenizer const tokenizer = make_tokenizer(gguf);
    auto const model = make_model(gguf);
    Engine<CpuPolicies> engine(model, options_of(128, 3));
    std::vector<std::int32_t> const a{10, 11, 12, 13}, b{40, 41, 42};
    std::vector<std::int32_t> const expected_a = greedy(engine, a, 12), expected_b = greedy(engine, b, 12);
    Generation first(engine, tokenizer, {.max_tokens = 12, .ignore_eos = true}), second(engine, tokenizer, first.options());
    first.start(a);
    second.start(b);
    for (std::size_t i = 0; i < 12; ++i) {
      CHECK(first.next().token == expected_a[i]);
      CHECK(second.next().token == expected_b[i]);
    }
    CHECK(first.next().end == EndReason::length);
  }
}

TEST_CASE("a second turn processes what is new, and says what it would have said from scratch") {
  GgufFile const gguf = GgufFile::open(golden_path("llama_tied.mixed.gguf"));
  Tokenizer const tokenizer = make_tokenizer(gguf);
  Engine<CpuPolicies> engine(make_model(gguf), options_of(128, 2));
  GenerationOptions const options{.sampler = {.temperature = 1, .seed = 3}, .max_tokens = 10, .ignore_eos = true};
  Generation chat(engine, tokenizer, options);
  std::vector<std::int32_t> turns{10, 11, 12, 13};
  chat.start(turns);
  Said const first = listen(chat);
  turns.insert(turns.end(), first.tokens.begin(), first.tokens.end());
  for (std::int32_t token : {20, 21, 22}) turns.push_back(token);
  chat.set_options(options);
  CHECK(chat.start(turns).n_reused == 13);  // all but the last token drawn, and the three new ones
  Generation fresh(engine, tokenizer, options);
  CHECK(fresh.start(turns).n_reused == 0);
  CHECK(listen(chat).tokens == listen(fresh).tokens);
}

TEST_CASE("after a context shift a model says what it says to the kept tokens alone") {
  GgufFile const gguf = GgufFile::open(golden_path("qwen3.mixed.gguf"));
  Tokenizer const tokenizer = make_tokenizer(gguf);
  Engine<CpuPolicies> engine(make_model(gguf), options_of(256, 2));
  std::int32_t const context = engine.max_context();
  Generation generation(engine, tokenizer, {.max_tokens = 20, .ignore_eos = true, .context_full = ContextFull::shift, .n_keep = 4});
  std::vector<std::int32_t> start;
  for (std::int32_t i = 0; i < context - 4; ++i) start.push_back(3 + i % 90);
  generation.start(start);
  std::vector<std::int32_t> said;
  for (;;) {
    GenerationEvent const e = generation.next();
    REQUIRE_FALSE(e.is_end());
    if (e.n_dropped > 0) {
      auto const held = generation.conversation().tokens();
      CHECK(std::int32_t(held.size()) == context + 1 - e.n_dropped);
      std::vector<std::int32_t> expected(start.begin(), start.begin() + 4);
      expected.insert(expected.end(), start.begin() + 4 + e.n_dropped, start.end());
      expected.insert(expected.end(), said.begin(), said.end());
      CHECK(std::vector<std::int32_t>(held.begin(), held.end()) == expected);
      CHECK(e.token == greedy(engine, expected, 1).front());
      break;
    }
    said.push_back(e.token);
  }
}
