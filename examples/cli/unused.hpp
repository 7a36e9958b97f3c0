/// Options that were given and can change nothing in the run that they were given for.
#pragma once

#include "options.hpp"

namespace app {

/// Says each of them on stderr, unless --log-disable. `o`: with its device and mode settled.
/// Errors  UsageError for --link where nothing crosses a link: what such a run measures would be taken for the link's.
void tell_unused(Options const& o, bool has_experts);

}  // namespace app
