"""Folders of Hugging Face: what travels with their weights through runs and back, and what of them is taken, told or refused.
"""
import array
import json
import os
import random
import re
import shutil
import struct

import runs
import small_folders

DECK = """schema_version: 1
run: {name: words, steps: 2, threads: 1}
model: {layers: 1, hidden: 8, heads: 2, ffn: 16, seq_len: 64, vocab: 300, norm: rms, norm_eps: 1.0e-6, activation: swiglu, position: rotary}
data: {kind: tokens, files: ["tokens.bin"]}
batch: {global: 6, micro: 1}
optimizer: {lr: 0.01, warmup_steps: 1}
checkpoint: {dir: DIR, every_steps: 0, init_from: FROM, io: direct}
"""
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>\u00e9\n{% endfor %}"


class Folders(runs.Runs):
    def setup_method(self):
        super().setup_method()
        ids = [7 * i % 251 for i in range(4000)]
        with open(self.path("tokens.bin"), "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + array.array("H", ids).tobytes())

    def words(self, name, source, **tokenizer):
        """A deck of a run that starts from `source`. tokenizer: its tokenizer.json, if it has one."""
        deck = DECK.replace("DIR", self.path(name)).replace("FROM", self.path(source))
        for content in tokenizer.values():
            small_folders.write_json(self.path(name + ".json"), content)
            deck = deck.replace('["tokens.bin"]', f'["tokens.bin"], tokenizer: {name}.json')
        return self.write(name + ".yaml", deck)

    def convert(self, *arguments):
        """Converts, and returns what is told on stderr."""
        _, err = self.run_to_its_end(0, 1, "checkpoint", "convert", *arguments)
        return err

    def tokens(self, place, *more, told=False):
        out, err = self.run_to_its_end(0, 1, "generate", place, "--prompt-ids", "5,9,33", "--tokens", "12", "--temperature", "0", "--json", *more)
        assert bool(err) == told, err
        return json.loads(out)["tokens"]

    def validate(self, code, deck, *more):
        out, err = self.run_to_its_end(code, 1, "validate", deck, *more)
        return out if code == 0 and not err else err

    def both_refuse(self, deck, *more):
        """validate and train end with the same code and name the same thing; returns the words."""
        err = self.validate(5, deck, *more)
        _, train = self.train(5, 1, deck, *more)
        assert set(err.splitlines()) - set(train.splitlines()) == set()
        return err

    def test_a_text_ends_at_the_same_ids_everywhere(self):
        words = small_folders.tokenizer(more=("<|endoftext|>", "<|im_end|>"))
        free = self.tokens(small_folders.llama(self.path("free")))
        end, later = free[2], free[6]
        assert end not in free[:2]
        named = small_folders.tokenizer()
        vocab = named["model"]["vocab"]
        letter = next(token for token, id in vocab.items() if id == end)
        vocab["<|over|>"] = vocab.pop(letter)  # a name that is no usual one
        named["model"]["merges"] = [merge for merge in named["model"]["merges"] if letter not in merge.split(" ")]
        named["added_tokens"] = [small_folders.added(end, "<|over|>")]
        unread = small_folders.tokenizer()
        unread["model"]["type"], unread["added_tokens"] = "Unigram", [small_folders.added(end, "</s>")]
        ways = [({"eos_token_id": end}, {}), ({"eos_token_id": [later, end], "bos_token_id": 1, "pad_token_id": 2}, {"tokenizer.json": words}),
                ({}, {"generation_config.json": {"eos_token_id": end, "temperature": 0.5}}),
                ({"eos_token_id": later}, {"generation_config.json": {"eos_token_id": [end, 4], "pad_token_id": 4}, "tokenizer.json": words}),
                ({"eos_token_id": end}, {"generation_config.json": {"do_sample": True}}),
                ({}, {"tokenizer_config.json": {"eos_token": {"content": "<|over|>"}}, "tokenizer.json": named}),
                ({}, {"tokenizer.json": unread})]
        for i, (config, files) in enumerate(ways):
            name = f"f{i}"
            small_folders.llama(self.path(name), files=files, **config)
            told = files.get("tokenizer.json") is unread
            self.convert(name, name + "_run")
            self.convert(name + "_run", name + "_back", "--to", "safetensors")
            for place in (name, name + "_run", name + "_back"):
                assert self.tokens(place, told=told) == free[:2], (i, place)
            with open(self.path(name + "_back", "config.json")) as file:
                back = json.load(file)
            assert {key: back[key] for key in config} == config

    def test_companions_go_through_training_and_back(self):
        words = small_folders.tokenizer(more=("<|endoftext|>", "<|im_end|>"))
        files = {"tokenizer.json": json.dumps(words), "tokenizer_config.json": json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}),
                 "special_tokens_map.json": '{"eos_token":   "<|im_end|>"}', "generation_config.json": '{"eos_token_id": [261, 260], "top_p": 0.9}',
                 "chat_template.jinja": TEMPLATE, "added_tokens.json": "{}"}
        small_folders.llama(self.path("chat"), files=files, eos_token_id=261, bos_token_id=260)
        more = [["--set", "parallel.expert=1"], ["--set", "sharding=full"]]
        for ranks, settings in zip((1, 3), more):
            name = f"run{ranks}"
            deck = self.words(name, "chat", tokenizer=words)
            self.train(75, ranks, deck, *settings, "--stop-at", "1")
            self.train(0, ranks, deck, *settings)  # resumed
            assert self.tool(0, "verify", name) == {"ok": True, "failures": []}
            self.convert(name, name + "_back", "--to", "safetensors")
            for file, text in files.items():
                assert self.read(name, "step_00000001", file) == text, file
                assert self.read(name, "step_00000002", file) == text, file
                assert self.read(name + "_back", file) == text, file
            assert "not taken along" not in self.convert("chat", name + "_copy")
            assert "moving averages" not in self.convert(name, name + "_weights", "--to", "safetensors")
            averaged = name + "_averaged"
            self.train(0, ranks, deck, *settings, "--set", "optimizer.ema=0.9", "--set", f"checkpoint.dir={self.path(averaged)}")
            assert "with --ema the averages" in self.convert(averaged, averaged + "_weights", "--to", "safetensors")
            assert "averages" not in self.convert(averaged, averaged + "_ema", "--to", "safetensors", "--ema")
            os.makedirs(self.path("chat", "additional_chat_templates"))
            assert "additional_chat_templates: is not taken along" in self.convert("chat", name + "_told")
            os.rmdir(self.path("chat", "additional_chat_templates"))
            with open(self.path(name + "_back", "config.json")) as file:
                back = json.load(file)
            assert (back["eos_token_id"], back["bos_token_id"], back.get("pad_token_id")) == (261, 260, None)

    def test_a_head_is_never_dropped(self):
        small_folders.llama(self.path("other"), tied=True, head="other")
        small_folders.llama(self.path("same"), tied=True, head="same")
        small_folders.llama(self.path("tied"), tied=True)
        small_folders.llama(self.path("free"))
        _, err = self.run_to_its_end(5, 1, "checkpoint", "convert", "other", "lost")
        assert "lm_head.weight differs from model.embed_tokens.weight" in err
        assert self.tokens("same") == self.tokens("tied")
        os.remove(self.path("other", "config.json"))
        shutil.copy(self.path("free", "config.json"), self.path("other"))  # tie_word_embeddings: false
        assert self.tokens("other") == self.tokens("free")

    def test_keys_are_taken_told_or_refused(self):
        draw = random.Random(11)
        harmless = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"kv_cache_dtype": {"q4": "float16"}},
                    "unsloth_version": "2025.1", "unsloth_fixed": True, "_attn_implementation": "sdpa", "temperature": 0.6, "partial_rotary_factor": 1.0}
        plain = self.tokens(small_folders.llama(self.path("plain")))
        for i in range(3):
            keys = draw.sample(sorted(harmless), 3)
            name = f"h{i}"
            small_folders.llama(self.path(name), **{key: harmless[key] for key in keys})
            err = self.convert(name, name + "_run")
            assert err.count("\n") == 1, err
            for key in keys:
                assert key in err
            assert self.tokens(name, told=True) == plain
        serious = {"rope_interleaved": True, "final_logit_softcapping": 30.0, "partial_rotary_factor": 0.5, "residual_multiplier": 0.2, "auto_map": {"AutoModel": "x"},
                   "".join(draw.choices("abcdefgh", k=9)): 3}
        small_folders.llama(self.path("serious"), **serious, **{"is_llama_config": True})
        _, err = self.run_to_its_end(5, 1, "checkpoint", "convert", "serious", "lost")
        for key in serious:
            assert re.search(rf"config\.json: {key}: .*unknown here.*may be taken out of a copy", err)
        assert "is_llama_config" not in err

    def test_windows(self):
        plain = self.tokens(small_folders.llama(self.path("plain")))
        shorter = {"model_type": "mistral", "sliding_window": 20}
        for i, keys in enumerate(({"model_type": "mistral"}, {"model_type": "mistral", "sliding_window": 64}, {"sliding_window": 100},
                                  {"sliding_window": 8, "use_sliding_window": False}, {"model_type": "mistral", "sliding_window": None},
                                  {"sliding_window": 8, "layer_types": ["full_attention"]})):
            assert self.tokens(small_folders.llama(self.path(f"w{i}"), **keys)) == plain, keys
        # A shorter window: sequences as long as it, in which it changes nothing.
        small_folders.llama(self.path("short"), **shorter)
        assert self.tokens("short", told=True) == plain
        _, err = self.run_to_its_end(2, 1, "generate", "short", "--prompt-ids", "1", "--tokens", "21")
        assert "sequences of 20" in err
        self.validate(0, self.words("b", "short"), "--set", "model.seq_len=20")
        assert ("model.seq_len: 21 is longer than its attention windows of 20"
                in self.both_refuse(self.words("c", "short"), "--set", "model.seq_len=21"))

    def test_prompts_of_ids_need_no_tokenizer(self):
        plain = self.tokens(small_folders.llama(self.path("plain")))
        sentence, large = small_folders.tokenizer(), small_folders.tokenizer(more=[f"<|{i}|>" for i in range(60)])
        sentence["model"].update(byte_fallback=True, type="Unigram", vocab=[["<unk>", 0.0], ["\u2581the", -1.0]])
        sentence["decoder"] = {"type": "Metaspace"}
        draw, torn = random.Random(3), []
        for _ in range(3):  # parts of a tokenizer of another shape
            torn.append(small_folders.tokenizer())
            for part in (draw.choice(("added_tokens", "pre_tokenizer", "model")), draw.choice(("merges", "vocab"))):
                torn[-1]["model" if part in ("merges", "vocab") else part] = draw.choice(([3, [4]], {part: 5}, 7, "text", [{"content": 5, "id": "x"}]))
        for i, tokenizer in enumerate((sentence, large, *torn, "no JSON", "", [1], {"model": 3}, POINTER, None)):
            name = f"t{i}"
            small_folders.llama(self.path(name), files={} if tokenizer is None else {"tokenizer.json": tokenizer})
            places = (name, name + "_run")
            if tokenizer is None:
                os.mkdir(self.path(name, "tokenizer.json"))
            if tokenizer in (None, POINTER):  # no file that could go on with the weights
                self.run_to_its_end(5, 1, "checkpoint", "convert", *places)
                places = (name,)
            else:
                self.convert(*places)
            for place in places:
                assert self.tokens(place, told=True) == plain, (i, place)
            out, err = self.run_to_its_end(0, 1 + i % 2, "generate", places[-1], "--prompt-ids", "5,9", "--tokens", "3")
            assert len(out.split()) == 3, out
            assert err.count("the answer is ids without text") == 1, err
            self.run_to_its_end(5, 1, "generate", places[-1], "--prompt", "the")

    def test_a_deck_whose_tokenizer_is_gone_finds_its_run(self):
        small_folders.llama(self.path("plain"), vocab=261)
        deck = self.words("a", "plain", tokenizer=small_folders.tokenizer())
        self.write("a.yaml", self.read("a.yaml").replace(", vocab: 300", ""))  # it is the tokenizer's
        self.train(0, 1, deck, "--set", "run.steps=0")
        wanted = self.tokens("a")
        os.remove(self.path("a.json"))
        assert self.tokens(deck) == wanted

    def test_weights_of_another_tokenizer(self):
        words = small_folders.tokenizer()
        small_folders.llama(self.path("words"), files={"tokenizer.json": words, "generation_config.json": {"eos_token_id": 260}})
        self.convert("words", "run")
        other = small_folders.tokenizer(merges=(("i", "n"), ("t", "h"), ("th", "e"), ("a", "n")))
        for source in ("words", "run"):
            deck = self.words("o_" + source, source, tokenizer=other)
            assert "these weights were trained with another tokenizer" in self.both_refuse(deck)
            out, _ = self.train(0, 2, deck, "--set", "checkpoint.init_other_tokenizer=true")
            assert "another tokenizer than data.tokenizer (allowed)" in out
            step = os.listdir(self.path("o_" + source, "step_00000002"))
            assert "tokenizer.json" in step
            assert "generation_config.json" not in step  # it speaks of the other's ids
            assert ("this run's tokens are bytes"
                    in self.both_refuse(self.words("b_" + source, source), "--set", "data.kind=text", "--set", "data.files=[corpus.txt]"))
        # The same ids: nothing is told. Further tokens are.
        same = json.loads(json.dumps(words, sort_keys=True))
        same["model"]["merges"] = [merge.split(" ") for merge in words["model"]["merges"]]
        same["decoder"], same["padding"] = {"type": "Sequence", "decoders": [same["decoder"]]}, {"strategy": "BatchLongest"}
        out, _ = self.train(0, 1, self.words("same", "run", tokenizer=same))
        assert "token" not in out.split("starts with the weights of")[1].splitlines()[1]
        out, _ = self.train(0, 1, self.words("more", "run", tokenizer=small_folders.tokenizer(more=("<|endoftext|>", "<|user|>"))))
        assert '1 token more than the weights were trained with: "<|user|>" (261)' in out
        # Tokens beside token files are theirs where the deck names none.
        small_folders.write_json(self.path("tokenizer.json"), other)
        assert "another tokenizer" in self.both_refuse(self.words("beside", "run"))
        # Weights of bytes.
        self.train(75, 1, self.deck("bytes", None), "--stop-at", "1", "--set", "model.vocab=300")
        assert "their tokens are bytes" in self.validate(5, self.words("from_bytes", "bytes", tokenizer=other))

    def test_validate_says_what_train_says_of_the_weights(self):
        small_folders.llama(self.path("words"))
        self.convert("words", "run")
        self.validate(0, self.words("good", "run"))
        for source in ("words", "run"):
            for key, word in (("model.ffn=24", "shape: "), ("model.layers=2", "missing: "), ("model.norm_eps=0.1", "model.norm_eps was")):
                assert word in self.both_refuse(self.words("a", source), "--set", key)
            grown = ("--set", "model.vocab=310")
            assert "checkpoint.init_rows: [embed.tokens, head.weight] takes the rows" in self.both_refuse(self.words("a", source), *grown)
            self.validate(0, self.words("a", source), *grown, "--set", "checkpoint.init_rows=[embed.tokens, head.weight]")
        for source in ("nowhere", "corpus.txt"):
            assert source in self.both_refuse(self.words("a", source))
        for source in ("gpt2", "owner/model"):  # names on a hub
            said = self.both_refuse(self.words("a", source), "--set", f"checkpoint.init_from={source}")
            assert f"`hf download {source} --local-dir DIR`" in said
        for source in ("run/step_00000001", "./gpt2", self.path("gpt2")):  # paths
            assert "hf download" not in self.both_refuse(self.words("a", source), "--set", f"checkpoint.init_from={source}")
        small_folders.llama(self.path("half"))
        os.remove(self.path("half", "config.json"))
        assert "half: holds safetensors without the config.json" in self.both_refuse(self.words("a", "half"))
        assert "no weight of the model" in self.validate(3, self.words("a", "run"), "--set", "checkpoint.init_missing=[nothing]")
        os.truncate(self.path("run", "model.h5"), 100)
        assert "model.h5" in self.both_refuse(self.words("a", "run"))
        assert not os.path.exists(self.path("a"))

    def test_files_that_are_none(self):
        small_folders.llama(self.path("nan"), rms_norm_eps=float("nan"))
        _, err = self.run_to_its_end(5, 1, "checkpoint", "convert", "nan", "lost")
        text = self.read("nan", "config.json")
        assert f"config.json:1:{text.index('NaN') + 1}: is no JSON: NaN is no number of JSON" in err
        small_folders.llama(self.path("huge"))
        for name in ("generation_config.json", "model.safetensors.index.json", "config.json"):
            text = '{"top_p":\n 0.5, "theta": -1e400}' if name != "config.json" else self.read("huge", name).replace("10000.0", "1e400")
            if name == "model.safetensors.index.json":
                os.remove(self.path("huge", "model.safetensors"))
            self.write(os.path.join("huge", name), text)
            reads = ["generate", "huge", "--prompt-ids", "1"] if name == "generation_config.json" else ["checkpoint", "convert", "huge", "lost"]
            _, err = self.run_to_its_end(5, 1, *reads)
            at = text.index("1e400") - (name != "config.json")
            place = f"{1 + text[:at].count(chr(10))}:{at - text[:at].rfind(chr(10))}"
            assert re.fullmatch(f"(/.*/)?huge/{name}:{place}: -?1e400 is larger than any number that is read, 1.8e308\n", err), err
            if name == "generation_config.json":
                os.remove(self.path("huge", name))
        for name in ("model.safetensors", "config.json", "tokenizer.json", "generation_config.json"):
            shutil.rmtree(self.path("lfs"), ignore_errors=True)
            small_folders.llama(self.path("lfs"))
            self.write(os.path.join("lfs", name), POINTER)
            _, err = self.run_to_its_end(5, 1, "checkpoint", "convert", "lfs", "lost")
            assert re.search(name + ": is a pointer of git-lfs", err)
        self.train(75, 1, self.deck("bytes", None), "--stop-at", "1")
        assert "has no tokenizer, since this model's tokens are the bytes of a text" in self.convert("bytes", "bytes_hf", "--to", "safetensors")

    def test_numbers_that_are_not_finite_go_nowhere(self):
        """Neither into a checkpoint nor into another folder, as they are or by rounding."""
        name, canonical = "model.layers.0.mlp.down_proj.weight", "/model/layers.0.mlp.down.weight"
        said = f"is refused: 2 of the 128 elements of {canonical} are not finite in"
        for folder, number in (("nan", float("nan")), ("inf", float("-inf")), ("large", 3.4e38)):
            small_folders.llama(self.path(folder), numbers={name: {5: number, 127: number}})
            for to in ("safetensors", "tessera"):
                before = sorted(os.listdir(self.folder))
                narrow = ["checkpoint", "convert", folder, "lost", "--to", to, "--dtype", "bf16"]
                _, err = self.run_to_its_end(6, 1, *narrow)
                remedy = f": {folder} has numbers there that bf16 cannot express; give --dtype fp32" if folder == "large" else ""
                assert err == f"lost {said} bf16{remedy}\n"
                if folder == "large":
                    self.convert(folder, f"kept_{to}", "--to", to)
                    continue
                _, err = self.run_to_its_end(6, 1, "checkpoint", "convert", folder, "lost", "--to", to)
                assert err == f"lost {said} fp32\n"
                assert sorted(os.listdir(self.folder)) == before
        _, err = self.run_to_its_end(6, 1, "checkpoint", "convert", "kept_tessera", "lost", "--to", "safetensors", "--dtype", "bf16")
        assert f"lost {said} bf16: kept_tessera has numbers there" in err
        assert not os.path.exists(self.path("lost"))

    def test_thousands_of_differences_are_counted(self):
        small_folders.llama(self.path("deep"), num_hidden_layers=200)
        _, err = self.run_to_its_end(5, 1, "checkpoint", "convert", "deep", "lost")
        lines = err.splitlines()
        assert len(lines) == 9
        assert [line.startswith("deep: missing: model.layers.") for line in lines[:8]] == [True] * 8
        assert lines[8] == f"deep: missing: and {199 * 9 - 8} more"

    def test_a_model_that_no_folder_expresses(self):
        self.train(75, 1, self.deck("wide", None), "--stop-at", "1", "--set", "model.qk_norm=true", "--set", "model.qk_norm_over=width")
        _, err = self.run_to_its_end(5, 1, "checkpoint", "convert", "wide", "lost", "--to", "safetensors")
        assert "model.qk_norm_over: width cannot be expressed: Hugging Face's qwen3 has head, with which a model to hand over must be trained" in err
