"""Makes each missing hf/<model>/: a small model of Hugging Face's transformers with random weights as save_pretrained() writes it
(config.json, safetensors), golden.json with tokens and the logits that transformers computes for them in float64, and
greedy.json with the tokens that its generate() appends to a prompt.

    python tests/oracle/hf_goldens.py

`mixtral` is stored in several files with an index, `gpt2_fp16` in fp16; hf_test.py converts each.
"""
import copy
import json
import pathlib

import numpy as np
import safetensors
import torch
import transformers as tf

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
    mistral = tf.MistralConfig(intermediate_size=40, sliding_window=None, head_dim=10, rope_parameters=dict(rope_type="default", rope_theta=700.0), **ROTARY)
    llama3 = tf.LlamaConfig(intermediate_size=40, rope_parameters=dict(rope_type="llama3", rope_theta=50.0, factor=4.0, low_freq_factor=1.0,
                            high_freq_factor=4.0, original_max_position_embeddings=8), **(ROTARY | dict(rms_norm_eps=1e-3)))
    qwen2 = tf.Qwen2Config(intermediate_size=40, **(ROTARY | dict(rms_norm_eps=1e-6, tie_word_embeddings=True)))
    qwen3 = tf.Qwen3Config(intermediate_size=40, head_dim=10, rope_parameters=dict(rope_type="default", rope_theta=1e6), **(ROTARY | dict(rms_norm_eps=1e-2)))
    net = tf.GPT2LMHeadModel(gpt2)
    return mixtures() | {"mistral": tf.MistralForCausalLM(mistral), "llama3": tf.LlamaForCausalLM(llama3), "qwen2": tf.Qwen2ForCausalLM(qwen2),
            "qwen3": tf.Qwen3ForCausalLM(qwen3), "gpt2": net, "llama": tf.LlamaForCausalLM(llama), "mixtral": tf.MixtralForCausalLM(mixtral),
            "gpt2_fp16": copy.deepcopy(net)}


def mixtures():
    """Three layers, some of them dense, and routers of every kind: softmax and sigmoid, groups, a bias of the choice, shared experts."""
    own = ROTARY | dict(num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1)
    plain = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4))
    sigmoid = dict(intermediate_size=40, moe_intermediate_size=12, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
                   routed_scaling_factor=0.4, first_k_dense_replace=1, norm_topk_prob=True)
    glm4 = tf.Glm4MoeConfig(n_shared_experts=2, use_qk_norm=True, attention_bias=True, head_dim=12, num_mtp_layers=0,
                            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5), **sigmoid, **own)
    alone = tf.Glm4MoeConfig(n_shared_experts=0, use_qk_norm=False, attention_bias=False, head_dim=8, num_mtp_layers=0,
                             rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0),
                             **(sigmoid | dict(first_k_dense_replace=0, norm_topk_prob=False)), **own)
    dots1 = tf.Dots1Config(n_shared_experts=1, head_dim=8, sliding_window=None, max_window_layers=3, **sigmoid, **plain, **own)
    olmoe = tf.OlmoeConfig(intermediate_size=12, num_experts=8, num_experts_per_tok=2, norm_topk_prob=False, **plain, **own)
    qwen2 = tf.Qwen2MoeConfig(intermediate_size=40, moe_intermediate_size=12, shared_expert_intermediate_size=20, num_experts=4, num_experts_per_tok=2,
                              decoder_sparse_step=2, norm_topk_prob=False, **plain, **(own | dict(num_hidden_layers=4)))
    qwen3 = tf.Qwen3MoeConfig(intermediate_size=40, moe_intermediate_size=12, num_experts=8, num_experts_per_tok=3, mlp_only_layers=[0], head_dim=10,
                              norm_topk_prob=True, **plain, **own)
    return {"glm4_moe": tf.Glm4MoeForCausalLM(glm4), "glm4_moe_alone": tf.Glm4MoeForCausalLM(alone), "dots1": tf.Dots1ForCausalLM(dots1),
            "olmoe": tf.OlmoeForCausalLM(olmoe), "qwen2_moe": tf.Qwen2MoeForCausalLM(qwen2), "qwen3_moe": tf.Qwen3MoeForCausalLM(qwen3)}


def randomize(net):
    """Random weights large enough for each to change the logits: the usual initialization has norms of 1, biases of 0
    and matrices too small for an error in them to show."""
    for name, weight in net.state_dict().items():
        noise = 0.2 * torch.randn(weight.shape)
        weight.copy_(1 + noise if weight.dim() == 1 and name.endswith("weight") else noise)
        if name.endswith("e_score_correction_bias"):
            weight.copy_(0.4 * torch.rand(weight.shape) - 0.2)


def loaded(folder):
    # Only the eager implementation of experts takes float64.
    type = tf.AutoConfig.from_pretrained(folder).model_type
    eager = dict(experts_implementation="eager") if "moe" in type or type in ("mixtral", "dots1") else {}
    return tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", **eager).eval()


def least_gap(folder, tokens):
    """By how much the scores of the last expert chosen, and of the last group, are ahead of the next: a smaller gap than rounding errors
    would make two programs part."""
    net, gaps = loaded(folder), []

    def see(router, inputs, outputs):
        config, x = net.config, inputs[0].reshape(-1, net.config.hidden_size)
        scores = torch.nn.functional.linear(x.double(), router.weight.double())
        if (bias := getattr(router, "e_score_correction_bias", None)) is not None:
            scores = scores.sigmoid() + bias
            groups = scores.view(len(scores), config.n_group, -1).topk(2)[0].sum(-1).sort(descending=True)[0]
            if config.topk_group < config.n_group:
                gaps.append((groups[:, config.topk_group - 1] - groups[:, config.topk_group]).min().item())
            best = scores.view(len(scores), config.n_group, -1).topk(2)[0].sum(-1).topk(config.topk_group)[1]
            kept = torch.zeros_like(groups).scatter(1, best, 1).repeat_interleave(scores.shape[1] // config.n_group, 1)
            scores = scores.masked_fill(kept == 0, -9)
        scores = scores.sort(descending=True)[0]
        gaps.append((scores[:, config.num_experts_per_tok - 1] - scores[:, config.num_experts_per_tok]).min().item())

    for name, module in net.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(see)
    with torch.no_grad():
        net(torch.tensor(tokens))
    return min(gaps, default=np.inf)


def logits(folder, tokens):
    with torch.no_grad():
        return loaded(folder)(torch.tensor(tokens)).logits.numpy()


def tensors(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safetensors.safe_open(path, "pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}
    return found


def relative(found, wanted):
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def greedy(folder, prompt):
    """The tokens after the prompt, and by how much the least certain one was ahead."""
    tokens, least = list(prompt), np.inf
    while len(tokens) < LENGTH:
        last = logits(folder, [tokens])[0, -1]
        least = min(least, np.ptp(np.sort(last)[-2:]))
        tokens.append(int(last.argmax()))
    return tokens[len(prompt):], least


def make():
    for name, net in models().items():
        if (folder := HERE / name).exists():
            make_greedy(folder)
            continue
        torch.manual_seed(SEED + sum(name.encode()))
        randomize(net)
        if name.endswith("fp16"):
            net.half()
        net.save_pretrained(folder, max_shard_size="30KB" if name == "mixtral" else "1GB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH)).tolist()
        while least_gap(folder, tokens) < 1e-3:
            tokens = torch.randint(VOCABULARY, (SEQUENCES, LENGTH)).tolist()
        wanted = logits(folder, tokens)
        golden = dict(made_by="tests/oracle/hf_goldens.py", transformers=tf.__version__, torch=torch.__version__,
                      tokens=tokens, logits=[[[float(f"{x:.9g}") for x in row] for row in one] for one in wanted])
        (folder / "golden.json").write_text(json.dumps(golden) + "\n")
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{name}: {len(tensors(folder))} tensors, {size} bytes, |logits| up to {np.abs(wanted).max():.2f}")
        make_greedy(folder)


def make_greedy(folder):
    if (folder / "greedy.json").exists():
        return
    prompts = [one[:3] for one in json.loads((folder / "golden.json").read_text())["tokens"]]
    cases = [dict(prompt=prompt, tokens=(found := greedy(folder, prompt))[0], least_lead=float(f"{found[1]:.3g}")) for prompt in prompts]
    assert min(case["least_lead"] for case in cases) > 2e-4, cases
    net = loaded(folder)
    for case in cases:
        prompt = torch.tensor([case["prompt"]])
        made = net.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=LENGTH - 3, do_sample=False, pad_token_id=0)[0].tolist()
        assert made[3:] == case["tokens"], (made, case)
    (folder / "greedy.json").write_text(json.dumps(dict(made_by="tests/oracle/hf_goldens.py", cases=cases)) + "\n")
    print(folder.name, "greedy", [case["least_lead"] for case in cases])


if __name__ == "__main__":
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    make()
