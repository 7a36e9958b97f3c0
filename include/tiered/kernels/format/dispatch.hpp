/// From a type known at run time to a format known at compile time: the only such place.
#pragma once

#include <cstddef>
#include <type_traits>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/format/format.hpp"

namespace tiered {
namespace detail {

template <class Result, class Function, class Format>
Result call_with_format(Function& function) {
  return function(Format{});
}

template <class Function, class First, class... Rest>
decltype(auto) dispatch_format(FormatList<First, Rest...>, DType dtype, Function& function) {
  using Result = std::invoke_result_t<Function&, First>;
  constexpr DType dtypes[] = {First::dtype, Rest::dtype...};
  constexpr Result (*calls[])(Function&) = {&call_with_format<Result, Function, First>, &call_with_format<Result, Function, Rest>...};
  for (std::size_t i = 0; i < sizeof...(Rest) + 1; ++i)
    if (dtypes[i] == dtype) return calls[i](function);
  char const* const known = name(dtype);
  throw Error(Errc::unsupported,
              concat("no decoder for tensor type ", known ? known : "number ", known ? "" : concat(std::uint32_t(dtype))));
}

}  // namespace detail

/// function(F{}) for the format F of `dtype`; its result type must be the same for all. For filling tables and for dequantising
/// at load; never inside a layer loop.
/// Errors   Errc::unsupported, with the type's name, where the list has no such format.
template <class Function>
decltype(auto) dispatch_format(DType dtype, Function&& function) {
  return detail::dispatch_format(WeightFormats{}, dtype, function);
}

}  // namespace tiered
