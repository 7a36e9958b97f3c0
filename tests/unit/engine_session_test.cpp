// Sessions: what is loaded is what was saved, bit for bit, and nothing else is ever loaded.
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "temp_dir.hpp"
#include "tiered/engine/detail/checksum.hpp"
#include "tiered/engine/session.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;
using tiered_test::TempDir;

namespace {

EngineOptions options_of(std::size_t vram_bytes = 0, std::int32_t context = 64) {
  EngineOptions options;
  options.vram_bytes = vram_bytes;
  options.max_context = context;
  options.n_sequences = 2;
  options.n_threads = 1;
  return options;
}

std::vector<std::int32_t> some_tokens(std::int32_t n) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < n; ++i) tokens.push_back(3 + i * 11 % 60);
  return tokens;
}

std::string bytes_of(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write(std::string const& path, std::string const& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
std::ptrdiff_t n_files(std::string const& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

/// Logits of three more tokens behind a conversation.
template <class E>
std::vector<float> go_on(E& engine, Conversation& conversation) {
  std::vector<float> out;
  for (std::int32_t token : {7, 21, 4}) {
    std::span<float const> const logits = conversation.extend(engine, {&token, 1});
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

template <class Saver, class Loader>
void check_round_trip(Saver& saver, Loader& loader, std::int32_t n_tokens) {
  TempDir const folder;
  std::string const path = folder / "a.session";
  std::vector<std::int32_t> const tokens = some_tokens(n_tokens);
  Conversation original(saver.new_sequence());
  original.prompt(saver, tokens);
  save_session(saver, original, path);
  CHECK(n_files(folder / "") == 1);
  std::vector<float> const expected = go_on(saver, original);
  Conversation restored = load_session(loader, path);
  CHECK(std::vector<std::int32_t>(restored.tokens().begin(), restored.tokens().end()) == tokens);
  CHECK(go_on(loader, restored) == expected);
}

struct Half {
  Placements place(PlanRequest const& r) const {
    Placements out{r};
    VramAccount vram{r};
    for (std::size_t l = 0; l < r.states.size(); ++l) out.state_in_vram[l] = l % 2 == 0 && vram.try_state(l) ? 1.f : 0.f;
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      if (r.shards[i].kind == ShardKind::attention && r.shards[i].layer % 2 == 0 && vram.try_resident(i)) out.shards[i] = {Tier::vram, 1};
    }
    return out;
  }
};
struct HalfPolicies : SimPolicies {
  using Placement = Half;
};

}  // namespace

TEST_CASE("a conversation goes on as if it had never stopped, whatever device has its KV") {
  for (char const* file : {"llama.mixed.gguf", "gemma3.mixed.gguf", "qwen3moe.mixed.gguf"}) {
    INFO(file);
    auto const model = open_golden(file);
    Engine<CpuPolicies> cpu(model, options_of(0, 600)), other_cpu(model, options_of(0, 700));
    Engine<SimPolicies> vram(model, options_of(64 * MiB, 600)), little(model, options_of(256 * KiB, 600));
    Engine<HalfPolicies> half(model, options_of(64 * MiB, 600));
    CHECK(vram.stats().host_kv_bytes == 0);
    for (std::int32_t n : {1, 5, 255, 256, 257, 550}) {
      INFO(n << " tokens");
      check_round_trip(cpu, other_cpu, n);
      check_round_trip(vram, vram, n);
      check_round_trip(vram, cpu, n);
      check_round_trip(cpu, half, n);
      check_round_trip(half, little, n);
    }
    CHECK(vram.stats().host_kv_bytes == 0);
    CHECK(half.stats().host_kv_bytes > 0);
  }
}

TEST_CASE("keys and values in f32 are kept as they are") {
  EngineOptions options = options_of();
  options.kv_type = DType::f32;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options);
  check_round_trip(engine, engine, 20);
  TempDir const folder;
  Conversation conversation(engine.new_sequence());
  conversation.prompt(engine, some_tokens(4));
  save_session(engine, conversation, folder / "f32");
  Engine<CpuPolicies> f16(open_golden("llama.f32.gguf"), options_of());
  Thrown const t = error_of([&] { load_session(f16, folder / "f32"); });
  CHECK(t.code == Errc::bad_file);
  CHECK(t.says("f32", "f16"));
}

TEST_CASE("a session replaces what a conversation held, and an empty one is a session too") {
  TempDir const folder;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options_of(0, 600));
  Conversation conversation(engine.new_sequence());
  save_session(engine, conversation, folder / "empty");
  conversation.prompt(engine, some_tokens(3));
  save_session(engine, conversation, folder / "three");
  std::vector<float> const expected = go_on(engine, conversation);
  conversation.prompt(engine, some_tokens(500));
  std::size_t const of_many = engine.stats().host_kv_bytes;
  load_session(engine, folder / "three", conversation);
  CHECK(conversation.length() == 3);
  CHECK(go_on(engine, conversation) == expected);
  CHECK(engine.stats().host_kv_bytes < of_many);
  load_session(engine, folder / "empty", conversation);
  CHECK(conversation.length() == 0);
  conversation.prompt(engine, some_tokens(3));
  CHECK(go_on(engine, conversation) == expected);
}

TEST_CASE("a session is bound to the model, not to the name of its file") {
  TempDir const folder;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options_of());
  Conversation conversation(engine.new_sequence());
  conversation.prompt(engine, some_tokens(6));
  save_session(engine, conversation, folder / "s");
  std::vector<float> const expected = go_on(engine, conversation);
  std::filesystem::copy_file(golden_path("llama.f32.gguf"), folder / "renamed.gguf");
  Engine<CpuPolicies> same(make_model(GgufFile::open(folder / "renamed.gguf")), options_of());
  Conversation restored = load_session(same, folder / "s");
  CHECK(go_on(same, restored) == expected);
  for (char const* file : {"llama.f16.gguf", "llama.mixed.gguf", "llama3_rope.f32.gguf", "qwen3.f32.gguf"}) {
    Engine<CpuPolicies> other(open_golden(file), options_of());
    Thrown const t = error_of([&] { load_session(other, folder / "s"); });
    CHECK(t.code == Errc::bad_file);
    CHECK(t.says("another model", "0x"));
  }
}

TEST_CASE("a damaged or cut file is refused at every byte, and nothing changes") {
  TempDir const folder;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options_of());
  Conversation conversation(engine.new_sequence());
  conversation.prompt(engine, some_tokens(2));
  save_session(engine, conversation, folder / "good");
  std::string const good = bytes_of(folder / "good");
  std::string const bad_path = folder / "bad";
  auto const refused = [&](std::string const& bytes) {
    write(bad_path, bytes);
    return error_of([&] { load_session(engine, bad_path, conversation); }).code == Errc::bad_file && conversation.length() == 2;
  };
  std::size_t const step = std::max<std::size_t>(good.size() / 200, 1);
  for (std::size_t i = 0; i < good.size(); i += i < 64 ? 1 : step) {
    INFO("byte " << i << " of " << good.size());
    std::string bytes = good;
    bytes[i] = char(bytes[i] ^ (1 << i % 8));
    REQUIRE(refused(bytes));
    REQUIRE(refused(good.substr(0, i)));
  }
  CHECK(refused(good.substr(0, good.size() - 1)));
  CHECK(refused(good + '\0'));
  std::string swapped = good;  // two words in the wrong order
  std::swap_ranges(swapped.begin() + 64, swapped.begin() + 72, swapped.begin() + 72);
  CHECK((swapped == good || refused(swapped)));
  CHECK(refused("GGUF" + std::string(100, 'x')));
  for (int const n : {0, 2, 3, 5}) {
    std::string version = good;
    version[8] = char(n);
    write(bad_path, version);
    CHECK(error_of([&] { load_session(engine, bad_path, conversation); }).says(concat("version ", n), "1 and 4"));
  }
  std::string sum = good;
  std::fill(sum.end() - 8, sum.end(), char(0x5a));
  write(bad_path, sum);
  CHECK(error_of([&] { load_session(engine, bad_path, conversation); }).says("checksum", "0x5a5a5a5a5a5a5a5a"));
  Conversation restored = load_session(engine, folder / "good");
  CHECK(go_on(engine, restored) == go_on(engine, conversation));
}

TEST_CASE("rotary shifts that cannot be are refused, whoever wrote them") {
  TempDir const folder;
  std::string const path = folder / "a";
  for (char const* file : {"llama.f32.gguf", "qwen2vl.f32.gguf"}) {
    Engine<CpuPolicies> engine(open_golden(file), options_of());
    Conversation conversation(engine.new_sequence());
    conversation.prompt(engine, some_tokens(6));
    save_session(engine, conversation, path);
    std::string const plain = bytes_of(path);
    // A whole file with these shifts: behind the header of 40 bytes, the tokens, and the number of pictures.
    auto const load = [&](std::vector<RopeShift> const& shifts) {
      std::string forged = plain.substr(0, plain.size() - 8);
      forged[8] = 4;
      forged.insert(40 + 6 * 4, reinterpret_cast<char const*>(shifts.data()), shifts.size() * sizeof(RopeShift));
      forged.insert(40 + 6 * 4, 8, '\0');
      detail::Checksum sum;
      sum.add(std::as_bytes(std::span(forged)));
      std::uint64_t const value = sum.value();
      write(path, forged.append(reinterpret_cast<char const*>(&value), sizeof value));
      return error_of([&] { load_session(engine, path, conversation); }).code;
    };
    using Shifts = std::vector<RopeShift>;
    Shifts const too_many = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}};
    for (Shifts const& bad :
         {Shifts{}, Shifts{{-1, 5}}, Shifts{{6, 1}}, Shifts{{3, 1}, {3, 2}}, Shifts{{4, 1}, {2, 2}}, Shifts{{3, -4}}, Shifts{{3, 1 << 30}},
          Shifts{{3, (1 << 30) - 5}}, Shifts{{5, 0x7fffffff}}, Shifts{{5, -0x7fffffff}}, too_many}) {
      CHECK(load(bad) == Errc::bad_file);
      CHECK((conversation.length() == 6 && conversation.sequence().rope_position() == 6));
    }
    bool const has_sections = engine.core().config().n_position_rows() > 1;
    auto const expected = has_sections ? std::nullopt : std::optional(Errc::bad_file);
    CHECK(load({{0, 1}, {3, -3}, {4, 1}}) == expected);
    CHECK(conversation.sequence().rope_position() == (has_sections ? 7 : 6));
    CHECK(load({{2, 20}, {4, -1}}) == expected);  // two rows far ahead of those behind them
    CHECK(conversation.sequence().rope_position() == (has_sections ? 24 : 6));
    for (std::int32_t i = 0; has_sections && i < 6; ++i)
      CHECK(conversation.sequence().rope_position(i) == (i < 2 ? i : i < 4 ? 20 + i : i - 1));
    if (!has_sections) continue;
    conversation.truncate(3);
    CHECK(conversation.sequence().rope_position() == 23);
    conversation.truncate(2);
    CHECK(conversation.sequence().rope_position() == 2);
    CHECK(load({{2, 3}, {3, (1 << 30) - 6}}) == std::nullopt);  // the last position that there is
    CHECK(conversation.sequence().rope_position() == 1 << 30);
  }
}

TEST_CASE("files that cannot be read or written are named") {
  TempDir const folder;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options_of(0, 300));
  Conversation conversation(engine.new_sequence());
  conversation.prompt(engine, some_tokens(200));
  CHECK(error_of([&] { load_session(engine, folder / "none", conversation); }).code == Errc::not_found);
  CHECK(error_of([&] { load_session(engine, folder / "", conversation); }).code == Errc::io);
  Thrown const t = error_of([&] { save_session(engine, conversation, folder / "no/such/folder"); });
  CHECK(t.code == Errc::io);
  CHECK(t.says("no/such/folder"));
  std::filesystem::create_directory(folder / "taken");
  CHECK(error_of([&] { save_session(engine, conversation, folder / "taken"); }).code == Errc::io);
  CHECK(n_files(folder / "") == 1);  // nothing half written is left
  save_session(engine, conversation, folder / "s");
  Engine<CpuPolicies> small(open_golden("llama.f32.gguf"), options_of(0, 64));
  Thrown const large = error_of([&] { load_session(small, folder / "s"); });
  CHECK(large.code == Errc::over_budget);
  CHECK(large.says("200", std::to_string(small.max_context())));
  Sequence const kept = small.new_sequence(), other = small.new_sequence();  // none was lost
  CHECK(error_of([&] { load_session(small, folder / "s"); }).code == Errc::precondition);
  CHECK(error_of([&] { load_session(small, folder / "s", conversation); }).says("another engine"));
  CHECK(conversation.length() == 200);
  CHECK(error_of([&] { save_session(small, conversation, folder / "t"); }).says("another engine"));
  CHECK_FALSE(std::filesystem::exists(folder / "t"));
}

TEST_CASE("no memory while KV is saved or restored is an error with the bytes, and the sequence is empty") {
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options_of());
  Sequence sequence = engine.new_sequence();
  engine.prefill(sequence, some_tokens(9));
  std::string const bytes = std::to_string(engine.core().kv_bytes(9)) + " bytes";
  Thrown const saving = error_of([&] { engine.core().export_kv(sequence, [](std::span<std::byte const>) { throw std::bad_alloc(); }); });
  CHECK(saving.code == Errc::out_of_memory);
  CHECK(saving.says("save", bytes, "9 tokens"));
  CHECK(sequence.length() == 9);
  Thrown const restoring = error_of([&] { engine.core().import_kv(sequence, 9, [](std::span<std::byte>) { throw std::bad_alloc(); }); });
  CHECK(restoring.code == Errc::out_of_memory);
  CHECK(restoring.says("restore", bytes, "9 tokens"));
  CHECK(sequence.length() == 0);
}

TEST_CASE("a disk that is full is an error with the bytes and the reason, and the old file stays") {
  TempDir const folder;
  Engine<CpuPolicies> engine(open_golden("llama.f32.gguf"), options_of());
  Conversation conversation(engine.new_sequence());
  conversation.prompt(engine, some_tokens(9));
  save_session(engine, conversation, folder / "s");
  std::string const good = bytes_of(folder / "s");
  REQUIRE(good.size() > 1000);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  auto* const on_signal = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  Thrown const t = error_of([&] { save_session(engine, conversation, folder / "s"); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, on_signal);
  CHECK(t.code == Errc::io);
  CHECK(t.says("/s: cannot be written", concat(good.size() - 1000, " bytes at offset 1000"), std::strerror(EFBIG)));
  CHECK(bytes_of(folder / "s") == good);
  CHECK(n_files(folder / "") == 1);
}

TEST_CASE("a fault at any copy is an error, the file and the engine stay good") {
  TempDir const folder;
  EngineOptions const options = options_of(4 * MiB);
  auto faults = std::make_shared<Faults>();
  Engine<SimPolicies> engine(open_golden("llama.mixed.gguf"), options, {},
                             SimPolicies::make_machine({options.vram_bytes, 1, false, false}, LaneSet::threads(), faults));
  Conversation conversation(engine.new_sequence());
  conversation.prompt(engine, some_tokens(10));
  save_session(engine, conversation, folder / "s");
  std::string const good = bytes_of(folder / "s");
  Conversation restored(engine.new_sequence());
  int n_saving = 0, n_loading = 0;
  for (std::uint64_t n = 1;; ++n, ++n_saving) {
    faults->reset();
    faults->fail_at(FaultKind::copy, n);
    Thrown const t = error_of([&] { save_session(engine, conversation, folder / "s"); });
    faults->reset();
    CHECK(bytes_of(folder / "s") == good);
    if (!t.code) break;
    CHECK(t.code == Errc::device);
    CHECK(n_files(folder / "") == 1);
  }
  std::vector<float> const expected = go_on(engine, conversation);
  for (std::uint64_t n = 1;; ++n, ++n_loading) {
    faults->reset();
    faults->fail_at(FaultKind::copy, n);
    Thrown const t = error_of([&] { load_session(engine, folder / "s", restored); });
    faults->reset();
    if (!t.code) break;
    CHECK(t.code == Errc::device);
    CHECK(restored.length() == 0);
    restored.prompt(engine, some_tokens(10));
    CHECK(go_on(engine, restored) == expected);
  }
  CHECK(go_on(engine, restored) == expected);
  CHECK(n_saving > 3);
  CHECK(n_loading > 3);
}
