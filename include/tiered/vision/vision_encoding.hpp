/// What a vision encoder makes of images.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  MediaEmbeddings(std::vector<float> values) : own_(std::move(values)) {}
  explicit MediaEmbeddings(std::shared_ptr<VisionEncoding const> of) : of_(std::move(of)) {}

  std::size_t size() const { return values().size(); }
  bool empty() const { return values().empty(); }
  auto begin() const { return values().begin(); }
  auto end() const { return values().end(); }
  friend bool operator==(MediaEmbeddings const& a, MediaEmbeddings const& b) { return a.values() == b.values(); }

 private:
  std::vector<float> const& values() const { return of_ != nullptr ? of_->tokens : own_; }

  std::vector<float> own_;
  std::shared_ptr<VisionEncoding const> of_;
};

}  // namespace tiered
