"""Images and videos: what is asked, said, kept and refused."""

import json
import os
import re
import shutil
import struct
import zlib

from support import GOLDEN, TINY, Case, Terminal, run

__all__ = ["Images", "ImagesInConversations", "Videos"]

DATA = GOLDEN.parent
VISION = DATA / "vision_golden"
MODEL, PROJECTOR = VISION / "qwen2vl.f16.gguf", VISION / "qwen2vl.mmproj.f16.gguf"
SEE = ["--mmproj", PROJECTOR, "--image-min-tokens", "4", "--image-max-tokens", "16", "-c", "400", "--device", "none"]


def bmp(path, width=60, height=44, kind=1):
    """A file that needs no library, of numbered_image()'s pixels (tests/media_data.hpp)."""
    rows = b""
    for y in reversed(range(height)):
        row = bytes((x * (3 + kind) + y * (5 + 2 * c) + 40 * c + 17 * kind) % 256 for x in range(width) for c in (2, 1, 0))
        rows += row + bytes(-len(row) % 4)
    head = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + len(rows), 0, 0, 54, 40, width, height, 1, 24, 0, len(rows), 0, 0, 0, 0)
    path.write_bytes(head + rows)
    return path


def frames(folder, kinds, width=24, height=16):
    """A film: a folder of such files, a frame for each kind."""
    folder.mkdir()
    for i, kind in enumerate(kinds):
        bmp(folder / f"{i}.bmp", width, height, kind)
    return folder


def dialog(name="qwen2vl"):
    """Question and answer of the first turn: tests/data/vision_golden/make_dialogs.py."""
    data = (VISION / f"{name}.dialog.bin").read_bytes()
    at = 4

    def number():
        nonlocal at
        at += 4
        return struct.unpack_from("<I", data, at - 4)[0]

    def text():
        nonlocal at
        n = number()
        at += n
        return data[at - n:at].decode()

    n = number()
    at += 12 * n
    question, _ = text(), text()
    n = number()
    at += 4 * n
    n = number()
    return question, struct.unpack_from(f"<{n}i", data, at)


class Images(Case):
    def setUp(self):
        super().setUp()
        self.photo = bmp(self.folder / "photo.bmp")
        self.other = bmp(self.folder / "other.bmp", 40, 80, 2)

    def ask(self, *args, code=0, model=MODEL, **more):
        return self.json(*SEE, *args, model=model, code=code, **more)

    def test_answer_is_that_of_transformers(self):
        question, answer = dialog()
        marks = [f"{i}-inf" for i in (0, 1, 2, 96, 97, 98, 99)]
        out = self.ask("--image", self.photo, "-p", question, "-n", len(answer), "--chat-template", "chatml", "--f32-activations",
                       *(word for mark in marks for word in ("-l", mark)))
        self.assertEqual(tuple(out["tokens"]), answer)
        self.assertEqual((out["media"]["read"], out["media"]["encoded"], out["media"]["tokens"]), (1, 1, 12))

    def test_question_in_the_models_own_template(self):
        one = self.ask("--image", self.photo, "-p", "Why?", "-n", "6", "--ignore-eos")
        raw = ("<|im_start|>system\nYou help people.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Why?<|im_end|>\n"
               "<|im_start|>assistant\n")
        self.assertEqual(self.ask("--image", self.photo, "-no-cnv", "-p", raw, "--no-escape", "-n", "6", "--ignore-eos")["tokens"], one["tokens"])
        self.assertEqual(self.ask("--image", self.photo, "--chat", "-p", "Why?", "-n", "6", "--ignore-eos")["tokens"], one["tokens"])
        another = self.ask("--image", self.other, "-p", "Why?", "-n", "6", "--ignore-eos")
        self.assertNotEqual(another["tokens"], one["tokens"])
        both = self.ask("--image", self.photo, "--image", self.photo, "-p", "Why?", "-n", "1", "--ignore-eos")
        self.assertEqual((both["media"]["read"], both["media"]["encoded"], both["media"]["encoded_before"]), (2, 1, 1))
        self.assertEqual(both["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"] + 2 + 12)
        before = self.ask("--image", self.photo, "-no-cnv", "-p", "Why?", "-n", "6", "--ignore-eos")
        placed = self.ask("--image", self.photo, "-no-cnv", "-p", "<|vision_start|><|image_pad|><|vision_end|>Why?", "-n", "6", "--ignore-eos")
        self.assertEqual(before["tokens"], placed["tokens"])

    def test_budget_does_not_change_the_answer(self):
        asked = ["--image", self.photo, "--image", self.other, "-p", "Why?", "-n", "8", "--ignore-eos"]
        expected = self.ask(*asked)["tokens"]
        for budget in ["40K", "100K", "400K", "4M"]:
            with self.subTest(budget=budget):
                args = [a for a in SEE if a not in ("--device", "none")]
                out = self.json(*args, *asked, "--device", "sim", "--vram", budget, model=MODEL)
                self.assertEqual(out["tokens"], expected)
                self.assertLessEqual(out["memory"]["vram_peak_bytes"], out["memory"]["vram_budget_bytes"])

    def test_what_is_said(self):
        result = run("-m", MODEL, *SEE, "--image", self.photo, "-p", "Why?", "-n", "4", "--temp", "0", "--stats")
        self.check(result, 0, "photo.bmp: 32 x 24 pixels as the model sees it, 12 tokens", "qwen2vl_merger", "images are encoded on the CPU",
                   "images               1 decoded and resized in", "encoded              1 in ", "12 tokens of the prompt")
        quiet = run("-m", MODEL, *SEE, "--image", self.photo, "-p", "Why?", "-n", "4", "--temp", "0", "--log-disable")
        self.assertEqual((quiet.returncode, quiet.stderr), (0, b""))
        self.assertEqual(quiet.stdout, result.stdout)
        free = run("-m", MODEL, "--mmproj", PROJECTOR, "--image", self.photo, "-p", "Why?", "-n", "1", "--device", "none")
        self.check(free, 0, "--image-min-tokens 1024")

    def test_trace_has_the_encoder(self):
        file = self.folder / "trace.json"
        first, second = bmp(self.folder / "first.bmp", 16, 16), bmp(self.folder / "second.bmp", 16, 24)
        for device in (["none"], ["sim", "--vram", "900K"]):
            args = [*SEE[:-1], *device, "--image", first, "--image", second, "-p", "Why?", "-n", "3", "--ignore-eos"]
            expected = self.json(*args, model=MODEL)["tokens"]
            self.assertEqual(self.json(*args, "--trace", file, model=MODEL)["tokens"], expected)
            events = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
            steps = {e["name"]: e for e in events if e["cat"] == "step"}
            self.assertEqual(list(steps)[0], "images and videos")
            self.assertTrue(list(steps)[1].startswith("prompt, "))
            seen = [e for e in events if e["name"].startswith("encoder layer 0: run")]
            self.assertEqual([e["name"] for e in seen], ["encoder layer 0: run attention", "encoder layer 0: run ffn"])  # both images at once
            whole = steps["images and videos"]
            for e in seen:
                self.assertTrue(whole["ts"] <= e["ts"] and e["ts"] + e["dur"] <= whole["ts"] + whole["dur"] + 1)
            self.assertTrue(any(e["name"] == "run attention" for e in events))

    def test_mistakes(self):
        for args, message in [
            (["--image", self.photo, "-p", "a"], "--mmproj"),
            (["--video", self.folder, "-p", "a"], "--mmproj"),
            (["--mmproj", "", "-p", "a"], "--mmproj"),
            (["--mmproj", PROJECTOR, "--image-min-tokens", "20", "--image-max-tokens", "16", "-p", "a"], "more than --image-max-tokens 16"),
            (["--mmproj", PROJECTOR, "--image-max-tokens", "-1", "-p", "a"], "-1"),
            ([*SEE, "--video-fps", "0", "-p", "a"], "0"),
            ([*SEE, "--video-frames", "0", "-p", "a"], "0"),
            ([*SEE, "--image", self.photo, "-no-cnv", "-sys", "b", "-p", "a"], "--chat"),
        ]:
            with self.subTest(args=args):
                self.assertEqual(self.check(run("-m", MODEL, *args), 2, message), b"")

    def test_refused_before_anything_is_loaded(self):
        broken = self.folder / "broken.png"
        broken.write_bytes(b"\x89PNG\r\n\x1a\nno more")
        words = self.folder / "words.jpg"
        words.write_text("no image")
        thin = bmp(self.folder / "thin.bmp", 2010, 10)
        for args, code, messages in [
            (["--image", self.folder / "none.jpg"], 3, ["none.jpg: no such file"]),
            (["--image", words], 3, ["words.jpg: not an image"]),
            (["--image", self.folder], 3, ["directory"]),
            (["--image", thin], 4, ["thin.bmp: ", "2010 x 10"]),
            (["--video", self.folder / "none"], None, ["none"]),
        ]:
            with self.subTest(args=args):
                result = run("-m", MODEL, *SEE, *args, "-p", "a")
                self.assertEqual(self.check(result, code if code is not None else result.returncode, *messages), b"")
                self.assertIn(result.returncode, (3, 4))
        self.assertIn(run("-m", MODEL, *SEE, "--image", broken, "-p", "a").returncode, (3, 4))

    def test_projectors_that_do_not_fit(self):
        three = VISION / "qwen3vl.mmproj.f16.gguf"
        asked = ["--image", self.photo, "-p", "a", "-n", "1", "--device", "none"]
        self.check(run("-m", MODEL, "--mmproj", three, *asked), 4, "2 layers", "takes 0", "not of one model")
        self.check(run("-m", TINY, "--mmproj", PROJECTOR, *asked), 4, "architecture llama reads text only")
        self.check(run("-m", MODEL, "--mmproj", MODEL, *asked), 4, "no projector of images")
        self.check(run("-m", MODEL, "--mmproj", self.folder / "none.gguf", *asked), 3, "none.gguf")
        cut = self.folder / "cut.gguf"
        cut.write_bytes(PROJECTOR.read_bytes()[:-1000])
        self.check(run("-m", MODEL, "--mmproj", cut, *asked), 3, "truncated")
        wide = self.folder / "wide.gguf"
        data = PROJECTOR.read_bytes()
        key = b"clip.vision.projection_dim" + struct.pack("<II", 4, 32)
        self.assertEqual(data.count(key), 1)
        data = data.replace(key, key[:-4] + struct.pack("<I", 16))
        for name in (b"mm.2.weight" + struct.pack("<IQQ", 2, 128, 32), b"mm.2.bias" + struct.pack("<IQ", 1, 32)):
            self.assertEqual(data.count(name), 1)
            data = data.replace(name, name[:-8] + struct.pack("<Q", 16))
        wide.write_bytes(data[:-64])  # half of the last tensor
        self.check(run("-m", MODEL, "--mmproj", wide, *asked), 4, "vectors of 16 numbers", "has 32")

    def test_too_many_tokens(self):
        images = [word for _ in range(40) for word in ("--image", self.photo)]
        out = self.check(run("-m", MODEL, *SEE, *images, "-p", "a"), 5, "480 of them of images or videos", "the context 400", "--image-max-tokens")
        self.assertEqual(out, b"")
        out = self.ask("--image", self.photo, "-p", "a" * 500, code=5)
        self.assertEqual(out["error"]["code"], "over_budget")

    def test_image_max_tokens_holds(self):
        see = ["--mmproj", PROJECTOR, "-c", "400", "--device", "none"]
        for name, width, height in [("small", 24, 16), ("thin", 1990, 10), ("photo", 60, 44), ("tall", 9, 1200)]:
            image = bmp(self.folder / f"{name}.bmp", width, height)
            for most in (1, 7, 16, 20):
                with self.subTest(image=name, most=most):
                    out = self.json(*see, "--image-max-tokens", most, "--image", image, "-p", "a", "-n", "1", "--ignore-eos", model=MODEL)
                    self.assertIn(out["media"]["tokens"], range(1, most + 1))
        out = self.check(run("-m", MODEL, *see, "--image-min-tokens", "400000", "--image", image, "-p", "a"), 5, "1048576 can be encoded", "--image-max-tokens")
        self.assertEqual(out, b"")
        film = frames(self.folder / "film", range(8))
        for name in ["qwen2vl", "qwen25vl", "qwen3vl"]:
            with self.subTest(film=name):
                see[1] = VISION / f"{name}.mmproj.f16.gguf"
                out = self.json(*see, "--image-max-tokens", "16", "--video", film, "-p", "a", "-n", "1", "--ignore-eos", model=VISION / f"{name}.f16.gguf")
                self.assertIn(out["media"]["tokens"], range(4, 4 * 16 + 1))

    def test_image_without_words(self):
        short = ["-n", "3", "--ignore-eos"]
        mark = "<|vision_start|><|image_pad|><|vision_end|>"
        raw = self.ask("--image", self.photo, "-no-cnv", "-p", "", *short)
        self.assertEqual(raw["tokens"], self.ask("--image", self.photo, "-no-cnv", "-p", mark, *short)["tokens"])
        question = self.ask("--image", self.photo, "--chat", "-p", "", *short)
        asked = f"<|im_start|>system\nYou help people.<|im_end|>\n<|im_start|>user\n{mark}<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(question["tokens"], self.ask("--image", self.photo, "-no-cnv", "-p", asked, "--no-escape", *short)["tokens"])
        for mode in ["-no-cnv", "--chat"]:
            self.check(run("-m", MODEL, *SEE, mode, "-p", "", *short), 2, "is empty")

    def test_marks_and_images_of_other_numbers(self):
        ask = ["-m", MODEL, *SEE, "--image", self.photo, "-no-cnv", "-p"]
        self.check(run(*ask, "<|image_pad|><|image_pad|>"), 2, "the prompt has <|image_pad|> 2 times for 1 image")
        self.check(run(*ask, "<|image_pad|><|video_pad|>"), 2, "<|video_pad|> 1 time for 0 videos")
        self.check(run(*ask, "<|video_pad|>"), 2, "<|image_pad|> 0 times for 1 image")
        text = self.text(*SEE, "-no-cnv", "-p", "<|image_pad|>a", "-n", "2", "--ignore-eos", model=MODEL)  # a token as any other
        self.assertTrue(text)

    def test_marks_that_a_user_writes_are_words(self):
        short = ["-n", "1", "--ignore-eos"]
        for name in ["qwen2vl", "qwen3vl"]:
            see = ["--mmproj", VISION / f"{name}.mmproj.f16.gguf", *SEE[2:]]
            model = VISION / f"{name}.f16.gguf"
            for mark in ["<|image_pad|>", "<|video_pad|>"]:
                with self.subTest(model=name, mark=mark):
                    plain = self.json(*see, "--image", self.photo, "-p", "What is a b?", *short, model=model)
                    asked = self.json(*see, "--image", self.photo, "-p", f"What is a {mark} b?", *short, model=model)
                    self.assertEqual((asked["media"]["encoded"], asked["media"]["tokens"]), (1, plain["media"]["tokens"]))
                    self.assertGreater(asked["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"] + 5)
                    lines = f"a {mark} b\n/image {self.photo}\nWhat?\n".encode()
                    self.check(run("-m", model, *see, "-cnv", *short, "--temp", "0", stdin=lines), 0)

    def test_template_without_images(self):
        for template in ["{% for m in messages %}{{ m.role + m.content }}{% endfor %}", "{% for m in messages %}{{ m.role }}{% endfor %}"]:
            result = run("-m", MODEL, *SEE, "--image", self.photo, "-p", "a", "--chat-template", template)
            self.check(result, 4, "knows no images", "--chat-template chatml")

    def test_session(self):
        file = self.folder / "state"
        first = self.ask("--image", self.photo, "-no-cnv", "-p", "Why?", "-n", "4", "--ignore-eos", "--session", file)
        self.assertEqual(first["media"]["encoded"], 1)
        again = self.ask("-no-cnv", "-p", " And", "-n", "4", "--ignore-eos", "--session", file)
        self.assertNotIn("media", again)
        self.assertGreater(again["usage"]["reused_tokens"], 12)
        more = self.ask("--image", self.other, "-no-cnv", "-p", " That", "-n", "4", "--ignore-eos", "--session", file)
        self.assertEqual(more["media"]["encoded"], 1)
        # Without a projector words go on, too.
        words = self.json("-c", "400", "--device", "none", "-no-cnv", "-p", " so", "-n", "2", "--ignore-eos", "--session", file, model=MODEL)
        self.assertGreater(words["usage"]["reused_tokens"], 24)
        cache = self.folder / "cache"
        asked = ["-p", "Why?", "-n", "4", "--ignore-eos", "--prompt-cache", cache]
        one = self.ask("--image", self.photo, *asked)
        same = self.ask("--image", self.photo, *asked)
        self.assertEqual((same["tokens"], same["usage"]["reused_tokens"]), (one["tokens"], one["usage"]["prompt_tokens"] - 1))
        other = self.ask("--image", bmp(self.folder / "third.bmp", kind=3), *asked)
        self.assertLess(other["usage"]["reused_tokens"], one["usage"]["prompt_tokens"] - 12)

    def test_another_projector_of_the_same_name(self):
        data = bytearray(PROJECTOR.read_bytes())
        for at in range(len(data) // 2 | 1, len(data), 2):
            data[at] ^= 128  # signs of half numbers
        tuned = self.folder / "tuned.gguf"
        tuned.write_bytes(data)
        cache = self.folder / "cache"
        asked = ["--image", self.photo, "-p", "Why?", "-n", "2", "--ignore-eos", "-c", "400", "--device", "none"]
        self.json("--mmproj", PROJECTOR, *asked, "--prompt-cache", cache, model=MODEL)
        other = self.json("--mmproj", tuned, *asked, "--prompt-cache", cache, model=MODEL)
        self.assertEqual(other["media"]["encoded"], 1)
        self.assertEqual(other["tokens"], self.json("--mmproj", tuned, *asked, model=MODEL)["tokens"])

    def test_example(self):
        from support import program
        import subprocess
        from pathlib import Path
        path = Path(program()).parent / "vlm"
        if not path.exists():
            self.skipTest("vlm is not built")
        usage = subprocess.run([path], capture_output=True, timeout=300)
        self.assertEqual((usage.returncode, usage.stdout), (2, b""))
        self.assertIn(b"usage: vlm", usage.stderr)
        result = subprocess.run([path, MODEL, PROJECTOR, self.photo, "Why?", "4M"], capture_output=True, timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout)
        missing = subprocess.run([path, MODEL, PROJECTOR, self.folder / "none.png", "Why?"], capture_output=True, timeout=300)
        self.assertEqual(missing.returncode, 1)


class ImagesInConversations(Case):
    TALK = ["-m", MODEL, *SEE, "--temp", "0", "-n", "5", "--ignore-eos", "-cnv"]

    def setUp(self):
        super().setUp()
        self.photo = bmp(self.folder / "photo.bmp")
        self.other = bmp(self.folder / "other.bmp", 40, 80, 2)

    def kept_messages(self):
        return json.loads((self.folder / "kept.json").read_text())["messages"]

    def messages_at_end(self, terminal):
        """Ends a conversation; what was said in it."""
        terminal.say("/save " + str(self.folder / "kept"))
        terminal.expect("kept in")
        terminal.say("/quit")
        self.assertEqual(terminal.end(), 0)
        return self.kept_messages()

    def test_images_in_later_turns(self):
        lines = f"Hi\n/image {self.photo}\nWhat?\n/image {self.other}\n/image {self.photo}\nAnd?\nSo?\n".encode()
        result = run(*self.TALK, "--stats", stdin=lines)
        self.check(result, 0, "it comes with the next message", "2 of them come with the next message")
        err = result.stderr.decode()
        self.assertEqual(re.findall(r"encoded +(\d) in", err), ["1", "1"])
        self.assertEqual(err.count("; 1 more had been"), 1)
        self.assertEqual(err.count("more were there already"), 3)
        # Its first message's image from the command line.
        a = run(*self.TALK, "--image", self.photo, stdin=b"What?\n").stdout
        b = run(*self.TALK, stdin=f"/image {self.photo}\nWhat?\n".encode()).stdout
        self.assertEqual(a, b)
        words = b"Why?\nHow?\nWho?\n"
        self.assertNotEqual(run(*self.TALK, "--image", self.photo, stdin=words).stdout, run(*self.TALK, stdin=words).stdout)

    def test_clear_forgets_what_was_attached(self):
        expected = run(*self.TALK, stdin=b"What?\n").stdout
        self.assertEqual(run(*self.TALK, stdin=f"/image {self.photo}\n/clear\nWhat?\n".encode()).stdout, expected)

    def test_errors(self):
        self.check(run(*self.TALK, stdin=b"/image\n"), 0, "/image needs a file")
        self.check(run(*self.TALK, stdin=f"/image {self.folder}/none.png\n".encode()), 3, "none.png")
        self.check(run("-m", MODEL, "-cnv", stdin=f"/image {self.photo}\n".encode()), 2, "--mmproj")

    def test_at_a_terminal_mistakes_are_told(self):
        terminal = Terminal(self, *self.TALK, "--simple-io")
        terminal.say(f"/image {self.folder}/none.png")
        terminal.expect("error: ")
        terminal.say(f"/image {self.photo}")
        terminal.expect("it comes with the next message")
        terminal.say("What?")
        terminal.prompt()
        terminal.type("/quit\r")
        self.assertEqual(terminal.end(), 0)

    def test_ctrl_c_stops_the_reading_of_a_video(self):
        film = frames(self.folder / "film", range(4))
        os.truncate(film / "2.bmp", 1 << 38)  # takes minutes to hash, and no room
        terminal = Terminal(self, *self.TALK, "--simple-io")
        for _ in range(2):
            terminal.say(f"/video {film}")
            terminal.wait_until_it_reads(film / "2.bmp")
            terminal.type("\x03")
            terminal.expect("(stopped)")
        terminal.say(f"/image {self.photo}")
        terminal.expect("it comes with the next message")
        terminal.say("/save " + str(self.folder / "kept"))
        terminal.say("Hi")
        terminal.say("/stats")
        terminal.expect("1 decoded and resized in")
        terminal.say("/quit")
        self.assertEqual(terminal.end(), 0)

    def test_ctrl_c_while_a_video_is_encoded(self):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        side = 3000
        png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
        png += chunk(b"IDAT", zlib.compress(bytes((side + 1) * side))) + chunk(b"IEND", b"")
        film = self.folder / "film"
        film.mkdir()
        (self.folder / "frame.png").write_bytes(png)
        for i in range(700):
            (film / f"{i}.png").symlink_to(self.folder / "frame.png")
        talk = [*self.TALK, "--simple-io", "--video-frames", "700"]
        talk[talk.index("400")] = "20000"
        terminal = Terminal(self, *talk)
        terminal.say(f"/video {film}")
        terminal.expect(re.compile(rb"it comes with|error: [^\n]*\n"))
        if b"libpng" in terminal.shown:
            self.skipTest("no PNG")
        terminal.say("What?")
        terminal.wait_until_it_reads(self.folder / "frame.png")
        terminal.type("\x03")
        terminal.expect("(stopped before the answer began)")
        terminal.expect("and the image or video that came with it)")
        terminal.say("Hi")
        self.assertEqual(self.messages_at_end(terminal)[0]["content"], "Hi")

    def test_what_cannot_be_used_does_not_come_with_later_messages(self):
        small = ["110" if word == "400" else word for word in self.TALK]
        large = bmp(self.folder / "large.bmp", 200, 200)
        small[small.index("16")] = "100"
        terminal = Terminal(self, *small, "--simple-io", "--image", large)
        terminal.say("What?")
        terminal.expect("nothing was cut")
        terminal.expect("(the message is forgotten, and the image or video that came with it)")
        for i in range(2):
            terminal.say(f"/image {large}")
            terminal.expect("it comes with" if i == 0 else "2 of them come with")
        terminal.say("And?")
        terminal.expect("and the 2 images and videos that came with it)")
        terminal.say("Hi")
        messages = self.messages_at_end(terminal)
        self.assertEqual([m["role"] for m in messages], ["user", "assistant"])
        self.assertEqual(messages[0]["content"], "Hi")

    def test_kept_between_runs(self):
        keep = self.folder / "kept"
        both = run(*self.TALK, stdin=f"/image {self.photo}\nWhat?\nAnd?\n".encode()).stdout
        first = run(*self.TALK, stdin=f"/image {self.photo}\nWhat?\n/save {keep}\n".encode()).stdout
        messages = self.kept_messages()
        self.assertEqual([part["type"] for part in messages[0]["content"]], ["image", "text"])
        self.assertEqual(messages[0]["content"][0]["file"], str(self.photo))
        second = run(*self.TALK, "--stats", stdin=f"/load {keep}\nAnd?\n".encode())
        self.check(second, 0, "more were there already")
        self.assertEqual(first + second.stdout, both)
        self.assertNotIn(b"\nencoded ", second.stderr)
        # The photo is not looked at again while its keys and values are there; where they are not, it must be the same.
        bmp(self.photo, kind=3)
        self.assertEqual(run(*self.TALK, stdin=f"/load {keep}\nAnd?\n".encode()).stdout, second.stdout)
        changed = run(*self.TALK, stdin=f"/load {keep}\nAnd?\n".encode().replace(b"/load", b"/image %s\n/load" % os.fsencode(self.photo)))
        self.check(changed, 0)
        shutil.copy(self.folder / "kept.json", self.folder / "moved.json")
        run(*self.TALK, stdin=f"Else\n/save {self.folder}/else\n".encode())
        shutil.copy(self.folder / "else", self.folder / "moved")
        self.check(run(*self.TALK, stdin=f"/load {self.folder}/moved\nAnd?\n".encode()), 3, "photo.bmp: is not what it was")
        self.check(run("-m", MODEL, "-c", "400", "--device", "none", "-cnv", stdin=f"/load {keep}\n".encode()), 2, "--mmproj")
        broken = self.folder / "kept.json"
        for old, new in [('"grid": [', '"grid": [9, '), ('"hashes": [', '"hashes": ["x",'), ('"type": "image"', '"type": "video"')]:
            text = (self.folder / "moved.json").read_text()
            self.assertIn(old, text)
            broken.write_text(text.replace(old, new))
            self.check(run(*self.TALK, stdin=f"/load {keep}\n".encode()), 3, "no messages of a conversation")

    def test_kept_media_are_read_again_as_they_were(self):
        film = frames(self.folder / "film", range(8), 48, 40)
        file, other = self.folder / "state", self.folder / "other"
        plain = ["-m", MODEL, "--mmproj", PROJECTOR, "-c", "400", "--device", "none", "--temp", "0", "-n", "5", "--ignore-eos", "-cnv"]
        self.check(run(*self.TALK, "--session", other, stdin=b"Words\n"), 0)
        first = [*self.TALK, "--session", file, "--video", film, "--video-frames", "4", "--video-fps", "1.5", "--image", self.photo]
        self.check(run(*first, stdin=b"What?\n"), 0)
        parts = json.loads((self.folder / "state.json").read_text())["messages"][0]["content"]
        self.assertEqual([(p["type"], p.get("frames"), p.get("frames_per_second")) for p in parts],
                         [("image", None, None), ("video", 4, 1.5), ("text", None, None)])
        for i, options in enumerate([[], ["--video-fps", "1"], ["--video-frames", "8"], ["--image-max-tokens", "9"], ["--image-min-tokens", "30"]]):
            with self.subTest(options=options):
                if i % 2 == 0:
                    shutil.copy(other, file)  # so that all of them must be seen again
                again = run(*plain, *options, "--session", file, "--stats", stdin=b"And?\n")
                self.check(again, 0, "more were there already")
                self.assertEqual(re.findall(r"encoded +(\d) in", again.stderr.decode()), ["3"] if i % 2 == 0 else [])
                kept = json.loads((self.folder / "state.json").read_text())["messages"]
                self.assertEqual((kept[0]["content"], len(kept)), (parts, 2 * i + 4))
        shutil.copy(other, file)
        self.check(run(*plain, "--image-max-tokens", "4", "--session", file, stdin=b"And?\n"), 5, "photo.bmp: ", "32 x 24 pixels, 12 tokens", "room for 4",
                   "--image-max-tokens 16 gives more")
        text = (self.folder / "state.json").read_text()  # of before limits were kept: this run's hold, and the sizes tell
        (self.folder / "state.json").write_text(text.replace('"max_tokens"', '"other"').replace('"min_tokens"', '"another"'))
        self.check(run(*plain, "--image-max-tokens", "9", "--session", file, stdin=b"And?\n"), 3, "photo.bmp: is not what it was", "of 32 x 24 pixels, now ")
        (self.folder / "state.json").write_text(text)
        bmp(self.photo, 24, 60)
        self.check(run(*plain, "--session", file, stdin=b"And?\n"), 3, "photo.bmp: is not what it was", "of 32 x 24 pixels, now 16 x 48")

    def test_another_answer_that_fails_leaves_the_old_one(self):
        file = self.folder / "state"
        self.check(run(*self.TALK, "--session", file, "--image", self.photo, stdin=b"What?\n"), 0)
        messages = (self.folder / "state.json").read_text()
        other = self.folder / "other"
        self.check(run(*self.TALK, "--session", other, stdin=b"Words\n"), 0)
        shutil.copy(other, file)  # so that the photo must be seen again
        bmp(self.photo, kind=3)
        self.check(run(*self.TALK, "--session", file, stdin=b"/regen\n"), 3, "photo.bmp: is not what it was")
        self.assertEqual((self.folder / "state.json").read_text(), messages)

    def test_prefix_instead_of_a_template(self):
        marked = run(*self.TALK, "-st", "--in-prefix", "Q: ", "--in-suffix", r"\nA:", "--image", self.photo, stdin=b"hi\n").stdout
        raw = self.text(*SEE, "--image", self.photo, "-no-cnv", "-p", r"Q: <|vision_start|><|image_pad|><|vision_end|>hi\nA:", "-n", "5", "--ignore-eos",
                        "--no-display-prompt", model=MODEL)
        self.assertEqual(marked, raw)

    def test_context_shift_drops_images_with_their_turns(self):
        lines = f"/image {self.photo}\nmessage\n".encode() * 6
        small = ["150" if word == "400" else word for word in self.TALK] + ["--context-shift"]
        self.check(run(*small, stdin=lines), 0, "messages were forgotten, as --context-shift says")


class Videos(Case):
    def setUp(self):
        super().setUp()
        self.film = frames(self.folder / "film", range(1, 9), 48, 40)

    def test_folder(self):
        for name in ["qwen2vl", "qwen25vl", "qwen3vl"]:
            with self.subTest(model=name):
                model = VISION / f"{name}.f16.gguf"
                see = ["--mmproj", VISION / f"{name}.mmproj.f16.gguf", "--image-min-tokens", "1", "--image-max-tokens", "9", "-c", "400", "--device", "none"]
                out = self.json(*see, "--video", self.film, "-p", "What?", "-n", "4", "--ignore-eos", model=model)
                self.assertEqual((out["media"]["read"], out["media"]["encoded"]), (1, 4))
                fewer = self.json(*see, "--video", self.film, "--video-frames", "4", "-p", "What?", "-n", "4", "--ignore-eos", model=model)
                self.assertEqual(fewer["media"]["encoded"], 2)
                result = run("-m", model, *see, "--video", self.film, "-p", "What?", "-n", "1")
                self.check(result, 0, "4 steps of 2 frames")

    def test_long_video_goes_on_where_it_was(self):
        film = frames(self.folder / "long", [i % 7 for i in range(120)])
        see = [*SEE[:-4], "-c", "1600", "--device", "none", "--ignore-eos", "--logprobs", "1"]
        asked = ["--video", film, "--video-frames", "120", "-p", "What happens?"]
        whole = self.json(*see, *asked, "-n", "6", model=MODEL)
        file = self.folder / "state"
        for n in ("0", "2"):
            file.unlink(missing_ok=True)
            self.json(*see, *asked, "-n", n, "--session", file, model=MODEL)
            rest = self.json(*see, "-n", str(6 - int(n)), "--session", file, model=MODEL)
            self.assertEqual(rest["logprobs"], whole["logprobs"][int(n):])

    def test_refusals(self):
        empty = self.folder / "empty"
        empty.mkdir()
        args = ["-m", MODEL, *SEE, "-p", "a", "--video"]
        self.check(run(*args, empty), 3, "holds no frames")
        self.check(run(*args, self.film, "--video-frames", "50"), 4, "8 frames", "50")
        bmp(self.film / "2.bmp", 40, 40)
        self.check(run(*args, self.film), 3, "2.bmp", "40 x 40", "48 x 40")
        self.assertIn(run(*args, self.folder / "none.mp4").returncode, (3, 4))

    def test_file(self):
        film = DATA / "vision_prompt" / "film.mkv"
        result = run("-m", MODEL, *SEE, "--video", film, "--video-frames", "6", "-p", "What?", "-n", "2", "--temp", "0")
        if b"built without FFmpeg" in result.stderr:
            self.check(result, 4, "libavformat-dev")
            self.skipTest("no FFmpeg")
        self.check(result, 0, "3 steps of 2 frames")
        folder = frames(self.folder / "same", (0, 2, 4, 6, 8, 10))
        same = run("-m", MODEL, *SEE, "--video", folder, "--video-frames", "6", "-p", "What?", "-n", "2", "--temp", "0")
        self.assertEqual(same.stdout, result.stdout)
