/// Defines save_session and load_session: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <unistd.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/detail/checksum.hpp"
#include "tiered/engine/session.hpp"
#include "tiered/io/detail/file.hpp"

namespace tiered::detail {

/// What stands at the begin of a session, little-endian. Behind it n_tokens ids of 4 bytes, the KV as EngineCore::export_kv() hands
/// it out, and the Checksum of everything before it. Between ids and KV all RopeShifts of the sequence, if it has any; the version is 2
/// then, so that nobody who does not know them reads it.
struct SessionHeader {
  static constexpr std::array<char, 8> right_magic{'t', 'i', 'e', 'r', 'e', 'd', 'K', 'V'};
  static constexpr std::uint32_t without_shifts = 1, newest = 2;

  std::array<char, 8> magic = right_magic;
  std::uint32_t version = without_shifts, n_tokens = 0;
  std::uint64_t fingerprint = 0;  ///< EngineCore::fingerprint()
  std::uint32_t kv_type = 0, page_tokens = kv_page_tokens;
  std::uint64_t kv_bytes = 0;
};
static_assert(std::has_unique_object_representations_v<SessionHeader> && sizeof(SessionHeader) == 40);
static_assert(std::has_unique_object_representations_v<RopeShift> && sizeof(RopeShift) == 8);

/// What a file of that size has besides header, ids, KV and checksum.
inline std::uint64_t shift_bytes(SessionHeader const& h, std::uint64_t file_bytes) {
  return file_bytes - sizeof h - h.n_tokens * std::uint64_t{4} - h.kv_bytes - sizeof(std::uint64_t);
}

inline std::string hex(std::uint64_t value) {
  char digits[16];
  return concat("0x", std::string_view(digits, std::size_t(std::to_chars(digits, digits + sizeof digits, value, 16).ptr - digits)));
}

/// Calls work(); what it cannot allocate is an Error with the size of the session.
template <class Work>
void within_memory(std::string const& path, std::uint64_t bytes, Work const& work) {
  try {
    work();
  } catch (std::bad_alloc const&) {
    throw Error(Errc::out_of_memory, concat(path, ": no host memory left for a session of ", bytes, " bytes"));
  }
}

/// A file that appears under its name when it is complete, and never otherwise.
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
    sum_.add(bytes);
    if (buffer_.size() + bytes.size() > buffer_bytes) flush();
    if (bytes.size() >= buffer_bytes)
      put(bytes);
    else
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  std::uint64_t checksum() const { return sum_.value(); }
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
  Checksum sum_;
};

/// Reads a session from the front, summing up.
class SessionReader {
 public:
  explicit SessionReader(FileHandle const& file) : file_(file) {}
  void read(std::span<std::byte> bytes) {
    file_.read_at(offset_, bytes);
    offset_ += bytes.size();
    sum_.add(bytes);
  }
  /// Of the last 8 bytes, against everything before them.
  void check_sum() {
    std::uint64_t const computed = sum_.value();
    std::uint64_t stored = 0;
    read(std::as_writable_bytes(std::span(&stored, 1)));
    if (stored != computed)
      throw Error(Errc::bad_file,
                  concat(file_.path(), ": is damaged: its checksum is ", hex(stored), ", that of its bytes ", hex(computed)));
  }

 private:
  FileHandle const& file_;
  std::uint64_t offset_ = 0;
  Checksum sum_;
};

inline void check_whole(FileHandle const& file) {
  SessionReader reader(file);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  for (std::uint64_t left = file.size_bytes() - sizeof(std::uint64_t); left > 0;) {
    std::span<std::byte> const part = std::span(piece).first(std::size_t(std::min<std::uint64_t>(left, piece.size())));
    reader.read(part);
    left -= part.size();
  }
  reader.check_sum();
}

/// The header of a file that is whole and fits the engine.
inline SessionHeader check_session(EngineCore const& core, FileHandle const& file) {
  auto const bad = [&](auto const&... what) { throw Error(Errc::bad_file, concat(file.path(), ": ", what...)); };
  SessionHeader h;
  std::uint64_t const size = file.size_bytes(), least = sizeof h + sizeof(std::uint64_t);
  if (size < least) bad("is no session, or was cut: it has ", size, " bytes, a session at least ", least);
  file.read_at(0, std::as_writable_bytes(std::span(&h, 1)));
  if (h.magic != SessionHeader::right_magic) bad("is no session");
  if (h.version < SessionHeader::without_shifts || h.version > SessionHeader::newest)
    bad("is a session of version ", h.version, "; versions up to ", SessionHeader::newest, " can be read");
  bool const too_short = h.kv_bytes > size || least + h.n_tokens * std::uint64_t{4} + h.kv_bytes > size;
  std::uint64_t const rest = too_short ? 0 : shift_bytes(h, size);
  bool const has_shifts = rest > 0 && rest % sizeof(RopeShift) == 0 && rest / sizeof(RopeShift) <= h.n_tokens;
  if (too_short || (h.version == SessionHeader::without_shifts ? rest != 0 : !has_shifts))
    bad("is damaged or was cut: it has ", size, " bytes, which ", h.n_tokens, " tokens and ", h.kv_bytes, " bytes of KV do not fill");
  check_whole(file);
  if (h.fingerprint != core.fingerprint())
    bad("is the session of another model, with the fingerprint ", hex(h.fingerprint), "; that of this model is ", hex(core.fingerprint()));
  if (h.kv_type != std::uint32_t(core.kv_type()))
    bad("has KV of type ", name(DType(h.kv_type)), ", the engine of type ", name(core.kv_type()));
  if (h.page_tokens != std::uint32_t(kv_page_tokens)) bad("has KV in pages of ", h.page_tokens, " tokens, the engine of ", kv_page_tokens);
  if (h.n_tokens > std::uint32_t(core.max_context()))
    throw Error(Errc::over_budget,
                concat(file.path(), ": a session of ", h.n_tokens, " tokens does not fit a context of ", core.max_context()));
  if (h.kv_bytes != core.kv_bytes(std::int32_t(h.n_tokens))) bad("has ", h.kv_bytes, " bytes of KV for ", h.n_tokens, " tokens");
  return h;
}

void save_session(EngineCore& core, Conversation const& conversation, std::string const& path) {
  SessionHeader h;
  std::span<RopeShift const> const shifts = core.rope_shifts(conversation.sequence());
  if (!shifts.empty()) h.version = SessionHeader::newest;
  h.n_tokens = std::uint32_t(conversation.length());
  h.fingerprint = core.fingerprint();
  h.kv_type = std::uint32_t(core.kv_type());
  h.kv_bytes = core.kv_bytes(conversation.length());
  within_memory(path, sizeof h + conversation.tokens().size_bytes() + shifts.size_bytes() + h.kv_bytes + sizeof(std::uint64_t), [&] {
    NewFile file(path);
    file.write(std::as_bytes(std::span(&h, 1)));
    file.write(std::as_bytes(conversation.tokens()));
    file.write(std::as_bytes(shifts));
    core.export_kv(conversation.sequence(), [&](std::span<std::byte const> bytes) { file.write(bytes); });
    std::uint64_t const sum = file.checksum();
    file.write(std::as_bytes(std::span(&sum, 1)));
    file.publish();
  });
}

inline void load_from(EngineCore& core, FileHandle const& file, Conversation& into) {
  SessionHeader const expected = check_session(core, file);
  SessionReader reader(file);
  SessionHeader h;
  reader.read(std::as_writable_bytes(std::span(&h, 1)));
  std::vector<std::int32_t> tokens(expected.n_tokens);
  reader.read(std::as_writable_bytes(std::span(tokens)));
  for (std::int32_t token : tokens) {
    if (token < 0 || token >= core.config().vocab_size)
      throw Error(Errc::bad_file, concat(file.path(), ": token ", token, " is outside of a vocabulary of ", core.config().vocab_size));
  }
  std::vector<RopeShift> shifts(shift_bytes(expected, file.size_bytes()) / sizeof(RopeShift));
  reader.read(std::as_writable_bytes(std::span(shifts)));
  if (!shifts.empty() && core.config().n_position_rows() == 1)
    throw Error(Errc::bad_file, concat(file.path(), ": rotary positions of their own, which rows of this model do not have"));
  for (std::int32_t last = 0; RopeShift const& s : shifts) {
    bool const makes_sense = s.from > std::exchange(last, s.from) && s.from <= std::int32_t(tokens.size()) &&
                             std::int64_t(s.from) + s.by > 0 && std::int64_t(s.from) + s.by <= rope_position_end;
    if (!makes_sense) throw Error(Errc::bad_file, concat(file.path(), ": rotary positions move by ", s.by, " at position ", s.from));
  }
  Sequence sequence = std::move(into).release();
  try {
    auto const read = [&](std::span<std::byte> bytes) { reader.read(bytes); };
    core.import_kv(sequence, std::int32_t(tokens.size()), read, shifts);
    reader.check_sum();  // again: these are the bytes that are used
  } catch (...) {
    sequence.truncate(0);
    into = Conversation(std::move(sequence));
    throw;
  }
  into = Conversation(std::move(sequence), std::move(tokens));
}

void load_session(EngineCore& core, std::string const& path, Conversation& into) {
  expects(core.owns(into.sequence()), "the conversation belongs to another engine");
  FileHandle const file = FileHandle::open(path);
  within_memory(path, file.size_bytes(), [&] { load_from(core, file, into); });
}

}  // namespace tiered::detail
