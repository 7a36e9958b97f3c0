/// Vectors of a prompt's media: made by an encoder once for each picture, and kept within a bound. Link tiered::cpu, or include
/// tiered/cpu.hpp in one source file.
///
/// An encoder is what has these:
/// | expression                   | result               | meaning, errors                                                               |
/// |------------------------------|----------------------|-------------------------------------------------------------------------------|
/// | `e.config()`                 | `VisionConfig const&`| of its projector                                                              |
/// | `e.encode(patches, more)`    | `VisionEncoding`     | of all of a `std::span<Patches const>`, one behind the other, whose steps do  |
/// |                              |                      | not see each other; `more`: others of the same prompt follow at once;         |
/// |                              |                      | over_budget, out_of_memory, cancelled                                         |
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/units.hpp"
#include "tiered/vision/media_prompt.hpp"
#include "tiered/vision/vision_encoding.hpp"

namespace tiered {

/// Encodings by what they are of, in host memory. Those that were not used for the longest time leave first.
class EncodingCache {
 public:
  explicit EncodingCache(std::size_t max_bytes = GiB) : max_bytes_(max_bytes) {}

  /// Null where it is not there.
  std::shared_ptr<VisionEncoding const> find(MediaHash const& hash);
  /// Not kept where it alone is more than the bound.
  void put(MediaHash const& hash, std::shared_ptr<VisionEncoding const> encoding);

  std::size_t bytes() const { return bytes_; }
  std::size_t max_bytes() const { return max_bytes_; }
  std::size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    MediaHash hash;
    std::shared_ptr<VisionEncoding const> encoding;
    std::uint64_t last_use = 0;
  };
  std::vector<Entry> entries_;
  std::size_t max_bytes_, bytes_ = 0;
  std::uint64_t clock_ = 0;
};

/// What became of a prompt's media: steps.
struct MediaUse {
  std::int64_t n_encoded = 0, n_cached = 0;
  std::int64_t n_vectors = 0;  ///< rows that entered the decoder
};

namespace detail {

/// The part of media_vectors() that does not depend on the encoder.
class MediaVectors {
 public:
  /// So many patches go to the encoder at once at most, or one step: weights are brought for many, and pixels of few are in memory.
  static constexpr std::int64_t patches_at_once = 1 << 14;

  MediaVectors(MediaPrompt const& prompt, EncodingCache& cache, std::int32_t from, VisionConfig const& config);
  /// What is to be encoded next, of one medium or several; none: all is there.
  std::vector<Patches> next();
  /// Whether there will be something behind that.
  bool more() const { return more_; }
  /// Of all that next() gave.
  void take(VisionEncoding encoding);
  /// [1 + n_deepstack, n, output_dim].
  MediaEmbeddings all() &&;
  MediaUse const& use() const { return use_; }

 private:
  Media const& medium(std::size_t span) const;
  void choose();
  void put(std::size_t span, std::shared_ptr<VisionEncoding const> const& encoding);
  void make_room();
  void keep(std::size_t span, std::shared_ptr<VisionEncoding const> encoding);

  MediaPrompt const& prompt_;
  EncodingCache& cache_;
  std::int32_t from_;
  std::size_t dim_, n_planes_;
  std::vector<std::size_t> rows_;           ///< of each span: where its vectors go
  std::size_t n_rows_ = 0;                  ///< vectors in all
  std::vector<std::size_t> left_, chosen_;  ///< spans whose vectors are not there; those that are being encoded, which are not among them
  bool more_ = false;
  std::vector<float> out_;
  std::shared_ptr<VisionEncoding const> whole_;  ///< in place of that where it is all there is
  MediaUse use_;
};

}  // namespace detail

/// Vectors of all tokens from `from` on that are of media, in their order, as Batch::embeddings has them. Encodes what neither the cache
/// has nor the prompt had before, several pictures at a time. `use`: what was done, also up to an error.
/// Errors  of the encoder and of reading a medium; precondition for a medium of which only the hash is known; out_of_memory.
template <class Encoder>
MediaEmbeddings media_vectors(Encoder& encoder, EncodingCache& cache, MediaPrompt const& prompt, std::int32_t from,
                              MediaUse* use = nullptr) {
  detail::MediaVectors vectors(prompt, cache, from, encoder.config());
  for (;;) {
    std::vector<Patches> const patches = vectors.next();
    if (use != nullptr) *use = vectors.use();
    if (patches.empty()) return std::move(vectors).all();
    vectors.take(encoder.encode(std::span<Patches const>(patches), vectors.more()));
  }
}

}  // namespace tiered
