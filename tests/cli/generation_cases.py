"""Flags: what is drawn, what ends a text, what is told of it, what is refused."""

import json
import os
import resource
import signal
import subprocess
import unittest
from pathlib import Path

from support import ENDLESS, MOE, TINY, WITH_BOS, Case, program, run, start

__all__ = ["Flags", "Sampling", "Ends", "Json", "Statistics", "Trace", "Memory", "Tokens"]


class Flags(Case):
    def test_refused_with_what_to_use_instead(self):
        for args, message in [
            (["-ngl", "99"], "--vram 2G"), (["--n-gpu-layers=99"], "--vram 2G"), (["-ncmoe", "3"], "--vram 2G"), (["--cpu-moe"], "--vram 2G"),
            (["-ot", "exps=CPU"], "--vram 2G"), (["-hf", "a/b"], "-m"), (["--samplers", "top_k"], "order"), (["-i"], "-cnv"),
            (["-fa", "off"], "one pass"), (["-fa", "maybe"], '"maybe"'), (["--color", "red"], '"red"'),
            (["-ctk", "q8_0"], "-ctk q8_0 -ctv q8_0"), (["-ctk", "q4_0", "-ctv", "q4_0"], "f32, f16 or q8_0"),
            (["-l", "5"], "15043+1"), (["-l", "x+1"], "15043+1"), (["-l", "5*1"], "15043+1"), (["-l", "5+"], "15043+1"), (["-l", "5+-1"], "15043+1"),
            (["-l", "5+nan"], "15043+1"), (["-l", "288+1"], "token 288 is not in a vocabulary of 288"),
            (["--stop", ""], "empty"), (["-r", ""], "empty"), (["--min-p", "2"], "range"), (["--typical", "-1"], "range"), (["--repeat-penalty", "0"], "range"),
            (["--repeat-last-n", "-2"], "range"), (["--presence-penalty", "nan"], "no number"), (["--frequency-penalty", "x"], "no number"),
            (["--logprobs", "2"], "--json"), (["-cnv", "-no-cnv"], "excludes"), (["-cnv", "--json"], "--json"), (["--in-prefix", "a"], "-cnv"), (["--in-prefix", "a", "--chat-template", "chatml"], "excludes"),
            (["--chat-template", "chatml"], "--chat"), (["-sysf", "x"], "--chat"),
            (["--prompt-cache-ro"], "--prompt-cache"), (["--session", "a", "--prompt-cache", "b"], "excludes"), (["-bf", "x"], "excludes"),
        ]:
            with self.subTest(args=args):
                out = self.check(run("-m", TINY, "-p", "a", *args), 2, message, "--help")
                self.assertEqual(b"" if "--json" in args else out, b"")

    def test_accepted_and_said_to_change_nothing(self):
        expected = self.text("-p", "abc", "-n", "6")
        for args, note in [(["-b", "512"], "-b changes"), (["-ub", "64"], "-ub changes"), (["-tb", "7"], "-tb changes"), (["--keep", "3"], "--keep changes")]:
            with self.subTest(args=args):
                self.assertEqual(self.check(run("-m", TINY, "-p", "abc", "-n", "6", "--temp", "0", *args), 0, "tiered-run: note: " + note), expected)
        quiet = run("-m", TINY, "-p", "abc", "-n", "6", "--temp", "0", "-b", "512", "--log-disable")
        self.assertEqual((quiet.stdout, quiet.stderr), (expected, b""))
        for args in [["-fa"], ["-fa", "on"], ["-fa", "auto"], ["--jinja"], ["--no-jinja"], ["--no-warmup"], ["--no-perf"], ["--no-context-shift"], ["-co", "on"], ["--mmap"]]:
            with self.subTest(args=args):
                result = run("-m", TINY, "-p", "abc", "-n", "6", "--temp", "0", *args)
                self.assertEqual((result.returncode, result.stdout), (0, expected))
                self.assertNotIn(b"note", result.stderr)

    def test_what_can_change_nothing_is_said(self):
        expected = self.text("-p", "abc", "-n", "6")
        device = ["--vram", "64K"]
        for args, why in [
            (["--placement", "all_vram"], "--placement changes nothing without --vram"),
            (["--eviction", "lru"], "--eviction changes nothing without --vram"),
            (["--eviction", "lru", *device], "--eviction changes nothing: the model has no experts"),
            (["--expert-prior"], "--expert-prior changes nothing without --vram"),
            (["--expert-prior", *device], "--expert-prior changes nothing: the model has no experts"),
            (["--vram-excludes-context", *device], "--vram-excludes-context changes nothing without a CUDA device"),
            (["-s", "3"], "--seed changes nothing with --temp 0"),
            (["--top-k", "3"], "--top-k changes nothing with --temp 0"),
            (["--top-p", "0.5"], "--top-p changes nothing with --temp 0"),
            (["--min-p", "0.5"], "--min-p changes nothing with --temp 0"),
            (["--repeat-last-n", "5"], "--repeat-last-n changes nothing without a penalty"),
            (["-st"], "--single-turn changes nothing without -cnv"),
            (["-mli"], "--multiline-input changes nothing without -cnv"),
            (["--prompt-cache", self.folder / "state", "--prompt-cache-all", "--prompt-cache-ro"], "--prompt-cache-all changes nothing with --prompt-cache-ro"),
        ]:
            with self.subTest(args=args):
                result = run("-m", TINY, "-p", "abc", "-n", "6", "--temp", "0", *args)
                self.assertEqual(self.check(result, 0, "tiered-run: note: " + why), expected)
                self.assertEqual(result.stderr.count(b"note: "), 1)
        moe = ["-m", MOE, "-p", "abc", "-n", "1", "--temp", "0", "--vram", "250K"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder)}
        self.check(run(*moe, "--expert-prior", "--deterministic", env=environment), 0, "--expert-prior changes nothing with --deterministic")
        for used in [["--eviction", "lru", "--placement", "stream_all"], ["--no-expert-prior"], ["--link", "10G"]]:
            self.assertNotIn(b"note", run(*moe, *used).stderr)
        for used in [["-s", "3"], ["--repeat-last-n", "5", "--repeat-penalty", "1.1"], ["--temp", "0", "--typical", "0.9", "--top-k", "9"]]:
            self.assertNotIn(b"note", run("-m", TINY, "-p", "abc", "-n", "6", *used).stderr)
        for flag in ["--trace", "--session"]:
            self.check(run("-m", TINY, "--vram", "64K", "--plan", flag, self.folder / "new"), 0, flag + " changes nothing with --plan")
        self.assertFalse((self.folder / "new").exists())

    def test_a_rate_of_no_link_is_refused(self):
        for args in [[], ["--device", "none"], ["--vram", "0"], ["--plan"]]:
            with self.subTest(args=args):
                self.assertEqual(self.check(run("-m", TINY, "-p", "a", "-n", "1", "--link", "12G", *args), 2, "--link", "there is none", "--vram 2G"), b"")
        self.check(run("-m", TINY, "-p", "a", "-n", "1", "--link", "12G", "--vram", "64K"), 0)

    def test_values_that_look_like_flags(self):
        for odd in ["-sys", "-ngl", "-cnv", "--json", "-ot"]:
            self.assertEqual(self.text("-p", odd, "-n", "0", "--no-escape"), odd.encode() + b"\n")

    def test_long_names(self):
        expected = self.text("-p", "abc", "-n", "6")
        self.assertEqual(run("-m", TINY, "-p", "abc", "--predict", "6", "--temperature", "0").stdout, expected)
        self.assertEqual(self.text("-p", "abc", "--n-predict", "6", "--typical-p", "1", "--ctx-size", "100", "--threads", "1", "--cache-type-k", "f16"), expected)

    def test_prompt_files(self):
        file = self.folder / "prompt.bin"
        file.write_bytes(b"a\\nb\n")
        self.assertEqual(self.text("-bf", file, "-n", "0"), b"a\\nb\n")
        self.assertEqual(self.json("-bf", file, "-n", "0")["usage"]["prompt_tokens"], self.json("-f", file, "-n", "0")["usage"]["prompt_tokens"] + 1)
        self.check(run("-m", TINY, "-bf", self.folder / "none"), 3, "none", "No such file")

    def test_escapes(self):
        self.assertEqual(self.text("-e", "-p", r"\x41\x4g\t\'\q", "-n", "0"), b"A\\x4g\t'\\q\n")


class Sampling(Case):
    def draw(self, *args):
        return self.json("-p", "x", "-n", "24", "--ignore-eos", *args, greedy=False)["tokens"]

    def test_same_seed_same_text(self):
        every = ["--temp", "1.3", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.01", "--typical", "0.9", "--repeat-penalty", "1.2", "--presence-penalty", "0.3",
                 "--frequency-penalty", "0.2", "-l", "100+1"]
        for threads in ["1", "2", "64"]:  # also more than there are cores
            self.assertEqual(self.draw("-s", "7", "-t", threads, *every), self.draw("-s", "7", "-t", "1", *every))
        self.assertNotEqual(self.draw("-s", "7", *every), self.draw("-s", "8", *every))

    def test_filters_that_leave_one_token(self):
        greedy = self.draw("--temp", "0")
        for args in [["--min-p", "1"], ["--top-k", "1"], ["--top-p", "0"]]:
            self.assertEqual(self.draw("-s", "3", "--temp", "2", *args), greedy)
        hot = ["--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0"]
        self.assertNotEqual(self.draw("-s", "3", *hot), self.draw("-s", "4", *hot))
        self.assertEqual(self.draw("-s", "3", *hot, "--typical", "0"), self.draw("-s", "4", *hot, "--typical", "0"))

    def test_penalties(self):
        greedy = self.draw("--temp", "0")
        self.assertLess(len(set(greedy)), len(greedy), "nothing to penalise")
        for args in [["--presence-penalty", "1000"], ["--frequency-penalty", "1000"]]:
            tokens = self.draw("--temp", "0", *args)
            self.assertEqual(len(set(tokens)), len(tokens))
            self.assertEqual(self.draw("--temp", "0", *args, "--repeat-last-n", "0"), greedy)
            self.assertLess(len(set(self.draw("--temp", "0", *args, "--repeat-last-n", "1"))), len(greedy))
        self.assertNotEqual(self.draw("--temp", "0", "--repeat-penalty", "5"), greedy)

    def test_logit_bias(self):
        self.assertEqual(self.draw("--temp", "0", "-l", "100+1000"), [100] * 24)
        self.assertEqual(self.draw("-l", "100+inf"), [100] * 24)
        first = self.draw("--temp", "0")[0]
        self.assertNotIn(first, self.draw("--temp", "0", "-l", f"{first}-inf"))
        two = self.draw("-s", "3", "-l", "100+1000", "-l", "101+1000")
        self.assertEqual(set(two), {100, 101})


class Ends(Case):
    def test_stop_strings_across_tokens(self):
        out = self.json("-p", "abc", "-n", "20")
        full = self.text("-p", "abc", "-n", "20", "--no-display-prompt")[:-1]
        ids = out["tokens"]
        self.assertGreater(len(full), 14)
        stop = full[-8:-2]  # no token of this model is as long
        self.assertEqual(full.index(stop), len(full) - 8)
        args = ["-p", "abc", "-n", "20", "--no-display-prompt"]
        self.assertEqual(self.text(*args, "--no-escape", "--stop", os.fsdecode(stop)), full[:-8] + b"\n")
        self.assertEqual(self.text(*args, "--no-escape", "-r", os.fsdecode(stop)), full[:-2] + b"\n")
        stopped = self.json("-p", "abc", "-n", "20", "--stop", "never", "--stop", "the")
        self.assertEqual((stopped["finish_reason"], stopped["stop_string"]), ("stop_string", "the"))
        self.assertLess(len(stopped["tokens"]), len(ids))
        self.assertEqual(self.json("-p", "abc", "-n", "20", "--stop", "never")["tokens"], ids)
        self.check(run("-m", TINY, "-p", "abc", "-n", "20", "--temp", "0", "--stop", "the", "--stats"), 0, 'at "the"')

    def test_end_of_text(self):
        end = self.json("-p", "abc", "-n", "5", "-l", "2+1000")
        self.assertEqual((end["finish_reason"], end["tokens"], end["text"]), ("eos", [], ""))
        self.assertEqual(len(self.json("-p", "abc", "-n", "5", "-l", "2+1000", "--ignore-eos")["tokens"]), 5)

    def test_context_shift_is_never_silent(self):
        args = ["-p", "abcdefgh", "-c", "16", "-n", "40", "--ignore-eos"]
        self.assertEqual(self.json(*args)["finish_reason"], "context_full")
        result = run("-m", TINY, "--temp", "0", *args, "--context-shift", "--keep", "4")
        self.check(result, 0, "tokens were forgotten, as --context-shift says")
        out = self.json(*args, "--context-shift", "--keep", "4")
        self.assertEqual((len(out["tokens"]), out["finish_reason"]), (40, "length"))
        self.assertGreaterEqual(out["usage"]["forgotten_tokens"], 30)
        self.assertNotEqual(out["tokens"], self.json(*args, "--context-shift", "--keep", "-1")["tokens"])


class Json(Case):
    def test_text_is_the_text(self):
        args = ["-p", "Grüße", "-n", "12"]
        out = self.json(*args)
        plain = self.text(*args, "--no-display-prompt")[:-1]
        self.assertEqual(out["text"], plain.decode(errors="replace"))
        self.assertEqual((len(out["tokens"]), out["finish_reason"], out["usage"]["text_tokens"]), (12, "length", 12))
        for group, key in [("timings", "load_s"), ("timings", "first_token_s"), ("speed", "decode_tokens_per_s"), ("memory", "host_kv_bytes"), ("plan", "threads"),
                           ("model", "weight_bytes")]:
            self.assertGreater(out[group][key], 0)
        self.assertEqual((out["plan"]["context"], out["plan"]["tiers"][0]["tokens"]), (256, 1))
        self.assertEqual(self.json("--chat", "-p", "hi", "-n", "8")["text"].encode(), self.text("--chat", "-p", "hi", "-n", "8").decode(errors="replace")[:-1].encode())

    def test_logprobs(self):
        out = self.json("-p", "abc", "-n", "4", "--logprobs", "3")
        self.assertEqual([entry["token"] for entry in out["logprobs"]], out["tokens"])
        for entry in out["logprobs"]:
            top = entry["top"]
            self.assertEqual((len(top), top[0]["token"], top[0]["logprob"]), (3, entry["token"], entry["logprob"]))
            self.assertEqual(sorted((t["logprob"] for t in top), reverse=True), [t["logprob"] for t in top])
            self.assertLess(top[0]["logprob"], 0)

    def test_errors_are_objects_too(self):
        for args, code, name in [
            (["-m", self.folder / "none.gguf", "-p", "a"], 3, "not_found"), (["-m", TINY, "-p", "a", "--frob"], 2, "usage"),
            (["-m", TINY, "-p", "x" * 40, "-c", "32"], 5, "over_budget"), (["-m", TINY, "-p", ""], 2, "usage"), (["-m", TINY, "-p", "a", "-ngl", "1"], 2, "usage"),
        ]:
            with self.subTest(args=args[2:]):
                result = run(*args, "--json")
                out = json.loads(self.check(result, code))
                self.assertEqual((out["exit_code"], out["error"]["code"]), (code, name))
                self.assertIn(out["error"]["message"], result.stderr.decode())

    def test_interrupted_run_has_its_text(self):
        process = start("-m", TINY, "-p", "abc", *ENDLESS, "--json", "--trace", self.folder / "trace.json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while b"greedy" not in (line := process.stderr.readline()):
            self.assertTrue(line, "it ended by itself")
        while process.poll() is None:  # until it generates, so that there is something to keep
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            if int(status.split("voluntary_ctxt_switches:")[1].split()[0]) > 50:
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
        result = json.loads(out)
        self.assertEqual((process.returncode, result["exit_code"], result["finish_reason"], result["error"]["code"]), (130, 130, "cancelled", "cancelled"))
        self.assertEqual(len(result["tokens"]), result["usage"]["text_tokens"])

    def test_plan(self):
        out = json.loads(self.check(run("-m", MOE, "--vram", "100K", "--plan", "--json"), 0))
        self.assertEqual((out["vram_budget_bytes"], out["placement"]), (102400, "seconds_per_byte"))
        self.assertLessEqual(out["vram_planned_bytes"], 102400)
        self.assertGreater(len(out["tiers"][0]["schedule"]), 4)


class Statistics(Case):
    def test_share_of_the_bound(self):
        for model in [TINY, MOE]:
            err = run("-m", model, "-p", "abc", "-n", "12", "--stats").stderr.decode()
            self.assertRegex(err, r"decode [\d.]+ t/s, [\d.]+ GB/s of [\d.]+ GB/s measured = \d+ %")
        plain = self.json("-p", "abc", "-n", "12")
        self.assertNotIn("bound", plain)
        self.assertGreater(self.json("-p", "abc", "-n", "12", "--stats")["bound"]["share"], 0)

    def test_routed_experts_only_count(self):
        moe = self.json("-p", "abc", "-n", "12", "--stats", model=MOE)
        self.assertLess(moe["bound"]["bytes_per_token"], 0.7 * moe["model"]["weight_bytes"])
        few, many = (self.json("-p", "x" * n, "-n", "12", "--stats", model=MOE)["bound"]["bytes_per_token"] for n in (10, 200))
        self.assertGreater(many, few)  # KV

    def test_heads_of_keys_and_values_are_whole_blocks(self):
        def kv_bytes(kv_type):
            """Of 90 positions more, as the bound counts them; of all that are stored."""
            few, many = (self.json("-p", "x" * n, "-n", "4", "--ignore-eos", "--stats", "-ctk", kv_type, "-ctv", kv_type) for n in (10, 100))
            return many["bound"]["bytes_per_token"] - few["bound"]["bytes_per_token"], many["memory"]["host_kv_bytes"]

        (f16, stored_f16), (q8, stored_q8) = kv_bytes("f16"), kv_bytes("q8_0")
        self.assertGreater(f16, 0)
        self.assertAlmostEqual(q8 / f16, stored_q8 / stored_f16)


class Trace(Case):
    def test_events_on_lanes(self):
        file = self.folder / "trace.json"
        for device, lanes in [([], {"steps", "cpu"}), (["--vram", "40K", "--placement", "stream_all"], {"steps", "link", "device", "cpu"})]:
            with self.subTest(device=device):
                expected = self.text("-p", "abc", "-n", "5", *device)
                self.assertEqual(self.text("-p", "abc", "-n", "5", "--trace", file, *device), expected)
                trace = json.loads(file.read_text())
                events = trace["traceEvents"]
                names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
                spans = [e for e in events if e["ph"] == "X"]
                self.assertLessEqual(lanes, {names[e["tid"]] for e in spans})
                self.assertEqual(trace["otherData"]["events_cut"], 0)
                steps = [e for e in spans if names[e["tid"]] == "steps"]
                self.assertEqual([s["name"] for s in steps], ["prompt, 3 tokens"] + [f"token {i}" for i in range(1, 5)])
                for e in spans:
                    self.assertGreaterEqual(e["dur"], 0)
                    self.assertGreaterEqual(e["ts"], 0)

    def test_what_does_not_fit_is_said(self):
        file = self.folder / "trace.json"
        self.check(run("-m", MOE, "-p", "a", "-n", "12000", "-c", "12100", "--ignore-eos", "--vram", "64K", "--placement", "stream_all", "--trace", file), 0, "more were cut")
        self.assertGreater(json.loads(file.read_text())["otherData"]["events_cut"], 0)

    def test_idle_of_the_device_within_layers(self):
        file = self.folder / "trace.json"
        args = ["-m", TINY, "-p", "abc", "-n", "5", "--ignore-eos", "--stats"]
        err = run(*args, "--vram", "1M", "--placement", "all_vram", "--trace", file).stderr.decode()
        self.assertRegex(err, r"device idle +[0-9.]+ us in each layer of a token, on the average of 8\n")  # 2 layers of 4 tokens
        points = [e["args"]["us"] for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "C"]
        self.assertEqual(len(points), 2 * 2 * 5)
        self.assertEqual(set(points[1::2]), {0})
        for more in (["--trace", file], ["--vram", "1M", "--placement", "all_vram"]):  # no device; no trace
            self.assertNotIn(b"device idle", run(*args, *more).stderr)

    def test_file_that_cannot_be_written(self):
        self.check(run("-m", TINY, "-p", "a", "-n", "1", "--trace", self.folder / "none" / "trace.json"), 3, "trace file", "No such file")

    def test_file_that_cannot_be_finished(self):
        small = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))}
        args = ["-m", TINY, "-p", "a", "-n", "2", "--trace", self.folder / "trace.json"]
        self.check(run(*args, **small), 3, "error: trace file", "File too large")
        with open("/dev/full", "wb") as full:  # the error that came first is the one that counts
            result = subprocess.run([program(), *map(str, args)], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False, **small)
        self.check(result, 1, "error: cannot write to standard output", "warning: trace file", "File too large")


class Memory(Case):
    def test_without_a_mapping(self):
        self.assertEqual(self.text("-p", "abc", "-n", "9", "--no-mmap"), self.text("-p", "abc", "-n", "9"))
        model = self.folder / "model.gguf"
        model.write_bytes(TINY.read_bytes())
        process = start("-m", model, "-p", "abc", *ENDLESS, "--no-mmap", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(process.stdout.fileno(), 10)
        os.truncate(model, 0)  # nothing of it is needed any more
        for _ in range(50):
            self.assertTrue(os.read(process.stdout.fileno(), 100))
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130)

    def test_locked(self):
        self.assertEqual(self.text("-p", "abc", "-n", "9", "--mlock"), self.text("-p", "abc", "-n", "9"))
        self.assertEqual(self.text("-p", "abc", "-n", "9", "--mlock", "--no-mmap"), self.text("-p", "abc", "-n", "9"))

    @unittest.skipIf(os.geteuid() == 0, "root may lock all memory")
    def test_lock_that_is_not_allowed(self):
        result = run("-m", TINY, "-p", "a", "--mlock", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096)))
        self.check(result, 5, "--mlock", "4096 bytes", str(TINY.stat().st_size))

    def test_kv_types(self):
        f16 = self.json("-p", "abc", "-n", "9")
        self.assertEqual((f16["plan"]["kv_type"], self.json("-p", "abc", "-n", "9", "-ctk", "f32", "-ctv", "f32")["memory"]["host_kv_bytes"]),
                         ("f16", 2 * f16["memory"]["host_kv_bytes"]))
        q8 = self.json("-p", "abc", "-n", "9", "-ctk", "q8_0", "-ctv", "q8_0")
        self.assertEqual((q8["plan"]["kv_type"], len(q8["tokens"])), ("q8_0", 9))
        self.assertNotEqual(q8["memory"]["host_kv_bytes"], f16["memory"]["host_kv_bytes"])  # heads are too small here for it to be less


class Tokens(Case):
    def tokens(self, *args, model=WITH_BOS):
        err = run("-m", model, "-n", "1", "-v", *args).stderr.decode(errors="replace")
        line = next(line for line in err.splitlines() if line.startswith("prompt, "))
        return line.split(":", 1)[1]

    def test_bos_once_and_always(self):
        plain = self.tokens("-p", "abc")
        self.assertTrue(plain.startswith(" 1 '<|im_start|>' 5 'a'"), plain)
        self.assertEqual(self.tokens("-p", "<|im_start|>abc"), plain)
        chat = self.tokens("--chat", "--chat-template", "chatml", "-p", "abc")
        self.assertTrue(chat.startswith(" 1 '<|im_start|>'"), chat)
        self.assertFalse(chat.startswith(" 1 '<|im_start|>' 1 "), chat)
        self.assertEqual(self.tokens("-p", "abc", model=TINY), " 100 'a' 101 'b' 102 'c'")
