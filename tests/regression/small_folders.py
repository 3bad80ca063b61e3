"""Small folders of Hugging Face's layout for tests: random Llamas, and byte-level tokenizers."""
import json
import os
import random
import struct

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def character(byte):
    """The character that stands for a byte in byte-level tokens."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    return chr(byte) if byte in printable else chr(256 + [b for b in range(256) if b not in printable].index(byte))


def added(id, content, **more):
    return {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **more}


def tokenizer(merges=(("t", "h"), ("th", "e"), ("a", "n"), ("i", "n")), more=("<|endoftext|>",)):
    """A byte-level BPE: 256 bytes, a token a merge, and added tokens behind them."""
    vocab = {character(byte): byte for byte in range(256)}
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tokens = [added(len(vocab) + i, content) for i, content in enumerate(more)]
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                      "merges": [f"{left} {right}" for left, right in merges]}}


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def write_safetensors(path, tensors):
    """tensors: {name: (shape, fp32 values)}"""
    header, payload = {"__metadata__": {"format": "pt"}}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(payload), len(payload) + len(raw)]}
        payload += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + payload)


def llama(folder, vocab=300, hidden=8, length=64, tied=False, head=None, seed=7, files=None, spread=0.5, numbers=None, **config):
    """Writes a Llama of one layer. `head`: "other" or "same" writes lm_head.weight though it is tied; `files`: further ones by
    name, as text or JSON; `spread`: standard deviation of the weights; `numbers`: single elements, {tensor: {index: value}}; `config`:
    keys of config.json."""
    os.makedirs(folder, exist_ok=True)
    draw, layer, width = random.Random(seed), "model.layers.0.", 2 * hidden
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden], layer + "input_layernorm.weight": [hidden],
              layer + "post_attention_layernorm.weight": [hidden], layer + "mlp.gate_proj.weight": [width, hidden],
              layer + "mlp.up_proj.weight": [width, hidden], layer + "mlp.down_proj.weight": [hidden, width], "lm_head.weight": [vocab, hidden]}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": [hidden, hidden] for name in "qkvo"}
    tensors = {}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        tensors[name] = (shape, [1.0] * count if "norm" in name else [draw.gauss(0, spread) for _ in range(count)])
    if tied and head != "other":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    if tied and not head:
        del tensors["lm_head.weight"]
    for name, values in (numbers or {}).items():
        for index, number in values.items():
            tensors[name][1][index] = number
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    write_json(os.path.join(folder, "config.json"),
               {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": width,
                "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": length,
                "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": tied, "torch_dtype": "float32", **config})
    for name, content in (files or {}).items():
        path = os.path.join(folder, name)
        if isinstance(content, str):
            with open(path, "w", encoding="utf-8") as file:
                file.write(content)
        else:
            write_json(path, content)
    return folder
