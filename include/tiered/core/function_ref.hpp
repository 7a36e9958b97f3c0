/// A callable that is borrowed, not owned.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace tiered {

template <class Signature>
class FunctionRef;

/// Refers to a callable that must outlive the call it is passed to: a parameter type, never a member.
template <class Result, class... Args>
class FunctionRef<Result(Args...)> {
 public:
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, FunctionRef>) && std::is_invocable_r_v<Result, F&, Args...> FunctionRef(
                                                                      F&& callable) noexcept
      : object_(const_cast<void*>(static_cast<void const*>(std::addressof(callable)))),
  call_([](void* object, Args... args) -> Result {
    return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
  }) {}
  Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

 private:
  void* object_;
  Result (*call_)(void*, Args...);
};

}  // namespace tiered
