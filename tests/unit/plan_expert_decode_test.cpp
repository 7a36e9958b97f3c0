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
  CHECK(cache_hits(0.35, 0.0625, 1) == Approx(0.84));
  CHECK(cache_hits(0.35, 0.0625, 4000) == Approx(0.35));
  CHECK(cache_hits(0.35, 1, 1) == Approx(0.35));  // one row uses them all
  CHECK(cache_hits(1, 0.0625, 7) == 1);
}

TEST_CASE("no layer waits where nothing misses, every one where a third of a row's uses do or more", "[plan][expert_decode]") {
  CHECK(layers_with_misses(0, 8) == 0);
  CHECK(layers_with_misses(0.5, 8) == Approx(0.24).epsilon(0.05));  // as measured
  CHECK(layers_with_misses(1.94, 8) == Approx(0.79).epsilon(0.05));
  CHECK(layers_with_misses(8.0 / 3, 8) == Approx(1));
  CHECK(layers_with_misses(30, 8) == 1);
}

TEST_CASE("looking ahead pays where experts are missing that take longer than guesses do", "[plan][expert_decode]") {
  double const bytes = 2'654'208;
  CHECK(pays_to_look_ahead(1.6, bytes));
  CHECK(!pays_to_look_ahead(0, bytes));
  CHECK(!pays_to_look_ahead(0.01, bytes));
  CHECK(!pays_to_look_ahead(8, 12 * 1024));
}

TEST_CASE("a small part of a cache is kept free for what comes ahead", "[plan][expert_decode]") {
  CHECK(reserved_experts(1) == 1);
  CHECK(reserved_experts(100) == 6);
  CHECK(reserved_experts(3000) == 12);
  for (std::size_t n = 32; n < 4000; n += 7) CHECK(reserved_experts(n) * 16 <= n);
}
