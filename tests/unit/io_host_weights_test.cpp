// InFile and CopiedTo: equal bytes, one copy a span, nothing kept after the end, errors of the tier.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/io/host_weights.hpp"
#include "tiered/memory/budgeted.hpp"
#include "tiered/memory/pageable.hpp"

using tiered::CopiedTo;
using tiered::PageableTier;
using tiered_test::error_of;
using Bytes = std::span<std::byte const>;

namespace {

bool same(Bytes a, Bytes b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

std::vector<std::byte> counting(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = std::byte(i % 253);
  return bytes;
}

struct DeviceOnlyTier : PageableTier {
  DeviceOnlyTier() = default;  // or it would be an aggregate, which {} cannot make
  tiered::Tier tier() const { return tiered::Tier::vram; }
};

}  // namespace

static_assert(tiered::HostWeights<tiered::InFile>);
static_assert(tiered::HostWeights<CopiedTo<PageableTier>>);
static_assert(tiered::HostWeights<CopiedTo<tiered::Budgeted<PageableTier>>>);

TEST_CASE("InFile hands back the mapping itself") {
  auto const file = counting(100);
  tiered::InFile weights;
  CHECK(weights.bring(file).data() == file.data());
  CHECK(weights.bring(file).size() == 100);
  CHECK(weights.tier() == tiered::Tier::pageable);
}

TEST_CASE("CopiedTo copies each span once, aligned, and frees what it took") {
  auto const file = counting(1000);
  Bytes const all = file;
  PageableTier tier;
  {
    CopiedTo<tiered::Budgeted<PageableTier>> weights(tiered::Budgeted<PageableTier>(tier, 10000), 256);
    Bytes const a = weights.bring(all.subspan(100, 300));
    Bytes const b = weights.bring(all.subspan(0, 100));
    Bytes const longer = weights.bring(all.subspan(100, 301));  // another tensor, although it begins at the same byte
    CHECK(same(a, all.subspan(100, 300)));
    CHECK(same(b, all.subspan(0, 100)));
    CHECK(same(longer, all.subspan(100, 301)));
    for (Bytes const copy : {a, b, longer}) CHECK(reinterpret_cast<std::uintptr_t>(copy.data()) % 256 == 0);
    CHECK(a.data() != all.data() + 100);
    CHECK(tier.used_bytes() == 701);

    CHECK(weights.bring(all.subspan(100, 300)).data() == a.data());
    CHECK(weights.bring(all.subspan(0, 100)).data() == b.data());
    CHECK(tier.used_bytes() == 701);
    CHECK(weights.bring({}).empty());

    auto moved = std::move(weights);
    CHECK(same(a, all.subspan(100, 300)));
    CHECK(moved.bring(all.subspan(100, 300)).data() == a.data());
    CopiedTo<tiered::Budgeted<PageableTier>> target(tiered::Budgeted<PageableTier>(tier, 10000));
    target.bring(all.subspan(5, 5));
    target = std::move(moved);
    CHECK(target.bring(all.subspan(0, 100)).data() == b.data());
  }
  CHECK(tier.used_bytes() == 0);
}

TEST_CASE("CopiedTo passes on that the tier is full, and keeps what it has") {
  auto const file = counting(1000);
  Bytes const all = file;
  CopiedTo<PageableTier> weights(PageableTier(500));
  Bytes const kept = weights.bring(all.first(400));
  CHECK(error_of([&] { weights.bring(all.subspan(400, 101)); }).code == tiered::Errc::out_of_memory);
  CHECK(weights.memory().used_bytes() == 400);
  CHECK(same(kept, all.first(400)));
  CHECK(same(weights.bring(all.subspan(400, 100)), all.subspan(400, 100)));
}

TEST_CASE("CopiedTo refuses a tier that the CPU cannot write to") {
  CHECK(error_of([] { CopiedTo<DeviceOnlyTier> const weights; }).code == tiered::Errc::precondition);
}
