/// Defines make_placement: for one source file of a program.
#pragma once

#include <string_view>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/plan/any_policy.hpp"

namespace tiered {

AnyPlacement make_placement(std::string_view name) {
  if (name == placement_names[0]) return AllVram{};
  if (name == placement_names[1]) return AttentionFirst{};
  if (name == placement_names[2]) return SecondsPerByte{};
  if (name == placement_names[3]) return StreamAll{};
  throw Error(Errc::precondition,
              concat("there is no placement \"", name, "\": choose all_vram, attention_first, seconds_per_byte or stream_all"));
}

}  // namespace tiered
