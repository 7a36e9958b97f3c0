"""State that is kept between runs."""

import os
import resource
import signal
import stat
import subprocess

from support import ENDLESS, MOE, TINY, Case, run, start

__all__ = ["Sessions"]


class Sessions(Case):
    def setUp(self):
        super().setUp()
        self.file = self.folder / "state"

    def test_goes_on_as_if_it_had_never_stopped(self):
        for device in [[], ["--vram", "100K"]]:
            with self.subTest(device=device):
                self.file.unlink(missing_ok=True)
                whole = self.text("-p", "abc", "-n", "20")
                part = self.text("-p", "abc", "-n", "7", "--session", self.file)
                self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
                self.text("-n", "6", "--session", self.file, *device)
                self.assertEqual(self.text("-n", "7", "--session", self.file, *device), whole)
                self.assertLess(len(part), len(whole))
                more = self.json("-n", "1", "--session", self.file)
                self.assertEqual(more["usage"]["reused_tokens"], more["usage"]["prompt_tokens"] - 1)
                self.assertEqual(more["usage"]["prompt_tokens"], 23)

    def test_prompt_cache(self):
        prompt = "a long prompt that should be read once"
        plain = self.json("-p", prompt, "-n", "8")
        first = self.json("-p", prompt, "-n", "8", "--prompt-cache", self.file)
        written = self.file.read_bytes()
        again = self.json("-p", prompt, "-n", "8", "--prompt-cache", self.file)
        n = plain["usage"]["prompt_tokens"]
        self.assertEqual([r["usage"]["reused_tokens"] for r in (plain, first, again)], [0, 0, n - 1])
        self.assertEqual((first["tokens"], again["tokens"]), (plain["tokens"], plain["tokens"]))
        other = self.json("-p", prompt[:20] + "!", "-n", "8", "--prompt-cache", self.file, "--prompt-cache-ro")
        self.assertEqual(other["tokens"], self.json("-p", prompt[:20] + "!", "-n", "8")["tokens"])
        self.assertIn(other["usage"]["reused_tokens"], range(10, 21))
        self.assertEqual(self.file.read_bytes(), written)
        self.json("-p", prompt, "-n", "8", "--prompt-cache", self.file, "--prompt-cache-all")
        self.assertGreater(self.file.stat().st_size, len(written))
        self.assertEqual(self.json("-n", "0", "--prompt-cache", self.file)["usage"]["prompt_tokens"], n + 8)

    def test_refused_by_kind(self):
        self.text("-p", "abcdefghijkl", "-n", "4", "--session", self.file)
        whole = self.file.read_bytes()
        args = ["-p", "abc", "-n", "1", "--session", self.file]
        self.check(run("-m", MOE, *args), 3, "model")
        self.check(run("-m", TINY, *args, "-ctk", "f32", "-ctv", "f32"), 3, "f16", "f32")
        self.check(run("-m", TINY, "-c", "8", *args), 5, "16", "8")
        self.file.write_bytes(whole[:-10])
        self.check(run("-m", TINY, *args), 3, str(self.file))
        self.file.write_bytes(b"no session, but long enough to be read as one, or so it seems at first")
        self.check(run("-m", TINY, *args), 3, str(self.file))
        self.check(run("-m", TINY, "-p", "abc", "-n", "1", "--session", self.folder), 3, str(self.folder))
        self.check(run("-m", TINY, "-p", "abc", "-n", "1", "--session", self.folder / "none" / "state"), 3, "No such file")
        self.file.write_bytes(b"")  # a new one, as for llama.cpp
        self.text(*args)
        self.assertGreater(self.file.stat().st_size, 0)
        self.check(run("-m", TINY, "--session", self.folder / "new", "-n", "1"), 2, "the prompt is empty")

    def test_only_its_own_files_are_written_over(self):
        other = self.folder / "notes"
        other.write_text("precious")
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        dangling = self.folder / "dangling"
        dangling.symlink_to(self.folder / "nothing")
        args = ["-m", TINY, "-p", "abc", "-n", "1"]
        for flag in ["--session", "--prompt-cache", "--trace"]:
            for file, why in [(other, "not written over"), (pipe, "a pipe"), (self.folder, "a directory"), (dangling, "a link"),
                              (self.folder / "none" / "file", "No such file")]:
                with self.subTest(flag=flag, file=file.name):
                    self.assertEqual(self.check(run(*args, flag, file), 3, why), b"")
        self.assertEqual(other.read_text(), "precious")
        self.check(run(*args, "--prompt-cache", pipe, "--prompt-cache-ro"), 3, "a pipe")
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["dangling", "notes", "pipe"])
        link = self.folder / "link"
        link.symlink_to("state")
        self.file.touch()
        self.check(run(*args, "--session", link), 0)
        self.assertTrue(link.is_symlink())
        self.assertEqual(self.file.read_bytes()[:8], b"tieredKV")

    def test_trace_replaces_no_file_that_is_read(self):
        prompt = self.folder / "prompt.txt"
        prompt.write_text("{abc}")
        model = self.folder / "model.gguf"
        model.write_bytes(TINY.read_bytes())
        link = self.folder / "link"
        link.symlink_to(model)
        self.check(run("-m", model, "-f", prompt, "-n", "1", "--trace", prompt), 3, "is the prompt file")
        self.check(run("-m", model, "-p", "a", "-n", "1", "--trace", link), 3, "is the model")
        self.assertEqual((prompt.read_text(), model.read_bytes()), ("{abc}", TINY.read_bytes()))
        trace = self.folder / "trace.json"
        for _ in range(2):
            self.check(run("-m", model, "-p", "a", "-n", "1", "--trace", trace), 0)

    def test_prompt_goes_behind_a_session(self):
        first = self.json("-p", "abc", "-n", "5", "--session", self.file)
        result = run("-m", TINY, "--temp", "0", "-p", "def", "-n", "3", "--session", self.file)
        self.check(result, 0, "session", "behind the 8 tokens of")
        self.assertTrue(result.stdout.startswith(b"abc"))
        more = self.json("-p", "ghi", "-n", "1", "--session", self.file)
        self.assertEqual((more["usage"]["prompt_tokens"], more["usage"]["reused_tokens"]), (8 + 6 + 3, 8 + 6))
        self.assertEqual(len(first["tokens"]), 5)
        text = "begins with all of it"
        self.text("-p", text, "-n", "0", "--session", self.folder / "other")
        again = self.json("-p", text + "!", "-n", "1", "--session", self.folder / "other")
        self.assertEqual(again["usage"]["prompt_tokens"], self.json("-p", text + "!", "-n", "1")["usage"]["prompt_tokens"])

    def test_empty_names(self):
        for flag in ["--session", "--prompt-cache", "--trace", "--chat-template"]:
            self.check(run("-m", TINY, "-p", "abc", "-n", "1", "--chat", flag, ""), 2, flag, "empty")
        self.check(run("-m", TINY, "-p", "abc", "-ctk", "\u00e9"), 2, "f32, f16 or q8_0")
        self.assertNotIn("give both", run("-m", TINY, "-p", "abc", "-ctk", "\u00e9").stderr.decode())

    def test_limit_of_a_file_is_an_error(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

        result = run("-m", TINY, "-p", "abc", "-n", "4", "--session", self.file, preexec_fn=limit)
        self.check(result, 3, "File too large")
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_hangup_keeps_the_text(self):
        process = start("-m", TINY, "-p", "abc", *ENDLESS, "--session", self.file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.read(process.stdout.fileno(), 20)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 129, err.decode())
        self.assertGreater(self.file.stat().st_size, 0)

    def test_interrupted_text_is_kept(self):
        process = start("-m", TINY, "-p", "abc", *ENDLESS, "--session", self.file, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        text = b""
        while len(text) < 40:
            text += os.read(process.stdout.fileno(), 100)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, err.decode())
        text = (text + out)[:-1].removesuffix("\ufffd".encode())
        more = self.text("-n", "3", "--session", self.file, "--ignore-eos", "-c", "100000")
        self.assertTrue(more.startswith(text))
        self.assertGreater(len(more), len(text) + 1)
