#!/usr/bin/env python3
"""Makes token files for `data.kind: tokens` from your own text, with the tokenizer beside them.

    pip install tokenizers jinja2
    prepare.py OUT SOURCE... [--vocab 32000 | --tokenizer tokenizer.json] [--field text] [--val SOURCE]... [--val-fraction 0.01]
    prepare.py OUT SOURCE... --chat --tokenizer FOLDER/tokenizer.json [--chat-template FILE] [--field messages] ...

A SOURCE is a text file (one document), a .jsonl file (one document a line, in --field), or a folder that is searched for
both, with its subfolders. Without --tokenizer a byte-level BPE is trained on a sample of the training sources. Every
document begins with the end-of-text token. If the program is stopped, the same command continues where it was. Files
appear in OUT only when they are complete: train_*.bin, val_*.bin, tokenizer.json, dataset.json.

--chat takes .jsonl of conversations, in --field a list of {"role", "content"}, as a chat template renders them: that of
--chat-template, else the one beside the tokenizer, in chat_template.jinja or tokenizer_config.json. Names of special
tokens become those tokens, and no end-of-text token is put between conversations. Beside each .bin lies a .marks file, a
byte a token: which tokens are answers (for data.loss_mask) and where conversations begin (for data.documents: apart).

--val-fraction draws whole documents. Of a few large files it may draw none, or much more than that share of the tokens,
which is reported at the end; there, name the files to hold out by --val: they are left out of the training sources.

Memory does not grow with the corpus: all cores work, each on one piece of a file (--piece-mb), and training takes about
1 GiB at most, which a --train-mb above 256 raises in proportion. A line of .jsonl is held whole. So are pieces where
--tokenizer is of a kind that puts something before every text; encoding takes 100 times their size then.
"""
import argparse
import array
import concurrent.futures
import contextlib
import hashlib
import json
import multiprocessing
import os
import pathlib
import random
import re
import shutil
import signal
import sys
import zlib

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a process a core, each with one thread

try:
    import tokenizers
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from tqdm import tqdm

    import chat
    from shards import join, marks_beside, part, write_whole
except ImportError as missing:
    sys.exit(f"prepare.py: {missing}: pip install tokenizers")

END = ("<|endoftext|>", "<|end_of_text|>", "</s>")
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
KINDS = {str: "text", list: "a list", dict: "an object", bool: "true or false", type(None): "null"}   # types of JSON except numbers
SLICE = 1 << 16   # characters of a text that the tokenizer gets at a time, about: what it makes of them takes a hundred times as much memory
BATCH = 4 * SLICE   # characters that are encoded at a time
CUT = re.compile(r"(?<=\w) (?=\w)|(?<=\S\n)(?=\w)")   # between slices: a space between two words, or a line that begins with a word
WORD = re.compile(rb"[A-Za-z\x80-\xff]+|[^A-Za-z0-9\s\x80-\xff]+")   # in UTF-8, about what WORDS finds; numbers differ little
LONG = re.compile(r"\S{1000}|\s{1000}")   # where a sample's long words are cut: training takes time quadratic in the longest
HALF = re.compile("[\ud800-\udfff]")   # half of a pair of UTF-16, which JSON can write and UTF-8 cannot
TABLES = (".csv", ".tsv", ".xlsx", ".xls", ".ods", ".parquet")
WORDS_ROOM = 16 << 20   # bytes of different words, of which training takes some 50 times as much memory


class Refused(Exception):
    """An error in the sources or arguments; its text goes to the user."""


def sources(names):
    """Yields every source file; the files of a folder in the order of their paths."""
    for name in map(pathlib.Path, names):
        if name.is_dir():
            found = sorted(path for path in name.rglob("*") if path.is_file() and path.suffix in (".txt", ".md", ".jsonl"))
            if not found:
                raise Refused(f"{name}: holds no .txt, .md or .jsonl file")
            yield from found
        elif name.suffix.lower() in TABLES:
            raise Refused(f"{name}: is a table: write its texts as .jsonl, a line a row; or rename it to .txt, to take it as one text")
        elif name.is_file():
            yield name
        else:
            raise Refused(f"{name}: no such file or folder")


def pieces(path, most):
    """Yields byte ranges (begin, end) of a file, of about `most` bytes, cut behind line ends."""
    size, begin = path.stat().st_size, 0
    with open(path, "rb") as file:
        while begin < size:
            file.seek(min(size, begin + most))
            if path.suffix == ".jsonl":
                file.readline()
            else:
                find_cut(file, most)
            yield begin, (end := file.tell())
            begin = end


def find_cut(file, most):
    """Moves a text file on to where it can be cut: to a line that does not begin with white space, because the tokenizer takes a run
    of white space as one word; where the next `most` bytes have none, to a space between two words."""
    last = file.tell() + most
    while (left := last - file.tell()) > 0 and (line := file.readline(left)):
        if line.endswith(b"\n") and not file.peek(1)[:1].isspace():
            return
    while raw := file.read(SLICE):
        text = raw.decode(errors="surrogateescape")
        if found := CUT.search(text):
            file.seek(-len(text[found.start():].encode(errors="surrogateescape")), os.SEEK_CUR)
            return


def slices(text):
    """Yields a text in slices of about SLICE characters, which have the text's tokens (`can_slice`). What has no CUT stays whole."""
    begin = 0
    while found := CUT.search(text, begin + SLICE):
        yield text[begin:found.start()]
        begin = found.start()
    yield text[begin:]


def can_slice(tokenizer):
    """Whether a text has the tokens of its slices: not where the tokenizer puts something before all that it is given."""
    ids = lambda *texts: [id for text in texts for id in tokenizer.encode(text, add_special_tokens=False).ids]
    try:
        return ids("two words") == ids("two", " words") and ids("two\nlines") == ids("two\n", "lines")
    except Exception:  # of the library, which has no type for it: this tokenizer cannot encode every word
        return False


def documents(path, begin, end, field):
    """Yields (offset in bytes, text, whether a document begins here) for each document, or part of one, in a byte range."""
    if path.suffix == ".jsonl":
        for at, record in records(path, begin, end, field, str):
            yield at, HALF.sub("\ufffd", record[field]), True
        return
    with open(path, "rb") as file:
        file.seek(begin)
        yield begin, decoded(path, begin, file.read(end - begin)), begin == 0


def records(path, begin, end, field, kind):
    """Yields (offset in bytes, object) for each line of a .jsonl file in a byte range; each has a `field` of a type."""
    with open(path, "rb") as file:
        file.seek(begin)
        while file.tell() < end:
            at = file.tell()
            line = decoded(path, at, file.readline())
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as wrong:
                raise Refused(f"{path}: byte {at}: is no line of JSON: {wrong}")
            if not isinstance(record, dict) or not isinstance(record.get(field), kind):
                held = ", ".join(f"{name} ({KINDS.get(type(value), 'a number')})" for name, value in record.items()) if isinstance(record, dict) else ""
                advice = "give --chat for conversations" if kind is str and ", messages (a list)" in ", " + held else "name another with --field"
                raise Refused(f"{path}: byte {at}: has no {'text' if kind is str else 'list'} in a field '{field}'; it has {held or 'no fields'}; {advice}")
            yield at, record


def decoded(path, at, raw):
    """The text of bytes that stand at a position of a file, without the mark of UTF-8 at its begin."""
    if at == 0 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Refused(f"{path}: is UTF-16, as spreadsheets and Windows write it: save it as UTF-8")
    try:
        return raw.decode("utf-8-sig" if at == 0 else "utf-8")
    except UnicodeDecodeError as wrong:
        raise Refused(f"{path}: byte {at + wrong.start}: is no UTF-8; write it again as UTF-8, or leave the file out")


def sample(files, arguments):
    """Yields texts from pieces in random order, together at most --train-mb Mi characters. The trainer's memory grows with the different
    words, so the sample ends where they fill WORDS_ROOM bytes, or a sixteenth of --train-mb if that is more, each counted as 8 bytes longer."""
    all_pieces = [(path, *piece) for path in files for piece in pieces(path, arguments.piece_mb << 20)]
    most, words, room = arguments.train_mb << 20, set(), max(WORDS_ROOM, arguments.train_mb << 16)
    random.Random(1234).shuffle(all_pieces)
    for path, begin, end in all_pieces:
        for _, text, _ in documents(path, begin, end, arguments.field):
            for stretch in slices(text[:most]):   # the trainer takes 256 of them at a time
                yield from short_words(stretch)
                most -= len(stretch)
                new = set(WORD.findall(stretch.encode())) - words
                words |= new
                room -= sum(map(len, new)) + 8 * len(new)
                if most <= 0 or room <= 0:
                    return


def short_words(text):
    """Yields a text in parts whose words are short enough to train on."""
    begin = 0
    for found in LONG.finditer(text):
        yield text[begin:found.end()]
        begin = found.end()
    yield text[begin:]


def train_tokenizer(files, arguments):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(WORDS), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=arguments.vocab, special_tokens=[END[0]], show_progress=sys.stderr.isatty(),
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(sample(files, arguments), trainer)
    return tokenizer.to_str()


def end_of_text(tokenizer, path):
    for token in END:
        if (found := tokenizer.token_to_id(token)) is not None:
            return found
    raise Refused(f"{path}: has none of {', '.join(END)}, with which documents are told apart")


class Worker:
    """Encodes one piece into two parts, for training and for evaluation."""

    def __init__(self, out, arguments, tokenizer):
        self.parts, self.field, self.fraction = out / "parts", arguments.field, arguments.val_fraction
        self.path, self.tokenizer, self.special = out / "tokenizer.json", tokenizer, arguments.special
        self.vocabulary, self.chats = max(tokenizer.get_vocab().values()) + 1, arguments.chats
        self.code = "H" if self.vocabulary <= 1 << 16 else "I"
        if not self.chats:
            self.end = end_of_text(tokenizer, self.path)
            tokenizer.add_special_tokens([tokenizer.id_to_token(self.end)])
        self.sliced = can_slice(tokenizer)

    def held(self, path, at, val):
        return val or zlib.crc32(f"{path}:{at}".encode()) < self.fraction * (1 << 32)

    def __call__(self, job):
        number, path, begin, end, val = job
        try:
            if self.chats:
                self.converse(number, path, begin, end, val)
                return number, end - begin, None
            tokens = {False: array.array(self.code), True: array.array(self.code)}
            waiting, characters = [], 0
            for at, text, first in documents(path, begin, end, self.field):
                # A text file is one document: all its pieces go to training, or all to evaluation.
                held = self.held(path, at if path.suffix == ".jsonl" else 0, val)
                for stretch in slices(text) if self.sliced else [text]:
                    waiting.append((held, stretch, first))
                    first, characters = False, characters + len(stretch)
                    if characters > BATCH:
                        self.encode(waiting, tokens)
                        waiting, characters = [], 0
            self.encode(waiting, tokens)
            for val, held in tokens.items():
                write_whole(part(self.parts, number, val), held.tofile)
        except Refused as refused:
            return number, 0, str(refused)
        return number, end - begin, None

    def converse(self, number, path, begin, end, val):
        """Encodes a piece of conversations into its parts, with marks."""
        tokens, marks = {False: array.array(self.code), True: array.array(self.code)}, {False: bytearray(), True: bytearray()}
        self.tokenizer.encode_special_tokens = False
        for at, record in records(path, begin, end, self.field, list):
            try:
                text, spans = self.chats.conversation(record[self.field], record.get("tools"))
                encoded = self.tokenizer.encode(HALF.sub("\ufffd", text), add_special_tokens=False)
            except chat.Unusable as wrong:
                raise Refused(f"{path}: byte {at}: {wrong}")
            except Exception as wrong:  # of the library, which has no type for it
                raise Refused(f"{path}: byte {at}: {self.path} cannot encode it: {wrong}")
            held = self.held(path, at, val)
            tokens[held].extend(encoded.ids)
            marks[held] += chat.marks(encoded, spans)
        for held in (False, True):
            write_whole(marks_beside(part(self.parts, number, held)), lambda file: file.write(marks[held]))
            write_whole(part(self.parts, number, held), tokens[held].tofile)

    def encode(self, waiting, tokens):
        self.tokenizer.encode_special_tokens = not self.special  # as text, a name of one in a document ends nothing
        try:
            encoded = self.tokenizer.encode_batch_fast([text for _, text, _ in waiting], add_special_tokens=False)
        except Exception as wrong:  # of the library, which has no type for it
            raise Refused(f"{self.path}: cannot encode this text: {wrong}")
        for (val, _, first), one in zip(waiting, encoded):
            if first:
                tokens[val].append(self.end)
            tokens[val].extend(one.ids)


def begin_process(worker):
    """Gives a process of a pool its worker, once: its tokenizer is large, and forked processes share it. Ctrl-C is for the parent."""
    global process_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_worker = worker


def do_job(job):
    return process_worker(job)


@contextlib.contextmanager
def processes(count, worker):
    """An executor of `count` processes, which end with the block, whatever ends it. One that is killed is Refused."""
    pool = concurrent.futures.ProcessPoolExecutor(count, initializer=begin_process, initargs=(worker,))
    try:
        yield pool
    except concurrent.futures.process.BrokenProcessPool:
        raise Refused("a process was killed, as the system does where memory runs out: take fewer --workers; the same command goes on")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


def plan_of(training, held, arguments, given):
    stamp = lambda path: [str(path), path.stat().st_size, path.stat().st_mtime_ns]
    made = dict(vocab=arguments.vocab, train_mb=arguments.train_mb) if given is None else hashlib.sha256(given.encode()).hexdigest()
    return dict(sources=[stamp(path) for path in training], val=[stamp(path) for path in held], field=arguments.field,
                val_fraction=arguments.val_fraction, piece_mb=arguments.piece_mb, shard_tokens=arguments.shard_tokens, special=arguments.special,
                tokenizer=made, **({"chat": arguments.chats.template, "chat_tokens": arguments.chats.tokens} if arguments.chats else {}))


def given_tokenizer(path, chats):
    """The text of the tokenizer.json that was given, after checks that it can be read and, but for chats, has an end-of-text token;
    None without one."""
    if path is None:
        return None
    try:
        text = path.read_text()
        tokenizer = Tokenizer.from_str(text)
    except OSError as wrong:
        raise Refused(f"{path}: {wrong.strerror}")
    except Exception as wrong:  # of the library, which has no type for it
        raise Refused(f"{path}: is no tokenizer.json: {wrong}")
    if not chats:
        end_of_text(tokenizer, path)
    return text


def chats_of(arguments, files):
    """The chat template that was asked for; None without --chat."""
    if not arguments.chat:
        if arguments.chat_template:
            raise Refused("--chat-template: is for --chat")
        return None
    if not arguments.tokenizer:
        raise Refused("--chat: name the tokenizer.json of the model that is to answer with --tokenizer")
    for path in files:
        if path.suffix != ".jsonl":
            raise Refused(f"{path}: --chat takes .jsonl, a conversation a line")
    try:
        return chat.Chats(*chat.template_of(arguments.tokenizer, arguments.chat_template))
    except (chat.Unusable, ValueError) as wrong:
        raise Refused(str(wrong))


NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Prepend", "Strip", "Replace")
CUTS = ("ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "CharDelimiterSplit")
PROCESSORS = ("ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing")
PROPERTIES = re.compile(r"[CLMNPSZ][a-zC]?|Han|Latin|Greek|Cyrillic|Arabic|Hebrew|Hiragana|Katakana|Hangul|Thai|Devanagari|Any|ASCII|Blank|Emoji|Extended_Pictographic|Graph|Lower|Print|Punct|Space|Upper")
SIGN = re.compile(r"\\[pP]\{\^?(?P<property>[^}]*)\}|\\x[89a-fA-F].|\\.|\(\?#|\(\?(?P<options>[imswxudaW-]+)[:)]|\{\d*(?P<range>,?)\d*\}[+?]?|--|-\[|\[:|\[\^?\]|&&|&\[|.", re.S)


def foreign(pattern):
    """Whether the program refuses a pattern, because its library of regular expressions reads it otherwise than Oniguruma."""
    sets, ignoring = 0, [False]
    for found in SIGN.finditer(pattern):
        sign, before, options = found[0], pattern[:found.start()], found["options"]
        if found["property"] is not None:
            if ignoring[-1] or not PROPERTIES.fullmatch(found["property"]):
                return True
        elif sign[0] == "\\":
            if sign[1] in "hHvVKXyYQEgkMCcNOGRUZ" or len(sign) > 2:
                return True
        elif sign in ("[:", "[]", "[^]") or sets and (sign in ("--", "-[") or sign == "&[" and not before.endswith("&")):
            return True
        elif sets or sign[0] in "-&[":
            sets += sign.count("[") - (sign == "]")
        elif sign == "(?#" or options and (set(options) - set("i-") or sign[-1] == ")" and before) or sign[0] == "{" and (sign[-1] == "+" or sign[-1] == "?" and not found["range"]):
            return True
        elif options:
            ignoring.append("i" in options.split("-")[0])
        elif sign == "(":
            ignoring.append(ignoring[-1])
        elif sign == ")" and len(ignoring) > 1:
            ignoring.pop()
    return False


def members(part):
    """The parts that a Sequence holds, of Sequences too, or the part itself."""
    if part is None:
        return []
    inner = next((part[key] for key in ("normalizers", "pretokenizers", "processors", "decoders") if key in part), None)
    return [part] if inner is None else [one for member in inner for one in members(member)]


def byte_level(tokenizer):
    """Whether it is a byte-level BPE of parts that data.tokenizer takes."""
    held = json.loads(tokenizer)
    model, known = held["model"], lambda key, kinds: all(part["type"] in kinds for part in members(held.get(key)))
    if model.get("type", "BPE" if "merges" in model else "") != "BPE" or model.get("byte_fallback"):
        return False
    if any(model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")):
        return False
    if model.get("unk_token") is not None and not set(pre_tokenizers.ByteLevel.alphabet()) <= set(model["vocab"]):
        return False
    if not (known("normalizer", NORMALIZERS) and known("pre_tokenizer", CUTS) and known("post_processor", PROCESSORS) and known("decoder", ("ByteLevel",))):
        return False
    if len([part for part in members(held.get("post_processor")) if part["type"] != "ByteLevel"]) > 1:
        return False
    made, added = Tokenizer.from_str(tokenizer), held.get("added_tokens", [])
    ids = {token["content"]: token["id"] for token in added}   # as the file says, which the library may number otherwise
    all_ids = model["vocab"] | ids
    if len(ids) < len(added) or "" in ids or any(made.token_to_id(content) != id for content, id in ids.items()) or len(set(all_ids.values())) < len(all_ids):
        return False
    if made.normalizer and not all(made.normalizer.normalize_str(token["content"]) for token in added if token["normalized"]):
        return False
    patterns = [part["pattern"].get("Regex", "") for key in ("normalizer", "pre_tokenizer") for part in members(held.get(key)) if "pattern" in part]
    return (not any(map(foreign, patterns)) and len(members(held.get("decoder"))) == 1
            and any(part["type"] == "ByteLevel" for part in members(held.get("pre_tokenizer"))))


def keep_tokenizer(path, training, given, arguments):
    """Writes tokenizer.json to OUT: the one given, or a newly trained one unless an earlier call has trained it. Returns its text."""
    if given is None and path.exists():
        return path.read_text()
    if given is None:
        print(f"training a tokenizer of {arguments.vocab} tokens on at most {arguments.train_mb} MiB", file=sys.stderr)
        with processes(1, None) as pool:  # in a process of its own, which gives its memory back
            given = pool.submit(train_tokenizer, training, arguments).result()
    write_whole(path, lambda file: file.write(given.encode()))
    return given


def begin(out, plan):
    """Prepares OUT to begin, or to continue work begun with the same plan; returns False if the dataset is complete."""
    record = out / "parts" / "plan.json"
    made = [path for path in (out / "tokenizer.json", *(path for name in ("train_*.bin", "val_*.bin", "*.marks") for path in sorted(out.glob(name))))
            if path.exists()]
    if (out / "dataset.json").exists():
        if json.loads((out / "dataset.json").read_text())["plan"] != plan:
            raise Refused(f"{out}: holds a dataset of other sources or options: choose another OUT, or remove it")
        shutil.rmtree(out / "parts", ignore_errors=True)
        return False
    if record.exists() and json.loads(record.read_text()) != plan:
        print(f"{out}: was begun with other sources or options: begins anew", file=sys.stderr)
        shutil.rmtree(out / "parts")
        for path in made:
            path.unlink()
    elif not record.exists() and made:
        advice = ", and give the file as --tokenizer" if made[0].name == "tokenizer.json" else ""
        raise Refused(f"{made[0]}: is there already, and not from here: choose another OUT{advice}")
    (out / "parts").mkdir(parents=True, exist_ok=True)
    write_whole(record, lambda file: file.write(json.dumps(plan).encode()))
    return True


def require_a_name_for_decks(out):
    """A deck names the folder in one line of UTF-8 text."""
    if any(ord(c) < 0x20 or ord(c) == 0x7f or 0xd800 <= ord(c) < 0xe000 for c in str(out)):
        raise Refused(f"{ascii(str(out))}: no deck can name a folder of control characters, or of bytes that are no UTF-8: choose another OUT")


def run(arguments):
    out = arguments.out
    require_a_name_for_decks(out.resolve())
    held = list(sources(arguments.val))
    held_out = {path.resolve() for path in held}
    training = [path for path in sources(arguments.source) if path.resolve() not in held_out]
    if arguments.tokenizer and arguments.tokenizer.is_dir():
        arguments.tokenizer /= "tokenizer.json"
    given = given_tokenizer(arguments.tokenizer, arguments.chat)
    arguments.chats = chats_of(arguments, [*training, *held])
    arguments.field = arguments.field or ("messages" if arguments.chat else "text")
    plan = plan_of(training, held, arguments, given)
    if not begin(out, plan):
        print(f"{out}: is complete, nothing to do")
        return
    tokenizer = keep_tokenizer(out / "tokenizer.json", training, given, arguments)
    jobs = [(path, *piece, val) for val, files in ((False, training), (True, held)) for path in files
            for piece in pieces(path, arguments.piece_mb << 20)]
    jobs = [(number, *job) for number, job in enumerate(jobs)]
    open_jobs = [job for job in jobs if not all(part(out / "parts", job[0], val).exists() for val in (False, True))]
    worker = Worker(out, arguments, Tokenizer.from_str(tokenizer))
    total = sum(job[3] - job[2] for job in jobs)
    done = total - sum(job[3] - job[2] for job in open_jobs)
    with processes(arguments.workers, worker) as pool, tqdm(total=total, initial=done, unit="B", unit_scale=True, disable=None) as bar:
        for job in concurrent.futures.as_completed([pool.submit(do_job, job) for job in open_jobs]):
            _, size, wrong = job.result()
            if wrong:
                raise Refused(wrong)
            bar.update(size)
    made = {}
    for val in (False, True):
        made[val] = join(out, len(jobs), val, worker.code, arguments.shard_tokens, bool(arguments.chats))
        if made[False][0] == 0:
            raise Refused(f"{', '.join(arguments.source)}: no text is left for training")
    for _, paths in made.values():
        for path in paths:
            os.replace(path, out / path.name)
    facts = {val: dict(tokens=tokens, files=[path.name for path in paths if path.suffix == ".bin"]) for val, (tokens, paths) in made.items()}
    dataset = dict(plan=plan, vocabulary=worker.vocabulary, train=facts[False], val=facts[True])
    warn_of_share(made[True][0], made[False][0] + made[True][0], arguments)
    write_whole(out / "dataset.json", lambda file: file.write((json.dumps(dataset, indent=1) + "\n").encode()))
    shutil.rmtree(out / "parts")
    print(f"{made[False][0]} tokens for training, {made[True][0]} for evaluation, of a vocabulary of {worker.vocabulary}; in the deck:")
    print(deck_line(out.resolve(), bool(made[True][0]), byte_level(tokenizer), arguments.chat))
    if not byte_level(tokenizer):
        print(f"model.vocab is {worker.vocabulary}. The tokenizer is no byte-level BPE of a kind which tessera reads: prompts and samples will be ids.")


def warn_of_share(held, tokens, arguments):
    """Documents differ in size, so their share may be far from that of the tokens. (With --val more than the share is held out.)"""
    asked = arguments.val_fraction
    if not arguments.val and asked < 1 and not asked / 2 <= held / tokens <= asked * 2:
        print(f"warning: evaluation has {held / tokens:.1%} of the tokens, where {asked:.1%} of the documents were asked for: documents are few, "
              "or differ much in size; name files to hold out by --val, with another OUT", file=sys.stderr)


def quoted(path):
    """A path as YAML in double quotes, with what cannot be printed escaped."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else "\\" + c if c in '"\\' else f"\\U{ord(c):08x}" for c in str(path)) + '"'


def deck_line(out, evaluated, tokenizer, chats=False):
    eval_files = ', eval_files: ["val_*.bin"]' if evaluated else ""
    named = f", tokenizer: {quoted(out / 'tokenizer.json')}" if tokenizer else ""
    answers = ", loss_mask: true, documents: apart" if chats else ""
    return f'data: {{kind: tokens, root: {quoted(out)}, files: ["train_*.bin"]{eval_files}{named}{answers}}}'


def number(kind, least, most=None):
    """A type for argparse: a number from `least` to `most`."""
    def read(text):
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not value >= least or (most is not None and not value <= most):
            raise argparse.ArgumentTypeError(f"{text}: must be {'at least ' if most is None else ''}{least}{'' if most is None else f' to {most}'}")
        return value
    return read


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=pathlib.Path, help="folder to make, or to go on with")
    parser.add_argument("source", metavar="SOURCE", nargs="+", help="a text file, a .jsonl file or a folder of such")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="a tokenizer.json, or the folder of one, to take instead of training one")
    parser.add_argument("--vocab", type=number(int, 257), default=32000, help="tokens of the tokenizer that is trained: 256 bytes, the end-of-text token, and merges")
    parser.add_argument("--train-mb", type=number(int, 1), default=256, help="MiB of text, at most, that it is trained on; less of text with very many different words")
    parser.add_argument("--field", help="the field of a .jsonl line that holds the text, or with --chat the messages: text, or messages")
    parser.add_argument("--chat", action="store_true", help="sources are conversations; marks their answers")
    parser.add_argument("--chat-template", metavar="FILE", type=pathlib.Path, help="a Jinja template to render them by, instead of the tokenizer's own")
    parser.add_argument("--special", action="store_true", help="names of the tokenizer's special tokens inside texts become those tokens, as the marks of chats should")
    parser.add_argument("--val", metavar="SOURCE", action="append", default=[], help="sources of val_*.bin, for data.eval_files; not trained on, even if a SOURCE holds them")
    parser.add_argument("--val-fraction", type=number(float, 0, 1), default=0.0, 
                        help="share of the documents, not of the tokens, that go to val_*.bin; a text file is one document")
    parser.add_argument("--shard-tokens", type=number(int, 1), default=100_000_000, help="most tokens of one file")
    parser.add_argument("--piece-mb", type=number(int, 1), default=16, help="MiB of a source that a process takes at a time")
    parser.add_argument("--workers", type=number(int, 1), default=os.cpu_count(), help="processes")
    arguments = parser.parse_args()
    try:
        run(arguments)
    except (Refused, OSError) as refused:
        sys.exit(f"prepare.py: {refused}")
    except KeyboardInterrupt:
        sys.exit("prepare.py: stopped; the same command goes on")


if __name__ == "__main__":
    main()
