/// The memory of a CUDA device: errors, the ledger, VramTier, pinned memory, registered mappings.
#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <sys/mman.h>

#include "conformance/memory_tier_suite.hpp"
#include "cuda/gpu.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/io/source.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/ledger.hpp"
#include "tiered/memory/cuda/nvml.hpp"
#include "tiered/memory/cuda/pinned.hpp"
#include "tiered/memory/cuda/registered.hpp"
#include "tiered/memory/cuda/vram.hpp"

namespace {

using namespace tiered;
using tiered_test::cuda_check;
using tiered_test::error_of;
using tiered_test::has_gpu;

CudaDevice const& device() {
  static CudaDevice const opened = CudaDevice::open();
  return opened;
}

std::shared_ptr<VramShare> share_of(VramRules rules = {}) { return std::make_shared<VramShare>(device().ledger, rules); }

template <bool use_virtual_memory>
class OnDevice {
 public:
  explicit OnDevice(std::size_t capacity_bytes) : tier_(device(), share_of(), capacity_bytes, use_virtual_memory) {}
  VramTier& tier() { return tier_; }

 private:
  VramTier tier_;
};

class Pinned {
 public:
  explicit Pinned(std::size_t capacity_bytes) : tier_(capacity_bytes) { device().use(); }
  PinnedTier& tier() { return tier_; }

 private:
  PinnedTier tier_;
};

std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& byte : bytes) byte = std::byte(random.below(256));
  return bytes;
}

void fill(std::byte* device_bytes, std::vector<std::byte> const& bytes) {
  cuda_check(cudaMemcpy(device_bytes, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
}
bool holds(std::byte const* device_bytes, std::vector<std::byte> const& bytes) {
  std::vector<std::byte> back(bytes.size());
  cuda_check(cudaMemcpy(back.data(), device_bytes, bytes.size(), cudaMemcpyDeviceToHost));
  return back == bytes;
}

/// Private memory of this process, in bytes: what mapped files do not count in.
std::size_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("RssAnon:", 0) == 0) return std::stoull(line.substr(8)) * KiB;
  }
  return 0;
}

}  // namespace

TEST_CASE("a CUDA status becomes an error with the call, its name and its text", "[cuda][memory]") {
  REQUIRE(error_of([] { tiered::cuda_check(cudaSuccess, "cudaMalloc"); }).code == std::nullopt);
  auto const full = error_of([] { tiered::cuda_check(cudaErrorMemoryAllocation, "cudaMalloc", "3 GiB wanted"); });
  REQUIRE(full.code == Errc::out_of_memory);
  REQUIRE(full.says("cudaMalloc", "cudaErrorMemoryAllocation", "(2)", "3 GiB wanted"));
  auto const lost = error_of([] { tiered::cuda_check(cudaErrorIllegalAddress, "cudaStreamSynchronize"); });
  REQUIRE(lost.code == Errc::device);
  REQUIRE(lost.says("cudaStreamSynchronize", "cudaErrorIllegalAddress", "(700)", "lost"));
  REQUIRE(is_fatal(cudaErrorLaunchFailure));
  REQUIRE_FALSE(is_fatal(cudaErrorMemoryAllocation));
  REQUIRE_FALSE(is_fatal(cudaErrorInvalidValue));
  try {
    tiered::cuda_check(cudaErrorInvalidValue, "here");
    FAIL("no error");
  } catch (Error const& error) {
    REQUIRE(std::string(error.where().file).find("memory_test.cpp") != std::string::npos);
  }
}

TEST_CASE("which machine code runs on which device", "[cuda][memory]") {
  constexpr std::array built{80, 86, 90, 120};
  REQUIRE(runs_on(90, built));
  REQUIRE(runs_on(89, built));
  REQUIRE(runs_on(121, built));
  REQUIRE_FALSE(runs_on(75, built));
  REQUIRE_FALSE(runs_on(100, built));
  REQUIRE(runs_on(100, built, 90));
  REQUIRE_FALSE(runs_on(100, built, 120));
  auto const foreign = error_of([&] { check_architecture("a card", 100, built); });
  REQUIRE(foreign.code == Errc::unsupported);
  REQUIRE(foreign.says("a card", "10.0", "80, 86, 90, 120", "build them for 100"));
  auto const old = error_of([&] { check_architecture("a card", 61, built, 50); });
  REQUIRE(old.code == Errc::unsupported);
  REQUIRE(old.says("6.1", "7.5"));
  REQUIRE(error_of([&] { check_architecture("a card", 75, {}); }).code == std::nullopt);
}

TEST_CASE("bytes by use", "[cuda][memory]") {
  VramUses uses;
  uses.add(VramUse::kv, 30);
  uses.add(VramUse::weights, 12);
  uses.remove(VramUse::kv, 10);
  REQUIRE(uses.bytes(VramUse::kv) == 20);
  REQUIRE(uses.bytes(VramUse::weights) == 12);
  REQUIRE(uses.total_bytes() == 32);
  for (std::size_t i = 0; i < n_vram_uses; ++i) REQUIRE(std::string(name(VramUse(i))) != "?");
}

TEST_CASE("ranges are registered in pieces of whole pages; a span is cut where pieces meet", "[cuda][memory]") {
  constexpr std::size_t page = 4096;
  std::vector<std::byte> const memory(12 * page);
  std::size_t const skip = std::size_t(-reinterpret_cast<std::uintptr_t>(memory.data())) & (page - 1);
  std::byte const* const first = memory.data() + skip;
  CudaDevice const none;  // cannot register
  using Bytes = RegisteredMapping::Bytes;
  RegisteredMapping mapping(none, {Bytes(first + 8 * page + 5, 10), Bytes(first + 10, page), Bytes(first + page + 20, 2 * page)},
                            {.piece_bytes = 2 * page, .n_threads = 1, .read_only = true});
  REQUIRE(mapping.n_pieces() == 3);  // pages 0 and 1, 2 and 3, 8
  REQUIRE(mapping.total_bytes() == 5 * page);
  REQUIRE(mapping.failed());
  mapping.start();
  REQUIRE_FALSE(mapping.wait());
  REQUIRE_FALSE(mapping.wait_until(first, page));
  REQUIRE_FALSE(mapping.covers(first, 1));
  REQUIRE(mapping.first_error().find("cannot register host memory") != std::string::npos);
  std::vector<std::size_t> lengths;
  mapping.for_each_part(Bytes(first + 100, 9 * page), [&](Bytes part, bool is_registered) {
    REQUIRE_FALSE(is_registered);
    REQUIRE(part.data() == first + 100 + std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}));
    lengths.push_back(part.size());
  });
  REQUIRE(lengths == std::vector<std::size_t>{2 * page - 100, 2 * page, 4 * page, page, 100});
}

TEST_CASE("opening a device", "[cuda][memory]") {
  if (!has_gpu()) {
    auto const nothing = error_of([] { CudaDevice::open(); });
    REQUIRE(nothing.code == Errc::device);
    REQUIRE(nothing.says("driver"));
    return;
  }
  bool const existed = detail::primary_context_exists(0);
  auto const ledger = VramLedger::of(0);
  REQUIRE(detail::primary_context_exists(0) == existed);  // asking what is there takes nothing
  CudaDevice const& d = device();
  REQUIRE(detail::primary_context_exists(0));
  WARN(d.text());
  WARN("context " << format_bytes(d.ledger->bytes(VramUse::context)) << ", created here: " << d.created_context
                  << ", virtual memory: " << d.has_virtual_memory << ", registers read-only mappings: " << d.can_register_read_only
                  << (detail::NvmlLibrary::get() ? "" : ", no NVML: ") << detail::NvmlLibrary::why_not());
  REQUIRE(d.capability >= least_capability);
  REQUIRE(d.n_multiprocessors > 0);
  REQUIRE(d.total_bytes > d.free_bytes());
  REQUIRE(d.ledger == VramLedger::of(d.ordinal));
  auto const absent = error_of([] { CudaDevice::open(1000); });
  REQUIRE(absent.code == Errc::device);
  REQUIRE(absent.says("1000"));
  std::array const foreign{d.capability + 10};
  REQUIRE(error_of([&] { CudaDevice::open(d.ordinal, {.built_architectures = foreign}); }).code == Errc::unsupported);
  int not_a_kernel = 0;
  REQUIRE(error_of([&] { load_kernel(&not_a_kernel, "nobody"); }).says("nobody"));
  REQUIRE(cudaGetLastError() == cudaSuccess);  // or the next launch would report it
}

TEST_CASE("VramTier is a MemoryTier", "[cuda][memory]") {
  if (!has_gpu()) return;
  tiered_test::memory_tier_suite<OnDevice<true>>(true);
}
TEST_CASE("VramTier without virtual memory is a MemoryTier", "[cuda][memory]") {
  if (!has_gpu()) return;
  tiered_test::memory_tier_suite<OnDevice<false>>(true);
}
TEST_CASE("PinnedTier is a MemoryTier", "[cuda][memory]") {
  if (!has_gpu()) return;
  tiered_test::memory_tier_suite<Pinned>();
}

TEST_CASE("shares of a ledger: the first pays for the context; what dies is taken out", "[cuda][memory]") {
  if (!has_gpu()) return;
  VramLedger& ledger = *device().ledger;
  std::size_t const before = ledger.total_bytes();
  {
    auto const first = share_of({.budget_bytes = 24 * GiB, .whole_process = true, .excludes_context = false});
    auto const second = share_of({.budget_bytes = 3 * GiB + 1, .whole_process = true, .excludes_context = false});
    REQUIRE(first->pays_context());
    REQUIRE_FALSE(second->pays_context());
    REQUIRE(first->counted_bytes() == ledger.baseline_bytes() + ledger.bytes(VramUse::context));
    REQUIRE(second->counted_bytes() == 0);
    REQUIRE(second->available_bytes() == 3 * GiB);  // whole granules
    second->add(VramUse::other, 2 * GiB);
    second->move(VramUse::other, VramUse::weights, GiB);
    REQUIRE(second->bytes(VramUse::weights) == GiB);
    REQUIRE(second->bytes(VramUse::other) == GiB);
    REQUIRE(second->available_bytes() == GiB);
    REQUIRE(ledger.total_bytes() == before + 2 * GiB);
    REQUIRE(ledger.report().find("weights") != std::string::npos);
    REQUIRE(error_of([&] { second->move(VramUse::kv, VramUse::weights, 1); }).code == Errc::precondition);
    second->release(GiB + GiB / 2);  // `other` first, then a half of the weights
    REQUIRE(second->bytes(VramUse::other) == 0);
    REQUIRE(second->bytes(VramUse::weights) == GiB / 2);
    second->add(VramUse::kv, 4 * GiB);
    REQUIRE(second->available_bytes() == 0);
  }
  REQUIRE(ledger.total_bytes() == before);
  auto const without = share_of({.budget_bytes = 2 * GiB, .whole_process = false, .excludes_context = true});
  REQUIRE(without->pays_context());
  REQUIRE(without->counted_bytes() == 0);
  auto const added = share_of({.budget_bytes = 2 * GiB, .whole_process = false, .excludes_context = false});
  REQUIRE(added->available_bytes() == 2 * GiB);
}

TEST_CASE("the ledger and the driver's figure agree", "[cuda][memory]") {
  if (!has_gpu()) return;
  auto const share = share_of();
  VramShare::Mark const mark = share->mark();
  std::int64_t const off_before = device().ledger->measure().unaccounted_bytes();
  std::size_t const bytes = GiB;
  VramTier tier(device(), share, bytes);
  REQUIRE(tier.mapped_bytes() == 0);
  REQUIRE(share->total_bytes() == 0);
  Buffer const all(tier, bytes, VramTier::piece_bytes);
  REQUIRE(tier.mapped_bytes() == bytes);
  REQUIRE(share->bytes(VramUse::other) == bytes);
  VramMeasure const measured = device().ledger->measure();
  WARN(device().ledger->report());
  REQUIRE(std::abs(measured.unaccounted_bytes() - off_before) < std::int64_t(bytes) * 3 / 100);

  // what no call reports is found by measuring
  std::size_t const unreported_bytes = 256 * MiB;
  void* unreported = nullptr;
  cuda_check(cudaMalloc(&unreported, unreported_bytes));
  std::size_t const found = share->settle(mark);
  cuda_check(cudaFree(unreported));
  INFO("found " << found << " of " << unreported_bytes);
  REQUIRE(found >= unreported_bytes);
  REQUIRE(found < unreported_bytes + bytes * 3 / 100);
  REQUIRE(share->bytes(VramUse::context) == found);
  share->remove(VramUse::context, found);
}

TEST_CASE("an arena shrinks and grows at its end and moves nothing", "[cuda][memory]") {
  if (!has_gpu()) return;
  if (!device().has_virtual_memory) return;
  constexpr std::size_t piece = VramTier::piece_bytes;
  auto const share = share_of();
  VramTier tier(device(), share, 6 * piece);
  std::vector<std::byte> const pattern = random_bytes(MiB, 1);
  Buffer fixed(tier, piece + MiB);
  std::optional<Buffer> slots(std::in_place, tier, 3 * piece, piece);
  std::byte* const at = slots->data();
  REQUIRE(std::size_t(at - fixed.data()) == 2 * piece);
  fill(fixed.data() + piece, pattern);
  fill(at + 3 * piece - pattern.size(), pattern);
  std::size_t const figure = device().ledger->measure().figure_bytes;

  auto const beyond = error_of([&] { tier.resize(4 * piece); });
  REQUIRE(beyond.code == Errc::over_budget);
  REQUIRE(beyond.says(concat(5 * piece)));
  tier.resize(5 * piece);
  REQUIRE(tier.mapped_bytes() == 5 * piece);
  slots.reset();
  REQUIRE(error_of([&] { tier.resize(piece + 8 * MiB); }).code == Errc::over_budget);  // inside the piece in which `fixed` ends
  REQUIRE(tier.mapped_bytes() == 5 * piece);
  tier.resize(2 * piece + 10 * MiB + 1);  // 10 MiB of a piece, rounded up to whole granules
  REQUIRE(tier.capacity_bytes() == 2 * piece + 10 * MiB + 1);
  REQUIRE(tier.mapped_bytes() >= 2 * piece + 10 * MiB + 1);
  REQUIRE(tier.mapped_bytes() < 2 * piece + 14 * MiB);
  REQUIRE(share->bytes(VramUse::other) == tier.mapped_bytes());
  REQUIRE(device().ledger->measure().figure_bytes < figure - 3 * piece);
  REQUIRE(error_of([&] { tier.allocate(3 * piece, piece); }).code == Errc::out_of_memory);
  REQUIRE(holds(fixed.data() + piece, pattern));

  tier.resize(8 * piece);
  REQUIRE(tier.mapped_bytes() == 8 * piece);
  Buffer again(tier, 6 * piece, piece);
  REQUIRE(again.data() == at);
  fill(again.data(), pattern);
  fill(again.data() + 6 * piece - pattern.size(), pattern);
  REQUIRE(holds(again.data(), pattern));
  REQUIRE(holds(again.data() + 6 * piece - pattern.size(), pattern));
  REQUIRE(holds(fixed.data() + piece, pattern));
  REQUIRE(tier.peak_bytes() == 7 * piece + MiB);
}

TEST_CASE("an arena of one cudaMalloc is resized while it is empty only", "[cuda][memory]") {
  if (!has_gpu()) return;
  VramTier tier(device(), share_of(), 10 * MiB, false);
  REQUIRE_FALSE(tier.is_virtual());
  {
    Buffer const block(tier, 3 * MiB);
    REQUIRE(tier.mapped_bytes() == 10 * MiB);
    REQUIRE(error_of([&] { tier.resize(20 * MiB); }).code == Errc::over_budget);
    REQUIRE(error_of([&] { tier.resize(5 * MiB); }).code == Errc::over_budget);
    tier.resize(10 * MiB);
  }
  tier.resize(20 * MiB);
  Buffer const block(tier, 20 * MiB);
  REQUIRE(tier.mapped_bytes() == 20 * MiB);
  REQUIRE(tier.share().bytes(VramUse::other) == 20 * MiB);
}

TEST_CASE("a device without room says how much there was, and nothing stays mapped", "[cuda][memory]") {
  if (!has_gpu()) return;
  for (bool const use_virtual_memory : {true, false}) {
    auto const share = share_of();
    VramTier tier(device(), share, device().total_bytes * 2, use_virtual_memory);
    auto const full = error_of([&] { tier.allocate(1000, 64); });
    REQUIRE(full.code == Errc::out_of_memory);
    REQUIRE(full.says("are free on the device", format_bytes(device().total_bytes * 2)));
    REQUIRE(tier.mapped_bytes() == 0);
    REQUIRE(share->total_bytes() == 0);
    REQUIRE(cudaGetLastError() == cudaSuccess);
    tier.resize(MiB);
    Buffer const some(tier, 1000);
    REQUIRE(some.data() != nullptr);
  }
}

TEST_CASE("a device that runs full while an arena is mapped gets everything back", "[.full][cuda][memory]") {
  if (!has_gpu()) return;
  auto const share = share_of();
  std::size_t const free_bytes = device().free_bytes();
  VramTier tier(device(), share, free_bytes + GiB);
  REQUIRE(error_of([&] { tier.allocate(1000, 64); }).code == Errc::out_of_memory);
  REQUIRE(tier.mapped_bytes() == 0);
  REQUIRE(device().free_bytes() + 64 * MiB >= free_bytes);
}

TEST_CASE("pinned memory is copied from, and kernels have it at the same address", "[cuda][memory]") {
  if (!has_gpu()) return;
  device().use();
  PinnedTier tier;
  std::vector<std::byte> const pattern = random_bytes(3 * MiB + 7, 2);
  Buffer host(tier, pattern.size(), 2 * MiB);
  std::copy(pattern.begin(), pattern.end(), host.data());
  void* seen = nullptr;
  cuda_check(cudaHostGetDevicePointer(&seen, host.data(), 0));
  REQUIRE(seen == host.data());
  tiered_test::DeviceArray<std::byte> vram(pattern.size());
  cuda_check(cudaMemcpy(vram.data(), host.data(), pattern.size(), cudaMemcpyHostToDevice));
  REQUIRE(vram.download() == pattern);
}

TEST_CASE("a file's mapping is registered where it lies", "[cuda][memory]") {
  if (!has_gpu()) return;
  if (!device().can_register_read_only) {
    WARN("this device cannot register read-only mappings: not tested");
    return;
  }
  tiered_test::TempDir const folder;
  std::vector<std::byte> const content = random_bytes(24 * MiB + 123, 3);
  MmapFile const file = MmapFile::open(folder.write("weights", content));
  std::span<std::byte const> const bytes = file.bytes();
  RegisterOptions const options{.piece_bytes = 4 * MiB, .n_threads = 2, .read_only = true};

  SECTION("in the background, and copied from") {
    std::size_t const private_before = anonymous_bytes();
    std::vector<std::size_t> progress;  // must outlive the threads of the mapping
    std::optional<RegisteredMapping> held(std::in_place, device(), std::vector{bytes}, options);
    RegisteredMapping& mapping = *held;
    REQUIRE(mapping.n_pieces() == 7);
    REQUIRE_FALSE(mapping.covers(bytes.data(), 1));
    mapping.start([&](std::size_t registered, std::size_t) { progress.push_back(registered); });
    bool const all = mapping.wait();
    INFO(mapping.first_error());
    REQUIRE(all);
    REQUIRE(mapping.first_error().empty());
    REQUIRE(mapping.covers(bytes.data(), bytes.size()));
    REQUIRE_FALSE(mapping.covers(bytes.data() + bytes.size(), 8192));
    REQUIRE(mapping.registered_bytes() == mapping.total_bytes());
    REQUIRE(anonymous_bytes() < private_before + content.size() / 2);  // the file was not copied

    std::span<std::byte const> const some = bytes.subspan(1001, 21 * MiB + 3);
    tiered_test::DeviceArray<std::byte> vram(some.size());
    std::size_t n_parts = 0;
    mapping.for_each_part(some, [&](std::span<std::byte const> part, bool is_registered) {
      REQUIRE(is_registered);
      cuda_check(cudaMemcpyAsync(vram.data() + (part.data() - some.data()), part.data(), part.size(), cudaMemcpyHostToDevice, nullptr));
      ++n_parts;
    });
    cuda_check(cudaDeviceSynchronize());
    REQUIRE(n_parts == 6);
    REQUIRE(vram.download() == std::vector<std::byte>(some.begin(), some.end()));
    // a fact to know, not a promise: what the driver makes of a copy across two registrations
    cudaError_t const across = cudaMemcpyAsync(vram.data(), some.data(), some.size(), cudaMemcpyHostToDevice, nullptr);
    WARN("one copy across pieces: " << cuda_error_text(across));
    static_cast<void>(cudaGetLastError());
    cuda_check(cudaDeviceSynchronize());
    std::size_t const total = mapping.total_bytes();
    held.reset();
    REQUIRE(!progress.empty());
    REQUIRE(std::is_sorted(progress.begin(), progress.end()));
    REQUIRE(progress.back() == total);
    cuda_check(cudaHostRegister(const_cast<std::byte*>(bytes.data()), 4 * MiB, cudaHostRegisterReadOnly));  // the first one is gone
    cuda_check(cudaHostUnregister(const_cast<std::byte*>(bytes.data())));
  }
  SECTION("a piece is registered when it is asked for") {
    RegisteredMapping mapping(device(), {bytes}, {.piece_bytes = 4 * MiB, .n_threads = 0, .read_only = true});
    REQUIRE(mapping.wait_until(bytes.data() + 9 * MiB, 4 * MiB));
    REQUIRE(mapping.registered_bytes() == 8 * MiB);
    REQUIRE(mapping.covers(bytes.data() + 8 * MiB, 8 * MiB));
    REQUIRE_FALSE(mapping.covers(bytes.data() + 7 * MiB, 2 * MiB));
  }
  SECTION("what somebody else has registered stays as it is, and says why; the rest is registered") {
    void* const theirs = const_cast<std::byte*>(bytes.data()) + 8 * MiB;
    cuda_check(cudaHostRegister(theirs, 4 * MiB, cudaHostRegisterPortable | cudaHostRegisterReadOnly));
    REQUIRE(error_of([&] { RegisteredRange const ours(theirs, 4 * MiB, true); }).code == Errc::precondition);
    RegisteredMapping mapping(device(), {bytes}, {.piece_bytes = 4 * MiB, .n_threads = 1, .read_only = true});
    mapping.start();
    REQUIRE_FALSE(mapping.wait());
    INFO(mapping.first_error());
    REQUIRE_FALSE(mapping.failed());
    REQUIRE(mapping.covers(bytes.data(), 8 * MiB));
    REQUIRE_FALSE(mapping.covers(bytes.data() + 8 * MiB, 1));
    REQUIRE_FALSE(mapping.covers(bytes.data() + 7 * MiB, 2 * MiB));
    REQUIRE(mapping.covers(bytes.data() + 12 * MiB, bytes.size() - 12 * MiB));
    REQUIRE(mapping.first_error().find("cudaHostRegister") != std::string::npos);
    REQUIRE(mapping.first_error().find("4.00 MiB of 24.0 MiB") != std::string::npos);
    REQUIRE(cudaGetLastError() == cudaSuccess);
    cuda_check(cudaHostUnregister(theirs));
  }
  SECTION("two of one file: what the first registered stays when it goes") {
    auto const is_locked = [&](std::size_t at) {
      cudaPointerAttributes attributes{};
      cuda_check(cudaPointerGetAttributes(&attributes, bytes.data() + at));
      return attributes.type == cudaMemoryTypeHost;
    };
    std::optional<RegisteredMapping> first(std::in_place, device(), std::vector{bytes}, options),
        second(std::in_place, device(), std::vector{bytes}, options);
    first->start();
    second->start();  // at the same time
    REQUIRE(first->wait());
    REQUIRE(second->wait());
    INFO(second->first_error());
    first.reset();
    REQUIRE(second->covers(bytes.data(), bytes.size()));
    for (std::size_t at = 0; at < bytes.size(); at += 4 * MiB) REQUIRE(is_locked(at));
    std::optional<RegisteredMapping> third(std::in_place, device(), std::vector{bytes}, options);
    REQUIRE(third->wait());
    second.reset();
    for (std::size_t at = 0; at < bytes.size(); at += 4 * MiB) REQUIRE(is_locked(at));
    third.reset();
    REQUIRE_FALSE(is_locked(0));
  }
}

TEST_CASE("where the driver refuses a piece, it and the rest stay pageable", "[cuda][memory]") {
  if (!has_gpu() || !device().can_register_host_memory) return;
  constexpr std::size_t size = 24 * MiB;
  void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(at != MAP_FAILED);
  auto* const memory = static_cast<std::byte*>(at);
  std::memset(memory, 7, size);
  REQUIRE(::munmap(memory + 8 * MiB, 4 * MiB) == 0);  // a hole that no driver can lock
  {
    RegisteredMapping mapping(device(), {RegisteredMapping::Bytes(memory, size)},
                              {.piece_bytes = 4 * MiB, .n_threads = 0, .read_only = false});
    REQUIRE_FALSE(mapping.wait());
    INFO(mapping.first_error());
    REQUIRE(mapping.failed());
    REQUIRE(mapping.covers(memory, 8 * MiB));
    REQUIRE_FALSE(mapping.covers(memory + 8 * MiB, 1));
    REQUIRE_FALSE(mapping.covers(memory + 20 * MiB, 1));
    REQUIRE(mapping.first_error().find("cudaHostRegister") != std::string::npos);
    REQUIRE(mapping.first_error().find("8.00 MiB of 24.0 MiB") != std::string::npos);
    REQUIRE(cudaGetLastError() == cudaSuccess);
  }
  ::munmap(memory, size);
}
