"""Tokenizers: ids and decoded text of tokenizer.json files of random parts equal those of the `tokenizers` library.

TESSERA_TOKENIZERS=N makes N files instead of a few hundred, and from 1,000 on the long runs have a million characters.
"""
import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

import pytest

pytest.importorskip("tokenizers.models")  # of the library: a folder of tests/oracle is called tokenizers, too
import tokenizers  # noqa: E402

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples/prepare_data"
sys.path.append(str(EXAMPLE))   # of the modules that prepare.py imports
SPEC = importlib.util.spec_from_file_location("prepare", EXAMPLE / "prepare.py")
PREPARE = importlib.util.module_from_spec(SPEC)   # which says of a tokenizer whether the program takes it
SPEC.loader.exec_module(PREPARE)
FILES = int(os.environ.get("TESSERA_TOKENIZERS", "300"))
LONG = 1000
TEXTS = 12
PIECES = ["the", "The", "THE", " the", "word", "words", "naïve", "café", "cafe\u0301", "\u212b", "Ångström", "A\u030a", "straße", "ﬁne", "½", "²", "日本語", "中文。",
          "한국어", "\u1112\u1161\u11ab", "עברית", "العَرَبِيَّة", "हिन्दी", "ไทย", "Ελλάς", "ΣΑΣ", "İi", "ǅ", "🙂", "👩‍👩‍👧", "🇩🇪", "\u0301", "\u200d", "\u200b", "\ufeff", "\xa0", "\u3000",
          "\u2028", "\x85", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\x0b", "\x0c", "\x1c", "\x00", "\x1b", "12", "345678", "٣٤", "Ⅷ", "3.14", "!", "!!", "...", "-", "--", "_", "a_b",
          "\r", "\r\r\n", "\n\r", "\r\n\r\n", " \n ", "\t\t", " \r", "\ue000", "\U000f0000", "\ufffd", "\ufffe", "\xad", "\u2060", "\u202e", "\x7f", "\x01\x02", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
          "\U0001f44d\U0001f3fd", "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "a\u0301\u0327", "a\u0327\u0301", "\u0958", "\u1e9b\u0323", "\uac00\u11a8", "\u3099", "\u30ab\u3099", "ǆ", "ß", "ss", "SS",
          "ﬀ", "ﬆ", "st", "ı", "K", "\u212a", "µ", "\u03c2", "\u1e9e", "DŽ", "iPhone", "camelCase", "HTTPServer", "don't", "DON'T", "I'Ve", "\u2019s", "$1,234.56", "१२३", "四", "፩", "𝟘𝟙", "①", "﹏", "‿", "\u2e4a", "€", "©", "°", "±", "∑",
          "'s", "'S", "it's", "we'll", "'ſ", "$", "+", "<|endoftext|>", "<|endoftext|>x", "</s>", "<mask>", " <mask> ", "<mask", "tool", "toolbox", "<x><y>", "Ġ", "â", "{}", "(a)", "^", "\\", "/"]
GPT_4O = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
WELL_KNOWN = [r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",   # Llama 3, GPT-2, GPT-4o, Qwen, DeepSeek
              r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", GPT_4O,
              r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
              r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
PATTERNS = [*WELL_KNOWN, r"\p{N}", r"\p{N}{1,3}", r"\s+", r"\w+", r"[\p{P}\p{S}]", r"[一-龥぀-ゟ゠-ヿ]+", r"[\r\n]", r"\s?\p{L}+",
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯ]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", r"[一-龥ࠀ-一가-퟿]+", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+", r"(?i:st|ss|fi|k)", r"(?i:\p{Lu}+)", r"(?i)the|word",
            r"[\s!--]", r"[\p{L}&&[^a-z]]+", r"[a[bc]]+", r"(?>\s+)\S", r"\A\S+", r"\S+\z", r"(\w)\1", r"\p{Greek}+|\p{Cyrillic}+|\p{Hiragana}+", r"\p{^L}+", r"\P{L}+", r"\x{e9}|\u00e9", r"\t|\f|\e|\a", r"\R", r"[\x00-\x1f]+",
            r"^\w", r"\w$", r".", r"(?<=\p{L})(?=\p{Lu})", r"x*", r"\p{Han}|\p{Lu}", r"[^\S\n]+", r"\b", r"(?:a|e)+?", r"\d+\.?", r"\S++"]
ATOMS = ["a", "e", "the", "s", "K", "é", "日", " ", "\n", "\r", "1", "!", "-", "]", "}", ".", "^", "$", r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"\b", r"\B", r"\A", r"\z", r"\Z", r"\p{L}", r"\P{N}", r"\p{^P}",
         r"\p{Han}", r"\p{M}", r"\n", r"\t", r"\r", r"\x20", r"\x{301}", r"\u00e9", r"\.", r"\-", r"\[", r"\/", "x", "\\", r"\R", "{", "(?#c)", r"\pL", r"\x9", r"\xe9", r"\e", r"\0", r"\G"]
IN_SETS = ["a", "e-h", "s", "é", "日", "一-龥", " ", "\n", "-", "^", "&", "&&", "--", "[", "[ab]", "[^a]", "{", "}", "$", ".", "|", "(", "#", ":", r"\s", r"\S", r"\w", r"\W", r"\d", r"\p{L}", r"\P{L}", r"\p{^N}", r"\b", r"\-", r"\]", r"\\", r"\x20-\x7e", "0-9"]
MATCH_NOTHING = [r"(?<=\p{L})(?=\p{Lu})", r"x*", r"\b"]   # between two characters, where Replace is refused
STRINGS = [" ", "the", ".", "e", "\n", "  ", "!!", "é", "Ġ", "日", "a.b", "(", "[", "'"]
ADDED = ["</s>", "<mask>", "cafe\u0301", "café", "\u212b", "THE", "the", "tool", "  ", "    ", "\n", "\n\n", "\t", "<x>", "<x><y>", "日本", "é", "½", "!!", "later", "\u200d", "🙂", "12", "\u0301", "\x00", "ß", "Ġ"]
OTHER_WORDS = [[dict(type="Metaspace", replacement="▁", prepend_scheme="always", split=True)], [dict(type="UnicodeScripts")], [dict(type="WhitespaceSplit")]]
OTHER_NORMALIZERS = [dict(type="Nmt"), dict(type="StripAccents"), dict(type="ByteLevel"), dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)]
OTHER_DECODERS = [None, dict(type="Fuse"), dict(type="ByteFallback"), dict(type="WordPiece", prefix="##", cleanup=True),
                  dict(type="Sequence", decoders=[dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True), dict(type="Fuse")])]
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
        self.draw, self.certain = draw, True   # whether both libraries have the patterns

    def flag(self):
        return self.draw.random() < 0.5

    def composed(self, depth=4, repeats=True):
        """A regular expression of random parts, which a library may refuse. No repeated part repeats, which can take for ever."""
        part = lambda repeats=repeats: self.composed(depth - 1, repeats)
        often = lambda *signs: self.draw.choice(signs) if repeats else ""
        if depth == 0 or self.draw.random() < 0.3:
            return self.draw.choice(ATOMS) + often("", "", "", "*", "+", "?")
        return self.draw.choice([
            lambda: part() + part(), lambda: part() + part(), lambda: part() + "|" + part(),
            lambda: f"(?:{part(False)})" + often("", "*", "+", "?", "+?", "*?", "??", "++", "{2}", "{1,3}", "{2,}", "{1,2}?", "{2}?", "{1,2}+"),
            lambda: self.draw.choice(["(", "(?>", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?i)"]) + part() + ")", lambda: f"({part(False)})" + often("", "+", "*", "\\1"),
            lambda: self.draw.choice(["[", "[^"]) + "".join(self.draw.choices(IN_SETS, k=self.draw.randint(1, 4))) + "]" + often("", "+", "*")])()

    def pattern(self, patterns=PATTERNS):
        if patterns is PATTERNS and self.draw.random() < 0.15:
            self.certain = False
            return {"Regex": self.composed()}
        return {"String": self.draw.choice(STRINGS)} if self.draw.random() < 0.3 else {"Regex": self.draw.choice(patterns)}

    def byte_level(self):
        return dict(type="ByteLevel", add_prefix_space=self.flag(), trim_offsets=self.flag(), use_regex=self.flag())

    def rarely(self, usual, kinds):
        """A part of a kind that is not taken, once in a hundred files."""
        return self.draw.choice(kinds) if self.draw.random() < 0.01 else usual

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

    def parts(self, made, members):
        """The parts as one, in Sequences, of Sequences too."""
        if not made or len(made) == 1 and self.flag():
            return made[0] if made else None
        if len(made) > 1 and self.draw.random() < 0.3:
            at = self.draw.randrange(len(made))
            made = [*made[:at], self.parts(made[at:], members)]
        return {"type": "Sequence", members: made}

    def processor(self):
        token = lambda: dict(self.draw.choice([dict(id="<|endoftext|>", ids=[0]), dict(id="<s>", ids=[6]), dict(id="two", ids=[7, 8])]), tokens=["x"])
        around = [[token() for _ in range(self.draw.randint(0, 2))] for _ in range(2)]
        named = [[{"SpecialToken": {"id": one["id"], "type_id": 0}} for one in side] for side in around]
        return self.draw.choice([
            self.byte_level, lambda: dict(type="RobertaProcessing", sep=["</s>", 5], cls=["<s>", 6], trim_offsets=True, add_prefix_space=self.flag()),
            lambda: dict(type="BertProcessing", sep=["</s>", 5], cls=["<s>", 6]),
            lambda: dict(type="TemplateProcessing", single=[*named[0], {"Sequence": {"id": "A", "type_id": 0}}, *named[1]],
                         pair=[{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                         special_tokens={one["id"]: one | dict(tokens=["x"] * len(one["ids"])) for side in around for one in side})])()

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
        if self.draw.random() < 0.1:
            vocab["later"] = len(vocab) + self.draw.randint(0, 20)   # a gap
        if self.draw.random() < 0.01:
            vocab["twice"] = self.draw.randrange(len(vocab))
        if self.draw.random() < 0.2:
            merges = ["#version: 0.2"] * self.flag() + [" ".join(pair) for pair in merges]
        made = dict(type="BPE", dropout=self.draw.choice([None, 0.0]), unk_token=self.draw.choice([None, "<|endoftext|>"]), continuing_subword_prefix=self.draw.choice([None, ""]),
                    end_of_word_suffix=self.draw.choice([None, ""]), fuse_unk=self.flag(), byte_fallback=False, ignore_merges=self.flag(), vocab=vocab, merges=merges)
        if self.draw.random() < 0.1:
            del made["type"], made["ignore_merges"], made["byte_fallback"]   # as old files are
        key, value = self.rarely(("fuse_unk", True), [("dropout", 0.1), ("byte_fallback", True), ("end_of_word_suffix", "</w>")])
        return made | {key: value} if self.flag() else made

    def added(self, vocab):
        contents = ["<|endoftext|>"] + self.draw.sample(ADDED, self.draw.randint(0, 6))
        tokens, ids, next_id = [], dict(vocab), len(vocab)
        for content in contents:
            id = ids.setdefault(content, next_id)
            next_id = max(next_id, id + 1)
            tokens.append(dict(id=id, content=content, single_word=self.draw.random() < 0.3, lstrip=self.draw.random() < 0.3, rstrip=self.draw.random() < 0.3,
                               normalized=self.flag(), special=self.flag()))
        if self.draw.random() < 0.05:   # an id that the library does not give, or a token twice
            wrong = self.draw.choice(tokens)
            self.draw.choice([lambda: wrong.update(id=self.draw.choice([wrong["id"] + 1, 3, 100_000])), lambda: tokens.append(wrong | dict(id=next_id)), lambda: tokens.append(dict(wrong))])()
        return tokens

    def file(self):
        model = self.model()
        before, after = ([self.words() for _ in range(self.draw.randint(0, 2))] for _ in range(2))
        normalizers, processors = ([one() for _ in range(self.draw.randint(0, most))] for one, most in ((self.normalizer, 3), (self.processor, self.draw.choice([1, 1, 1, 2]))))
        words = self.rarely([*before, self.byte_level(), *after], OTHER_WORDS)
        return dict(version="1.0", truncation=self.draw.choice([None, dict(direction="Right", max_length=3, strategy="LongestFirst", stride=0)]),
                    padding=self.draw.choice([None, dict(strategy={"Fixed": 50}, direction="Right", pad_to_multiple_of=None, pad_id=0, pad_type_id=0, pad_token="<|endoftext|>")]),
                    added_tokens=self.added(model["vocab"]), normalizer=self.rarely(self.parts(normalizers, "normalizers"), OTHER_NORMALIZERS),
                    pre_tokenizer=self.parts(words, "pretokenizers"), post_processor=self.parts(processors, "processors"),
                    decoder=self.rarely(self.parts([self.byte_level()], "decoders"), OTHER_DECODERS), model=model)


class Tokenizers:
    def setup_method(self):
        self.program = subprocess.Popen([os.path.join(self.build, "tests/regression/encode_texts")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.at_end.callback(self.program.communicate)
        self.taken = self.compared = 0

    def ask(self, tokenizer, texts):
        self.program.stdin.write(json.dumps(dict(tokenizer=tokenizer, texts=texts)) + "\n")
        self.program.stdin.flush()
        return json.loads(self.program.stdout.readline())

    def needs_icu(self):
        if "without ICU" in self.ask(json.dumps(Drawn(random.Random(0)).file()), []).get("refused", ""):
            pytest.skip("built without ICU")

    def compare(self, file, texts, certain=True):
        text = json.dumps(file, ensure_ascii=False)
        answer = self.ask(text, texts)
        try:
            library = tokenizers.Tokenizer.from_str(text)
        except Exception as wrong:   # of the library, which has no type for it
            assert not certain, (wrong, file.get("pre_tokenizer"))
            return
        library.no_truncation()
        library.no_padding()
        told = {key: value for key, value in file.items() if key != "model"}
        if certain or "refused" not in answer:
            assert PREPARE.byte_level(text) == ("refused" not in answer), (answer.get("refused"), told)
        if "refused" in answer:
            return
        self.taken += 1
        for given, got in zip(texts, answer["texts"]):
            try:
                ids = library.encode(given).ids
            except BaseException as panic:  # of the library's own slips with a few normalizers; it has no narrower type
                if isinstance(panic, KeyboardInterrupt):
                    raise
                continue
            self.compared += 1
            assert got.get("ids") == ids, (given[:200], got.get("refused"), told)
            assert bytes(got["bytes"]).decode(errors="replace") == library.decode(ids), (given[:200], told)

    def test_files_of_random_parts(self):
        self.needs_icu()
        for seed in range(FILES):
            with self.subtests.test(seed=seed):
                draw = random.Random(seed)
                drawn = Drawn(draw)
                file = drawn.file()
                self.compare(file, ["".join(draw.choices(PIECES, k=draw.randint(1, 25))) for _ in range(TEXTS)], drawn.certain)
        assert self.taken > FILES * 0.5
        assert self.compared > self.taken * TEXTS * 0.8

    def test_every_character(self):
        """What each kind of part makes of every character that Python knows, a letter between."""
        self.needs_icu()
        known = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs") and (code < 0xE000 or code >= 0xF900) and not 0xF0100 <= code]
        split = lambda pattern, behaviour="Removed": dict(type="Split", pattern={"Regex": pattern}, behavior=behaviour, invert=False)
        parts = [dict(type="Whitespace"), dict(type="WhitespaceSplit"), dict(type="BertPreTokenizer"), dict(type="Punctuation", behavior="Isolated"), dict(type="Digits", individual_digits=True),
                 split(r"\b", "Isolated"), *map(split, (r"\s", r"\w", r"[\w]", r"[^\W]", r"\d", r"[^\s\p{L}\p{N}]", r"(?i:[a-zé])", r"\p{^L}"))]
        wide = [rf"\p{{{name}}}" for name in "L N P S M Lu Ll Lt Lm Lo Nd Nl No Han Greek Thai Emoji Lower Upper Punct Space Graph Extended_Pictographic".split()]
        forms = [dict(type=kind) for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")] + [dict(type="Strip", strip_left=True, strip_right=True)]
        if FILES < LONG:   # a character in sixteen, and the first
            known = known[:0x300] + random.Random(3).sample(known, len(known) // 16)
        for words, normalizer in [(part, None) for part in (*parts, *map(split, wide))] + [(parts[1], form) for form in forms]:
            file = Drawn(random.Random(2)).file() | dict(normalizer=normalizer, post_processor=None, added_tokens=[], truncation=None, padding=None, model=Drawn(random.Random(2)).model())
            file["pre_tokenizer"] = dict(type="Sequence", pretokenizers=[words, dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=False)])
            for begin in range(0, len(known), 4000):
                text = "a".join(known[begin:begin + 4000])
                self.compare(file, [text])
            assert self.taken == self.compared
        assert self.taken > 40

    def test_long_runs(self):
        self.needs_icu()
        length = 1_000_000 if FILES >= LONG else 400_000
        file = Drawn(random.Random(1)).file() | dict(normalizer=None, post_processor=None, added_tokens=[], truncation=None, padding=None)
        spaces = [dict(id=len(file["model"]["vocab"]) + i, content=content, single_word=False, lstrip=i % 2 == 0, rstrip=i % 3 == 0, normalized=True, special=False) for i, content in enumerate(("    ", "\n", "🙂"))]
        for added, pattern in [([], pattern) for pattern in (*WELL_KNOWN, r"(?:\p{L}\p{M}*)+|\s+(?!\S)|\s*[\r\n]+|.")] + [(spaces, WELL_KNOWN[0])]:
            file["pre_tokenizer"] = dict(type="Sequence", pretokenizers=[dict(type="Split", pattern={"Regex": pattern}, behavior="Isolated", invert=False),
                                                                         dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)])
            text = json.dumps(file | dict(added_tokens=added), ensure_ascii=False)
            library = tokenizers.Tokenizer.from_str(text)
            for run in " \n\ra7!🙂\u0301" if FILES >= LONG else " \na":
                long = run * (length // len(run.encode())) + "x"
                got = self.ask(text, [long])["texts"][0]
                assert "refused" not in got, pattern
                if not added:
                    assert bytes(got["bytes"]).decode() == long
                short = run * 2_000 + "x"   # the library gives up on longer ones of some patterns
                assert self.ask(text, [short])["texts"][0]["ids"] == library.encode(short).ids

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
            assert not PREPARE.byte_level(json.dumps(file | {key: value})), named
            assert named in refused or "without ICU" in refused, (named, refused)
