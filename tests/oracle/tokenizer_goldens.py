"""Makes tokenizers/<name>/: byte-level BPE as Hugging Face's `tokenizers` trains and saves it (tokenizer.json), and
golden.json with texts of several scripts and the ids that the library encodes them to.

    python tests/oracle/tokenizer_goldens.py            # makes all again; needs tokenizers from PyPI

`gpt2` splits words by GPT-2's pattern. `llama3` splits by Llama 3's, has a template that puts a token before each text,
and does not merge within words that are tokens themselves. `qwen2` splits by Qwen 2's pattern after NFC normalization,
and has added tokens that are plain text.
"""
import json
import pathlib
import shutil

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent / "tokenizers"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
LEARNED = ["The quick brown fox jumps over the lazy dog. It's what they've said, isn't it? We'll see; I'm sure you'd agree.\n",
           "Die Straße führt über Äcker und Wälder nach Süden, wo man größere Städte findet.\n",
           "Быстрая коричневая лиса прыгает через ленивую собаку, и никто этому не удивляется.\n",
           "敏捷的棕色狐狸跳过了懒狗。今天天气很好，我们去公园散步吧。\n",
           "नमस्ते दुनिया, आज का दिन बहुत अच्छा है। مرحبا بالعالم، كيف حالك اليوم؟\n",
           "def f(x):\n    return x ** 2 + 12345\n\n\tfor i in range(100):\n        print(f'{i:>8}')\n"] * 3
TEXTS = LEARNED[:6] + [
    "", " ", "\n", "   leading and trailing   ", "a\r\nb\rc\n\n\n  d", "tabs\t\tand \u00a0 no-break\u2003em\u200bzero\u3000wide",
    "I'M SURE THEY'VE SAID IT'S FINE, WE'LL SEE'D", "’tis don’t 'Tis", "1234567890 ١٢٣٤ ½ Ⅷ ²³ 3.14159e-10", "α β γ ἀρχή Ελληνικά",
    "日本語のテキストと한국어 텍스트", "שלום עולם", "ไทยไม่มีช่องว่าง", "e\u0301 é ü u\u0308 Å \u212b ﬁ ﬀ",
    "👩‍👩‍👧‍👦 🇩🇪 👍🏽 ❤️", "\u0000\u0001\x7f controls \u0085 next", "https://example.org/a?b=c&d=%20#e",
    "a" * 300, " " * 130 + "x", "!!!???...,,,;;;", "<|endoftext|>", "one<|endoftext|>two <|endoftext|>", "<|end<|endoftext|>oftext|>",
    "a<think>b</think> c", "ſ'ſ 'S", "\ufeffBOM", "x\u2028y\u2029z", "\U0001d518\U0001d52b\U0001d526 \U00020000\U0010ffff", "_snake_case CamelCase kebab-case",
]


def trained(tokenizer, size=420):
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], initial_alphabet=sorted(alphabet), show_progress=False)
    tokenizer.train_from_iterator(LEARNED, trainer)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_level(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return trained(tokenizer)


def llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = byte_level(LLAMA3)
    trained(tokenizer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])])
    return tokenizer


def qwen2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = byte_level(QWEN2)
    trained(tokenizer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False), AddedToken("é c", normalized=True)])
    return tokenizer


if __name__ == "__main__":
    for make in (gpt2, llama3, qwen2):
        folder = HERE / make.__name__
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        tokenizer = make()
        tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
        cases = [dict(text=text, ids=(ids := tokenizer.encode(text).ids), decoded=tokenizer.decode(ids)) for text in TEXTS]
        golden = dict(made_by="tests/oracle/tokenizer_goldens.py", tokenizers=tokenizers.__version__, vocabulary=tokenizer.get_vocab_size(), cases=cases)
        (folder / "golden.json").write_text(json.dumps(golden, ensure_ascii=True) + "\n")
        print(make.__name__, tokenizer.get_vocab_size(), sum(len(case["ids"]) for case in cases))
