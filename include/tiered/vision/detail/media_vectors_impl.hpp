/// Defines what media_vectors.hpp declares: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/media_vectors.hpp"

namespace tiered {

namespace detail {

inline std::size_t bytes_of(VisionEncoding const& e) {
  std::size_t n = e.tokens.size();
  for (std::vector<float> const& features : e.deepstack) n += features.size();
  return n * sizeof(float);
}

}  // namespace detail

std::shared_ptr<VisionEncoding const> EncodingCache::find(MediaHash const& hash) {
  for (Entry& entry : entries_) {
    if (entry.hash != hash) continue;
    entry.last_use = ++clock_;
    return entry.encoding;
  }
  return nullptr;
}

void EncodingCache::put(MediaHash const& hash, std::shared_ptr<VisionEncoding const> encoding) {
  std::size_t const bytes = detail::bytes_of(*encoding);
  if (bytes > max_bytes_ || find(hash) != nullptr) return;
  while (bytes_ + bytes > max_bytes_) {
    auto const oldest =
        std::min_element(entries_.begin(), entries_.end(), [](Entry const& a, Entry const& b) { return a.last_use < b.last_use; });
    bytes_ -= detail::bytes_of(*oldest->encoding);
    entries_.erase(oldest);
  }
  entries_.push_back({hash, std::move(encoding), ++clock_});
  bytes_ += bytes;
}

namespace detail {

MediaVectors::MediaVectors(MediaPrompt const& prompt, EncodingCache& cache, std::int32_t from, VisionConfig const& config)
    : prompt_(prompt), cache_(cache), from_(from), dim_(std::size_t(config.output_dim)), n_planes_(std::size_t(config.n_deepstack()) + 1) {
  expects(prompt.spans.size() == prompt.places.size(), "a prompt has a place for each of its spans");
  for (std::size_t i = 0; i < prompt.spans.size(); ++i) {
    MediaSpan const& span = prompt.spans[i];
    rows_.push_back(n_rows_);
    n_rows_ += std::size_t(std::max(span.end() - std::max(span.begin, from), 0));
    if (span.end() > from) left_.push_back(i);
  }
  use_.n_vectors = std::int64_t(n_rows_);
}

Media const& MediaVectors::medium(std::size_t span) const {
  std::int32_t const medium = prompt_.places[span].medium;
  if (medium < 0 || std::size_t(medium) >= prompt_.media.size()) {
    throw Error(Errc::precondition, concat("the picture at token ", prompt_.spans[span].begin,
                                           " must be encoded again, and its pixels are not known: only that it was there"));
  }
  return prompt_.media[std::size_t(medium)];
}

/// Spans that are to be encoded at once, the same picture once; those that the cache has are put in place.
void MediaVectors::choose() {
  chosen_.clear();
  std::vector<std::size_t> later;
  std::int64_t n_patches = 0;
  auto at = left_.begin();
  for (; at != left_.end(); ++at) {
    MediaHash const& hash = prompt_.spans[*at].hash;
    if (auto const known = cache_.find(hash); known != nullptr) {
      ++use_.n_cached;
      put(*at, known);
    } else if (std::ranges::any_of(chosen_, [&](std::size_t other) { return prompt_.spans[other].hash == hash; })) {
      later.push_back(*at);
    } else {
      n_patches += medium(*at).info().grid.frame_patches();
      if (!chosen_.empty() && n_patches > patches_at_once) break;
      chosen_.push_back(*at);
    }
  }
  more_ = at != left_.end();
  later.insert(later.end(), at, left_.end());
  left_ = std::move(later);
}

std::vector<Patches> MediaVectors::next() {
  choose();
  std::vector<Patches> out;
  for (std::size_t i = 0; i < chosen_.size();) {
    MediaPlace const first = prompt_.places[chosen_[i]];
    Range steps{first.step, first.step};
    for (; i < chosen_.size() && prompt_.places[chosen_[i]] == MediaPlace{first.medium, steps.end}; ++i) ++steps.end;
    out.push_back(prompt_.media[std::size_t(first.medium)].patches(steps));
  }
  return out;
}

void MediaVectors::take(VisionEncoding encoding) {
  std::size_t n = 0;
  for (std::size_t const i : chosen_) n += std::size_t(prompt_.spans[i].n_tokens);
  bool const fits = encoding.n_tokens == std::int64_t(n) && encoding.tokens.size() == n * dim_ &&
                    encoding.deepstack.size() + 1 == n_planes_ &&
                    std::ranges::all_of(encoding.deepstack, [&](auto const& features) { return features.size() == n * dim_; });
  expects(fits, "an encoder returns as many vectors as its patches have tokens, in all planes");
  if (chosen_.size() == 1) return keep(chosen_.front(), std::make_shared<VisionEncoding const>(std::move(encoding)));
  std::size_t begin = 0;
  for (std::size_t const i : chosen_) {
    std::size_t const end = begin + std::size_t(prompt_.spans[i].n_tokens) * dim_;
    auto const part = [&](std::vector<float> const& of) {
      return std::vector<float>(of.begin() + std::ptrdiff_t(begin), of.begin() + std::ptrdiff_t(end));
    };
    VisionEncoding one{prompt_.spans[i].n_tokens, part(encoding.tokens), {}};
    for (std::vector<float> const& features : encoding.deepstack) one.deepstack.push_back(part(features));
    keep(i, std::make_shared<VisionEncoding const>(std::move(one)));
    begin = end;
  }
}

/// Wherever the prompt has it.
void MediaVectors::keep(std::size_t i, std::shared_ptr<VisionEncoding const> encoding) {
  MediaHash const& hash = prompt_.spans[i].hash;
  ++use_.n_encoded;
  put(i, encoding);
  std::erase_if(left_, [&](std::size_t other) {
    if (prompt_.spans[other].hash != hash) return false;
    ++use_.n_cached;
    put(other, encoding);
    return true;
  });
  cache_.put(hash, std::move(encoding));
}

/// Of the first span, maybe the last rows only.
void MediaVectors::put(std::size_t i, std::shared_ptr<VisionEncoding const> const& encoding) {
  MediaSpan const& span = prompt_.spans[i];
  std::size_t const skipped = std::size_t(std::max(from_ - span.begin, 0)) * dim_, n = std::size_t(span.n_tokens) * dim_;
  expects(encoding->tokens.size() == n && encoding->deepstack.size() + 1 == n_planes_, "a cached encoding is of this encoder");
  if (n_planes_ == 1 && skipped == 0 && n_rows_ == std::size_t(span.n_tokens)) {  // there is nothing else
    whole_ = encoding;
    return;
  }
  if (out_.empty()) make_room();
  for (std::size_t plane = 0; plane < n_planes_; ++plane) {
    std::vector<float> const& from = plane == 0 ? encoding->tokens : encoding->deepstack[plane - 1];
    float* const to = out_.data() + (plane * n_rows_ + rows_[i]) * dim_;
    std::copy(from.begin() + std::ptrdiff_t(skipped), from.end(), to);
  }
}

void MediaVectors::make_room() {
  try {
    out_.resize(n_planes_ * n_rows_ * dim_);
  } catch (std::bad_alloc const&) {
    throw Error(Errc::out_of_memory, concat("no host memory for ", n_rows_, " vectors of ", n_planes_ * dim_, " numbers"));
  }
}

MediaEmbeddings MediaVectors::all() && { return whole_ != nullptr ? MediaEmbeddings(std::move(whole_)) : MediaEmbeddings(std::move(out_)); }

}  // namespace detail
}  // namespace tiered
