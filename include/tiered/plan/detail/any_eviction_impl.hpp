/// Defines make_eviction: for one source file of a program.
#pragma once

#include <string_view>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/plan/any_eviction.hpp"
#include "tiered/plan/frequency_decay.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/plan/prior_frequency.hpp"

namespace tiered {

AnyEviction make_eviction(std::string_view name) {
  if (name == eviction_names[0]) return Lru{};
  if (name == eviction_names[1]) return FrequencyDecay{};
  if (name == eviction_names[2]) return PriorFrequency{};
  throw Error(Errc::precondition, concat("there is no eviction policy \"", name, "\": choose lru, frequency_decay or prior_frequency"));
}

}  // namespace tiered
