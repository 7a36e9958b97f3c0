// Token ids of synthetic workloads.
#include <algorithm>
#include <set>
#include <vector>

#include "../bench/model/ids.hpp"
#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/io/gguf_writer.hpp"

using bench::Routing;
using bench::TokenIds;

TEST_CASE("ids with topics come in runs of 256 of one topic, bound and free ones among them") {
  constexpr std::int32_t vocab_size = 151936;
  std::vector<std::int32_t> const ids = TokenIds(vocab_size, Routing::topics, 3).next(64 * bench::topic_run_tokens);
  std::set<std::int32_t> topics, different(ids.begin(), ids.end());
  std::size_t n_free = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CHECK(bench::topic_of(ids[i]) == bench::topic_of(ids[i / 256 * 256]));
    topics.insert(bench::topic_of(ids[i]));
    n_free += bench::is_free(ids[i]);
  }
  CHECK(*std::ranges::min_element(ids) >= 0);
  CHECK(*std::ranges::max_element(ids) < vocab_size);
  CHECK(topics.size() == 16);
  CHECK(different.size() > 14000);  // of 16,384: a topic has 9,495 ids, and about 1,024 draws in four runs
  CHECK(double(n_free) / double(ids.size()) == Approx(0.2).margin(0.02));
}

TEST_CASE("the tokens behind a prompt go on with its topic") {
  TokenIds ids(151936, Routing::topics, 9);
  std::int32_t const topic = bench::topic_of(ids.next(300).back());
  for (std::int32_t const id : ids.next(212)) CHECK(bench::topic_of(id) == topic);  // up to the end of the second run
}

TEST_CASE("uniform ids are of the whole vocabulary, and the same for a seed") {
  std::vector<std::int32_t> const ids = TokenIds(100, Routing::uniform, 5).next(5000);
  CHECK(std::set<std::int32_t>(ids.begin(), ids.end()).size() == 100);
  CHECK(ids == TokenIds(100, Routing::uniform, 5).next(5000));
  CHECK(ids != TokenIds(100, Routing::uniform, 6).next(5000));
}

TEST_CASE("a vocabulary without room for all topics gets uniform ids") {
  std::vector<std::int32_t> const ids = TokenIds(7, Routing::topics, 5).next(500);
  CHECK(std::set<std::int32_t>(ids.begin(), ids.end()).size() == 7);
}

TEST_CASE("what is asked for counts, then what the file says, then uniform") {
  tiered::GgufWriter writer;
  auto const plain = writer.to_bytes();
  writer.set(bench::routing_key, "topics");
  auto const marked = writer.to_bytes();
  tiered::GgufFile const a = tiered::GgufFile::parse(plain), b = tiered::GgufFile::parse(marked);
  CHECK(bench::routing_for(a, "") == Routing::uniform);
  CHECK(bench::routing_for(a, "topics") == Routing::topics);
  CHECK(bench::routing_for(b, "") == Routing::topics);
  CHECK(bench::routing_for(b, "uniform") == Routing::uniform);
  CHECK(tiered_test::error_of([&] { bench::routing_for(a, "random"); }).code == tiered::Errc::unsupported);
}
