/// The filters of chat templates: Jinja2's, as far as templates use them, with tojson as Hugging Face transformers has it.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_format.hpp"
#include "tiered/io/detail/jinja_json.hpp"
#include "tiered/io/detail/jinja_math.hpp"
#include "tiered/io/detail/jinja_methods.hpp"
#include "tiered/io/detail/jinja_operators.hpp"
#include "tiered/io/detail/jinja_tests.hpp"
#include "tiered/io/detail/jinja_text.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/detail/printable.hpp"

namespace tiered::detail::jinja {

using FilterFunction = Value (*)(Runtime& rt, Value const& v, Arguments const& args);
struct NamedFilter {
  std::string_view name;
  FilterFunction function;
};
Value apply_filter(Runtime& rt, std::string_view name, Value const& v, Arguments const& args);

namespace filters {

inline bool given(Value const* v) { return v != nullptr && !v->is<None>(); }
inline void no_arguments(Arguments const& args) { expect_no_arguments("the filter", args); }
/// Fails where the argument is missing.
inline Value const& needed(Value const* v, std::string_view filter) {
  if (v == nullptr) fail(concat("the filter ", filter, " needs an argument"));
  return *v;
}

// ---- texts

/// A str method under the name of a filter: what is no text becomes one first.
inline Value as_method(Runtime& rt, Value const& v, std::string_view method, Arguments const& args) {
  Value const self = v.text() != nullptr ? v : text(to_text(rt, v));
  return TextMethods(rt, self, method, args).call();
}
inline Value trim(Runtime& rt, Value const& v, Arguments const& args) { return as_method(rt, v, "strip", args); }
inline Value upper(Runtime& rt, Value const& v, Arguments const& args) { return as_method(rt, v, "upper", args); }
inline Value lower(Runtime& rt, Value const& v, Arguments const& args) { return as_method(rt, v, "lower", args); }
inline Value capitalize(Runtime& rt, Value const& v, Arguments const& args) { return as_method(rt, v, "capitalize", args); }
inline Value center(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("center", args, {"width"});
  return as_method(rt, v, "center", {{arg[0] != nullptr ? *arg[0] : integer(80)}, {}});
}
/// Words begin behind blanks, hyphens and opening brackets; not str.title().
inline Value title(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  std::string const s = to_text(rt, v);
  std::string out;
  bool begins = true;
  for (std::size_t at = 0; at < s.size();) {
    Utf8Char const c = read_utf8(s, at);
    bool const separates = is_space(c.code_point) || std::string_view("-({[<").find(s[at]) != std::string_view::npos;
    out += in_case(std::string_view(s).substr(at, c.length), begins ? Case::upper : Case::lower);
    begins = separates;
    at += c.length;
  }
  return text(std::move(out));
}
inline Value replace(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("replace", args, {"old", "new", "count"});
  Value const old = text(to_text(rt, needed(arg[0], "replace"))), now = text(to_text(rt, needed(arg[1], "replace")));
  Arguments plain{{old, now}, {}};
  if (given(arg[2])) plain.positional.push_back(*arg[2]);
  return as_method(rt, text(to_text(rt, v)), "replace", plain);
}
inline Value indent(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("indent", args, {"width", "first", "blank"});
  std::string unit = arg[0] != nullptr && arg[0]->text() != nullptr ? *arg[0]->text() : "";
  if (arg[0] == nullptr || arg[0]->text() == nullptr) {
    std::int64_t const width = arg[0] != nullptr ? need_integer(*arg[0], "the width of indent") : 4;
    rt.charge_bytes(std::size_t(std::max<std::int64_t>(width, 0)));
    unit.assign(std::size_t(std::max<std::int64_t>(width, 0)), ' ');
  }
  std::string const s = need_text(v, "the value of indent") + '\n';
  std::string out = arg.flag(1) ? unit : "";
  bool begins = true;
  for (std::string_view const line : split_lines(s)) {
    if (!begins) out += '\n';
    if (!begins && (!line.empty() || arg.flag(2))) out += unit;
    out += line;
    begins = false;
    rt.charge_bytes(unit.size() + line.size());
    if (out.size() > rt.limits().output_bytes) fail("an indented text is too long");
  }
  return text(std::move(out), v.is_safe());
}
inline Value format_filter(Runtime& rt, Value const& v, Arguments const& args) {
  if (!args.named.empty()) fail("the filter format with named values is not supported");
  return text(percent_format(rt, to_text(rt, v), args.positional), v.is_safe());
}
inline Value escape(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  return v.is_safe() ? v : text(html_escaped(to_text(rt, v)), true);
}
inline Value force_escape(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  return text(html_escaped(to_text(rt, v)), true);
}
inline Value safe(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  return text(to_text(rt, v), true);
}
inline Value string(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  return v.text() != nullptr ? v : text(to_text(rt, v));
}
inline Value word_count(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  std::string const s = to_text(rt, v);
  std::int64_t n = 0;
  bool inside = false;
  for (std::size_t at = 0; at < s.size(); at += read_utf8(s, at).length) {
    char32_t const c = read_utf8(s, at).code_point;
    bool const is_word = c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (c >= 0xaa && is_printable(c));
    n += is_word && !inside;
    inside = is_word;
  }
  return integer(n);
}
inline Value to_json(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = arg.flag(0);
  style.sorted = arg.flag(3);
  if (given(arg[1])) {
    style.lines = true;
    style.between_items = ",";
    std::int64_t const n = arg[1]->text() != nullptr ? 0 : std::max<std::int64_t>(need_integer(*arg[1], "indent"), 0);
    rt.charge_bytes(std::size_t(n));
    style.indent = arg[1]->text() != nullptr ? *arg[1]->text() : std::string(std::size_t(n), ' ');
  }
  if (given(arg[2])) {
    ListRef const both = items_of(rt, *arg[2]);
    if (both->items.size() != 2) fail("separators must be two");
    style.between_items = need_text(both->items[0], "a separator");
    style.after_key = need_text(both->items[1], "a separator");
  }
  return text(JsonWriter::write(rt, v, style));
}

// ---- numbers

inline std::string without_underscores(std::string_view s) {
  std::string out;
  for (char const c : strip(s, nullptr, true, true)) {
    if (c != '_') out += c;
  }
  return out;
}
inline bool parse_real(std::string_view s, double& out) {
  std::string digits = without_underscores(s);
  std::string_view number = digits;
  if (number.starts_with('+')) number.remove_prefix(1);
  auto const result = std::from_chars(number.data(), number.data() + number.size(), out);
  return !number.empty() && number[0] != '+' && result.ec == std::errc() && result.ptr == number.data() + number.size();
}
inline bool parse_integer(std::string_view s, int base, std::int64_t& out) {
  std::string digits = without_underscores(s);
  std::string_view number = digits;
  bool const negative = number.starts_with('-');
  if (negative || number.starts_with('+')) number.remove_prefix(1);
  std::string_view const prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && number.size() > 2 && number[0] == '0' && (number[1] | 32) == prefix[1]) number.remove_prefix(2);
  if (number.empty() || number[0] == '-' || number[0] == '+') return false;
  auto const result = std::from_chars(number.data(), number.data() + number.size(), out, base);
  if (result.ec == std::errc::result_out_of_range) too_large();
  if (negative) out = -out;
  return result.ec == std::errc() && result.ptr == number.data() + number.size();
}
inline std::int64_t truncated(double d) {
  if (!(d > -9.2e18 && d < 9.2e18)) too_large();
  return std::int64_t(d);
}
inline Value to_integer(Runtime&, Value const& v, Arguments const& args) {
  auto const arg = bind("int", args, {"default", "base"});
  std::int64_t const base = arg[1] != nullptr ? need_integer(*arg[1], "the base of int") : 10;
  if (base < 2 || base > 36) fail("the base of int must be between 2 and 36");
  need_defined(v);
  std::int64_t i = 0;
  double d = 0;
  if (v.integer(i)) return integer(i);
  bool const reads = v.text() != nullptr ? parse_integer(*v.text(), int(base), i) : false;
  if (reads) return integer(i);
  bool const is_real = v.text() != nullptr ? parse_real(*v.text(), d) && is_finite(d) : v.real(d) && !is_nan(d);
  return is_real ? integer(truncated(d)) : arg[0] != nullptr ? *arg[0] : integer(0);
}
inline Value to_float(Runtime&, Value const& v, Arguments const& args) {
  auto const arg = bind("float", args, {"default"});
  need_defined(v);
  double d = 0;
  bool const reads = v.text() != nullptr ? parse_real(*v.text(), d) : v.real(d);
  return reads ? real(d) : arg[0] != nullptr ? *arg[0] : real(0);
}
inline Value round(Runtime&, Value const& v, Arguments const& args) {
  auto const arg = bind("round", args, {"precision", "method"});
  std::int64_t const precision = arg[0] != nullptr ? need_integer(*arg[0], "precision") : 0;
  std::string const method = arg[1] != nullptr ? need_text(*arg[1], "method") : "common";
  if (precision < 0 || precision > 300) fail("a precision of round outside 0 to 300");
  double d = 0;
  need_defined(v);
  if (!v.real(d)) fail(concat("a ", type_name(v), " cannot be rounded"));
  if (method != "common" && method != "ceil" && method != "floor") fail("the method of round must be common, ceil or floor");
  if (method == "common") {
    if (!v.is<double>() || !is_finite(d)) return v.is<bool>() ? integer(truth(v)) : v;
    std::string const digits = real_digits(d, std::chars_format::fixed, int(precision));
    std::from_chars(digits.data(), digits.data() + digits.size(), d);
    return real(d);
  }
  double const scale = raised(10., double(precision));
  return real((method == "ceil" ? ceil(d * scale) : floor(d * scale)) / scale);
}
inline Value absolute(Runtime&, Value const& v, Arguments const& args) {
  no_arguments(args);
  double d = 0;
  need_defined(v);
  if (!v.real(d)) fail(concat("abs of a ", type_name(v)));
  std::int64_t i = 0;
  return d < 0 ? negated(v) : v.integer(i) ? integer(i) : real(d == 0 ? 0. : d);
}

// ---- lists

inline Value count(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  return integer(std::int64_t(length(rt, v)));
}
inline Value fallback(Runtime&, Value const& v, Arguments const& args) {
  auto const arg = bind("default", args, {"default_value", "boolean"});
  bool const missing = v.is_undefined() || (arg.flag(1) && !truth(v));
  return !missing ? v : arg[0] != nullptr ? *arg[0] : text("");
}
inline Value first(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  List const* const l = v.list();
  if (l != nullptr && l->form == Form::generator) {
    return l->n_taken < l->items.size() ? l->items[l->n_taken++] : undefined("there is no first item");
  }
  ListRef const items = items_of(rt, v);
  return items->items.empty() ? undefined("there is no first item") : items->items.front();
}
inline Value last(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  if (v.is_undefined()) need_defined(v);
  if (v.list() != nullptr && v.list()->form == Form::generator) fail("the last item of a generator");
  ListRef const items = items_of(rt, v);
  return items->items.empty() ? undefined("there is no last item") : items->items.back();
}
inline Value to_list(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  ListRef const items = items_of(rt, v);
  rt.charge_items(items->items.size());
  return list(items->items);
}
inline Value pairs(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  if (v.is_undefined()) return list({}, Form::generator);
  if (v.dict() == nullptr) fail(concat("items of a ", type_name(v)));
  return list(call_dict_method(rt, v, "items", {}).list()->items, Form::generator);
}
inline Value join(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("join", args, {"d", "attribute"});
  std::string const separator = arg[0] != nullptr ? to_text(rt, *arg[0]) : "";
  std::string out;
  bool begins = true;
  ListRef const items = items_of(rt, v);
  for (Value const& each : items->items) {
    if (!std::exchange(begins, false)) out += separator;
    out += to_text(rt, given(arg[1]) ? item_at_path(rt, each, *arg[1]) : each);
    rt.charge_bytes(separator.size());
    if (out.size() > rt.limits().output_bytes) fail("a joined text is too long");
  }
  return text(std::move(out));
}
inline Value reverse(Runtime& rt, Value const& v, Arguments const& args) {
  no_arguments(args);
  Value const bounds[3] = {none(), none(), integer(-1)};
  if (v.text() != nullptr) return sliced(rt, v, bounds);
  need_defined(v);
  std::vector<Value> items = items_of(rt, v)->items;
  rt.charge_items(items.size());
  std::reverse(items.begin(), items.end());
  return list(std::move(items), v.list() != nullptr && v.list()->form == Form::generator ? Form::list : Form::generator);
}
inline Value batch(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("batch", args, {"linecount", "fill_with"});
  std::int64_t const n = need_integer(needed(arg[0], "batch"), "linecount");
  std::vector<Value> rows, row;
  auto const end_row = [&] { rows.push_back(list(std::exchange(row, {}))); };
  ListRef const items = items_of(rt, v);
  rt.charge_items(2 * items->items.size());
  for (Value const& each : items->items) {
    if (std::int64_t(row.size()) == n) end_row();
    row.push_back(each);
  }
  if (given(arg[1]) && !row.empty() && n > std::int64_t(row.size())) {
    rt.charge_items(std::size_t(n));
    while (std::int64_t(row.size()) < n) row.push_back(*arg[1]);
  }
  if (!row.empty()) end_row();
  return list(std::move(rows), Form::generator);
}

/// What lists are sorted and made unique by: an attribute, and no case unless that is asked for.
inline Value sort_key(Runtime& rt, Value const& each, Value const* path, bool case_sensitive) {
  Value key = given(path) ? item_at_path(rt, each, *path) : each;
  if (!case_sensitive && key.text() != nullptr) key = text(in_case(*key.text(), Case::lower));
  return key;
}
struct Keyed {
  Value key, value;
};
inline std::vector<Keyed> keyed(Runtime& rt, Value const& v, Value const* path, bool case_sensitive) {
  ListRef const items = items_of(rt, v);
  rt.charge_items(4 * items->items.size());
  std::vector<Keyed> all;
  for (Value const& each : items->items) all.push_back({sort_key(rt, each, path, case_sensitive), each});
  return all;
}
inline void sort_by_key(Runtime& rt, std::vector<Keyed>& all, bool down) {
  std::stable_sort(all.begin(), all.end(),
                   [&](Keyed const& a, Keyed const& b) { return down ? less(rt, b.key, a.key) : less(rt, a.key, b.key); });
}
inline Value sort(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("sort", args, {"reverse", "case_sensitive", "attribute"});
  if (given(arg[2]) && arg[2]->text() != nullptr && arg[2]->text()->find(',') != std::string::npos)
    fail("sort by several attributes is not supported");
  std::vector<Keyed> all = keyed(rt, v, arg[2], arg.flag(1));
  sort_by_key(rt, all, arg.flag(0));
  std::vector<Value> items;
  for (Keyed& each : all) items.push_back(std::move(each.value));
  return list(std::move(items));
}
inline Value dict_sort(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("dictsort", args, {"case_sensitive", "by", "reverse"});
  std::string const by = arg[1] != nullptr ? need_text(*arg[1], "by") : "key";
  if (by != "key" && by != "value") fail("dictsort sorts by key or value");
  need_defined(v);
  if (v.dict() == nullptr) fail(concat("dictsort of a ", type_name(v)));
  Value const path = integer(by == "key" ? 0 : 1);
  std::vector<Keyed> all = keyed(rt, call_dict_method(rt, v, "items", {}), &path, arg.flag(0));
  sort_by_key(rt, all, arg.flag(2));
  std::vector<Value> items;
  for (Keyed& each : all) items.push_back(std::move(each.value));
  return list(std::move(items));
}
inline Value group_by(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("groupby", args, {"attribute", "default", "case_sensitive"});
  if (arg[1] != nullptr) fail("groupby with a default is not supported");
  needed(arg[0], "groupby");
  std::vector<Keyed> all = keyed(rt, v, arg[0], arg.flag(2));
  sort_by_key(rt, all, false);
  std::vector<Value> groups;
  for (std::size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    std::vector<Value> members;
    for (end = begin; end < all.size() && equal(rt, all[end].key, all[begin].key); ++end) members.push_back(all[end].value);
    if (members.empty()) fail("groupby of values that do not equal themselves");
    Value const name = item_at_path(rt, all[begin].value, *arg[0]);
    groups.push_back(tuple({name, list(std::move(members))}));
  }
  return list(std::move(groups));
}
inline Value unique(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("unique", args, {"case_sensitive", "attribute"});
  std::vector<Value> seen, items;
  for (Keyed& each : keyed(rt, v, arg[1], arg.flag(0))) {
    if (std::any_of(seen.begin(), seen.end(), [&](Value const& known) { return equal(rt, known, each.key); })) continue;
    need_key(each.key);
    seen.push_back(std::move(each.key));
    items.push_back(std::move(each.value));
  }
  return list(std::move(items), Form::generator);
}
inline Value extreme(Runtime& rt, Value const& v, Arguments const& args, bool largest) {
  auto const arg = bind(largest ? "max" : "min", args, {"case_sensitive", "attribute"});
  std::vector<Keyed> const all = keyed(rt, v, arg[1], arg.flag(0));
  if (all.empty()) return undefined("there is no item to take the least or the greatest of");
  Keyed const* best = &all[0];
  for (Keyed const& each : all) {
    if (largest ? less(rt, best->key, each.key) : less(rt, each.key, best->key)) best = &each;
  }
  return best->value;
}
inline Value least(Runtime& rt, Value const& v, Arguments const& args) { return extreme(rt, v, args, false); }
inline Value greatest(Runtime& rt, Value const& v, Arguments const& args) { return extreme(rt, v, args, true); }
inline Value sum(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("sum", args, {"attribute", "start"});
  Value total = arg[1] != nullptr ? *arg[1] : integer(0);
  if (total.text() != nullptr) fail("sum of texts");
  ListRef const items = items_of(rt, v);
  for (Value const& each : items->items) total = add(rt, total, given(arg[0]) ? item_at_path(rt, each, *arg[0]) : each);
  return total;
}

// ---- with other filters and tests

/// Nothing where there is nothing, even None.
inline ListRef items_if_any(Runtime& rt, Value const& v) { return truth(v) ? items_of(rt, v) : list_of({}); }
inline Value map(Runtime& rt, Value const& v, Arguments const& args) {
  ListRef const items = items_if_any(rt, v);
  rt.charge_items(items->items.size());
  std::vector<Value> out;
  if (args.positional.empty()) {
    auto const arg = bind("map", args, {"attribute", "default"});
    if (arg[0] == nullptr) fail("the filter map needs a filter or an attribute");
    for (Value const& each : items->items) {
      Value found = item_at_path(rt, each, *arg[0]);
      out.push_back(found.is_undefined() && given(arg[1]) ? *arg[1] : std::move(found));
    }
  } else {
    std::string const& name = need_text(args.positional[0], "the filter of map");
    Arguments const rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
    for (Value const& each : items->items) out.push_back(apply_filter(rt, name, each, rest));
  }
  return list(std::move(out), Form::generator);
}
/// Items that pass a test, or not: of an attribute where `by_attribute`.
inline Value chosen(Runtime& rt, Value const& v, Arguments const& args, bool by_attribute, bool wanted) {
  std::size_t const at = by_attribute ? 1 : 0;
  if (args.positional.size() < at) fail("selectattr and rejectattr need an attribute");
  ListRef const items = items_if_any(rt, v);
  rt.charge_items(items->items.size());
  bool const has_test = args.positional.size() > at;
  std::string const name = has_test ? need_text(args.positional[at], "the test") : "";
  Arguments const rest{
      has_test ? std::vector<Value>(args.positional.begin() + std::ptrdiff_t(at) + 1, args.positional.end()) : std::vector<Value>{},
      args.named};
  std::vector<Value> out;
  for (Value const& each : items->items) {
    Value const subject = by_attribute ? item_at_path(rt, each, args.positional[0]) : each;
    if ((has_test ? apply_test(rt, name, subject, rest) : truth(subject)) == wanted) out.push_back(each);
  }
  return list(std::move(out), Form::generator);
}
inline Value select(Runtime& rt, Value const& v, Arguments const& args) { return chosen(rt, v, args, false, true); }
inline Value reject(Runtime& rt, Value const& v, Arguments const& args) { return chosen(rt, v, args, false, false); }
inline Value select_attr(Runtime& rt, Value const& v, Arguments const& args) { return chosen(rt, v, args, true, true); }
inline Value reject_attr(Runtime& rt, Value const& v, Arguments const& args) { return chosen(rt, v, args, true, false); }
inline Value attr(Runtime& rt, Value const& v, Arguments const& args) {
  auto const arg = bind("attr", args, {"name"});
  std::string const name = to_text(rt, needed(arg[0], "attr"));
  need_defined(v);
  Value out;
  return python_attribute(v, name, out) ? out : undefined(concat("'", type_name(v), "' has no attribute ", printable(name, 40)));
}

inline constexpr NamedFilter all[] = {
    {"abs", absolute},
    {"attr", attr},
    {"batch", batch},
    {"capitalize", capitalize},
    {"center", center},
    {"count", count},
    {"d", fallback},
    {"default", fallback},
    {"dictsort", dict_sort},
    {"e", escape},
    {"escape", escape},
    {"first", first},
    {"float", to_float},
    {"forceescape", force_escape},
    {"format", format_filter},
    {"groupby", group_by},
    {"indent", indent},
    {"int", to_integer},
    {"items", pairs},
    {"join", join},
    {"last", last},
    {"length", count},
    {"list", to_list},
    {"lower", lower},
    {"map", map},
    {"max", greatest},
    {"min", least},
    {"reject", reject},
    {"rejectattr", reject_attr},
    {"replace", replace},
    {"reverse", reverse},
    {"round", round},
    {"safe", safe},
    {"select", select},
    {"selectattr", select_attr},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", title},
    {"tojson", to_json},
    {"trim", trim},
    {"unique", unique},
    {"upper", upper},
    {"wordcount", word_count},
};

}  // namespace filters

inline NamedFilter const* find_filter(std::string_view name) {
  auto const* const at =
      std::find_if(std::begin(filters::all), std::end(filters::all), [&](NamedFilter const& each) { return each.name == name; });
  return at == std::end(filters::all) ? nullptr : at;
}
inline bool knows_filter(std::string_view name) { return find_filter(name) != nullptr; }

/// v | name(args)
inline Value apply_filter(Runtime& rt, std::string_view name, Value const& v, Arguments const& args) {
  rt.charge();
  Runtime::Nested const nested(rt);
  NamedFilter const* const filter = find_filter(name);
  if (filter == nullptr) fail(concat("the filter ", printable(name, 40), " is not known"));
  return filter->function(rt, v, args);
}

}  // namespace tiered::detail::jinja
