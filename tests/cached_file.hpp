/// Files that tests need and the repository does not hold: test.sh downloads them into a cache.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

namespace tiered_test {

/// $TIERED_TEST_CACHE, else $XDG_CACHE_HOME/tiered, else ~/.cache/tiered.
inline std::filesystem::path cache_dir() {
  auto const variable = [](char const* name) -> std::filesystem::path {
    char const* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  if (auto const dir = variable("TIERED_TEST_CACHE"); !dir.empty()) return dir;
  if (auto const dir = variable("XDG_CACHE_HOME"); !dir.empty()) return dir / "tiered";
  return variable("HOME") / ".cache" / "tiered";
}

/// True once cached_file() found nothing; the test program is then shown as skipped unless a test fails.
inline bool& some_file_was_missing() {
  static bool missing = false;
  return missing;
}

/// Path of `name` in the cache; where it is missing, says so, and the calling test returns:
///   auto const model = tiered_test::cached_file("SmolLM2-135M-Instruct.Q4_1.gguf");
///   if (!model) return;
inline std::optional<std::string> cached_file(char const* name) {
  std::filesystem::path const path = cache_dir() / name;
  if (std::filesystem::exists(path)) return path.string();
  some_file_was_missing() = true;
  std::printf("skipped: no %s (./test.sh downloads it)\n", path.c_str());
  return std::nullopt;
}

}  // namespace tiered_test
