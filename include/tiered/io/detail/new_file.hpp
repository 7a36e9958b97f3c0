/// Writes a file that is there whole or not at all.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/file.hpp"

namespace tiered::detail {

/// A file that appears under its name when it is complete and on the disk, in place of what was there, and never otherwise. Readable by its
/// owner only.
/// Errors  Errc::io with the path and the system's reason, of all that it does.
class NewFile {
 public:
  explicit NewFile(std::string const& path) : path_(path), temporary_(path + ".XXXXXX") {
    fd_ = ::mkstemp(temporary_.data());
    if (fd_ < 0) fail("cannot be created");
  }
  NewFile(NewFile const&) = delete;
  NewFile& operator=(NewFile const&) = delete;
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  void write(std::span<std::byte const> bytes) {
    if (buffer_.size() + bytes.size() > buffer_bytes) flush();
    if (bytes.size() >= buffer_bytes)
      put(bytes);
    else
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  void publish() {
    flush();
    if (::fsync(fd_) != 0) fail_to_write(0, n_written_);
    if (::close(std::exchange(fd_, -1)) != 0) fail_to_write(0, n_written_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be replaced");
    temporary_.clear();
  }

 private:
  static constexpr std::size_t buffer_bytes = std::size_t{1} << 20;

  [[noreturn]] void fail(std::string_view what) const {
    int const code = errno;
    throw Error(Errc::io, concat(path_, ": ", what, ": ", errno_text(code)));
  }
  [[noreturn]] void fail_to_write(std::uint64_t offset, std::uint64_t bytes) const {
    int const code = errno;
    throw Error(Errc::io, concat(path_, ": cannot be written: ", bytes, " bytes at offset ", offset, ": ", errno_text(code)));
  }
  void flush() {
    put(buffer_);
    buffer_.clear();
  }
  void put(std::span<std::byte const> bytes) {
    while (!bytes.empty()) {
      ::ssize_t const n = ::write(fd_, bytes.data(), std::min(bytes.size(), std::size_t{1} << 30));
      if (n >= 0) {
        bytes = bytes.subspan(std::size_t(n));
        n_written_ += std::uint64_t(n);
      } else if (errno != EINTR) {
        fail_to_write(n_written_, bytes.size());
      }
    }
  }

  std::string path_, temporary_;
  int fd_ = -1;
  std::uint64_t n_written_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace tiered::detail
