/// Defines hardware_profile and its like: for one source file of a program.
#pragma once

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/system.hpp"
#include "tiered/core/text.hpp"
#include "tiered/profile/detail/files.hpp"
#include "tiered/profile/detail/fill_classes.hpp"
#include "tiered/profile/detail/text_checksum.hpp"
#include "tiered/profile/hardware_profile.hpp"
#include "tiered/profile/profile_text.hpp"
#include "tiered/version.hpp"

namespace tiered {

namespace detail {

inline std::string processor_name() {
  std::string found = "unknown processor";
  std::optional<std::string> const text = read_small_file("/proc/cpuinfo");
  for_each_line(text ? std::string_view(*text) : std::string_view(), [&](std::string_view line) {
    std::size_t const colon = line.find(": ");
    if (!line.starts_with("model name") || colon == std::string_view::npos) return true;
    found = std::string(line.substr(colon + 2));
    return false;
  });
  return found;
}

inline std::vector<FormatRates> formats_missing(std::vector<FormatRates> const& needed, MeasureInput const& in,
                                                HardwareProfile const& known) {
  std::vector<FormatRates> missing;
  for (FormatRates const& f : needed) {
    auto const is_in = [&](DeviceRates const& rates) {
      return std::any_of(rates.formats.begin(), rates.formats.end(), [&](FormatRates const& other) { return other.is_alike(f); });
    };
    auto const has_kernel = [&](KernelTable const& kernels) {
      return kernels.supports(f.dtype) && kernels.supports(f.up) && kernels.supports(f.down);
    };
    bool const host = is_in(known.host) || !has_kernel(in.host.kernels());
    bool const gpu = !in.has_device() || is_in(known.gpu) || !has_kernel(in.device.kernels());
    if (!host || !gpu) missing.push_back(f);
  }
  return missing;
}

/// The model's formats come first, since classes are filled from them; the others are another model's.
inline HardwareProfile of_model(HardwareProfile profile, std::vector<FormatRates> const& needed) {
  for (DeviceRates* const rates : {&profile.host, &profile.gpu}) {
    std::vector<FormatRates> own;
    for (FormatRates const& f : needed) {
      for (FormatRates const& known : rates->formats) {
        if (known.is_alike(f)) own.push_back(known);
      }
    }
    rates->formats = std::move(own);
    fill_classes(*rates);
  }
  return profile;
}

/// What a file holds of this machine; why nothing, in `note`.
inline std::optional<HardwareProfile> known_profile(std::string const& path, std::string const& key, std::string& note) {
  std::optional<std::string> const text = read_whole_file(path);
  if (!text) return std::nullopt;
  try {
    ProfileText known = parse_profile_text(*text);
    if (known.key == key) return std::move(known.profile);
    note = concat(path, " is of another machine (", known.key, "): measured anew");
  } catch (Error const& error) {
    note = concat(path, " is damaged (", error.what(), "): measured anew");
  }
  return std::nullopt;
}

}  // namespace detail

std::string machine_key(char const* host_kernels, int n_threads, std::string const& device) {
  std::string key = concat(detail::processor_name(), "; ", host_kernels, " kernels; ", n_threads, " threads; ",
                           device.empty() ? std::string("no device") : device, "; tiered ", version_text);
  std::replace(key.begin(), key.end(), '\n', ' ');
  return key;
}

std::string profile_folder(ProfileOptions const& options) {
  if (!options.folder.empty()) return options.folder;
  char const* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return concat(cache, "/tiered");  // the specification ignores relative ones
  char const* const home = std::getenv("HOME");
  return home != nullptr && home[0] != '\0' ? concat(home, "/.cache/tiered") : std::string();
}

std::string profile_file(std::string const& folder, std::string const& key) {
  char digits[32];
  char* const end = std::to_chars(digits, digits + sizeof digits, detail::text_checksum(key), 16).ptr;
  return concat(folder, "/profile-", std::string_view(digits, std::size_t(end - digits)), ".txt");
}

ProfileResult hardware_profile(MeasureInput const& in, std::string const& key, ProfileOptions const& options) {
  auto const begin = std::chrono::steady_clock::now();
  ProfileResult out;
  std::string const folder = options.use_files ? profile_folder(options) : std::string();
  std::string const path = folder.empty() ? std::string() : profile_file(folder, key);
  std::optional<HardwareProfile> known;
  if (!path.empty()) known = detail::known_profile(path, key, out.note);
  if (known && !holds_true(in, *known)) {
    out.note = concat(path, ": copies or memory run at another speed than it says: measured anew");
    known.reset();
  }
  std::vector<FormatRates> const needed = formats_of(in.table);
  out.source = known ? ProfileSource::file : ProfileSource::measured;
  if (!known) known = measure_hardware(in, options.seconds);
  if (auto const missing = detail::formats_missing(needed, in, *known); out.source == ProfileSource::file && !missing.empty()) {
    measure_formats(in, missing, *known, options.seconds);
    out.source = ProfileSource::extended;
  }
  if (!path.empty() && out.source != ProfileSource::file) {
    detail::make_folders(folder);
    std::optional<std::string> const why = detail::replace_file(path, to_profile_text(*known, key));
    if (why) out.note += concat(out.note.empty() ? "" : "; ", path, " cannot be written (", *why, "): the next start measures again");
    if (!why) out.file = path;
  } else {
    out.file = path;
  }
  out.hardware = detail::of_model(std::move(*known), needed);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

}  // namespace tiered
