#!/usr/bin/env python3
"""Builds and runs tests/install/consumer the way a user's project does: against an installed tiered, or with it as a subdirectory."""
import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command: object) -> str:
    print("+", *command, flush=True)
    result = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    print(result.stdout, flush=True)
    if result.returncode != 0:
        sys.exit(f"failed with {result.returncode}")
    return result.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=["find_package", "add_subdirectory"])
    parser.add_argument("--build", required=True)
    parser.add_argument("--cmake", default="cmake")
    parser.add_argument("--generator", default="Ninja")
    parser.add_argument("--compiler", default="g++")
    parser.add_argument("--launcher", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        dirs = pathlib.Path(scratch)
        configure = [options.cmake, "-S", ROOT / "tests/install/consumer", "-B", dirs / "build", "-G", options.generator,
                     f"-DCMAKE_CXX_COMPILER={options.compiler}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={options.launcher}"]
        if options.way == "find_package":
            run(options.cmake, "--install", options.build, "--prefix", dirs / "prefix")
            configure.append(f"-DCMAKE_PREFIX_PATH={dirs / 'prefix'}")
        else:
            configure.append(f"-DTIERED_SOURCE_DIR={ROOT}")
        run(*configure)
        run(options.cmake, "--build", dirs / "build")
        output = run(dirs / "build" / "consumer")
        if "tiered " not in output:
            sys.exit("the consumer printed no version")


if __name__ == "__main__":
    main()
