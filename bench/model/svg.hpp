/// Little of SVG: shapes, text, and logarithmic axes.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace bench {

struct Point {
  double x = 0, y = 0;
};

class Svg {
 public:
  Svg(double width, double height) : width_(width), height_(height) {}

  /// `style` is attributes, as in stroke="#888".
  void line(Point a, Point b, std::string_view style) {
    body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", a.x, a.y, b.x, b.y, style);
  }
  void path(std::vector<Point> const& points, std::string_view style) {
    body_ += "<polyline points=\"";
    for (Point const& p : points) body_ += fmt::format("{:.1f},{:.1f} ", p.x, p.y);
    body_ += fmt::format("\" fill=\"none\" {}/>\n", style);
  }
  void rectangle(Point corner, double width, double height, std::string_view style) {
    body_ +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" {}/>\n", corner.x, corner.y, width, height, style);
  }
  void circle(Point at, double radius, std::string_view style, std::string_view title = {}) {
    body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" {}>{}</circle>\n", at.x, at.y, radius, style, titled(title));
  }
  /// Four shapes that are told apart when small.
  void marker(Point at, std::size_t shape, std::string_view style, std::string_view title = {}) {
    static constexpr std::string_view paths[] = {"M-4.5,-4.5h9v9h-9z", "M0,-6L5.5,4.5H-5.5z", "M0,-6L6,0L0,6L-6,0z", "M0,6L5.5,-4.5H-5.5z"};
    body_ += fmt::format("<path transform=\"translate({:.1f},{:.1f})\" d=\"{}\" {}>{}</path>\n", at.x, at.y,
                         paths[shape % std::size(paths)], style, titled(title));
  }
  void text(Point at, std::string_view words, std::string_view style = {}) {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", at.x, at.y, style, escaped(words));
  }

  std::string str() const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}</svg>\n",
        width_, height_, body_);
  }

  /// Characters that XML cannot hold become '?'.
  static std::string escaped(std::string_view words) {
    std::string out;
    for (char const c : words) {
      switch (c) {
        case '&': out += "&amp;"; break;
        case '<': out += "&lt;"; break;
        case '>': out += "&gt;"; break;
        case '"': out += "&quot;"; break;
        default: out += (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) ? '?' : c;
      }
    }
    return out;
  }

 private:
  static std::string titled(std::string_view title) { return title.empty() ? std::string() : "<title>" + escaped(title) + "</title>"; }
  double width_, height_;
  std::string body_;
};

/// Values above 0 to pixels, `from` for the least.
struct LogAxis {
  double low = 1, high = 10, from = 0, to = 100;

  /// Some room beyond the extremes, and a factor of 2 at least between the ends. No values: 1 to 10.
  static LogAxis around(std::vector<double> const& values, double from, double to) {
    LogAxis axis{1, 10, from, to};
    if (values.empty()) return axis;
    auto const [least, most] = std::minmax_element(values.begin(), values.end());
    double const spare = std::max(1.15, std::sqrt(2 / std::max(*most / *least, 1.0)));
    axis.low = *least / spare;
    axis.high = *most * spare;
    return axis;
  }
  double at(double value) const { return from + (to - from) * std::log(value / low) / std::log(high / low); }

  /// Round numbers, 3 at least where the axis has room for them.
  std::vector<double> ticks() const {
    static std::vector<double> const steps[] = {
        {1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 5, 7}, {1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9}};
    std::vector<double> out;
    for (std::vector<double> const& step : steps) {
      out = multiples(step, 10);
      if (out.size() >= 4) break;
    }
    return out;
  }
  std::vector<double> powers_of_two() const { return multiples({1}, 2); }

 private:
  std::vector<double> multiples(std::vector<double> const& of, double base) const {
    std::vector<double> out;
    for (double power = std::pow(base, std::floor(std::log(low) / std::log(base))); power <= high; power *= base) {
      for (double const m : of) {
        if (double const value = m * power; value >= low && value <= high) out.push_back(value);
      }
    }
    return out;
  }
};

}  // namespace bench
