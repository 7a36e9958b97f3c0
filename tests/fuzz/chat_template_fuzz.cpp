// Templates and conversations made of the input's bytes: an error or a text, soon, without a leak; the same one twice.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/detail/jinja_interpreter.hpp"
#include "tiered/io/detail/jinja_parser.hpp"

namespace {

using namespace tiered;
namespace jinja = detail::jinja;

/// Fields of the conversation are separated by a line of dots: role, content, role, content...; a role may be "json".
struct Input {
  std::string_view source;
  std::vector<std::string_view> fields;
};
Input split(std::string_view bytes) {
  static constexpr std::string_view separator = "\n....\n";
  Input input;
  std::size_t end = bytes.find(separator);
  input.source = bytes.substr(0, end);
  while (end != std::string_view::npos) {
    bytes.remove_prefix(end + separator.size());
    end = bytes.find(separator);
    input.fields.push_back(bytes.substr(0, end));
  }
  return input;
}

std::string outcome(Input const& input) {
  // Little enough work for a run of a second under the sanitizers.
  jinja::Limits limits;
  limits.work = 200'000;
  limits.output_bytes = 1 << 20;
  jinja::Runtime runtime(limits);
  jinja::Interpreter interpreter(runtime, std::tm{});
  try {
    auto const statements = jinja::Parser::parse(input.source, jinja::knows_filter, jinja::knows_test);
    std::vector<jinja::Value> messages;
    for (std::size_t i = 0; i + 1 < input.fields.size(); i += 2) {
      bool const is_json = input.fields[i] == "json";
      jinja::Value content =
          is_json ? jinja::JsonReader::read(runtime, input.fields[i + 1]) : jinja::text(std::string(input.fields[i + 1]));
      messages.push_back(
          jinja::dict({{jinja::text("role"), jinja::text(std::string(input.fields[i]))}, {jinja::text("content"), content}}));
    }
    interpreter.define("messages", jinja::list(messages));
    interpreter.define("tools", jinja::list(messages));
    interpreter.define("bos_token", jinja::text("<s>"));
    interpreter.define("add_generation_prompt", jinja::boolean(true));
    return interpreter.render(statements);
  } catch (Error const& e) {
    return std::string("refused: ") + e.what();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  Input const input = split({reinterpret_cast<char const*>(data), size});
  if (outcome(input) != outcome(input)) std::abort();
  return 0;
}
