/// Files that a run writes: what may be written over, and that it can be done, before a word is generated.
#pragma once

#include <string>

#include "options.hpp"

namespace app {

enum class OutputKind { session, messages, trace };

/// Where `file` is to be written: behind symbolic links, so that a link stays one. What is there may only be replaced if it is a regular
/// file that is empty or begins as one of its kind does; where nothing is, nothing is checked.
/// Errors  Errc::io with what is there instead.
std::string checked_output(std::string const& file, OutputKind kind);

/// That there is a file, and one whose reading ends.  Errors  Errc::not_found or io.
void check_regular(std::string const& file);

/// All that the options will have written in the end; o.chat.mode is known.
/// Errors  those of checked_output(); Errc::io where a file could not be made, or where the trace would replace a file that is read.
void check_outputs(Options const& o);

}  // namespace app
