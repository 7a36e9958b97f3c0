// ReadInto: the bytes of the file in memory of its own, once each; progress over all tensors; errors.
#include "tiered/io/read_into.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/io/gguf_writer.hpp"
#include "tiered/memory/budgeted.hpp"
#include "tiered/memory/pageable.hpp"

using namespace tiered;
using tiered_test::error_of;
using tiered_test::TempDir;

static_assert(HostWeights<ReadInto<PageableTier>>);

namespace {

/// A file with a small and a large tensor (several pieces) of seeded values.
std::string write_model(TempDir const& dir) {
  SplitMix64 random(11);
  std::vector<float> small(1001), large(5 * MiB + 3);
  for (float& x : small) x = float(random.below(1000));
  for (float& x : large) x = float(random.below(1000));
  GgufWriter writer;
  writer.set("general.architecture", "none");
  writer.add_tensor("small", DType::f32, Shape(std::int64_t(small.size())), small);
  writer.add_tensor("large", DType::f32, Shape(std::int64_t(large.size())), large);
  writer.write(dir / "model.gguf");
  return dir / "model.gguf";
}

bool same(std::span<std::byte const> a, std::span<std::byte const> b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

}  // namespace

TEST_CASE("ReadInto reads each tensor once, aligned, into memory of the tier, and frees it") {
  TempDir const dir;
  GgufFile const file = GgufFile::open(write_model(dir));
  auto const small = file.require_tensor("small").data, large = file.require_tensor("large").data;
  PageableTier tier;
  {
    std::vector<std::uint64_t> progress;
    ReadOptions options;
    options.n_threads = 3;
    options.progress = [](void* context, std::uint64_t done, std::uint64_t total) {
      static_cast<std::vector<std::uint64_t>*>(context)->push_back(done);
      CHECK(total == 4 * (1001 + 5 * MiB + 3));
    };
    options.context = &progress;
    ReadInto<Budgeted<PageableTier>> weights(file, Budgeted<PageableTier>(tier, 100 * MiB), options, 256);
    auto const a = weights.bring(large), b = weights.bring(small);
    CHECK(same(a, large));
    CHECK(same(b, small));
    CHECK(a.data() != large.data());
    for (auto const brought : {a, b}) CHECK(reinterpret_cast<std::uintptr_t>(brought.data()) % 256 == 0);
    CHECK(weights.tier() == Tier::pageable);
    CHECK(tier.used_bytes() == large.size() + small.size());
    CHECK(std::is_sorted(progress.begin(), progress.end()));
    CHECK(progress.back() == large.size() + small.size());

    auto const n_reports = progress.size();
    CHECK(weights.bring(large).data() == a.data());
    CHECK(progress.size() == n_reports);
    CHECK(weights.bring({}).empty());
    auto moved = std::move(weights);
    CHECK(moved.bring(small).data() == b.data());
  }
  CHECK(tier.used_bytes() == 0);
}

TEST_CASE("ReadInto keeps what it has when a read fails, is cancelled, or the tier is full") {
  TempDir const dir;
  std::string const path = write_model(dir);
  GgufFile const file = GgufFile::open(path);
  auto const small = file.require_tensor("small").data, large = file.require_tensor("large").data;
  bool cancel = false;
  ReadOptions options;
  options.cancelled = [](void* context) { return *static_cast<bool*>(context); };
  options.context = &cancel;
  ReadInto<PageableTier> weights(file, PageableTier(large.size()), options);
  auto const kept = weights.bring(small);
  std::vector<std::byte> const expected(small.begin(), small.end());

  CHECK(error_of([&] { weights.bring(large); }).code == Errc::out_of_memory);
  weights = ReadInto<PageableTier>(file, PageableTier(), options);
  auto const again = weights.bring(small);
  cancel = true;
  CHECK(error_of([&] { weights.bring(large); }).code == Errc::cancelled);
  cancel = false;
  std::filesystem::resize_file(path, 10 * MiB);
  auto const cut = error_of([&] { weights.bring(large); });
  CHECK(cut.code == Errc::io);
  CHECK(cut.says("model.gguf", "cut"));
  CHECK(weights.memory().used_bytes() == small.size());
  CHECK(same(again, expected));
  static_cast<void>(kept);
}

TEST_CASE("ReadInto hands back what a model made itself, and copies none of it") {
  TempDir const dir;
  GgufFile const file = GgufFile::open(write_model(dir));
  std::vector<std::byte> const made(128);
  ReadInto<PageableTier> weights(file);
  auto const brought = weights.bring(made);
  CHECK(brought.data() == made.data());
  CHECK(brought.size() == made.size());
  CHECK(weights.memory().used_bytes() == 0);
  auto const small = file.require_tensor("small").data;
  CHECK(weights.bring(small).data() != small.data());
  CHECK(weights.bring(made).data() == made.data());
  CHECK(weights.memory().used_bytes() == small.size());
}

TEST_CASE("ReadInto refuses bytes that are half of its file, and files that are not on disk") {
  TempDir const dir;
  GgufFile const file = GgufFile::open(write_model(dir));
  std::vector<std::byte> const foreign(100);
  ReadInto<PageableTier> weights(file);
  auto const all = file.mapping(0)->bytes();
  CHECK(error_of([&] { weights.bring({all.data() + all.size() - 10, 11}); }).says("11 bytes", "model.gguf"));
  CHECK(error_of([&] { weights.bring({all.data() - 1, 2}); }).code == Errc::precondition);
  CHECK(weights.memory().used_bytes() == 0);
  ReadInto<PageableTier> none;
  CHECK(error_of([&] { none.bring(foreign); }).code == Errc::precondition);
  GgufWriter writer;
  writer.set("general.architecture", "none");
  auto const bytes = writer.to_bytes();
  CHECK(error_of([&] { ReadInto<PageableTier> in_memory(GgufFile::parse(bytes)); }).code == Errc::precondition);
}

TEST_CASE("too little memory is refused before anything is read, with the numbers") {
  detail::check_room("m.gguf", 100, std::nullopt);
  detail::check_room("m.gguf", 100, 100);
  auto const thrown = error_of([] { detail::check_room("m.gguf", 3 * GiB + 1, 2 * GiB); });
  CHECK(thrown.code == Errc::out_of_memory);
  CHECK(thrown.says("m.gguf", "3.00 GiB", "3221225473", "2.00 GiB"));
}
