/// The tests of chat templates: what may stand behind `is`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_operators.hpp"
#include "tiered/io/detail/jinja_text.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/detail/printable.hpp"

namespace tiered::detail::jinja {

using TestFunction = bool (*)(Runtime& rt, Value const& v, Value const* argument);
struct NamedTest {
  std::string_view name;
  TestFunction function;
  bool has_argument = false;
};

inline bool is_integer(Value const& v) { return v.is<std::int64_t>(); }
inline bool divides(Value const& v, Value const& by) {
  Value const rest = numeric("%", v, by);
  double r = 0;
  return rest.real(r) && r == 0;
}
inline bool odd(Value const& v) {
  double rest = 0;
  return numeric("%", v, integer(2)).real(rest) && rest == 1;
}
/// Identity: that of small values is their being equal.
inline bool same(Runtime& rt, Value const& a, Value const& b) {
  if (a.data.index() != b.data.index()) return false;
  if (a.list() != nullptr) return a.list() == b.list();
  if (a.dict() != nullptr) return a.dict() == b.dict();
  return equal(rt, a, b);
}
inline bool is_sequence(Value const& v) {
  return v.text() != nullptr || v.dict() != nullptr || v.is_undefined() || (v.list() != nullptr && v.list()->has_index());
}
inline bool in_case_of(Runtime& rt, Value const& v, Case wanted) { return is_all(to_text(rt, v), wanted); }

inline constexpr NamedTest tests[] = {
    {"boolean", [](Runtime&, Value const& v, Value const*) { return v.is<bool>(); }},
    {"callable",
     [](Runtime&, Value const& v, Value const*) { return v.is<MacroRef>() || v.is<MethodRef>() || v.is<Function>() || v.is<LoopRef>(); }},
    {"defined", [](Runtime&, Value const& v, Value const*) { return !v.is_undefined(); }},
    {"divisibleby", [](Runtime&, Value const& v, Value const* by) { return divides(v, *by); }, true},
    {"escaped", [](Runtime&, Value const& v, Value const*) { return v.is_safe(); }},
    {"even", [](Runtime&, Value const& v, Value const*) { return divides(v, integer(2)); }},
    {"false", [](Runtime&, Value const& v, Value const*) { return v.is<bool>() && !truth(v); }},
    {"float", [](Runtime&, Value const& v, Value const*) { return v.is<double>(); }},
    {"in", [](Runtime& rt, Value const& v, Value const* all) { return contains(rt, *all, v); }, true},
    {"integer", [](Runtime&, Value const& v, Value const*) { return is_integer(v); }},
    {"iterable",
     [](Runtime&, Value const& v, Value const*) {
       return v.text() != nullptr || v.list() != nullptr || v.dict() != nullptr || v.is_undefined() || v.is<LoopRef>();
     }},
    {"lower", [](Runtime& rt, Value const& v, Value const*) { return in_case_of(rt, v, Case::lower); }},
    {"mapping", [](Runtime&, Value const& v, Value const*) { return v.dict() != nullptr; }},
    {"none", [](Runtime&, Value const& v, Value const*) { return v.is<None>(); }},
    {"number", [](Runtime&, Value const& v, Value const*) { return v.is_number(); }},
    {"odd", [](Runtime&, Value const& v, Value const*) { return odd(v); }},
    {"sameas", [](Runtime& rt, Value const& v, Value const* other) { return same(rt, v, *other); }, true},
    {"sequence", [](Runtime&, Value const& v, Value const*) { return is_sequence(v); }},
    {"string", [](Runtime&, Value const& v, Value const*) { return v.text() != nullptr; }},
    {"true", [](Runtime&, Value const& v, Value const*) { return v.is<bool>() && truth(v); }},
    {"undefined", [](Runtime&, Value const& v, Value const*) { return v.is_undefined(); }},
    {"upper", [](Runtime& rt, Value const& v, Value const*) { return in_case_of(rt, v, Case::upper); }},
};
/// By the names that Jinja2 gives them: operators, words, words in full.
struct NamedOrder {
  std::string_view names[3];
  std::string_view op;
};
inline constexpr NamedOrder orders[] = {{{"eq", "equalto", "=="}, "=="}, {{"ne", "ne", "!="}, "!="},        {{"lt", "lessthan", "<"}, "<"},
                                        {{"le", "le", "<="}, "<="},      {{"gt", "greaterthan", ">"}, ">"}, {{"ge", "ge", ">="}, ">="}};

/// a op b, for the operators of comparisons.
inline bool compare(Runtime& rt, std::string_view op, Value const& a, Value const& b) {
  if (op == "==") return equal(rt, a, b);
  if (op == "!=") return !equal(rt, a, b);
  if (op == "in") return contains(rt, b, a);
  if (op == "not in") return !contains(rt, b, a);
  if (op == "<") return less(rt, a, b);
  if (op == ">") return less(rt, b, a);
  // Not the opposite of > : NaN.
  return op == "<=" ? less(rt, a, b) || equal(rt, a, b) : less(rt, b, a) || equal(rt, a, b);
}

inline NamedTest const* find_test(std::string_view name) {
  auto const* const at = std::find_if(std::begin(tests), std::end(tests), [&](NamedTest const& each) { return each.name == name; });
  return at == std::end(tests) ? nullptr : at;
}
inline NamedOrder const* find_order(std::string_view name) {
  auto const* const at = std::find_if(std::begin(orders), std::end(orders), [&](NamedOrder const& each) {
    return std::find(std::begin(each.names), std::end(each.names), name) != std::end(each.names);
  });
  return at == std::end(orders) ? nullptr : at;
}
inline bool knows_test(std::string_view name) { return find_test(name) != nullptr || find_order(name) != nullptr; }

/// v is name(args)
inline bool apply_test(Runtime& rt, std::string_view name, Value const& v, Arguments const& args) {
  rt.charge();
  NamedTest const* const test = find_test(name);
  NamedOrder const* const order = test == nullptr ? find_order(name) : nullptr;
  if (test == nullptr && order == nullptr) fail(concat("the test ", printable(name, 40), " is not known"));
  std::size_t const n_wanted = order != nullptr || test->has_argument ? 1 : 0;
  if (args.positional.size() + args.named.size() != n_wanted) fail(concat("the test ", name, " takes ", n_wanted, " arguments"));
  Value const* const argument = !args.positional.empty() ? &args.positional[0] : !args.named.empty() ? &args.named[0].second : nullptr;
  return order != nullptr ? compare(rt, order->op, v, *argument) : test->function(rt, v, argument);
}

}  // namespace tiered::detail::jinja
