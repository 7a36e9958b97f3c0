/// Moving bytes between tiers: tickets, pieces, and the concept of an engine that copies.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tiered {

/// A point in one ordered lane (a copy stream, a compute stream, the CPU team). Any lane can wait for any ticket.
/// Value 0 is a ticket that was always done.
struct Ticket {
  std::uint32_t lane = 0;
  std::uint64_t value = 0;
  bool operator==(Ticket const&) const = default;
};

struct CopyPiece {
  std::byte* dst = nullptr;
  std::byte const* src = nullptr;
  std::size_t bytes = 0;
};

/// Which way a copy crosses the link between host and device, which carries both at once.
enum class LinkWay : std::uint8_t {
  to_device,
  to_host,
  none,  ///< from and to the same side
};
inline constexpr std::size_t n_link_ways = 2;  // of those that cross it

/// | expression                | result | meaning, errors, threads                                                                     |
/// |---------------------------|--------|----------------------------------------------------------------------------------------------|
/// | `c.submit(pieces, after)` | Ticket | does not wait; starts after the tickets, which may be of any lane; the pieces are one transfer |
/// | `k.done(ticket)`          | bool   | true once source and target may be reused                                                    |
/// | `c.wait(ticket)`          | void   | blocks the calling thread; throws the Error of a failed copy                                 |
/// All tickets of one engine are of one lane, and copies finish in submission order: an engine with several queues orders them.
/// The spans are read during submit only. One submitting thread. Optional: `recover()` waits for all copies and forgets errors;
/// `times(begin, end)` says when the copies between two tickets ran; `way_of(piece)` which way its first byte crosses the link (of the
/// submitting thread; an engine without it has one way, to the device).
template <class C>
concept CopyEngine = requires(C& c, C const& k, std::span<CopyPiece const> pieces, std::span<Ticket const> after, Ticket t) {
  { c.submit(pieces, after) } -> std::same_as<Ticket>;
  { k.done(t) } -> std::same_as<bool>;
  { c.wait(t) } -> std::same_as<void>;
};

}  // namespace tiered
