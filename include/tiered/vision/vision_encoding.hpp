/// What a vision encoder makes of images.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace tiered {

struct VisionEncoding {
  std::int64_t n_tokens = 0;
  std::vector<float> tokens;                  ///< [n_tokens, output_dim]
  std::vector<std::vector<float>> deepstack;  ///< for each deepstack layer [n_tokens, output_dim]
};

/// Vectors as Batch::embeddings takes them, a range of numbers: its own, or the tokens of one encoding, which are not copied.
class MediaEmbeddings {
 public:
  MediaEmbeddings() = default;
  MediaEmbeddings(std::vector<float> values) : own_(std::move(values)), values_(own_) {}
  explicit MediaEmbeddings(std::shared_ptr<VisionEncoding const> of) : of_(std::move(of)), values_(of_->tokens) {}

  MediaEmbeddings(MediaEmbeddings&&) = default;  // numbers stay where they are
  MediaEmbeddings& operator=(MediaEmbeddings&&) = default;

  std::size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  friend bool operator==(MediaEmbeddings const& a, MediaEmbeddings const& b) { return std::ranges::equal(a.values_, b.values_); }

 private:
  std::vector<float> own_;
  std::shared_ptr<VisionEncoding const> of_;
  std::span<float const> values_;  // of either
};

}  // namespace tiered
