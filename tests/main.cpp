// The main of every test program, for Catch2 2.13 and 3.x. Ends with 77 (CTest: skipped) where no test failed and a file that
// test.sh downloads was missing.
#include <cstdlib>
#include <filesystem>

#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

#include "cached_file.hpp"

int main(int argc, char** argv) {
  std::filesystem::current_path(TIERED_SOURCE_DIR);
  int const failed = Catch::Session().run(argc, argv);
  if (failed != 0) return EXIT_FAILURE;
  return tiered_test::some_file_was_missing() ? 77 : EXIT_SUCCESS;
}
