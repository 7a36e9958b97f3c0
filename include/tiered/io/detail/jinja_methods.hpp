/// Attributes, items and methods of the values of a chat template, as Jinja2's immutable sandbox gives them.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_format.hpp"
#include "tiered/io/detail/jinja_operators.hpp"
#include "tiered/io/detail/jinja_text.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/detail/printable.hpp"

namespace tiered::detail::jinja {

inline constexpr std::string_view text_methods[] = {
    "capitalize",   "casefold", "center",   "count",   "encode",    "endswith",   "expandtabs",   "find",      "format",    "format_map",
    "index",        "isalnum",  "isalpha",  "isascii", "isdecimal", "isdigit",    "isidentifier", "islower",   "isnumeric", "isprintable",
    "isspace",      "istitle",  "isupper",  "join",    "ljust",     "lower",      "lstrip",       "maketrans", "partition", "removeprefix",
    "removesuffix", "replace",  "rfind",    "rindex",  "rjust",     "rpartition", "rsplit",       "rstrip",    "split",     "splitlines",
    "startswith",   "strip",    "swapcase", "title",   "translate", "upper",      "zfill"};
/// Of those, what fails when it is called.
inline constexpr std::string_view refused_text_methods[] = {"encode",      "expandtabs", "format_map", "isascii",  "isidentifier",
                                                            "isprintable", "istitle",    "maketrans",  "swapcase", "translate"};
inline constexpr std::string_view refused_macro_attributes[] = {"arguments", "caller", "catch_kwargs", "catch_varargs"};
inline constexpr std::string_view dict_methods[] = {"copy", "fromkeys", "get", "items", "keys", "values"};
inline constexpr std::string_view list_methods[] = {"copy", "count", "index"};
/// They change a value, which the sandbox forbids.
inline constexpr std::string_view unsafe_dict_methods[] = {"clear", "pop", "popitem", "setdefault", "update"};
inline constexpr std::string_view unsafe_list_methods[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

template <std::size_t N>
std::string_view const* find_name(std::string_view const (&names)[N], std::string_view name) {
  auto const* const at = std::find(std::begin(names), std::end(names), name);
  return at == std::end(names) ? nullptr : at;
}

/// What loop.x is.
inline Value loop_attribute(LoopRef const& ref, std::string_view name) {
  Loop const& loop = *ref;
  std::vector<Value> const& items = loop.items->items;
  auto const i = std::int64_t(loop.index), n = std::int64_t(items.size());
  if (name == "index") return integer(i + 1);
  if (name == "index0") return integer(i);
  if (name == "revindex") return integer(n - i);
  if (name == "revindex0") return integer(n - i - 1);
  if (name == "first") return boolean(i == 0);
  if (name == "last") return boolean(i == n - 1);
  if (name == "length") return integer(n);
  if (name == "depth") return integer(loop.depth + 1);
  if (name == "depth0") return integer(loop.depth);
  if (name == "previtem") return i > 0 ? items[loop.index - 1] : undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? items[loop.index + 1] : undefined("there is no next item");
  for (std::string_view const method : {std::string_view("cycle"), std::string_view("changed")}) {
    if (name == method) return {MethodRef(std::make_shared<Method const>(Method{std::make_shared<Value const>(Value{ref}), method}))};
  }
  return undefined(concat("'loop' has no attribute ", printable(name, 40)));
}

/// Python's attribute of that name; false where there is none.
inline bool python_attribute(Value const& v, std::string_view name, Value& out) {
  std::string_view const *method = nullptr, *unsafe = nullptr;
  if (v.text() != nullptr) {
    method = find_name(text_methods, name);
  } else if (v.dict() != nullptr) {
    method = find_name(dict_methods, name);
    unsafe = find_name(unsafe_dict_methods, name);
  } else if (List const* const l = v.list(); l != nullptr && l->is_plain()) {
    method = find_name(list_methods, name);
    if (l->form == Form::tuple && name == "copy") method = nullptr;
    if (l->form == Form::list) unsafe = find_name(unsafe_list_methods, name);
  } else if (auto const* const ns = v.get<NamespaceRef>()) {
    for (auto const& [key, value] : (*ns)->items) {
      if (key == name) return out = value, true;
    }
  } else if (auto const* const loop = v.get<LoopRef>()) {
    return out = loop_attribute(*loop, name), true;
  } else if (auto const* const macro = v.get<MacroRef>()) {
    if (find_name(refused_macro_attributes, name) != nullptr) fail(concat("the attribute ", name, " of a macro is not supported"));
    if (name == "name") return out = text(std::string((*macro)->name)), true;
  }
  if (unsafe != nullptr) return out = undefined(concat("a template may not call ", *unsafe, " of a ", type_name(v))), true;
  if (method == nullptr) return false;
  depth_around(depth_of(v));
  out = {MethodRef(std::make_shared<Method const>(Method{std::make_shared<Value const>(v), *method}))};
  return true;
}

/// v.name
inline Value attribute(Runtime& rt, Value const& v, std::string_view name) {
  rt.charge();
  need_defined(v);
  Value out;
  if (python_attribute(v, name, out)) return out;
  if (Dict const* const m = v.dict()) {
    rt.charge(m->items.size() / 8);
    if (Value const* const found = find(*m, name)) return *found;
  }
  return undefined(concat("'", type_name(v), "' has no attribute ", printable(name, 40)));
}

/// v[key]
inline Value item(Runtime& rt, Value const& v, Value const& key) {
  rt.charge();
  need_defined(v);
  std::int64_t i = 0;
  if (Dict const* const m = v.dict()) {
    if (Value const* const found = find(rt, *m, key)) return *found;
  } else if (key.integer(i)) {
    if (List const* const l = v.list(); l != nullptr && l->has_index()) {
      std::size_t const at = position(i, l->items.size());
      if (at < l->items.size()) return l->items[at];
    } else if (auto const* const t = v.text()) {
      rt.charge_bytes(8 * t->size());
      std::vector<std::size_t> const starts = character_starts(*t);
      std::size_t const at = position(i, starts.size() - 1);
      if (at + 1 < starts.size()) return text(t->substr(starts[at], starts[at + 1] - starts[at]), v.is_safe());
    }
  }
  Value out;
  if (key.text() != nullptr && python_attribute(v, *key.text(), out)) return out;
  std::string storage;
  return undefined(concat("'", type_name(v), "' has no item ",
                          key.text() != nullptr || key.is_number() ? printable(text_view(rt, key, storage), 40) : "of that kind"));
}

/// Parts of a path such as a.0.b, looked up one in the other.
inline Value item_at_path(Runtime& rt, Value v, Value const& path) {
  if (path.is<None>()) return v;
  if (path.text() == nullptr) return item(rt, v, path);
  for (std::string_view const part : split(*path.text(), ".", -1)) {
    std::int64_t index = 0;
    auto const result = std::from_chars(part.data(), part.data() + part.size(), index);
    bool const is_index = !part.empty() && part[0] != '-' && result.ec == std::errc() && result.ptr == part.data() + part.size();
    v = item(rt, v, is_index ? integer(index) : text(std::string(part)));
  }
  return v;
}

// ---- methods

/// Calls of str methods; each part of the result is as safe as the text.
class TextMethods {
 public:
  TextMethods(Runtime& rt, Value const& self, std::string_view name, Arguments const& args)
      : rt_(rt), self_(*self.text()), safe_(self.is_safe()), name_(name), args_(args) {}

  Value call() {
    rt_.charge_bytes(2 * self_.size());
    if (name_ == "strip" || name_ == "lstrip" || name_ == "rstrip") return stripped();
    if (name_ == "split" || name_ == "rsplit") return split_up();
    if (name_ == "startswith" || name_ == "endswith") return has_affix();
    if (name_ == "replace") return replaced_text();
    if (name_ == "join") return joined();
    if (name_ == "find" || name_ == "rfind" || name_ == "index" || name_ == "rindex" || name_ == "count") return found();
    if (name_ == "removeprefix" || name_ == "removesuffix") return without_affix();
    if (name_ == "partition" || name_ == "rpartition") return partitioned();
    if (name_ == "ljust" || name_ == "rjust" || name_ == "center" || name_ == "zfill") return padded();
    if (name_ == "format") return made(format(rt_, self_, escaped_arguments()));
    if (name_ == "splitlines") {
      expect_no_arguments(name_, args_);
      return pieces(split_lines(self_));
    }
    return simple();
  }

 private:
  Value made(std::string bytes) const { return text(std::move(bytes), safe_); }
  Value pieces(std::vector<std::string_view> const& parts) {
    rt_.charge_items(4 * parts.size());  // each is a text of its own
    std::vector<Value> items;
    for (std::string_view const part : parts) items.push_back(made(std::string(part)));
    return list(std::move(items));
  }
  /// Another text that goes into this one.
  std::string other(Value const& v) const {
    std::string const& bytes = need_text(v, concat("the argument of ", name_));
    return safe_ && !v.is_safe() ? html_escaped(bytes) : bytes;
  }
  Arguments escaped_arguments() const {
    Arguments args = args_;
    if (!safe_) return args;
    for (Value& v : args.positional) v = text(v.is_safe() ? *v.text() : html_escaped(to_text(rt_, v)));
    for (auto& [name, v] : args.named) v = text(v.is_safe() ? *v.text() : html_escaped(to_text(rt_, v)));
    return args;
  }

  Value stripped() const {
    auto const arg = bind(name_, args_, {"chars"});
    bool const given = arg[0] != nullptr && !arg[0]->is<None>();
    std::string_view const chars = given ? std::string_view(need_text(*arg[0], "chars")) : "";
    rt_.charge(1 + chars.size() * self_.size() / 8);
    return made(std::string(strip(self_, given ? &chars : nullptr, name_ != "rstrip", name_ != "lstrip")));
  }
  Value split_up() {
    auto const arg = bind(name_, args_, {"sep", "maxsplit"});
    std::int64_t const max = arg[1] != nullptr ? need_integer(*arg[1], "maxsplit") : -1;
    bool const right = name_ == "rsplit";
    if (arg[0] == nullptr || arg[0]->is<None>()) return pieces(right ? rsplit_blanks(self_, max) : split_blanks(self_, max));
    std::string const& separator = need_text(*arg[0], "the separator");
    if (separator.empty()) fail("an empty separator");
    return pieces(right ? rsplit(self_, separator, max) : split(self_, separator, max));
  }
  Value has_affix() const {
    auto const arg = bind(name_, args_, {"affix"});
    if (arg[0] == nullptr) fail(concat(name_, " needs an argument"));
    auto const has = [&](Value const& affix) {
      std::string_view const part = need_text(affix, concat("the argument of ", name_));
      return name_ == "startswith" ? self_.starts_with(part) : self_.ends_with(part);
    };
    List const* const several = arg[0]->list();
    if (several == nullptr || several->form != Form::tuple) return boolean(has(*arg[0]));
    rt_.charge(1 + several->items.size());
    return boolean(std::any_of(several->items.begin(), several->items.end(), has));
  }
  Value replaced_text() const {
    auto const arg = bind(name_, args_, {"old", "new", "count"});
    if (arg[0] == nullptr || arg[1] == nullptr) fail("replace needs two arguments");
    std::int64_t const max = arg[2] != nullptr ? need_integer(*arg[2], "count") : -1;
    std::string const from = other(*arg[0]), to = other(*arg[1]);
    std::size_t const most = self_.size() / std::max<std::size_t>(from.size(), 1) + 1;  // replacements
    if (to.size() > rt_.limits().output_bytes / most) fail("a replacement is too long");
    rt_.charge_bytes(self_.size() + most * to.size());
    return made(replaced(self_, from, to, max));
  }
  Value joined() const {
    auto const arg = bind(name_, args_, {"iterable"});
    if (arg[0] == nullptr) fail("join needs an argument");
    std::string out;
    bool first = true;
    ListRef const items = items_of(rt_, *arg[0]);
    for (Value const& each : items->items) {
      if (!std::exchange(first, false)) out += self_;
      out += other(each);
      rt_.charge_bytes(self_.size() + each.text()->size());
      if (out.size() > rt_.limits().output_bytes) fail("a joined text is too long");
    }
    return made(std::move(out));
  }
  Value found() const {
    auto const arg = bind(name_, args_, {"sub"});
    if (arg[0] == nullptr) fail(concat(name_, " needs an argument"));
    std::string const& part = need_text(*arg[0], concat("the argument of ", name_));
    if (name_ == "count") {
      if (part.empty()) return integer(std::int64_t(n_characters(self_)) + 1);
      return integer(std::int64_t(split(self_, part, -1).size()) - 1);
    }
    std::size_t const at = name_[0] == 'r' ? self_.rfind(part) : self_.find(part);
    if (at == std::string::npos && name_.ends_with("index")) fail("substring not found");
    return integer(at == std::string::npos ? -1 : std::int64_t(n_characters(std::string_view(self_).substr(0, at))));
  }
  Value without_affix() const {
    auto const arg = bind(name_, args_, {"affix"});
    if (arg[0] == nullptr) fail(concat(name_, " needs an argument"));
    std::string const part = other(*arg[0]);
    if (name_ == "removeprefix") return made(self_.starts_with(part) ? self_.substr(part.size()) : self_);
    return made(self_.ends_with(part) ? self_.substr(0, self_.size() - part.size()) : self_);
  }
  Value partitioned() const {
    auto const arg = bind(name_, args_, {"sep"});
    if (arg[0] == nullptr) fail(concat(name_, " needs an argument"));
    std::string const part = other(*arg[0]);
    if (part.empty()) fail("an empty separator");
    bool const right = name_ == "rpartition";
    std::size_t const at = right ? self_.rfind(part) : self_.find(part);
    if (at == std::string::npos) return tuple({made(right ? "" : self_), made(""), made(right ? self_ : "")});
    return tuple({made(self_.substr(0, at)), made(part), made(self_.substr(at + part.size()))});
  }
  Value padded() const {
    auto const arg = bind(name_, args_, {"width", "fillchar"});
    if (arg[0] == nullptr || (name_ == "zfill" && arg[1] != nullptr)) fail(concat(name_, " is called with the wrong arguments"));
    std::string fill = name_ == "zfill" ? "0" : arg[1] != nullptr ? other(*arg[1]) : " ";
    if (n_characters(fill) != 1) fail("a fill of more than one character");
    std::int64_t const width = need_integer(*arg[0], "width"), n = std::int64_t(n_characters(self_));
    std::size_t const missing = width > n ? std::size_t(width - n) : 0;
    rt_.charge_bytes(std::min(missing, rt_.limits().output_bytes) * fill.size());
    if (missing > rt_.limits().output_bytes) fail("a padded text is too long");
    // CPython puts the odd blank of center() left where the width is odd too.
    std::size_t const left = name_ == "ljust" ? 0 : name_ == "center" ? missing / 2 + (missing & std::size_t(width) & 1) : missing;
    std::string out;
    std::string_view rest = self_;
    if (name_ == "zfill" && (rest.starts_with('-') || rest.starts_with('+'))) {
      out += rest[0];
      rest.remove_prefix(1);
    }
    for (std::size_t k = 0; k < left; ++k) out += fill;
    out += rest;
    for (std::size_t k = left; k < missing; ++k) out += fill;
    return made(std::move(out));
  }
  Value simple() const {
    if (find_name(refused_text_methods, name_) != nullptr) fail(concat("the method ", name_, "() of str is not supported"));
    expect_no_arguments(name_, args_);
    if (name_ == "upper") return made(in_case(self_, Case::upper));
    if (name_ == "lower" || name_ == "casefold") return made(in_case(self_, Case::lower));
    if (name_ == "capitalize") return made(capitalized(self_));
    if (name_ == "title") return made(titled(self_));
    if (name_ == "isupper") return boolean(is_all(self_, Case::upper));
    if (name_ == "islower") return boolean(is_all(self_, Case::lower));
    if (name_ == "isspace") return boolean(!self_.empty() && strip(self_, nullptr, true, false).empty());
    bool const digits = name_ == "isdigit" || name_ == "isdecimal" || name_ == "isnumeric";  // else isalpha or isalnum
    bool const ascii = std::all_of(self_.begin(), self_.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    if (!ascii) fail(concat(name_, "() of a text that is not ASCII"));
    return boolean(!self_.empty() && std::all_of(self_.begin(), self_.end(), [&](char c) {
      bool const is_digit = c >= '0' && c <= '9', is_letter = (c | 32) >= 'a' && (c | 32) <= 'z';
      return digits ? is_digit : name_ == "isalpha" ? is_letter : is_digit || is_letter;
    }));
  }

  Runtime& rt_;
  std::string const& self_;
  bool safe_;
  std::string_view name_;
  Arguments const& args_;
};

inline Value call_dict_method(Runtime& rt, Value const& self, std::string_view name, Arguments const& args) {
  Dict const& dict = *self.dict();
  if (name == "get") {
    auto const arg = bind(name, args, {"key", "default"});
    if (arg[0] == nullptr) fail("get needs a key");
    need_key(*arg[0]);
    Value const* const found = find(rt, dict, *arg[0]);
    return found != nullptr ? *found : arg[1] != nullptr ? *arg[1] : none();
  }
  if (name == "fromkeys") fail("the method fromkeys() of dict is not supported");
  expect_no_arguments(name, args);
  if (name == "copy") return self;
  rt.charge_items((name == "items" ? 4 : 1) * dict.items.size());
  std::vector<Value> items;
  for (auto const& [key, value] : dict.items) items.push_back(name == "keys" ? key : name == "values" ? value : tuple({key, value}));
  return list(std::move(items), Form::view);
}

inline Value call_list_method(Runtime& rt, Value const& self, std::string_view name, Arguments const& args) {
  if (name == "copy") {
    expect_no_arguments(name, args);
    return self;
  }
  auto const arg = bind(name, args, {"value"});
  if (arg[0] == nullptr) fail(concat(name, " needs an argument"));
  std::vector<Value> const& items = self.list()->items;
  auto const same = [&](Value const& each) { return equal(rt, each, *arg[0]); };
  if (name == "count") return integer(std::int64_t(std::count_if(items.begin(), items.end(), same)));
  auto const at = std::find_if(items.begin(), items.end(), same);
  if (at == items.end()) fail("index() of a value that is not in the list");
  return integer(std::int64_t(at - items.begin()));
}

inline Value call_loop_method(Runtime& rt, LoopRef const& loop, std::string_view name, Arguments const& args) {
  if (!args.named.empty()) fail(concat("loop.", name, " takes no named arguments"));
  if (name == "cycle") {
    if (args.positional.empty()) fail("loop.cycle needs an argument");
    return args.positional[loop->index % args.positional.size()];
  }
  // The arguments cannot hold this loop for ever: the interpreter forgets them when the loop ends.
  auto now = std::make_shared<Value>(tuple(args.positional));
  bool const changed = loop->last_seen == nullptr || !equal(rt, *loop->last_seen, *now);
  if (changed) loop->last_seen = std::move(now);
  return boolean(changed);
}

inline Value call_method(Runtime& rt, Method const& method, Arguments const& args) {
  Value const& self = *method.self;
  if (self.text() != nullptr) return TextMethods(rt, self, method.name, args).call();
  if (self.dict() != nullptr) return call_dict_method(rt, self, method.name, args);
  if (self.list() != nullptr) return call_list_method(rt, self, method.name, args);
  return call_loop_method(rt, *self.get<LoopRef>(), method.name, args);
}

}  // namespace tiered::detail::jinja
