/// Defines save_session and load_session: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/detail/checksum.hpp"
#include "tiered/engine/detail/media_check.hpp"
#include "tiered/engine/session.hpp"
#include "tiered/io/detail/file.hpp"
#include "tiered/io/detail/new_file.hpp"
#include "tiered/vision/media_span.hpp"

namespace tiered::detail {

/// What stands at the begin of a session, little-endian. Behind it n_tokens ids of 4 bytes, the KV as EngineCore::export_kv() hands
/// it out, and the Checksum of everything before it. Where rows have rotary positions of their own, as with images, the version is 4, and
/// between ids and KV stand the number of MediaSpans, of 8 bytes, they, and all RopeShifts of the sequence. (Versions 2 and 3 had shifts
/// that did not tell where a row lies behind a long video; they are not read.)
struct SessionHeader {
  static constexpr std::array<char, 8> right_magic{'t', 'i', 'e', 'r', 'e', 'd', 'K', 'V'};
  static constexpr std::uint32_t text = 1, with_positions = 4;

  std::array<char, 8> magic = right_magic;
  std::uint32_t version = text, n_tokens = 0;
  std::uint64_t fingerprint = 0;  ///< EngineCore::fingerprint()
  std::uint32_t kv_type = 0, page_tokens = kv_page_tokens;
  std::uint64_t kv_bytes = 0;
};
static_assert(std::has_unique_object_representations_v<SessionHeader> && sizeof(SessionHeader) == 40);
static_assert(std::has_unique_object_representations_v<RopeShift> && sizeof(RopeShift) == 8);
static_assert(std::has_unique_object_representations_v<MediaSpan> && sizeof(MediaSpan) == 48);

/// What a session has between its ids and its KV.
struct SessionLists {
  std::uint64_t n_media = 0, n_shifts = 0;
};
/// Of a file of that size.  Errors  bad_file where no such lists fill what header, ids, KV and checksum leave.
inline SessionLists lists_of(SessionHeader const& h, FileHandle const& file) {
  std::uint64_t const size = file.size_bytes(), ids = h.n_tokens * std::uint64_t{4}, fixed = sizeof h + ids + sizeof(std::uint64_t);
  bool fits = h.kv_bytes <= size && fixed <= size - h.kv_bytes;
  std::uint64_t rest = fits ? size - h.kv_bytes - fixed : 0;
  SessionLists lists;
  if (fits && h.version == SessionHeader::with_positions) {
    fits = rest >= sizeof lists.n_media;
    if (fits) file.read_at(sizeof h + ids, std::as_writable_bytes(std::span(&lists.n_media, 1)));
    rest -= fits ? sizeof lists.n_media : 0;
    fits = fits && rest > 0 && lists.n_media <= h.n_tokens && lists.n_media * sizeof(MediaSpan) <= rest;
    rest -= fits ? lists.n_media * sizeof(MediaSpan) : 0;
    lists.n_shifts = rest / sizeof(RopeShift);
    rest %= sizeof(RopeShift);
  }
  if (!fits || rest > 0 || lists.n_shifts > h.n_tokens) {
    throw Error(Errc::bad_file, concat(file.path(), ": is damaged or was cut: it has ", size, " bytes, which ", h.n_tokens, " tokens and ",
                                       h.kv_bytes, " bytes of KV do not fill"));
  }
  return lists;
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

/// Writes a session from the front, summing up.
class SessionWriter {
 public:
  explicit SessionWriter(std::string const& path) : file_(path) {}
  void write(std::span<std::byte const> bytes) {
    sum_.add(bytes);
    file_.write(bytes);
  }
  /// With the checksum of all that was written.
  void publish() {
    std::uint64_t const sum = sum_.value();
    file_.write(std::as_bytes(std::span(&sum, 1)));
    file_.publish();
  }

 private:
  NewFile file_;
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
  if (h.version != SessionHeader::text && h.version != SessionHeader::with_positions) {
    bad("is a session of version ", h.version, "; versions ", SessionHeader::text, " and ", SessionHeader::with_positions, " can be read");
  }
  lists_of(h, file);
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
  std::vector<MediaSpan> const media = conversation.media();
  bool const has_lists = !shifts.empty() || !media.empty();
  if (has_lists) h.version = SessionHeader::with_positions;
  h.n_tokens = std::uint32_t(conversation.length());
  h.fingerprint = core.fingerprint();
  h.kv_type = std::uint32_t(core.kv_type());
  h.kv_bytes = core.kv_bytes(conversation.length());
  std::uint64_t const n_media = media.size(), lists = shifts.size_bytes() + n_media * sizeof(MediaSpan) + sizeof n_media;
  within_memory(path, sizeof h + conversation.tokens().size_bytes() + lists + h.kv_bytes + sizeof(std::uint64_t), [&] {
    SessionWriter file(path);
    file.write(std::as_bytes(std::span(&h, 1)));
    file.write(std::as_bytes(conversation.tokens()));
    if (has_lists) file.write(std::as_bytes(std::span(&n_media, 1)));
    file.write(std::as_bytes(std::span(media)));
    file.write(std::as_bytes(shifts));
    core.export_kv(conversation.sequence(), [&](std::span<std::byte const> bytes) { file.write(bytes); });
    file.publish();
  });
}

/// Errors  bad_file for shifts that cannot be.
inline void check_shifts(EngineCore const& core, std::string const& path, std::span<RopeShift const> shifts, std::size_t n_tokens) {
  if (!shifts.empty() && core.config().n_position_rows() == 1)
    throw Error(Errc::bad_file, concat(path, ": rotary positions of their own, which rows of this model do not have"));
  std::int64_t last = -1;
  for (std::size_t i = 0; i < shifts.size(); ++i) {
    RopeShift const s = shifts[i];
    std::int64_t const end = i + 1 < shifts.size() ? shifts[i + 1].from : std::int64_t(n_tokens);
    bool const makes_sense = s.from > std::exchange(last, s.from) && s.from < std::int64_t(n_tokens) && std::int64_t(s.from) + s.by >= 0 &&
                             end + s.by <= rope_position_end;
    if (!makes_sense) throw Error(Errc::bad_file, concat(path, ": rotary positions move by ", s.by, " at position ", s.from));
  }
}
/// Errors  bad_file for media that cannot be.
inline void check_session_media(std::string const& path, std::span<MediaSpan const> media, std::size_t n_tokens) {
  try {
    check_media(media, n_tokens);
  } catch (Error const& e) {
    throw Error(Errc::bad_file, concat(path, ": ", e.what()));
  }
}

inline void load_from(EngineCore& core, FileHandle const& file, Conversation& into) {
  SessionHeader const expected = check_session(core, file);
  SessionLists const lists = lists_of(expected, file);
  SessionReader reader(file);
  SessionHeader h;
  reader.read(std::as_writable_bytes(std::span(&h, 1)));
  std::vector<std::int32_t> tokens(expected.n_tokens);
  reader.read(std::as_writable_bytes(std::span(tokens)));
  for (std::int32_t token : tokens) {
    if (token < 0 || token >= core.config().vocab_size)
      throw Error(Errc::bad_file, concat(file.path(), ": token ", token, " is outside of a vocabulary of ", core.config().vocab_size));
  }
  std::uint64_t n_media = 0;
  if (expected.version == SessionHeader::with_positions) reader.read(std::as_writable_bytes(std::span(&n_media, 1)));
  std::vector<MediaSpan> media(lists.n_media);
  reader.read(std::as_writable_bytes(std::span(media)));
  std::vector<RopeShift> shifts(lists.n_shifts);
  reader.read(std::as_writable_bytes(std::span(shifts)));
  check_session_media(file.path(), media, tokens.size());
  check_shifts(core, file.path(), shifts, tokens.size());
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
  into = Conversation(std::move(sequence), std::move(tokens), std::move(media));
}

void load_session(EngineCore& core, std::string const& path, Conversation& into) {
  expects(core.owns(into.sequence()), "the conversation belongs to another engine");
  FileHandle const file = FileHandle::open(path);
  within_memory(path, file.size_bytes(), [&] { load_from(core, file, into); });
}

}  // namespace tiered::detail
