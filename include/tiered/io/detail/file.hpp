/// A regular file opened for reading: errors that say what is wrong, and reads that are whole or an Error.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace tiered::detail {

inline std::string errno_text(int code) { return std::generic_category().message(code); }

class FileHandle {
 public:
  /// Errors  not_found; io for a directory, a device, or what the system refuses (with its reason); bad_file for an empty file.
  static FileHandle open(std::string path) {
    FileHandle file;
    file.path_ = std::move(path);
    // O_NONBLOCK: opening a FIFO must not hang; regular files ignore it.
    do file.fd_ = ::open(file.path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    while (file.fd_ < 0 && errno == EINTR);
    if (file.fd_ < 0) {
      int const code = errno;
      if (code == ENOENT || code == ENOTDIR) throw Error(Errc::not_found, concat(file.path_, ": no such file"));
      throw Error(Errc::io, concat(file.path_, ": cannot be opened: ", errno_text(code)));
    }
    struct ::stat status {};
    if (::fstat(file.fd_, &status) != 0) throw Error(Errc::io, concat(file.path_, ": ", errno_text(errno)));
    if (S_ISDIR(status.st_mode)) throw Error(Errc::io, concat(file.path_, ": is a directory, not a file"));
    if (!S_ISREG(status.st_mode)) throw Error(Errc::io, concat(file.path_, ": is not a regular file"));
    if (status.st_size == 0) throw Error(Errc::bad_file, concat(file.path_, ": is empty (0 bytes)"));
    file.size_ = std::uint64_t(status.st_size);
    return file;
  }
  FileHandle(FileHandle&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(std::exchange(other.size_, 0)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    path_.swap(other.path_);
    std::swap(fd_, other.fd_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~FileHandle() {
    if (fd_ >= 0) ::close(fd_);
  }

  std::string const& path() const { return path_; }
  int descriptor() const { return fd_; }
  /// When it was opened.
  std::uint64_t size_bytes() const { return size_; }
  /// Now.
  std::uint64_t current_size_bytes() const {
    struct ::stat status {};
    if (::fstat(fd_, &status) != 0) throw Error(Errc::io, concat(path_, ": ", errno_text(errno)));
    return std::uint64_t(status.st_size);
  }

  /// Fills `dst` from `offset`. Errc::io with the numbers where the range is not in the file or the system fails. Any thread.
  void read_at(std::uint64_t offset, std::span<std::byte> dst) const {
    check_range(offset, dst.size());
    std::size_t done = 0;
    while (done < dst.size()) {
      // Linux reads at most 0x7ffff000 bytes a call.
      std::size_t const want = (std::min)(dst.size() - done, std::size_t{1} << 30);
      ::ssize_t const got = ::pread(fd_, dst.data() + done, want, ::off_t(offset + done));
      if (got > 0) {
        done += std::size_t(got);
      } else if (got == 0) {
        throw Error(Errc::io, concat(path_, ": read ", done, " of ", dst.size(), " bytes at offset ", offset, ": the file had ", size_,
                                     " bytes when it was opened and was cut since"));
      } else if (errno != EINTR) {
        throw Error(Errc::io, concat(path_, ": reading ", dst.size(), " bytes at offset ", offset, ": ", errno_text(errno)));
      }
    }
  }
  void check_range(std::uint64_t offset, std::uint64_t bytes) const {
    if (offset > size_ || bytes > size_ - offset) {
      throw Error(Errc::io, concat(path_, ": ", bytes, " bytes at offset ", offset, " are not in a file of ", size_, " bytes"));
    }
  }

 private:
  FileHandle() = default;
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace tiered::detail
