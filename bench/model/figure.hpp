/// Draws what a sweep has measured: for each model tokens per second and time to the first token against the budget, with bounds and peers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "results.hpp"
#include "svg.hpp"
#include "sweep_report.hpp"

namespace bench {
namespace figure {

inline constexpr std::string_view colours[] = {"#1f77b4", "#d95f02", "#2a9d4a", "#8e44ad", "#c0392b", "#7f6000"};
inline constexpr double panel_width = 430, panel_height = 250, left = 70, top = 58, between = 80, row_height = panel_height + 96;

struct Subject {
  std::string model, routing, kv_type;
  bool operator==(Subject const&) const = default;
};

inline std::string tokens_text(int n) { return n % 1024 == 0 ? fmt::format("{}K", n / 1024) : fmt::format("{}", n); }
inline std::string short_number(double v) { return fmt::format("{:.6g}", v); }
inline double gib(std::uint64_t bytes) { return double(bytes) / double(tiered::GiB); }
inline std::string size_text(double g) { return g >= 1 ? fmt::format("{:.4g} GiB", g) : fmt::format("{:.4g} MiB", g * 1024); }

/// What one panel shows of a cell, a bound and a peer.
struct Quantity {
  std::string_view title;
  double (*ours)(Cell const&);
  double (*bound)(Cell const&);
  double (*peer)(PeerCell const&);
};
inline Quantity const quantities[] = {
    {"decode, tokens/s", [](Cell const& c) { return c.decode_per_s; }, [](Cell const& c) { return inverse(c.decode_practical_s); },
     [](PeerCell const& p) { return p.decode_per_s; }},
    {"time to first token, s", [](Cell const& c) { return c.ttft_s; }, [](Cell const& c) { return c.ttft_bound_s; },
     [](PeerCell const& p) { return p.ttft_s(); }},
};

/// The lists that colours and shapes are numbered by, the same in all panels.
struct Legend {
  std::vector<int> prompts;
  std::vector<std::string> peers;

  explicit Legend(Results const& results) {
    std::set<int> lengths;
    for (Cell const& c : results.cells()) lengths.insert(c.prompt);
    prompts.assign(lengths.begin(), lengths.end());
    for (PeerCell const& p : results.peers()) {
      if (std::ranges::find(peers, p.command) == peers.end()) peers.push_back(p.command);
    }
  }
  std::string_view colour(int prompt) const {
    return colours[std::size_t(std::ranges::find(prompts, prompt) - prompts.begin()) % std::size(colours)];
  }
  std::size_t shape(std::string const& peer) const { return std::size_t(std::ranges::find(peers, peer) - peers.begin()); }
};

class Panel {
 public:
  Panel(Svg& svg, Legend const& legend, Quantity const& quantity, Point corner)
      : svg_(svg), legend_(legend), q_(quantity), corner_(corner) {}

  void draw(std::vector<Cell> cells, std::vector<PeerCell> const& peers) {
    std::ranges::sort(cells, {}, &Cell::vram_bytes);
    find_axes(cells, peers);
    draw_frame();
    for (int const prompt : legend_.prompts) draw_series(cells, prompt);
    for (PeerCell const& p : peers) draw_peer(p);
  }

 private:
  void find_axes(std::vector<Cell> const& cells, std::vector<PeerCell> const& peers) {
    std::vector<double> sizes, values;
    auto const add = [](std::vector<double>& list, double v) {
      if (v > 0 && v < 1e300) list.push_back(v);
    };
    for (Cell const& c : cells) add(sizes, gib(c.vram_bytes)), add(values, q_.ours(c)), add(values, q_.bound(c));
    for (PeerCell const& p : peers) add(sizes, gib(p.vram_peak_bytes)), add(values, q_.peer(p));
    x_ = LogAxis::around(sizes, corner_.x, corner_.x + panel_width);
    y_ = LogAxis::around(values, corner_.y + panel_height, corner_.y);
  }
  void draw_frame() {
    for (double const v : y_.ticks()) {
      svg_.line({corner_.x, y_.at(v)}, {corner_.x + panel_width, y_.at(v)}, "stroke=\"#e4e4e4\"");
      svg_.text({corner_.x - 6, y_.at(v) + 4}, short_number(v), "text-anchor=\"end\" fill=\"#444\"");
    }
    for (double const v : x_.powers_of_two()) {
      svg_.line({x_.at(v), corner_.y}, {x_.at(v), corner_.y + panel_height}, "stroke=\"#e4e4e4\"");
      svg_.text({x_.at(v), corner_.y + panel_height + 16}, size_text(v), "text-anchor=\"middle\" fill=\"#444\"");
    }
    svg_.rectangle(corner_, panel_width, panel_height, "fill=\"none\" stroke=\"#888\"");
    svg_.text({corner_.x, corner_.y - 8}, q_.title, "font-weight=\"bold\"");
    svg_.text({corner_.x + panel_width / 2, corner_.y + panel_height + 34}, "VRAM: the budget; of peers, what they took at most",
              "text-anchor=\"middle\" fill=\"#444\"");
  }
  void draw_series(std::vector<Cell> const& cells, int prompt) {
    std::vector<Point> ours, bound;
    std::string const colour(legend_.colour(prompt));
    for (Cell const& c : cells) {
      if (c.prompt != prompt || c.vram_bytes == 0) continue;
      if (double const v = q_.bound(c); v > 0) bound.push_back({x_.at(gib(c.vram_bytes)), y_.at(v)});
      double const v = q_.ours(c);
      if (v <= 0) continue;
      ours.push_back({x_.at(gib(c.vram_bytes)), y_.at(v)});
      svg_.circle(ours.back(), 3.5, fmt::format("fill=\"{}\"", colour),
                  fmt::format("{}, prompt of {}: {:.4g}", budget_text(c.vram_bytes), prompt, v));
    }
    svg_.path(bound, fmt::format("stroke=\"{}\" stroke-width=\"1.2\" stroke-dasharray=\"5 4\"", colour));
    svg_.path(ours, fmt::format("stroke=\"{}\" stroke-width=\"2\"", colour));
  }
  /// Where its VRAM is not known: a line at its height.
  void draw_peer(PeerCell const& p) {
    double const v = q_.peer(p);
    if (v <= 0) return;
    std::string const colour(legend_.colour(p.prompt)), title = fmt::format("{}, prompt of {}: {:.4g}", peer_name(p.command), p.prompt, v);
    double const x = p.vram_peak_bytes > 0 ? x_.at(gib(p.vram_peak_bytes)) : corner_.x + panel_width;
    if (p.vram_peak_bytes == 0)
      svg_.line({corner_.x, y_.at(v)}, {x, y_.at(v)}, fmt::format("stroke=\"{}\" stroke-dasharray=\"1 3\" stroke-width=\"1.5\"", colour));
    svg_.marker({x, y_.at(v)}, legend_.shape(p.command), fmt::format("fill=\"white\" stroke=\"{}\" stroke-width=\"1.8\"", colour), title);
  }

  Svg& svg_;
  Legend const& legend_;
  Quantity const& q_;
  Point corner_;
  LogAxis x_, y_;
};

/// Height that it takes.
inline double draw_legend(Svg& svg, Legend const& legend, double y) {
  double x = left;
  for (int const prompt : legend.prompts) {
    svg.line({x, y - 4}, {x + 24, y - 4}, fmt::format("stroke=\"{}\" stroke-width=\"2\"", legend.colour(prompt)));
    svg.circle({x + 12, y - 4}, 3.5, fmt::format("fill=\"{}\"", legend.colour(prompt)));
    svg.text({x + 30, y}, "tiered, prompt of " + tokens_text(prompt));
    x += 165;
  }
  svg.line({x, y - 4}, {x + 24, y - 4}, "stroke=\"#444\" stroke-width=\"1.2\" stroke-dasharray=\"5 4\"");
  svg.text({x + 30, y}, "bound");
  for (std::size_t i = 0; i < legend.peers.size(); ++i) {
    y += 20;
    svg.marker({left + 12, y - 4}, i, "fill=\"white\" stroke=\"#444\" stroke-width=\"1.8\"");
    svg.text({left + 30, y}, peer_name(legend.peers[i]));
  }
  return 20.0 * double(legend.peers.size() + 1);
}

}  // namespace figure

/// One row of two panels for each model; cells that failed are not in it.
inline std::string draw(Results const& results) {
  using namespace figure;
  std::vector<Cell> cells;
  std::vector<Subject> subjects;
  std::vector<std::string> machines;
  for (Cell const& c : results.cells()) {
    if (!c.error.empty()) continue;
    cells.push_back(c);
    if (Subject const s{c.model, c.routing, c.kv_type}; std::ranges::find(subjects, s) == subjects.end()) subjects.push_back(s);
    if (std::ranges::find(machines, c.machine) == machines.end()) machines.push_back(c.machine);
  }
  Legend const legend(results);
  double const width = left + 2 * panel_width + between + 30, below = 20.0 * double(legend.peers.size() + machines.size()) + 10;
  Svg svg(width, top + row_height * double(subjects.size()) + below);
  double y = top;
  for (Subject const& s : subjects) {
    std::vector<Cell> own;
    std::vector<PeerCell> peers;
    std::ranges::copy_if(cells, std::back_inserter(own), [&](Cell const& c) { return Subject{c.model, c.routing, c.kv_type} == s; });
    std::ranges::copy_if(results.peers(), std::back_inserter(peers),
                         [&](PeerCell const& p) { return p.error.empty() && p.model == s.model && p.kv_type == s.kv_type; });
    svg.text({left, y - 30}, fmt::format("{} ({} routing, keys and values {})", s.model, s.routing, s.kv_type),
             "font-size=\"15\" font-weight=\"bold\"");
    for (std::size_t i = 0; i < std::size(quantities); ++i)
      Panel(svg, legend, quantities[i], {left + double(i) * (panel_width + between), y}).draw(own, peers);
    y += row_height;
  }
  y += draw_legend(svg, legend, y - 30) - 20;
  for (std::string const& machine : machines) svg.text({left, y}, machine, "fill=\"#444\""), y += 20;
  return svg.str();
}

}  // namespace bench
