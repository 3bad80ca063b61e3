"""Conversations as a chat template renders them, and which of their characters are answers. Used by prepare.py --chat."""
import datetime
import json
import re

OPENS, ENDS = "\ufdd0", "\ufdd1"  # noncharacters of Unicode, around what {% generation %} blocks render
TOKENS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Unusable(Exception):
    """An error in a template or a conversation; its text goes to the user."""


def template_of(tokenizer, given):
    """The text of a chat template, and the special tokens that it can name: of `given`, a file of Jinja, or of the files
    beside a tokenizer.json."""
    folder = tokenizer.parent
    settings = folder / "tokenizer_config.json"
    config = json.loads(settings.read_text()) if settings.exists() else {}
    content = lambda token: token.get("content") if isinstance(token, dict) else token
    tokens = {name: content(config[name]) for name in TOKENS if isinstance(content(config.get(name)), str)}
    beside = folder / "chat_template.jinja"
    if given or beside.exists():
        return (given or beside).read_text(), tokens
    held = config.get("chat_template")
    if isinstance(held, list):
        held = next((one["template"] for one in held if one.get("name") == "default"), None)
    if not isinstance(held, str):
        raise Unusable(f"{folder}: has no chat template, in chat_template.jinja or in tokenizer_config.json: name one with --chat-template")
    return held, tokens


def compiled(template):
    """The template in the environment in which transformers renders it, with marks around {% generation %} blocks."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as missing:
        raise Unusable(f"{missing}: pip install jinja2")

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

        def marked(self, caller):
            return OPENS + caller() + ENDS

    def refuse(message):
        raise jinja2.TemplateError(message)

    def as_json(value, ensure_ascii=False, **options):
        return json.dumps(value, ensure_ascii=ensure_ascii, **options)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                               extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = as_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(template)
    except jinja2.TemplateError as wrong:
        raise Unusable(f"the chat template is no Jinja: {wrong}")


class Chats:
    """Renders conversations by one template. Pickles as its text, so that processes can share it."""

    def __init__(self, template, tokens):
        self.template, self.tokens = template, tokens
        self.marks_answers = bool(GENERATION.search(template))
        self.compiled = compiled(template)

    def __reduce__(self):
        return Chats, (self.template, self.tokens)

    def render(self, messages, tools, prompts):
        try:
            return self.compiled.render(messages=messages, tools=tools, documents=None, add_generation_prompt=prompts, **self.tokens)
        except Exception as wrong:  # of a template, which may raise anything
            raise Unusable(f"the chat template cannot render it: {wrong}")

    def conversation(self, messages, tools=None):
        """(text, [(begin, end) of each answer in characters]) of a conversation."""
        if not isinstance(messages, list) or not messages:
            raise Unusable("is no list of messages")
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise Unusable(f'holds a message that is no {{"role": ..., "content": ...}}: {str(message)[:80]}')
        whole = self.render(messages, tools, False)
        return unmarked(whole) if self.marks_answers else (whole, list(self.found(messages, tools, whole)))

    def found(self, messages, tools, whole):
        """Yields the places of answers in the whole: what an answer adds to the rendering of all before it, with the
        words that ask for it."""
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.render(messages[:i], tools, True)
            until = whole if i + 1 == len(messages) else self.render(messages[:i + 1], tools, False)
            if not until.startswith(before) or not whole.startswith(until):
                raise Unusable(f"the chat template renders message {i + 1} otherwise within the whole than at its end, so where the answer "
                               "lies cannot be told: put {% generation %} and {% endgeneration %} around answers in a --chat-template")
            yield len(before), len(until)


def unmarked(marked):
    """A rendering without marks, and what lay between them."""
    text, spans, begin = "", [], None
    for part in re.split(f"([{OPENS}{ENDS}])", marked):
        if part == OPENS and begin is None:
            begin = len(text)
        elif part == ENDS and begin is not None:
            spans.append((begin, len(text)))
            begin = None
        elif part in (OPENS, ENDS):
            raise Unusable("holds a character that Unicode keeps for programs, U+FDD0 or U+FDD1")
        else:
            text += part
    return text, spans


def marks(encoding, spans):
    """A byte a token: 1 where it holds characters of an answer, 2 for the first."""
    made, answers = bytearray(len(encoding.ids)), iter(spans)
    begin, end = next(answers, (0, 0))
    for i, (first, last) in enumerate(encoding.offsets):
        while end and first >= end:
            begin, end = next(answers, (0, 0))
        made[i] = int(bool(end) and last > begin and last > first)
    if made:
        made[0] |= 2
    return made
