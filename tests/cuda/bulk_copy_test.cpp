/// Copying in the background: the same bytes to the same places from registered, pageable and partly registered mappings.
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "cuda/gpu.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/core/clock.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/core/units.hpp"
#include "tiered/io/source.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/registered.hpp"
#include "tiered/memory/cuda/stream_bulk_copy.hpp"

namespace {

using namespace tiered;
using tiered_test::DeviceArray;
using tiered_test::has_gpu;

CudaDevice bare_device() {
  CudaDevice device;
  int can_register = 0, can_read_only = 0;
  tiered_test::cuda_check(cudaSetDevice(0));
  tiered_test::cuda_check(cudaDeviceGetAttribute(&can_register, cudaDevAttrHostRegisterSupported, 0));
  tiered_test::cuda_check(cudaDeviceGetAttribute(&can_read_only, cudaDevAttrHostRegisterReadOnlySupported, 0));
  device.can_register_host_memory = can_register != 0;
  device.can_register_read_only = can_read_only != 0;
  return device;
}

std::vector<std::byte> random_bytes(std::size_t n, std::uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = std::byte(random.below(256));
  return bytes;
}

/// Rows as of experts, tensor by tensor in the file and side by side in VRAM, and odd pieces behind them.
std::vector<CopyPiece> pieces_of(std::span<std::byte const> file, std::byte* vram, std::vector<std::byte>& expected) {
  constexpr std::size_t n_experts = 16, row = 200'003, slot = 3 * 200'192;
  std::vector<CopyPiece> pieces;
  for (std::size_t e = 0; e < n_experts; ++e) {
    for (std::size_t t = 0; t < 3; ++t) pieces.push_back({vram + e * slot + t * 200'192, file.data() + 77 + (t * n_experts + e) * row, row});
  }
  std::size_t const from = 77 + 3 * n_experts * row, to = n_experts * slot;
  pieces.push_back({vram + to, file.data() + from, 5 * MiB + 1});
  pieces.push_back({vram + to + 6 * MiB, file.data() + from + 5 * MiB + 11, 13});
  pieces.push_back({vram + to + 7 * MiB, file.data() + from + 6 * MiB, 0});
  for (CopyPiece const& p : pieces) std::copy(p.src, p.src + p.bytes, expected.begin() + (p.dst - vram));
  return pieces;
}

}  // namespace

TEST_CASE("a background copy brings what it was given, from memory that is registered meanwhile or never", "[cuda][memory]") {
  if (!has_gpu()) return;
  CudaDevice const device = bare_device();
  tiered_test::TempDir const folder;
  MmapFile const file = MmapFile::open(folder.write("weights", random_bytes(17 * MiB, 5)));
  std::span<std::byte const> const bytes = file.bytes();
  for (int const how : {0, 1, 2, 3}) {  // all registered, none, a part, no mapping at all
    for (bool const merges : {true, false}) {
      for (std::size_t const batch : {std::size_t{100'000}, 1 * MiB, 64 * MiB}) {
        INFO("how " << how << ", merges " << merges << ", batches of " << batch);
        DeviceArray<std::byte> vram(20 * MiB);
        std::vector<std::byte> expected(vram.size(), std::byte{0xff});
        std::vector<CopyPiece> const pieces = pieces_of(bytes, vram.data(), expected);
        CudaDevice of = device;
        if (how == 1) of.can_register_host_memory = false;
        std::vector<RegisteredMapping::Bytes> ranges{bytes};
        if (how == 2) ranges = {bytes.subspan(3 * MiB, 5 * MiB)};
        RegisteredMapping mapping(of, ranges, {.piece_bytes = 1 * MiB, .n_threads = 2, .read_only = true});
        StreamBulkCopy bulk(0, how == 3 ? nullptr : &mapping, {.batch_bytes = batch, .merges = merges});
        if (how != 3) mapping.start();
        for (int round = 0; round < 2; ++round) {
          bulk.start(pieces);
          bulk.wait();
          tiered_test::cuda_check(cudaDeviceSynchronize());
          REQUIRE(vram.download() == expected);
        }
        CHECK(bulk.times().second >= bulk.times().first);
        CHECK(bulk.times().second <= steady_seconds());
      }
    }
  }
}

TEST_CASE("merged, experts are a few calls in place of one for each of their matrices", "[cuda][memory]") {
  if (!has_gpu()) return;
  CudaDevice const device = bare_device();
  if (!device.can_register_host_memory || !device.can_register_read_only) return;
  tiered_test::TempDir const folder;
  MmapFile const file = MmapFile::open(folder.write("weights", random_bytes(17 * MiB, 6)));
  DeviceArray<std::byte> vram(20 * MiB);
  std::vector<std::byte> expected(vram.size(), std::byte{0xff});
  std::vector<CopyPiece> const pieces = pieces_of(file.bytes(), vram.data(), expected);
  RegisteredMapping mapping(device, {file.bytes()}, {.piece_bytes = 64 * MiB, .n_threads = 1, .read_only = true});
  for (bool const merges : {true, false}) {
    StreamBulkCopy bulk(0, &mapping, {.batch_bytes = 64 * MiB, .merges = merges});
    bulk.start(pieces);
    bulk.wait();
    CHECK(bulk.n_calls() == (merges ? 5 : 50));
  }
}

TEST_CASE("a background copy is cancelled, and one that fails says so", "[cuda][memory]") {
  if (!has_gpu()) return;
  std::vector<std::byte> const source = random_bytes(8 * MiB, 7);
  DeviceArray<std::byte> vram(8 * MiB);
  {
    StreamBulkCopy bulk(0, nullptr, {.batch_bytes = 64 * KiB});
    bulk.start({{vram.data(), source.data(), source.size()}});
    bulk.cancel();
    bulk.start({{vram.data(), source.data(), source.size()}});
    CHECK(tiered_test::error_of([&] { bulk.start({}); }).code == Errc::precondition);
    bulk.wait();
    REQUIRE(vram.download() == source);
    bulk.start({{vram.data(), source.data(), source.size()}});
  }  // its owner goes before it is done
  StreamBulkCopy bulk(0);
  std::byte nowhere{};
  bulk.start({{&nowhere, source.data(), 4 * MiB}});  // no memory of the device
  CHECK(tiered_test::error_of([&] { bulk.wait(); }).code == Errc::device);
  bulk.start({{vram.data(), source.data(), source.size()}});
  bulk.wait();
}
