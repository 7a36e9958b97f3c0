#!/usr/bin/env python3
"""Checks the rules of CONTRIBUTING.md that a compiler does not: who may include what, and how long things are.

layering_test.py [--root DIR] [--compiler g++]     prints every violation; exit status 1 where there is one
"""
import argparse
import concurrent.futures
import fnmatch
import functools
import os
import pathlib
import re
import subprocess
import sys

BANNED = {"iostream", "regex", "future", "random", "ranges"}
# Headers of threads may include <chrono>.
CLOCK_FOLDERS = ("profile/",)
CLOCK_FILES = re.compile(r"(^|/)(team|lane|trace|thread)[^/]*\.hpp$|_(team|lane|lanes|thread)\.hpp$|/thread_[^/]*\.hpp$")
THREAD_INCLUDES = {"atomic", "thread", "mutex", "condition_variable", "shared_mutex", "stop_token", "chrono"}
ANYWHERE = {"version.hpp", "fwd.hpp"}
UMBRELLAS = {"tiered.hpp", "sim.hpp", "cpu.hpp", "cuda.hpp"}
HEADER_LINES, UMBRELLA_LINES = 60_000, 75_000  # after preprocessing
# Each costs nvcc seconds and brings constrained members, at which its front end has failed.
NOT_FOR_NVCC = {"algorithm", "array", "functional", "map", "memory", "numeric", "optional", "span", "string", "string_view", "unordered_map",
                "vector"}
DEVICE_VISIBLE = "[device-visible]"  # the mark in the comment that a header begins with
LIGHT_LEAVES = {"pcre2.h"}  # cost next to nothing: no reason to pass a budget
SOURCE_LINES = {"CMakeLists.txt": 400}
DEFAULT_SOURCE_LINES = 600
CODE_SUFFIXES = {".hpp", ".cpp", ".cuh", ".cu"}
SOURCE_SUFFIXES = CODE_SUFFIXES | {".py", ".sh"}
FUNCTION_LINES = 60  # kernels, too; but a test case is as long as its list


def table(text: str, title: str) -> dict[str, list[str]]:
    """Rows of the table headed `| title | ...`: first cell -> entries of the second, a/{b,c}.hpp written out."""
    rows: dict[str, list[str]] = {}
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {title} |"):
            next(lines)  # |---|---|
            for row in lines:
                if not row.startswith("|"):
                    break
                key, value = (cell.strip() for cell in row.strip("|").split("|"))
                rows[key] = [entry for part in re.findall(r"[^,{}\s]*\{[^}]*\}[^,\s]*|[^,\s]+", value) for entry in braces(part)]
    if not rows:
        sys.exit(f"CONTRIBUTING.md has no table headed | {title} |")
    return rows


def braces(text: str) -> list[str]:
    match = re.fullmatch(r"(.*)\{(.*)\}(.*)", text)
    return [text] if not match else [match[1] + middle + match[3] for middle in match[2].split(",")]


def matches(header: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(header, pattern) for pattern in patterns)


class Rules:
    def __init__(self, contributing: str):
        self.layers = table(contributing, "folder")
        self.leaves = table(contributing, "include")

    def is_heavy_leaf(self, header: str) -> bool:
        """Whether it may include something that costs tens of thousands of lines."""
        return any(matches(header, files) for prefix, files in self.leaves.items() if prefix not in LIGHT_LEAVES)

    def may_include(self, header: str, included: str) -> str | None:
        """Why `header` may not include `included` (both relative to include/tiered), or None."""
        if header in UMBRELLAS:
            return None if header == "cuda.hpp" or "cuda" not in included.split("/")[:-1] else "only cuda.hpp may include a cuda/ header"
        if included in UMBRELLAS:
            return "no header of the library includes an umbrella"
        if included.endswith("_impl.hpp"):
            return "it defines functions: for cpu.hpp and CMake's sources only"
        if included in ANYWHERE:
            return None
        if header in ANYWHERE:
            return f"{header} includes nothing of the library but core" if not included.startswith("core/") else None
        if "cuda" in included.split("/")[:-1] and "cuda" not in header.split("/")[:-1]:
            return "only a cuda/ folder includes cuda/ headers"
        if included.endswith(".cuh") and not header.endswith(".cuh"):
            return "no .hpp includes a .cuh"
        folder = header.split("/")[0]
        if folder not in self.layers:
            return f"CONTRIBUTING.md has no row for {folder}/"
        allowed = [folder, *self.layers[folder]]
        if any(included == entry or included.startswith(entry + "/") for entry in allowed):
            return None
        return f"{folder}/ may include: {', '.join(self.layers[folder]) or 'the standard library only'}"

    def may_include_foreign(self, header: str, included: str) -> str | None:
        """The same for an include of the standard library, the system or another project."""
        if included in BANNED:
            return "banned in headers"
        if included == "chrono" and not (header.startswith(CLOCK_FOLDERS) or CLOCK_FILES.search(header)):
            return "only profile/, traces and headers of threads may include it"
        for prefix, files in self.leaves.items():
            if included.startswith(prefix):
                return None if matches(header, files) else f"only {', '.join(files)} may include it"
        is_standard = "/" not in included and "." not in included
        is_system = re.fullmatch(r"(sys|linux)/\w+\.h|unistd\.h|fcntl\.h|sched\.h|pthread\.h|dirent\.h|cpuid\.h|signal\.h", included)
        if is_standard or is_system or "cuda" in header.split("/")[:-1]:
            return None
        return "not in the table of leaves"


def check_device_include(texts: dict[str, str], included: str) -> str | None:
    """Why a .cuh, or what a .cuh includes, may not include that; own headers relative to include/tiered."""
    if included in NOT_FOR_NVCC:
        return "a .cuh costs nvcc too much with it"
    if included.endswith(".hpp") and "cuda" not in included.split("/")[:-1] and DEVICE_VISIBLE not in texts.get(included, ""):
        return f"a .cuh includes only headers that are marked {DEVICE_VISIBLE}"
    return None


def check_includes(rules: Rules, texts: dict[str, str], header: str, text: str) -> list[str]:
    problems = []
    for_device = header.endswith(".cuh") or DEVICE_VISIBLE in text
    first = re.search(r"^#.*", text, re.M)
    if first is None or first[0].strip() != "#pragma once":
        problems.append("does not begin with #pragma once")
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"\s*using\s+namespace\b", line):
            problems.append(f"{number}: using namespace in a header")
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        own = match[2].removeprefix("tiered/") if match[2].startswith("tiered/") else None
        if match[1] == '"' and own is None:
            why = 'own headers are written "tiered/folder/header.hpp", others in <>'
        else:
            why = rules.may_include(header, own) if own is not None else rules.may_include_foreign(header, match[2])
            why = why or (check_device_include(texts, own or match[2]) if for_device else None)
        if why:
            problems.append(f"{number}: includes {match[2]}: {why}")
    return problems


def preprocessed_lines(compiler: list[str], include_dir: pathlib.Path, header: str) -> int | str:
    command = [*compiler, "-std=c++20", "-E", "-P", "-I", str(include_dir), "-x", "c++", "-"]
    run = subprocess.run(command, input=f'#include "tiered/{header}"\n', capture_output=True, text=True)
    return run.stdout.count("\n") if run.returncode == 0 else run.stderr


class Reach:
    """What a header includes of the library, directly and through others."""

    def __init__(self, texts: dict[str, str]):
        self.texts = texts

    @functools.cache
    def __call__(self, header: str) -> frozenset[str]:
        found: set[str] = {header}
        pending = [header]
        while pending:
            for included in re.findall(r'#\s*include\s*"tiered/([^"]+)"', self.texts.get(pending.pop(), "")):
                if included not in found:
                    found.add(included)
                    pending.append(included)
        return frozenset(found)


def check_budget(rules: Rules, header: str, reach: Reach, n_lines: int | str) -> str | None:
    if isinstance(n_lines, str):
        return "does not preprocess: " + next((line for line in n_lines.splitlines() if "error" in line), n_lines)
    leaves = sorted(other for other in reach(header) if rules.is_heavy_leaf(other))
    if header == "tiered.hpp" and leaves:
        return f"reaches {', '.join(leaves)}; users of the umbrella must not pay for those"
    with_threads = any(f"#include <{name}>" in reach.texts.get(other, "") for other in reach(header) for name in THREAD_INCLUDES)
    limit = UMBRELLA_LINES if header in UMBRELLAS or with_threads else HEADER_LINES
    return None if n_lines <= limit or leaves else f"{n_lines} lines after preprocessing, {limit} allowed"


def functions(text: str):
    """(lines, first line, begin) of each function body of a source as clang-format leaves it: a brace ends where its statement began."""
    scopes: list[tuple[int, bool, bool, int, str]] = []  # indentation, whether a function, whether members may stand in it, line, begin
    statement: list[tuple[int, int, str]] = []
    raw_end = ""
    for n, line in enumerate(text.splitlines(), 1):
        if raw_end:
            raw_end = "" if raw_end in line else raw_end
            continue
        if found := re.search(r'R"(\w*)\(', line):
            raw_end = "" if f'){found[1]}"' in line[found.end():] else f'){found[1]}"'
        bare = re.sub(r'//.*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', lambda m: "" if m[0].startswith("/") else '""', line).rstrip()
        code = bare.lstrip()
        if not code or code.startswith("#"):
            continue
        indent = len(bare) - len(code)
        if scopes and code.startswith("}") and indent == scopes[-1][0]:
            _, is_function, _, first, begin = scopes.pop()
            statement = []
            if is_function:
                yield n - first + 1, first, begin
            if code.endswith("{"):
                scopes.append((indent, False, False, n, code))
            continue
        statement.append((indent, n, code))
        if code.endswith("{"):
            whole = " ".join(part for _, _, part in statement)
            head = re.sub(r"\([^()]*\)|<[^<>]*>", "", re.sub(r"\([^()]*\)|<[^<>]*>", "()", whole))
            outside = not scopes or scopes[-1][2]
            is_scope = outside and re.match(r"(template\W*)?(inline )?(namespace|extern|class|struct|union|enum)\b(?!.*\))", head) is not None
            scopes.append((statement[0][0], outside and not is_scope and "(" in whole, is_scope, statement[0][1], whole[:80]))
            statement = []
        elif code.endswith((";", "}")) or (code.endswith(":") and not code.endswith("::")):
            statement = []


def check_functions(root: pathlib.Path) -> list[str]:
    problems = []
    for path in sorted(path for top in ("include", "examples", "bench") for path in (root / top).rglob("*.[hc]*")):
        if path.suffix not in CODE_SUFFIXES:
            continue
        for n_lines, first, begin in functions(path.read_text(encoding="utf-8")):
            if n_lines > FUNCTION_LINES:
                problems.append(f"{path.relative_to(root)}:{first}: {n_lines} lines of a function, {FUNCTION_LINES} allowed: {begin}")
    return problems


def check_lengths(root: pathlib.Path) -> list[str]:
    problems = []
    tops = [root / name for name in ("include", "examples", "tests", "bench", "tools", "cmake")]
    files = [path for top in tops if top.exists() for path in top.rglob("*")] + [root / "CMakeLists.txt", *root.glob("*.sh")]
    for path in sorted(files):
        if path.suffix not in SOURCE_SUFFIXES and path.name not in SOURCE_LINES:
            continue
        limit = SOURCE_LINES.get(path.name, DEFAULT_SOURCE_LINES)
        n_lines = path.read_bytes().count(b"\n")
        if n_lines > limit:
            problems.append(f"{path.relative_to(root)}: {n_lines} lines, {limit} allowed")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1])
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--include", default="", help="directories of other projects, between semicolons")
    options = parser.parse_args()
    compiler = [options.compiler, *(word for path in options.include.split(";") if path for word in ("-idirafter", path))]
    rules = Rules((options.root / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    base = options.root / "include" / "tiered"
    texts = {str(path.relative_to(base)): path.read_text(encoding="utf-8") for suffix in ("hpp", "cuh") for path in sorted(base.rglob(f"*.{suffix}"))}

    problems = check_lengths(options.root) + check_functions(options.root)
    for header, text in texts.items():
        problems += [f"{header}:{problem}" for problem in check_includes(rules, texts, header, text)]
    problems += [f"cpu.hpp: does not include {header}" for header in texts if header.endswith("_impl.hpp") and "cuda" not in header.split("/")
                 and f'"tiered/{header}"' not in texts["cpu.hpp"]]
    reach = Reach(texts)
    host = [header for header in texts if "cuda" not in header and header.endswith(".hpp")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = list(pool.map(lambda header: preprocessed_lines(compiler, base.parent, header), host))
    for header, n_lines in zip(host, counts):
        if problem := check_budget(rules, header, reach, n_lines):
            problems.append(f"{header}: {problem}")
    longest = sorted(((n, header) for header, n in zip(host, counts) if isinstance(n, int)), reverse=True)[:5]
    print(f"{len(texts)} headers; most lines after preprocessing: " + ", ".join(f"{header} {n}" for n, header in longest))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
