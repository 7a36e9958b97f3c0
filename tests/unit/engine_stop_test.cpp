// Stop strings against a brute-force search, over every way of cutting the text.
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/engine/stop.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using tiered_test::error_of;

namespace {

struct Result {
  std::string shown;
  std::optional<std::size_t> matched;
  bool operator==(Result const&) const = default;
};

/// Looks at every end and every string; of several that end there the longest, of equal ones the first.
Result search(std::string const& text, std::vector<std::string> const& strings) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < strings.size(); ++i) {
      bool const here = text.substr(0, end).ends_with(strings[i]);
      if (here && (!best || strings[i].size() > strings[*best].size())) best = i;
    }
    if (best) return {text.substr(0, end - strings[*best].size()), best};
  }
  return {text, std::nullopt};
}

/// Bytes at the end of `text` that a stop string could begin with.
std::size_t open_bytes(std::string const& text, std::vector<std::string> const& strings) {
  std::size_t most = 0;
  for (std::string const& s : strings) {
    for (std::size_t n = 1; n < s.size() && n <= text.size(); ++n) {
      if (text.ends_with(s.substr(0, n))) most = std::max(most, n);
    }
  }
  return most;
}

std::string random_text(SplitMix64& random, std::size_t n, std::string const& alphabet) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) text += alphabet[random.below(alphabet.size())];
  return text;
}

}  // namespace

TEST_CASE("any text in any pieces ends where the first stop string is complete") {
  std::uint64_t const seed = 20260;
  INFO("seed " << seed);
  SplitMix64 random(seed);
  std::size_t n_matched = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string const alphabet = round % 3 == 0 ? "ab" : round % 3 == 1 ? "abc" : "\xc3\xa9\xe2\x82\xac";
    std::vector<std::string> strings;
    for (std::uint64_t i = random.below(4); i > 0; --i) strings.push_back(random_text(random, 1 + random.below(6), alphabet));
    std::string const text = random_text(random, random.below(25), alphabet);
    StopStrings stop(strings);
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t const n = 1 + random.below(5);
      shown += stop.push(text.substr(at, n));
      at = std::min(text.size(), at + n);
      // At every moment: all that can be shown is, and nothing that may still be taken back.
      Result const now = search(text.substr(0, at), strings);
      REQUIRE(stop.matched() == now.matched);
      std::size_t const kept = now.matched ? 0 : open_bytes(now.shown, strings);
      REQUIRE(shown == now.shown.substr(0, now.shown.size() - kept));
    }
    shown += stop.flush();
    Result const expected = search(text, strings);
    REQUIRE(Result{shown, stop.matched()} == expected);
    n_matched += expected.matched.has_value() ? 1 : 0;
  }
  CHECK(n_matched > 2000);
  CHECK(n_matched < 18000);
}

TEST_CASE("after a match nothing comes any more, and reset() begins another text") {
  StopStrings stop({"END", "\n\n"});
  CHECK(stop.push("so: E") == "so: ");
  CHECK(stop.push("N") == "");
  CHECK(stop.push("Dless") == "");
  CHECK(stop.matched() == 0u);
  CHECK(stop.push("more") == "");
  CHECK(stop.flush() == "");
  stop.reset();
  CHECK_FALSE(stop.matched());
  CHECK(stop.push("EN\n") == "EN");
  CHECK(stop.flush() == "\n");
  CHECK(stop.push("\nD") == "\nD");  // what was flushed is no part of a stop string any more
}

TEST_CASE("without stop strings everything passes at once; an empty one is refused") {
  StopStrings none;
  CHECK(none.push("abc") == "abc");
  CHECK(none.flush() == "");
  CHECK(error_of([] { StopStrings({"a", ""}); }).code == Errc::precondition);
}
