/// The rules of CopyEngine, for any model of it that copies between host addresses.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/core/split_mix.hpp"

namespace tiered_test {

using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(std::size_t n, std::uint64_t seed) {
  tiered::SplitMix64 random(seed);
  Bytes bytes(n);
  for (std::byte& b : bytes) b = std::byte(random.next() & 0xff);
  return bytes;
}

/// Scattered pieces of random sizes, none overlapping; true where every target byte is right and every other is untouched.
template <tiered::CopyEngine C>
bool copies_pieces(C& engine, std::uint64_t seed, std::size_t n_pieces, std::size_t largest) {
  tiered::SplitMix64 random(seed);
  Bytes const source = random_bytes(n_pieces * (largest + 8), seed + 1);
  Bytes target(source.size(), std::byte{0}), expected = target;
  {
    std::vector<tiered::CopyPiece> pieces;
    for (std::size_t i = 0; i < n_pieces; ++i) {
      std::size_t const bytes = random.below(largest + 1), shift = random.below(8), from = random.below(source.size() - bytes + 1);
      std::size_t const to = i * (largest + 8) + shift;
      pieces.push_back({target.data() + to, source.data() + from, bytes});
      for (std::size_t k = 0; k < bytes; ++k) expected[to + k] = source[from + k];
    }
    tiered::Ticket const ticket = engine.submit(pieces, {});
    for (tiered::CopyPiece& piece : pieces) piece = {};  // spans are read during submit only
    engine.wait(ticket);
    if (!engine.done(ticket)) return false;
  }
  return target == expected;
}

template <class Model>
void copy_engine_moves_bytes() {
  SECTION("pieces arrive, all of them, and touch nothing else") {
    Model model;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      INFO("seed " << seed);
      REQUIRE(copies_pieces(model.engine(), seed, 1 + seed * 2, 3000));
    }
  }
  SECTION("pieces of many megabytes and odd sizes") {
    Model model;
    Bytes const source = random_bytes((5 << 20) + 13, 5);
    for (std::size_t bytes : {std::size_t{1} << 20, (std::size_t{1} << 20) - 1, (std::size_t{4} << 20) + 77, source.size() - 3}) {
      Bytes target(source.size(), std::byte{0});
      tiered::CopyPiece const piece{target.data() + 1, source.data() + 3, bytes};
      model.engine().wait(model.engine().submit({&piece, 1}, {}));
      REQUIRE(std::equal(target.begin() + 1, target.begin() + 1 + std::ptrdiff_t(bytes), source.begin() + 3));
      REQUIRE(target[0] == std::byte{0});
      if (bytes + 1 < target.size()) REQUIRE(target[bytes + 1] == std::byte{0});
    }
  }
  SECTION("no pieces, and pieces of no bytes") {
    Model model;
    model.engine().wait(model.engine().submit({}, {}));
    tiered::CopyPiece const nothing{};
    tiered::Ticket const ticket = model.engine().submit({&nothing, 1}, {});
    model.engine().wait(ticket);
    REQUIRE(model.engine().done(ticket));
    REQUIRE(model.engine().done(tiered::Ticket{}));
  }
}

template <class Model>
void copy_engine_keeps_order() {
  SECTION("copies finish in the order of submission") {
    Model model;
    Bytes const source = random_bytes(4096, 9);
    std::vector<Bytes> chain(50, Bytes(source.size()));
    std::vector<tiered::Ticket> tickets;
    for (std::size_t i = 0; i < chain.size(); ++i) {
      tiered::CopyPiece const piece{chain[i].data(), i == 0 ? source.data() : chain[i - 1].data(), source.size()};
      tickets.push_back(model.engine().submit({&piece, 1}, {}));
    }
    model.engine().wait(tickets.back());
    for (tiered::Ticket ticket : tickets) REQUIRE(model.engine().done(ticket));
    REQUIRE(chain.back() == source);
  }
  SECTION("a copy starts after its tickets, of whatever lanes") {
    Model model;
    tiered::LaneSet& lanes = model.lanes();
    tiered::LaneSet::Lane const first = lanes.open("first"), second = lanes.open("second");
    std::byte source[2] = {}, target[2] = {};
    for (int i = 1; i < 100; ++i) {
      lanes.submit(first, [&source, i] { source[0] = std::byte(i); });
      lanes.submit(second, [&source, i] { source[1] = std::byte(2 * i); });
      tiered::Ticket const after[] = {lanes.record(first), {}, lanes.record(second)};
      tiered::CopyPiece const piece{target, source, 2};
      model.engine().wait(model.engine().submit({&piece, 1}, after));
      REQUIRE(target[0] == std::byte(i));
      REQUIRE(target[1] == std::byte(2 * i));
    }
  }
  SECTION("the failure of a ticket that a copy waits for reaches who waits for the copy, and nothing is copied") {
    Model model;
    tiered::LaneSet& lanes = model.lanes();
    tiered::LaneSet::Lane const lane = lanes.open("failing");
    lanes.submit(lane, [] { throw tiered::Error(tiered::Errc::io, "no bytes"); });
    tiered::Ticket const after = lanes.record(lane);
    std::byte source{1}, target{0};
    tiered::CopyPiece const piece{&target, &source, 1};
    REQUIRE(error_of([&] { model.engine().wait(model.engine().submit({&piece, 1}, {&after, 1})); }).code == tiered::Errc::io);
    REQUIRE(target == std::byte{0});
    lanes.clear_errors();
    model.engine().wait(model.engine().submit({&piece, 1}, {&after, 1}));
    REQUIRE(target == std::byte{1});
  }
}

/// For engines that copy behind the caller, on lanes that have threads.
template <class Model>
void copy_engine_does_not_wait() {
  SECTION("submit returns while what it waits for still runs") {
    Model model;
    tiered::LaneSet& lanes = model.lanes();
    tiered::LaneSet::Lane const lane = lanes.open("held");
    std::atomic<bool> open{false};
    std::byte source{0}, target{0};
    lanes.submit(lane, [&open, &source] {
      while (!open.load()) std::this_thread::yield();
      source = std::byte{1};
    });
    tiered::Ticket const after = lanes.record(lane);
    tiered::CopyPiece const piece{&target, &source, 1};
    tiered::Ticket const ticket = model.engine().submit({&piece, 1}, {&after, 1});
    REQUIRE_FALSE(model.engine().done(ticket));
    open.store(true);  // never reached by an engine that waits
    model.engine().wait(ticket);
    REQUIRE(target == std::byte{1});
  }
  SECTION("its end waits for its copies") {
    Bytes const source = random_bytes(100000, 3);
    Bytes target(source.size());
    {
      Model model;
      tiered::CopyPiece const piece{target.data(), source.data(), source.size()};
      for (int i = 0; i < 20; ++i) model.engine().submit({&piece, 1}, {});
    }
    REQUIRE(target == source);
  }
}

}  // namespace tiered_test
