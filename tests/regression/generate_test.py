"""`tessera generate`: the same continuation as transformers', at any number of ranks, from decks, checkpoints and folders.
"""
import json
import os
import shutil

import pytest

import runs

ORACLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "oracle")


class Generate(runs.Runs):
    def generate(self, code, ranks, *arguments, **options):
        return self.run_to_its_end(code, ranks, "generate", *arguments, **options)

    def answer(self, ranks, *arguments, **options):
        out, err = self.generate(0, ranks, *arguments, "--json", **options)
        assert err == ""
        return json.loads(out)

    def test_greedy_tokens_are_transformers(self):
        for model in ("gpt2", "llama", "llama3", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "glm4_moe_alone", "dots1"):
            folder = os.path.join(ORACLE, "hf", model)
            with open(os.path.join(folder, "greedy.json")) as file:
                cases = json.load(file)["cases"]
            assert len(cases) > 1
            for case, ranks in zip(cases, (1, 2)):
                prompt = ",".join(map(str, case["prompt"]))
                found = self.answer(ranks, folder, "--prompt-ids", prompt, "--temperature", "0", "--tokens", str(len(case["tokens"])))
                assert found["tokens"] == case["tokens"], (model, case)

    def test_a_sequence_is_filled_to_its_end(self):
        for model in ("gpt2", "llama"):  # with and without an embedding of positions
            folder = os.path.join(ORACLE, "hf", model)
            for ranks in (1, 2):
                assert len(self.answer(ranks, folder, "--prompt-ids", "1,2,3")["tokens"]) == 10
            assert len(self.answer(1, folder, "--prompt-ids", ",".join("3" * 12), "--tokens", "1")["tokens"]) == 1

    def test_a_run_a_step_and_a_folder_write_the_same(self):
        deck = self.deck("a")
        self.train(75, 2, deck, "--stop-at", "4")
        self.tool(0, "convert", "a", "hf", "--to", "safetensors")
        asked = ["--prompt", "the ", "--tokens", "20", "--seed", "7"]
        wanted = self.answer(1, "a", *asked)
        assert (len(wanted["tokens"]), wanted["prompt_tokens"]) == (20, list(b"the "))
        for ranks, place in ((2, deck), (3, os.path.join("a", "step_00000004"))):
            found = self.answer(ranks, place, *asked)
            assert (found["tokens"], found["text"]) == (wanted["tokens"], wanted["text"])
        assert self.answer(1, "a", *asked[:-1], "8")["prompt"] == "the "
        assert self.answer(1, "a", *asked[:-1], "8")["tokens"] != wanted["tokens"]
        # Text printed as it is generated is the same, and the prompt may come from a pipe.
        out, _ = self.generate(0, 2, "a", "--tokens", "20", "--seed", "7", "--prompt", "-", input="the ")
        assert out == "the " + wanted["text"] + "\n"
        # Without a tokenizer the answer has only ids.
        out, _ = self.generate(0, 1, "hf", "--prompt-ids", "116,104", "--tokens", "3", "--temperature", "0")
        assert len(out.split()) == 3

    def test_a_tokenizer_beside_the_weights(self):
        if not runs.reads_tokenizers(self.tessera):
            pytest.skip("built without ICU")
        folder = self.path("words")
        shutil.copytree(os.path.join(ORACLE, "hf", "gpt2"), folder)
        config = os.path.join(folder, "config.json")
        shutil.copy(os.path.join(ORACLE, "tokenizers", "gpt2", "tokenizer.json"), folder)
        err = self.generate(5, 1, folder, "--prompt", "The")[1]
        assert "has 420 tokens, and the model a vocabulary of 61" in err
        with open(os.path.join(folder, "tokenizer.json")) as file:
            small = json.load(file)
        small["model"]["vocab"] = {token: id for token, id in small["model"]["vocab"].items() if id < 61}
        small["model"]["merges"] = []
        with open(os.path.join(folder, "tokenizer.json"), "w") as file:
            json.dump(small, file)
        found = self.answer(1, folder, "--prompt", "2+2=", "--tokens", "5", "--temperature", "0")
        assert len(found["prompt_tokens"]) == 4
        out, _ = self.generate(0, 1, folder, "--prompt", "2+2=", "--tokens", "5", "--temperature", "0")
        assert out == "2+2=" + found["text"] + "\n"
        # If the folder lists the first generated token as end of text, the text ends there.
        with open(os.path.join(folder, "generation_config.json"), "w") as file:
            json.dump({"eos_token_id": [60, found["tokens"][0]]}, file)
        assert self.answer(1, folder, "--prompt", "2+2=", "--tokens", "5", "--temperature", "0")["tokens"] == []
        assert "no token for" in self.generate(2, 2, folder, "--prompt", "z{")[1]
        assert os.path.exists(config)

    def test_json_holds_every_byte(self):
        self.train(0, 1, self.deck("a"))
        decoded = lambda ids: bytes(ids).decode(errors="replace")   # a model of bytes: each is a token
        seen = set()
        for seed in range(8):   # so hot that every byte is about as likely
            found = self.answer(1, "a", "--prompt-ids", "12,27,0,237,160,128", "--seed", str(seed), "--temperature", "1000", "--tokens", "27")
            assert found["text"] == decoded(found["tokens"])
            seen |= set(found["tokens"])
        assert seen & set(range(32)) and seen & set(range(128, 256)), seen
        for prompt in ("\f\x1b\x00\x7f\x01", "a\udce4b", "\udced\udca0\udcbd", "\udcff\udcfe", "\u2028\x85\ufeff"):   # \udcXX: the byte 0xXX
            raw = prompt.encode(errors="surrogateescape")
            found = self.answer(1, "a", "--prompt", "-", "--tokens", "1", input=prompt)
            assert (found["prompt"], found["prompt_tokens"]) == (decoded(raw), list(raw))

    def test_refusals(self):
        folder = os.path.join(ORACLE, "hf", "llama")
        assert "--prompt-ids" in self.generate(2, 1, folder, "--prompt", "no tokenizer")[1]
        assert "is needed" in self.generate(2, 2, folder)[1]
        assert "61 is outside the vocabulary of 61" in self.generate(2, 2, folder, "--prompt-ids", "3,61")[1]
        assert "sequences of 12" in self.generate(2, 1, folder, "--prompt-ids", "3", "--tokens", "13")[1]
        assert ("13 tokens, and the model's sequences hold 12: give its end alone, the last 12\n"
                in self.generate(2, 1, folder, "--prompt-ids", ",".join("3" * 13))[1])
        assert "an id is missing" in self.generate(2, 1, folder, "--prompt-ids", "")[1]
        for ids in ("1,,2", ",1", "1,", "1,x", "1 2", "1,99999999999", "0x3"):
            assert "an id is missing or none" in self.generate(2, 1, folder, "--prompt-ids", ids)[1], ids
        assert "nowhere" in self.generate(5, 2, "nowhere", "--prompt", "a")[1]
        self.generate(2, 1, folder, "--prompt-ids", "3", "--top-p", "0")
        assert "--seed" in self.generate(2, 1, folder, "--prompt-ids", "3", "--seed", "-1")[1]
        self.generate(2, 1, folder, "--prompt-ids", "3", "--prompt", "a")
        self.generate(2, 1)
