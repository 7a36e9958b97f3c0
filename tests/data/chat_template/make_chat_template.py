#!/usr/bin/env python3
"""Makes chat_template.bin: conversations as Jinja2 writes them by templates of the ChatML family, set up as transformers does it.

make_chat_template.py CACHE   (the folder that .ci/fetch.py fills, for the templates of SmolLM2 and Qwen2; needs gguf and jinja2)
u32 n templates, each: name, Jinja source, u32 m conversations, each: u32 k messages of role and content, u32 add_generation_prompt, text.
Texts are u32 bytes and UTF-8; integers little-endian.
"""
import pathlib
import struct
import sys

from gguf import GGUFReader
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Other spellings of the same templates, and the shape of Qwen2.5's.
SPELLINGS = {
    "plain": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "flag": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for message in messages %}"
            "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "data": "{% for message in messages %}\n<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}\n"
            "{% if add_generation_prompt %}\n<|im_start|>assistant\n{% endif %}\n",
    "lines": "{# a remark #}\n{%- for message in messages -%}\n    {% if loop.first and messages[0][\"role\"] != \"system\" %}\n"
             "        {{- \"<|im_start|>system\\nAnswer in \\\"one\\\" word.<|im_end|>\\n\" -}}\n    {%- endif %}\n"
             "    {{- \"<|im_start|>\" ~ message.role ~ \"\\n\" ~ message.content ~ \"<|im_end|>\\n\" -}}\n{%- endfor -%}\n"
             "  {% if add_generation_prompt %}\n    {{- \"<|im_start|>assistant\\n\" -}}\n  {% endif %}\n",
    "tools": "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}{{- tools | tojson }}\n    {{- '<|im_end|>\\n' }}\n{%- else %}\n"
             "    {%- if messages[0]['role'] == 'system' %}\n        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}\n"
             "    {%- else %}\n        {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}\n    {%- endif %}\n{%- endif %}\n"
             "{%- for message in messages %}\n    {%- if (message.role == \"user\") or (message.role == \"system\" and not loop.first) or "
             "(message.role == \"assistant\" and not message.tool_calls) %}\n"
             "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
             "    {%- elif message.role == \"tool\" %}\n        {{- '<tool_response>' + message.content }}\n    {%- endif %}\n{%- endfor %}\n"
             "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n",
}
CONVERSATIONS = [
    [("user", "What is gravity?")],
    [("system", "You are a pirate."), ("user", "Hello!")],
    [("user", "Hi"), ("assistant", "Hello, how can I help?"), ("user", "Tell me a joke.\n\nA long one.")],
    [("system", ""), ("user", ""), ("assistant", ""), ("user", "?")],
    [("user", "  blanks  \n"), ("assistant", "\tstay "), ("system", "a late system message"), ("user", "{{ 7 * 7 }} {% raw %} <b>&amp;</b> 'quotes' \"\\n\"")],
    [("user", "日本語と😀"), ("assistant", "<think>hm</think>ok")],
]


def template_of(path: pathlib.Path) -> str:
    return GGUFReader(path).fields["tokenizer.chat_template"].contents()


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<I", len(encoded)) + encoded


def main(cache: pathlib.Path) -> None:
    templates = {"SmolLM2": template_of(cache / "SmolLM2-135M-Instruct.Q4_1.gguf"), "Qwen2": template_of(cache / "vocab/ggml-vocab-qwen2.gguf"),
                 **SPELLINGS}
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    blob = struct.pack("<I", len(templates))
    for name, source in templates.items():
        compiled = environment.from_string(source)
        blob += text(name) + text(source) + struct.pack("<I", 2 * len(CONVERSATIONS))
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            for add in (False, True):
                blob += struct.pack("<I", len(messages)) + b"".join(text(m["role"]) + text(m["content"]) for m in messages)
                blob += struct.pack("<I", add) + text(compiled.render(messages=messages, add_generation_prompt=add, bos_token="<s>", eos_token="</s>"))
    (pathlib.Path(__file__).parent / "chat_template.bin").write_bytes(blob)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
