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

    def test_images_are_measured_once_and_drawn_without_a_model(self):
        model, projector = self.folder / "tiny-vlm.gguf", self.folder / "tiny-mmproj.gguf"
        for path in [model, projector]:
            made = self.bench("--make", path.stem, path)
            self.assertEqual(made.returncode, 0, made.stderr)
        file, figure = self.folder / "images.json", self.folder / "images.svg"
        args = ["vision", "-m", model, "--mmproj", projector, "--device", "sim", "--vram", "3M", "-n", "2", "-t", "1", "--json", file]
        result = self.bench(*args, "--resident", "192M", "--images", "64x64,112x56")
        self.assertEqual(result.returncode, 0, result.stderr)
        cells = [json.loads(line) for line in file.read_text().splitlines()]
        self.assertEqual([cell["all_resident"] for cell in cells], [True, True, False, False])
        self.assertEqual([cell["vision_tokens"] for cell in cells], [4, 8, 4, 8])
        again = self.bench(*args, "--resident", "192M", "--images", "64x64,112x56")
        self.assertEqual(again.stdout.count(b"112x56 "), 2)  # from the file
        self.assertEqual(len(file.read_text().splitlines()), 4)
        drawn = self.bench("vision", "--json", file, "--svg", figure)
        self.assertEqual((drawn.returncode, drawn.stdout), (0, b""))
        self.assertIn("112x56", figure.read_text())

    def test_images_that_cannot_be_asked_for(self):
        for args, said in [(["--images", "large"], b"WIDTHxHEIGHT"), (["--vram", "2Q"], b"no size"), (["-m", "x"], b"--mmproj")]:
            with self.subTest(args=args):
                result = self.bench("vision", *args)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(said, result.stdout + result.stderr)
