/// What making an engine took, step by step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/clock.hpp"
#include "tiered/core/text.hpp"

namespace tiered {

/// Seconds of the engine's own loading at which a step began and ended. Steps overlap where they go on side by side.
struct LoadStep {
  char const* name = "";
  double begin_s = 0, end_s = 0;
  double seconds() const { return end_s - begin_s; }
};

/// Always kept: two looks at a clock for each of a dozen steps. One thread.
class LoadTimes {
 public:
  /// A step from here to the end of the scope.
  class Scope {
   public:
    Scope(LoadTimes* times, char const* name) : times_(times), name_(name), begin_(steady_seconds()) {}
    Scope(Scope const&) = delete;
    Scope& operator=(Scope const&) = delete;
    ~Scope() {
      if (times_ != nullptr) times_->add(name_, {begin_, steady_seconds()});
    }

   private:
    LoadTimes* times_;
    char const* name_;
    double begin_;
  };

  /// What went on elsewhere; of steady_seconds(). Left out where it never began (0). Names live as long as the program.
  void add(char const* name, std::pair<double, double> span) noexcept {
    if (span.first <= 0 || steps_.size() == most_steps) return;
    steps_.push_back({name, span.first - start_, std::max(span.first, span.second) - start_});
  }
  /// Steps of something else, each at its own time.
  void add(LoadTimes const& others) noexcept {
    for (LoadStep const& s : others.steps_) add(s.name, {others.start_ + s.begin_s, others.start_ + s.end_s});
  }
  /// All of it is over.
  void finish() { total_s_ = steady_seconds() - start_; }

  std::vector<LoadStep> const& steps() const { return steps_; }
  double total_s() const { return total_s_; }
  /// Of the steps of that name together.
  double seconds(std::string_view name) const {
    double sum = 0;
    for (LoadStep const& s : steps_) sum += s.name == name ? s.seconds() : 0;
    return sum;
  }

 private:
  static constexpr std::size_t most_steps = 32;  // room for them is taken ahead, so that to add one cannot fail
  static std::vector<LoadStep> with_room() {
    std::vector<LoadStep> steps;
    steps.reserve(most_steps);
    return steps;
  }
  std::vector<LoadStep> steps_ = with_room();
  double start_ = steady_seconds(), total_s_ = 0;
};

/// "weights 0-2, context 2-318, ... of 934 ms": when each began and ended, in milliseconds.
inline std::string to_text(LoadTimes const& times) {
  auto const ms = [](double seconds) { return long(seconds * 1e3 + 0.5); };
  std::string text;
  for (LoadStep const& s : times.steps()) text += concat(text.empty() ? "" : ", ", s.name, ' ', ms(s.begin_s), '-', ms(s.end_s));
  return concat(text, text.empty() ? "" : " of ", ms(times.total_s()), " ms");
}

}  // namespace tiered
