"""Makes hf/<model>/: small models of Hugging Face's transformers with random weights as save_pretrained() leaves them
(config.json, safetensors), and golden.json with tokens and the logits that transformers computes for them in float64.

    python tests/oracle/hf_goldens.py            # makes them anew
    python tests/oracle/hf_goldens.py TESSERA    # checks the program: folder -> checkpoint -> folder, read by transformers
                                                 # and safetensors; 77: this Python lacks them

`mixtral` lies in several files with an index, `gpt2_fp16` in halves. The check converts each folder to a checkpoint and back, in both layouts
of experts, and through bf16; transformers then loads what the program wrote, and must compute the same logits.
"""
import copy
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import safetensors
    import torch
    import transformers as tf
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HERE = pathlib.Path(__file__).parent / "hf"
SEED, SEQUENCES, LENGTH, VOCABULARY = 20261121, 2, 12, 61
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None)
ROTARY = dict(vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
              max_position_embeddings=LENGTH, rms_norm_eps=1e-5, attn_implementation="eager", **NO_TOKENS)


def models():
    gpt2 = tf.GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=24, n_layer=2, n_head=3, n_inner=40,
                         attn_implementation="eager", **NO_TOKENS)
    llama = tf.LlamaConfig(intermediate_size=40, rope_parameters=dict(rope_type="default", rope_theta=5000.0), **ROTARY)
    mixtral = tf.MixtralConfig(intermediate_size=16, num_local_experts=4, num_experts_per_tok=2, head_dim=10,
                               rope_parameters=dict(rope_type="default", rope_theta=1e6),
                               **ROTARY)
    net = tf.GPT2LMHeadModel(gpt2)
    return {"gpt2": net, "llama": tf.LlamaForCausalLM(llama), "mixtral": tf.MixtralForCausalLM(mixtral),
            "gpt2_fp16": copy.deepcopy(net)}


def randomize(net):
    """Every weight counts: the usual start has norms of 1, biases of 0 and matrices too small to see."""
    for name, weight in net.state_dict().items():
        noise = 0.2 * torch.randn(weight.shape)
        weight.copy_(1 + noise if weight.dim() == 1 and name.endswith("weight") else noise)


def logits(folder, tokens):
    # Mixtral's other implementations of experts take no float64.
    eager = dict(experts_implementation="eager") if tf.AutoConfig.from_pretrained(folder).model_type == "mixtral" else {}
    net = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", **eager).eval()
    with torch.no_grad():
        return net(torch.tensor(tokens)).logits.numpy()


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, "pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}
    return found


def relative(found, wanted):
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def make():
    torch.manual_seed(SEED)
    for name, net in models().items():
        randomize(net)
        if name.endswith("fp16"):
            net.half()
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        net.save_pretrained(folder, max_shard_size="30KB" if name == "mixtral" else "1GB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH)).tolist()
        wanted = logits(folder, tokens)
        golden = dict(made_by="tests/oracle/hf_goldens.py", transformers=tf.__version__, torch=torch.__version__,
                      tokens=tokens, logits=[[[float(f"{x:.9g}") for x in row] for row in one] for one in wanted])
        (folder / "golden.json").write_text(json.dumps(golden) + "\n")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name}: {len(tensors(folder))} tensors, {size} bytes, |logits| up to {np.abs(wanted).max():.2f}")


def convert(tessera, *arguments):
    done = subprocess.run([tessera, "checkpoint", "convert", *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{arguments}: {done.returncode}: {done.stderr}")


def check_one(tessera, name, work):
    golden = json.loads((HERE / name / "golden.json").read_text())
    tokens, wanted = golden["tokens"], np.array(golden["logits"])
    before = tensors(HERE / name)
    for experts in ("single", "discrete"):
        convert(tessera, HERE / name, work / f"{name}-{experts}", "--experts", experts)
        out = work / f"{name}-{experts}-hf"
        convert(tessera, work / f"{name}-{experts}", out, "--to", "safetensors", "--max-shard", "20KB")
        after = tensors(out)
        same = before.keys() == after.keys() and all(torch.equal(before[key].float(), after[key]) for key in before)
        far = relative(logits(out, tokens), wanted)
        print(f"{name}, experts {experts}: tensors equal: {same}, logits differ by {far:.1e}")
        if not same or not far < 1e-6:
            sys.exit(1)
    out = work / f"{name}-bf16"
    convert(tessera, work / f"{name}-single", out, "--to", "safetensors", "--dtype", "bf16")
    narrow = tensors(out)
    same = all(torch.equal(narrow[key], before[key].to(torch.bfloat16)) for key in before)
    dtype = tf.AutoConfig.from_pretrained(out).dtype
    print(f"{name} in bf16: rounded as torch rounds: {same}, its configuration says {dtype}")
    if not same or dtype != torch.bfloat16:
        sys.exit(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    if len(sys.argv) == 1:
        make()
    with tempfile.TemporaryDirectory() as temporary:
        for model in models() if len(sys.argv) > 1 else ():
            check_one(sys.argv[1], model, pathlib.Path(temporary))
