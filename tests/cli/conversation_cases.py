"""Questions and conversations: templates, a terminal with someone at it, lines from a pipe."""

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

from support import ENDLESS, TINY, Case, Terminal, program, run, start

__all__ = ["Questions", "Piped", "AtTerminal"]

CHAT = ["-m", TINY, "--temp", "0", "-n", "6", "--ignore-eos"]


def marked(*messages):
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)
    return text + "<|im_start|>assistant\n"


class Questions(Case):
    def raw(self, text, n=8):
        return self.text("-p", text, "--no-escape", "-n", n, "--no-display-prompt")

    def test_system_prompt(self):
        expected = self.raw(marked(("system", "be brief"), ("user", "hi")))
        file = self.folder / "system.txt"
        file.write_text("be brief\n")
        for args in [["-sys", "be brief"], ["--system-prompt", r"be\x20brief"], ["-sysf", file]]:
            self.assertEqual(self.text("--chat", *args, "-p", "hi", "-n", "8"), expected)
        self.check(run("-m", TINY, "--chat", "-sysf", self.folder / "none", "-p", "hi"), 3, "none")

    def test_templates(self):
        expected = self.text("--chat", "-p", "hi", "-n", "8")
        self.assertEqual(self.text("--chat", "--chat-template", "chatml", "-p", "hi", "-n", "8"), expected)
        source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
        file = self.folder / "template.jinja"
        file.write_text(source)
        for args in [["--chat-template", source], ["--chat-template-file", file]]:
            self.assertEqual(self.text("--chat", *args, "-p", "hi", "-n", "8"), self.raw("user: hi\nA:"))
        self.check(run("-m", TINY, "--chat", "--chat-template", "none_such", "-p", "hi"), 2, "none_such", "chatml")
        file.write_text("{% include 'other' %}")
        self.check(run("-m", TINY, "--chat", "--chat-template-file", file, "-p", "hi"), 4, "include", "--chat-template-file: ")

    def test_template_is_refused_with_a_way_on(self):
        other = self.folder / "other.gguf"
        data = TINY.read_bytes()
        self.assertIn(b"{% for message in messages %}", data)
        other.write_bytes(data.replace(b"{% for message in messages %}", b"{% fog message in messages %}"))
        self.check(run("-m", other, "-p", "a", "--chat"), 4, "--chat", "fog", "Without --chat", "--chat-template")
        self.check(run("-m", other, "-p", "a", "-n", "1"), 0)
        self.assertEqual(self.text("--chat", "--chat-template", "chatml", "-p", "hi", "-n", "4", model=other), self.text("--chat", "-p", "hi", "-n", "4"))

    def test_piped_question(self):
        self.assertEqual(self.text("--chat", "-n", "8", stdin=b"hi\n"), self.text("--chat", "-p", "hi", "-n", "8"))


class Piped(Case):
    """-cnv without a terminal: a message a line."""

    def test_later_turns_process_only_what_is_new(self):
        result = run(*CHAT, "-cnv", "--stats", stdin=b"one\n\ntwo\n")
        self.check(result, 0)
        err = result.stderr.decode(errors="replace")
        first = self.text("--chat", "-p", "one", "-n", "6", "--ignore-eos")[:-1]
        prompt = marked(("user", "one"), ("assistant", os.fsdecode(first)), ("user", "two"))
        second = self.text("-p", prompt, "--no-escape", "-n", "6", "--ignore-eos", "--no-display-prompt")
        self.assertEqual(result.stdout, first + b"\n" + second)
        self.assertEqual(err.count("more were there already"), 1)

    def test_first_message_from_the_command_line(self):
        both = run(*CHAT, "-cnv", stdin=b"one\ntwo\n").stdout
        self.assertEqual(run(*CHAT, "-cnv", "-p", "one", stdin=b"two\n").stdout, both)
        single = run(*CHAT, "-cnv", "-st", "-p", "one", stdin=b"two\n").stdout
        self.assertEqual(single, self.text("--chat", "-p", "one", "-n", "6", "--ignore-eos"))
        self.assertEqual(run(*CHAT, "-cnv", "-st", stdin=b"one\ntwo\n").stdout, single)

    def test_lines_that_go_on(self):
        expected = self.text("--chat", "-p", r"a\nb", "-n", "6", "--ignore-eos")
        self.assertEqual(run(*CHAT, "-cnv", "-st", stdin=b"a\\\nb\n").stdout, expected)
        self.assertEqual(run(*CHAT, "-cnv", "-st", "-mli", stdin=b"a\nb\\\nc").stdout, expected)
        self.assertEqual(run(*CHAT, "-cnv", "-st", "-mli", stdin=b"a\nb/\nc").stdout, expected)
        self.assertEqual(run(*CHAT, "-cnv", "-st", "-mli", stdin=b"a\nb").stdout, self.text("--chat", "-p", r"a\nb\n", "-n", "6", "--ignore-eos"))

    def test_prefix_and_suffix_instead_of_a_template(self):
        out = run(*CHAT, "-cnv", "-st", "--in-prefix", "Q: ", "--in-suffix", r"\nA:", "-sys", r"Talk.\n", stdin=b"hi\n").stdout
        self.assertEqual(out, self.text("-p", r"Talk.\nQ: hi\nA:", "-n", "6", "--ignore-eos", "--no-display-prompt"))

    def test_commands(self):
        keep = self.folder / "kept"
        answer = self.text("--chat", "-p", "one", "-n", "6", "--ignore-eos")
        result = run(*CHAT, "-cnv", stdin=f"one\n/regen\n/save {keep}\n/clear\n/load {keep}\n/help\n/nonsense\n/stats\n/quit\nnever\n".encode())
        self.assertEqual((result.returncode, result.stdout), (0, answer * 2))
        for said in ["kept in", "a new conversation", "going on with 2 messages", "/regen", "there is no /nonsense", "tokens/s"]:
            self.assertIn(said, result.stderr.decode(errors="replace"))
        self.assertEqual(stat.S_IMODE(keep.stat().st_mode), 0o600)
        messages = json.loads((self.folder / "kept.json").read_text())["messages"]
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"])
        self.assertEqual(stat.S_IMODE((self.folder / "kept.json").stat().st_mode), 0o600)
        system = run(*CHAT, "-cnv", stdin=b"/system be brief\none\n").stdout
        self.assertEqual(system, self.text("--chat", "-sys", "be brief", "-p", "one", "-n", "6", "--ignore-eos"))
        self.check(run(*CHAT, "-cnv", stdin=b"/load /nowhere/at/all\n"), 3, "/nowhere/at/all")

    def test_session_between_runs(self):
        file = self.folder / "state"
        both = run(*CHAT, "-cnv", stdin=b"one\ntwo\n").stdout
        first = run(*CHAT, "-cnv", "--session", file, stdin=b"one\n").stdout
        second = run(*CHAT, "-cnv", "--session", file, "--stats", stdin=b"two\n")
        self.assertEqual(first + second.stdout, both)
        self.assertIn(b"more were there already", second.stderr)

    def kept(self, file):
        return [(m["role"], m["content"]) for m in json.loads(Path(f"{file}.json").read_text())["messages"]]

    def test_a_turn_that_fails_does_not_ruin_the_session(self):
        file = self.folder / "state"
        talk = [*CHAT, "-cnv", "-c", "150", "--session", file]
        first = run(*talk, stdin=b"one\n")
        self.check(first, 0)
        kept = self.kept(file)
        for more in ([], ["-st"]):
            self.assertEqual(self.check(run(*talk, *more, stdin=b"x" * 200 + b"\n"), 5, "the context 150"), b"")
            self.assertEqual(self.kept(file), kept)
        second = run(*talk, stdin=b"two\n")
        self.check(second, 0)
        self.assertEqual(first.stdout + second.stdout, run(*CHAT, "-cnv", "-c", "150", stdin=b"one\ntwo\n").stdout)

    def test_an_answer_that_cannot_be_written_is_kept_as_far_as_it_came(self):
        file = self.folder / "state"
        with open("/dev/full", "wb") as full:
            result = subprocess.run([program(), *map(str, CHAT), "-cnv", "--session", str(file)], input=b"one\n", stdout=full, stderr=subprocess.PIPE, timeout=300)
        self.assertEqual(result.returncode, 1, result.stderr)
        (role, said), (other, answer) = self.kept(file)
        self.assertEqual((role, said, other), ("user", "one", "assistant"))
        self.assertTrue(answer)
        self.check(run(*CHAT, "-cnv", "--session", file, stdin=b"two\n"), 0)

    def test_only_its_own_files_are_written_over(self):
        other = self.folder / "notes"
        other.write_text("precious")
        (self.folder / "good.json").write_text('{"name": 1}')
        link = self.folder / "link"
        os.mkfifo(self.folder / "pipe")
        link.symlink_to("pipe")
        for file, why in [(other, "no session"), (self.folder / "good", "no list of messages"), (self.folder, "a directory"), (link, "a pipe")]:
            with self.subTest(file=file):
                self.check(run(*CHAT, "-cnv", stdin=f"one\n/save {file}\n".encode()), 3, why)
                self.assertEqual(self.check(run(*CHAT, "-cnv", "--session", file, stdin=b"one\n"), 3, why), b"")
        self.assertEqual((other.read_text(), (self.folder / "good.json").read_text()), ("precious", '{"name": 1}'))
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["good.json", "link", "notes", "pipe"])
        self.check(run(*CHAT, "-cnv", stdin=f"/load {link}\n".encode()), 3, "a pipe")

    def test_session_without_messages(self):
        file = self.folder / "state"
        self.text("-p", "one", "-n", "4", "--session", file)
        written = file.read_bytes()
        self.assertEqual(self.check(run(*CHAT, "-cnv", "--session", file, stdin=b"two\n"), 3, "state.json: No such file"), b"")
        self.check(run("-m", TINY, "--chat", "-p", "two", "--session", file), 2, "another text", "-cnv -st")
        self.assertEqual(file.read_bytes(), written)

    def test_context_shift_drops_the_oldest_turns(self):
        lines = b"".join(b"message %d\n" % i for i in range(6))
        keep = self.folder / "kept"
        args = [*CHAT, "-cnv", "-sys", "be brief", "-c", "128"]
        self.check(run(*args, stdin=lines), 5, "nothing was cut")
        result = run(*args, "--context-shift", "--keep", "1000", stdin=lines + f"/save {keep}\n".encode())
        self.check(result, 0, "the oldest 2 messages were forgotten, as --context-shift says")
        messages = json.loads((self.folder / "kept.json").read_text())["messages"]
        self.assertEqual(messages[0], {"role": "system", "content": "be brief"})
        self.assertEqual([m["content"] for m in messages if m["role"] == "user"][-1], "message 5")
        self.assertLess(len(messages), 13)
        again = run(*args, "--context-shift", stdin=b"x" * 200 + b"\n")  # nothing that could be dropped would help
        self.check(again, 5, "nothing was cut")

    def test_single_turn_that_is_stopped(self):
        for number, code in [(signal.SIGINT, 130), (signal.SIGTERM, 143)]:
            for first in [["-p", "abc"], []]:
                with self.subTest(signal=number, first=first):
                    process = start("-m", TINY, "-cnv", "-st", *first, *ENDLESS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                    process.stdin.write(b"abc\nnever\n")
                    process.stdin.flush()
                    self.assertTrue(os.read(process.stdout.fileno(), 10))
                    process.send_signal(number)
                    process.communicate(timeout=60)
                    self.assertEqual(process.returncode, code)

    def test_endless_line(self):
        with open("/dev/zero", "rb") as zeros:
            result = subprocess.run([program(), *CHAT, "-cnv"], stdin=zeros, capture_output=True, timeout=60, check=False)
        self.check(result, 2, "a line of standard input", "a prompt may have 67108864")
        self.check(run(*CHAT, "-cnv", stdin=(b"x" * 4094 + b"\\\n") * 16400), 2, "the message", "a prompt may have 67108864")

    def test_longer_than_the_context(self):
        self.check(run(*CHAT, "-cnv", "-c", "64", stdin=b"x" * 80 + b"\n"), 5, "the context 64", "nothing was cut", "/clear")


class AtTerminal(Case):
    def chat(self, *args, **environment):
        return Terminal(self, *CHAT, *args, **environment)

    def edits(self):
        return b"read by libedit" in run("--version").stdout

    def test_is_a_conversation_where_there_is_a_template(self):
        t = self.chat()
        t.say("hello")
        t.prompt()
        t.type("\x04")
        self.assertEqual(t.end(), 0)
        self.assertIn(b"/help lists commands", t.shown)
        raw = self.chat("-no-cnv")
        raw.expect("end it with Ctrl-D")
        raw.type("hello\n\x04")
        self.assertEqual(raw.end(), 0)

    def test_ctrl_c_stops_the_answer_only(self):
        for way in [[], ["--simple-io"]]:
            with self.subTest(way=way):
                t = Terminal(self, "-m", TINY, "--temp", "0", "-c", "100000", "--ignore-eos", *way)
                t.say("hello")
                while len(t.shown) - t.seen < 200:
                    self.assertTrue(t.read())
                t.type("\x03")
                t.expect("(stopped)")
                t.say("/stats")
                t.expect("by a signal")
                t.say("/save " + str(self.folder / "kept"))
                t.expect("kept in")
                t.prompt()
                t.type("\x03")
                self.assertEqual(t.end(), 130)
                messages = json.loads((self.folder / "kept.json").read_text())["messages"]
                self.assertEqual([m["role"] for m in messages], ["user", "assistant"])
                self.assertGreater(len(messages[1]["content"]), 20)

    def test_ctrl_d_while_an_answer_is_written(self):
        t = self.chat()
        t.say("hello")
        t.type("\x04")
        self.assertEqual(t.end(), 0)

    def test_sigterm_and_sighup_end_a_conversation(self):
        for number in [signal.SIGTERM, signal.SIGHUP]:
            file = self.folder / number.name
            t = self.chat("--session", file)
            t.say("hello")
            t.prompt()
            os.kill(t.pid, number)
            self.assertEqual(t.end(), 128 + number)
            self.assertEqual(len(json.loads((self.folder / f"{number.name}.json").read_text())["messages"]), 2)

    def test_terminal_that_goes_while_an_answer_is_written(self):
        file = self.folder / "kept"
        endless = ["-m", TINY, "--temp", "0", "-c", "100000", "--ignore-eos", "--session", file]
        for args in [[], ["-no-cnv", "-p", "abc"]]:
            file.unlink(missing_ok=True)
            t = Terminal(self, *endless, *args)
            if not args:
                t.say("hello")
            while len(t.shown) < 900:
                self.assertTrue(t.read())
            self.assertIn(t.hang_up(), [1, 129])  # a write may fail before the signal comes
            self.assertEqual(file.read_bytes()[:8], b"tieredKV")

    def test_history_of_others_stays(self):
        if not self.edits():
            self.skipTest("built without a line editor")
        folder = self.folder / "state" / "tiered"
        folder.mkdir(parents=True)
        os.mkfifo(folder / "pipe")
        history = folder / "history"
        for make in [lambda: os.mkfifo(history), lambda: history.symlink_to(folder / "pipe"), lambda: history.write_text("make\nls\n")]:
            history.unlink(missing_ok=True)
            make()
            before = history.stat()
            t = self.chat()
            t.say("hello")
            t.prompt()
            t.type("\x04")
            self.assertEqual(t.end(), 0)
            self.assertIn(b"it is not used", t.shown)
            self.assertEqual((history.stat().st_mode, history.stat().st_size), (before.st_mode, before.st_size))

    def test_two_share_a_history(self):
        if not self.edits():
            self.skipTest("built without a line editor")
        both = [self.chat(), self.chat()]
        for t in both:
            t.prompt()
        for t, text in zip([*both, *both], ["one", "two", "three", "four"]):
            t.type(text + "\r")
            t.prompt()
        for t in both:
            t.type("\x04")
            self.assertEqual(t.end(), 0)
        history = (self.folder / "state" / "tiered" / "history").read_text()
        self.assertEqual(history.split(), ["_HiStOrY_V2_", "one", "two", "three", "four"])

    def test_errors_leave_it_usable(self):
        t = self.chat("-c", "64")
        t.say("x" * 80)
        t.expect("nothing was cut")
        t.say("/load /nowhere/at/all")
        t.expect("error: ")
        t.say("hello")
        t.say("/quit")
        self.assertEqual(t.end(), 0)

    def test_single_turn(self):
        t = self.chat("-st")
        t.say("hello")
        self.assertEqual(t.end(), 0)

    def test_editing_and_history(self):
        if not self.edits():
            self.skipTest("built without a line editor")
        t = self.chat()
        t.say("helo\x1b[Dl")  # to the left, and what was forgotten
        t.prompt()
        t.type("\x1b[A\r")  # the same again
        t.say("/save " + str(self.folder / "kept"))
        t.expect("kept in")
        t.say("Gr\u00fc\u00dfe, \u65e5\u672c\u8a9e")
        t.say("\x1b[200~two\rlines\tand a tab\x1b[201~")
        t.say("/save " + str(self.folder / "more"))
        t.expect("kept in")
        t.prompt()
        t.type("\x04")
        self.assertEqual(t.end(), 0)
        typed = [m["content"] for m in json.loads((self.folder / "kept.json").read_text())["messages"] if m["role"] == "user"]
        self.assertEqual(typed, ["hello", "hello"])
        typed = [m["content"] for m in json.loads((self.folder / "more.json").read_text())["messages"] if m["role"] == "user"]
        self.assertEqual(typed[2:], ["Gr\u00fc\u00dfe, \u65e5\u672c\u8a9e", "two\nlines\tand a tab"])
        history = self.folder / "state" / "tiered" / "history"
        self.assertEqual(stat.S_IMODE(history.stat().st_mode), 0o600)
        later = self.chat()
        later.prompt()
        later.type("\x1b[A\x1b[A\x1b[A\r")  # past /save, the pasted lines, and the greeting
        later.say("/save " + str(self.folder / "later"))
        later.expect("kept in")
        later.say("/quit")
        self.assertEqual(later.end(), 0)
        self.assertEqual(json.loads((self.folder / "later.json").read_text())["messages"][0]["content"][:2], "Gr")

    def test_what_is_typed_is_thrown_away_by_ctrl_c(self):
        if not self.edits():
            self.skipTest("built without a line editor")
        t = self.chat()
        t.prompt()
        t.type("abc")
        t.expect("abc")
        t.type("\x03")
        t.prompt()
        t.type("\x04")
        self.assertEqual(t.end(), 0)

    def test_no_history_without_a_terminal_or_with_simple_io(self):
        state = self.folder / "state"
        result = run(*CHAT, "-cnv", stdin=b"one\n", env={"XDG_STATE_HOME": str(state)})
        self.assertEqual((result.returncode, state.exists()), (0, False))
        t = self.chat("--simple-io")
        t.say("one")
        t.prompt()
        t.type("\x04")
        self.assertEqual((t.end(), state.exists()), (0, False))
        self.assertNotIn(b"\x1b[1;32m", t.shown)

    def test_colours(self):
        for args, expected in [(["--color", "on", "--simple-io"], False), ([], self.edits()), (["--color", "off"], False)]:
            t = self.chat(*args)
            t.prompt()
            t.type("\x04")
            self.assertEqual(t.end(), 0)
            self.assertEqual(b"\x1b[1;32m" in t.shown, expected, args)

