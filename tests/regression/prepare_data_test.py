"""examples/prepare_data/prepare.py: token files from text, folders and .jsonl; memory; interruption and resumption; refusals.
"""
import array
import importlib.util
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest
import unittest.mock

import pytest

pytest.importorskip("tokenizers.models")  # of the library: a folder of tests/oracle is called tokenizers, too
import tokenizers  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
PREPARE = HERE / "../../examples/prepare_data/prepare.py"
sys.path.insert(0, str(PREPARE.parent))  # where it finds its own modules
GIVEN = HERE / "../oracle/tokenizers/llama3/tokenizer.json"


def words(seed, how_many):
    """Different words of lower-case letters."""
    draw = random.Random(seed)
    return list({"".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 10))) for _ in range(how_many)})


def held_mib(group):
    """MiB that the processes of a group hold together, each shared page counted once."""
    held = 0
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                held += sum(int(line.split()[1]) for line in (folder / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
        except OSError:  # has ended
            pass
    return held >> 10


class Prepare:
    def setup_method(self):
        self.folder = pathlib.Path(self.folder)
        (self.folder / "books").mkdir()
        for i in range(3):
            (self.folder / "books" / f"{i}.txt").write_text(f"Book {i} über Äpfel.\n\n" * (40 + i))
        with open(self.folder / "web.jsonl", "w") as file:
            for i in range(300):
                file.write(json.dumps(dict(text=f"document {i} 日本語 {i * i}", id=i)) + "\n\n")

    def prepare(self, code, *arguments):
        done = subprocess.run([sys.executable, PREPARE, "out", *map(str, arguments), "--workers", "2"], cwd=self.folder, capture_output=True,
                              text=True, timeout=300)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        self.errors = done.stderr
        return done.stdout if code == 0 else done.stderr

    def ids(self, pattern, out="out"):
        ids = []
        for path in sorted((self.folder / out).glob(pattern)):
            raw = path.read_bytes()
            magic, version, count = struct.unpack("<3i", raw[:12])
            assert (magic, version, len(raw)) == (20240520, 1, 1024 + 2 * count)
            ids += array.array("H", raw[1024:])
        return ids

    def test_documents_come_out_again(self):
        self.prepare(0, "books", "web.jsonl", "--tokenizer", GIVEN, "--val", "books/1.txt", "--shard-tokens", "1000")
        tokenizer = tokenizers.Tokenizer.from_file(str(self.folder / "out" / "tokenizer.json"))
        end = tokenizer.token_to_id("<|endoftext|>")
        wanted = [(self.folder / "books" / f"{i}.txt").read_text() for i in range(3)]
        held = wanted.pop(1)
        wanted += [json.loads(line)["text"] for line in (self.folder / "web.jsonl").read_text().splitlines() if line]
        assert tokenizer.decode(self.ids("train_*.bin"), skip_special_tokens=False) == "".join("<|endoftext|>" + text for text in wanted)
        assert tokenizer.decode(self.ids("val_*.bin"), skip_special_tokens=False) == "<|endoftext|>" + held
        assert self.ids("train_*.bin").count(end) == len(wanted)
        assert len(list((self.folder / "out").glob("train_*.bin"))) > 3
        record = json.loads((self.folder / "out" / "dataset.json").read_text())
        assert record["train"]["tokens"] == len(self.ids("train_*.bin"))
        assert (sorted(path.name for path in (self.folder / "out").iterdir())
                == sorted(record["train"]["files"] + record["val"]["files"] + ["dataset.json", "tokenizer.json"]))
        # The program trains on them, as the line that was printed says.
        assert "nothing to do" in self.prepare(0, "books", "web.jsonl", "--tokenizer", GIVEN, "--val", "books/1.txt", "--shard-tokens", "1000")
        assert "other sources or options" in self.prepare(1, "books", "--tokenizer", GIVEN)

    def test_a_deck_of_what_was_printed(self):
        out = self.prepare(0, "books", "web.jsonl", "--vocab", "400", "--val-fraction", "0.2")
        line = next(line for line in out.splitlines() if line.startswith("data: "))
        deck = self.folder / "deck.yaml"
        deck.write_text("schema_version: 1\nrun: {steps: 1, threads: 1}\nmodel: {layers: 1, hidden: 32, heads: 2, seq_len: 16}\n"
                        f"batch: {{global: 2, micro: 1}}\nsample: {{tokens: 4}}\n{line}\n")
        done = subprocess.run([self.tessera, "validate", deck], cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == (5 if "without ICU" in done.stderr else 0), done.stderr

    def peak_mib(self, out, *arguments):
        child = subprocess.Popen([sys.executable, PREPARE, out, *arguments, "--workers", "2"], cwd=self.folder, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, start_new_session=True)
        peak = 0
        while child.poll() is None:
            peak = max(peak, held_mib(child.pid))
            time.sleep(0.05)
        assert child.returncode == 0
        return peak

    def test_memory_does_not_grow_with_the_corpus(self):
        draw, known, peaks = random.Random(1), words(2, 3000), {}
        for mib in 2, 10:
            with open(self.folder / "line.txt", "w") as file:
                while file.tell() < mib << 20:
                    file.write(" ".join(draw.choices(known, k=1000)) + " ")
            peaks[mib] = self.peak_mib(f"out{mib}", "line.txt", "--vocab", "300", "--piece-mb", "2")
        assert peaks[10] < 300, peaks
        assert peaks[10] < peaks[2] + 60, peaks

    def test_a_sample_has_room_for_its_different_words(self):
        prepare = self.module()
        file = self.folder / "words.txt"
        file.write_text("\n".join(words(3, 50_000)))
        arguments = prepare.argparse.Namespace(train_mb=1, piece_mb=1, field="text")
        assert sum(map(len, prepare.sample([file], arguments))) == file.stat().st_size
        with unittest.mock.patch.object(prepare, "WORDS_ROOM", 100_000), unittest.mock.patch.object(prepare, "SLICE", 1000):
            taken = "".join(prepare.sample([file], arguments)).split()
        assert abs(sum(len(word) + 8 for word in set(taken)) - 100_000) <= 3000

    def module(self):
        spec = importlib.util.spec_from_file_location("prepare", PREPARE)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def test_slices_have_the_tokens_of_the_text(self):
        prepare, draw = self.module(), random.Random(4)
        parts = ["word", "Äpfel", "日本語", "12345", "it's", "x", " ", " ", " ", "  ", "\n", "\n\n", "\r\n", "\t", ".", "...\n", "。\n", "é", "'", "🙂", "\u0301", "\xa0"]
        text = "".join(draw.choices(parts, k=20_000))
        with unittest.mock.patch.object(prepare, "SLICE", 30):
            slices = list(prepare.slices(text))
            assert len(slices) > 300
            assert "".join(slices) == text
            for name in "gpt2", "llama3", "qwen2":
                tokenizer = tokenizers.Tokenizer.from_file(str(GIVEN.parent / "../" / name / "tokenizer.json"))
                assert prepare.can_slice(tokenizer)
                ids = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
                assert list(itertools.chain.from_iterable(map(ids, slices))) == ids(text), name
            tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
            assert not prepare.can_slice(tokenizer)

    def test_a_share_of_documents_that_is_no_share_of_tokens_is_reported(self):
        with open(self.folder / "uneven.jsonl", "w") as file:
            for i in range(100):
                file.write(json.dumps(dict(text="many words " * (2000 if i == 0 else 1))) + "\n")
        for warned, arguments in ((True, ["uneven.jsonl", "--val-fraction", "0.3"]), (True, ["books", "--val-fraction", "0.01"]),
                                  (False, ["web.jsonl", "--val-fraction", "0.1"]), (False, ["uneven.jsonl", "--val", "books"])):
            self.prepare(0, *arguments, "--tokenizer", GIVEN)
            assert ("of the documents were asked for" in self.errors) == warned, (arguments, self.errors)
            shutil.rmtree(self.folder / "out")

    def test_what_was_stopped_goes_on(self):
        big = self.folder / "big.jsonl"
        with open(big, "w") as file:
            for i in range(4000):
                file.write(json.dumps(dict(text=f"{i} tiles of {i % 97} mosaics, " * 20)) + "\n")
        arguments = ["big.jsonl", "web.jsonl", "--tokenizer", GIVEN, "--piece-mb", "1"]
        child = subprocess.Popen([sys.executable, PREPARE, "out", *map(str, arguments), "--workers", "1"], cwd=self.folder,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        parts, patience = self.folder / "out" / "parts", time.monotonic() + 120
        while not list(parts.glob("*.train")) and child.poll() is None and time.monotonic() < patience:
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        kept = {path: path.stat().st_mtime_ns for path in parts.glob("0*") if path.suffix != ".tmp"}
        assert kept
        assert not list((self.folder / "out").glob("*.bin"))
        self.prepare(0, *arguments)
        whole = self.ids("train_*.bin")
        (self.folder / "out").rename(self.folder / "first")
        self.prepare(0, *arguments)
        assert self.ids("train_*.bin") == whole

    def test_a_process_that_is_killed_ends_all(self):
        with open(self.folder / "big.jsonl", "w") as file:
            for i in range(40000):
                file.write(json.dumps(dict(text=f"{i} tiles of {i % 97} mosaics, " * 20)) + "\n")
        child = subprocess.Popen([sys.executable, PREPARE, "out", "big.jsonl", "--tokenizer", GIVEN, "--piece-mb", "1", "--workers", "2"],
                                 cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        children, parts = pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children"), self.folder / "out" / "parts"
        patience = time.monotonic() + 120
        while not list(parts.glob("*.train")) and child.poll() is None and time.monotonic() < patience:
            time.sleep(0.01)
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        assert "a process was killed" in child.communicate(timeout=120)[1]
        assert child.returncode == 1
        assert list(parts.glob("*.train"))

    def test_files_of_others_stay(self):
        (self.folder / "out").mkdir()
        other = self.folder / "out" / "train_000001.bin"
        other.write_bytes(b"other")
        assert "train_000001.bin: is there already, and not from here" in self.prepare(1, "books", "--tokenizer", GIVEN)
        assert (other.read_bytes(), len(list(other.parent.iterdir()))) == (b"other", 1)

    def test_a_tokenizer_is_of_what_was_asked_for(self):
        vocabulary = lambda: json.loads((self.folder / "out" / "dataset.json").read_text())["vocabulary"]
        (self.folder / "out").mkdir()
        (self.folder / "out" / "tokenizer.json").write_text(GIVEN.read_text())
        assert "is there already, and not from here" in self.prepare(1, "books", "--vocab", "260")
        (self.folder / "out" / "tokenizer.json").unlink()
        (self.folder / "late.jsonl").write_text('{"body": "late"}\n')
        self.prepare(1, "books", "late.jsonl", "--vocab", "259")  # stops, perhaps with a tokenizer
        assert "begins anew" in self.prepare(1, "books", "late.jsonl", "--vocab", "260")
        self.prepare(0, "books", "--vocab", "260")
        assert vocabulary() == 260
        assert "other sources or options" in self.prepare(1, "books", "--vocab", "261")
        assert sorted(path.name for path in (self.folder / "out").iterdir()) == ["dataset.json", "tokenizer.json", "train_000000.bin"]

    def test_other_tokenizers_make_token_files_alone(self):
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<|endoftext|>": 0, "?": 1, "Book": 2}, unk_token="?"))
        words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        words.save(str(self.folder / "words.json"))
        out = self.prepare(0, "books", "--tokenizer", "words.json")
        assert "tokenizer:" not in out
        assert "model.vocab is 3. The tokenizer is no byte-level BPE of a kind" in out
        words.model = tokenizers.models.WordLevel({"<|endoftext|>": 0, "Book": 1}, unk_token="?")
        words.save(str(self.folder / "words.json"))
        shutil.rmtree(self.folder / "out")
        assert "cannot encode this text" in self.prepare(1, "web.jsonl", "--tokenizer", "words.json")

    def test_special_tokens_and_halves_of_pairs_in_texts_are_text(self):
        texts = ["a <|endoftext|> b", "<|endoftext|>", "half \ud83d and \udc00 there", "plain"]
        (self.folder / "odd.jsonl").write_bytes(b"\xef\xbb\xbf" + "".join(json.dumps(dict(text=text)) + "\n" for text in texts).encode())
        for choice in ["--vocab", "300"], ["--tokenizer", GIVEN]:
            self.prepare(0, "odd.jsonl", *choice)
            tokenizer = tokenizers.Tokenizer.from_file(str(self.folder / "out" / "tokenizer.json"))
            ids = self.ids("train_*.bin")
            assert ids.count(tokenizer.token_to_id("<|endoftext|>")) == len(texts)
            wanted = "".join("<|endoftext|>" + text for text in texts).replace("\ud83d", "\ufffd").replace("\udc00", "\ufffd")
            assert tokenizer.decode(ids, skip_special_tokens=False) == wanted
            shutil.rmtree(self.folder / "out")
            self.prepare(0, "odd.jsonl", *choice, "--special")  # the two that stand in texts too
            assert self.ids("train_*.bin").count(tokenizer.token_to_id("<|endoftext|>")) == len(texts) + 2
            shutil.rmtree(self.folder / "out")

    def test_long_words_are_cut_for_training(self):
        prepare = self.module()
        for text in "a" * 200_000, " " * 50_000 + "x", "short words", "日" * 3000 + " b", "":
            parts = list(prepare.short_words(text))
            assert "".join(parts) == text
            assert max(len(word) for part in parts for word in part.split() + [""]) <= 1000
        (self.folder / "one.txt").write_text("a" * 1_000_000)
        self.prepare(0, "one.txt", "--vocab", "400")

    def test_the_deck_line_is_yaml_for_every_path(self):
        prepare = self.module()
        assert prepare.quoted('/a 💾/"é"\\\n') == '"/a 💾/\\"é\\"\\\\\\U0000000a"'
        self.prepare(0, "books", "--tokenizer", GIVEN, "--val-fraction", "0.4")
        pieces = [" ", "'", '"', "\\", "é", "💾", "日本", "#", " #", ": ", "*", "?", "[a]", "{b}", "%s", "&", "!", "|", "~", "$HOME", "\x85", "\ufeff", "\u2028", "\xa0",
                  "-", ".", "..", "null", "12"]
        draw = random.Random(6)
        for _ in range(40):
            place = self.folder / (("".join(draw.choices(pieces, k=draw.randint(1, 6)))).strip("/") + "x")
            shutil.copytree(self.folder / "out", place)
            deck = self.folder / "deck.yaml"
            deck.write_text("schema_version: 1\nrun: {steps: 1, threads: 1}\nmodel: {layers: 1, hidden: 32, heads: 2, seq_len: 16}\n"
                            f"batch: {{global: 2, micro: 1}}\nsample: {{tokens: 4}}\n{prepare.deck_line(place, True, True)}\n")
            done = subprocess.run([self.tessera, "validate", deck], cwd=self.folder, capture_output=True, text=True)
            assert done.returncode == (5 if "without ICU" in done.stderr else 0), (place, done.stderr)
            shutil.rmtree(place)
        for odd in b"a\tb", b"a\nb", b"a\x01", b"a\x7f", b"a\xff", b"\xed\xa0\x80":  # which no deck can give
            done = subprocess.run([sys.executable, PREPARE, odd, "books", "--tokenizer", GIVEN], cwd=self.folder, capture_output=True, text=True)
            assert (done.returncode, os.path.exists(os.path.join(os.fsencode(self.folder), odd))) == (1, False), done.stderr
            assert "no deck can name a folder" in done.stderr

    def test_tables_and_utf16_get_clear_words(self):
        (self.folder / "table.csv").write_text("a,b\n")
        (self.folder / "wide.txt").write_bytes("wide".encode("utf-16"))
        assert "table.csv: is a table" in self.prepare(1, "table.csv", "--tokenizer", GIVEN)
        assert "wide.txt: is UTF-16" in self.prepare(1, "wide.txt", "--tokenizer", GIVEN)

    def test_refusals(self):
        (self.folder / "broken.txt").write_bytes(b"good \xc3( bad")
        assert "broken.txt: byte 5: is no UTF-8" in self.prepare(1, "broken.txt", "--tokenizer", GIVEN)
        assert ("has no text in a field 'body'; it has text (text), id (a number)"
                in self.prepare(1, "web.jsonl", "--field", "body", "--tokenizer", GIVEN))
        (self.folder / "lines.jsonl").write_text('{"text": "a"}\n{"text"\n')
        assert "lines.jsonl: byte 14: is no line of JSON" in self.prepare(1, "lines.jsonl", "--tokenizer", GIVEN)
        assert "nowhere: no such file" in self.prepare(1, "nowhere")
        endless = json.loads(GIVEN.read_text())
        endless["added_tokens"], endless["post_processor"] = [], None
        endless["model"]["vocab"] = {token.replace("<|end", "<|and"): id for token, id in endless["model"]["vocab"].items()}
        (self.folder / "endless.json").write_text(json.dumps(endless))
        assert "has none of <|endoftext|>" in self.prepare(1, "books", "--tokenizer", "endless.json")
        (self.folder / "broken.json").write_text('{"a": 1}')
        assert "broken.json: is no tokenizer.json" in self.prepare(1, "books", "--tokenizer", "broken.json")
        assert "--vocab: 10: must be at least 257" in self.prepare(2, "books", "--vocab", "10")
        assert "--val-fraction: 2: must be 0 to 1" in self.prepare(2, "books", "--val-fraction", "2")
        assert "no text is left for training" in self.prepare(1, "books", "--tokenizer", GIVEN, "--val-fraction", "1")
        assert not list((self.folder / "out").glob("*.bin"))
