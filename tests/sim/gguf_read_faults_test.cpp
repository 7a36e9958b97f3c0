// A read that fails at every N while a file is opened: the source's own error, nothing half open.
#include "catch.hpp"
#include "error_of.hpp"
#include "golden_data.hpp"
#include "tiered/io/detail/gguf_parse.hpp"
#include "tiered/io/source.hpp"
#include "tiered/sim/faults.hpp"

using namespace tiered;
using namespace tiered_test;

TEST_CASE("a failed read while opening a file is an io error, whichever read it is", "[faults]") {
  MmapFile const file = MmapFile::open(golden_path("qwen3moe.mixed.gguf"));
  std::uint64_t n = 1;
  for (;; ++n) {
    INFO("read " << n);
    Faults faults;
    faults.fail_at(FaultKind::read, n);
    FaultyReads const source(file, faults);
    Thrown const t = error_of([&] { detail::parse_gguf_part(source, "faulty"); });
    if (faults.fired() == 0) {
      CHECK_FALSE(t.code);
      break;
    }
    CHECK(t.code == Errc::io);
  }
  CHECK(n > 1);
}
