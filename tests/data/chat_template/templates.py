"""Chat templates of our own, in the styles of several families, and one for each construct of Jinja that templates may use."""
from conversations import CONVERSATIONS

EVERY = list(range(len(CONVERSATIONS)))

# As 2024's templates are written: one line, quoted keys, sums.
ONE_LINE = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")

# Text outside of tags, whose line ends and indents count.
DATA = """{# a remark
   of two lines #}
{% for message in messages %}
    {% if message.role == "user" -%}
    Question: {{ message.content }}
  {%- elif message.role in ["assistant", "tool"] +%}
    Answer: {{ message.content | trim }}

    {% else %}
\t{{ message["role"] | title }} says: {{- message.content -}} .
    {% endif %}
  {% raw %}{{ not a tag }} {% nor this %}{% endraw %}

{% endfor %}
{% if add_generation_prompt %}
Answer:
{%- endif %}
"""

ALTERNATING = """{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}
{%- else %}{% set system = '' %}{% set rest = messages %}{% endif -%}
{{ bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate: user, assistant, user, not ' ~ message['role'] ~ ' at ' ~ loop.index) }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- if loop.last and system %}{{ '[INST] <<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message.content + ' [/INST]' }}
        {%- else %}{{ '[INST] ' + message.content.strip() + ' [/INST]' }}{% endif %}
    {%- elif message.role == 'assistant' %}
        {%- generation %}{{ ' ' + message.content | trim + ' ' + eos_token }}{% endgeneration %}
    {%- else %}{{ raise_exception('Only user and assistant are known') }}{% endif %}
{%- endfor %}"""

HEADERS = """{{- bos_token }}
{%- if not date is defined %}{%- set date = strftime_now("%d %b %Y") %}{%- endif %}
{%- if messages[0]['role'] in ('system', 'developer') %}
    {%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date + "\\n" }}
{%- if tools is not none %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endif %}
{{- system }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message and message.tool_calls %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("One call at a time.") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}
        {{- "<|eom_id|>" if loop.nextitem is defined and loop.nextitem.role == "tool" else "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
        {{- "<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

TURNS = """{{ bos_token }}
{%- macro parts(content) -%}
    {%- if content is string -%}{{ content | trim }}{%- else -%}{%- for p in content if p.type == 'text' -%}{{ p.text }}{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(prefix='', turns=0) -%}
{%- for message in messages -%}
    {%- if message.role in ['system', 'developer'] -%}
        {%- set ns.prefix = ns.prefix ~ parts(message.content) ~ '\\n\\n' -%}
        {%- continue -%}
    {%- endif -%}
    {%- set ns.turns = ns.turns + 1 -%}
    {%- if ns.turns > 6 %}{% break %}{% endif -%}
    {%- set role = 'model' if message.role == 'assistant' else message.role -%}
    {{ '<start_of_turn>' + role + '\\n' + (ns.prefix if loop.index <= 2 else '') }}
    {{- parts(message['content']) }}{{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

REASONING = """{%- macro render_extra(json, keys) %}
    {%- for key in json if key not in keys %}{{ '<' ~ key ~ '>' ~ (json[key] | tojson | safe) ~ '</' ~ key ~ '>' }}{%- endfor %}
{%- endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif %}
    {{- "<tools>" }}
    {%- for tool in tools %}
        {%- set f = tool.function if tool.function is defined else tool %}
        {{- "\\n" ~ f.name ~ ": " ~ f.description | default('none', true) | replace('\\n', ' ') ~ render_extra(f, ['name', 'description']) }}
        {%- for name, p in (f.parameters.properties or {}) | dictsort %}
            {{- "\\n  " ~ name ~ (" (needed)" if name in f.parameters.get('required', [])) ~ ": " ~ p.type | upper }}
            {%- if p.enum is defined %}{{ " one of " ~ p.enum | map('tojson') | join('|') }}{% endif %}
        {%- endfor %}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=-1, in_tool=false) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.last < 0 and message.role == "user" and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}{%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last and (loop.last or thought) %}{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}{%- endif %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<call name="' ~ tool_call.name ~ '">' }}
            {%- for key, value in tool_call.arguments.items() %}
                {{- '<' ~ key ~ '>' ~ (value | tojson if value is mapping or (value is sequence and value is not string) else value | string) ~ '</>' }}
            {%- endfor %}
            {{- '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if not loop.last and loop.nextitem.role != "tool" or loop.last %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif message.role != "system" or not tools %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""

# A schema as types, by macros that call themselves and call blocks.
SCHEMAS = """{%- macro type(schema, depth=0) -%}
{%- set names = {'integer': 'int', 'number': 'float', "string": 'str'} -%}
{%- if schema is not mapping -%}any
{%- elif schema.enum is defined -%}{{ schema['enum'] | map('tojson') | join(" | ") }}
{%- elif schema.type == 'array' -%}list[{{ type(schema['items'], depth + 1) }}]
{%- elif schema.type == 'object' -%}{
{%- for name, inner in schema.properties.items() %}
{{ '  ' * (depth + 1) }}{{ name }}{{ '?' if name not in schema.required | d([]) }}: {{ type(inner, depth=depth + 1) }}{{ ',' if not loop.last }}
{%- endfor %}
{{ '  ' * depth }}}
{%- else -%}{{ names.get(schema.type, schema.type) }}{%- endif -%}
{%- endmacro -%}
{%- macro boxed(title='none') -%}[{{ title }}: {{ caller(title | length) }}]{%- endmacro -%}
{%- for tool in tools or [] %}{% call(n) boxed(tool.function.name) %}{{ n }} {{ type(tool.function.parameters) }}{% endcall %}
{% endfor -%}
{% filter upper | replace("A", "4") %}{% for m in messages %}{{ m.role }},{% endfor %}{% endfilter %}
{%- set block | trim %}
   {% for m in messages -%} {{ loop.revindex }}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }} {% else %}none{% endfor %}
{% endset -%}
{{ block }}{% with n = messages | length, role = messages[0].role %} {{ n }}{{ role }}{% endwith %}"""

STYLES = {"one line": ONE_LINE, "data": DATA, "alternating": ALTERNATING, "headers": HEADERS, "turns": TURNS, "reasoning": REASONING,
          "schemas": SCHEMAS}

# Each is a template; what it gives, or that it fails, is Jinja2's word.
CONSTRUCTS = r"""
{{ 1 + 2 * 3 - 4 // 3 % 2 ** 3 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 // 0.1 }} {{ 1 % 0.1 }} {{ -1 // 0.3 }} {{ 5.5 // -2 }} {{ 1e300 * 1e300 }} {{ -1e300 * 1e300 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }}
{{ 1.0 }} {{ 1e16 }} {{ 1.5e-7 }} {{ 0.0001 }} {{ 123456789012345680.0 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 100 / 3 }} {{ -0.0 }}
{{ true }} {{ none }} {{ True + 1 }} {{ [1, 'a', "it's", 'say "x"', 'both \' "', none, true, 1.0, [], {}, (), (1,)] }} {{ {'k': [1, {'n': 'v'}], 2: "\n\t\\\x01é\u3000😀"} }}
{{ 'a' 'b' "c" }} {{ 'a' ~ 1 ~ none ~ 2.5 ~ [1] ~ missing ~ 'z' }} {{ 'ab' * 3 }} {{ 2 * [1] }} {{ [1] + [2] }} {{ (1, 2) + (3,) }} {{ 'é' * 2 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 5 }} {{ 1 == 1.0 == true }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 2 in [1, 2] }} {{ 'b' not in 'abc' }} {{ 'k' in {'k': 1} }} {{ not 1 in [2] }} {{ [1] == [1.0] }} {{ {} == {} }}
{{ 1 and 0 or 'x' }} {{ '' or none or [] }} {{ not '' }} {{ not (1 and 2) }} {{ 'yes' if messages else 'no' }} {{ 'only' if false }}| {{ 1 if 0 else 2 if 0 else 3 }}
{{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-3:] }} {{ 'abcdef'[:-2:2] }} {{ [1, 2, 3, 4][::2] }} {{ [1, 2, 3][5:1:-1] }} {{ 'äöü'[1] }}{{ 'äöü'[-1] }} {{ [1, 2][9] }}| {{ (1, 2, 3)[1:] }} {{ [1,2,3,4,5][-2:0:-2] }}
{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].content | length }} {{ messages.0.role }} {{ messages[0].nothing }}| {{ messages[99] }}| {{ messages | length }}
{{ missing }}| {{ missing is defined }} {{ missing | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | d('x', boolean=True) }} {{ missing | length }} {{ missing or 1 }} {{ missing == nothing }} {{ missing in [1] }} {{ 1 in missing }} {{ missing | list }} {{ missing | join }}|
{{ missing.attribute }}
{{ missing['item'] }}
{{ missing + 1 }}
{{ 'a' + missing }}
{{ missing() }}
{{ missing < 1 }}
{{ messages[0].nothing.more }}
{{ 'a' + 1 }}
{{ 1 / 0 }}
{{ [] | first }}| {{ none.x }}| {{ 1.x }}|
{{ none | length }}
{{ {}['a'] }}| {{ {'a': 1}['a'] }} {{ {'a': 1}.a }} {{ {'items': 1}['items'] }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1, 'b': 2}.items() | list }} {{ {'a': 1}.keys() | list }} {{ {'a': 1}.values() | list }}
{{ {1: 'a', true: 'b', 1.0: 'c'} }} {{ {[1]: 2} }}
{{ [1].append(2) }}
{% set l = [] %}{% set _ = l.append(1) %}{{ l }}
{{ {'a': 1}.pop('a') }}
{% set d = {'a': 1} %}{{ d.update({'b': 2}) }}
{{ [3, 1].sort() }}
{{ ''.__class__ }}|{{ messages.__len__ }}|
{{ '  a b  '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xya'.lstrip('yx') }}|{{ 'a\n\n'.rstrip('\n') }}|{{ ' a '.lstrip() }}|{{ ' \u00a0\u3000a\u2028'.strip() }}|
{{ 'a,b,,c'.split(',') }} {{ ' a  b\tc '.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a b c'.split(none, 1) }} {{ 'a.b.c'.rsplit('.', 1) }} {{ 'a b c'.rsplit(maxsplit=1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('x') }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.find('c') }} {{ 'äbc'.find('c') }} {{ 'abc'.find('x') }} {{ 'abcb'.rfind('b') }} {{ 'banana'.count('an') }} {{ 'abc'.index('b') }} {{ 'abc'.count('') }}
{{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'abc'.replace('', '.') }} {{ ','.join(['a', 'b']) }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.py'.removesuffix('.py') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'a'.ljust(3, '.') }} {{ 'a'.rjust(3) }} {{ 'ab'.center(5, '*') }} {{ 'abc'.center(6, '*') }}
{{ 'Hello wORLD'.title() }} {{ 'hELLO'.capitalize() }} {{ 'é ß straße ΑΒΓ Привет'.upper() }} {{ 'É ΑΒΓΔ ПРИВЕТ Ё İ'[:-2].lower() }} {{ "they're bill's".title() }} {{ 'abc'.isupper() }} {{ 'ABC1'.isupper() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ ''.isalpha() }} {{ ' \n'.isspace() }} {{ 'ÄÖ'.islower() }}
{{ '{} and {}'.format(1, 'b') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x} {{}}'.format(x=[1]) }} {{ '%s is %d or %r %% %.2f' % ('a', 3, 'q', 1.5) }} {{ '%s' % 'one' }} {{ '%03d|%5.1f|%x' % (7, 2.25, 255) }} {{ '%s-%s' | format(1, none) }}
{{ 'abc'.nosuch }}| {{ 'abc'.nosuch is defined }} {{ [1].append is defined }} {{ 'abc'.strip is defined }} {{ 'abc'.strip is callable }} {{ ('abc' | attr('upper'))() }}
{{ 'abc'.nosuch() }}
{{ 'abc'.join(5) }}
{{ ' a ' | trim }}| {{ 'xax' | trim('x') }} {{ 'Abc' | upper }} {{ 'ABC' | lower }} {{ 'hello world' | capitalize }} {{ 'hello-world (foo) [bar] {baz} <x' | title }} {{ "a'b" | title }} {{ 'a-b' | replace('-', '+') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 123 | replace('2', 'x') }} {{ 'ab' | reverse }} {{ 'a b  c' | wordcount }} {{ 'ab' | center(6) }}|
{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ 'abc' | first }} {{ {'a': 1} | first }} {{ [1, 2] | length }} {{ {'a': 1} | count }} {{ 'äb' | length }} {{ 'abc' | list }} {{ {'a': 1, 'b': 2} | list }} {{ (1, 2) | list }} {{ [1, 2, 3] | reverse | list }} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 'x') | list }}
{{ [1, 'a', none] | join(', ') }} {{ messages | join('/', attribute='role') }} {{ [[1, 'x'], [2, 'y']] | join('-', 1) }} {{ 'abc' | join('.') }} {{ [] | join('x') }}|
{{ [3, 1, 2] | sort }} {{ ['b', 'A', 'a', 'B'] | sort }} {{ ['b', 'A', 'a'] | sort(case_sensitive=true) }} {{ [3, 1, 2] | sort(reverse=true) }} {{ messages | sort(attribute='content') | map(attribute='content') | list }} {{ {'b': 1, 'A': 2} | dictsort }} {{ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true) }} {{ {'b': 1, 'A': 2} | dictsort(true) }}
{{ [1, 'a'] | sort }}
{{ ['a', 'A', 'b', 'a'] | unique | list }} {{ [1, 2, 3] | sum }} {{ [{'v': 1}, {'v': 2}] | sum('v') }} {{ [1, 2] | sum(start=10) }} {{ [2, 3, 1] | min }} {{ [2, 3, 1] | max }} {{ ['b', 'A'] | min }} {{ [] | max }}| {{ [{'a': 2}, {'a': 1}] | min(attribute='a') }}
{% for role, group in messages | groupby('role') %}{{ role }}:{{ group | length }} {% endfor %}
{{ messages | map(attribute='role') | list }} {{ ['a', 'b'] | map('upper') | join }} {{ [1, 2] | map('string') | list }} {{ messages | map(attribute='name', default='anon') | join(',') }} {{ ['1', 'x'] | map('int', 7) | list }} {{ messages | map(attribute='content.0') | list | length }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', '==', 'user') | map(attribute='role') | list }} {{ messages | selectattr('tool_calls') | list }} {{ messages | selectattr('role', 'in', ['user', 'system']) | list | length }} {{ [1, 2, 3, 4] | select('odd') | list }} {{ [1, 0, 2] | select | list }} {{ [1, 2, 3] | reject('divisibleby', 3) | list }} {{ none | select | list }} {{ none | map('upper') | list }}
{{ 'gen' if [] | select else 'none' }} {% set g = [1, 2] | map('string') %}{{ g | list }}{{ g | list }}{% set f = [1, 2, 3] | select %}{{ f | first }}{{ f | list }}
{{ [1, 2] | map('string') | length }}
{{ '42' | int }} {{ '42.9' | int }} {{ ' 0x1f ' | int(base=16) }} {{ 'x' | int }} {{ 'x' | int(-1) }} {{ 3.99 | int }} {{ -3.99 | int }} {{ true | int }} {{ none | int }} {{ '1_000' | int }} {{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ '-1e3' | float }} {{ 'x' | float(2.5) }}
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 42.55 | round(1, 'floor') }} {{ 42.51 | round(1, 'ceil') }} {{ 7 | round }} {{ -5 | abs }} {{ -5.5 | abs }} {{ 1 | string + 'x' }} {{ 1.0 | string }}
{{ 'a\nb\n\nc' | indent }}| {{ 'a\nb' | indent(2, true) }}| {{ 'a\n\nb' | indent('> ', first=true, blank=true) }}| {{ '' | indent }}|
{{ '<a href="x">\'&' | escape }} {{ '<' | e ~ '<' }} {{ ('<' | safe) + '<' }} {{ '<' + ('>' | safe) }} {{ ('<' | safe) ~ '<' }} {{ '<' | safe | upper }} {{ ('<b>' | safe).replace('b', '<') }} {{ ['<' | safe] }} {{ '<' | escape | forceescape }} {{ ('<' | safe) is escaped }} {{ ('%s' | safe) % '<' if false else 0 }}
{{ {'a': [1, 2.0, none, true, "é\"\\\n\t\u0001/<&>'"], 'b': {}, 'c': [], 'd': (1, 2)} | tojson }} {{ 'é😀' | tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ [1, {'a': 2}] | tojson(separators=(',', ':')) }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}
{{ {'a': [1, {'b': []}], 'c': {}} | tojson(indent=2) }} {{ [1, [2]] | tojson(indent='\t') }} {{ [1] | tojson(indent=0) }} {{ {'a': [1]} | tojson(indent=1, separators=(', ', '=')) }}
{{ missing | tojson }}
{{ range(3) | tojson }}
{{ messages | tojson }}
{{ messages }} {{ messages[0] }}
{{ tools | tojson }} {{ tools }}
{{ range(5) | list }} {{ range(1, 4) | list }} {{ range(10, 0, -3) | list }} {{ range(0) | list }} {{ range(3)[1] }} {{ range(9) | length }} {{ 2 in range(3) }}
{{ range(100001) | length }}
{{ dict(a=1, b='x') }} {{ dict({'a': 1}, c=2) }} {{ dict([('k', 'v')]) }} {% set ns = namespace(x=1) %}{% set ns.y = ns.x + 1 %}{{ ns.y }}{{ ns.z }}| {{ ns['x'] }}
{% set ns = namespace(_x=1) %}
{% set d = {'a': 1} %}{% set d.a = 2 %}
{{ 1 is number }} {{ 1.5 is float }} {{ true is integer }} {{ true is number }} {{ true is boolean }} {{ 1 is integer }} {{ 'x' is string }} {{ [] is sequence }} {{ {} is sequence }} {{ {} is mapping }} {{ 'x' is iterable }} {{ 1 is iterable }} {{ none is none }} {{ 1 is odd }} {{ 4 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'a' is lower }} {{ 'A' is upper }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ range is callable }} {{ 1 is callable }}
{{ 1 is eq 1 }} {{ 1 is equalto(2) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is greaterthan 1 }} {{ 1 is ge 1 }} {{ 1 is in [1] }} {{ 3 is not in [1] }} {{ none is sameas none }} {{ 1 is not none }} {{ missing is undefined }} {{ missing is not defined and true }} {{ 'x' is string and 1 is number or false }} {{ [] is iterable and [] is not string }}
{{ 1 is nosuchtest }}
{{ 1 | nosuchfilter }}
{% if false %}{{ 1 | nosuchfilter }}{% endif %}{{ (1 | nosuchfilter) if false else 'skipped' }}
{% if true %}{{ 1 | nosuchfilter }}{% endif %}
{% if false %}{% for x in [] %}{{ x | nosuchfilter }}{% endfor %}{% endif %}
{% for x in [1, 2, 3, 4] if x is even %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ loop.first }}{{ loop.last }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.depth }}{{ loop.previtem }}{{ loop.nextitem }};{% else %}no{% endfor %}
{% for x in [] %}a{% else %}empty{% endfor %}{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }} {% endfor %}{% for k, v in {'c': 3} | items %}{{ k }}{{ v }}{% endfor %}{% for c in 'häß' %}[{{ c }}]{% endfor %}{% for x in missing %}never{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a + b + c }}{% endfor %}
{% for x in none %}a{% endfor %}
{% for x in 5 %}a{% endfor %}
{% for a, b in [(1, 2, 3)] %}a{% endfor %}
{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% else %}else{% endfor %}{% break %}
{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% else %}else{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}{% set a, b = 1, [2] %}{{ a }}{{ b }}{% set t = 1, 2 %}{{ t }}
{% for node in [{'v': 1, 'c': [{'v': 2, 'c': []}, {'v': 3, 'c': [{'v': 4, 'c': []}]}]}] recursive %}<{{ node.v }}@{{ loop.depth }}{{ loop(node.c) }}>{% endfor %}
{% macro m(a, b='x', c=none) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(1, c=3) }}{{ m() }}{{ m(b=m('i')) }}{{ m(1) | length }}{{ m.name }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k=4) }} {{ m(*[1, 2], **{'q': 5}) }}
{% macro fact(n) %}{{ 1 if n < 2 else n * (fact(n - 1) | int) }}{% endmacro %}{{ fact(10) }}
{% set v = 'outer' %}{% macro m() %}{{ v }}{% set v = 'inner' %}{{ v }}{% endmacro %}{% set v = 'late' %}{{ m() }}{{ v }}
{% macro early() %}{{ later() }}{% endmacro %}{% macro later() %}late{% endmacro %}{{ early() }}{% for v in [1, 2] %}{% macro inner() %}{{ v }}{% endmacro %}{{ inner() }}{% endfor %}
{% macro list(items) %}{% for i in items %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(x, n) list(['a', 'b']) %}<{{ x }}{{ n }}>{% endcall %}
{% macro m() %}x{% endmacro %}{% call m() %}body{% endcall %}
{% call 5 %}x{% endcall %}
{% set block %}  a {{ 1 + 1 }} {% endset %}[{{ block }}]{% set up | upper | trim %} x {% endset %}[{{ up }}]{% filter upper %}a{{ 'b' }}{% endfilter %}{% generation %}g{% set hidden = 1 %}{% endgeneration %}{{ hidden }}|
{{ raise_exception('No: ' + messages[0].role) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %d %b %B %a %A %j %y %I %p %-d %e %%') }}
a  {%- if true -%}  b  {%- endif -%}  c {{- 'd' -}} e
a {# comment -#}   b {#- c #} d
{% raw -%}  {{ x }} {%- endraw %}|{%- raw %} {% if %} {% endraw -%}  |
   {#- x -#}
{{ '}}' }}{{ "{%" }}{{ {'a': {'b': 1}}['a']['b'] }}{{ {'a': {}} }}{% set x = '%}' %}{{ x }}{ { }} % #}
{{ '\\n' }}{{ "\"\'" }}{{ '\x41\u00e9\U0001F600\101\q\a' | tojson }}
{{ 1 if }}
{{ (1 }}
{{ 1 + }}
{% if %}x{% endif %}
{% if 1 %}x{% for y in [1] %}{% endif %}
{% if 1 %}x
{% for x %}{% endfor %}
{% endif %}
{% nosuch %}
{% set 1 = 2 %}
{% set true = 2 %}
{{ x y }}
{{ 'open }}
{{ [1, 2 }}
{{ 1 | }}
{# open
{% raw %} open
{{ a(b=1, 2) }}
{{ 3 is defined is true }}
{{ ? }}
{{ -1 | abs }} {{ -(2) ** 2 }} {{ 2 ** 3 ** 2 }} {{ - - 1 }} {{ +1 }} {{ not not 1 }} {{ 1 - -1 }} {{ ('a' ~ 1) + '2' }} {{ 1 ~ 2 * 3 }} {{ (1, 2) | length }} {{ 'a' | upper ~ 'b' | upper }} {{ 1 + (1 | string | length) }} {{ not true == false }}
{{ messages[0]['role'] | upper if messages[0].role == 'system' else 'none' }}
{{ [m.role for m in messages] }}
{{ messages[1:] | length }}{{ messages[:1][0].role }}{{ messages[-1:][0]['role'] }}{{ (messages | last).role }}{{ messages[messages | length - 1].role }}
{{ caller }}|{{ loop }}
""".strip("\n").split("\n")


# Of several lines each, which the list above cannot hold.
SEVERAL_LINES = [
    "  {% if true %}\n    x\n  {% endif %}\n   {%+ if true %}y{% endif +%}\nz\n",
    "a\n\n{% set x = 1 %}\n\n{{ x }}\n\n",
    "{% for i in [1, 2] %}\n\n  {{ i }}\n{% endfor %}\n\n",
    "{%- for i in [1, 2] %}\n\t{{- i }}\n  {# c #}\n{%- endfor +%}\n\nend\n\n\n",
    "x\r\n{% if true %}\r\ny\r{% endif %}\r\n{{ 'a\r\nb' | tojson }}\r\n",
    "  {# c #}  \n  {{ 1 }}  \n {% raw %}\n  {{ x }}\n  {% endraw %}\n  b",
    "{% raw %}\n\na{% endraw %}\n{%- raw -%}\n b \n{%- endraw -%}\n c",
    "{{\n  messages[0]\n  .role\n  | upper\n}}{%\n set x = [\n 1,\n 2,\n]\n%}{{ x }}",
    "a {#- b -#} c {#+ d +#}\n e",
    "{% if true %}{{ 1 }}\n{% endif %}  {% if true %}  {% endif %}\n  \t{%- if true %}\n \n{%- endif %}|",
    "{% set text %}\nline 1\n  line 2\n{% endset %}{{ text | indent(4) }}{{ text.splitlines() }}",
    "{% macro a(x) -%}\n  {{ x }}\n{%- endmacro %}\n{{ a(1) }}\n{% call a(2) %}{% endcall %}",
    "\n\n{{ 1 }}\n",
    "",
    "plain text\n",
    "{{ 'a\\\nb' }}|{{ 'c\n  d' }}",
    "\u00e9 {{ '\u65e5\u672c' }} \u3000{%- if true -%}\u3000x\u00a0{%- endif %}",
]

TEMPLATES = (
    [(name, source, EVERY) for name, source in STYLES.items()]
    + [(f"construct {i}", source, [16]) for i, source in enumerate(CONSTRUCTS + SEVERAL_LINES)])
