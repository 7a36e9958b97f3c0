// What loading took: steps in their order, with names, and nothing that never began.
#include <string>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/engine/load_times.hpp"

using namespace tiered;
using namespace tiered::test;

TEST_CASE("steps are relative to the beginning, and may overlap") {
  LoadTimes times;
  double const start = steady_seconds();
  times.add("copy", {start + 1, start + 3});
  times.add("never", {0, 0});
  times.add("copy", {start + 5, start + 6});
  times.add("backwards", {start + 2, start + 1});
  REQUIRE(times.steps().size() == 3);
  CHECK(times.seconds("copy") == Approx(3).margin(1e-6));
  CHECK(times.steps()[0].begin_s >= 1);
  CHECK(times.steps()[2].seconds() == 0);
  LoadTimes all;
  all.add(times);
  CHECK(all.steps().size() == 3);
  CHECK(all.steps()[0].seconds() == Approx(2).margin(1e-6));
  for (int i = 0; i < 100; ++i) all.add("more", {start + 1, start + 2});
  CHECK(all.steps().size() == 32);  // as many as there is room for
}

TEST_CASE("a scope is a step, also where nobody listens") {
  LoadTimes times;
  { LoadTimes::Scope const scope(&times, "plan"); }
  { LoadTimes::Scope const scope(nullptr, "plan"); }
  times.finish();
  REQUIRE(times.steps().size() == 1);
  CHECK(times.total_s() >= times.steps()[0].end_s);
  CHECK(to_text(times).starts_with("plan 0-"));
  CHECK(to_text(LoadTimes()) == "0 ms");
}

TEST_CASE("an engine says what making it took") {
  auto const model = open_golden("llama.f32.gguf");
  EngineOptions options;
  options.max_context = 32;
  options.n_threads = 1;
  options.vram_bytes = 16 * MiB;
  Engine<SimPolicies> engine(model, options);
  LoadTimes const load = engine.stats().load;
  std::string names;
  for (LoadStep const& s : load.steps()) names += std::string(s.name) + ' ';
  CHECK(names == "weights profile plan allocate ");
  CHECK(load.total_s() >= load.steps().back().end_s);
}
