// The templates of real models, as llama.cpp collects them, against Jinja2: .ci/fetch.py templates.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <sys/wait.h>

#include "cached_file.hpp"
#include "catch.hpp"
#include "chat_fixture.hpp"
#include "temp_dir.hpp"

namespace {

std::string shell_word(std::filesystem::path const& path) {
  std::string out = "'";
  for (char const c : path.string()) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

TEST_CASE("real chat templates give what Jinja2 gives") {
  auto const folder = tiered_test::cached_file("templates");
  if (!folder) return;
  tiered_test::TempDir const dir;
  std::filesystem::path const fixture_path = dir / "real.bin";
  std::filesystem::path const script = std::filesystem::path(TIERED_TEST_DATA) / "chat_template" / "make_chat_template.py";
  int const status = std::system(("python3 -B " + shell_word(script) + " " + shell_word(*folder) + " " + shell_word(fixture_path)).c_str());
  if (WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127)) {
    tiered_test::some_file_was_missing() = true;
    std::printf("skipped: python3 has no jinja2 (Debian: python3-jinja2)\n");
    return;
  }
  REQUIRE(status == 0);
  tiered_test::ChatFixture const fixture = tiered_test::ChatFixtureReader::read(fixture_path);
  CHECK(fixture.templates.size() >= 70);
  for (tiered_test::RenderedTemplate const& each : fixture.templates) check_renderings(fixture, each);
}
