"""What the tests of tiered-run share: running it, with pipes or at a terminal, and judging how it ended."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

GOLDEN = Path(__file__).resolve().parent.parent / "data" / "golden"
TINY = GOLDEN / "llama_tied.mixed.gguf"  # any text encodes; ChatML; trained for 256 tokens
WITH_BOS = GOLDEN / "gemma3.mixed.gguf"  # its bos, token 1, is the marker that its template begins with
MOE = GOLDEN / "qwen3moe.mixed.gguf"
ENDLESS = ["-n", "-1", "-c", "100000", "--ignore-eos", "--temp", "0"]
_program = []


def set_program(path):
    _program[:] = [str(path)]


# A GPU of this machine would change budgets, notes and figures.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def program():
    return _program[0]


def run(*args, stdin=b"", **more):
    return subprocess.run([program(), *map(str, args)], input=stdin, capture_output=True, timeout=300, **more)


def start(*args, **more):
    return subprocess.Popen([program(), *map(str, args)], **{"stdin": subprocess.DEVNULL, **more})


def wait_until(condition, process):
    """Polls; a process that ends meanwhile is the caller's to judge."""
    while not condition() and process.poll() is None:
        os.sched_yield()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def check(self, result, code, *messages):
        stderr = result.stderr.decode(errors="replace")
        self.assertEqual(result.returncode, code, stderr)
        for message in messages:
            self.assertIn(message, stderr)
        self.assertNotRegex(stderr, r'""\w|\w""')  # quoted twice
        if code not in (0, 130):
            errors = [line for line in stderr.splitlines() if line.startswith("tiered-run: error: ")]
            self.assertEqual(len(errors), 1, stderr)
        return result.stdout

    def text(self, *args, model=TINY, **more):
        result = run("-m", model, "--temp", "0", *args, **more)
        self.assertEqual(result.returncode, 0, result.stderr.decode(errors="replace"))
        return result.stdout

    def json(self, *args, model=TINY, code=0, greedy=True, **more):
        result = run("-m", model, "--json", *(["--temp", "0"] if greedy else []), *args, **more)
        self.assertEqual(result.returncode, code, result.stderr.decode(errors="replace"))
        self.assertEqual(result.stdout.count(b"\n"), 1)
        out = json.loads(result.stdout)
        self.assertEqual(out["exit_code"], code)
        return out


class Terminal:
    """The program at a terminal, where someone types."""

    def __init__(self, case, *args, **environment):
        self.case, self.shown, self.seen = case, b"", 0
        environment = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(case.folder / "state"), **environment}
        command = [program(), *map(str, args)]
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, environment)
        case.addCleanup(self.close)

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        os.close(self.descriptor)

    def read(self):
        """Whether there was more."""
        if not select.select([self.descriptor], [], [], 30)[0]:
            self.case.fail(f"nothing for half a minute after {self.shown[-500:]!r}")
        try:
            piece = os.read(self.descriptor, 4096)
        except OSError:  # the other side is closed
            return False
        self.shown += piece
        return bool(piece)

    def expect(self, mark):
        """What is shown up to the mark, from where the last one ended."""
        pattern = mark if isinstance(mark, re.Pattern) else re.compile(re.escape(mark.encode()))
        while not (found := pattern.search(self.shown, self.seen)):
            if not self.read():
                self.case.fail(f"it ended without {mark!r}: {self.shown[-800:]!r}")
        text = self.shown[self.seen:found.start()]
        self.seen = found.end()
        return text

    def type(self, text):
        os.write(self.descriptor, text.encode() if isinstance(text, str) else text)

    def say(self, message):
        """Types it at the next prompt; what comes before the prompt after it."""
        self.prompt()
        self.type(message + "\r")

    def prompt(self):
        return self.expect(re.compile(rb">(\x1b\[0m)? "))  # it may be coloured

    def wait_until_it_reads(self, file):
        """Until the program has the file open. (What is typed before it was read would be thrown away by a Ctrl-C.)"""
        folder = f"/proc/{self.pid}/fd"

        def target(descriptor):
            with contextlib.suppress(OSError):  # closed meanwhile
                return os.readlink(f"{folder}/{descriptor}")

        while str(file) not in map(target, os.listdir(folder)):
            os.sched_yield()

    def hang_up(self):
        """The exit code after the terminal has gone."""
        os.close(self.descriptor)
        self.descriptor = os.open(os.devnull, os.O_RDONLY)
        return self.wait()

    def end(self):
        """The exit code."""
        while self.read():
            pass
        return self.wait()

    def wait(self):
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)
