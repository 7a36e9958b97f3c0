/// Python's operators on the values of a chat template: printing, comparing, arithmetic, indexing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_math.hpp"
#include "tiered/io/detail/jinja_text.hpp"
#include "tiered/io/detail/jinja_value.hpp"

namespace tiered::detail::jinja {

// ---- printing

inline void append_repr(Runtime& rt, std::string& out, Value const& v) {
  rt.charge();
  if (v.is_undefined()) {
    out += "Undefined";
  } else if (v.is<None>()) {
    out += "None";
  } else if (auto const* const b = v.get<bool>()) {
    out += *b ? "True" : "False";
  } else if (auto const* const i = v.get<std::int64_t>()) {
    out += std::to_string(*i);
  } else if (auto const* const d = v.get<double>()) {
    out += python_float(*d);
  } else if (auto const* const t = v.text()) {
    rt.charge_bytes(t->size());
    out += v.is_safe() ? concat("Markup(", python_repr(*t), ")") : python_repr(*t);
  } else if (auto const* const l = v.list(); l != nullptr && l->is_plain()) {
    bool const is_tuple = l->form == Form::tuple;
    out += is_tuple ? '(' : '[';
    for (std::size_t n = 0; n < l->items.size(); ++n) {
      if (n != 0) out += ", ";
      append_repr(rt, out, l->items[n]);
    }
    if (is_tuple && l->items.size() == 1) out += ',';
    out += is_tuple ? ')' : ']';
  } else if (auto const* const m = v.dict()) {
    out += '{';
    for (std::size_t n = 0; n < m->items.size(); ++n) {
      if (n != 0) out += ", ";
      append_repr(rt, out, m->items[n].first);
      out += ": ";
      append_repr(rt, out, m->items[n].second);
    }
    out += '}';
  } else {
    fail(concat("printing a ", type_name(v)));
  }
}
/// str(v).
inline std::string to_text(Runtime& rt, Value const& v) {
  if (auto const* const t = v.text()) return rt.charge_bytes(t->size()), *t;
  if (v.is_undefined()) return {};
  std::string out;
  append_repr(rt, out, v);
  return out;
}
/// The bytes of a text, or str(v) kept in `storage`.
inline std::string_view text_view(Runtime& rt, Value const& v, std::string& storage) {
  if (auto const* const t = v.text()) return *t;
  return storage = to_text(rt, v);
}
inline std::string const& need_text(Value const& v, std::string_view what) {
  need_defined(v);
  if (v.text() == nullptr) fail(concat(what, " must be a str, not ", type_name(v)));
  return *v.text();
}
inline std::int64_t need_integer(Value const& v, std::string_view what) {
  need_defined(v);
  std::int64_t i = 0;
  if (!v.integer(i)) fail(concat(what, " must be an int, not ", type_name(v)));
  return i;
}

// ---- comparing

inline bool equal(Runtime& rt, Value const& a, Value const& b) {
  rt.charge();
  if (a.is_number() && b.is_number()) {
    std::int64_t i = 0, j = 0;
    if (a.integer(i) && b.integer(j)) return i == j;
    double x = 0, y = 0;
    return a.real(x) && b.real(y) && x == y;
  }
  if (a.data.index() != b.data.index()) return false;
  if (auto const* const t = a.text()) return rt.charge(t->size() / 64), *t == *b.text();
  if (auto const* const l = a.list()) {
    List const& other = *b.list();
    if (l == &other) return true;
    if (l->form != other.form || l->items.size() != other.items.size()) return false;
    for (std::size_t n = 0; n < l->items.size(); ++n) {
      if (!equal(rt, l->items[n], other.items[n])) return false;
    }
    return true;
  }
  if (auto const* const m = a.dict()) {
    Dict const& other = *b.dict();
    if (m == &other) return true;
    if (m->items.size() != other.items.size()) return false;
    return std::all_of(m->items.begin(), m->items.end(), [&](auto const& mine) {
      return std::any_of(other.items.begin(), other.items.end(),
                         [&](auto const& theirs) { return equal(rt, mine.first, theirs.first) && equal(rt, mine.second, theirs.second); });
    });
  }
  if (auto const* const n = a.get<NamespaceRef>()) return *n == *b.get<NamespaceRef>();
  if (auto const* const n = a.get<MacroRef>()) return *n == *b.get<MacroRef>();
  if (auto const* const n = a.get<LoopRef>()) return *n == *b.get<LoopRef>();
  if (auto const* const n = a.get<Function>()) return n->name == b.get<Function>()->name;
  return a.is_undefined() || a.is<None>();
}

/// a < b.  Fails for values that Python does not order.
inline bool less(Runtime& rt, Value const& a, Value const& b) {
  rt.charge();
  need_defined(a);
  need_defined(b);
  std::int64_t i = 0, j = 0;
  if (a.integer(i) && b.integer(j)) return i < j;
  double x = 0, y = 0;
  if (a.real(x) && b.real(y)) return x < y;
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();  // UTF-8 sorts as its code points do
  List const *const l = a.list(), *const m = b.list();
  if (l == nullptr || m == nullptr || l->form != m->form || !l->is_plain())
    fail(concat("cannot order ", type_name(a), " and ", type_name(b)));
  std::size_t const n = std::min(l->items.size(), m->items.size());
  for (std::size_t k = 0; k < n; ++k) {
    if (!equal(rt, l->items[k], m->items[k])) return less(rt, l->items[k], m->items[k]);
  }
  return l->items.size() < m->items.size();
}

/// Null where the key is missing.
inline Value const* find(Runtime& rt, Dict const& dict, Value const& key) {
  rt.charge(1 + dict.items.size() / 8);
  for (auto const& [k, v] : dict.items) {
    if (k.text() != nullptr && key.text() != nullptr ? *k.text() == *key.text() : equal(rt, k, key)) return &v;
  }
  return nullptr;
}
inline Value const* find(Dict const& dict, std::string_view key) {
  for (auto const& [k, v] : dict.items) {
    if (k.text() != nullptr && *k.text() == key) return &v;
  }
  return nullptr;
}
/// Fails for what Python cannot hash.
inline void need_key(Value const& key) {
  if (key.dict() != nullptr || (key.list() != nullptr && key.list()->form == Form::list))
    fail(concat("a ", type_name(key), " cannot be a key"));
}
/// dict[key] = value, while a dict is made.
inline void put(Runtime& rt, std::vector<std::pair<Value, Value>>& items, Value key, Value value) {
  need_key(key);
  rt.charge(4 + items.size() / 8);
  for (auto& [k, v] : items) {
    if (equal(rt, k, key)) {
      v = std::move(value);
      return;
    }
  }
  items.emplace_back(std::move(key), std::move(value));
}

/// needle in haystack.
inline bool contains(Runtime& rt, Value const& haystack, Value const& needle) {
  if (auto const* const t = haystack.text()) {
    rt.charge(1 + t->size() / 16);
    return t->find(need_text(needle, "the left side of in")) != std::string::npos;
  }
  if (auto const* const m = haystack.dict()) {
    need_key(needle);
    return find(rt, *m, needle) != nullptr;
  }
  if (auto const* const l = haystack.list()) {
    return std::any_of(l->items.begin(), l->items.end(), [&](Value const& each) { return equal(rt, each, needle); });
  }
  if (haystack.is_undefined()) return false;
  fail(concat("a ", type_name(haystack), " holds nothing to look for with in"));
}

/// What a loop goes through.
inline ListRef items_of(Runtime& rt, Value const& v) {
  std::vector<Value> items;
  if (auto const* const l = v.get<ListRef>()) {
    List const& all = **l;
    if (all.form != Form::generator) return *l;
    std::size_t const taken = std::exchange(all.n_taken, all.items.size());
    if (taken == 0) return *l;
    items.assign(all.items.begin() + std::ptrdiff_t(taken), all.items.end());
  } else if (auto const* const m = v.dict()) {
    rt.charge_items(m->items.size());
    for (auto const& each : m->items) items.push_back(each.first);
  } else if (auto const* const t = v.text()) {
    rt.charge_items(4 * t->size());  // each is a text of its own
    for (std::size_t at = 0; at < t->size();) {
      std::size_t const length = read_utf8(*t, at).length;
      items.push_back(text(t->substr(at, length), v.is_safe()));
      at += length;
    }
  } else if (!v.is_undefined()) {
    fail(concat("a ", type_name(v), " cannot be iterated"));
  }
  return list_of(std::move(items));
}
inline std::size_t length(Runtime& rt, Value const& v) {
  if (auto const* const t = v.text()) return rt.charge(1 + t->size() / 16), n_characters(*t);
  if (auto const* const l = v.list(); l != nullptr && l->form != Form::generator) return l->items.size();
  if (auto const* const m = v.dict()) return m->items.size();
  if (v.is_undefined()) return 0;
  fail(concat("a ", type_name(v), " has no length"));
}

// ---- arithmetic

[[noreturn]] inline void no_operator(std::string_view op, Value const& a, Value const& b) {
  need_defined(a);
  need_defined(b);
  fail(concat("no operator ", op, " for ", type_name(a), " and ", type_name(b)));
}
[[noreturn]] inline void too_large() { fail("an integer of more than 64 bits"); }

inline Value add(Runtime& rt, Value const& a, Value const& b) {
  if (a.text() != nullptr && b.text() != nullptr) {
    rt.charge_bytes(a.text()->size() + b.text()->size());
    if (a.is_safe() == b.is_safe()) return text(*a.text() + *b.text(), a.is_safe());
    return a.is_safe() ? text(*a.text() + html_escaped(*b.text()), true) : text(html_escaped(*a.text()) + *b.text(), true);
  }
  if (a.list() != nullptr && b.list() != nullptr && a.list()->form == b.list()->form && a.list()->is_plain()) {
    rt.charge_items(a.list()->items.size() + b.list()->items.size());
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return {list_of(std::move(items), a.list()->form)};
  }
  std::int64_t i = 0, j = 0;
  if (a.integer(i) && b.integer(j)) {
    if (__builtin_add_overflow(i, j, &i)) too_large();
    return integer(i);
  }
  double x = 0, y = 0;
  if (!a.real(x) || !b.real(y)) no_operator("+", a, b);
  return real(x + y);
}

inline Value repeat(Runtime& rt, Value const& v, std::int64_t times) {
  auto const n = std::size_t(std::max<std::int64_t>(times, 0));
  if (auto const* const t = v.text()) {
    if (n != 0 && t->size() > rt.limits().output_bytes / n) fail("a repeated text is too long");
    rt.charge_bytes(t->size() * n);
    std::string bytes;
    for (std::size_t k = 0; k < n && !t->empty(); ++k) bytes += *t;
    return text(std::move(bytes), v.is_safe());
  }
  List const& l = *v.list();
  if (!l.is_plain()) fail(concat("a ", type_name(v), " cannot be repeated"));
  if (n != 0 && l.items.size() > rt.limits().output_bytes / n) fail("a repeated list is too long");
  rt.charge_items(l.items.size() * n);
  std::vector<Value> items;
  for (std::size_t k = 0; k < n && !l.items.empty(); ++k) items.insert(items.end(), l.items.begin(), l.items.end());
  return {list_of(std::move(items), l.form)};
}

inline Value multiply(Runtime& rt, Value const& a, Value const& b) {
  std::int64_t i = 0, j = 0;
  if (a.integer(i) && b.integer(j)) {
    if (__builtin_mul_overflow(i, j, &i)) too_large();
    return integer(i);
  }
  if ((a.text() != nullptr || a.list() != nullptr) && b.integer(j)) return repeat(rt, a, j);
  if ((b.text() != nullptr || b.list() != nullptr) && a.integer(i)) return repeat(rt, b, i);
  double x = 0, y = 0;
  if (!a.real(x) || !b.real(y)) no_operator("*", a, b);
  return real(x * y);
}

inline Value power(Value const& a, Value const& b) {
  std::int64_t base = 0, exponent = 0;
  if (a.integer(base) && b.integer(exponent) && exponent >= 0) {
    std::int64_t result = 1;
    if (base == 0 || base == 1) return integer(exponent == 0 ? 1 : base);
    if (base == -1) return integer(exponent % 2 == 0 ? 1 : -1);
    if (exponent > 63) too_large();
    for (; exponent > 0; --exponent) {
      if (__builtin_mul_overflow(result, base, &result)) too_large();
    }
    return integer(result);
  }
  double x = 0, y = 0;
  if (!a.real(x) || !b.real(y)) no_operator("**", a, b);
  if (x == 0 && y < 0) fail("0 to a negative power");
  if (x < 0 && y != floor(y)) fail("a complex number");
  return real(raised(x, y));
}

/// a - b, a / b, a // b, a % b of numbers; division rounds down, as Python's.
inline Value numeric(std::string_view op, Value const& a, Value const& b) {
  double x = 0, y = 0;
  if (!a.real(x) || !b.real(y)) no_operator(op, a, b);
  if (op != "-" && y == 0) fail("division by zero");
  if (op == "/") return real(x / y);
  std::int64_t i = 0, j = 0;
  if (a.integer(i) && b.integer(j)) {
    if (op == "-") {
      if (__builtin_sub_overflow(i, j, &i)) too_large();
      return integer(i);
    }
    if (j == -1) {  // what INT64_MIN / -1 would trap on
      if (op == "//" && __builtin_sub_overflow(std::int64_t{0}, i, &i)) too_large();
      return integer(op == "//" ? i : 0);
    }
    std::int64_t const rest = i % j;
    bool const down = rest != 0 && (rest < 0) != (j < 0);
    return integer(op == "//" ? i / j - (down ? 1 : 0) : rest + (down ? j : 0));
  }
  if (op == "-") return real(x - y);
  // CPython's float_divmod: the quotient belongs to the remainder, so that 1 // 0.1 is 9.
  double rest = remainder_to_zero(x, y);
  double quotient = (x - rest) / y;
  if (rest != 0 && (rest < 0) != (y < 0)) {
    rest += y;
    quotient -= 1;
  }
  double const whole = floor(quotient);
  return real(op == "%" ? rest : quotient - whole > 0.5 ? whole + 1 : whole);
}

inline Value negated(Value const& v) {
  std::int64_t i = 0;
  if (v.integer(i)) {
    if (__builtin_sub_overflow(std::int64_t{0}, i, &i)) too_large();
    return integer(i);
  }
  if (auto const* const d = v.get<double>()) return real(-*d);
  need_defined(v);
  fail(concat("no operator - for ", type_name(v)));
}

// ---- parts

/// Position of index `i`, which may count from the end; n where there is none.
inline std::size_t position(std::int64_t i, std::size_t n) {
  if (i < 0) i += std::int64_t(n);
  return i < 0 || i >= std::int64_t(n) ? n : std::size_t(i);
}

inline Value sliced(Runtime& rt, Value const& v, Value const (&bounds)[3]) {
  need_defined(v);
  std::int64_t numbers[3] = {0, 0, 1};
  std::int64_t const* given[3] = {};
  for (int k = 0; k < 3; ++k) {
    if (bounds[k].is<None>()) continue;
    numbers[k] = need_integer(bounds[k], "a bound of a slice");
    given[k] = &numbers[k];
  }
  if (numbers[2] == 0) fail("a slice with step 0");
  if (auto const* const t = v.text()) {
    rt.charge_bytes(8 * t->size());
    std::vector<std::size_t> const starts = character_starts(*t);
    std::string out;
    for (std::size_t const p : slice_positions(starts.size() - 1, given[0], given[1], numbers[2])) {
      out += std::string_view(*t).substr(starts[p], starts[p + 1] - starts[p]);
    }
    return text(std::move(out), v.is_safe());
  }
  List const* const l = v.list();
  if (l == nullptr || !l->has_index()) fail(concat("a ", type_name(v), " cannot be sliced"));
  rt.charge_items(l->items.size());
  std::vector<Value> items;
  for (std::size_t const p : slice_positions(l->items.size(), given[0], given[1], numbers[2])) items.push_back(l->items[p]);
  return {list_of(std::move(items), l->form)};
}

}  // namespace tiered::detail::jinja
