"""Writes chats/golden.json: conversations as transformers' apply_chat_template renders and encodes them by several templates,
with its mask of answers where a template marks them.

    python tests/oracle/chat_goldens.py      # a Python with transformers and jinja2
"""
import json
import pathlib
import random

import tokenizers
import transformers

HERE = pathlib.Path(__file__).parent
TOKENIZER = HERE / "tokenizers/llama3/tokenizer.json"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TEMPLATES = {
    "turns": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "marked": "{{ bos_token }}\n{%- for message in messages %}\n    {%- if message.role == 'assistant' %}\n"
              "        {{- '<|im_start|>assistant\n' }}\n        {%- generation %}{{ message.content }}<|im_end|>{% endgeneration %}\n"
              "    {%- elif loop.index > 40 %}\n        {%- break %}\n    {%- else %}\n<|im_start|>{{ message.role }}\n"
              "{{ message.content | trim }}<|im_end|>\n    {%- endif %}\n{%- endfor %}\n"
              "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "brackets": "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set first = messages[0]['content'] + '\n\n' %}"
                "{% else %}{% set rest = messages %}{% set first = '' %}{% endif %}{% for message in rest %}"
                "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}"
                "{% if message['role'] == 'user' %}{{ bos_token + '[ASK] ' + (first if loop.first else '') + message['content'].strip() + ' [/ASK]' }}"
                "{% else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "objects": "{% set ns = namespace(count=0) %}{% for message in messages %}{% set ns.count = ns.count + 1 %}"
               "{{ '<|im_start|>' ~ ns.count ~ message['role'] ~ (message | tojson) ~ '<|im_end|>' }}{% endfor %}",
}
WORDS = ["hello", "über", "𝄞x", "the", "<|im_end|>", "42", "\n\n", " two  spaces", "日本", "“q”", "&<>'\"", "{{ x }}", "\t"]


def conversation(draw):
    said = lambda: " ".join(draw.choices(WORDS, k=draw.randint(1, 7)))
    messages = [{"role": "system", "content": said()}] if draw.random() < 0.5 else []
    for _ in range(draw.randint(1, 3)):
        messages += [{"role": "user", "content": said()}, {"role": "assistant", "content": said()}]
    return messages


def main():
    tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
    tokenizer.add_special_tokens(SPECIAL)
    draw, golden = random.Random(7), {}
    for name, template in TEMPLATES.items():
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|endoftext|>", eos_token="<|im_end|>")
        theirs.chat_template = template
        cases = []
        for _ in range(12):
            messages = conversation(draw)
            given = theirs.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=name == "marked")
            cases.append(dict(messages=messages, text=theirs.apply_chat_template(messages, tokenize=False), ids=given["input_ids"],
                              asked=theirs.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)))
            if name == "marked":
                cases[-1]["mask"] = given["assistant_masks"]
        golden[name] = dict(template=template, cases=cases)
    text = json.dumps(dict(made_by=f"transformers {transformers.__version__}", special=SPECIAL, templates=golden), ensure_ascii=False, indent=None)
    (HERE / "chats/golden.json").write_text(text.replace('{"messages"', '\n{"messages"') + "\n")


if __name__ == "__main__":
    main()
