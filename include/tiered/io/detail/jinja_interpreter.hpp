/// Renders the tree of a chat template.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_ast.hpp"
#include "tiered/io/detail/jinja_filters.hpp"
#include "tiered/io/detail/jinja_functions.hpp"
#include "tiered/io/detail/jinja_methods.hpp"
#include "tiered/io/detail/jinja_operators.hpp"
#include "tiered/io/detail/jinja_tests.hpp"
#include "tiered/io/detail/jinja_value.hpp"

namespace tiered::detail::jinja {

/// Variables of a template, of one turn of a loop, of a call of a macro. Names live in the tree or with the caller.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> variables{};

  Value* find(std::string_view name) {
    for (auto& [key, value] : variables) {
      if (key == name) return &value;
    }
    return nullptr;
  }
  void set(std::string_view name, Value value) {
    if (Value* const held = find(name)) {
      *held = std::move(value);
    } else {
      variables.emplace_back(name, std::move(value));
    }
  }
};
using ScopeRef = std::shared_ptr<Scope>;

class Interpreter {
 public:
  Interpreter(Runtime& rt, std::tm const& now) : rt_(rt), now_(now), scope_(std::make_shared<Scope>()) {}
  /// A scope that holds a macro is held by it.
  ~Interpreter() {
    for (ScopeRef const& scope : held_) scope->variables.clear();
  }
  Interpreter(Interpreter const&) = delete;
  Interpreter& operator=(Interpreter const&) = delete;

  /// Before render(); `name` must live as long.
  void define(std::string_view name, Value value) { scope_->set(name, std::move(value)); }
  /// Once.  Errors  precondition from raise_exception(); unsupported for all else; line() says where.
  std::string render(std::vector<Statement> const& statements) {
    std::string out;
    out_ = &out;
    run(statements);
    return out;
  }
  std::uint32_t line() const { return line_; }

 private:
  enum class Flow { normal, break_, continue_ };

  /// Variables of their own, while it lives.
  class Inner {
   public:
    Inner(Interpreter& interpreter, ScopeRef parent)
        : scope_(interpreter.scope_), before_(std::exchange(interpreter.scope_, std::make_shared<Scope>(Scope{std::move(parent)}))) {
      interpreter.rt_.charge(8);
    }
    explicit Inner(Interpreter& interpreter) : Inner(interpreter, interpreter.scope_) {}
    ~Inner() { scope_ = std::move(before_); }
    Inner(Inner const&) = delete;
    Inner& operator=(Inner const&) = delete;

   private:
    ScopeRef& scope_;
    ScopeRef before_;
  };
  /// What statements write, as a value.
  template <class Action>
  std::string captured(Action const& action) {
    struct Restore {
      std::string*& out;
      std::string* before;
      ~Restore() { out = before; }
    };
    std::string text;
    Restore const restore{out_, out_};
    out_ = &text;
    action();
    return text;
  }

  // ---- statements

  Flow run(std::vector<Statement> const& statements) {
    Runtime::Nested const nested(rt_);
    for (Statement const& statement : statements) {
      rt_.charge();
      line_ = statement.line;
      Flow const flow = run(statement);
      if (flow != Flow::normal) return flow;
    }
    return Flow::normal;
  }

  Flow run(Statement const& s) {
    switch (s.kind) {
      case StatementKind::data: write(s.text); break;
      case StatementKind::output: write_value(evaluate(*s.exprs[0])); break;
      case StatementKind::conditional: return run_conditional(s);
      case StatementKind::loop: run_loop(s, scope_, items_of(rt_, iterable(evaluate(*s.exprs[1]))), 0); break;
      case StatementKind::set: assign(*s.exprs[0], evaluate(*s.exprs[1])); break;
      case StatementKind::set_block: {
        std::string text = captured([&] { run_inner(s.bodies[0]); });
        Value value = jinja::text(std::move(text));
        assign(*s.exprs[0], s.exprs[1] != nullptr ? filtered(*s.exprs[1], value) : std::move(value));
        break;
      }
      case StatementKind::macro: scope_->set(s.text, closure(s)); break;
      case StatementKind::call_block: {
        Value const caller = closure(s);
        write_value(call(*s.exprs[0], &caller));
        break;
      }
      case StatementKind::filter_block: {
        std::string text = captured([&] { run_inner(s.bodies[0]); });
        write_value(filtered(*s.exprs[0], jinja::text(std::move(text))));
        break;
      }
      case StatementKind::scope: return run_scope(s);
      case StatementKind::break_: return Flow::break_;
      case StatementKind::continue_: return Flow::continue_;
    }
    return Flow::normal;
  }
  void run_inner(std::vector<Statement> const& statements) {
    Inner const inner(*this);
    run(statements);
  }

  void write(std::string_view text) {
    rt_.charge_bytes(text.size());
    if (out_->size() + text.size() > rt_.limits().output_bytes) fail(concat("a text of more than ", rt_.limits().output_bytes, " bytes"));
    *out_ += text;
  }
  void write_value(Value const& v) {
    std::string storage;
    write(text_view(rt_, v, storage));
  }

  Flow run_conditional(Statement const& s) {
    for (std::size_t i = 0; i < s.exprs.size(); ++i) {
      if (truth(evaluate(*s.exprs[i]))) return run(s.bodies[i]);
    }
    return s.bodies.size() > s.exprs.size() ? run(s.bodies.back()) : Flow::normal;
  }
  Flow run_scope(Statement const& s) {
    std::vector<Value> values;  // those of `with` see the variables outside
    for (std::size_t i = 1; i < s.exprs.size(); i += 2) values.push_back(evaluate(*s.exprs[i]));
    Inner const inner(*this);
    for (std::size_t i = 0; i < values.size(); ++i) assign(*s.exprs[2 * i], std::move(values[i]));
    return run(s.bodies[0]);
  }

  /// Fails for what jinja2's loops refuse.
  static Value iterable(Value v) {
    if (v.is<None>()) fail("None cannot be iterated");
    return v;
  }
  void run_loop(Statement const& s, ScopeRef const& around, ListRef items, int depth) {
    if (s.exprs[2] != nullptr) items = selected(s, around, *items);
    if (items->items.empty()) {
      if (s.bodies.size() > 1) {
        Inner const inner(*this, around);
        run(s.bodies[1]);
      }
      return;
    }
    auto const loop = std::make_shared<Loop>(Loop{&s, std::move(items), s.recursive ? around : nullptr, 0, depth});
    struct Forget {  // what could hold the loop itself
      Loop& loop;
      ~Forget() {
        loop.scope = nullptr;
        loop.last_seen = nullptr;
      }
    } const forget{*loop};
    for (; loop->index < loop->items->items.size(); ++loop->index) {
      Inner const inner(*this, around);
      scope_->set("loop", {loop});
      assign(*s.exprs[0], loop->items->items[loop->index]);
      if (run(s.bodies[0]) == Flow::break_) break;
    }
  }
  ListRef selected(Statement const& s, ScopeRef const& around, List const& items) {
    std::vector<Value> out;
    for (Value const& each : items.items) {
      Inner const inner(*this, around);
      assign(*s.exprs[0], each);
      if (truth(evaluate(*s.exprs[2]))) out.push_back(each);
    }
    return list_of(std::move(out));
  }

  void assign(Expr const& target, Value value) {
    rt_.charge(1 + scope_->variables.size() / 16);
    if (target.kind == ExprKind::name) {
      scope_->set(target.text, std::move(value));
    } else if (target.kind == ExprKind::attribute) {
      Value const held = variable(target.children[0]->text);
      if (!held.is<NamespaceRef>()) fail(concat("cannot assign to ", target.children[0]->text, ".", target.text, ": it is no namespace"));
      set_attribute(rt_, **held.get<NamespaceRef>(), target.text, std::move(value));
    } else {
      need_defined(value);
      ListRef const parts = items_of(rt_, value);
      if (parts->items.size() != target.children.size()) {
        fail(concat("cannot unpack ", parts->items.size(), " values into ", target.children.size()));
      }
      for (std::size_t i = 0; i < target.children.size(); ++i) assign(*target.children[i], parts->items[i]);
    }
  }

  // ---- calls

  Value closure(Statement const& s) {
    rt_.charge(16);
    held_.push_back(scope_);
    return {MacroRef(std::make_shared<Macro const>(Macro{&s, scope_, s.text}))};
  }

  Arguments arguments(Expr const& e) {
    Arguments args;
    std::size_t const n_positional = e.children.size() - e.names.size();
    for (std::size_t i = 1; i < n_positional; ++i) args.positional.push_back(evaluate(*e.children[i]));
    for (std::size_t i = 0; i < e.names.size(); ++i) args.named.emplace_back(e.names[i], evaluate(*e.children[n_positional + i]));
    if (e.star != nullptr) {
      ListRef const more = items_of(rt_, iterable(evaluate(*e.star)));
      rt_.charge_items(more->items.size());
      args.positional.insert(args.positional.end(), more->items.begin(), more->items.end());
    }
    if (e.double_star != nullptr) {
      Value const more = evaluate(*e.double_star);
      if (more.dict() == nullptr) fail("the argument behind ** must be a dict");
      rt_.charge_items(2 * more.dict()->items.size());
      for (auto const& [key, value] : more.dict()->items) args.named.emplace_back(need_text(key, "the name of an argument"), value);
    }
    return args;
  }

  /// `caller` is null but for {% call %}.
  Value call(Expr const& e, Value const* caller = nullptr) {
    Value const callee = evaluate(*e.children[0]);
    Arguments args = arguments(e);
    if (caller != nullptr) args.named.emplace_back("caller", *caller);
    line_ = e.line;
    if (auto const* const macro = callee.get<MacroRef>()) return call_macro(**macro, std::move(args));
    if (auto const* const method = callee.get<MethodRef>()) return call_method(rt_, **method, args);
    if (auto const* const function = callee.get<Function>()) return call_function(rt_, function->name, args, now_);
    if (auto const* const loop = callee.get<LoopRef>()) return call_loop(*loop, args);
    need_defined(callee);
    fail(concat("a ", type_name(callee), " cannot be called"));
  }

  /// {% for ... recursive %}: the loop again, over other items.
  Value call_loop(LoopRef const& loop, Arguments const& args) {
    auto const arg = bind("loop", args, {"iterable"});
    if (arg[0] == nullptr || loop->scope == nullptr)
      fail("loop() is only for the inside of loops with recursive, and takes what to go through");
    ScopeRef const around = loop->scope;
    ListRef const items = items_of(rt_, iterable(*arg[0]));
    return text(captured([&] { run_loop(*loop->definition, around, items, loop->depth + 1); }));
  }

  Value call_macro(Macro const& macro, Arguments args) {
    Statement const& s = *macro.definition;
    ScopeRef const around = macro.scope;
    std::uint32_t const line = line_;
    Inner const inner(*this, around);
    std::size_t const n = s.names.size(), n_given = std::min(n, args.positional.size());
    for (std::size_t i = 0; i < n; ++i) {
      std::string const& name = s.names[i];
      auto const named = std::find_if(args.named.begin(), args.named.end(), [&](auto const& each) { return each.first == name; });
      std::size_t const first_default = n - s.defaults.size();
      if (i < n_given) {
        scope_->set(name, std::move(args.positional[i]));
      } else if (named != args.named.end()) {
        scope_->set(name, std::move(named->second));
        args.named.erase(named);
      } else {
        scope_->set(name, i >= first_default ? evaluate(*s.defaults[i - first_default])
                                             : undefined(concat("parameter '", name, "' was not provided")));
      }
    }
    take_surplus(s, std::move(args), n_given);
    std::string out = captured([&] { run(s.bodies[0]); });
    line_ = line;
    return text(std::move(out));
  }
  /// varargs, kwargs and caller, where the macro mentions them.
  void take_surplus(Statement const& s, Arguments args, std::size_t n_used) {
    auto const is_caller = [](auto const& each) { return each.first == "caller"; };
    if (s.takes_caller && std::find(s.names.begin(), s.names.end(), "caller") == s.names.end()) {
      auto const caller = std::find_if(args.named.begin(), args.named.end(), is_caller);
      scope_->set("caller", caller != args.named.end() ? caller->second : undefined("no caller is defined"));
      if (caller != args.named.end()) args.named.erase(caller);
    }
    std::string_view const name = s.text.empty() ? std::string_view("caller") : std::string_view(s.text);
    if (s.takes_kwargs) {
      scope_->set("kwargs", dict(dict_items(rt_, "kwargs", {{}, std::move(args.named)})));
    } else if (!args.named.empty()) {
      fail(concat("the macro ", name, " has no argument ", args.named[0].first));
    }
    if (s.takes_varargs) {
      scope_->set("varargs", tuple({args.positional.begin() + std::ptrdiff_t(n_used), args.positional.end()}));
    } else if (args.positional.size() > n_used) {
      fail(concat("the macro ", name, " takes ", s.names.size(), " arguments, not ", args.positional.size()));
    }
  }

  // ---- expressions

  Value variable(std::string_view name) {
    for (Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
      rt_.charge(1 + scope->variables.size() / 16);
      if (Value const* const found = scope->find(name)) return *found;
    }
    if (std::string_view const* const function = find_name(function_names, name)) return {Function{*function}};
    return undefined(concat("'", name, "' is undefined"));
  }

  Value evaluate(Expr const& e) {
    rt_.charge();
    Runtime::Nested const nested(rt_);
    line_ = e.line;
    switch (e.kind) {
      case ExprKind::constant: return e.constant;
      case ExprKind::name: return variable(e.text);
      case ExprKind::list: return list(values(e));
      case ExprKind::tuple: return tuple(values(e));
      case ExprKind::dict: return dict_literal(e);
      case ExprKind::attribute: return attribute(rt_, evaluate(*e.children[0]), e.text);
      case ExprKind::item: return indexed(e);
      case ExprKind::slice: return slice(e);
      case ExprKind::call: return call(e);
      case ExprKind::filter: return filtered(e, {});
      case ExprKind::test: return boolean(tested(e));
      case ExprKind::unary: return unary(e);
      case ExprKind::binary: return binary(e);
      case ExprKind::concat: return joined(e);
      case ExprKind::compare: return compared(e);
      case ExprKind::condition: return conditional(e);
    }
    return {};
  }

  std::vector<Value> values(Expr const& e) {
    std::vector<Value> out;
    for (ExprPtr const& child : e.children) out.push_back(evaluate(*child));
    rt_.charge_items(out.size());
    return out;
  }
  Value dict_literal(Expr const& e) {
    std::vector<std::pair<Value, Value>> items;
    for (std::size_t i = 0; i + 1 < e.children.size(); i += 2) {
      Value key = evaluate(*e.children[i]);
      put(rt_, items, std::move(key), evaluate(*e.children[i + 1]));
    }
    return dict(std::move(items));
  }
  Value indexed(Expr const& e) {
    Value const base = evaluate(*e.children[0]);
    return item(rt_, base, evaluate(*e.children[1]));
  }
  Value slice(Expr const& e) {
    Value const base = evaluate(*e.children[0]);
    Value bounds[3];
    for (std::size_t i = 0; i < 3; ++i) bounds[i] = e.children[i + 1] != nullptr ? evaluate(*e.children[i + 1]) : none();
    return sliced(rt_, base, bounds);
  }
  /// A chain of filters; the innermost of a filter block has no operand and takes `piped`.
  Value filtered(Expr const& e, Value const& piped) {
    Runtime::Nested const nested(rt_);
    Value operand = piped;
    if (Expr const* const inner = e.children[0].get())
      operand = inner->kind == ExprKind::filter ? filtered(*inner, piped) : evaluate(*inner);
    Arguments const args = arguments(e);
    line_ = e.line;
    return apply_filter(rt_, e.text, operand, args);
  }
  bool tested(Expr const& e) {
    Value const operand = evaluate(*e.children[0]);
    Arguments const args = arguments(e);
    line_ = e.line;
    if (e.text == "filter" || e.text == "test") fail(concat("the test ", e.text, " is not supported"));
    return apply_test(rt_, e.text, operand, args);
  }
  Value unary(Expr const& e) {
    Value const operand = evaluate(*e.children[0]);
    if (e.text == "not") return boolean(!truth(operand));
    return e.text == "-" ? negated(operand) : negated(negated(operand));
  }
  Value binary(Expr const& e) {
    Value const left = evaluate(*e.children[0]);
    if (e.text == "and") return truth(left) ? evaluate(*e.children[1]) : left;
    if (e.text == "or") return truth(left) ? left : evaluate(*e.children[1]);
    Value const right = evaluate(*e.children[1]);
    line_ = e.line;
    if (e.text == "+") return add(rt_, left, right);
    if (e.text == "*") return multiply(rt_, left, right);
    if (e.text == "**") return power(left, right);
    if (e.text == "%" && left.text() != nullptr) {
      List const* const several = right.list();
      bool const is_tuple = several != nullptr && several->form == Form::tuple;
      return text(percent_format(rt_, *left.text(), is_tuple ? several->items : std::vector<Value>{right}), left.is_safe());
    }
    return numeric(e.text, left, right);
  }
  Value joined(Expr const& e) {
    std::string out, storage;
    for (ExprPtr const& child : e.children) {
      Value const part = evaluate(*child);
      out += text_view(rt_, part, storage);
      rt_.charge_bytes(out.size());
    }
    return text(std::move(out));
  }
  Value compared(Expr const& e) {
    Value left = evaluate(*e.children[0]);
    for (std::size_t i = 0; i < e.names.size(); ++i) {
      Value right = evaluate(*e.children[i + 1]);
      line_ = e.line;
      if (!compare(rt_, e.names[i], left, right)) return boolean(false);
      left = std::move(right);
    }
    return boolean(true);
  }
  Value conditional(Expr const& e) {
    if (truth(evaluate(*e.children[1]))) return evaluate(*e.children[0]);
    if (e.children[2] != nullptr) return evaluate(*e.children[2]);
    return undefined("an inline if without else, whose condition is false,");
  }

  Runtime& rt_;
  std::tm now_;
  ScopeRef scope_;
  std::vector<ScopeRef> held_{};
  std::string* out_ = nullptr;
  std::uint32_t line_ = 1;
};

}  // namespace tiered::detail::jinja
