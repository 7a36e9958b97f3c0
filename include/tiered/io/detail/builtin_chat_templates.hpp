/// Chat templates for files that have none, in the formats that are told apart by their markers.
#pragma once

#include <string_view>

namespace tiered::detail {

struct BuiltinChatTemplate {
  std::string_view name, source;
};

inline constexpr BuiltinChatTemplate builtin_chat_sources[] = {
    // With images and videos as the Qwen-VL models, which are of this family, have them.
    {"chatml",
     R"({%- for message in messages %}
  {{- "<|im_start|>" ~ message.role ~ "\n" }}
  {%- if message.content is string %}
    {{- message.content }}
  {%- else %}
    {%- for part in message.content %}
      {{- part.text if part.type == "text" else "<|vision_start|><|" ~ part.type ~ "_pad|><|vision_end|>" }}
    {%- endfor %}
  {%- endif %}
  {{- "<|im_end|>\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- "<|im_start|>assistant\n" }}
{%- endif %})"},
    // Knows no system: what it says goes in front of the first question.
    {"gemma",
     R"({%- set before = namespace(text="") %}
{{- bos_token }}
{%- for message in messages %}
  {%- if message.role == "system" %}
    {%- set before.text = before.text ~ message.content ~ "\n\n" %}
  {%- else %}
    {%- set role = "model" if message.role == "assistant" else message.role %}
    {{- "<start_of_turn>" ~ role ~ "\n" ~ before.text ~ message.content | trim ~ "<end_of_turn>\n" }}
    {%- set before.text = "" %}
  {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- "<start_of_turn>model\n" }}
{%- endif %})"},
    {"llama2",
     R"({%- set before = namespace(text="") %}
{%- for message in messages %}
  {%- if message.role == "system" %}
    {%- set before.text = "<<SYS>>\n" ~ message.content ~ "\n<</SYS>>\n\n" %}
  {%- elif message.role == "assistant" %}
    {{- " " ~ message.content | trim ~ " " ~ eos_token }}
  {%- else %}
    {{- bos_token ~ "[INST] " ~ before.text ~ message.content | trim ~ " [/INST]" }}
    {%- set before.text = "" %}
  {%- endif %}
{%- endfor %})"},
    {"llama3",
     R"({{- bos_token }}
{%- for message in messages %}
  {{- "<|start_header_id|>" ~ message.role ~ "<|end_header_id|>\n\n" ~ message.content | trim ~ "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- "<|start_header_id|>assistant<|end_header_id|>\n\n" }}
{%- endif %})"},
    // As of version 3 of its tokeniser.
    {"mistral",
     R"({%- set before = namespace(text="") %}
{{- bos_token }}
{%- for message in messages %}
  {%- if message.role == "system" %}
    {%- set before.text = message.content ~ "\n\n" %}
  {%- elif message.role == "assistant" %}
    {{- " " ~ message.content | trim ~ eos_token }}
  {%- else %}
    {{- "[INST] " ~ before.text ~ message.content ~ "[/INST]" }}
    {%- set before.text = "" %}
  {%- endif %}
{%- endfor %})"},
};

}  // namespace tiered::detail
