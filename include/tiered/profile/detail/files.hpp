/// Small files that programs keep for their next start: read whole, replaced whole.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include <sys/stat.h>
#include <unistd.h>

#include "tiered/core/text.hpp"

namespace tiered::detail {

/// Nothing where there is no such file.
inline std::optional<std::string> read_whole_file(std::string const& path) {
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return std::nullopt;
  std::string text;
  char block[1 << 14];
  constexpr std::size_t most = 16 << 20;  // nothing that is kept is that long
  for (std::size_t n = 0; text.size() < most && (n = std::fread(block, 1, sizeof block, file)) > 0;) text.append(block, n);
  std::fclose(file);
  return text;
}

/// Makes the folder and those above it; those that are there already are no error, nor what fails: opening a file in it will.
inline void make_folders(std::string const& folder) {
  for (std::size_t at = 1; at <= folder.size(); ++at) {
    if (at == folder.size() || folder[at] == '/') static_cast<void>(::mkdir(folder.substr(0, at).c_str(), 0777));
  }
}

/// In one go: who reads meanwhile sees the old file or the new one, whoever else replaces it, too: of several the last stays. Why not, or
/// nothing.
inline std::optional<std::string> replace_file(std::string const& path, std::string_view text) {
  std::string written;  // its address is no other thread's of this process
  written = concat(path, '.', ::getpid(), '.', reinterpret_cast<std::uintptr_t>(&written));
  std::FILE* const file = std::fopen(written.c_str(), "wb");
  if (file == nullptr) return std::string(std::strerror(errno));
  bool const whole = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  bool const closed = std::fclose(file) == 0;
  if (whole && closed && std::rename(written.c_str(), path.c_str()) == 0) return std::nullopt;
  std::string why = std::strerror(errno);
  static_cast<void>(std::remove(written.c_str()));
  return why;
}

}  // namespace tiered::detail
