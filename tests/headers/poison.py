#!/usr/bin/env python3
"""Writes a source in which every header meets the macros of other people's headers.

poison.py OUTPUT HEADER...      HEADER as in #include "..."; looked up in the include/ of this repository
"""
import pathlib
import re
import sys

# With parameters where it is a function-like macro. What they expand to is declared nowhere, and names the test.
POISONED = [
    "I",  # complex.h
    "B0",  # termios.h
    "small", "near", "far", "ERROR", "CONST",  # windows.h
    "major", "minor",  # sys/sysmacros.h
    "unix", "linux",  # gcc without -std=
    "None", "Status",  # X11/X.h
]


def main() -> None:
    output, headers = pathlib.Path(sys.argv[1]), sys.argv[2:]
    include_dir = pathlib.Path(__file__).resolve().parents[2] / "include"
    foreign: set[str] = set()
    for header in headers:
        foreign.update(re.findall(r"^\s*#\s*include\s*(<[^>]+>)", (include_dir / header).read_text(encoding="utf-8"), re.M))
    lines = ["// Others' headers come first: they may not be poisoned.", "#define PCRE2_CODE_UNIT_WIDTH 8"]
    lines += [f"#include {name}" for name in sorted(foreign)]
    for macro in POISONED:
        lines += [f"#undef {macro.split('(')[0]}", f"#define {macro} poisoned_by_tests_headers"]
    lines += [f'#include "{header}"' for header in headers]
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
