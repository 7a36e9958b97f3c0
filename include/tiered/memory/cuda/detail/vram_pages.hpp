/// Addresses on a device, and the physical memory behind their beginning.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/detail/driver.hpp"

namespace tiered::detail {

/// Reserves addresses for all of the device's memory once, and maps physical memory from the first address on, piece by piece, so that
/// the end can be given back and mapped anew. Without virtual memory: one cudaMalloc. Zero bytes are mapped at first. One thread.
class VramPages {
 public:
  /// Mapping is one call of the driver for each piece, and giving back goes by whole pieces.
  static constexpr std::size_t piece_bytes = 64 * MiB;

  VramPages(int device, std::size_t device_bytes, bool is_virtual) : device_(device), is_virtual_(is_virtual) {
    if (!is_virtual_) return;
    VirtualMemoryDriver const& driver = VirtualMemoryDriver::get();
    CUmemAllocationProp const what = properties();
    driver_check(driver.granularity(&granularity_, &what, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "cuMemGetAllocationGranularity");
    expects(granularity_ != 0 && piece_bytes % granularity_ == 0, "vram: the device's granularity does not divide 64 MiB");
    reserved_bytes_ = rounded(device_bytes, piece_bytes) + piece_bytes;  // one more, to begin at a multiple of a piece
    driver_check(driver.reserve(&reserved_, reserved_bytes_, 0, 0, 0), "cuMemAddressReserve",
                 concat(format_bytes(reserved_bytes_), " of addresses"));
    base_ = CUdeviceptr(rounded(std::size_t(reserved_), piece_bytes));
  }
  VramPages(VramPages const&) = delete;
  VramPages& operator=(VramPages const&) = delete;
  ~VramPages() {
    shrink(0);
    if (reserved_ != 0) VirtualMemoryDriver::get().free_addresses(reserved_, reserved_bytes_);
  }

  /// Where the memory begins; with virtual memory it never changes.
  std::byte* base() const { return reinterpret_cast<std::byte*>(base_); }
  std::size_t bytes() const { return bytes_; }
  bool is_virtual() const { return is_virtual_; }
  /// Physical memory that `bytes` take.
  std::size_t rounded(std::size_t bytes) const { return rounded(bytes, granularity_); }
  /// The least that can stay mapped while the first `live_bytes` are in use: the piece that they end in stays whole.
  std::size_t least_bytes(std::size_t live_bytes) const {
    std::size_t end = 0;
    for (std::size_t const piece : pieces_) {
      if (end >= live_bytes) break;
      end += piece;
    }
    return end;
  }

  /// Maps up to `bytes`, rounded up; less than is mapped changes nothing. Errc::out_of_memory with the numbers, nothing changed.
  void grow(std::size_t bytes) {
    std::size_t const before = bytes_, end = rounded(bytes);
    if (end < bytes || (is_virtual_ && end > reserved_bytes_ - piece_bytes)) no_room(bytes, cudaErrorMemoryAllocation, "reserving");
    if (end <= before) return;
    if (!is_virtual_) return allocate_whole(end);
    UseDevice const use(device_);
    std::size_t const n_before = pieces_.size();
    try {
      while (bytes_ < end) map_piece(std::min(end - bytes_, piece_bytes - bytes_ % piece_bytes), bytes);
      CUmemAccessDesc access{};
      access.location = properties().location;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      driver_check(VirtualMemoryDriver::get().set_access(base_ + before, end - before, &access, 1), "cuMemSetAccess");
    } catch (...) {
      while (pieces_.size() > n_before) unmap_last();
      throw;
    }
  }
  /// Gives back what lies beyond `bytes`, rounded up: whole pieces, then as much of the last as a smaller piece leaves, whose contents
  /// are lost; see least_bytes(). May give back more than that where the device refuses the smaller piece: bytes() says.
  void shrink(std::size_t bytes) noexcept {
    std::size_t const end = rounded(bytes);
    if (bytes_ <= end) return;
    if (!is_virtual_) {
      if (end != 0) return;
      static_cast<void>(cudaFree(base()));
      base_ = 0;
      bytes_ = 0;
      return;
    }
    while (bytes_ > end) unmap_last();
    if (bytes_ == end) return;
    try {
      grow(end);
    } catch (...) {
    }
  }

 private:
  static std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

  CUmemAllocationProp properties() const {
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    what.location.id = device_;
    return what;
  }
  void map_piece(std::size_t piece, std::size_t wanted) {
    VirtualMemoryDriver const& driver = VirtualMemoryDriver::get();
    CUmemAllocationProp const what = properties();
    CUmemGenericAllocationHandle memory{};
    pieces_.reserve(pieces_.size() + 1);  // or a piece could be mapped and not known
    if (CUresult const status = driver.create(&memory, piece, &what, 0); status != CUDA_SUCCESS)
      no_room(wanted, runtime_status(status), "cuMemCreate");
    CUresult const status = driver.map(base_ + bytes_, piece, 0, memory, 0);
    driver.release(memory);  // the mapping keeps it
    driver_check(status, "cuMemMap");
    pieces_.push_back(piece);
    bytes_ += piece;
  }
  void unmap_last() noexcept {
    bytes_ -= pieces_.back();
    VirtualMemoryDriver::get().unmap(base_ + bytes_, pieces_.back());  // fails with a device that is lost only
    pieces_.pop_back();
  }
  void allocate_whole(std::size_t bytes) {
    expects(bytes_ == 0, "vram: memory that was allocated as a whole does not grow");
    UseDevice const use(device_);
    void* data = nullptr;
    if (cudaError_t const status = cudaMalloc(&data, bytes); status != cudaSuccess) no_room(bytes, status, "cudaMalloc");
    base_ = reinterpret_cast<CUdeviceptr>(data);
    bytes_ = bytes;
  }
  [[noreturn]] void no_room(std::size_t bytes, cudaError_t status, char const* call) const {
    static_cast<void>(cudaGetLastError());
    std::string numbers =
        concat("an arena of ", format_bytes(bytes), " (", bytes, " bytes), of which ", format_bytes(bytes_), " are mapped");
    if (!is_fatal(status)) {
      auto const [free, total] = free_and_total_bytes(device_);
      numbers += concat("; ", format_bytes(free), " of ", format_bytes(total), " are free on the device");
    }
    cuda_check(status, call, numbers);
    throw Error(Errc::device, call);
  }

  int device_;
  bool is_virtual_;
  std::size_t granularity_ = 2 * MiB;
  CUdeviceptr reserved_ = 0, base_ = 0;
  std::size_t reserved_bytes_ = 0, bytes_ = 0;
  std::vector<std::size_t> pieces_;
};

}  // namespace tiered::detail
