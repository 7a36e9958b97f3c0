/// What a sweep has measured, as lines of JSON: appended one by one, so that a sweep that was stopped goes on where it was.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "bounds.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "vision_cell.hpp"

namespace bench {

/// Of the lines: another where a figure changes its meaning, not where there are more of them. Lines without are of version 1.
inline constexpr int results_version = 1;

/// One model, one budget, one length of prompt; `error` says why there are no figures.
struct Cell {
  std::string model, routing, kv_type, device, machine, kernels, error;
  std::uint64_t file_bytes = 0, vram_bytes = 0;
  int prompt = 0, decoded = 0, threads = 0;
  double held_link_bytes_per_s = 0;  ///< what copies were held to; 0: nothing

  std::string load_steps;    ///< when each step of loading began and ended
  double load_s = 0;         ///< until the engine is made
  double ready_s = 0;        ///< from the start of the process
  double ttft_first_s = 0;   ///< of the first prompt of this length
  double ttft_s = 0;         ///< of the best one after it
  double first_token_s = 0;  ///< of the first token behind that prompt, when plans change
  double decode_per_s = 0;

  std::uint64_t vram_peak_bytes = 0;
  std::string vram_source;  ///< whose figure that is
  double streamed_prompt_bytes = 0, streamed_bytes_per_token = 0, host_bytes_per_token = 0;
  bool counted = false;     ///< streamed bytes were counted; else they are the plan's, and misses of the cache
  double expert_hits = -1;  ///< share, while decoding; -1: no cache
  double ahead_per_token = 0, ahead_right = 0, ahead_in_time = 0;  ///< experts brought on guesses; shares of them

  double ttft_bound_s = 0, decode_physical_s = 0, decode_practical_s = 0;
  double ttft_predicted_s = 0, decode_predicted_s = 0;
  MachineRates rates;

  std::int64_t over_budget_bytes() const { return std::int64_t(vram_peak_bytes) - std::int64_t(vram_bytes); }
  double prefill_per_s() const { return ttft_s > 0 ? prompt / ttft_s : 0; }
  double share_of_ttft_bound() const { return ttft_s > 0 ? ttft_bound_s / ttft_s : 0; }
  double share_of_decode_bound() const { return decode_per_s * decode_practical_s; }
  /// Whether this is the same question; nothing that was measured counts.
  bool is_same(Cell const& c) const {
    return model == c.model && routing == c.routing && kv_type == c.kv_type && device == c.device && file_bytes == c.file_bytes &&
           vram_bytes == c.vram_bytes && prompt == c.prompt && decoded == c.decoded && threads == c.threads &&
           held_link_bytes_per_s == c.held_link_bytes_per_s;
  }
};

/// What another engine's bench said of a model and a length of prompt. `command` as the user gave it.
struct PeerCell {
  std::string model, kv_type, machine, command, error;
  std::uint64_t file_bytes = 0, vram_peak_bytes = 0;
  int prompt = 0, decoded = 0, threads = 0;
  double prefill_per_s = 0, decode_per_s = 0;

  double ttft_s() const { return prefill_per_s > 0 ? prompt / prefill_per_s : 0; }
  bool is_same(PeerCell const& c) const {
    return model == c.model && kv_type == c.kv_type && command == c.command && file_bytes == c.file_bytes && prompt == c.prompt &&
           decoded == c.decoded && threads == c.threads;
  }
};

template <class Rates, class Visit>
void each_rate(Rates& r, Visit visit) {
  visit("cpu_bytes_per_s", r.cpu);
  visit("cpu_beside_link_bytes_per_s", r.cpu_beside_link);
  visit("link_bytes_per_s", r.link);
  visit("link_beside_cpu_bytes_per_s", r.link_beside_cpu);
  visit("device_bytes_per_s", r.device);
  visit("assumed_flop_per_s", r.flops);
  visit("context_bytes", r.context_bytes);
}

/// Cell or PeerCell: the names in the file.
template <class C, class Visit>
void each_common_field(C& c, Visit& visit) {
  visit("model", c.model);
  visit("kv_type", c.kv_type);
  visit("machine", c.machine);
  visit("error", c.error);
  visit("file_bytes", c.file_bytes);
  visit("prompt", c.prompt);
  visit("decoded", c.decoded);
  visit("threads", c.threads);
  visit("vram_peak_bytes", c.vram_peak_bytes);
  visit("decode_tokens_per_s", c.decode_per_s);
}

template <class C, class Visit>
requires requires(C& c) { c.first_token_s; }
void each_field(C& c, Visit visit) {
  each_common_field(c, visit);
  visit("routing", c.routing);
  visit("device", c.device);
  visit("kernels", c.kernels);
  visit("vram_bytes", c.vram_bytes);
  visit("held_link_bytes_per_s", c.held_link_bytes_per_s);
  visit("load_s", c.load_s);
  visit("load_steps", c.load_steps);
  visit("ready_s", c.ready_s);
  visit("ttft_first_s", c.ttft_first_s);
  visit("ttft_s", c.ttft_s);
  visit("first_token_s", c.first_token_s);
  visit("vram_source", c.vram_source);
  visit("streamed_prompt_bytes", c.streamed_prompt_bytes);
  visit("streamed_bytes_per_token", c.streamed_bytes_per_token);
  visit("host_bytes_per_token", c.host_bytes_per_token);
  visit("streamed_bytes_counted", c.counted);
  visit("expert_hits", c.expert_hits);
  visit("experts_ahead_per_token", c.ahead_per_token);
  visit("experts_ahead_right", c.ahead_right);
  visit("experts_ahead_in_time", c.ahead_in_time);
  visit("ttft_bound_s", c.ttft_bound_s);
  visit("decode_physical_s", c.decode_physical_s);
  visit("decode_practical_s", c.decode_practical_s);
  visit("ttft_predicted_s", c.ttft_predicted_s);
  visit("decode_predicted_s", c.decode_predicted_s);
}
template <class C, class Visit>
requires requires(C& c) { c.command; }
void each_field(C& c, Visit visit) {
  each_common_field(c, visit);
  visit("peer", c.command);
  visit("prefill_tokens_per_s", c.prefill_per_s);
}

inline nlohmann::json rates_to_json(MachineRates const& rates) {
  nlohmann::json j = nlohmann::json::object();
  each_rate(rates, [&](char const* key, double value) { j[key] = value; });
  return j;
}
inline MachineRates rates_from_json(nlohmann::json const& j) {
  MachineRates rates;
  each_rate(rates, [&](char const* key, double& value) { value = j.value(key, 0.0); });
  return rates;
}

/// What follows from other figures is written too, for whoever reads the file with something else.
inline nlohmann::json to_json(Cell const& c) {
  nlohmann::json j{{"kind", "cell"}, {"version", results_version}, {"rates", rates_to_json(c.rates)}};
  each_field(c, [&](char const* key, auto const& value) { j[key] = value; });
  j["vram_over_budget_bytes"] = c.over_budget_bytes();
  j["prefill_tokens_per_s"] = c.prefill_per_s();
  j["share_of_ttft_bound"] = c.share_of_ttft_bound();
  j["share_of_decode_bound"] = c.share_of_decode_bound();
  return j;
}
inline nlohmann::json to_json(PeerCell const& c) {
  nlohmann::json j{{"kind", "peer"}, {"version", results_version}};
  each_field(c, [&](char const* key, auto const& value) { j[key] = value; });
  j["ttft_s"] = c.ttft_s();
  return j;
}
inline nlohmann::json to_json(VisionCell const& c) {
  nlohmann::json j{{"kind", "vision"}, {"version", results_version}, {"rates", rates_to_json(c.rates)}};
  each_field(c, [&](char const* key, auto const& value) { j[key] = value; });
  j["vram_over_budget_bytes"] = c.over_budget_bytes();
  j["share_of_ttft_bound"] = c.share_of_ttft_bound();
  j["share_of_decode_bound"] = c.share_of_decode_bound();
  return j;
}

namespace detail {
/// Keys that are missing leave what there is: files of older programs can be read.
template <class C>
C from_json(nlohmann::json const& j) {
  C c;
  each_field(c, [&]<class T>(char const* key, T& value) {
    if (j.contains(key) && !j.at(key).is_null()) value = j.at(key).get<T>();
  });
  return c;
}
}  // namespace detail
inline Cell cell_from_json(nlohmann::json const& j) {
  Cell c = detail::from_json<Cell>(j);
  if (j.contains("rates")) c.rates = rates_from_json(j.at("rates"));
  return c;
}
inline VisionCell vision_from_json(nlohmann::json const& j) {
  VisionCell c = detail::from_json<VisionCell>(j);
  if (j.contains("rates")) c.rates = rates_from_json(j.at("rates"));
  return c;
}
inline PeerCell peer_from_json(nlohmann::json const& j) { return detail::from_json<PeerCell>(j); }

/// All that a file holds, the last of each question.
class Results {
 public:
  /// Nothing where `path` is empty or no file yet. Lines that were cut off are left out, and those of other versions, which note() says.
  /// Errors  bad_file where there is something, but no result among it.
  static Results read(std::string const& path) {
    Results out;
    std::ifstream in(path);
    std::string line;
    int n_read = 0, n_damaged = 0, n_foreign = 0, foreign = 0;
    while (std::getline(in, line)) {
      try {
        if (line.empty()) continue;
        nlohmann::json const j = nlohmann::json::parse(line);
        if (int const version = version_of(j); version != results_version) {
          foreign = version, ++n_foreign;
          continue;
        }
        out.add(j), ++n_read;
      } catch (nlohmann::json::exception const&) {
        ++n_damaged;
      }
    }
    if (n_foreign > 0) {
      out.note_ = tiered::concat(path, ": ", n_foreign, n_foreign == 1 ? " line is" : " lines are", " of version ", foreign,
                                 " of the results, this program has ", results_version, ": not used");
    }
    if (n_read == 0 && n_foreign == 0 && n_damaged > 0)
      throw tiered::Error(tiered::Errc::bad_file, tiered::concat(path, ": there is no result in it"));
    return out;
  }

  void add(nlohmann::json const& j) {
    std::string const kind = j.at("kind");
    if (kind == "cell") replace(cells_, cell_from_json(j));
    if (kind == "peer") replace(peers_, peer_from_json(j));
    if (kind == "vision") replace(visions_, vision_from_json(j));
  }
  std::vector<Cell> const& cells() const { return cells_; }
  std::vector<PeerCell> const& peers() const { return peers_; }
  std::vector<VisionCell> const& visions() const { return visions_; }
  /// What of the file is not used, and why; empty: nothing.
  std::string const& note() const { return note_; }
  /// Answers only: what failed may be asked again.
  template <class C>
  bool answers(C const& question) const {
    return std::ranges::any_of(list(question), [&](C const& c) { return c.error.empty() && c.is_same(question); });
  }

 private:
  static int version_of(nlohmann::json const& j) { return j.is_object() ? j.value("version", 1) : 1; }
  template <class C>
  static void replace(std::vector<C>& list, C cell) {
    auto const at = std::ranges::find_if(list, [&](C const& c) { return c.is_same(cell); });
    if (at != list.end()) {
      *at = std::move(cell);
    } else {
      list.push_back(std::move(cell));
    }
  }
  std::vector<Cell> const& list(Cell const&) const { return cells_; }
  std::vector<PeerCell> const& list(PeerCell const&) const { return peers_; }
  std::vector<VisionCell> const& list(VisionCell const&) const { return visions_; }

  std::vector<Cell> cells_;
  std::vector<PeerCell> peers_;
  std::vector<VisionCell> visions_;
  std::string note_;
};

/// Appends a line, and an end to a line that was cut off. Nothing where `path` is empty.
/// Errors  io with the system's reason.
inline void append_line(std::string const& path, nlohmann::json const& j) {
  if (path.empty()) return;
  std::FILE* const file = std::fopen(path.c_str(), "a+");
  bool written = file != nullptr;
  if (written && std::fseek(file, -1, SEEK_END) == 0 && std::fgetc(file) != '\n') written = std::fputc('\n', file) != EOF;
  if (written) written = std::fputs((j.dump() + '\n').c_str(), file) >= 0;
  if (file != nullptr && std::fclose(file) != 0) written = false;
  if (!written) throw tiered::Error(tiered::Errc::io, tiered::concat(path, ": cannot be written: ", std::strerror(errno)));
}

/// Of how far a prediction is off, as a share of what was measured; 0 where there is none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  std::size_t const n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}
inline double relative_error(double predicted, double measured) { return std::abs(predicted - measured) / measured; }

struct PredictionErrors {
  double ttft = 0, decode = 0;  ///< medians
  int n = 0;
};
inline PredictionErrors prediction_errors(std::vector<Cell> const& cells) {
  std::vector<double> ttft, decode;
  for (Cell const& c : cells) {
    if (!c.error.empty() || c.ttft_s <= 0 || c.ttft_predicted_s <= 0) continue;
    ttft.push_back(relative_error(c.ttft_predicted_s, c.ttft_s));
    if (c.decode_per_s > 0) decode.push_back(relative_error(c.decode_predicted_s, 1 / c.decode_per_s));
  }
  return {median(ttft), median(decode), int(ttft.size())};
}

}  // namespace bench
