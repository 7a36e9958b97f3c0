/// The global functions of chat templates, as Hugging Face transformers provides them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_operators.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/detail/printable.hpp"

namespace tiered::detail::jinja {

/// `cycler`, `joiner` and `lipsum` are Jinja2's too; they are refused when called.
inline constexpr std::string_view function_names[] = {"raise_exception", "strftime_now", "namespace", "range", "dict",
                                                      "cycler",          "joiner",       "lipsum"};

/// strftime in the C locale.  Fails for a conversion that is not known here.
inline std::string format_time(std::string_view format, std::tm const& time) {
  static constexpr std::string_view days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
  static constexpr std::string_view months[] = {"January", "February", "March",     "April",   "May",      "June",
                                                "July",    "August",   "September", "October", "November", "December"};
  std::string_view const day = days[std::size_t(std::clamp(time.tm_wday, 0, 6))],
                         month = months[std::size_t(std::clamp(time.tm_mon, 0, 11))];
  std::string out;
  for (std::size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%' || at + 1 == format.size()) {
      out += format[at];
      continue;
    }
    char c = format[++at];
    bool const bare = c == '-' && at + 1 < format.size();  // glibc: without leading zeros
    if (bare) c = format[++at];
    auto const number = [&](int value, std::size_t width, char fill = '0') {
      std::string const digits = std::to_string(value);
      if (!bare && digits.size() < width) out.append(width - digits.size(), fill);
      out += digits;
    };
    int const hour = time.tm_hour % 12 == 0 ? 12 : time.tm_hour % 12;
    switch (c) {
      case '%': out += '%'; break;
      case 'a': out += day.substr(0, 3); break;
      case 'A': out += day; break;
      case 'b':
      case 'h': out += month.substr(0, 3); break;
      case 'B': out += month; break;
      case 'd': number(time.tm_mday, 2); break;
      case 'e': number(time.tm_mday, 2, ' '); break;
      case 'm': number(time.tm_mon + 1, 2); break;
      case 'y': number((time.tm_year % 100 + 100) % 100, 2); break;
      case 'Y': number(time.tm_year + 1900, 1); break;
      case 'j': number(time.tm_yday + 1, 3); break;
      case 'H': number(time.tm_hour, 2); break;
      case 'I': number(hour, 2); break;
      case 'M': number(time.tm_min, 2); break;
      case 'S': number(time.tm_sec, 2); break;
      case 'p': out += time.tm_hour < 12 ? "AM" : "PM"; break;
      case 'F': out += format_time("%Y-%m-%d", time); break;
      case 'T': out += format_time("%H:%M:%S", time); break;
      case 'R': out += format_time("%H:%M", time); break;
      case 'D': out += format_time("%m/%d/%y", time); break;
      default: fail(concat("strftime_now of ", printable(format, 40)));
    }
  }
  return out;
}

inline Value make_range(Runtime& rt, Arguments const& args) {
  static constexpr std::int64_t max_range = 100'000;  // that of Jinja2's sandbox
  expect_no_arguments("range", {{}, args.named});
  std::size_t const n = args.positional.size();
  if (n < 1 || n > 3) fail("range takes one to three arguments");
  std::int64_t numbers[3] = {0, 0, 1};
  for (std::size_t k = 0; k < n; ++k) numbers[n == 1 ? 1 : k] = need_integer(args.positional[k], "an argument of range");
  auto const [begin, end, step] = numbers;
  if (step == 0) fail("a range with step 0");
  std::vector<Value> items;
  for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (std::int64_t(items.size()) == max_range) fail(concat("a range of more than ", max_range, " numbers"));
    rt.charge(4);
    items.push_back(integer(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return list(std::move(items), Form::range);
}

inline std::vector<std::pair<Value, Value>> dict_items(Runtime& rt, std::string_view callee, Arguments const& args) {
  std::vector<std::pair<Value, Value>> items;
  if (args.positional.size() > 1) fail(concat(callee, " takes one positional argument at most"));
  for (Value const& each : args.positional) {
    if (each.dict() != nullptr) {
      rt.charge_items(2 * each.dict()->items.size());
      items = each.dict()->items;
      continue;
    }
    need_defined(each);
    ListRef const pairs = items_of(rt, each);
    for (Value const& pair : pairs->items) {
      ListRef const parts = items_of(rt, pair);
      if (parts->items.size() != 2) fail(concat(callee, " needs pairs"));
      put(rt, items, parts->items[0], parts->items[1]);
    }
  }
  for (auto const& [name, value] : args.named) put(rt, items, text(name), value);
  return items;
}

/// ns.name = value.  Transformers refuses names with an underscore in front.
inline void set_attribute(Runtime& rt, Namespace& ns, std::string_view name, Value value) {
  if (name.starts_with('_')) fail(concat("a namespace cannot hold ", printable(name, 40), ": names must not begin with an underscore"));
  rt.charge(1 + ns.items.size() / 16);
  for (auto& [key, held] : ns.items) {
    if (key == name) {
      held = std::move(value);
      return;
    }
  }
  ns.items.emplace_back(name, std::move(value));
}
inline Value make_namespace(Runtime& rt, Arguments const& args) {
  Value ns = rt.make_namespace();
  for (auto& [key, value] : dict_items(rt, "namespace", args)) {
    set_attribute(rt, **ns.get<NamespaceRef>(), need_text(key, "a name in a namespace"), value);
  }
  return ns;
}

inline Value call_function(Runtime& rt, std::string_view name, Arguments const& args, std::tm const& now) {
  if (name == "range") return make_range(rt, args);
  if (name == "namespace") return make_namespace(rt, args);
  if (name == "dict") return dict(dict_items(rt, name, args));
  if (name == "strftime_now") {
    auto const arg = bind(name, args, {"format"});
    if (arg[0] == nullptr) fail("strftime_now needs a format");
    rt.charge_bytes(8 * need_text(*arg[0], "the format").size());
    return text(format_time(*arg[0]->text(), now));
  }
  if (name == "raise_exception") {
    auto const arg = bind(name, args, {"message"});
    throw Error(Errc::precondition, arg[0] != nullptr ? to_text(rt, *arg[0]) : "no reason is given");
  }
  fail(concat("the function ", name, "() is not supported"));
}

}  // namespace tiered::detail::jinja
