/// The rules of Backend, for any model of it with a copy engine that reaches its memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered_test {

/// Floats on the device, moved by the model's copy engine.
template <class Model>
class DeviceFloats {
 public:
  DeviceFloats(Model& model, std::size_t n) : model_(&model), buffer_(model.backend().memory(), n * sizeof(float)) {}
  float* data() { return reinterpret_cast<float*>(buffer_.data()); }

  /// `host` must live until the ticket is done.
  tiered::Ticket put(std::vector<float> const& host, std::span<tiered::Ticket const> after = {}) {
    tiered::CopyPiece const piece{buffer_.data(), reinterpret_cast<std::byte const*>(host.data()), buffer_.bytes()};
    return model_->copy().submit({&piece, 1}, after);
  }
  /// What is there once `after` is done.
  std::vector<float> get(tiered::Ticket after) {
    std::vector<float> host(buffer_.bytes() / sizeof(float));
    tiered::CopyPiece const piece{reinterpret_cast<std::byte*>(host.data()), buffer_.data(), buffer_.bytes()};
    model_->copy().wait(model_->copy().submit({&piece, 1}, {&after, 1}));
    return host;
  }

 private:
  Model* model_;
  tiered::Buffer buffer_;
};

/// y += x on the device.
template <class Model>
void enqueue_add(Model& model, DeviceFloats<Model>& x, DeviceFloats<Model>& y, std::size_t n) {
  tiered::launch(model.backend().kernels().add, tiered::AddArgs{x.data(), y.data(), std::int64_t(n)}, model.backend().queue());
}

/// A device's stream skips nothing that was enqueued: what it makes of bytes that never came, its waiters are told not to use.
template <class Model>
constexpr bool works_on_after_failures = requires { requires Model::works_on_after_failures; };

/// What a backend's memory holds for the backend itself.
template <class B>
std::size_t own_bytes(B const& backend) {
  if constexpr (requires { backend.own_bytes(); }) return backend.own_bytes();
  return 0;
}

/// `model.backend()`, `model.copy()`, and `model.lanes()` that hold the tickets of both.
template <class Model>
void backend_suite() {
  constexpr std::size_t n = 1000;
  std::vector<float> const ones(n, 1.f), zeros(n, 0.f);

  SECTION("a table with a name, the same each time, and an empty queue") {
    Model model;
    REQUIRE(&model.backend().kernels() == &model.backend().kernels());
    REQUIRE(std::strlen(model.backend().kernels().name) > 0);
    model.backend().synchronize();
    tiered::Ticket const ticket = model.backend().record();
    model.copy().wait(ticket);
    REQUIRE(model.copy().done(ticket));
    REQUIRE(model.backend().memory().used_bytes() == own_bytes(model.backend()));
  }
  SECTION("kernels run in the order in which they were enqueued") {
    Model model;
    DeviceFloats<Model> x(model, n), y(model, n);
    model.backend().wait_for(x.put(ones));
    model.backend().wait_for(y.put(zeros));
    for (int i = 0; i < 10; ++i) {  // y: 1, then x = y + x... Fibonacci, which no other order gives
      enqueue_add(model, x, y, n);
      enqueue_add(model, y, x, n);
    }
    REQUIRE(y.get(model.backend().record()) == std::vector<float>(n, 6765.f));
    REQUIRE(x.get(model.backend().record()) == std::vector<float>(n, 10946.f));
  }
  SECTION("work sees what was copied before the ticket it waits for, and copies see the work") {
    Model model;
    DeviceFloats<Model> x(model, n), y(model, n);
    std::vector<float> sum(n, 0.f);
    model.backend().wait_for(y.put(zeros));
    for (int i = 1; i <= 20; ++i) {
      std::vector<float> const step(n, float(i));
      tiered::Ticket const free = model.backend().record();  // the last add has read x
      tiered::Ticket const there = x.put(step, {&free, 1});
      model.backend().wait_for(there);
      enqueue_add(model, x, y, n);
      model.copy().wait(there);  // `step` goes
    }
    REQUIRE(y.get(model.backend().record()) == std::vector<float>(n, 210.f));
  }
  SECTION("an op without a kernel is refused at launch") {
    Model model;
    tiered::Kernel<tiered::AddArgs> const none = nullptr;
    REQUIRE(error_of([&] { tiered::launch(none, tiered::AddArgs{}, model.backend().queue()); }).code == tiered::Errc::unsupported);
    model.backend().synchronize();
  }
  SECTION("the failure of what it waits for comes out of synchronize") {
    Model model;
    DeviceFloats<Model> x(model, n), y(model, n);
    tiered::LaneSet::Lane const lane = model.lanes().open("failing");
    model.backend().wait_for(x.put(ones));
    model.backend().wait_for(y.put(ones));
    model.lanes().submit(lane, [] { throw tiered::Error(tiered::Errc::io, "no bytes"); });
    model.backend().wait_for(model.lanes().record(lane));
    enqueue_add(model, x, y, n);
    REQUIRE(error_of([&] { model.backend().synchronize(); }).code == tiered::Errc::io);
    model.lanes().clear_errors();
    float const now = works_on_after_failures<Model> ? 2.f : 1.f;  // else the add was left out
    REQUIRE(y.get(model.backend().record()) == std::vector<float>(n, now));
    enqueue_add(model, x, y, n);
    REQUIRE(y.get(model.backend().record()) == std::vector<float>(n, now + 1));
  }
}

/// On lanes that have threads.
template <class Model>
void backend_does_not_wait() {
  SECTION("neither wait_for nor a launch blocks the caller") {
    Model model;
    constexpr std::size_t n = 100;
    std::vector<float> const ones(n, 1.f);
    DeviceFloats<Model> x(model, n), y(model, n);
    model.backend().wait_for(x.put(ones));
    model.backend().wait_for(y.put(ones));
    tiered::LaneSet::Lane const lane = model.lanes().open("held");
    std::atomic<bool> open{false};
    model.lanes().submit(lane, [&open] {
      while (!open.load()) std::this_thread::yield();
    });
    model.backend().wait_for(model.lanes().record(lane));
    for (int i = 0; i < 200; ++i) enqueue_add(model, x, y, n);
    tiered::Ticket const ticket = model.backend().record();
    REQUIRE_FALSE(model.lanes().done(ticket));
    open.store(true);  // never reached by a backend that waits
    model.backend().synchronize();
    REQUIRE(model.lanes().done(ticket));
    REQUIRE(y.get(ticket) == std::vector<float>(n, 201.f));
  }
  SECTION("its end waits for its work") {
    Model model;
    std::atomic<int> order{0};
    int at_end = 0;
    {
      typename Model::Backend backend = model.another();
      model.lanes().submit(model.lane_of(backend), [&order, &at_end] { at_end = ++order; });
    }
    REQUIRE(at_end == 1);
  }
}

}  // namespace tiered_test
