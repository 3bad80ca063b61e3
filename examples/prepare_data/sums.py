#!/usr/bin/env python3
"""Writes conversations about sums, to try prepare.py --chat without conversations of one's own.

    sums.py OUT         OUT/chats.jsonl, OUT/held.jsonl, OUT/turns.jinja (a chat template), OUT/asked.jsonl (prompts),
                        OUT/plain.txt (to train a tokenizer on)
"""
import json
import pathlib
import random
import sys

TEMPLATE = ("{% for message in messages %}{{ message.role + ': ' + message.content }}"
            "{% if message.role == 'assistant' %}<|endoftext|>{% endif %}{{ '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}assistant:{% endif %}")


def conversation(draw):
    messages = []
    for _ in range(draw.randint(1, 3)):
        a, b = draw.randint(0, 20), draw.randint(0, 20)
        messages += [dict(role="user", content=draw.choice(("What is {} and {}?", "{} + {}?", "Add {} to {}.")).format(a, b)),
                     dict(role="assistant", content=f"{a + b}.")]
    return messages


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out, draw = pathlib.Path(sys.argv[1]), random.Random(1)
    out.mkdir(parents=True, exist_ok=True)
    for name, count in (("chats", 6000), ("held", 300)):
        lines = [json.dumps(dict(messages=conversation(draw))) for _ in range(count)]
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (out / "turns.jinja").write_text(TEMPLATE)
    (out / "plain.txt").write_text("".join(f"{message['role']}: {message['content']}\n" for _ in range(2000) for message in conversation(draw)))
    asked = [f"user: {question}\nassistant:" for question in ("What is 3 and 4?", "12 + 9?", "Add 20 to 1.")]
    (out / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))


if __name__ == "__main__":
    main()
