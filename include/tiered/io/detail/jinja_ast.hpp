/// A chat template as a tree, which never changes once it is parsed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tiered/io/detail/jinja_value.hpp"

namespace tiered::detail::jinja {

enum class ExprKind : std::uint8_t {
  constant,   // constant
  name,       // text
  list,       // children
  tuple,      // children
  dict,       // children: key, value, key, value...
  attribute,  // children[0].text; also the target ns.x of an assignment, with a name as child
  item,       // children[0][children[1]]
  slice,      // children[0][children[1]:children[2]:children[3]], each but the first may be null
  call,       // children[0](arguments)
  filter,     // children[0] | text(arguments); children[0] is null in a filter block
  test,       // children[0] is text(arguments)
  unary,      // text: "-", "+", "not"
  binary,     // children[0] text children[1]: "+", "-", "*", "/", "//", "%", "**", "and", "or"
  concat,     // children joined as text
  compare,    // children[0] names[0] children[1] names[1] children[2]...
  condition,  // children[0] if children[1] else children[2], which may be null
};

struct Expr {
  ExprKind kind;
  std::uint32_t line = 0;
  std::string text{};
  Value constant{};
  std::vector<std::unique_ptr<Expr>> children{};
  /// Operators of a comparison; or of a call the names of the arguments that stand last among the children.
  std::vector<std::string> names{};
  std::unique_ptr<Expr> star{}, double_star{};  ///< *arguments and **arguments of a call
  int depth = 1;
};
using ExprPtr = std::unique_ptr<Expr>;

enum class StatementKind : std::uint8_t {
  data,          // text
  output,        // exprs[0]
  conditional,   // bodies[i] where exprs[i] holds, else bodies.back() where there is one more
  loop,          // for exprs[0] in exprs[1] if exprs[2] (or null): bodies[0], else bodies[1]
  set,           // exprs[0] = exprs[1]
  set_block,     // exprs[0] = bodies[0], through the filters exprs[1] (or null)
  macro,         // text(names = defaults): bodies[0]
  call_block,    // exprs[0] with bodies[0] as its caller, which takes names
  filter_block,  // bodies[0] through exprs[0]
  scope,         // bodies[0] with variables of its own: exprs are target, value, target, value...
  break_,
  continue_,
};

struct Statement {
  StatementKind kind;
  std::uint32_t line = 0;
  std::string text{};
  std::vector<ExprPtr> exprs{};
  std::vector<std::vector<Statement>> bodies{};
  std::vector<std::string> names{};  ///< of parameters
  std::vector<ExprPtr> defaults{};   ///< of the last of them
  bool recursive = false;            ///< loops
  /// What a macro's body mentions: only then are surplus arguments taken.
  bool takes_varargs = false, takes_kwargs = false, takes_caller = false;
};

}  // namespace tiered::detail::jinja
