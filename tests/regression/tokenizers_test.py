"""Tokenizers: ids and decoded text of tokenizer.json files of random parts equal those of the `tokenizers` library.

usage: tokenizers_test.py ENCODE_TEXTS      77: this Python lacks tokenizers
TESSERA_TOKENIZERS=N makes N files instead of a few hundred.
"""
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import unittest

try:
    import tokenizers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

ENCODE = ""
SPEC = importlib.util.spec_from_file_location("prepare", pathlib.Path(__file__).resolve().parent / "../../examples/prepare_data/prepare.py")
PREPARE = importlib.util.module_from_spec(SPEC)   # which says of a tokenizer whether the program takes it
SPEC.loader.exec_module(PREPARE)
FILES = int(os.environ.get("TESSERA_TOKENIZERS", "300"))
TEXTS = 12
PIECES = ["the", "The", "THE", " the", "word", "words", "naïve", "café", "cafe\u0301", "\u212b", "Ångström", "A\u030a", "straße", "ﬁne", "½", "²", "日本語", "中文。",
          "한국어", "\u1112\u1161\u11ab", "עברית", "العَرَبِيَّة", "हिन्दी", "ไทย", "Ελλάς", "ΣΑΣ", "İi", "ǅ", "🙂", "👩‍👩‍👧", "🇩🇪", "\u0301", "\u200d", "\u200b", "\ufeff", "\xa0", "\u3000",
          "\u2028", "\x85", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x00", "\x1b", "12", "345678", "٣٤", "Ⅷ", "3.14", "!", "!!", "...", "-", "--", "_", "a_b",
          "'s", "'S", "it's", "we'll", "'ſ", "$", "+", "<|endoftext|>", "<|endoftext|>x", "</s>", "<mask>", " <mask> ", "<mask", "tool", "toolbox", "<x><y>", "Ġ", "â", "{}", "(a)", "^", "\\", "/"]
PATTERNS = [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", r"\p{N}", r"\p{N}{1,3}", r"\s+", r"\w+", r"[\p{P}\p{S}]", r"[一-龥぀-ゟ゠-ヿ]+", r"[\r\n]", r"\s?\p{L}+",
            r"^\w", r"\w$", r".", r"(?<=\p{L})(?=\p{Lu})", r"x*", r"\p{Han}|\p{Lu}", r"[^\S\n]+", r"\b", r"(?:a|e)+?", r"\d+\.?", r"\S++"]
MATCH_NOTHING = [r"(?<=\p{L})(?=\p{Lu})", r"x*", r"\b"]   # between two characters, where Replace is refused
STRINGS = [" ", "the", ".", "e", "\n", "  ", "!!", "é", "Ġ", "日", "a.b", "(", "[", "'"]
BEHAVIOURS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def alphabet():
    letters, next_one = {}, 256
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(next_one)
            next_one += 1
    return letters


LETTERS = alphabet()


class Drawn:
    """A tokenizer.json of random parts."""

    def __init__(self, draw):
        self.draw = draw

    def flag(self):
        return self.draw.random() < 0.5

    def pattern(self, patterns=PATTERNS):
        return {"String": self.draw.choice(STRINGS)} if self.draw.random() < 0.3 else {"Regex": self.draw.choice(patterns)}

    def byte_level(self):
        return dict(type="ByteLevel", add_prefix_space=self.flag(), trim_offsets=self.flag(), use_regex=self.flag())

    def words(self):
        return self.draw.choice([
            lambda: dict(type="Split", pattern=self.pattern(), behavior=self.draw.choice(BEHAVIOURS), invert=self.flag()),
            lambda: dict(type="Split", pattern=self.pattern(), behavior=self.draw.choice(BEHAVIOURS), invert=self.flag()),
            lambda: dict(type="Digits", individual_digits=self.flag()), lambda: dict(type="Punctuation", behavior=self.draw.choice(BEHAVIOURS)),
            lambda: dict(type="Whitespace"), lambda: dict(type="WhitespaceSplit"), lambda: dict(type="BertPreTokenizer"),
            lambda: dict(type="CharDelimiterSplit", delimiter=self.draw.choice("e- _é日")), self.byte_level])()

    def normalizer(self):
        return self.draw.choice([
            lambda: dict(type="NFC"), lambda: dict(type="NFD"), lambda: dict(type="NFKC"), lambda: dict(type="NFKD"), lambda: dict(type="Lowercase"),
            lambda: dict(type="Prepend", prepend=self.draw.choice(["▁", " ", "é"])), lambda: dict(type="Strip", strip_left=self.flag(), strip_right=self.flag()),
            lambda: dict(type="Replace", pattern=self.pattern([one for one in PATTERNS if one not in MATCH_NOTHING]), content=self.draw.choice(["", " ", "e\u0301", "the"]))])()

    def parts(self, one, members, most):
        made = [one() for _ in range(self.draw.randint(0, most))]
        return None if not made else made[0] if len(made) == 1 and self.flag() else {"type": "Sequence", members: made}

    def processor(self):
        special = lambda id: {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
        return self.draw.choice([
            lambda: None, self.byte_level, lambda: dict(type="RobertaProcessing", sep=["</s>", 5], cls=["<s>", 6], trim_offsets=True, add_prefix_space=self.flag()),
            lambda: dict(type="BertProcessing", sep=["</s>", 5], cls=["<s>", 6]),
            lambda: dict(type="TemplateProcessing", single=[special(0), {"Sequence": {"id": "A", "type_id": 0}}], pair=[{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                         special_tokens={"<|endoftext|>": dict(id="<|endoftext|>", ids=[0], tokens=["<|endoftext|>"])})])()

    def model(self):
        letters = list(LETTERS.values())
        vocab = {"<|endoftext|>": 0} | {letter: i + 1 for i, letter in enumerate(letters)}
        merges = []
        for _ in range(self.draw.randint(0, 60)):
            piece = "".join(LETTERS[byte] for byte in self.draw.choice(PIECES).encode())
            left = ""
            for letter in piece:
                if left and left + letter not in vocab:
                    merges.append([left, letter])
                    vocab[left + letter] = len(vocab)
                elif left and self.draw.random() < 0.2:
                    merges.append([left, letter])   # once more, or another way to the same token
                left += letter
        return dict(type="BPE", dropout=self.draw.choice([None, 0.0]), unk_token=self.draw.choice([None, "<|endoftext|>"]), continuing_subword_prefix=self.draw.choice([None, ""]),
                    end_of_word_suffix=self.draw.choice([None, ""]), fuse_unk=self.flag(), byte_fallback=False, ignore_merges=self.flag(), vocab=vocab, merges=merges)

    def added(self, vocab):
        contents = ["<|endoftext|>"] + self.draw.sample(["</s>", "<mask>", "cafe\u0301", "café", "\u212b", "THE", "the", "tool", "  ", "\n", "<x>", "<x><y>", "日本", "é", "½", "!!"], self.draw.randint(0, 6))
        tokens, next_id = [], len(vocab)
        for content in contents:
            known = vocab.get(content)
            tokens.append(dict(id=next_id if known is None else known, content=content, single_word=self.draw.random() < 0.3, lstrip=self.draw.random() < 0.3,
                               rstrip=self.draw.random() < 0.3, normalized=self.flag(), special=self.flag()))
            next_id += known is None
        return tokens

    def file(self):
        model = self.model()
        before, after = ([self.words() for _ in range(self.draw.randint(0, 2))] for _ in range(2))
        words = [*before, self.byte_level(), *after]
        return dict(version="1.0", truncation=None, padding=None, added_tokens=self.added(model["vocab"]), normalizer=self.parts(self.normalizer, "normalizers", 3),
                    pre_tokenizer=words[0] if len(words) == 1 else dict(type="Sequence", pretokenizers=words), post_processor=self.processor(),
                    decoder=self.byte_level(), model=model)


class Tokenizers(unittest.TestCase):
    def setUp(self):
        self.program = subprocess.Popen([ENCODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.program.communicate)
        self.compared = 0

    def ask(self, tokenizer, texts):
        self.program.stdin.write(json.dumps(dict(tokenizer=tokenizer, texts=texts)) + "\n")
        self.program.stdin.flush()
        return json.loads(self.program.stdout.readline())

    def compare(self, file, texts):
        text = json.dumps(file, ensure_ascii=False)
        library, answer = tokenizers.Tokenizer.from_str(text), self.ask(text, texts)
        told = {key: value for key, value in file.items() if key != "model"}
        self.assertEqual(PREPARE.byte_level(text), "refused" not in answer, (answer.get("refused"), told))
        if "the normalizer leaves nothing of it" in answer.get("refused", ""):
            return
        self.assertNotIn("refused", answer, told)
        for given, got in zip(texts, answer["texts"]):
            try:
                ids = library.encode(given).ids
            except BaseException as panic:  # of the library's own slips with a few normalizers; it has no narrower type
                if isinstance(panic, KeyboardInterrupt):
                    raise
                continue
            self.compared += 1
            self.assertEqual(got.get("ids"), ids, (given[:200], got.get("refused"), told))
            self.assertEqual(bytes(got["bytes"]).decode(errors="replace"), library.decode(ids), (given[:200], told))

    def test_files_of_random_parts(self):
        if "without ICU" in self.ask(json.dumps(Drawn(random.Random(0)).file()), []).get("refused", ""):
            self.skipTest("built without ICU")
        for seed in range(FILES):
            with self.subTest(seed=seed):
                draw = random.Random(seed)
                self.compare(Drawn(draw).file(), ["".join(draw.choices(PIECES, k=draw.randint(1, 25))) for _ in range(TEXTS)])
        self.assertGreater(self.compared, FILES * TEXTS * 0.8)

    def test_long_runs(self):
        if "without ICU" in self.ask(json.dumps(Drawn(random.Random(0)).file()), []).get("refused", ""):
            self.skipTest("built without ICU")
        draw = random.Random(1)
        file = Drawn(draw).file() | dict(normalizer=None, post_processor=None, added_tokens=[])
        for pattern in PATTERNS[0], PATTERNS[1], r"(?:\p{L}\p{M}*)+|\s+(?!\S)|\s*[\r\n]+|.":
            file["pre_tokenizer"] = dict(type="Sequence", pretokenizers=[dict(type="Split", pattern={"Regex": pattern}, behavior="Isolated", invert=False),
                                                                         dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)])
            text = json.dumps(file, ensure_ascii=False)
            library = tokenizers.Tokenizer.from_str(text)
            for run in " ", "\n", "a":
                long = run * 400_000 + "x"
                got = self.ask(text, [long])["texts"][0]
                self.assertNotIn("refused", got, pattern)
                self.assertEqual(bytes(got["bytes"]).decode(), long)
                short = run * 2_000 + "x"   # the library gives up on longer ones of some patterns
                self.assertEqual(self.ask(text, [short])["texts"][0]["ids"], library.encode(short).ids)

    def test_what_is_not_taken_is_named(self):
        file = Drawn(random.Random(2)).file()
        for key, value, named in (("normalizer", dict(type="StripAccents"), "StripAccents"), ("normalizer", dict(type="Nmt"), "Nmt"),
                                  ("pre_tokenizer", dict(type="Metaspace", replacement="▁", prepend_scheme="always", split=True), "Metaspace"),
                                  ("pre_tokenizer", dict(type="Split", pattern={"Regex": r"\p{N}{1,3}+"}, behavior="Isolated", invert=False), "{1,3}+"),
                                  ("pre_tokenizer", dict(type="Split", pattern={"Regex": r"\h"}, behavior="Isolated", invert=False), "\\h"),
                                  ("pre_tokenizer", dict(type="Split", pattern={"Regex": r"(?m:.)"}, behavior="Isolated", invert=False), "(?m:"),
                                  ("decoder", dict(type="Fuse"), "Fuse"), ("model", file["model"] | dict(byte_fallback=True), "byte_fallback"),
                                  ("model", file["model"] | dict(dropout=0.1), "model.dropout: 0.1")):
            refused = self.ask(json.dumps(file | {key: value}), [])["refused"]
            self.assertFalse(PREPARE.byte_level(json.dumps(file | {key: value})), named)
            self.assertTrue(named in refused or "without ICU" in refused, (named, refused))


if __name__ == "__main__":
    ENCODE = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
