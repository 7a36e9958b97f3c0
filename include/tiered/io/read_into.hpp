/// Weights in memory of their own, read from the file and not through its mapping.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/host_weights.hpp"
#include "tiered/io/page_in.hpp"
#include "tiered/memory/host_memory.hpp"
#include "tiered/memory/tier.hpp"

namespace tiered {
namespace detail {

inline void check_room(std::string const& path, std::uint64_t needed, std::optional<std::uint64_t> available) {
  if (!available || needed <= *available) return;
  throw Error(Errc::out_of_memory,
              concat(path, ": ", format_bytes(needed), " of weights (", needed, " bytes) do not fit the ", format_bytes(*available),
                     " of memory that are available; used from the file mapping they need not"));
}

}  // namespace detail

/// For files on storage that a mapping reads slowly or that may go away, for huge pages, and for NUMA nodes: each tensor is read into
/// memory of a tier once, when it is brought, by parallel preads. The mapping is not touched. The file may go once all is brought.
///
/// What the reads leave in the page cache makes the next start fast; but where both would be more than half of the memory that
/// is available, the system is told not to keep it, so that it does not push out what others use.
template <MemoryTier Memory>
class ReadInto {
 public:
  /// Knows no file and brings nothing: to be assigned to.
  ReadInto() requires std::default_initializable<Memory> : blocks_(Memory{}, 64) {}
  /// Each tensor begins at a multiple of `alignment`, a power of two. What options.context points to must outlive the last bring().
  /// Errors  out_of_memory, with the numbers, where less memory is available than the tensors need; precondition for a file
  ///         without a mapping (GgufFile::parse).
  explicit ReadInto(GgufFile gguf, Memory memory = Memory{}, ReadOptions options = {}, std::size_t alignment = 64)
      : gguf_(std::move(gguf)), options_(options), blocks_(std::move(memory), alignment) {
    expects(gguf_->mapping(0) != nullptr, "ReadInto: the weights lie in a file");
    for (GgufTensor const& tensor : gguf_->tensors()) total_bytes_ += tensor.data.size();
    std::optional<std::uint64_t> const available = available_host_bytes();
    detail::check_room(gguf_->path(), total_bytes_, available);
    read_once_ = available && total_bytes_ > *available / 2;
  }

  /// What lies outside of the file's mapping, such as the factors of a rope that a model makes itself, is not copied and comes back as
  /// it is, whatever tier() says.
  /// Errors  out_of_memory from the tier; io where the file was cut or the storage fails; cancelled; precondition without a file, and
  ///         for bytes that reach over an end of the mapping. What was brought before stays.
  std::span<std::byte const> bring(std::span<std::byte const> mapped) {
    MmapFile const* const source = file_of(mapped);
    if (source == nullptr) return mapped;
    return blocks_.get(mapped, [&](std::span<std::byte> to) {
      MmapFile const& file = *source;
      std::uint64_t const offset = std::uint64_t(mapped.data() - file.bytes().data());
      detail::PiecewiseRead(options_, done_bytes_, total_bytes_).run(to.size(), [&](std::uint64_t begin, std::size_t bytes) {
        file.read_at(offset + begin, to.subspan(std::size_t(begin), bytes));
        if (read_once_) file.advise_read_once(offset + begin, bytes);
      });
      done_bytes_ += to.size();
    });
  }
  Tier tier() const { return memory().tier(); }
  Memory const& memory() const { return blocks_.memory(); }

 private:
  /// The part that holds all of the bytes; null where none holds any.
  MmapFile const* file_of(std::span<std::byte const> mapped) const {
    if (!gguf_) throw Error(Errc::precondition, concat("ReadInto: ", mapped.size(), " bytes were asked of no file"));
    std::less_equal<> const not_after{};
    for (int part = 0; part < gguf_->n_parts(); ++part) {
      std::span<std::byte const> const all = gguf_->mapping(part)->bytes();
      std::byte const *const begin = mapped.data(), *const end = begin + mapped.size();
      if (not_after(end, all.data()) || not_after(all.data() + all.size(), begin)) continue;
      if (not_after(all.data(), begin) && not_after(end, all.data() + all.size())) return gguf_->mapping(part);
      throw Error(Errc::precondition, concat("ReadInto: ", mapped.size(), " bytes are only in part of the mapping of ", gguf_->path()));
    }
    return nullptr;
  }

  std::optional<GgufFile> gguf_;
  ReadOptions options_;
  detail::BlocksBySpan<Memory> blocks_;
  std::uint64_t total_bytes_ = 0, done_bytes_ = 0;
  bool read_once_ = false;
};

}  // namespace tiered
