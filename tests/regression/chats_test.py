"""prepare.py --chat: tokens and marks of conversations, equal to what transformers makes of them (tests/oracle/chats); refusals.
"""
import array
import json
import pathlib
import re
import struct
import subprocess
import sys
import zlib

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("tokenizers.models")  # of the library: a folder of tests/oracle is called tokenizers, too
import tokenizers  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PREPARE = HERE / "../../examples/prepare_data/prepare.py"
TOKENIZER = HERE / "../oracle/tokenizers/llama3/tokenizer.json"
GOLDEN = json.loads((HERE / "../oracle/chats/golden.json").read_text())


class Chats:
    def setup_method(self):
        self.folder = pathlib.Path(self.folder)

    def model(self, template, name="model", **settings):
        """A folder with a tokenizer, as transformers saves it."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self.tokenizer = tokenizers.Tokenizer.from_file(str(TOKENIZER))
        self.tokenizer.add_special_tokens(GOLDEN["special"])
        self.tokenizer.save(str(folder / "tokenizer.json"))
        config = {"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, **settings}
        if template is not None:
            config["chat_template"] = template
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return folder / "tokenizer.json"

    def write(self, name, conversations, field="messages"):
        text = "".join(json.dumps({field: one}) + "\n" for one in conversations)
        (self.folder / name).write_text(text)
        return name

    def prepare(self, code, *arguments):
        done = subprocess.run([sys.executable, PREPARE, *map(str, arguments), "--workers", "2"], cwd=self.folder, capture_output=True, text=True,
                              timeout=300)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def made(self, pattern, out="out"):
        """Tokens and marks of the files of a pattern."""
        ids, marks = array.array("H"), b""
        for path in sorted((self.folder / out).glob(pattern)):
            raw, beside = path.read_bytes(), path.with_suffix(".marks").read_bytes()
            assert struct.unpack("<iiqI", beside[:20]) == (20261127, 1, len(beside) - 1024, zlib.crc32(raw[1024:]))
            ids.frombytes(raw[1024:])
            marks += beside[1024:]
        assert len(ids) == len(marks)
        return list(ids), marks

    def test_equals_transformers(self):
        for name, golden in GOLDEN["templates"].items():
            cases = golden["cases"]
            chats = self.write(f"{name}.jsonl", [case["messages"] for case in cases])
            self.prepare(0, name, chats, "--chat", "--tokenizer", self.model(golden["template"]), "--shard-tokens", "300", "--piece-mb", "1")
            ids, marks = self.made("train_*.bin", name)
            assert ids == [id for case in cases for id in case["ids"]], name
            begin = 0
            for case in cases:
                own = marks[begin:begin + len(case["ids"])]
                assert [i for i, mark in enumerate(own) if mark & 2] == [0]
                if "mask" in case:
                    assert [mark & 1 for mark in own] == case["mask"]
                else:
                    # Before the last answer stand the words that ask for it.
                    asked = self.tokenizer.encode(case["asked"], add_special_tokens=False).ids
                    last = max(i for i, mark in enumerate(own) if mark & 1)
                    first = next(i for i in range(last, -1, -1) if i == 0 or not own[i - 1] & 1)
                    assert case["ids"][:first] == asked, (name, case["messages"])
                    assert last == len(own) - 1
                    answers = sum(message["role"] == "assistant" for message in case["messages"])
                    assert sum(bool(own[i] & 1) and not (i and own[i - 1] & 1) for i in range(len(own))) == answers
                begin += len(own)

    def test_where_a_template_comes_from(self):
        turns, marked = (GOLDEN["templates"][name] for name in ("turns", "marked"))
        chats = self.write("c.jsonl", [turns["cases"][0]["messages"]], field="talk")
        wanted = turns["cases"][0]["ids"]
        named = [{"name": "tools", "template": "x"}, {"name": "default", "template": turns["template"]}]
        (self.folder / "given.jinja").write_text(turns["template"])
        (self.folder / "other.jinja").write_text(marked["template"])
        for i, (template, options) in enumerate(((turns["template"], ()), (named, ()), (marked["template"], ("--chat-template", "given.jinja")),
                                                 (None, ("--chat-template", "given.jinja")))):
            self.prepare(0, f"out{i}", chats, "--chat", "--field", "talk", "--tokenizer", self.model(template), *options)
            assert self.made("train_*.bin", f"out{i}")[0] == wanted
        tokenizer = self.model(marked["template"])
        (tokenizer.parent / "chat_template.jinja").write_text(turns["template"])  # as transformers 5 saves it
        self.prepare(0, "beside", chats, "--chat", "--field", "talk", "--tokenizer", tokenizer)
        assert self.made("train_*.bin", "beside")[0] == wanted
        assert ("other sources or options"
                in self.prepare(1, "beside", chats, "--chat", "--field", "talk", "--tokenizer", tokenizer, "--chat-template", "other.jinja"))

    def test_the_printed_deck_trains(self):
        golden = GOLDEN["templates"]["turns"]
        chats = self.write("c.jsonl", [case["messages"] for case in golden["cases"]] * 3)
        held = self.write("held.jsonl", [case["messages"] for case in golden["cases"][:6]])
        out = self.prepare(0, "out", chats, "--chat", "--tokenizer", self.model(golden["template"]), "--val", held)
        line = next(line for line in out.splitlines() if line.startswith("data: "))
        assert "loss_mask: true, documents: apart" in line
        deck = self.folder / "deck.yaml"
        deck.write_text("schema_version: 1\nrun: {steps: 3, threads: 1}\nmodel: {layers: 1, hidden: 32, heads: 2, seq_len: 32}\n"
                        f"batch: {{global: 4, micro: 2}}\neval: {{every_steps: 3}}\n{line}\ncheckpoint: {{dir: run}}\n")
        done = subprocess.run([self.tessera, "train", deck], cwd=self.folder, capture_output=True, text=True)
        if "without ICU" in done.stderr:
            return
        assert done.returncode == 0, done.stderr
        assert "answer tokens" in done.stdout
        rows = [json.loads(text) for text in (self.folder / "run/metrics.jsonl").read_text().splitlines()]
        assert all(0 < row["targets"] < 4 * 32 and row["loss"] > 0 for row in rows), rows

    def test_refusals(self):
        turns = GOLDEN["templates"]["turns"]
        tokenizer = self.model(turns["template"])
        good = turns["cases"][0]["messages"]
        chats = self.write("c.jsonl", [good])
        assert "has no chat template" in self.prepare(1, "out", chats, "--chat", "--tokenizer", self.model(None, "bare"))
        assert "name the tokenizer.json" in self.prepare(1, "out", chats, "--chat")
        assert "gone/tokenizer.json: No such file" in self.prepare(1, "out", chats, "--chat", "--tokenizer", "gone/tokenizer.json")
        assert "it has messages (a list); give --chat for conversations" in self.prepare(1, "asked", chats, "--tokenizer", tokenizer)
        assert "--chat-template: is for --chat" in self.prepare(1, "out", chats, "--chat-template", chats, "--tokenizer", tokenizer)
        (self.folder / "book.txt").write_text("text")
        assert "book.txt: --chat takes .jsonl" in self.prepare(1, "out", chats, "book.txt", "--chat", "--tokenizer", tokenizer)
        broken = self.model("{% for x %}", "broken")
        assert "is no Jinja" in self.prepare(1, "out", chats, "--chat", "--tokenizer", broken)
        for i, (messages, wanted) in enumerate((("no list", "has no list in a field 'messages'"), ([], "is no list of messages"),
                                                ([{"content": "x"}], r'is no \{"role": '), ([{"role": "user"}], "cannot render it"))):
            bad = self.write(f"bad{i}.jsonl", [good, messages])
            assert re.search(rf"bad{i}\.jsonl: byte \d+: .*{wanted}", self.prepare(1, f"bad{i}", bad, "--chat", "--tokenizer", tokenizer))
        # A template that renders what lies before otherwise once more follows.
        moving = self.model("{% for m in messages %}{% if loop.last %}last {% endif %}{{ m.role }}: {{ m.content }};{% endfor %}", "moving")
        several = self.write("several.jsonl", [next(case["messages"] for case in turns["cases"] if len(case["messages"]) > 3)])
        assert "where the answer lies cannot be told" in self.prepare(1, "moved", several, "--chat", "--tokenizer", moving)
        assert not list((self.folder / "bad0").glob("*.bin"))
        # The folder of a tokenizer stands for it.
        both = [self.prepare(0, out, chats, "--chat", "--tokenizer", given) for out, given in (("file", tokenizer), ("folder", tokenizer.parent))]
        assert both[0].replace("/file", "/folder") == both[1]
