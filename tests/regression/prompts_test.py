"""`tessera generate` with several prompts and texts to stop at: each answer is that of its prompt alone, cut at the first stop.
"""
import json
import random

import runs


class Prompts(runs.Runs):
    def setup_method(self):
        super().setup_method()
        self.draws = random.Random(self.name)
        self.train(0, 1, self.deck("a", None))

    def answers(self, ranks, *arguments):
        out, err = self.run_to_its_end(0, ranks, "generate", "a", *arguments, "--json")
        assert err == ""
        return [json.loads(line) for line in out.splitlines()]

    def refused(self, *arguments):
        return self.run_to_its_end(2, 1, "generate", "a", *arguments)[1]

    def test_each_prompt_as_if_alone(self):
        prompts = ["".join(self.draws.choices("the mosa \"{é", k=self.draws.randint(1, 12))).strip() or "x" for _ in range(5)]
        asked = ("--tokens", "12", "--seed", "3")
        alone = [self.answers(1, "--prompt", prompt, *asked)[0] for prompt in prompts]
        self.write("p.txt", "\n".join(prompts[:3]) + "\r\n\n" + "\n".join(prompts[3:]))
        self.write("p.jsonl", "".join(json.dumps(one if i % 2 else {"prompt": one}) + "\n" for i, one in enumerate(prompts)))
        for file, ranks in (("p.txt", 1), ("p.jsonl", 3)):
            for ours, theirs in zip(self.answers(ranks, "--prompts", file, *asked), alone, strict=True):
                assert (ours["prompt"], ours["tokens"], ours["text"]) == (theirs["prompt"], theirs["tokens"], theirs["text"])
        out, _ = self.run_to_its_end(0, 2, "generate", "a", "--prompts", "p.jsonl", *asked)
        assert out == "".join(one["prompt"] + shown(one["text"]) + "\n" for one in alone)
        # A prompt may have line ends, and answers have as many tokens as there is room for.
        self.write("two.jsonl", json.dumps("a\nb") + "\n" + json.dumps("x" * 30))
        first, second = self.answers(1, "--prompts", "two.jsonl")
        assert (first["prompt"], len(first["tokens"]), len(second["tokens"])) == ("a\nb", 30, 3)

    def test_an_answer_ends_before_a_stop(self):
        for temperature in ("0.1", "0.8"):
            asked = ("--prompt", "the ", "--tokens", "28", "--temperature", temperature)
            whole = self.answers(1, *asked)[0]
            text = whole["text"]
            for _ in range(4):
                plain = [i for i, c in enumerate(text) if c.isascii() and c.isalnum()]  # what is no character stands for other bytes
                assert plain, text
                begin = end = self.draws.choice(plain)
                while end + 1 < len(text) and end - begin < 2 and text[end + 1].isascii() and text[end + 1].isprintable():
                    end += 1
                stops = [text[begin:end + 1], "nowhere in it"]
                cut = text[:text.index(stops[0])]
                for ranks in (1, 2):
                    found = self.answers(ranks, *asked, "--stop", stops[1], "--stop", stops[0])[0]
                    assert found["text"] == cut
                    assert found["tokens"] == whole["tokens"][:len(found["tokens"])]
                out, _ = self.run_to_its_end(0, 1, "generate", "a", *asked, "--stop", stops[0])
                assert out == "the " + shown(cut) + "\n"

    def test_refusals(self):
        self.write("none.txt", "\n\n")
        assert "none.txt: holds no prompt" in self.refused("--prompts", "none.txt")
        self.write("bad.jsonl", '"good"\n{"text": "x"}\n')
        assert "bad.jsonl:2: is no JSON text" in self.refused("--prompts", "bad.jsonl")
        self.write("long.txt", "a\n" + "x" * 40)
        assert "--prompts: 40 tokens, and the model's sequences hold 32" in self.refused("--prompts", "long.txt")
        assert "an empty text ends everything" in self.refused("--prompt", "a", "--stop", "")
        self.refused("--prompt", "a", "--prompts", "long.txt")


def shown(text):
    """As a terminal gets it: control characters but tab and line ends are replaced."""
    return "".join("\ufffd" if (ord(c) < 32 and c not in "\t\n\r") or ord(c) == 127 else c for c in text)
