/// The simulated device, for planning, tests and learning: policies, memory, copies, faults, virtual time.
#pragma once

#include "tiered/engine/sim_policies.hpp"
#include "tiered/sim/faults.hpp"
#include "tiered/sim/sim_backend.hpp"
#include "tiered/sim/sim_clock.hpp"
#include "tiered/sim/sim_copy_engine.hpp"
#include "tiered/sim/sim_tier.hpp"
