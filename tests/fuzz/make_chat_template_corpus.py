#!/usr/bin/env python3
"""Writes corpus/chat_template/: templates of tests/data/chat_template/templates.py, several to a file, with a conversation."""
import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "data/chat_template"))
from templates import CONSTRUCTS, SEVERAL_LINES, STYLES  # noqa: E402

SEPARATOR = "\n....\n"
CONVERSATION = ["system", "Be kind.", "user", "Hi <é> \"q\"", "assistant", "<think>a</think>b", "json", '[{"type": "text", "n": [1, 2.5, null, true]}]']
HOSTILE = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}{{ ns.s == ns.s }}",
    "{% set ns = namespace(s='x') %}{% set ns.me = [ns] %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "{{ " + "(" * 300 + "1" + ")" * 300 + " }}",
    "{{ " + "1 + " * 300 + "1 }}",
    "{{ 'a' | map(" + "'map', " * 300 + "'upper') }}",
    "{% for x in [1] recursive %}{% set ns = namespace(l=loop) %}{{ loop.changed(loop) }}{{ loop([1]) }}{% endfor %}",
    "{{ 'x' * 99999999999 }}{{ 'x'.center(99999999999) }}",
    "{{ -9223372036854775807 - 1 }}{{ (-9223372036854775807 - 1) // -1 }}{{ 2 ** 63 }}{{ [1][9223372036854775807:-9223372036854775807:-1] }}",
]


def main() -> None:
    folder = HERE / "corpus/chat_template"
    folder.mkdir(exist_ok=True)
    tail = SEPARATOR + SEPARATOR.join(CONVERSATION)
    small = [each for each in CONSTRUCTS + SEVERAL_LINES if each]
    for i in range(0, len(small), 4):
        (folder / f"construct{i // 4:02}").write_text("\n".join(small[i:i + 4]) + tail, encoding="utf-8")
    for name, source in STYLES.items():
        (folder / name.replace(" ", "_")).write_text(source + tail, encoding="utf-8")
    for i, source in enumerate(HOSTILE):
        (folder / f"hostile{i}").write_text(source + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
