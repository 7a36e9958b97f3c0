/// Defines the text of plans: for one source file of a program.
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/plan_io.hpp"

namespace tiered {

namespace detail {

/// The shortest digits that read back as the same number.
template <class T>
std::string exact(T value) {
  char digits[64];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

/// Three digits: "81.3".
inline std::string rounded(double value) {
  if (!std::isfinite(value)) return "inf";
  char digits[64];
  int const decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, decimals).ptr);
}

inline std::string format_seconds(double s) {
  if (s >= 1) return rounded(s) + " s";
  return s >= 1e-3 ? rounded(s * 1e3) + " ms" : rounded(s * 1e6) + " us";
}

/// Appends " word" or " word*n" for runs of equal words.
class RunLengths {
 public:
  explicit RunLengths(std::string& out) : out_(out) {}
  void add(std::string const& word) {
    if (n_ > 0 && word == word_) {
      ++n_;
      return;
    }
    end();
    word_ = word;
    n_ = 1;
  }
  void end() {
    if (n_ > 0) out_ += n_ > 1 ? concat(' ', word_, '*', n_) : concat(' ', word_);
    n_ = 0;
  }

 private:
  std::string& out_;
  std::string word_;
  std::size_t n_ = 0;
};

/// Takes words off a text and complains with their place.
class PlanReader {
 public:
  explicit PlanReader(std::string_view text) : text_(text) {}
  bool at_line_end() {
    skip_blanks();
    return at_ == text_.size() || text_[at_] == '\n';
  }
  std::string_view word() {
    while (at_line_end() && at_ < text_.size()) ++at_;
    std::size_t const begin = at_;
    while (at_ < text_.size() && text_[at_] != ' ' && text_[at_] != '\n') ++at_;
    return text_.substr(begin, at_ - begin);
  }
  void expect(std::string_view wanted) {
    std::string_view const found = word();
    if (found != wanted) fail(concat("\"", wanted, "\" instead of \"", found, "\""));
  }
  template <class T>
  T number(std::string_view digits) {
    T value{};
    auto const [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc{} || rest != digits.data() + digits.size()) fail(concat("a number instead of \"", digits, "\""));
    return value;
  }
  template <class T>
  T named(std::string_view name) {
    expect(name);
    return number<T>(word());
  }
  /// Calls f(word) for each word of the line, as often as its "*n" says.
  template <class F>
  void runs(F f) {
    while (!at_line_end()) {
      std::string_view const run = word();
      std::size_t const star = run.find('*');
      std::size_t const n = star == run.npos ? 1 : number<std::size_t>(run.substr(star + 1));
      if (n == 0 || n > max_runs || (total_ += n) > max_runs) fail(concat("a count up to ", max_runs));
      for (std::size_t i = 0; i < n; ++i) f(run.substr(0, star));
    }
  }
  [[noreturn]] void fail(std::string const& wanted) const {
    throw Error(Errc::bad_file, concat("plan text, byte ", at_, ": expected ", wanted));
  }

 private:
  static constexpr std::size_t max_runs = std::size_t{1} << 22;  // a typing error must not fill the memory
  void skip_blanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  std::string_view text_;
  std::size_t at_ = 0, total_ = 0;
};

inline Placement parse_placement(std::string_view word, PlanReader& reader) {
  Placement p;
  std::size_t const first = word.find(':');
  std::string_view const home = word.substr(0, first);
  bool known = false;
  for (Tier const tier : {Tier::vram, Tier::pinned, Tier::pageable, Tier::disk}) {
    if (home != name(tier)) continue;
    p.home = tier;
    known = true;
  }
  if (!known || first == word.npos) reader.fail(concat("home:gpu_rows[:cached] instead of \"", word, "\""));
  std::string_view rest = word.substr(first + 1);
  std::size_t const second = rest.find(':');
  p.gpu_rows = reader.number<float>(rest.substr(0, second));
  p.cached = second != rest.npos;
  if (p.cached && rest.substr(second) != ":cached") reader.fail(concat("\":cached\" at the end of \"", word, "\""));
  return p;
}

inline char letter(Placement const& p) { return p.resident() ? 'R' : p.cached ? 'C' : p.gpu_rows > 0 ? 'S' : '.'; }

/// Of many experts: the capital if all are so, else small if some are, 'm' for residents and cached ones together.
inline char letter(std::size_t n, std::size_t n_resident, std::size_t n_cached) {
  if (n_resident + n_cached == 0) return '.';
  if (n_resident > 0 && n_cached > 0) return 'm';
  bool const all = n_resident + n_cached == n;
  return n_resident > 0 ? (all ? 'R' : 'r') : (all ? 'C' : 'c');
}

inline std::string expert_tokens_text(ShardPlan const& plan) {
  return plan.expert_tokens == 0 ? std::string() : concat(" experts ", plan.expert_tokens);
}

inline std::string overlap_text(ShardPlan const& plan) {
  return plan.shared_bytes == 0 ? std::string() : concat(" less ", format_bytes(plan.shared_bytes), " of both");
}
inline std::string shared_text(ShardPlan const& plan) {
  return plan.shared_bytes == 0 ? std::string() : concat(" shared ", plan.shared_bytes);
}

inline std::string share_text(ExpertShare const& share) {
  std::string out;
  if (share == ExpertShare{}) return out;
  for (ExpertShareField const& f : expert_share_fields) out += concat(' ', f.name, ' ', exact(share.*f.seconds));
  return concat("\nshare", out);
}

}  // namespace detail

std::string to_text(ShardPlan const& plan) {
  std::string out = concat("plan chunk ", plan.chunk_tokens, " block ", plan.block_tokens, detail::expert_tokens_text(plan),
                           "\nbytes vram ", plan.vram_bytes, " resident ", plan.resident_bytes, " state ", plan.state_bytes, " cache ",
                           plan.cache_bytes, " ring ", plan.ring_bytes, " scratch ", plan.scratch_bytes, " shortfall ",
                           plan.shortfall_bytes, detail::shared_text(plan), "\nmisses fetched ", detail::exact(plan.fetched_misses),
                           plan.deterministic ? " deterministic 1" : "", detail::share_text(plan.share), "\nshards");
  detail::RunLengths shards{out};
  for (Placement const& p : plan.shards) shards.add(concat(name(p.home), ':', detail::exact(p.gpu_rows), p.cached ? ":cached" : ""));
  shards.end();
  out += "\nstates";
  detail::RunLengths states{out};
  for (float const share : plan.state_in_vram) states.add(detail::exact(share));
  states.end();
  if (plan.state_read_share > 0) out += concat("\nreads ", detail::exact(plan.state_read_share), " ahead ", plan.state_read_tokens);
  return out + '\n';
}

ShardPlan parse_plan(std::string_view text) {
  detail::PlanReader reader{text};
  ShardPlan plan;
  reader.expect("plan");
  plan.chunk_tokens = reader.named<std::int32_t>("chunk");
  plan.block_tokens = reader.named<std::int32_t>("block");
  if (!reader.at_line_end()) plan.expert_tokens = reader.named<std::int32_t>("experts");
  reader.expect("bytes");
  plan.vram_bytes = reader.named<std::size_t>("vram");
  plan.resident_bytes = reader.named<std::size_t>("resident");
  plan.state_bytes = reader.named<std::size_t>("state");
  plan.cache_bytes = reader.named<std::size_t>("cache");
  plan.ring_bytes = reader.named<std::size_t>("ring");
  plan.scratch_bytes = reader.named<std::size_t>("scratch");
  plan.shortfall_bytes = reader.named<std::size_t>("shortfall");
  if (!reader.at_line_end()) plan.shared_bytes = reader.named<std::size_t>("shared");
  reader.expect("misses");
  plan.fetched_misses = reader.named<float>("fetched");
  if (!reader.at_line_end()) plan.deterministic = reader.named<int>("deterministic") != 0;
  std::string_view const next = reader.word();
  if (next == "share") {
    for (detail::ExpertShareField const& f : detail::expert_share_fields) plan.share.*f.seconds = reader.named<double>(f.name);
    reader.expect("shards");
  } else if (next != "shards") {
    reader.fail(concat("\"share\" or \"shards\" instead of \"", next, "\""));
  }
  reader.runs([&](std::string_view word) { plan.shards.push_back(detail::parse_placement(word, reader)); });
  reader.expect("states");
  reader.runs([&](std::string_view word) { plan.state_in_vram.push_back(reader.number<float>(word)); });
  std::string_view last = reader.word();
  if (last == "reads") {
    plan.state_read_share = reader.number<float>(reader.word());
    plan.state_read_tokens = reader.named<std::int32_t>("ahead");
    last = reader.word();
  }
  if (!last.empty()) reader.fail("the end");
  return plan;
}

std::string layer_map(ShardPlan const& plan, ShardTable const& table) {
  std::size_t const n_layers = table.states.size();
  std::string attention(n_layers, ' '), kv(n_layers, ' '), ffn(n_layers, ' '), output;
  for (Step const& step : table.steps) {
    Shard const& s = table.shard(step.shard);
    char const letter = detail::letter(plan.shards[std::size_t(s.id)]);
    std::size_t const l = std::size_t(s.layer);
    if (s.kind == ShardKind::output) output = letter;
    if (s.layer < 0 || l >= n_layers) continue;
    if (s.kind == ShardKind::attention) attention[l] = letter;
    if (s.kind == ShardKind::ffn || s.kind == ShardKind::router) ffn[l] = letter;
  }
  for (std::size_t l = 0; l < n_layers; ++l) kv[l] = plan.state_in_vram[l] > 0 ? 'V' : '.';
  std::string out = concat("  attention ", attention, "\n  kv        ", kv, "\n  ffn       ", ffn, '\n');
  ExpertLayers const experts{table.shards};
  if (!experts.layers.empty()) {
    std::string letters(n_layers, ' ');
    for (ExpertLayer const& layer : experts.layers) {
      std::size_t n_resident = 0, n_cached = 0;
      for (std::size_t i = layer.begin; i < layer.end; ++i) {
        Placement const& p = plan.shards[experts.ids[i]];
        (p.cached ? n_cached : n_resident) += p.gpu_rows > 0;
      }
      letters[std::size_t(layer.layer)] = detail::letter(layer.size(), n_resident, n_cached);
    }
    out += concat("  experts   ", letters, '\n');
  }
  return out + concat("  output    ", output, '\n');
}

std::string summary(TierPlan const& tier) {
  std::size_t n_resident = 0, n_streamed = 0, n_cached = 0, n_host = 0;
  for (Placement const& p : tier.plan.shards) ++(p.resident() ? n_resident : p.cached ? n_cached : p.streamed() ? n_streamed : n_host);
  ShardPlan const& plan = tier.plan;
  Estimate const& e = tier.estimate;
  auto bytes = [](char const* what, std::size_t n) { return n == 0 ? std::string() : concat(' ', what, ' ', format_bytes(n)); };
  return concat("up to ", tier.rows.n, tier.rows.n == 1 ? " token" : " tokens", ": vram ", format_bytes(plan.vram_bytes),
                plan.vram_bytes == 0 ? "" : " =", bytes("weights", plan.resident_bytes), bytes("kv", plan.state_bytes),
                bytes("ring", plan.ring_bytes), bytes("cache", plan.cache_bytes), detail::overlap_text(plan),
                bytes("scratch", plan.scratch_bytes), "; shards ", n_resident, " resident ", n_streamed, " streamed ", n_cached, " cached ",
                n_host, " host; chunk ", plan.chunk_tokens, " block ", plan.block_tokens, detail::expert_tokens_text(plan),
                plan.share ? ", host takes a share of experts" : "", "; predicted ", detail::format_seconds(e.seconds), ", bound ",
                detail::format_seconds(e.bound_s), " (copy ", detail::format_seconds(e.copy_s), ", gpu ", detail::format_seconds(e.gpu_s),
                ", host ", detail::format_seconds(e.host_s), ")\n");
}

std::string to_text(TierPlan const& tier, ShardTable const& table) { return summary(tier) + layer_map(tier.plan, table); }

std::string to_text(Schedule const& schedule) {
  std::string out;
  for (Action const& a : schedule) {
    out += name(a.kind);
    if (a.kind == ActionKind::hop) {
      out += concat(" to device ", a.device.value, '\n');
      continue;
    }
    out += concat(' ', std::uint32_t(a.shard));
    if (a.rows != Range{}) out += concat(" [", a.rows.begin, ", ", a.rows.end, ')');
    if (a.kind == ActionKind::run) out += concat(" on device ", a.device.value);
    if (a.kind == ActionKind::copy || a.kind == ActionKind::release) out += concat(" at ", a.ring_offset, " bytes ", a.bytes);
    out += '\n';
  }
  return out;
}

namespace detail {

/// What was measured of a model's own weights: a line per type and shape, GFLOP/s by rows.
inline std::string formats_text(DeviceRates const& device) {
  std::string out;
  for (FormatRates const& f : device.formats) {
    out += concat("  ", device.name, ": ", f.experts ? "experts " : "", name(f.dtype),
                  f.experts ? concat('/', name(f.up), '/', name(f.down)) : "", " [", f.rows, ", ", f.cols, "] ",
                  rounded(f.rates.bytes_per_s / 1e9), " GB/s, GFLOP/s by rows");
    for (RatePoint const& p : f.rates.flops_by_rows.points) out += concat(' ', p.size, ':', rounded(p.per_s / 1e9));
    out += '\n';
  }
  return out;
}

/// " 1 MiB:40.1" for each point, sizes as `size` writes them; nothing of an empty curve.
template <class Size>
std::string curve_text(std::string_view title, RateCurve const& curve, Size size) {
  std::string out;
  for (RatePoint const& p : curve.points)
    out += concat(out.empty() ? concat("  ", title, ", GB/s") : "", ' ', size(p.size), ':', rounded(p.per_s / 1e9));
  return out.empty() ? out : out + '\n';
}

/// What only a machine that was measured has.
inline std::string measured_text(HardwareProfile const& h) {
  if (h.both_ways.points.empty() && h.dram_by_threads.points.empty()) return {};
  auto const kib = [](double bytes) { return concat(bytes / 1024, "K"); };
  std::string out = curve_text("to the device by piece", h.h2d, kib) + curve_text("from the device by piece", h.d2h, kib) +
                    curve_text("both in turn", h.both_ways, kib) +
                    curve_text("reading by threads", h.dram_by_threads, [](double n) { return concat(n); });
  if (h.both_ways.points.empty()) return out;
  return out + concat("  at once: the host's products keep ", rounded(100 * h.mutual.host_share), " %, copies to the device ",
                      rounded(100 * h.mutual.h2d_share), " % of their rates; event ", format_seconds(h.event_latency_s), '\n');
}

}  // namespace detail

std::string to_text(HardwareProfile const& h) {
  auto gb = [](double per_s) { return detail::rounded(per_s / 1e9); };
  std::string out;
  for (DeviceRates const* device : {&h.host, &h.gpu}) {
    out += concat(device->name, ": ");
    for (std::size_t c = 0; c < n_weight_classes; ++c) {
      MatmulRates const& rates = device->matmul[c];
      out += concat(name(WeightClass(c)), ' ', gb(rates.bytes_per_s), " GB/s ", gb(rates.flops_by_rows.peak_per_s()), " GFLOP/s, ");
    }
    out += concat("attention ", gb(device->attention_bytes_per_s), " GB/s ", gb(device->attention_flops_per_s), " GFLOP/s, launch ",
                  detail::format_seconds(device->launch_s), '\n');
  }
  for (DeviceRates const* device : {&h.host, &h.gpu}) out += detail::formats_text(*device);
  return out + concat("link: to the device ", gb(h.h2d.peak_per_s()), " GB/s, back ", gb(h.d2h.peak_per_s()), " GB/s, copy latency ",
                      detail::format_seconds(h.copy_latency_s), ", hop ", detail::format_seconds(h.hop_latency_s), "; DRAM ",
                      gb(h.dram_bytes_per_s), " GB/s; ", h.n_threads, " threads\n", detail::measured_text(h));
}

}  // namespace tiered
