/// A grid of budgets and image sizes: a projector beside a decoder, and first the same with all weights in VRAM. Asks what the file of
/// results does not answer yet; each budget has a process of its own, as in sweep.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "child.hpp"
#include "machine_child.hpp"
#include "picture.hpp"
#include "results.hpp"
#include "vision_cells.hpp"
#include "vision_report.hpp"

namespace bench {

struct VisionBenchOptions {
  std::string model, projector;
  std::vector<std::uint64_t> budgets;
  std::uint64_t resident_bytes = 0;  ///< the budget of the run that has all weights in VRAM; 0: there is none
  std::vector<PictureSize> images;
  int n_decode = 100, n_runs = 2, n_threads = 0, n_text = 32;
  bool simulated = false;
  std::string kv_type = "f16", json_file;
  double link_bytes_per_s = 0;  ///< see EngineOptions
  double flops = 0;             ///< that prompts are thought to reach; 0: half of what a matrix product does
};

class VisionBench {
 public:
  explicit VisionBench(VisionBenchOptions options) : o_(std::move(options)), results_(Results::read(o_.json_file)) {
    if (o_.n_threads <= 0) o_.n_threads = tiered::default_thread_count();
    if (o_.resident_bytes > 0) {
      std::erase(o_.budgets, o_.resident_bytes);
      o_.budgets.insert(o_.budgets.begin(), o_.resident_bytes);
    }
  }

  /// How many cells failed.
  /// Errors  of the two files.
  int run() {
    if (!results_.note().empty()) fmt::print(stderr, "tiered-bench: note: {}\n", results_.note());
    VisionCell const about = describe();
    int const max_context = longest() + o_.n_text + o_.n_decode;
    bool const all_known = std::ranges::all_of(o_.budgets, [&](std::uint64_t budget) { return unanswered(about, budget).empty(); });
    MeasuredMachine machine;
    if (!all_known) {
      show_progress("measuring the machine's rates");
      machine = measure_in_child({o_.model, o_.n_threads, o_.simulated, o_.flops, o_.link_bytes_per_s});
      show_progress("");
      print_rates(machine);
    }
    fmt::print("{}", vision_header(about.model, about.projector, about.image_format, o_.n_text, o_.n_decode));
    for (std::uint64_t const budget : o_.budgets) {
      ask(about, budget, max_context, machine);
      each_kept(about, budget, [&](VisionCell const& c) { return vision_row(c, times_resident(results_.visions(), c)); });
    }
    fmt::print("\nBounds of the first token: what VRAM cannot hold of encoder and decoder over the link, or the arithmetic of both\n");
    for (std::uint64_t const budget : o_.budgets) {
      each_kept(about, budget, [](VisionCell const& c) { return c.error.empty() ? vision_bound_row(c) : std::string(); });
    }
    fmt::print("{}", vision_summary(alike(about), n_failed_));
    return n_failed_;
  }
  Results const& results() const { return results_; }

 private:
  /// What all cells have in common.
  VisionCell describe() const {
    VisionCell c;
    c.model = file_name(o_.model);
    c.projector = file_name(o_.projector);
    c.file_bytes = file_bytes(o_.model);
    c.projector_bytes = file_bytes(o_.projector);
    c.image_format = picture_format;
    c.kv_type = name(kv_type_of(o_.kv_type));
    c.device = o_.simulated ? "sim" : "gpu";
    c.text_tokens = o_.n_text;
    c.decoded = o_.n_decode;
    c.threads = o_.n_threads;
    c.held_link_bytes_per_s = o_.link_bytes_per_s;
    return c;
  }
  int longest() const {
    tiered::VisionConfig const config = tiered::read_vision_config(tiered::GgufFile::open(o_.projector));
    std::int64_t most = 0;
    for (PictureSize const& p : o_.images) most = std::max(most, vision_tokens(config, p.size));
    return int(most);
  }
  static VisionCell with(VisionCell c, std::uint64_t budget, PictureSize const& image) {
    c.vram_bytes = budget;
    c.image = image.name;
    c.width = image.size.width;
    c.height = image.size.height;
    return c;
  }
  std::vector<PictureSize> unanswered(VisionCell const& about, std::uint64_t budget) const {
    std::vector<PictureSize> out;
    for (PictureSize const& image : o_.images) {
      if (!results_.answers(with(about, budget, image))) out.push_back(image);
    }
    return out;
  }

  /// Of these two files in this setting: whatever their sizes and budgets.
  std::vector<VisionCell> alike(VisionCell const& about) const {
    std::vector<VisionCell> out;
    for (VisionCell const& c : results_.visions()) {
      if (c.is_alike(with(about, 0, {c.image, {c.width, c.height}}))) out.push_back(c);
    }
    return out;
  }

  /// All images of a budget, in one process. Those that it has not answered when it ends have failed with it.
  void ask(VisionCell const& about, std::uint64_t budget, int max_context, MeasuredMachine const& machine) {
    std::vector<PictureSize> left = unanswered(about, budget);
    if (left.empty()) return;
    VisionJob job{o_.model, o_.projector, about, {}, max_context, o_.n_runs, 0};
    job.question.vram_bytes = budget;
    show_progress("writing pictures");
    for (PictureSize const& image : left) job.pictures.push_back(folder_.picture(image));
    std::string const error = in_child(
        [&](Lines const& lines) {
          job.started_s = now_s();
          answer(job, machine, lines, o_.simulated);
        },
        [&](nlohmann::json const& j) {
          if (j.at("kind") == "progress") show_progress(fmt::format("{}: {}", budget_text(budget), j.at("text").get<std::string>()));
          if (j.at("kind") != "vision") return;
          VisionCell const c = vision_from_json(j);
          std::erase_if(left, [&](PictureSize const& p) { return p.size.width == c.width && p.size.height == c.height; });
          keep(c);
        });
    for (PictureSize const& image : left) {
      VisionCell c = with(about, budget, image);
      c.error = error.empty() ? "it ended without an answer" : error;
      keep(c);
    }
    show_progress("");
  }

  void keep(VisionCell const& c) {
    nlohmann::json const j = to_json(c);
    results_.add(j);
    append_line(o_.json_file, j);
    n_failed_ += c.error.empty() ? 0 : 1;
    show_progress("");
  }
  template <class ToText>
  void each_kept(VisionCell const& about, std::uint64_t budget, ToText const& to_text) {
    for (PictureSize const& image : o_.images) {
      VisionCell const question = with(about, budget, image);
      for (VisionCell const& c : results_.visions()) {
        if (c.is_same(question)) fmt::print("{}", to_text(c));
      }
    }
    std::fflush(stdout);
  }

  /// One line that is written over; on a terminal only.
  static void show_progress(std::string const& text) {
    if (::isatty(STDERR_FILENO) == 0) return;
    fmt::print(stderr, "\r\033[K{}", text);
    std::fflush(stderr);
  }

  VisionBenchOptions o_;
  PictureFolder folder_;
  Results results_;
  int n_failed_ = 0;
};

}  // namespace bench
