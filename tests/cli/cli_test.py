#!/usr/bin/env python3
"""tiered-run as its users meet it: exit codes, what goes where, interrupts, refusals; and the other examples beside it.
Needs Python alone, no network.

cli_test.py PROGRAM [unittest options]
"""

import contextlib
import ctypes
import mmap
import os
import pty
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from support import ENDLESS, MOE, TINY, Case, program, run, set_program, start, wait_until  # noqa: E402
from bench_cases import *  # noqa: E402,F403
from conversation_cases import *  # noqa: E402,F403
from generation_cases import *  # noqa: E402,F403
from media_cases import *  # noqa: E402,F403
from session_cases import *  # noqa: E402,F403


class Usage(Case):
    def test_help_teaches(self):
        result = run("--help")
        out = result.stdout.decode()
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        for word in ["--vram", "EXAMPLES", "EXIT CODES", "130", "simulated", "-m,--model", "--top-p"]:
            self.assertIn(word, out)
        self.assertNotIn("INT in [", out)
        self.assertEqual(run("-h").stdout, result.stdout)

    def test_version(self):
        result = run("--version")
        self.assertEqual(result.returncode, 0)
        self.assertRegex(result.stdout.decode(), r"^tiered-run \d+\.\d+\.\d+\nlines are read by (libedit|a plain reader: .*)\n$")

    def test_mistakes(self):
        for args, message in [
            ([], "--model is required"),
            (["-m", TINY, "-p", "a", "--frob"], "--frob"),
            (["-m", TINY, "-p", "a", "more"], "more"),
            (["-p", "a", "--frob"], "--frob"),
            (["-m", TINY, "-p", "a", "-n", "many"], '"many" is no number'),
            (["-m", TINY, "-p", "a", "-n", "1.5"], "no whole number"),
            (["-m", TINY, "-p", "a", "-n", "99999999999"], "2147483647"),
            (["-m", TINY, "-p", "a", "--top-k", "many"], '"many" is no number'),
            (["-m", TINY, "-p", "a", "--temp", "nan"], '"nan" is no number'),
            (["-m", TINY, "-p", "a", "--temp", "inf"], "inf"),
            (["-m", TINY, "-p", "a", "--top-p", "nan"], '"nan" is no number'),
            (["-m", TINY, "-p", "a", "--top-p", "inf"], "inf"),
            (["-m", TINY, "-p", "a", "-s", "-2"], '"-2"'),
            (["-m", TINY, "-p", "a", "-s", "18446744073709551616"], "18446744073709551615"),
            (["-m", TINY, "-p", "a", "-s", "7x"], '"7x"'),
            (["-m", TINY, "-p", "a", "--temp", "-0.5"], "-0.5"),
            (["-m", TINY, "-p", "a", "--top-p", "1.5"], "1.5"),
            (["-m", TINY, "-p", "a", "-t", "99999"], "99999"),
            (["-m", TINY, "-p", "a", "-c", "-5"], "-5"),
            (["-m", TINY, "-p", "a", "-f", "b"], "--file"),
            (["-m", TINY, "-p", "a", "--placement", "best"], "seconds_per_byte"),
            (["-m", TINY, "-p", "a", "--eviction", "fifo"], "prior_frequency"),
            (["-m", TINY, "-p", "a", "--link", "fast"], "is no rate"),
            (["-m", TINY, "-p", "a", "--link", "0"], "is no rate"),
            (["-m", TINY, "-p", "a", "-sys", "b"], "--chat"),
            (["-m", TINY, "-p", "", "--chat"], "empty"),
            (["-m", TINY, "-p", ""], "the prompt is empty"),
            (["-m", TINY], "the prompt is empty"),
            (["-m", TINY, "-f", "/dev/null"], "the prompt is empty"),
            (["-m", TINY, "-p", "a", "--vram", "nonsense"], '"nonsense"'),
            (["-m", TINY, "-p", "a", "--vram", "-1"], '"-1"'),
            (["-m", TINY, "-p", "a", "-ngl", "99"], "--vram 2G"),
        ]:
            with self.subTest(args=args):
                out = self.check(run(*args), 2, message, "--help")
                self.assertEqual(out, b"")

    def test_placement_without_budget_is_noted(self):
        self.check(run("-m", TINY, "-p", "a", "-n", "1", "--placement", "all_vram"), 0, "note: --placement")
        self.assertNotIn(b"note", run("-m", TINY, "-p", "a", "-n", "1", "--placement", "all_vram", "--vram", "64K").stderr)


class Files(Case):
    def test_refused_by_kind(self):
        cut = self.folder / "cut.gguf"
        cut.write_bytes(TINY.read_bytes()[:-1000])
        text = self.folder / "text.gguf"
        text.write_text("no model")
        for path, message in [(self.folder / "none.gguf", "none.gguf: no such file"), (self.folder, "directory"), (cut, "truncated"), (text, "not a GGUF file")]:
            with self.subTest(path=path.name):
                self.assertEqual(self.check(run("-m", path, "-p", "a"), 3, message), b"")
        self.check(run("-m", TINY, "-f", self.folder / "prompt.txt"), 3, "prompt.txt")
        self.check(run("-m", TINY, "-f", self.folder), 3, "directory")

    def test_unsupported_is_named(self):
        data = TINY.read_bytes()
        at = data.index(b"general.architecture") + len(b"general.architecture")
        other = self.folder / "other.gguf"
        other.write_bytes(data[:at] + data[at:].replace(b"llama", b"lemma", 1))
        self.check(run("-m", other, "-p", "a"), 4, 'architecture "lemma" is', "qwen3moe")

    def test_more_tokens_than_rows(self):
        data = TINY.read_bytes()
        rows = b"token_embd.weight" + struct.pack("<IQQ", 2, 32, 288)
        self.assertEqual(data.count(rows), 1)
        vocab = b"llama.vocab_size" + struct.pack("<II", 4, 288)
        other = self.folder / "other.gguf"
        data = data.replace(rows, rows[:-8] + struct.pack("<Q", 256)).replace(vocab, vocab[:-4] + struct.pack("<I", 256))
        other.write_bytes(data)
        self.assertEqual(self.check(run("-m", other, "-p", "a"), 3, "288 tokens", "256 rows"), b"")

    def test_cut_while_it_is_used(self):
        model = self.folder / "model.gguf"
        model.write_bytes(TINY.read_bytes())
        process = start("-m", model, "-p", "abc", *ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(process.stdout.fileno(), 10)
        os.truncate(model, 0)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 3, err.decode())
        self.assertIn(f"tiered-run: error: the model file was cut or cannot be read any more: {model}\n", err.decode())

    def test_prompts_have_a_limit(self):
        limit = 64 << 20
        large = self.folder / "large.txt"
        with open(large, "wb") as file:
            file.truncate(limit + 5000)
        self.check(run("-m", TINY, "-f", large), 2, f"{limit + 5000} bytes;", str(limit))
        self.check(run("-m", TINY, "-f", "/dev/zero"), 2, "/dev/zero", "bytes or more", str(limit))
        with open("/dev/zero", "rb") as zero:
            result = subprocess.run([program(), "-m", TINY], stdin=zero, capture_output=True, timeout=60)
        self.check(result, 2, "standard input", str(limit))


class Text(Case):
    def test_prompt_from_anywhere(self):
        prompt = "Grüße, 日本語 🙂"
        file = self.folder / "prompt.txt"
        file.write_text(prompt + "\n")
        expected = self.text("-p", prompt, "-n", "8")
        self.assertTrue(expected.startswith(prompt.encode()))
        self.assertGreater(len(expected), len(prompt.encode()) + 1)
        self.assertEqual(self.text("-f", file, "-n", "8"), expected)
        self.assertEqual(self.text("-n", "8", stdin=prompt.encode() + b"\n"), expected)
        self.assertEqual(self.text("-f", "-", "-n", "8", stdin=prompt.encode() + b"\n"), expected)
        self.assertEqual(self.text("-p", prompt, "-n", "8", "--no-display-prompt"), expected[len(prompt.encode()):])

    def test_prompt_is_taken_literally_or_with_escapes(self):
        self.assertEqual(self.text("-p", r"a\nb\\c\d", "-n", "0"), b"a\nb\\c\\d\n")
        self.assertEqual(self.text("-p", r"a\nb", "-n", "0", "--no-escape"), b"a\\nb\n")
        self.assertEqual(self.text("-n", "0", stdin=rb"a\nb"), b"a\\nb\n")
        for odd in ["-n", "[1,2]", '"', "{}", "-"]:
            self.assertEqual(self.text("-p", odd, "-n", "0"), odd.encode() + b"\n")

    def test_output_is_whole_characters(self):
        for n in range(1, 12):  # random weights: bytes that rarely make characters; what is cut at the end must not be
            out = self.text("-p", "🙂", "-n", str(n))
            self.assertFalse(out[:-1].endswith((b"\xf0", b"\xf0\x9f", b"\xf0\x9f\x99", b"\xe2", b"\xc3")), out)

    def test_streams_are_apart(self):
        result = run("-m", TINY, "-p", "hello", "-n", "3", "--temp", "0", "--vram", "64K", "--stats")
        self.assertTrue(result.stdout.startswith(b"hello"))
        for line in ["time to first token", "tokens/s", "peak VRAM", "of a budget of 64.0 KiB", "simulated", "greedy"]:
            self.assertIn(line, result.stderr.decode())
            self.assertNotIn(line.encode(), result.stdout)
        self.assertNotIn(b"\r", result.stderr)  # progress is for terminals
        self.assertNotIn(b"tokens/s", run("-m", TINY, "-p", "hello", "-n", "3").stderr)

    def test_seed(self):
        def draw(*args):
            return run("-m", TINY, "-p", "x", "-n", "20", "--temp", "1", *args)

        first = draw("-s", "7")
        self.assertIn(b"seed 7", first.stderr)
        self.assertEqual(draw("-s", "7").stdout, first.stdout)
        self.assertNotEqual(draw("-s", "8").stdout, first.stdout)
        for seed in ["0", "9223372036854775808", "18446744073709551615"]:
            self.assertIn(f"seed {seed}\n", draw("-s", seed).stderr.decode())
        self.assertNotEqual(draw("-s", "-1").stderr, draw("-s", "-1").stderr)
        fresh = draw()
        seed = fresh.stderr.decode().split("seed ")[1].split()[0]
        self.assertEqual(draw("--seed", seed).stdout, fresh.stdout)
        self.assertEqual(draw("-s", "7", "--top-k", "1").stdout, self.text("-p", "x", "-n", "20"))
        self.assertEqual(draw("-s", "7", "--top-p", "0").stdout, self.text("-p", "x", "-n", "20"))

    def test_chat(self):
        marked = r"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
        answer = self.text("--chat", "-p", "hi", "-n", "8")
        self.assertEqual(answer, self.text("-p", marked, "-n", "8", "--no-display-prompt"))
        system = r"<|im_start|>system\nbe brief<|im_end|>\n" + marked
        self.assertEqual(self.text("--chat", "-sys", "be brief", "-p", "hi", "-n", "8"), self.text("-p", system, "-n", "8", "--no-display-prompt"))

    def test_other_options_run(self):
        expected = self.text("-p", "abc", "-n", "6")
        self.assertEqual(self.text("-p", "abc", "-n", "6", "-t", "1"), expected)
        self.check(run("-m", TINY, "-p", "abc", "-n", "6", "--f32-activations"), 0)


class Context(Case):
    def test_long_prompt_is_refused_with_both_numbers(self):
        out = self.check(run("-m", TINY, "-p", "x" * 40, "-c", "32"), 5, "40 tokens", "context 32", "-c 41")
        self.assertEqual(out, b"")
        self.check(run("-m", TINY, "-p", "x" * 32, "-c", "32"), 5, "-c 33")
        self.check(run("-m", TINY, "-p", "x" * 32, "-c", "32", "-n", "0"), 0)

    def test_full_context_stops_and_says_so(self):
        for n in ["-1", "2147483647"]:
            self.check(run("-m", TINY, "-p", "abc", "-c", "16", "-n", n, "--ignore-eos"), 0, "context of 16 tokens is full")

    def test_longer_than_trained_is_warned_of(self):
        self.check(run("-m", TINY, "-p", "x", "-c", "257", "-n", "1"), 0, "warning", "257", "256")
        self.assertNotIn(b"warning", run("-m", TINY, "-p", "x", "-c", "256", "-n", "1").stderr)


class Budget(Case):
    def test_budget_and_placement_change_no_text(self):
        for model in [TINY, MOE]:
            expected = run("-m", model, "-p", "abc", "-n", "12", "--temp", "0").stdout
            for vram in ["0", "1K", "40K", "200K", "1M"]:
                for placement in ["all_vram", "attention_first", "seconds_per_byte", "stream_all"]:
                    with self.subTest(model=model.name, vram=vram, placement=placement):
                        result = run("-m", model, "-p", "abc", "-n", "12", "--temp", "0", "--vram", vram, "--placement", placement, "--stats")
                        self.check(result, 0)
                        self.assertEqual(result.stdout, expected)

    def test_slow_link_changes_no_text(self):
        args = ["-m", MOE, "-p", "abc", "-n", "4", "--temp", "0", "--vram", "40K", "--placement", "stream_all"]
        expected = self.check(run(*args), 0)
        self.assertEqual(self.check(run(*args, "--link", "100M"), 0), expected)
        plan, slow = run(*args, "--plan").stdout, run(*args, "--plan", "--link", "1M").stdout
        self.assertIn(b"predicted", plan)
        self.assertNotEqual(plan, slow)

    def test_experts_of_earlier_runs_are_there_from_the_start(self):
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder)}
        args = ["-m", MOE, "-p", "abc", "-n", "12", "--temp", "0", "-c", "64", "--vram", "250K", "--placement", "stream_all", "--stats"]

        def once(*more):
            result = run(*args, *more, env=environment)
            self.check(result, 0, "expert cache")
            return result

        expected = once().stdout
        self.assertFalse((self.folder / "tiered").exists())  # nobody asked, and a simulated device is no machine to learn about
        self.assertNotIn(b"began with", once("--expert-prior").stderr)
        (file,) = (self.folder / "tiered").glob("experts-*.txt")
        again = once("--expert-prior")
        self.assertIn(b"began with", again.stderr)
        self.assertEqual(again.stdout, expected)
        for policy in ["lru", "frequency_decay"]:
            self.assertEqual(once("--eviction", policy, "--expert-prior").stdout, expected)
        self.assertNotIn(b"began with", once("--expert-prior", "--deterministic").stderr)
        file.write_text("tiered expert uses 1\n")
        self.check(run(*args, "--expert-prior", env=environment), 0, "note: ", file.name, "damaged")

    def test_nothing_fits_is_said(self):
        self.check(run("-m", TINY, "-p", "a", "-n", "1", "--vram", "1K"), 0, "everything on the CPU")

    def test_more_than_there_is(self):
        available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
        too_much = int(available.split()[1]) * 1024 * 3
        self.check(run("-m", TINY, "-p", "a", "--vram", str(too_much)), 5, "--vram", "iB", "available")
        result = run("-m", TINY, "--vram", str(too_much), "--plan")
        self.assertEqual((result.returncode, result.stderr), (0, b""))


def sparse_model(path, layers=32, dim=4096, hidden=14336, vocab=32000):
    """A llama of 13 GiB whose weights are one hole: what reads them is seen in the page cache."""
    keys = {"block_count": layers, "context_length": 8192, "embedding_length": dim, "feed_forward_length": hidden, "attention.head_count": 32, "attention.head_count_kv": 8}

    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    metadata = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    metadata += [text("llama." + key) + struct.pack("<II", 4, value) for key, value in keys.items()]
    metadata.append(text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5))
    f32, f16 = 0, 1
    tensors = [("token_embd.weight", f16, (dim, vocab)), ("output_norm.weight", f32, (dim,)), ("output.weight", f16, (dim, vocab))]
    for i in range(layers):
        shapes = {"attn_norm": (dim,), "ffn_norm": (dim,), "attn_q": (dim, dim), "attn_k": (dim, dim // 4), "attn_v": (dim, dim // 4), "attn_output": (dim, dim),
                  "ffn_gate": (dim, hidden), "ffn_up": (dim, hidden), "ffn_down": (hidden, dim)}
        tensors += [(f"blk.{i}.{name}.weight", f32 if len(shape) == 1 else f16, shape) for name, shape in shapes.items()]
    table, offset = b"", 0
    for name, kind, shape in tensors:
        table += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)
        n = 1
        for size in shape:
            n *= size
        offset += -(-n * (4 if kind == f32 else 2) // 32) * 32
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata) + table
    header += bytes(-len(header) % 32)
    with open(path, "wb") as file:
        file.write(header)
        file.truncate(len(header) + offset)
    return len(header), len(header) + offset


def cached_bytes(path, begin, end):
    """Of the file's range, what lies in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = mmap.PAGESIZE
    begin = -(-begin // page) * page
    n_pages = (end - begin) // page
    found = (ctypes.c_ubyte * n_pages)()
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    with open(path, "rb") as file:
        address = libc.mmap(None, n_pages * page, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), begin)
        assert libc.mincore(address, n_pages * page, found) == 0, os.strerror(ctypes.get_errno())
        libc.munmap(address, n_pages * page)
    return sum(byte & 1 for byte in bytes(found)) * page


class Plan(Case):
    def test_plan_goes_to_stdout(self):
        result = run("-m", MOE, "--vram", "100K", "--plan")
        self.assertEqual((result.returncode, result.stderr), (0, b""))
        for word in ["up to 1 token", "up to 512 tokens", "attention", "experts", "output", "estimates"]:
            self.assertIn(word, result.stdout.decode())
        self.assertEqual(run("-m", MOE, "--vram", "100K", "--plan").stdout, result.stdout)
        self.assertNotEqual(run("-m", MOE, "--vram", "100K", "--plan", "--placement", "stream_all").stdout, result.stdout)

    def test_estimates_and_letters_only_with_what_they_mean(self):
        out = run("-m", TINY, "--plan").stdout.decode()
        self.assertIn("no device", out)
        self.assertNotIn("predicted", out)
        out = run("-m", TINY, "--plan", "--vram", "1K").stdout.decode()
        self.assertIn("made-up machine", out)
        self.assertIn("predicted", out)
        self.assertNotIn("R resident", out)
        self.assertIn("R resident", run("-m", TINY, "--plan", "--vram", "100K").stdout.decode())

    def test_no_weights_are_read(self):
        path = self.folder / "sparse.gguf"
        try:
            header, total = sparse_model(path)
        except OSError as error:
            self.skipTest(f"no sparse file of 13 GiB here: {error}")
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        result = run("-m", path, "--vram", "6G", "--plan")
        self.assertEqual(result.returncode, 0, result.stderr.decode())
        self.assertIn("32 layers", result.stdout.decode())
        # The system may read some pages behind the header along with it.
        self.assertLess(cached_bytes(path, header, total), 4 << 20)
        self.assertLess(max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss), 500 * 1024)
        with open(path, "rb") as file:  # and such a reading would have been seen
            file.seek(total // 2)
            file.read(8 << 20)
        self.assertGreaterEqual(cached_bytes(path, header, total), 8 << 20)


class Signals(Case):
    def test_ctrl_c_stops_cleanly(self):
        for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
            for device in [[], ["--vram", "64K"]]:
                with self.subTest(signal=number, device=device):
                    process = start("-m", TINY, "-p", "abc", *ENDLESS, "--stats", *device, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
                    text = b""
                    while len(text) < 50:
                        piece = os.read(process.stdout.fileno(), 100)
                        self.assertTrue(piece, "it ended by itself")
                        text += piece
                    process.send_signal(number)
                    out, err = process.communicate(timeout=60)
                    self.assertEqual(process.returncode, code, err.decode())
                    self.assertTrue((text + out).startswith(b"abc"))
                    self.assertTrue(out.endswith(b"\n"))
                    for word in ["stopped", "by a signal", "tokens/s", "tiered-run: interrupted"]:
                        self.assertIn(word, err.decode())

    def test_ctrl_c_while_the_prompt_is_typed(self):
        ours, theirs = pty.openpty()
        with subprocess.Popen([program(), "-m", str(TINY), "-no-cnv"], stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            self.assertIn(b"Ctrl-D", process.stderr.readline())
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (-signal.SIGINT, b""))  # shells say 130
        os.close(ours), os.close(theirs)

    def test_second_ctrl_c_kills(self):
        """Nobody reads its text and the pipe is full, so the program cannot end by itself."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write_end, bytes(4096))
        os.set_blocking(write_end, True)
        process = start("-m", TINY, "-p", "abc", *ENDLESS, stdout=write_end, stderr=subprocess.PIPE)
        os.close(write_end)

        def status(key):
            lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
            return next(line.split()[1] for line in lines if line.startswith(key + ":"))

        while b"greedy" not in (line := process.stderr.readline()):
            self.assertTrue(line, "it ended by itself")
        wait_until(lambda: status("State") == "S", process)  # all that is left to wait for is the pipe
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not int(status("SigCgt"), 16) >> (signal.SIGINT - 1) & 1, process)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), -signal.SIGINT)
        process.stderr.close()
        os.close(read_end)


class Streams(Case):
    def test_reader_that_goes_away(self):
        process = start("-m", TINY, "-p", "abc", *ENDLESS, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        err = process.stderr.read().decode()
        self.assertEqual(process.wait(timeout=60), -signal.SIGPIPE)
        self.assertNotIn("error", err)
        process.stderr.close()

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            result = subprocess.run([program(), "-m", TINY, "-p", "abc", "-n", "4"], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"tiered-run: error: cannot write to standard output: No space left", result.stderr)
        closed = subprocess.run(["sh", "-c", 'exec "$0" "$@" >&-', program(), "-m", TINY, "-p", "abc", "-n", "4"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(closed.returncode, 1)
        self.assertIn(b"cannot write to standard output", closed.stderr)

        for args in ["--help"], ["--version"]:
            with open("/dev/full", "wb") as full:
                result = subprocess.run([program(), *args], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=60)
            self.assertEqual(result.returncode, 1)
            self.assertIn(b"No space left", result.stderr)

    def test_closed_input_is_no_prompt(self):
        def closed(redirections, *args):
            return subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirections}', program(), "-m", TINY, *args], capture_output=True, timeout=60)

        self.assertEqual(self.check(closed("<&-"), 3, "standard input: cannot be read"), b"")
        args = ["-p", "abc", "-n", "4", "--temp", "0"]
        self.assertEqual(closed("<&- 2>&-", *args).stdout, run("-m", TINY, *args).stdout)

    def test_output_that_does_not_block(self):
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write_end, b"\0" * 4096)
        process = start("-m", TINY, "-p", "abc", "-n", "4", "--temp", "0", stdout=write_end, stderr=subprocess.PIPE)
        os.close(write_end)
        while b"greedy" not in (line := process.stderr.readline()):
            self.assertTrue(line, "it ended by itself")
        wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "S", process)
        with open(read_end, "rb") as pipe:
            out = pipe.read()
        self.assertEqual((process.wait(timeout=60), process.stderr.read()), (0, b"\n"))
        process.stderr.close()
        self.assertEqual(out.lstrip(b"\0"), run("-m", TINY, "-p", "abc", "-n", "4", "--temp", "0").stdout)

    def test_progress_on_a_terminal(self):
        ours, theirs = pty.openpty()
        process = start("-m", TINY, "-p", "x" * 200, "-n", "1", stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], 60)[0]:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            shown += piece
        self.assertEqual(process.wait(timeout=60), 0)
        self.assertIn(b"reading the prompt", shown)
        os.close(ours)


class Examples(Case):
    """The programs that people copy from, which lie beside tiered-run."""

    def example(self, name, *args):
        path = Path(program()).parent / name
        if not path.exists():
            self.skipTest(f"{name} is not built")
        return subprocess.run([path, *map(str, args)], capture_output=True, timeout=300)

    def test_each_says_how_it_is_used(self):
        for name in ["minimal", "own_eviction", "own_placement", "own_tier"]:
            with self.subTest(name=name):
                result = self.example(name)
                self.assertEqual((result.returncode, result.stdout), (2, b""))
                self.assertIn(b"usage: " + name.encode(), result.stderr)
        for name in ["own_eviction", "own_placement", "own_tier"]:
            self.assertEqual(self.example(name, TINY, "--smi").returncode, 2)
        result = self.example("own_tier", TINY, "--sim", "--vram", "200K")
        self.assertEqual(result.returncode, 2)
        self.assertIn(b"--vram", result.stderr)

    def test_minimal(self):
        result = self.example("minimal", TINY, "abc", "64K")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b" of 64.0 KiB)", result.stdout)
        self.assertEqual(self.example("minimal", self.folder / "none.gguf", "abc").returncode, 1)

    def test_own_policies_give_the_same_text(self):
        for name, *args in [
            ("own_placement", TINY, "200K"),
            ("own_placement", MOE, "abc", "--vram", "200K", "--sim"),
            ("own_eviction", MOE, "100K"),
            ("own_tier", TINY),
            ("own_tier", MOE, "abc"),
        ]:
            with self.subTest(name=name, args=args):
                result = self.example(name, *args)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn(b"The two texts are the same.", result.stdout)
                if name != "own_tier":
                    self.assertRegex(result.stdout, rb"[+-][0-9.]+ % tokens/s, [+-][0-9.]+ % bytes copied")
        self.assertRegex(self.example("own_tier", TINY).stdout, rb"huge pages +[+-][0-9.]+ % tokens/s against the file mapping, on the CPU")
        classes = rb"a prompt of \d+ tokens: predicted [0-9.]+ ms on a made-up machine, measured [0-9.]+ ms"
        self.assertGreaterEqual(len(re.findall(classes, self.example("own_placement", TINY, "200K").stdout)), 2)
        self.assertRegex(self.example("own_eviction", MOE, "100K").stdout, rb"[+-][0-9.]+ points of hits")
        self.assertIn(b"has no experts", self.example("own_eviction", TINY, "100K").stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    set_program(Path(sys.argv.pop(1)).resolve())
    unittest.main()
