"""Conversations for chat templates, and Jinja2 set up as Hugging Face transformers does it (utils/chat_template_utils.py)."""
import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2026, 3, 5, 14, 7, 9)
BOS, EOS = "<s>", "</s>"

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a \"place\" & more.\nSecond line <b>.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "City, e.g. Zürich"}, "days": {"type": "integer", "default": 3},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}, "hours": {"type": "array", "items": {"type": "number"}}},
        "required": ["place"]}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}
CALL = [{"id": "call00001", "type": "function", "function": {
    "name": "get_weather", "arguments": {"place": "Genève", "days": 2, "exact": True, "factor": 1.5, "note": None, "hours": [1, 2.0]}}}]


def turn(role: str, content: str, **more: object) -> dict:
    """A message, its fields in the order of ChatMessage; what was thought stands under its older name too, as transformers has it."""
    message = {"thinking": more["reasoning_content"]} if "reasoning_content" in more else {}
    message |= {"role": role, "content": content}
    return message | {key: more[key] for key in ("reasoning_content", "tool_calls", "tool_call_id", "name") if key in more}


USER, BOT, SYSTEM = (lambda text, role=role, **more: turn(role, text, **more) for role in ("user", "assistant", "system"))
# messages, tools, variables
CONVERSATIONS = [
    ([USER("What is gravity?")], [], {}),
    ([SYSTEM("You are a pirate."), USER("Hello!")], [], {}),
    ([USER("Hi"), BOT("Hello, how can I help?"), USER("Tell me a joke.\n\nA long one.")], [], {}),
    ([SYSTEM("Be brief."), USER("One"), BOT("Two"), USER("Three"), BOT("Four")], [], {}),
    ([SYSTEM("Système «ß»"), USER("日本語と😀 \"double\" 'single'"), BOT("naïve\u00a0\u2028 text"), USER("\u3000wide blanks\u3000")], [], {}),
    ([SYSTEM(""), USER(""), BOT(""), USER("?")], [], {}),
    ([USER("  blanks  \n"), BOT("\tstay \\n "), SYSTEM("a late system message"), USER("{{ 7 * 7 }} {% raw %} <b>&amp;</b> <|im_end|>\r\n")], [], {}),
    ([USER("a"), USER("b"), BOT("c"), BOT("d"), USER("e")], [], {}),
    ([BOT("I begin."), USER("Then I follow.")], [], {}),
    ([SYSTEM("Only a system message.")], [], {}),
    ([USER("2+2?"), BOT("<think>\nlet me see\n</think>\n\n4"), USER("And 3+3?"), BOT("<think>six</think>6"), USER("Sure?")], [], {}),
    ([USER("2+2?"), BOT("4", reasoning_content="It is four.\n"), USER("And 3+3?"), BOT("6", reasoning_content="Six.")], [], {}),
    ([SYSTEM("Think."), USER("Why?")], [], {"enable_thinking": False, "thinking": False}),
    ([SYSTEM("Think."), USER("Why?")], [], {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ([SYSTEM("Use tools."), USER("Weather?")], [WEATHER, CLOCK], {}),
    ([USER("Weather in Genève?"), BOT("", tool_calls=CALL), turn("tool", "{\"sky\": \"clear\"}", tool_call_id="call00001", name="get_weather"),
      BOT("Clear."), USER("Thanks")], [WEATHER], {}),
    ([SYSTEM("S"), USER("Weather?"), BOT("Let me see.", tool_calls=CALL, reasoning_content="I need the tool."),
      turn("tool", "sunny", tool_call_id="call00001", name="get_weather")], [WEATHER, CLOCK], {"enable_thinking": True}),
    ([turn("developer", "Be terse."), USER("Hm?")], [], {}),
    ([turn("critic", "Who am I?")], [], {}),
]


class Refused(Exception):
    """The template called raise_exception."""


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        for name in (values := dict(*args[1:], **kwargs)):
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(args[0], values)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def refuse(message):
    raise Refused(message)


def to_json(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@functools.lru_cache(maxsize=1)
def compiled(source: str) -> jinja2.Template:
    result = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    result.filters["tojson"] = to_json
    result.globals |= {"raise_exception": refuse, "strftime_now": NOW.strftime, "namespace": Namespace}
    return result.from_string(source)


TEXT, REFUSED, FAILED = range(3)


def render(source: str, conversation: tuple, add_generation_prompt: bool) -> tuple[int, str]:
    """How it ends, with the text or the reason."""
    messages, tools, variables = conversation
    try:
        return TEXT, compiled(source).render(
            messages=messages, tools=tools or None, documents=None, add_generation_prompt=add_generation_prompt, bos_token=BOS, eos_token=EOS,
            **variables)
    except Refused as refused:
        return REFUSED, str(refused)
    except Exception as error:  # whatever Python raises where a template asks for what is not there
        return FAILED, f"{type(error).__name__}: {error}"
