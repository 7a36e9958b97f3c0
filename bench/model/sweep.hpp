/// A grid of models, budgets and lengths of prompts, and other engines beside it: asks what the file of results does not answer yet.
///
/// Each engine, each peer and each measuring of rates is a process of its own: an error, a crash, or a device that is no longer usable
/// costs one cell. This process itself has no threads and touches no device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "child.hpp"
#include "engine_cells.hpp"
#include "machine_child.hpp"
#include "peer.hpp"
#include "peer_cell.hpp"
#include "results.hpp"
#include "sweep_report.hpp"

namespace bench {

struct SweepOptions {
  std::vector<std::string> models, peers;
  std::vector<std::uint64_t> budgets;
  std::vector<int> prompts = {1024, 4096, 16384};
  int n_decode = 64, n_runs = 2, n_threads = 0;
  bool simulated = false;
  bool reads_ahead = true;         ///< EngineOptions::read_ahead
  bool looks_ahead = true;         ///< EngineOptions::look_ahead
  bool engine_per_prompt = false;  ///< whose context is no longer than that prompt needs, as peers have it
  std::string kv_type = "f16", ids, json_file;
  double link_bytes_per_s = 0;  ///< see EngineOptions
  double flops = 0;             ///< that prompts are thought to reach; 0: half of what a matrix product does
};

class Sweep {
 public:
  explicit Sweep(SweepOptions options)
      : o_(std::move(options)),
        n_threads_(o_.n_threads > 0 ? o_.n_threads : tiered::default_thread_count()),
        results_(Results::read(o_.json_file)) {
    n_questions_ = o_.models.size() * o_.prompts.size() * (o_.budgets.size() + o_.peers.size());
  }

  /// How many cells failed.
  int run() {
    if (!results_.note().empty()) fmt::print(stderr, "tiered-bench: note: {}\n", results_.note());
    for (std::string const& path : o_.models) {
      std::optional<Cell> const about = describe(path);
      if (!about) continue;
      ask_engines(path, *about);
      for (std::string const& peer : o_.peers) ask_peers(path, peer);
    }
    show_progress("");
    print_summary(results_, n_failed_);
    return n_failed_;
  }
  Results const& results() const { return results_; }

 private:
  /// What all cells of a model have in common; nothing where there is no such model.
  std::optional<Cell> describe(std::string const& path) {
    Cell c;
    c.model = file_name(path);
    c.file_bytes = file_bytes(path);
    c.kv_type = o_.kv_type;
    c.device = o_.simulated ? "sim" : "gpu";
    c.decoded = o_.n_decode;
    c.threads = n_threads_;
    c.held_link_bytes_per_s = o_.link_bytes_per_s;
    try {
      c.routing = name(routing_for(tiered::GgufFile::open(path), o_.ids));
      kv_type_of(o_.kv_type);
      return c;
    } catch (tiered::Error const& e) {
      c.error = e.what();
      fmt::print(stderr, "tiered-bench: {}\n", c.error);
    }
    for (std::uint64_t const budget : o_.budgets) {
      for (int const prompt : o_.prompts) keep(with(c, budget, prompt));
    }
    return std::nullopt;
  }
  static Cell with(Cell c, std::uint64_t budget, int prompt) {
    c.vram_bytes = budget;
    c.prompt = prompt;
    return c;
  }

  std::vector<int> unanswered(Cell const& about, std::uint64_t budget, std::vector<int> const& prompts) const {
    std::vector<int> out;
    for (int const prompt : prompts) {
      if (!results_.answers(with(about, budget, prompt))) out.push_back(prompt);
    }
    return out;
  }

  void ask_engines(std::string const& path, Cell const& about) {
    bool const all_known =
        std::ranges::all_of(o_.budgets, [&](std::uint64_t budget) { return unanswered(about, budget, o_.prompts).empty(); });
    MeasuredMachine const machine = all_known ? MeasuredMachine{} : measure_machine(path);
    print_header(about.model);
    for (std::uint64_t const budget : o_.budgets) {
      std::vector<std::vector<int>> groups{o_.prompts};
      if (o_.engine_per_prompt) {
        groups.clear();
        for (int const prompt : o_.prompts) groups.push_back({prompt});
      }
      for (std::vector<int> const& group : groups) {
        EngineJob job;
        job.path = path;
        job.question = with(about, budget, 0);
        job.prompts = unanswered(about, budget, group);
        job.max_context = *std::max_element(group.begin(), group.end()) + o_.n_decode;
        job.n_runs = o_.n_runs;
        job.looks_ahead = o_.looks_ahead;
        job.reads_ahead = o_.reads_ahead;
        ask(job, machine);
      }
      for (int const prompt : o_.prompts) print_kept(with(about, budget, prompt));
    }
  }
  /// All prompts of the job. What ends an engine costs the prompt that it was at; the others get another engine.
  void ask(EngineJob job, MeasuredMachine const& machine) {
    while (!job.prompts.empty()) {
      bool loaded = false;
      std::size_t n_done = 0;
      std::string const error = in_child(
          [&](Lines const& lines) {
            job.started_s = now_s();
            answer_on_device(job, machine, lines);
          },
          [&](nlohmann::json const& j) {
            if (j.at("kind") == "loaded") loaded = true;
            if (j.at("kind") == "progress") show_progress(progress_text(job, n_done, j.at("text")));
            if (j.at("kind") == "cell") keep(cell_from_json(j)), ++n_done;
          });
      job.prompts.erase(job.prompts.begin(), job.prompts.begin() + std::ptrdiff_t(n_done));
      if (n_done > 0 && error.empty()) continue;
      std::size_t const n_lost = loaded ? std::min<std::size_t>(1, job.prompts.size()) : job.prompts.size();
      for (std::size_t i = 0; i < n_lost; ++i) {
        Cell c = with(job.question, job.question.vram_bytes, job.prompts[i]);
        c.error = error.empty() ? "it ended without an answer" : error;
        keep(c);
      }
      job.prompts.erase(job.prompts.begin(), job.prompts.begin() + std::ptrdiff_t(n_lost));
    }
  }
  static std::string progress_text(EngineJob const& job, std::size_t n_done, std::string const& text) {
    int const prompt = job.prompts[std::min(n_done, job.prompts.size() - 1)];
    return fmt::format("{}, {}, prompt of {}: {}", job.question.model, budget_text(job.question.vram_bytes), prompt, text);
  }
  void answer_on_device([[maybe_unused]] EngineJob const& job, [[maybe_unused]] MeasuredMachine const& machine, Lines const& lines) const {
    if (o_.simulated) return answer_simulated(job, machine, lines);
#if TIERED_HAS_CUDA
    answer_on_gpu(job, machine, lines);
#else
    throw tiered::Error(tiered::Errc::unsupported, "this program was built without CUDA; --device sim needs none");
#endif
  }

  MeasuredMachine measure_machine(std::string const& path) {
    show_progress("measuring the machine's rates");
    MeasuredMachine const m = measure_in_child({path, n_threads_, o_.simulated, o_.flops, o_.link_bytes_per_s});
    show_progress("");
    print_rates(m);
    return m;
  }

  void ask_peers(std::string const& path, std::string const& peer) {
    for (int const prompt : o_.prompts) {
      PeerCell c;
      c.model = file_name(path);
      c.file_bytes = file_bytes(path);
      c.kv_type = o_.kv_type;
      c.command = peer;
      c.prompt = prompt;
      c.decoded = o_.n_decode;
      c.threads = n_threads_;
      if (!results_.answers(c)) {
        show_progress(fmt::format("{}, prompt of {}: {}", c.model, prompt, peer));
        PeerCell const question = c;
        std::string const error =
            in_child([&](Lines const& lines) { lines(to_json(ask_peer_cell(path, question, o_.n_runs, !o_.simulated))); },
                     [&](nlohmann::json const& j) { c = peer_from_json(j); });
        if (!error.empty()) c.error = error;
        nlohmann::json const j = to_json(c);
        results_.add(j);
        append_line(o_.json_file, j);
        n_failed_ += c.error.empty() ? 0 : 1;
        show_progress("");
      }
      ++n_asked_;
      for (PeerCell const& known : results_.peers()) {
        if (known.is_same(c)) print_peer(known, results_.cells());
      }
    }
  }

  void keep(Cell const& c) {
    nlohmann::json const j = to_json(c);
    results_.add(j);
    append_line(o_.json_file, j);
    n_failed_ += c.error.empty() ? 0 : 1;
    show_progress("");
  }
  void print_kept(Cell const& question) {
    ++n_asked_;
    for (Cell const& c : results_.cells()) {
      if (c.is_same(question)) print_cell(c);
    }
  }

  /// One line that is written over; on a terminal only.
  void show_progress(std::string const& text) const {
    if (::isatty(STDERR_FILENO) == 0) return;
    fmt::print(stderr, "\r\033[K{}", text.empty() ? text : fmt::format("[{} of {}] {}", n_asked_ + 1, n_questions_, text));
    std::fflush(stderr);
  }

  SweepOptions o_;
  int n_threads_, n_failed_ = 0;
  std::size_t n_questions_ = 0, n_asked_ = 0;
  Results results_;
};

}  // namespace bench
