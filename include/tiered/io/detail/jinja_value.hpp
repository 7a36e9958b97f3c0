/// The values of a chat template: what Python's would be, immutable but for namespaces, and bounded in depth.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace tiered::detail::jinja {

/// Everything that a template asks for and cannot have. The interpreter adds the line.
[[noreturn]] inline void fail(std::string const& what) { throw Error(Errc::unsupported, what); }

struct Value;
struct Statement;
struct Scope;

/// `safe` is what Jinja calls Markup: a sum with it escapes the other side. UTF-8, or any bytes.
struct Text {
  std::string bytes;
  bool safe = false;
};
enum class Form : std::uint8_t {
  list,
  tuple,
  range,      ///< range(): a sequence that is neither of them
  view,       ///< dict.items() and its like: has a length, but no index
  generator,  ///< of filters such as map: true even where empty, and gone through once
};
struct List {
  std::vector<Value> items;
  int depth = 1;  ///< of the deepest value inside, plus one: lists can be freed, printed and compared by recursion
  Form form = Form::list;
  mutable std::size_t n_taken = 0;  ///< of a generator
  bool is_plain() const { return form == Form::list || form == Form::tuple; }
  bool has_index() const { return form != Form::view && form != Form::generator; }
};
/// In insertion order. Keys are compared as Python does it (1 == True), one after another: dicts of templates are small.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
};
/// The only thing that can be changed. The runtime holds every one until the rendering ends, as cycles go through them only.
struct Namespace {
  std::vector<std::pair<std::string, Value>> items;
};
/// A macro, or the body of a call block, with the variables that it sees.
struct Macro {
  Statement const* definition;
  std::shared_ptr<Scope> scope;
  std::string_view name;
};
struct Method {
  std::shared_ptr<Value const> self;
  std::string_view name;  ///< static
};
struct Loop {
  Statement const* definition;
  std::shared_ptr<List const> items;
  std::shared_ptr<Scope> scope;  ///< the one around the loop, for recursive loops; else null
  std::size_t index = 0;
  int depth = 0;
  std::shared_ptr<Value> last_seen{};  ///< by loop.changed()
};
/// A global function, by name.
struct Function {
  std::string_view name;  ///< static
};
struct Undefined {
  std::shared_ptr<std::string const> what;  ///< "'x' is undefined", for messages
};
struct None {};

using TextRef = std::shared_ptr<Text const>;
using ListRef = std::shared_ptr<List const>;
using DictRef = std::shared_ptr<Dict const>;
using NamespaceRef = std::shared_ptr<Namespace>;
using MacroRef = std::shared_ptr<Macro const>;
using MethodRef = std::shared_ptr<Method const>;
using LoopRef = std::shared_ptr<Loop>;

struct Value {
  using Data = std::variant<Undefined, None, bool, std::int64_t, double, TextRef, ListRef, DictRef, NamespaceRef, MacroRef, MethodRef,
                            LoopRef, Function>;
  Data data;

  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  template <class T>
  T const* get() const {
    return std::get_if<T>(&data);
  }
  /// Null unless it is text, and so on.
  std::string const* text() const {
    auto const* const ref = get<TextRef>();
    return ref == nullptr ? nullptr : &(*ref)->bytes;
  }
  bool is_safe() const {
    auto const* const ref = get<TextRef>();
    return ref != nullptr && (*ref)->safe;
  }
  List const* list() const {
    auto const* const ref = get<ListRef>();
    return ref == nullptr ? nullptr : ref->get();
  }
  Dict const* dict() const {
    auto const* const ref = get<DictRef>();
    return ref == nullptr ? nullptr : ref->get();
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_number() const { return is<bool>() || is<std::int64_t>() || is<double>(); }
  /// Of an int or a bool, which is one in Python.
  bool integer(std::int64_t& out) const {
    if (auto const* const i = get<std::int64_t>()) return out = *i, true;
    if (auto const* const b = get<bool>()) return out = *b ? 1 : 0, true;
    return false;
  }
  /// Of any number.
  bool real(double& out) const {
    if (auto const* const d = get<double>()) return out = *d, true;
    std::int64_t i = 0;
    return integer(i) && (out = double(i), true);
  }
};

inline constexpr int max_value_depth = 100;

inline Value undefined(std::string what) { return {Undefined{std::make_shared<std::string const>(std::move(what))}}; }
inline Value none() { return {None{}}; }
inline Value boolean(bool b) { return {Value::Data(std::in_place_type<bool>, b)}; }
inline Value integer(std::int64_t i) { return {i}; }
inline Value real(double d) { return {d}; }
inline Value text(std::string bytes, bool safe = false) { return {TextRef(std::make_shared<Text const>(Text{std::move(bytes), safe}))}; }

inline int depth_of(Value const& v) {
  if (auto const* const list = v.list()) return list->depth;
  if (auto const* const dict = v.dict()) return dict->depth;
  if (auto const* const method = v.get<MethodRef>()) return depth_of(*(*method)->self) + 1;
  if (auto const* const loop = v.get<LoopRef>()) return (*loop)->items->depth + 1;
  return 0;
}
inline int depth_around(int inner) {
  if (inner >= max_value_depth) fail(concat("values are nested more than ", max_value_depth, " deep"));
  return inner + 1;
}
inline ListRef list_of(std::vector<Value> items, Form form = Form::list) {
  int depth = 0;
  for (Value const& item : items) depth = std::max(depth, depth_of(item));
  return std::make_shared<List const>(List{std::move(items), depth_around(depth), form});
}
inline Value list(std::vector<Value> items, Form form = Form::list) { return {list_of(std::move(items), form)}; }
inline Value tuple(std::vector<Value> items) { return list(std::move(items), Form::tuple); }
/// Keys must be unique.
inline Value dict(std::vector<std::pair<Value, Value>> items) {
  int depth = 0;
  for (auto const& [key, value] : items) depth = std::max({depth, depth_of(key), depth_of(value)});
  return {DictRef(std::make_shared<Dict const>(Dict{std::move(items), depth_around(depth)}))};
}

/// As Python names it, for messages.
inline std::string_view type_name(Value const& v) {
  static constexpr std::string_view names[] = {"undefined", "None",      "bool",  "int",    "float", "str",     "list",
                                               "dict",      "namespace", "macro", "method", "loop",  "function"};
  static constexpr std::string_view forms[] = {"list", "tuple", "range", "view of a dict", "generator"};
  return v.list() != nullptr ? forms[std::size_t(v.list()->form)] : names[v.data.index()];
}
/// Fails for an undefined value, in Jinja's words.
inline void need_defined(Value const& v) {
  if (auto const* const u = v.get<Undefined>()) fail(u->what != nullptr ? *u->what : "a value is undefined");
}

inline bool truth(Value const& v) {
  if (auto const* const b = v.get<bool>()) return *b;
  if (auto const* const i = v.get<std::int64_t>()) return *i != 0;
  if (auto const* const d = v.get<double>()) return *d != 0;
  if (auto const* const t = v.text()) return !t->empty();
  if (auto const* const l = v.list()) return !l->items.empty() || l->form == Form::generator;
  if (auto const* const m = v.dict()) return !m->items.empty();
  return !v.is_undefined() && !v.is<None>();
}

/// What one rendering may use. Work counts evaluated nodes and produced bytes and elements, so that it bounds time and memory.
struct Limits {
  std::int64_t work = 5'000'000;
  std::size_t output_bytes = std::size_t{64} << 20;
  int depth = 600;  ///< of evaluations inside each other, macro calls included
};

/// The state of a rendering that filters and methods share.
class Runtime {
 public:
  explicit Runtime(Limits const& limits) : limits_(limits), work_left_(limits.work) {}
  /// Whatever a namespace holds may hold the namespace.
  ~Runtime() {
    for (NamespaceRef const& each : namespaces_) each->items.clear();
  }
  Runtime(Runtime const&) = delete;
  Runtime& operator=(Runtime const&) = delete;

  void charge(std::size_t units = 1) {
    if (units > std::size_t(work_left_)) fail(concat("the template does more than ", limits_.work, " steps"));
    work_left_ -= std::int64_t(units);
  }
  /// Before so many bytes of text are made.
  void charge_bytes(std::size_t bytes) {
    if (bytes > limits_.output_bytes) fail(concat("a text of more than ", limits_.output_bytes, " bytes"));
    charge(1 + bytes / 8);
  }
  void charge_items(std::size_t n) {
    if (n > std::size_t(limits_.work)) fail(concat("the template makes a list of ", n, " items"));
    charge(1 + 4 * n);
  }
  Limits const& limits() const { return limits_; }

  /// One evaluation inside another, while it lives: bounds the stack.
  class Nested {
   public:
    explicit Nested(Runtime& rt) : rt_(rt) {
      if (rt_.depth_ >= rt_.limits_.depth) fail(concat("the template calls itself more than ", rt_.limits_.depth, " deep"));
      ++rt_.depth_;
    }
    ~Nested() { --rt_.depth_; }
    Nested(Nested const&) = delete;
    Nested& operator=(Nested const&) = delete;

   private:
    Runtime& rt_;
  };

  Value make_namespace() {
    charge(16);
    namespaces_.push_back(std::make_shared<Namespace>());
    return {namespaces_.back()};
  }

 private:
  Limits limits_;
  std::int64_t work_left_;
  int depth_ = 0;
  std::vector<NamespaceRef> namespaces_;
};

/// Arguments of a call, a filter or a test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Arguments by the names of the parameters; null where one is not given.
template <std::size_t N>
struct Bound {
  Value const* at[N] = {};
  Value const* operator[](std::size_t i) const { return at[i]; }
  bool flag(std::size_t i, bool fallback = false) const { return at[i] == nullptr ? fallback : truth(*at[i]); }
};
template <std::size_t N>
Bound<N> bind(std::string_view callee, Arguments const& args, char const* const (&names)[N]) {
  Bound<N> bound;
  if (args.positional.size() > N) fail(concat(callee, " takes at most ", N, " arguments, not ", args.positional.size()));
  for (std::size_t i = 0; i < args.positional.size(); ++i) bound.at[i] = &args.positional[i];
  for (auto const& [name, value] : args.named) {
    std::size_t const i = std::size_t(std::find(std::begin(names), std::end(names), name) - std::begin(names));
    if (i == N) fail(concat(callee, " has no argument ", name));
    if (bound.at[i] != nullptr) fail(concat(callee, " is given ", name, " twice"));
    bound.at[i] = &value;
  }
  return bound;
}
inline void expect_no_arguments(std::string_view callee, Arguments const& args) {
  if (!args.positional.empty() || !args.named.empty()) fail(concat(callee, " takes no arguments"));
}

}  // namespace tiered::detail::jinja
