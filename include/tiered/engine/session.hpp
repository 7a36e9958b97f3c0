/// Files that hold a conversation: its tokens and their KV, so that it goes on later without processing anything again.
#pragma once

#include <string>
#include <utility>

#include "tiered/engine/conversation.hpp"
#include "tiered/engine/engine.hpp"

namespace tiered {

namespace detail {
void save_session(EngineCore& core, Conversation const& conversation, std::string const& path);
void load_session(EngineCore& core, std::string const& path, Conversation& into);
}  // namespace detail

/// Writes a file that load_session() reads; a file of that name is replaced, at once and whole, or stays as it was. Readable by
/// its owner only, since it holds a conversation. Not called during a step; same thread as the engine.
/// Errors  Errc::io with the system's reason; out_of_memory; device where KV could not be copied.
template <class E>
void save_session(E& engine, Conversation const& conversation, std::string const& path) {
  detail::save_session(engine.core(), conversation, path);
}

/// Replaces what `into` holds by what was saved; whatever follows has the same bits as if it had never stopped. The engine may have
/// another budget and other places for its KV, but not another model or KV type.
/// Errors  Errc::bad_file for a file that is damaged, cut, no session, or one of another model or KV type, saying which; not_found;
///         io; over_budget with both numbers where the context is too small: `into` is as it was then. Where KV cannot be stored
///         (out_of_memory, device), or the file changes meanwhile (bad_file), `into` is empty. The engine is usable after each.
template <class E>
void load_session(E& engine, std::string const& path, Conversation& into) {
  detail::load_session(engine.core(), path, into);
}

/// Into a sequence of its own.  Errors  also Errc::precondition where no sequence is free.
template <class E>
Conversation load_session(E& engine, std::string const& path) {
  Conversation conversation(engine.new_sequence());
  load_session(engine, path, conversation);
  return conversation;
}

}  // namespace tiered
