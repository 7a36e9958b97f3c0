// BLAKE2b-256 against Python's hashlib.blake2b(m, digest_size=32).
#include "tiered/vision/media_hash.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

using namespace tiered;

TEST_CASE("hashes are BLAKE2b's, however the bytes come", "[vision][media]") {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 1000; ++i) bytes.push_back(std::byte(7 * i & 255));
  std::pair<std::size_t, char const*> const expected[] = {
      {0, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8"},
      {1000, "6ac4bea923678eb024090384d6e767b5870f849057dc19b172d8d9f2df30bf8e"},
  };
  for (auto const& [n, digits] : expected) {
    for (std::size_t const piece : {std::size_t{1}, std::size_t{127}, std::size_t{128}, std::size_t{129}, std::size_t{1000}}) {
      INFO(n << " bytes in pieces of " << piece);
      MediaHasher hasher;
      for (std::size_t at = 0; at < n; at += piece) hasher.add(std::span(bytes).first(n).subspan(at, std::min(piece, n - at)));
      CHECK(to_text(hasher.value()) == digits);
    }
  }
  MediaHasher abc;
  abc.add("ab");
  MediaHash const before = abc.value();
  abc.add("c");
  CHECK(to_text(abc.value()) == "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
  CHECK(before != abc.value());
  MediaHasher block;  // of the very size of one
  for (int i = 0; i < 16; ++i) block.add(std::int64_t(0x0706050403020100) + std::int64_t(0x0808080808080808) * i);
  CHECK(to_text(block.value()) == "c3582f71ebb2be66fa5dd750f80baae97554f3b015663c8be377cfcb2488c1d1");
}

TEST_CASE("hashes are read as they are written", "[vision][media]") {
  MediaHasher hasher;
  hasher.add("a picture");
  MediaHash const hash = hasher.value();
  CHECK(parse_media_hash(to_text(hash)) == hash);
  CHECK_FALSE(parse_media_hash(to_text(hash).substr(1)).has_value());
  CHECK_FALSE(parse_media_hash(to_text(hash) + "0").has_value());
  std::string text = to_text(hash);
  text[5] = 'g';
  CHECK_FALSE(parse_media_hash(text).has_value());
}
