#include "tiered/profile/expert_uses.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/core/split_mix.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

std::string text_of(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
void write_text(std::string const& path, std::string const& text) { std::ofstream(path, std::ios::binary) << text; }

ExpertUses some_uses() { return {{{}, {3, 0, 5}, {}, {1, 1, 2}}}; }
constexpr std::int32_t some_experts[] = {0, 3, 0, 3};

}  // namespace

TEST_CASE("what was counted reads back as it was", "[profile][expert_uses]") {
  for (ExpertUses const& uses : {ExpertUses{}, some_uses(), ExpertUses{{{0, 0}, {std::uint64_t{1} << 40, 7}}}}) {
    ExpertUsesText const read = parse_expert_uses(to_text(uses, "model a; tiered 1"));
    CHECK(read.uses == uses);
    CHECK(read.key == "model a; tiered 1");
  }
  CHECK(to_text(some_uses(), "k").starts_with("tiered expert uses 1\nkey k\nlayer 1 3 0 5\nlayer 3 1 1 2\nchecksum "));
}

TEST_CASE("a text that was changed, cut or made by others is refused with its line", "[profile][expert_uses]") {
  std::string const good = to_text(some_uses(), "k");
  for (std::size_t n = 0; n < good.size(); ++n) {
    INFO("the first " << n << " bytes");
    REQUIRE(error_of([&] { parse_expert_uses(good.substr(0, n)); }).code == Errc::bad_file);
  }
  SplitMix64 random{5};
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    char& byte = bad[random.below(bad.size())];
    char const other = char(random.below(256));
    if (byte == other) continue;
    byte = other;
    INFO(bad);
    REQUIRE(error_of([&] { parse_expert_uses(bad); }).code == Errc::bad_file);
  }
  CHECK(error_of([&] { parse_expert_uses(good + "x"); }).says("there is more"));
  CHECK(error_of([&] { parse_expert_uses("tiered expert uses 2\n"); }).says("line 1"));
  CHECK(error_of([&] { parse_expert_uses("tiered expert uses 1\nkey k\nlayer 2 1\nlayer 1 1\n"); }).says("line 4", "ascend"));
  CHECK(error_of([&] { parse_expert_uses("tiered expert uses 1\nkey k\nlayer 2 -1\n"); }).says("line 3", "a number"));
  CHECK(error_of([&] { parse_expert_uses("tiered expert uses 1\nkey k\nlayer 99999999 1\n"); }).says("line 3", "a number"));
}

TEST_CASE("runs add up, and what is long ago is forgotten", "[profile][expert_uses]") {
  ExpertUses uses = some_uses();
  uses.add({{{}, {1, 2, 3}, {4}}});
  CHECK(uses == ExpertUses{{{}, {4, 2, 8}, {4}, {1, 1, 2}}});
  uses.add({{{}, {0, 100, 0}}}, 50);  // 114 uses: a quarter of them stays
  CHECK(uses.by_layer[1] == std::vector<std::uint64_t>{1, 25, 2});
  CHECK(uses.by_layer[3] == std::vector<std::uint64_t>{1, 1, 2});
}

TEST_CASE("uses are of a step, layer by layer", "[profile][expert_uses]") {
  CHECK(some_uses().per_step(1, 2) == std::vector<double>{0.75, 0, 1});  // of 8 uses 5, 1.25 times: no step takes an expert twice
  CHECK(some_uses().per_step(0, 2).empty());
  CHECK(some_uses().per_step(9, 2).empty());
  CHECK((ExpertUses{{{0, 0}}}).per_step(0, 2) == std::vector<double>{0, 0});
  CHECK((ExpertUses{{{0, 0}, {}}}).empty());
  CHECK_FALSE(some_uses().empty());
}

TEST_CASE("a file of a model grows from run to run; one that is damaged or foreign is said, and replaced", "[profile][expert_uses]") {
  TempDir const folder;
  std::string const key = expert_uses_key(0xabc), file = expert_uses_file(folder / "deep/er", key);
  CHECK(key.find("model abc; tiered ") == 0);
  CHECK(file != expert_uses_file(folder / "deep/er", expert_uses_key(0xabd)));
  CHECK(read_expert_uses(file, key, some_experts).note.empty());
  CHECK(read_expert_uses(file, key, some_experts).uses.empty());
  REQUIRE_FALSE(add_expert_uses(file, key, some_uses()));
  REQUIRE_FALSE(add_expert_uses(file, key, some_uses()));
  KnownExpertUses const known = read_expert_uses(file, key, some_experts);
  CHECK(known.note.empty());
  CHECK(known.uses == ExpertUses{{{}, {6, 0, 10}, {}, {2, 2, 4}}});
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "deep/er"), {}) == 1);  // nothing is left of replacing it

  std::int32_t const fewer[] = {0, 3, 0, 2};
  CHECK(read_expert_uses(file, key, fewer).note.find("other layers") != std::string::npos);
  CHECK(read_expert_uses(file, key, fewer).uses.empty());
  CHECK(read_expert_uses(file, "another", some_experts).note.find("another model (" + key) != std::string::npos);
  std::string const good = text_of(file);
  for (std::string const& bad : {std::string(), good.substr(0, good.size() / 2), std::string("nonsense\n"), std::string(100, '\0')}) {
    write_text(file, bad);
    KnownExpertUses const read = read_expert_uses(file, key, some_experts);
    CHECK(read.note.find("damaged") != std::string::npos);
    CHECK(read.uses.empty());
    REQUIRE_FALSE(add_expert_uses(file, key, some_uses()));
    CHECK(read_expert_uses(file, key, some_experts).uses == some_uses());
  }
}

TEST_CASE("a file that threads replace at once is whole whenever it is read", "[profile][expert_uses]") {
  TempDir const folder;
  std::string const file = folder / "experts.txt";
  std::vector<std::uint64_t> many(5000, 1);
  auto const add = [&] {
    for (int i = 0; i < 20; ++i) static_cast<void>(add_expert_uses(file, "k", ExpertUses{{many}}));
  };
  std::thread other(add);
  add();
  other.join();
  std::int32_t const n_experts[] = {5000};
  KnownExpertUses const known = read_expert_uses(file, "k", n_experts);
  CHECK(known.note.empty());
  CHECK_FALSE(known.uses.empty());  // what both add in the same moment may be lost
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "."), {}) == 1);
}

TEST_CASE("a folder that cannot be written is said, and no error", "[profile][expert_uses]") {
  TempDir const folder;
  write_text(folder / "file", "");
  CHECK(add_expert_uses(folder / "file/experts.txt", "k", some_uses()));
}
