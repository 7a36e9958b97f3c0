/// For programs that include it from here; see core/split_mix.hpp.
#pragma once

#include "tiered/core/split_mix.hpp"
