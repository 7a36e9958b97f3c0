/// A value that is made on another thread while this one goes on.
#pragma once

#include <exception>
#include <memory>
#include <thread>
#include <utility>

namespace app {

template <class T>
class Background {
 public:
  /// What `make` borrows outlives the object.
  template <class Make>
  explicit Background(Make make)
      : thread_([this, make = std::move(make)] {
          try {
            value_.reset(new T(make()));
          } catch (...) {
            error_ = std::current_exception();
          }
        }) {}
  Background(Background const&) = delete;
  Background& operator=(Background const&) = delete;
  ~Background() {
    if (thread_.joinable()) thread_.join();
  }
  /// Waits. Throws what `make` threw. One thread.
  T const& get() {
    if (thread_.joinable()) thread_.join();
    if (error_) std::rethrow_exception(error_);
    return *value_;
  }

 private:
  std::unique_ptr<T const> value_;
  std::exception_ptr error_;
  std::thread thread_;  // begins when the rest is there
};

}  // namespace app
