"""The texts of the tokeniser fixture: about 2,500 varied strings, the same on every run."""
import random
import unicodedata

SCRIPTS = {
    "latin": (0x41, 0x24F), "ipa": (0x250, 0x2AF), "greek": (0x370, 0x3FF), "cyrillic": (0x400, 0x52F), "armenian": (0x531, 0x587),
    "hebrew": (0x5D0, 0x5EA), "arabic": (0x620, 0x6D3), "syriac": (0x710, 0x74A), "devanagari": (0x904, 0x963), "bengali": (0x985, 0x9E3),
    "tamil": (0xB85, 0xBCD), "telugu": (0xC05, 0xC4D), "thai": (0xE01, 0xE4E), "lao": (0xE81, 0xECD), "tibetan": (0xF40, 0xFBC),
    "georgian": (0x10A0, 0x10FF), "hangul jamo": (0x1100, 0x11FF), "ethiopic": (0x1200, 0x137F), "cherokee": (0x13A0, 0x13FD),
    "khmer": (0x1780, 0x17D3), "mongolian": (0x1820, 0x1877), "greek extended": (0x1F00, 0x1FFE), "hiragana": (0x3041, 0x3096),
    "katakana": (0x30A1, 0x30FA), "bopomofo": (0x3105, 0x312F), "han": (0x4E00, 0x9FA5), "hangul": (0xAC00, 0xD7A3),
    "full width": (0xFF01, 0xFF5E), "deseret": (0x10400, 0x1044F), "gothic": (0x10330, 0x1034A), "mathematical": (0x1D400, 0x1D7FF),
    "han extension": (0x20000, 0x20200), "osage": (0x104B0, 0x104FB), "adlam": (0x1E900, 0x1E943),
}
BLANKS = [" ", "\t", "\n", "\r", "\r\n", "\v", "\f", "\x85", "\xa0", "\u1680", "\u2002", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f",
          "\u205f", "\u3000"]
NO_BLANKS = ["\u200b", "\u180e", "\ufeff", "\u2060", "\xad", "\u200e"]  # invisible, but not White_Space
WORDS = ("the of and to in is it you that was for on are with as his they be at one have this from hot word but what some we can out "
         "other were all there when up use your how said each she which do their time if will way about many then them write would like "
         "tokenization unbelievable internationalization Straße naïve café fiancé jalapeño Ångström Łódź İstanbul").split()
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇫🇷", "❤️", "🧑🏿‍🚀", "1️⃣", "☠️", "🫠", "🤷🏻‍♀️", "🀄", "👩‍❤️‍💋‍👨", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'Ve", "'M", "'lL", "'D", "'ſ", "’s", "’ll", "'x", "''s"]
CODE = [
    "def f(x: int) -> int:\n    return x ** 2  # squared\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\n",
    "#include <vector>\nstd::vector<std::pair<int, float>> v{{1, 2.5f}};", "SELECT * FROM t WHERE id >= 10 AND name LIKE '%foo%';",
    "<div class=\"a-b\"><p>Text &amp; more</p></div>", "{\"key\": [1, 2.0, null, true], \"nested\": {\"a\": \"b\\n\"}}",
    "$ git commit -m 'fix: bug #42' && git push --force-with-lease", "let x = async () => { await fetch(`${url}/api?q=${q}`); };",
    "fn main() { println!(\"{:?}\", vec![1u8; 0x10]); }", "\\begin{equation}\n  \\frac{1}{2}\\sum_{i=1}^{n} x_i^2\n\\end{equation}",
    "if [[ -n \"$FOO\" ]]; then echo \"${FOO%%.*}\"; fi", "x86_64-linux-gnu/libfoo.so.1.2.3", "a+=b-=c*=d/=e%=f<<=g>>=h&=i|=j^=k",
]
URLS = ["https://example.com/a/b-c_d?x=1&y=%20#frag", "user.name+tag@mail.example.org", "ftp://192.168.0.1:2121/~user/file.tar.gz",
        "www.Example.co.uk/index.html", "file:///C:/Users/x%20y/doc.pdf", "doi:10.1000/182"]


def assigned(low: int, high: int) -> list[str]:
    return [chr(c) for c in range(low, high + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


def make_texts(seed: int = 20250607) -> list[str]:
    r = random.Random(seed)
    letters = {name: assigned(*span) for name, span in SCRIPTS.items()}
    everything = [c for span in ((0, 0x2FFF), (0x3000, 0x33FF), (0xA000, 0xABFF), (0xF900, 0xFFFD), (0x10000, 0x103FF), (0x1D000, 0x1FAFF))
                  for c in assigned(*span)]
    marks = [c for c in assigned(0x300, 0x36F)] + list("\u093c\u094d\u0bcd\u0e31\u05b0\u064b\u20e3\ufe0f\u0f71")
    numerals = [c for c in everything if unicodedata.category(c)[0] == "N"]

    def word(script: str | None = None) -> str:
        if script is None:
            return r.choice(WORDS)
        return "".join(r.choices(letters[script], k=r.randint(1, 9)))

    def case(text: str) -> str:
        return r.choice([text, text, text.upper(), text.lower(), text.title(), text.swapcase()])

    def sentence(script: str | None = None) -> str:
        return "".join(case(word(script)) + r.choice([" ", " ", " ", " ", ", ", ". ", "-", "? ", "; ", "  "]) for _ in range(r.randint(1, 14)))

    texts = ["", " ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", " \n ", "a", " a", "a ", "\0", "\x7f", "\ufffd", "\U0010ffff", "▁", "▁▁a", "Ġ", "Ċ"]
    texts += [chr(c) for c in range(1, 256)]
    texts += BLANKS + NO_BLANKS + EMOJI + CODE + URLS + [f" {c}it{c} " for c in CONTRACTIONS]
    texts += [" " * n for n in range(4, 40)] + ["\n" * n for n in range(3, 20)] + ["x" + " " * n + "y" for n in range(2, 34)]
    texts += [" " * n + "\n" * m + "z" for n in range(4) for m in range(4)] + ["\t" * n + "x" for n in range(1, 10)]
    for script in SCRIPTS:
        texts += [sentence(script) for _ in range(16)]
        texts += [word(script) + word() + word(script) + str(r.randint(0, 99999)), " " + word(script), word(script) + "\n" + word(script)]
    for _ in range(220):
        texts.append(sentence())
        texts.append("".join(r.choice([word(), word(), " ", r.choice(CONTRACTIONS), r.choice(BLANKS)]) for _ in range(r.randint(2, 14))))
    for _ in range(160):
        texts.append("".join(r.choice(BLANKS + NO_BLANKS + [" "] * 20 + ["\n"] * 5 + ["a", "1", "."]) for _ in range(r.randint(2, 20))))
        texts.append("".join(r.choice(EMOJI + [" ", "a", "中", "\u200d", "\ufe0f"]) for _ in range(r.randint(1, 8))))
        texts.append("".join(r.choice(["a", "e", "n", "O", "क", "ก", "א", "中", " "]) + "".join(r.choices(marks, k=r.randint(0, 3)))
                     for _ in range(r.randint(1, 10))))
        texts.append(r.choice(["", "-", "+", "$", "№ "]) + r.choice([str(r.randint(0, 10**r.randint(1, 24))), f"{r.uniform(-1e6, 1e6):,.3f}",
                     "".join(r.choices(numerals, k=r.randint(1, 8))), hex(r.getrandbits(64)), f"{r.randint(1, 31)}.{r.randint(1, 12)}.1984"]))
        texts.append("".join(r.choices(everything, k=r.randint(1, 24))))
        texts.append("".join(r.choices([chr(c) for c in range(0x20, 0x7F)], k=r.randint(1, 60))))
    for _ in range(90):
        texts.append(r.choice(CODE) + r.choice(["", "\n", "  ", "\n\n\n"]) + r.choice(URLS + CODE + EMOJI))
        texts.append("".join(r.choice([word(r.choice(list(SCRIPTS))), r.choice(BLANKS), str(r.randint(0, 999)), r.choice(EMOJI), r.choice("!?.,;:()[]{}")])
                     for _ in range(r.randint(2, 16))))
    for n in (200, 500, 1000, 3000):
        texts += ["a" * n, "A" * n, "ab" * n, "!" * n, "1" * n, "é" * n, "中" * n, "😀" * (n // 4), " " * n + "x", "\n" * n, "' " * n, "<" * n]
        texts += ["".join(r.choices("abcdefghijklmnopqrstuvwxyz", k=n)), "".join(r.choices(letters["han"], k=n // 3)),
                  "".join(r.choices("aA1.\u0301 ", k=n)), "Donau" + "dampf" * (n // 5) + "schiff"]
    for _ in range(40):
        texts.append("\n".join(sentence(r.choice([None, None, *SCRIPTS])) for _ in range(r.randint(3, 9))))
    return list(dict.fromkeys(texts))
