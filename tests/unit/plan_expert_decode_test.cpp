#include "tiered/plan/expert_decode.hpp"

#include "catch.hpp"

using namespace tiered;

TEST_CASE("more of the experts in the cache hit more, better than their share, and all of them always", "[plan][expert_decode]") {
  double before = 0;
  for (int percent = 1; percent < 100; ++percent) {
    double const hits = cache_hits(percent / 100.0);
    INFO(percent);
    CHECK(hits > before);
    CHECK(hits > percent / 100.0);
    before = hits;
  }
  CHECK(cache_hits(0) == 0);
  CHECK(cache_hits(1) == 1);
  for (HitPoint const& p : hits_by_cached) CHECK(cache_hits(p.cached) == Approx(p.hits));
}

TEST_CASE("rows that use all experts find the share that is cached, one row what it would alone", "[plan][expert_decode]") {
  double before = 1;
  for (int n : {1, 2, 8, 32, 128, 512}) {
    double const hits = cache_hits(0.35, 0.0625, n);
    INFO(n);
    CHECK(hits < before);
    before = hits;
    // What n rows miss is no more than what half of them do and then the others.
    auto const missed = [](int rows) { return (1 - cache_hits(0.35, 0.0625, rows)) * used_by(0.0625, rows); };
    CHECK(missed(2 * n) <= 2 * missed(n));
  }
  CHECK(cache_hits(0.35, 0.0625, 1) == Approx(0.80));
  CHECK(cache_hits(0.35, 0.0625, 4000) == Approx(0.35));
  CHECK(cache_hits(0.35, 1, 1) == Approx(0.35));  // one row uses them all
  CHECK(cache_hits(1, 0.0625, 7) == 1);
}

TEST_CASE("no layer waits where nothing misses, every one where half of a row's uses do", "[plan][expert_decode]") {
  CHECK(layers_with_misses(0, 8) == 0);
  CHECK(layers_with_misses(1, 8) == Approx(0.25));
  CHECK(layers_with_misses(missed_together * 8, 8) == 1);
  CHECK(layers_with_misses(30, 8) == 1);
}
