#!/usr/bin/env python3
"""Renders chat templates with Jinja2, for the tests of ours to compare.

make_chat_template.py              writes chat_template.bin beside it, of the templates in templates.py
make_chat_template.py FOLDER FILE  writes FILE, of every *.jinja in FOLDER; exit status 77 where there is no jinja2

Integers are u32, little-endian; texts are their number of bytes and UTF-8.
  n conversations, each: n messages, each: role, content, reasoning_content, tool_calls (JSON), tool_call_id, name, empty where not given
                         n tools (JSON); n variables, each: name, JSON
  n templates, each: name, source, n renderings, each: conversation, add_generation_prompt, outcome, text
Outcome: 0 the text; 1 the template refused, by raise_exception(text); 2 Jinja2 or Python did.
"""
import json
import pathlib
import struct
import sys

try:
    from conversations import CONVERSATIONS, render
except ModuleNotFoundError as missing:
    print(missing, file=sys.stderr)
    sys.exit(77)


def number(value: int) -> bytes:
    return struct.pack("<I", value)


def text(value: str) -> bytes:
    encoded = value.encode()
    return number(len(encoded)) + encoded


def as_json(value: object) -> bytes:
    return text(json.dumps(value, ensure_ascii=False))


def conversation(messages: list, tools: list, variables: dict) -> bytes:
    blob = number(len(messages))
    for message in messages:
        blob += b"".join(text(message.get(key, "")) for key in ("role", "content", "reasoning_content"))
        blob += as_json(message["tool_calls"]) if "tool_calls" in message else text("")
        blob += b"".join(text(message.get(key, "")) for key in ("tool_call_id", "name"))
    blob += number(len(tools)) + b"".join(map(as_json, tools))
    return blob + number(len(variables)) + b"".join(text(name) + as_json(value) for name, value in variables.items())


def rendered(name: str, source: str, indices: list[int]) -> bytes:
    blob = text(name) + text(source) + number(2 * len(indices))
    for index in indices:
        for add in (False, True):
            outcome, result = render(source, CONVERSATIONS[index], add)
            blob += number(index) + number(add) + number(outcome) + text(result)
    return blob


def fixture(templates: list[tuple[str, str, list[int]]]) -> bytes:
    blob = number(len(CONVERSATIONS)) + b"".join(conversation(*each) for each in CONVERSATIONS)
    return blob + number(len(templates)) + b"".join(rendered(*each) for each in templates)


def main(arguments: list[str]) -> None:
    if len(arguments) == 2:
        every = list(range(len(CONVERSATIONS)))
        files = sorted(pathlib.Path(arguments[0]).glob("*.jinja"))
        pathlib.Path(arguments[1]).write_bytes(fixture([(path.stem, path.read_text(encoding="utf-8"), every) for path in files]))
    elif not arguments:
        from templates import TEMPLATES
        (pathlib.Path(__file__).parent / "chat_template.bin").write_bytes(fixture(TEMPLATES))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
