/// Draws what a bench of images has measured: time to first token, and the peak of device memory while encoding, against pixels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "figure.hpp"
#include "results.hpp"
#include "svg.hpp"

namespace bench {
namespace figure {

struct VisionSubject {
  std::string model, projector, kv_type;
  explicit VisionSubject(VisionCell const& c) : model(c.model), projector(c.projector), kv_type(c.kv_type) {}
  bool operator==(VisionSubject const&) const = default;
};

/// What one panel shows of a cell, and what it is held against.
struct VisionQuantity {
  std::string_view title;
  double (*ours)(VisionCell const&);
  double (*bound)(VisionCell const&);
  bool in_bytes;
};
inline VisionQuantity const vision_quantities[] = {
    {"time to first token, s", [](VisionCell const& c) { return c.ttft_s; }, [](VisionCell const& c) { return c.ttft_bound_s; }, false},
    {"most device memory while encoding", [](VisionCell const& c) { return gib(c.vram_encode_bytes); },
     [](VisionCell const& c) { return gib(c.vram_bytes); }, true},
};

/// Budgets by colour, the same in all panels.
class BudgetLegend {
 public:
  explicit BudgetLegend(std::vector<VisionCell> const& cells) {
    std::set<std::uint64_t> all;
    for (VisionCell const& c : cells) all.insert(c.vram_bytes);
    budgets_.assign(all.begin(), all.end());
  }
  std::vector<std::uint64_t> const& budgets() const { return budgets_; }
  std::string_view colour(std::uint64_t budget) const {
    return colours[std::size_t(std::ranges::find(budgets_, budget) - budgets_.begin()) % std::size(colours)];
  }
  /// Height that it takes.
  double draw(Svg& svg, double y) const {
    double x = left;
    for (std::uint64_t const budget : budgets_) {
      if (x > left + 5 * 130) x = left, y += 20;
      svg.line({x, y - 4}, {x + 24, y - 4}, fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour(budget)));
      svg.circle({x + 12, y - 4}, 3.5, fmt::format("fill=\"{}\"", colour(budget)));
      svg.text({x + 30, y}, budget_text(budget));
      x += 130;
    }
    y += 20;
    svg.line({left, y - 4}, {left + 24, y - 4}, "stroke=\"#444\" stroke-width=\"1.2\" stroke-dasharray=\"5 4\"");
    svg.text({left + 30, y}, "bound of the first token; budget");
    return 20 + 20.0 * double((budgets_.size() + 5) / 6);
  }

 private:
  std::vector<std::uint64_t> budgets_;
};

class VisionPanel {
 public:
  VisionPanel(Svg& svg, BudgetLegend const& legend, VisionQuantity const& quantity, Point corner)
      : svg_(svg), legend_(legend), q_(quantity), corner_(corner) {}

  void draw(std::vector<VisionCell> cells) {
    std::ranges::sort(cells, {}, &VisionCell::n_pixels);
    find_axes(cells);
    draw_frame(cells);
    for (std::uint64_t const budget : legend_.budgets()) draw_series(cells, budget);
  }

 private:
  void find_axes(std::vector<VisionCell> const& cells) {
    std::vector<double> sizes, values;
    for (VisionCell const& c : cells) {
      sizes.push_back(double(c.n_pixels()));
      for (double const v : {q_.ours(c), q_.bound(c)}) {
        if (v > 0 && v < 1e300) values.push_back(v);
      }
    }
    x_ = LogAxis::around(sizes, corner_.x, corner_.x + panel_width);
    y_ = LogAxis::around(values, corner_.y + panel_height, corner_.y);
  }
  /// Lines at the images' sizes, which have names.
  void draw_frame(std::vector<VisionCell> const& cells) {
    for (double const v : q_.in_bytes ? y_.powers_of_two() : y_.ticks()) {
      svg_.line({corner_.x, y_.at(v)}, {corner_.x + panel_width, y_.at(v)}, "stroke=\"#e4e4e4\"");
      svg_.text({corner_.x - 6, y_.at(v) + 4}, q_.in_bytes ? size_text(v) : short_number(v), "text-anchor=\"end\" fill=\"#444\"");
    }
    std::int64_t last = 0;
    for (VisionCell const& c : cells) {
      if (c.n_pixels() == last) continue;
      last = c.n_pixels();
      double const x = x_.at(double(last));
      svg_.line({x, corner_.y}, {x, corner_.y + panel_height}, "stroke=\"#e4e4e4\"");
      svg_.text({x, corner_.y + panel_height + 16}, c.image, "text-anchor=\"middle\" fill=\"#444\"");
    }
    svg_.rectangle(corner_, panel_width, panel_height, "fill=\"none\" stroke=\"#888\"");
    svg_.text({corner_.x, corner_.y - 8}, q_.title, "font-weight=\"bold\"");
    svg_.text({corner_.x + panel_width / 2, corner_.y + panel_height + 34}, "size of the image", "text-anchor=\"middle\" fill=\"#444\"");
  }
  void draw_series(std::vector<VisionCell> const& cells, std::uint64_t budget) {
    std::vector<Point> ours, bound;
    std::string const colour(legend_.colour(budget));
    for (VisionCell const& c : cells) {
      if (c.vram_bytes != budget) continue;
      double const x = x_.at(double(c.n_pixels())), v = q_.ours(c), b = q_.bound(c);
      if (b > 0) bound.push_back({x, y_.at(b)});
      if (v <= 0) continue;
      ours.push_back({x, y_.at(v)});
      svg_.circle(ours.back(), 3.5, fmt::format("fill=\"{}\"", colour),
                  fmt::format("{}, {}: {}", budget_text(budget), c.image, q_.in_bytes ? size_text(v) : fmt::format("{:.4g} s", v)));
    }
    svg_.path(bound, fmt::format("stroke=\"{}\" stroke-width=\"1.2\" stroke-dasharray=\"5 4\"", colour));
    svg_.path(ours, fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour));
  }

  Svg& svg_;
  BudgetLegend const& legend_;
  VisionQuantity const& q_;
  Point corner_;
  LogAxis x_, y_;
};

}  // namespace figure

/// One row of two panels for each model; cells that failed are not in it.
inline std::string draw_vision(Results const& results) {
  using namespace figure;
  std::vector<VisionCell> cells;
  std::vector<VisionSubject> subjects;
  std::vector<std::string> machines;
  for (VisionCell const& c : results.visions()) {
    if (!c.error.empty()) continue;
    cells.push_back(c);
    if (VisionSubject const s(c); std::ranges::find(subjects, s) == subjects.end()) subjects.push_back(s);
    if (std::ranges::find(machines, c.machine) == machines.end()) machines.push_back(c.machine);
  }
  BudgetLegend const legend(cells);
  double const below = 20.0 * double(machines.size()) + 20.0 * double(legend.budgets().size() / 6 + 2) + 10;
  Svg svg(left + 2 * panel_width + between + 30, top + row_height * double(subjects.size()) + below);
  double y = top;
  for (VisionSubject const& s : subjects) {
    std::vector<VisionCell> own;
    std::ranges::copy_if(cells, std::back_inserter(own), [&](VisionCell const& c) { return VisionSubject(c) == s; });
    svg.text({left, y - 30}, fmt::format("{} with {} (keys and values {})", s.model, s.projector, s.kv_type),
             "font-size=\"15\" font-weight=\"bold\"");
    for (std::size_t i = 0; i < std::size(vision_quantities); ++i)
      VisionPanel(svg, legend, vision_quantities[i], {left + double(i) * (panel_width + between), y}).draw(own);
    y += row_height;
  }
  y += legend.draw(svg, y - 30) - 20;
  for (std::string const& machine : machines) svg.text({left, y}, machine, "fill=\"#444\""), y += 20;
  return svg.str();
}

}  // namespace bench
