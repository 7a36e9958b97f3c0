#!/usr/bin/env python3
"""Runs one prompt within several budgets and prints a table of what --stats says, best of three for each.

budget_table.py TIERED_RUN MODEL.gguf BUDGET...      (such as 16M 64M; "none": no device)
"""

import re
import subprocess
import sys

PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
SETTINGS = ["-n", "64", "-c", "2048", "--temp", "0", "--ignore-eos", "--stats"]


def measure(program, model, budget):
    device = [] if budget == "none" else ["--vram", budget]
    result = subprocess.run([program, "-m", model, "-p", PROMPT, *SETTINGS, *device], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(result.stderr)

    def field(pattern):
        found = re.search(pattern, result.stderr, re.MULTILINE)
        return found.group(1) if found else "-"

    return {"tokens_s": float(field(r"^text .*, ([\d.]+) tokens/s")), "prompt": field(r"^prompt .*, ([\d.]+) tokens/s"), "first": field(r"^time to first token +([\d.]+) s"),
            "peak": field(r"^peak VRAM +(.+) of a budget"), "copied": field(r"^copied to VRAM .*, ([^,]+) a token"), "text": result.stdout}


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    print("| budget | peak VRAM | prompt, tokens/s | first token, s | tokens/s | copied a token |\n|---|---|---|---|---|---|")
    texts = set()
    for budget in sys.argv[3:]:
        runs = [measure(sys.argv[1], sys.argv[2], budget) for _ in range(3)]
        best = max(runs, key=lambda run: run["tokens_s"])
        texts |= {run["text"] for run in runs}
        print(f"| {budget} | {best['peak']} | {best['prompt']} | {best['first']} | {best['tokens_s']} | {best['copied']} |", flush=True)
    print(f"\nThe text was {'the same every time' if len(texts) == 1 else 'NOT the same every time'}.")


if __name__ == "__main__":
    main()
