/// How often each expert of a model was used in earlier runs, as text that people can read and programs read back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tiered {

/// By layer and expert; a layer without experts, or whose experts nobody counted, is empty or all 0.
struct ExpertUses {
  std::vector<std::vector<std::uint64_t>> by_layer;
  bool operator==(ExpertUses const&) const = default;

  bool empty() const;
  /// Adds what another run counted. A layer that has more than `most_per_layer` uses then forgets half of them, as often as it takes: so
  /// what a model is used for lately weighs more.
  void add(ExpertUses const& other, std::uint64_t most_per_layer = std::uint64_t{1} << 20);
  /// Of a layer, by expert: how many of `n_used` experts that each step takes it is on the average. Zeros where nothing was counted.
  std::vector<double> per_step(std::size_t layer, std::int32_t n_used) const;
};

/// A line per layer with experts; the first line says what it is, the second whose, the last holds a checksum of those before. `key`: of
/// the model, without line breaks.
std::string to_text(ExpertUses const& uses, std::string_view key);

struct ExpertUsesText {
  ExpertUses uses;
  std::string key;
};
/// The reverse, exactly, but for empty layers at the end.
/// Errors  bad_file where `text` is nothing that to_text() has written, with the number of the line.
ExpertUsesText parse_expert_uses(std::string_view text);

/// One line: the model by its fingerprint, and the version of the library.
std::string expert_uses_key(std::uint64_t model);
/// The file of a model in a folder of profiles.
std::string expert_uses_file(std::string const& folder, std::string const& key);

struct KnownExpertUses {
  ExpertUses uses;
  std::string note;  ///< why the file was not used; empty: nothing is amiss, or there is none
};
/// What the file holds of the model, whose layers have so many experts. Never an error.
KnownExpertUses read_expert_uses(std::string const& path, std::string const& key, std::span<std::int32_t const> n_experts);
/// Adds what a run counted to what the file holds by now, and replaces it in one go: of runs that end in the same moment one
/// may be lost. Why that is not so, or nothing.
std::optional<std::string> add_expert_uses(std::string const& path, std::string const& key, ExpertUses const& uses);

}  // namespace tiered
