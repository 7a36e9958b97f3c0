#!/usr/bin/env python3
"""Compiles a source that must be refused, for the reason that it names, and whose -DFIXED branch must be accepted.

check.py FILE -- COMPILER FLAGS...      FILE holds a line `// expect-error: <regex>` (or several: each must match)
"""
import re
import subprocess
import sys


def compile_source(command: list[str], *flags: str) -> tuple[bool, str]:
    run = subprocess.run([*command, *flags], capture_output=True, text=True)
    return run.returncode == 0, run.stderr


def main() -> int:
    separator = sys.argv.index("--")
    (source,) = sys.argv[1:separator]
    command = [*sys.argv[separator + 1 :], "-fsyntax-only", source]
    with open(source, encoding="utf-8") as file:
        expected = re.findall(r"// expect-error: (.+)", file.read())
    if not expected:
        print(f"{source}: no `// expect-error: <regex>`")
        return 1
    accepted, errors = compile_source(command)
    missing = [regex for regex in expected if not re.search(regex, errors)]
    if accepted or missing:
        print(f"{source}: {'compiles, but must not' if accepted else 'fails for another reason than ' + repr(missing)}\n{errors}")
        return 1
    fixed, errors = compile_source(command, "-DFIXED")
    if not fixed:
        print(f"{source}: the FIXED branch must compile\n{errors}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
