"""Writes goldens/documents_<model>.json and .bin: the loss and every gradient of small models whose documents are apart and
of whose tokens some are no target, from PyTorch in float64. Every document is computed by itself, as a batch of one, so
nothing here has a mask of attention.

    python tests/oracle/document_goldens.py

A token begins a document where its id is divisible by 9, and is a target where its id is not divisible by 4.
"""
import json
import pathlib

import torch
import torch.nn.functional as F

import model_goldens
import small_models

HERE = pathlib.Path(__file__).parent / "goldens"
SEQUENCES = 4


class Document(model_goldens.Model):
    """A model of a text that may be shorter than its sequences."""

    def logits(self, ids):
        positions = self.w.get("embed.positions")
        if positions is None:
            return super().logits(ids)
        shorter = model_goldens.Model(self.m, {**self.w, "embed.positions": positions[:ids.shape[1]]})
        return shorter.logits(ids)


def loss_of(m, weights, ids, targets):
    """Mean over the targets of all sequences, document by document."""
    total, count = 0, 0
    for row, wanted in zip(ids, targets):
        starts = [0] + [i for i in range(1, len(row)) if row[i] % 9 == 0] + [len(row)]
        for begin, end in zip(starts, starts[1:]):
            logits = Document(m, weights).logits(row[None, begin:end])[0]
            kept = wanted[begin:end] % 4 != 0
            count += int(kept.sum())
            total = total + F.cross_entropy(logits[kept], wanted[begin:end][kept], reduction="sum") if kept.any() else total
    return total / count, count


def write(name):
    m = model_goldens.MODELS[name]
    weights = model_goldens.initial(m, 0, torch.float64)
    loss, count = loss_of(m, weights, *model_goldens.batch(m, 0, 0, SEQUENCES))
    loss.backward()
    norm = sum((w.grad ** 2).sum().item() for w in weights.values()) ** 0.5
    index = dict(made_by="tests/oracle/document_goldens.py", torch=torch.__version__, model=m, seed=0,
                 training=dict(sequences=SEQUENCES), loss=loss.item(), targets=count, grad_norm=norm, tensors=[])
    flat, offset = [], 0
    for tensor, w in weights.items():
        index["tensors"].append(dict(name=tensor, shape=list(w.shape), offset=offset))
        flat.append(w.grad.reshape(-1))
        offset += w.numel()
    torch.cat(flat).float().numpy().astype("<f4").tofile(HERE / f"documents_{name}.bin")
    (HERE / f"documents_{name}.json").write_text(json.dumps(index, indent=1) + "\n")
    print(f"{name}: loss {loss.item():.6f} over {count} targets, norm {norm:.4f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in ("gpt2", "llama"):
        write(chosen)
