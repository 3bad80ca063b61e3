"""Commands of docs/tutorial.md, on its decks with smaller models and fewer steps: from a folder of Hugging Face to one that answers
as `generate` and, where this Python has transformers and torch, its pipeline do.
"""
import importlib.util
import json
import os
import shlex
import subprocess
import sys

import pytest

import documents
import runs
import small_folders

TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
ADDED = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
COLOURS = {"snow": "white", "grass": "green", "coal": "grey", "the sky": "blue"}
PIPELINE = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))


def shortened(block, *changes):
    for long, short in changes:
        assert long in block, (long, block)
        block = block.replace(long, short)
    return block


class Tutorial(runs.InFolder):
    def setup_method(self):
        super().setup_method()
        os.remove(self.path("corpus.txt"))
        os.symlink(os.path.join(documents.ROOT, "examples"), self.path("examples"))
        os.symlink(os.path.join(documents.ROOT, "python"), self.path("python"))
        os.makedirs(self.path("venv", "bin"))
        for name, program in (("python", sys.executable), ("python3", sys.executable), ("tessera", self.tessera), ("mpiexec", self.launcher)):
            with open(os.open(self.path("venv", "bin", name), os.O_CREAT | os.O_WRONLY, 0o755), "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec {shlex.quote(program)} "$@"\n')

    def blocks(self, section):
        return [block.strip("\n") for block in documents.indented(documents.section(documents.read("docs/tutorial.md"), section))]

    def run_all(self, commands):
        """What each block printed; all run in one shell, as one types them. Nothing is installed: this Python has what it has."""
        lines = [line for command in commands for line in (*command.split("\n"), "printf '\\f'") if " install " not in line]
        done = subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=self.folder, capture_output=True, text=True, timeout=runs.PATIENCE,
                              env={**os.environ, "PATH": f"{self.path('venv', 'bin')}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr)
        said = done.stdout.split("\f")[:-1]
        assert len(said) == len(commands), done.stdout
        return said

    def test_train_on_your_own_data(self):
        os.mkdir(self.path("my_texts"))
        self.write("my_texts/a.txt", runs.CORPUS)
        self.write("other.txt", runs.CORPUS[:500])
        (deck,) = self.blocks("1. A deck")
        self.write("notes.yaml", shortened(deck, ("steps: 300", "steps: 6"), ("layers: 4", "layers: 1"), ("hidden: 128", "hidden: 32"),
                                           ("seq_len: 256", "seq_len: 32"), ("every_steps: 50", "every_steps: 3"), ("tokens: 200", "tokens: 20"),
                                           ("warmup_steps: 20", "warmup_steps: 2")))
        sections = ("2. Look before training", "3. Train", "4. Change something", "5. Use the result")
        commands = [line for name in sections for block in self.blocks(name) for line in block.split("\n")]
        if not importlib.util.find_spec("numpy"):
            commands = [line for line in commands if "needs numpy" not in line]
        assert len(commands) > 8
        said = dict(zip(commands, self.run_all(commands)))
        assert {len(self.json_lines("runs", run, "metrics.jsonl")) for run in ("notes", "notes_muon", "notes_fp8")} == {6}
        assert "bits a byte" in next(text for line, text in said.items() if "--text" in line)
        assert os.path.exists(self.path("notes_hf", "model.safetensors"))

    def test_a_model_that_answers(self):
        name = "From a model of Hugging Face to one that answers"
        blocks = self.blocks(name)
        (chat,) = [block for block in blocks if '"messages"' in block]
        (asked,) = [block for block in blocks if '"prompt"' in block]
        (deck,) = [block for block in blocks if "schema_version" in block]
        commands = [block for block in blocks if block not in (chat, asked, deck)]
        if not PIPELINE:
            commands[-1] = "\n".join(line for line in commands[-1].split("\n")[:1])
        chats = [chat.replace("snow", thing).replace("white", colour) for thing, colour in COLOURS.items()]
        self.write("my_chats.jsonl", "\n".join(chats * 30) + "\n")
        self.write("my_held_chats.jsonl", "\n".join(chats * 2) + "\n")
        self.write("asked.jsonl", "\n".join(asked.replace("snow", thing) for thing in COLOURS) + "\n")
        self.write("chat.yaml", shortened(deck, ("steps: 1000", "steps: 200"), ("lr: 2.0e-5, warmup_steps: 50", "lr: 3.0e-3, warmup_steps: 5"),
                                          ("global: 32", "global: 8"), ("every_steps: 50", "every_steps: 40")) + "\n")
        small_folders.llama(self.path("Llama-folder"), vocab=256 + 4 + len(ADDED), hidden=64, spread=0.1, eos_token_id=262, bos_token_id=260, files={
            "tokenizer.json": small_folders.tokenizer(more=ADDED), "generation_config.json": {"bos_token_id": 260, "eos_token_id": [262, 260]},
            "tokenizer_config.json": {"bos_token": ADDED[0], "eos_token": ADDED[2], "chat_template": TEMPLATE,
                                      "tokenizer_class": "PreTrainedTokenizerFast"}})
        said = self.run_all(commands)
        prepared, listed, generated = said[0], said[2], said[3]
        assert deck[deck.index("files:"):deck.index(", tokenizer:")] in prepared
        assert "best)" in listed
        prompts = [json.loads(line)["prompt"] for line in self.read("asked.jsonl").splitlines()]
        answers = [f"It is {colour}." for colour in COLOURS.values()]
        # Each ends at the template's end token, long before 128 tokens, which are also more than its sequences hold.
        assert generated == "".join(f"{prompt}{answer}\n" for prompt, answer in zip(prompts, answers))
        with open(self.path("answers", "tokenizer_config.json"), encoding="utf-8") as file:
            assert json.load(file)["chat_template"] == TEMPLATE
        asked = self.run_all(["tessera generate answers --prompts asked.jsonl --temperature 0"])
        assert asked == [generated]
        if not PIPELINE:
            pytest.skip("the pipeline's answer was not compared: this Python lacks transformers or torch; all else was tested")
        assert said[-1].splitlines()[-1] == answers[0]
