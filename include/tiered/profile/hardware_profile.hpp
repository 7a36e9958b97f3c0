/// The profile of this machine: out of a file where it is known, else measured and kept. Link tiered::cpu, or include tiered/cpu.hpp in one
/// source file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tiered/profile/measure.hpp"

namespace tiered {

struct ProfileOptions {
  std::optional<bool> measure = std::nullopt;  ///< nothing: where there is a real device; else plans are of HardwareProfile::simulated()
  bool use_files = true;                       ///< false: neither reads nor writes one
  std::string folder = {};                     ///< empty: "tiered" in $XDG_CACHE_HOME, or else in ~/.cache; none where neither is set
  double seconds = 3;                          ///< about the most that measuring takes
};

enum class ProfileSource : std::uint8_t {
  simulated,  ///< nobody measured: a made-up machine
  given,      ///< by the caller
  file,       ///< measured earlier, and found to hold true
  extended,   ///< likewise, with formats that were measured now
  measured,   ///< now
};
constexpr char const* name(ProfileSource source) {
  switch (source) {
    case ProfileSource::simulated: return "simulated";
    case ProfileSource::given: return "given";
    case ProfileSource::file: return "file";
    case ProfileSource::extended: return "extended";
    case ProfileSource::measured: return "measured";
  }
  return "?";
}

struct ProfileResult {
  HardwareProfile hardware;  ///< `formats` are those of the model only
  ProfileSource source{};
  std::string file;    ///< that it is in; empty: in none
  std::string note;    ///< why a file was not used or not written; empty: nothing is amiss
  double seconds = 0;  ///< that this took
};

/// What a profile is of: the processor, the host's kernels and threads, the device with its driver (`device`, as the machine names it), and
/// the version of the library. One line.
std::string machine_key(char const* host_kernels, int n_threads, std::string const& device);

/// The folder of the profiles, empty where none is known; the file of a machine within it.
std::string profile_folder(ProfileOptions const& options);
std::string profile_file(std::string const& folder, std::string const& key);

/// Reads the machine's file, checks it (holds_true), measures what it lacks, or all of it where there is no file, it is damaged or of
/// another machine, or no longer true; and writes it back. What goes wrong with files is said in `note` and is no error. Errors  as
/// measure_hardware().
ProfileResult hardware_profile(MeasureInput const& input, std::string const& key, ProfileOptions const& options = {});

}  // namespace tiered
