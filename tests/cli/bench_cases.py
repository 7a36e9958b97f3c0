"""tiered-bench as scripts meet it: what a sweep leaves behind, and its exit code."""

import json
import subprocess
from pathlib import Path

from support import Case, program

__all__ = ["Bench"]


class Bench(Case):
    def built(self, name, *args):
        path = Path(program()).parent / name
        if not path.exists():
            self.skipTest(f"{name} is not built")
        return subprocess.run([path, *map(str, args)], capture_output=True, timeout=300)

    def bench(self, *args):
        return self.built("bench/tiered-bench", *args)

    def test_examples_run_models_of_random_weights(self):
        model = self.folder / "tiny-moe.gguf"
        made = self.bench("--make", "tiny-moe", model)
        self.assertEqual(made.returncode, 0, made.stderr)
        for name, *args in [("own_eviction", "2M"), ("own_placement", "1M"), ("own_tier",)]:
            with self.subTest(name=name):
                result = self.built(name, model, *args)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertRegex(result.stdout, rb"\n\n \d+( \d+)+\n\nThe two texts are the same.")

    def test_sweep_says_what_failed_and_goes_on(self):
        models = []
        for name in ["tiny-moe", "tiny-dense"]:
            models += ["-m", self.folder / f"{name}.gguf"]
            made = self.bench("--make", name, models[-1], "--routing", "uniform")
            self.assertEqual(made.returncode, 0, made.stderr)
        file = self.folder / "cells.json"
        args = ["sweep", *models, "--device", "sim", "-p", "16", "-n", "2", "-t", "1", "--ids", "uniform", "--json", file]
        result = self.bench(*args, "--vram", "900T,64M")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stdout.count(b"failed: a simulated device of 900 TiB"), 2)
        cells = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertEqual([bool(cell["error"]) for cell in cells], [True, False, True, False])
        self.assertEqual({cell["routing"] for cell in cells}, {"uniform"})
        result = self.bench(*args, "--vram", "64M")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(file.read_text().splitlines()), 4)  # it was answered
