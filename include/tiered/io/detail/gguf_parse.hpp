/// Reads the header of one GGUF file into checked plain data; every number is compared with the file's size before it is used.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/name_index.hpp"
#include "tiered/io/detail/printable.hpp"
#include "tiered/io/gguf_types.hpp"
#include "tiered/io/source.hpp"

namespace tiered::detail {

inline constexpr std::uint64_t gguf_default_alignment = 32, gguf_max_alignment = std::uint64_t{1} << 20;
inline constexpr std::uint64_t gguf_max_key_bytes = 65535;                      // the format's own limit
inline constexpr std::uint64_t gguf_max_tensor_name_bytes = 1024;               // the format says 64, which some files pass
inline constexpr std::uint64_t gguf_max_header_bytes = std::uint64_t{1} << 28;  // ten times the largest vocabulary seen
inline constexpr int gguf_max_array_depth = 8;

/// One file, or one part of a split file. Values and names point into `header`, so it may be moved but not changed.
struct GgufPart {
  std::string name;  ///< for messages: the path, or "memory"
  std::vector<std::byte> header;
  std::vector<GgufValue> metadata;
  NameIndex keys;                   ///< into metadata; no key is there twice
  std::vector<GgufTensor> tensors;  ///< `data` is still empty, file_offset and bytes are checked
  std::uint64_t size_bytes = 0, alignment = gguf_default_alignment;
  std::uint32_t version = 0;
};

constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) { return (value + alignment - 1) / alignment * alignment; }

/// Walks a header front to back over a private copy that grows as needed: a file cut by someone else meanwhile is an Error, no SIGBUS.
class HeaderReader {
 public:
  template <ByteSource Source>
  HeaderReader(Source const& source, std::string name)
      : name_(std::move(name)),
        source_(&source),
        size_(source.size_bytes()),
        read_([](void const* from, std::uint64_t offset, std::span<std::byte> dst) {
          static_cast<Source const*>(from)->read_at(offset, dst);
        }) {}

  std::uint64_t position() const { return position_; }
  std::uint64_t size_bytes() const { return size_; }
  std::uint64_t remaining() const { return size_ - position_; }
  std::string const& name() const { return name_; }

  /// Moves over `bytes` bytes, after checking that the file has them; returns where they begin.
  std::uint64_t skip(std::uint64_t bytes, char const* what) {
    if (bytes > remaining()) {
      fail(Errc::bad_file,
           concat("truncated or damaged: ", what, " at byte ", position_, " needs ", bytes, " bytes, the file ends at byte ", size_));
    }
    std::uint64_t const begin = position_;
    if (bytes > gguf_max_header_bytes || begin + bytes > gguf_max_header_bytes) {  // a damaged length must not read the weights
      fail(Errc::bad_file,
           concat("damaged: ", what, " at byte ", begin, " needs ", bytes, " bytes; a header has at most ", gguf_max_header_bytes));
    }
    position_ += bytes;
    if (position_ > buffer_.size()) grow();
    return begin;
  }
  template <class T>
  T read(char const* what) {
    return load<T>(at(skip(sizeof(T), what)));
  }
  /// A length-prefixed string: where its bytes begin, and how many.
  std::pair<std::uint64_t, std::uint64_t> read_string(char const* what) {
    auto const length = read<std::uint64_t>(what);
    return {skip(length, what), length};
  }
  std::byte const* at(std::uint64_t offset) const { return buffer_.data() + offset; }
  std::string_view text(std::uint64_t offset, std::uint64_t bytes) const {
    return {reinterpret_cast<char const*>(at(offset)), std::size_t(bytes)};
  }
  /// Bytes anywhere in the file.
  void peek(std::uint64_t offset, std::span<std::byte> dst) const { read_(source_, offset, dst); }
  /// The bytes walked so far; the reader is then empty.
  std::vector<std::byte> take() {
    buffer_.resize(std::size_t(position_));
    buffer_.shrink_to_fit();
    return std::move(buffer_);
  }
  [[noreturn]] void fail(Errc code, std::string const& message) const { throw Error(code, concat(name_, ": ", message)); }

 private:
  void grow() {
    std::size_t const have = buffer_.size();
    buffer_.resize(std::size_t((std::min)(size_, (std::max)({position_, std::uint64_t(have) * 2, std::uint64_t{1} << 16}))));
    read_(source_, have, std::span(buffer_).subspan(have));
  }

  std::string name_;
  void const* source_;
  std::uint64_t size_, position_ = 0;
  void (*read_)(void const*, std::uint64_t, std::span<std::byte>);
  std::vector<std::byte> buffer_;
};

// Offsets, not pointers: the reader's buffer moves while it grows.
struct RawValue {
  std::uint64_t key_at = 0, key_bytes = 0, value_at = 0;
  GgufType type{};
};
struct RawTensor {
  std::uint64_t name_at = 0, name_bytes = 0, offset = 0;
  GgufTensor tensor;
};
struct RawHeader {
  std::uint32_t version = 0;
  std::vector<RawValue> values;
  std::vector<RawTensor> tensors;
};

/// Says what a file that does not begin with "GGUF" may be instead.
inline std::string describe_magic(std::span<std::byte const> magic) {
  std::string_view const text(reinterpret_cast<char const*>(magic.data()), magic.size());
  std::string out = concat("is not a GGUF file: it begins with ", printable(text), ", not \"GGUF\"");
  if (text == "FUGG") out += " (a GGUF file with its bytes swapped)";
  if (text == "vers") out += " (a Git LFS pointer? fetch the file itself)";
  if (text == "lmgg" || text == "tjgg" || text == "fmgg" || text == "algg") {
    out += " (a format older than GGUF: convert it again from the original)";
  }
  if (text.substr(0, 2) == "PK") out += " (a zip archive: unpack it first)";
  return out;
}

/// Magic and version.
inline std::uint32_t read_preamble(HeaderReader& in) {
  std::array<std::byte, 4> magic{};
  std::size_t const have = std::size_t(std::min<std::uint64_t>(4, in.size_bytes()));
  if (have > 0) in.peek(0, std::span(magic).first(have));
  if (have < 4 || load<std::uint32_t>(magic.data()) != 0x46554747u) {
    if (have == 0) in.fail(Errc::bad_file, "is empty (0 bytes)");
    in.fail(Errc::bad_file, describe_magic(std::span(magic).first(have)));
  }
  in.skip(4, "magic");
  auto const version = in.read<std::uint32_t>("version");
  if (version != 0 && (version & 0xffff) == 0) {
    in.fail(Errc::unsupported, "is a big-endian GGUF file (version bytes are swapped); convert it to little-endian");
  }
  if (version < 2 || version > 3) in.fail(Errc::unsupported, concat("is GGUF version ", version, "; versions 2 and 3 are supported"));
  return version;
}

/// Moves over one value of metadata key `key`, checking all that depends on it.
inline void walk_value(HeaderReader& in, RawValue const& key, GgufType type, int depth) {
  auto const fail = [&](auto const&... parts) {
    in.fail(Errc::bad_file, concat("metadata key ", printable(in.text(key.key_at, key.key_bytes)), ' ', parts...));
  };
  auto const check_bools = [&](std::uint64_t at, std::uint64_t count) {
    for (std::uint64_t i = 0; i < count; ++i) {
      auto const value = load<std::uint8_t>(in.at(at + i));
      if (value > 1) fail("holds a bool of value ", value, " at byte ", at + i, "; only 0 and 1 are allowed");
    }
  };
  if (type == GgufType::string) {
    in.read_string("string value");
  } else if (type != GgufType::array) {
    std::uint64_t const at = in.skip(fixed_bytes(type), "value");
    if (type == GgufType::boolean) check_bools(at, 1);
  } else {
    auto const number = in.read<std::uint32_t>("array element type");
    auto const count = in.read<std::uint64_t>("array count");
    if (number > std::uint32_t(GgufType::f64)) fail("is an array of type ", number, ", which is no type of the format");
    if (depth >= gguf_max_array_depth) fail("nests arrays deeper than ", gguf_max_array_depth);
    auto const element = GgufType(number);
    std::uint64_t const fixed = fixed_bytes(element);
    std::uint64_t const least = fixed != 0 ? fixed : element == GgufType::string ? 8 : 12;
    if (count > in.remaining() / least) {
      fail("is an array of ", count, ' ', tiered::name(element), " at byte ", in.position(), ", but the file ends at byte ",
           in.size_bytes(), ": truncated or damaged");
    }
    if (fixed != 0) {
      std::uint64_t const at = in.skip(count * fixed, "array");
      if (element == GgufType::boolean) check_bools(at, count);
    } else {
      for (std::uint64_t i = 0; i < count; ++i) walk_value(in, key, element, depth + 1);
    }
  }
}

inline RawValue read_value(HeaderReader& in, std::uint64_t index) {
  RawValue value;
  std::uint64_t const begin = in.position();
  std::tie(value.key_at, value.key_bytes) = in.read_string("metadata key");
  if (value.key_bytes == 0 || value.key_bytes > gguf_max_key_bytes) {
    in.fail(Errc::bad_file, concat("metadata key ", index, " at byte ", begin, " has ", value.key_bytes, " bytes; 1 to ",
                                   gguf_max_key_bytes, " are allowed"));
  }
  auto const type = in.read<std::uint32_t>("metadata type");
  if (type > std::uint32_t(GgufType::f64)) {
    in.fail(Errc::bad_file, concat("metadata key ", printable(in.text(value.key_at, value.key_bytes)), " has type ", type,
                                   ", which is no type of the format"));
  }
  value.type = GgufType(type);
  value.value_at = in.position();
  walk_value(in, value, value.type, 0);
  return value;
}

/// Types that once had a number: files with them need to be made again.
constexpr char const* removed_type_name(std::uint32_t number) {
  switch (number) {
    case 4: return "q4_2";
    case 5: return "q4_3";
    case 31: return "q4_0_4_4";
    case 32: return "q4_0_4_8";
    case 33: return "q4_0_8_8";
    case 36: return "iq4_nl_4_4";
    case 37: return "iq4_nl_4_8";
    case 38: return "iq4_nl_8_8";
    default: return nullptr;
  }
}

inline RawTensor read_tensor(HeaderReader& in, std::uint64_t index) {
  RawTensor raw;
  GgufTensor& tensor = raw.tensor;
  std::uint64_t const begin = in.position();
  std::tie(raw.name_at, raw.name_bytes) = in.read_string("tensor name");
  if (raw.name_bytes == 0 || raw.name_bytes > gguf_max_tensor_name_bytes) {
    in.fail(Errc::bad_file, concat("the name of tensor ", index, " at byte ", begin, " has ", raw.name_bytes, " bytes; 1 to ",
                                   gguf_max_tensor_name_bytes, " are allowed"));
  }
  auto const fail = [&](Errc code, auto const&... parts) {
    in.fail(code, concat("tensor ", printable(in.text(raw.name_at, raw.name_bytes)), ' ', parts...));
  };
  auto const rank = in.read<std::uint32_t>("tensor rank");
  if (rank > std::uint32_t(Shape::max_rank)) fail(Errc::bad_file, "has rank ", rank, "; at most ", Shape::max_rank, " is allowed");
  tensor.shape.rank = int(rank);
  for (std::uint32_t i = 0; i < rank; ++i) {  // innermost first in the file
    auto const size = in.read<std::uint64_t>("tensor size");
    if (size == 0 || size > std::uint64_t((std::numeric_limits<std::int64_t>::max)())) {
      fail(Errc::bad_file, "has size ", size, " in dimension ", i);
    }
    tensor.shape.sizes[rank - 1 - i] = std::int64_t(size);
  }
  tensor.raw_type = in.read<std::uint32_t>("tensor type");
  tensor.dtype = DType(tensor.raw_type);
  DTypeInfo const info = dtype_info(tensor.dtype);
  if (char const* const removed = removed_type_name(tensor.raw_type)) {
    fail(Errc::unsupported, "has type ", removed, " (number ", tensor.raw_type,
         "), which was removed from the format: make the file again");
  }
  if (tensor.raw_type >= n_file_dtypes || info.name == nullptr) {
    fail(Errc::unsupported, "has a type of number ", tensor.raw_type, ", which is not known here");
  }
  if (tensor.shape.cols() % info.block_elems != 0) {
    fail(Errc::bad_file, "has rows of ", tensor.shape.cols(), " elements, no whole number of ", info.name, " blocks of ", info.block_elems);
  }
  if (!checked_bytes(tensor.shape, tensor.dtype, tensor.bytes)) fail(Errc::bad_file, "has sizes whose product overflows");
  raw.offset = in.read<std::uint64_t>("tensor offset");
  return raw;
}

inline RawHeader read_header(HeaderReader& in) {
  RawHeader raw;
  raw.version = read_preamble(in);
  auto const n_tensors = in.read<std::uint64_t>("tensor count");
  auto const n_values = in.read<std::uint64_t>("metadata count");
  // The least that an entry takes. Nothing is reserved by these counts: a damaged one may still be small enough for a large file.
  constexpr std::uint64_t least_value = 8 + 1 + 4 + 1, least_tensor = 8 + 1 + 4 + 4 + 8;
  if (n_values > in.remaining() / least_value || n_tensors > (in.remaining() - n_values * least_value) / least_tensor) {
    in.fail(Errc::bad_file, concat("truncated or damaged: the header at byte 8 names ", n_tensors, " tensors and ", n_values,
                                   " metadata keys, more than a file of ", in.size_bytes(), " bytes can hold"));
  }
  for (std::uint64_t i = 0; i < n_values; ++i) raw.values.push_back(read_value(in, i));
  for (std::uint64_t i = 0; i < n_tensors; ++i) raw.tensors.push_back(read_tensor(in, i));
  return raw;
}

inline std::uint64_t find_alignment(HeaderReader const& in, RawHeader const& raw) {
  for (RawValue const& value : raw.values) {
    if (in.text(value.key_at, value.key_bytes) != "general.alignment") continue;
    auto const alignment = convert<std::uint64_t>(GgufValue("general.alignment", value.type, in.at(value.value_at)), in.name());
    if (alignment == 0 || alignment % 8 != 0 || alignment > gguf_max_alignment) {
      in.fail(Errc::bad_file, concat("general.alignment is ", alignment, "; a multiple of 8 up to ", gguf_max_alignment, " is allowed"));
    }
    return alignment;
  }
  return gguf_default_alignment;
}

/// Checks where the tensors lie: aligned, apart from each other, inside the file, nothing behind them. Sets file_offset.
inline void place_tensors(HeaderReader const& in, RawHeader& raw, std::uint64_t alignment) {
  auto const title = [&](RawTensor const& t) { return concat("tensor ", printable(in.text(t.name_at, t.name_bytes))); };
  std::uint64_t const data_begin = align_up(in.position(), alignment);
  std::vector<RawTensor*> order;
  order.reserve(raw.tensors.size());
  for (RawTensor& t : raw.tensors) {
    if (t.offset % alignment != 0) {
      in.fail(Errc::bad_file, concat(title(t), " has offset ", t.offset, ", no multiple of the alignment ", alignment));
    }
    if (t.offset > (std::uint64_t{1} << 62)) {
      in.fail(Errc::bad_file, concat(title(t), " has offset ", t.offset, ", which no file can have"));
    }
    t.tensor.file_offset = data_begin + t.offset;  // < 2^63, as are bytes: no sum below overflows
    order.push_back(&t);
  }
  std::sort(order.begin(), order.end(), [](RawTensor const* a, RawTensor const* b) { return a->offset < b->offset; });
  std::uint64_t end = order.empty() ? in.position() : data_begin;
  RawTensor const *previous = nullptr, *first_cut = nullptr;
  for (RawTensor const* t : order) {
    if (previous != nullptr && t->tensor.file_offset < end) {
      in.fail(Errc::bad_file,
              concat(title(*t), " begins at byte ", t->tensor.file_offset, ", inside ", title(*previous), ", which ends at byte ", end));
    }
    end = t->tensor.file_offset + t->tensor.bytes;
    if (end > in.size_bytes() && first_cut == nullptr) first_cut = t;
    previous = t;
  }
  if (first_cut != nullptr) {
    in.fail(Errc::bad_file, concat("truncated: ", title(*first_cut), " needs bytes ", first_cut->tensor.file_offset, " to ",
                                   first_cut->tensor.file_offset + first_cut->tensor.bytes, "; all tensors need ", end,
                                   " bytes, the file has ", in.size_bytes()));
  }
  if (in.size_bytes() <= align_up(end, alignment)) return;
  bool joined = false;
  for (std::uint64_t const at : {end, align_up(end, alignment)}) {
    std::array<std::byte, 4> magic{};
    if (at + 4 > in.size_bytes()) continue;
    in.peek(at, magic);
    joined = joined || load<std::uint32_t>(magic.data()) == 0x46554747u;
  }
  in.fail(
      Errc::bad_file,
      concat("has ", in.size_bytes() - end, " bytes behind its last tensor, which ends at byte ", end,
             joined ? ": another GGUF file begins there. Parts of a split file are not joined with cat; keep them apart, and open the first"
                    : ""));
}

/// Errors  bad_file or unsupported with name, place and numbers; io from the source.
template <ByteSource Source>
GgufPart parse_gguf_part(Source const& source, std::string name) {
  HeaderReader in(source, std::move(name));
  RawHeader raw = read_header(in);
  GgufPart part;
  part.version = raw.version;
  part.alignment = find_alignment(in, raw);
  part.size_bytes = in.size_bytes();
  place_tensors(in, raw, part.alignment);
  part.name = in.name();
  part.header = in.take();
  auto const text = [&](std::uint64_t at, std::uint64_t bytes) {
    return std::string_view(reinterpret_cast<char const*>(part.header.data()) + at, std::size_t(bytes));
  };
  part.metadata.reserve(raw.values.size());
  for (RawValue const& v : raw.values) part.metadata.emplace_back(text(v.key_at, v.key_bytes), v.type, part.header.data() + v.value_at);
  part.keys = NameIndex(part.metadata, [](GgufValue const& v) { return v.key(); });
  if (auto const key = part.keys.duplicate()) {
    throw Error(Errc::bad_file, concat(part.name, ": has metadata key ", printable(*key), " twice"));
  }
  part.tensors.reserve(raw.tensors.size());
  for (RawTensor& t : raw.tensors) {
    t.tensor.name = text(t.name_at, t.name_bytes);
    part.tensors.push_back(t.tensor);
  }
  return part;
}

}  // namespace tiered::detail
