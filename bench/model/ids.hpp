/// Token ids for models of random weights, drawn so that their routers have the work that those of real models have.
///
/// synthetic.hpp gives ids something in common: four ids of five share a direction and belong to one of 16 topics, the topic of an id is
/// id / 5 % 16; the fifth is free. Text stays with its topic for a while, so ids come in runs of 256 of one topic. Drawn from the whole
/// vocabulary instead they hit an expert cache less often. Files with uniform routing, and real models, get ids of the whole vocabulary.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bounds.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/sim/split_mix.hpp"

namespace bench {

inline constexpr std::int32_t n_topics = 16, topic_stride = 5, topic_run_tokens = 256;
/// Ids from here on are those before, all over again: of the same topics, in the same order.
inline constexpr std::int32_t topic_period = n_topics * topic_stride;

constexpr std::int32_t topic_of(std::int32_t id) { return id / topic_stride % n_topics; }
constexpr bool is_free(std::int32_t id) { return id % topic_stride == 0; }

constexpr char const* name(Routing routing) { return routing == Routing::topics ? "topics" : "uniform"; }
inline constexpr char const* routing_key = "tiered.synthetic.routing";  ///< in files of synthetic.hpp: name(Routing)

/// Errors  unsupported for any other name.
inline Routing routing_of(std::string const& text) {
  for (Routing const routing : {Routing::uniform, Routing::topics}) {
    if (text == name(routing)) return routing;
  }
  throw tiered::Error(tiered::Errc::unsupported, tiered::concat("routing ", text, ": uniform or topics"));
}

/// `wanted`, or where that is empty what the file says of itself, or uniform where it says nothing.
inline Routing routing_for(tiered::GgufFile const& file, std::string const& wanted) {
  return routing_of(wanted.empty() ? file.get_or<std::string>(routing_key, name(Routing::uniform)) : wanted);
}

/// A text without end: a prompt, and the tokens behind it, which go on with its topic.
class TokenIds {
 public:
  TokenIds(std::int32_t vocab_size, Routing routing, std::uint64_t seed)
      : vocab_size_(vocab_size), routing_(vocab_size >= topic_period ? routing : Routing::uniform), random_(seed) {}

  std::int32_t next() {
    if (routing_ == Routing::uniform) return below(vocab_size_);
    if (n_drawn_++ % topic_run_tokens == 0) topic_ = below(n_topics);
    return below(vocab_size_ / topic_period) * topic_period + topic_ * topic_stride + below(topic_stride);
  }
  std::vector<std::int32_t> next(int n) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(next());
    return ids;
  }

 private:
  std::int32_t below(std::int32_t n) { return std::int32_t(random_.below(std::uint64_t(n))); }

  std::int32_t vocab_size_;
  Routing routing_;
  tiered::SplitMix64 random_;
  std::int64_t n_drawn_ = 0;
  std::int32_t topic_ = 0;
};

}  // namespace bench
