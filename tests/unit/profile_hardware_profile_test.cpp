#include "tiered/profile/hardware_profile.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "temp_dir.hpp"
#include "tiered/engine/profiling.hpp"
#include "tiered/profile/profile_text.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

std::string text_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
void write_text(std::string const& path, std::string const& text) { std::ofstream(path, std::ios::binary) << text; }

/// A simulated machine and a model, and where the machine's file is.
struct Subject {
  std::shared_ptr<Transformer const> model;
  EngineOptions options;

  explicit Subject(std::string const& gguf, std::string const& folder) : model(open_golden(gguf)) {
    options.vram_bytes = 4 * MiB;
    options.profile = {.measure = true, .folder = folder, .seconds = 0.05};
  }
  ProfileResult run() const {
    auto machine =
        SimPolicies::make_machine({.vram_bytes = options.vram_bytes, .n_threads = 2, .link_bytes_per_s = options.link_bytes_per_s});
    return profile_machine(machine, *model, model->table().weights, options);
  }
};

/// Without the figures that holds_true() compares, so that a busy machine changes nothing.
std::string unquestioned(std::string const& text) {
  ProfileText read = parse_profile_text(text);
  read.profile.h2d.points.clear();
  read.profile.dram_by_threads.points.clear();
  return to_profile_text(read.profile, read.key);
}

}  // namespace

TEST_CASE("what was measured is kept in a file, and read from there the next time", "[profile]") {
  TempDir const folder;
  Subject const subject("llama.f32.gguf", folder / "deep/er");
  ProfileResult const first = subject.run();
  CHECK(first.source == ProfileSource::measured);
  CHECK(first.note.empty());
  REQUIRE(std::filesystem::exists(first.file));
  ProfileText const kept = parse_profile_text(text_of(first.file));
  CHECK(kept.profile == first.hardware);
  CHECK(first.file == profile_file(folder / "deep/er", kept.key));
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "deep/er"), {}) == 1);  // nothing left over from writing

  write_text(first.file, unquestioned(text_of(first.file)));
  std::string const text = text_of(first.file);
  ProfileResult const second = subject.run();
  CHECK(second.source == ProfileSource::file);
  CHECK(second.note.empty());
  CHECK(second.hardware == parse_profile_text(text).profile);
  CHECK(text_of(first.file) == text);
}

TEST_CASE("a machine whose link is held to a rate has a file of its own, with that rate in it", "[profile]") {
  TempDir const folder;
  Subject subject("llama.f32.gguf", folder / "p");
  ProfileResult const whole = subject.run();
  subject.options.link_bytes_per_s = 2e8;
  ProfileResult const held = subject.run();
  CHECK(whole.source == ProfileSource::measured);
  CHECK(held.source == ProfileSource::measured);
  CHECK(held.file != whole.file);
  REQUIRE_FALSE(held.hardware.h2d.points.empty());
  CHECK(held.hardware.h2d.peak_per_s() <= 2e8);

  HardwareProfile const made_up = HardwareProfile::simulated(), slow = with_link(made_up, 1e9);
  CHECK(slow.h2d.peak_per_s() == 1e9);
  CHECK(slow.d2h.peak_per_s() == 1e9);
  CHECK(with_link(made_up, 0) == made_up);
  CHECK(with_link(made_up, 1e15) == made_up);
}

TEST_CASE("formats of another model are measured and added, those before stay", "[profile]") {
  TempDir const folder;
  Subject const one("llama.f32.gguf", folder / "p"), other("qwen3moe.mixed.gguf", folder / "p");
  std::string const file = one.run().file;
  write_text(file, unquestioned(text_of(file)));
  std::vector<FormatRates> const before = parse_profile_text(text_of(file)).profile.host.formats;
  ProfileResult const added = other.run();
  CHECK(added.source == ProfileSource::extended);
  CHECK(added.hardware.host.formats.size() == formats_of(other.model->table()).size());  // no other model's
  HardwareProfile const both = parse_profile_text(text_of(file)).profile;
  CHECK(both.host.formats.size() >= added.hardware.host.formats.size());
  for (FormatRates const& f : before) CHECK(std::count(both.host.formats.begin(), both.host.formats.end(), f) == 1);
  CHECK(one.run().source == ProfileSource::file);
  CHECK(other.run().source == ProfileSource::file);
}

TEST_CASE("a file that is damaged, of another machine or no longer true is noticed, said, and replaced", "[profile]") {
  TempDir const folder;
  Subject const subject("llama.f32.gguf", folder / "p");
  std::string const file = subject.run().file, good = unquestioned(text_of(file));
  std::string const key = parse_profile_text(good).key;
  HardwareProfile fast = parse_profile_text(good).profile;
  fast.h2d.points = {{1e6, 1e18}};
  fast.copy_latency_s = 0;  // on a busy machine that alone is as long as a copy of this model takes
  struct {
    std::string text, word;
  } const cases[] = {{good.substr(0, good.size() / 2), "damaged"},
                     {"", "damaged"},
                     {to_profile_text(HardwareProfile::simulated(), "Another CPU"), "another machine (Another CPU)"},
                     {to_profile_text(fast, key), "another speed"}};
  for (auto const& c : cases) {
    INFO(c.word);
    write_text(file, c.text);
    ProfileResult const result = subject.run();
    CHECK(result.source == ProfileSource::measured);
    CHECK(result.note.find(c.word) != std::string::npos);
    CHECK(result.file == file);
    CHECK(parse_profile_text(text_of(file)).profile == result.hardware);
  }
}

TEST_CASE("a folder that cannot be written, or none, is no error", "[profile]") {
  TempDir const folder;
  SECTION("the folder's place is taken by a file") {
    write_text(folder / "p", "in the way");
    ProfileResult const result = Subject("llama.f32.gguf", folder / "p").run();
    CHECK(result.source == ProfileSource::measured);
    CHECK(result.file.empty());
    CHECK(result.note.find("cannot be written") != std::string::npos);
    CHECK(text_of(folder / "p") == "in the way");
  }
  SECTION("read-only") {
    if (::geteuid() == 0) return;  // may write everywhere
    std::filesystem::create_directory(folder / "p");
    ::chmod((folder / "p").c_str(), 0555);
    ProfileResult const result = Subject("llama.f32.gguf", folder / "p").run();
    CHECK(result.source == ProfileSource::measured);
    CHECK(result.note.find("cannot be written") != std::string::npos);
  }
  SECTION("files are not to be used") {
    Subject subject("llama.f32.gguf", folder / "p");
    subject.options.profile.use_files = false;
    ProfileResult const result = subject.run();
    CHECK(result.source == ProfileSource::measured);
    CHECK((result.file.empty() && result.note.empty()));
    CHECK_FALSE(std::filesystem::exists(folder / "p"));
  }
}

TEST_CASE("where profiles are kept", "[profile]") {
  auto const with = [](char const* cache, char const* home) {
    auto const set = [](char const* name, char const* value) { value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name); };
    auto const old = [](char const* name) {
      return std::getenv(name) != nullptr ? std::optional<std::string>(std::getenv(name)) : std::nullopt;
    };
    auto const old_cache = old("XDG_CACHE_HOME"), old_home = old("HOME");
    set("XDG_CACHE_HOME", cache), set("HOME", home);
    std::string const folder = profile_folder({});
    set("XDG_CACHE_HOME", old_cache ? old_cache->c_str() : nullptr), set("HOME", old_home ? old_home->c_str() : nullptr);
    return folder;
  };
  CHECK(with("/c", "/h") == "/c/tiered");
  CHECK(with(nullptr, "/h") == "/h/.cache/tiered");
  CHECK(with("relative", "/h") == "/h/.cache/tiered");
  CHECK(with(nullptr, nullptr).empty());
  CHECK(profile_folder({.folder = "/own"}) == "/own");
  CHECK(machine_key("avx2", 8, "card") != machine_key("avx2", 4, "card"));
  CHECK(machine_key("avx2", 8, "card") != machine_key("avx512", 8, "card"));
  CHECK(machine_key("avx2", 8, "card") != machine_key("avx2", 8, ""));
  CHECK(machine_key("avx2", 8, "two\nlines").find('\n') == std::string::npos);
  CHECK(profile_file("/f", "a") != profile_file("/f", "b"));
}

TEST_CASE("an engine plans with what it is given, or with a made-up machine, unless it is asked to measure", "[profile][engine]") {
  auto const model = open_golden("llama.f32.gguf");
  EngineOptions options;
  options.vram_bytes = 4 * MiB, options.n_threads = 2, options.max_context = 64;
  TempDir const folder;
  options.profile.folder = folder / "p";
  options.profile.seconds = 0.05;
  CHECK(Engine<SimPolicies>(model, options).profile().source == ProfileSource::simulated);
  CHECK_FALSE(std::filesystem::exists(folder / "p"));

  options.profile.measure = true;
  Engine<SimPolicies> engine(model, options);
  CHECK(engine.profile().source == ProfileSource::measured);
  CHECK(engine.stats().vram_peak_bytes <= options.vram_bytes);
  EngineOptions plain = options;
  plain.profile.measure = false;
  Engine<SimPolicies> other(model, plain);
  CHECK(greedy(engine, {1, 2, 3}, 5) == greedy(other, {1, 2, 3}, 5));

  options.hardware = HardwareProfile::simulated();
  options.hardware->gpu.name = "my own";
  std::filesystem::remove_all(folder / "p");
  Engine<SimPolicies> const given(model, options);
  CHECK(given.profile().source == ProfileSource::given);
  CHECK(given.profile().hardware == *options.hardware);
  CHECK_FALSE(std::filesystem::exists(folder / "p"));

  options.hardware.reset();
  options.vram_bytes = 0;
  Engine<CpuPolicies> cpu(model, options);
  CHECK(cpu.profile().source == ProfileSource::measured);
  CHECK(cpu.profile().hardware.host.formats.size() == formats_of(model->table()).size());
}
