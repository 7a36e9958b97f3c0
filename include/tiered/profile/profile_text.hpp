/// A machine's profile as text that people can read and programs read back.
#pragma once

#include <string>
#include <string_view>

#include "tiered/plan/cost.hpp"

namespace tiered {

/// A line per figure or curve, units in the names, all digits; the first line says what it is, the second whose, the last holds a checksum
/// of those before, so that a file that was cut off or changed by hand is known. `key`: of the machine, without line breaks.
std::string to_profile_text(HardwareProfile const& profile, std::string_view key);

struct ProfileText {
  HardwareProfile profile;
  std::string key;
};
/// The reverse, exactly.
/// Errors  bad_file where `text` is nothing that to_profile_text() has written, with the number of the line.
ProfileText parse_profile_text(std::string_view text);

}  // namespace tiered
