/// Where the bytes of a file come from: the ByteSource concept, a file mapping and a piece of memory.
#pragma once

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/file.hpp"

namespace tiered {

/// | expression               | result   | meaning, errors, threads                                                        |
/// |--------------------------|----------|---------------------------------------------------------------------------------|
/// | `s.size_bytes()`         | uint64_t | fixed when the source was opened                                                |
/// | `s.read_at(offset, dst)` | void     | fills all of dst or throws Errc::io; never partial success; any thread, any time |
template <class S>
concept ByteSource = requires(S const& s, std::uint64_t offset, std::span<std::byte> dst) {
  { s.size_bytes() } -> std::same_as<std::uint64_t>;
  { s.read_at(offset, dst) } -> std::same_as<void>;
};

/// A whole file mapped read-only and shared: its bytes are the page cache, nothing is copied, several processes share them.
///
/// If another process cuts the file after it was opened, read_at() throws, but touching bytes() past the new end raises SIGBUS, as
/// with every mapping. GgufFile therefore reads headers through read_at(). For weights, current_size_bytes() tells before a load;
/// whoever cannot trust the file's owner copies by read_at() or PreadSource instead.
class MmapFile {
 public:
  /// Errors  not_found; io for a directory, a device, or what the system refuses (with its reason); bad_file for an empty file.
  static MmapFile open(std::string path) { return MmapFile(detail::FileHandle::open(std::move(path))); }
  MmapFile(MmapFile&& other) noexcept
      : file_(std::move(other.file_)), data_(std::exchange(other.data_, nullptr)), huge_pages_(other.huge_pages_) {}
  MmapFile& operator=(MmapFile&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(data_, other.data_);
    std::swap(huge_pages_, other.huge_pages_);
    return *this;
  }
  ~MmapFile() {
    if (data_ != nullptr) ::munmap(data_, std::size_t(file_.size_bytes()));
  }

  /// Page-aligned; empty after a move.
  std::span<std::byte const> bytes() const { return {static_cast<std::byte const*>(data_), std::size_t(file_.size_bytes())}; }
  std::uint64_t size_bytes() const { return file_.size_bytes(); }
  std::uint64_t current_size_bytes() const { return file_.current_size_bytes(); }
  std::string const& path() const { return file_.path(); }
  /// By pread, not through the mapping: a file that was cut gives an Error.
  void read_at(std::uint64_t offset, std::span<std::byte> dst) const { file_.read_at(offset, dst); }

  /// The part of bytes() is in memory, and in this process's page tables, when it returns. Starts at a page. Any thread.
  /// Errors  io where the file was cut since it was opened or the storage fails; but SIGBUS from a system older than Linux 5.14, or
  ///         that has no resources for the call however often it is asked.
  void page_in(std::span<std::byte const> part) const {
    if (part.empty()) return;
    if (!huge_pages_) advise_willneed(part);  // else read-ahead is 2 MiB anyway, and this would fill the cache with small pages
    constexpr int populate_read = 22;         // MADV_POPULATE_READ of Linux 5.14
    constexpr int max_tries = 100;
    for (int n_tries = 1; ::madvise(const_cast<std::byte*>(part.data()), part.size(), populate_read) != 0; ++n_tries) {
      int const code = errno;
      bool const for_now = code == EINTR || code == EAGAIN;
      if (for_now && n_tries < max_tries) continue;
      if (for_now || code == EINVAL) return touch_pages(part);
      std::uint64_t const offset = std::uint64_t(part.data() - bytes().data());
      throw Error(Errc::io, concat(path(), ": ", part.size(), " bytes at offset ", offset, " cannot be read through the mapping (",
                                   detail::errno_text(code), "); the file has ", current_size_bytes(), " bytes, it had ", size_bytes(),
                                   " when it was opened"));
    }
  }
  /// The system need not keep in its cache what read_at() read; what is mapped and in use stays.
  void advise_read_once(std::uint64_t offset, std::size_t bytes) const {
    ::posix_fadvise(file_.descriptor(), ::off_t(offset), ::off_t(bytes), POSIX_FADV_DONTNEED);
  }

  /// Starts reading a part of bytes() into the page cache; does not wait and cannot fail.
  void advise_willneed(std::span<std::byte const> part) const {
    std::byte const* const begin = static_cast<std::byte const*>(data_);
    if (part.empty() || part.data() < begin || part.data() + part.size() > begin + size_bytes()) return;
    auto const page = std::size_t(::sysconf(_SC_PAGESIZE));
    std::size_t const first = std::size_t(part.data() - begin) / page * page;
    ::madvise(static_cast<std::byte*>(data_) + first, std::size_t(part.data() - begin) + part.size() - first, MADV_WILLNEED);
  }

 private:
  static void touch_pages(std::span<std::byte const> part) {
    for (std::size_t i = 0; i < part.size(); i += 4096) static_cast<void>(*static_cast<std::byte const volatile*>(part.data() + i));
  }
  explicit MmapFile(detail::FileHandle file) : file_(std::move(file)) {
    if (file_.size_bytes() > (std::numeric_limits<std::size_t>::max)()) {
      throw Error(Errc::io, concat(path(), ": ", size_bytes(), " bytes do not fit the address space"));
    }
    void* const mapped = ::mmap(nullptr, std::size_t(size_bytes()), PROT_READ, MAP_SHARED, file_.descriptor(), 0);
    if (mapped == MAP_FAILED) {
      int const reason = errno;
      throw Error(reason == ENOMEM ? Errc::out_of_memory : Errc::io,
                  concat(path(), ": ", size_bytes(), " bytes cannot be mapped: ", detail::errno_text(reason)));
    }
    data_ = mapped;
#if defined(MADV_HUGEPAGE)
    // Read-ahead then takes 2 MiB at a time, and puts them in one page where the file system can (ext4 of Linux 6.16, XFS, tmpfs with
    // huge=advise). Of 512 MiB on ext4, 508 were mapped in huge pages, and mapping what was cached took 256 faults.
    huge_pages_ = ::madvise(data_, std::size_t(size_bytes()), MADV_HUGEPAGE) == 0;
#endif
  }
  detail::FileHandle file_;
  void* data_ = nullptr;
  bool huge_pages_ = false;  // whether they were asked for; what was in the page cache before keeps its size
};
static_assert(ByteSource<MmapFile>);

/// Bytes in memory, borrowed: they must outlive the source.
class MemorySource {
 public:
  explicit MemorySource(std::span<std::byte const> bytes) : bytes_(bytes) {}
  std::span<std::byte const> bytes() const { return bytes_; }
  std::uint64_t size_bytes() const { return bytes_.size(); }
  void read_at(std::uint64_t offset, std::span<std::byte> dst) const {
    if (offset > bytes_.size() || dst.size() > bytes_.size() - offset) {
      throw Error(Errc::io, concat("memory: ", dst.size(), " bytes at offset ", offset, " are not in ", bytes_.size(), " bytes"));
    }
    std::copy_n(bytes_.data() + offset, dst.size(), dst.data());
  }

 private:
  std::span<std::byte const> bytes_;
};
static_assert(ByteSource<MemorySource>);

}  // namespace tiered
