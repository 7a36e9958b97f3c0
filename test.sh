#!/usr/bin/env bash
# Sets up, builds and runs every test that this machine can run; those that need the network are skipped where there is none.
#   ./test.sh [CTEST OPTIONS]       CI=1 ./test.sh also runs the tests under sanitizers and FUZZ_SECONDS (120) of fuzzing
set -euo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")"
. .ci/setup.sh
jobs=$(nproc)

# sanitized PRESET: its tests, where the address space is laid out as older sanitizers expect.
sanitized() {
  say "tests under sanitizers: $1"
  build "$1"
  setarch "$(uname -m)" --addr-no-randomize ctest --preset "$1" --parallel "$jobs"
}

# fuzz SECONDS: every target in turn, from its corpus.
fuzz() {
  build fuzz
  local targets=(build-fuzz/fuzz/*_fuzz) target topic found
  [ -x "${targets[0]}" ] || return 0
  for target in "${targets[@]}"; do
    topic=$(basename "$target" _fuzz)
    found=build-fuzz/found/$topic
    mkdir -p "$found"
    say "fuzzing $topic for $(($1 / ${#targets[@]})) s"
    "$target" -max_total_time=$(($1 / ${#targets[@]})) -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 -verbosity=0 \
      -artifact_prefix="$found-" "$found" "tests/fuzz/corpus/$topic"
  done
}

need_for_tests
if [ -n "${CI:-}" ]; then need ccache clang libclang-rt-dev; else want ccache clang; fi
say "files for tests"
python3 .ci/fetch.py smollm2 gemma3 vocabularies || say "tests of real files will be skipped"
say "building"
build test
if [ -n "${CI:-}" ]; then
  sanitized asan
  sanitized tsan
  fuzz "${FUZZ_SECONDS:-120}"
fi
say "tests"
ctest --preset test --parallel "$jobs" "$@"
