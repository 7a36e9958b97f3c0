/// Defines ExpertUses and its text: for one source file of a program.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/profile/detail/files.hpp"
#include "tiered/profile/detail/text_checksum.hpp"
#include "tiered/profile/detail/text_lines.hpp"
#include "tiered/profile/expert_uses.hpp"
#include "tiered/version.hpp"

namespace tiered {

namespace detail {

inline constexpr std::string_view expert_uses_title = "tiered expert uses 1";
inline constexpr std::size_t most_listed_layers = 1 << 16, most_listed_experts = 1 << 16;
inline constexpr std::uint64_t most_listed_uses = std::uint64_t{1} << 40;  // no sum of a layer overflows

inline std::uint64_t sum_of(std::vector<std::uint64_t> const& uses) { return std::accumulate(uses.begin(), uses.end(), std::uint64_t{0}); }

class ExpertUsesReader : public TextLines {
 public:
  explicit ExpertUsesReader(std::string_view text) : TextLines(text, "expert uses") {}

  /// The number that `rest` begins with, and the space behind it.
  std::uint64_t take(std::string_view& rest, std::uint64_t most) const {
    std::uint64_t value = 0;
    std::from_chars_result const result = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (result.ec != std::errc{} || value > most) fail(concat("a number up to ", most, " was expected"));
    rest.remove_prefix(std::size_t(result.ptr - rest.data()));
    if (!rest.empty() && rest.front() != ' ') fail("a space was expected");
    if (!rest.empty()) rest.remove_prefix(1);
    return value;
  }
  /// The rest of a line that begins with a word.
  std::string_view behind(std::string_view line, std::string_view word) const {
    if (!line.starts_with(word) || line.size() <= word.size() || line[word.size()] != ' ') fail(concat(word, " was expected"));
    return line.substr(word.size() + 1);
  }
};

inline void read_layer(ExpertUsesReader const& reader, std::string_view rest, ExpertUses& uses) {
  std::size_t const layer = std::size_t(reader.take(rest, most_listed_layers));
  if (layer < uses.by_layer.size()) reader.fail("layers do not ascend");
  uses.by_layer.resize(layer + 1);
  while (!rest.empty()) {
    if (uses.by_layer[layer].size() == most_listed_experts) reader.fail("too many experts");
    uses.by_layer[layer].push_back(reader.take(rest, most_listed_uses));
  }
}

}  // namespace detail

bool ExpertUses::empty() const {
  return std::ranges::all_of(by_layer, [](auto const& layer) { return detail::sum_of(layer) == 0; });
}

void ExpertUses::add(ExpertUses const& other, std::uint64_t most_per_layer) {
  by_layer.resize(std::max(by_layer.size(), other.by_layer.size()));
  for (std::size_t l = 0; l < other.by_layer.size(); ++l) {
    std::vector<std::uint64_t>& mine = by_layer[l];
    mine.resize(std::max(mine.size(), other.by_layer[l].size()));
    for (std::size_t e = 0; e < other.by_layer[l].size(); ++e) mine[e] += other.by_layer[l][e];
    while (detail::sum_of(mine) > most_per_layer) {
      for (std::uint64_t& n : mine) n /= 2;
    }
  }
}

std::vector<double> ExpertUses::per_step(std::size_t layer, std::int32_t n_used) const {
  if (layer >= by_layer.size()) return {};
  std::vector<double> out(by_layer[layer].size(), 0.0);
  double const sum = double(detail::sum_of(by_layer[layer]));
  for (std::size_t e = 0; e < out.size() && sum > 0; ++e) out[e] = std::min(double(by_layer[layer][e]) / sum * double(n_used), 1.0);
  return out;
}

std::string to_text(ExpertUses const& uses, std::string_view key) {
  expects(key.find('\n') == std::string_view::npos, "a key is one line");
  std::string out = concat(detail::expert_uses_title, "\nkey ", key, '\n');
  for (std::size_t l = 0; l < uses.by_layer.size(); ++l) {
    if (uses.by_layer[l].empty()) continue;
    out += concat("layer ", l);
    for (std::uint64_t const n : uses.by_layer[l]) out += concat(' ', std::min(n, detail::most_listed_uses));
    out += '\n';
  }
  return out + concat("checksum ", detail::text_checksum(out), '\n');
}

ExpertUsesText parse_expert_uses(std::string_view text) {
  detail::ExpertUsesReader reader(text);
  if (reader.line() != detail::expert_uses_title) reader.fail(concat("does not begin with \"", detail::expert_uses_title, '"'));
  ExpertUsesText out;
  out.key = std::string(reader.behind(reader.line(), "key"));
  std::size_t end = text.size() - reader.left().size();
  std::string_view line = reader.line();
  for (; line.starts_with("layer "); line = reader.line()) {
    detail::read_layer(reader, reader.behind(line, "layer"), out.uses);
    end = text.size() - reader.left().size();
  }
  if (reader.behind(line, "checksum") != concat(detail::text_checksum(text.substr(0, end)))) reader.fail("the checksum is another");
  if (!reader.left().empty()) reader.fail("there is more");
  return out;
}

std::string expert_uses_key(std::uint64_t model) {
  char digits[17];
  char* const end = std::to_chars(digits, digits + sizeof digits, model, 16).ptr;
  return concat("model ", std::string_view(digits, std::size_t(end - digits)), "; tiered ", version_text);
}

std::string expert_uses_file(std::string const& folder, std::string const& key) {
  char digits[17];
  char* const end = std::to_chars(digits, digits + sizeof digits, detail::text_checksum(key), 16).ptr;
  return concat(folder, "/experts-", std::string_view(digits, std::size_t(end - digits)), ".txt");
}

KnownExpertUses read_expert_uses(std::string const& path, std::string const& key, std::span<std::int32_t const> n_experts) {
  std::optional<std::string> const text = detail::read_whole_file(path);
  if (!text) return {};
  try {
    ExpertUsesText known = parse_expert_uses(*text);
    if (known.key != key) return {{}, concat(path, " is of another model (", known.key, "): not used")};
    bool fits = known.uses.by_layer.size() <= n_experts.size();
    for (std::size_t l = 0; fits && l < known.uses.by_layer.size(); ++l)
      fits = known.uses.by_layer[l].empty() || known.uses.by_layer[l].size() == std::size_t(n_experts[l]);
    if (!fits) return {{}, concat(path, " has other layers and experts than the model: not used")};
    return {std::move(known.uses), {}};
  } catch (Error const& error) {
    return {{}, concat(path, " is damaged (", error.what(), "): not used")};
  }
}

std::optional<std::string> add_expert_uses(std::string const& path, std::string const& key, ExpertUses const& uses) {
  std::vector<std::int32_t> n_experts;
  for (auto const& layer : uses.by_layer) n_experts.push_back(std::int32_t(layer.size()));
  ExpertUses all = read_expert_uses(path, key, n_experts).uses;
  all.add(uses);
  if (std::size_t const end = path.rfind('/'); end != std::string::npos) detail::make_folders(path.substr(0, end));
  return detail::replace_file(path, to_text(all, key));
}

}  // namespace tiered
