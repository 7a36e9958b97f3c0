/// Defines to_profile_text and parse_profile_text: for one source file of a program.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/profile/detail/text_checksum.hpp"
#include "tiered/profile/detail/text_lines.hpp"
#include "tiered/profile/profile_text.hpp"

namespace tiered {

namespace detail {

inline constexpr std::string_view profile_title = "tiered hardware profile 1";

/// Writes every figure of a profile by its name, or reads them in the same order: one list of figures for both.
class ProfileWriter {
 public:
  explicit ProfileWriter(std::string& out) : out_(out) {}
  void text(std::string_view name, std::string const& value) { out_ += concat(name, ' ', value, '\n'); }
  void number(std::string_view name, double value) {
    out_ += name;
    digits(value);
    out_ += '\n';
  }
  void integer(std::string_view name, std::int32_t value) { number(name, value); }
  void curve(std::string_view name, RateCurve const& curve) {
    out_ += name;
    for (RatePoint const& p : curve.points) digits(p.size), digits(p.per_s);
    out_ += '\n';
  }
  void format(std::string_view name, FormatRates const& f) {
    out_ += name;
    for (double const value :
         {double(f.dtype), double(f.up), double(f.down), double(f.experts), double(f.rows), double(f.cols), f.rates.bytes_per_s})
      digits(value);
    for (RatePoint const& p : f.rates.flops_by_rows.points) digits(p.size), digits(p.per_s);
    out_ += concat(" # ", f.experts ? "experts " : "", tiered::name(f.dtype), '\n');
  }
  void formats(std::string_view name, std::vector<FormatRates> const& all) {
    integer(concat(name, "_count"), std::int32_t(all.size()));
    for (FormatRates const& f : all) format(name, f);
  }

 private:
  void digits(double value) {
    char buffer[64];
    out_ += ' ';
    out_.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);  // the shortest that reads back as the same
  }
  std::string& out_;
};

class ProfileReader : public TextLines {
 public:
  explicit ProfileReader(std::string_view text) : TextLines(text, "hardware profile") {}

  void text(std::string_view name, std::string& value) { value = std::string(named(name)); }
  void number(std::string_view name, double& value) {
    std::string_view rest = named(name);
    value = take(rest);
    if (!rest.empty()) fail("one number was expected");
  }
  void integer(std::string_view name, std::int32_t& value) {
    double read = 0;
    number(name, read);
    value = whole(read);
  }
  void curve(std::string_view name, RateCurve& curve) {
    std::string_view rest = named(name);
    points(rest, curve);
  }
  void format(std::string_view name, FormatRates& f) {
    std::string_view rest = named(name);
    rest = rest.substr(0, rest.find(" #"));
    for (DType* const type : {&f.dtype, &f.up, &f.down}) {
      *type = DType(whole(take(rest)));
      if (tiered::name(*type) == nullptr) fail("there is no such type");
    }
    f.experts = take(rest) != 0;
    f.rows = whole(take(rest)), f.cols = whole(take(rest));
    f.rates.bytes_per_s = take(rest);
    points(rest, f.rates.flops_by_rows);
  }
  void formats(std::string_view name, std::vector<FormatRates>& all) {
    std::int32_t n = 0;
    integer(concat(name, "_count"), n);
    if (n > 10000) fail("too many formats");
    all.resize(std::size_t(n));
    for (FormatRates& f : all) format(name, f);
  }

 private:
  std::string_view named(std::string_view name) {
    std::string_view text = line();
    if (!text.starts_with(name) || (text.size() > name.size() && text[name.size()] != ' ')) fail(concat(name, " was expected"));
    text.remove_prefix(std::min(text.size(), name.size() + 1));
    return text;
  }
  double take(std::string_view& rest) {
    double value = 0;
    std::from_chars_result const result = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    // Rates and times: none is negative, and only what a plan never asks for is infinite.
    if (result.ec != std::errc{} || !std::isfinite(value) || value < 0) fail("a number was expected");
    rest.remove_prefix(std::size_t(result.ptr - rest.data()));
    if (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    return value;
  }
  std::int32_t whole(double value) {
    if (value > 2147483647.0 || value != std::floor(value)) fail("a whole number was expected");
    return std::int32_t(value);
  }
  void points(std::string_view rest, RateCurve& curve) {
    curve.points.clear();
    while (!rest.empty()) {
      double const size = take(rest);
      if (!curve.points.empty() && size <= curve.points.back().size) fail("sizes do not ascend");
      curve.points.push_back({size, take(rest)});
    }
  }
};

/// `Io` writes const profiles or reads others.
template <class Io, class Profile>
void each_figure(Io& io, Profile& h) {
  auto const device = [&](auto& rates, std::string const& name) {
    io.text(name + "_name", rates.name);
    for (std::size_t c = 0; c < n_weight_classes; ++c) {
      std::string const of = concat(name, '_', tiered::name(WeightClass(c)));
      io.number(of + "_bytes_per_s", rates.matmul[c].bytes_per_s);
      io.curve(of + "_flops_by_rows", rates.matmul[c].flops_by_rows);
    }
    io.number(name + "_attention_bytes_per_s", rates.attention_bytes_per_s);
    io.number(name + "_attention_flops_per_s", rates.attention_flops_per_s);
    io.number(name + "_launch_s", rates.launch_s);
    io.formats(name + "_format", rates.formats);
  };
  device(h.host, "host");
  device(h.gpu, "gpu");
  io.integer("n_threads", h.n_threads);
  io.number("dram_bytes_per_s", h.dram_bytes_per_s);
  io.curve("dram_bytes_per_s_by_threads", h.dram_by_threads);
  io.curve("h2d_bytes_per_s_by_piece", h.h2d);
  io.curve("d2h_bytes_per_s_by_piece", h.d2h);
  io.curve("both_ways_bytes_per_s_by_piece", h.both_ways);
  io.number("copy_latency_s", h.copy_latency_s);
  io.number("hop_latency_s", h.hop_latency_s);
  io.number("event_latency_s", h.event_latency_s);
  io.number("mutual_host_share", h.mutual.host_share);
  io.number("mutual_h2d_share", h.mutual.h2d_share);
}

}  // namespace detail

std::string to_profile_text(HardwareProfile const& profile, std::string_view key) {
  expects(key.find('\n') == std::string_view::npos, "a key is one line");
  std::string out = concat(detail::profile_title, "\nkey ", key, '\n');
  detail::ProfileWriter writer(out);
  detail::each_figure(writer, profile);
  return out + concat("checksum ", detail::text_checksum(out), '\n');
}

ProfileText parse_profile_text(std::string_view text) {
  detail::ProfileReader reader(text);
  if (reader.line() != detail::profile_title) reader.fail(concat("does not begin with \"", detail::profile_title, '"'));
  ProfileText out;
  reader.text("key", out.key);
  detail::each_figure(reader, out.profile);
  std::size_t const end = text.size() - reader.left().size();
  std::string sum;
  reader.text("checksum", sum);
  if (sum != concat(detail::text_checksum(text.substr(0, end)))) reader.fail("the checksum is another");
  if (!reader.left().empty()) reader.fail("there is more");
  return out;
}

}  // namespace tiered
