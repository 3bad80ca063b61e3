"""Folders of Hugging Face (hf/) as checkpoints and back, in both layouts of experts and through bf16: transformers loads what the
program writes, and computes the same logits."""
import json
import pathlib
import subprocess

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("safetensors")
torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")
import hf_goldens  # noqa: E402


@pytest.fixture
def convert(tessera):
    def convert(*arguments):
        done = subprocess.run([tessera, "checkpoint", "convert", *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (arguments, done.stderr)
    return convert


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()


@pytest.mark.parametrize("experts", ("single", "discrete"))
@pytest.mark.parametrize("name", hf_goldens.models())
def test_there_and_back(name, experts, convert, folder):
    work, given = pathlib.Path(folder), hf_goldens.HERE / name
    golden, before = json.loads((given / "golden.json").read_text()), hf_goldens.tensors(given)
    convert(given, work / "checkpoint", "--experts", experts)
    convert(work / "checkpoint", work / "hf", "--to", "safetensors", "--max-shard", "20KB")
    after = hf_goldens.tensors(work / "hf")
    assert after.keys() == before.keys()
    assert not [key for key in before if not torch.equal(before[key].float(), after[key])]
    assert hf_goldens.relative(hf_goldens.logits(work / "hf", golden["tokens"]), np.array(golden["logits"])) < 1e-6


@pytest.mark.parametrize("name", hf_goldens.models())
def test_in_bf16(name, convert, folder):
    work, given = pathlib.Path(folder), hf_goldens.HERE / name
    before = hf_goldens.tensors(given)
    convert(given, work / "checkpoint", "--experts", "single")
    convert(work / "checkpoint", work / "hf", "--to", "safetensors", "--dtype", "bf16")
    narrow = hf_goldens.tensors(work / "hf")
    wanted = {key: values if key.endswith("e_score_correction_bias") else values.to(torch.bfloat16) for key, values in before.items()}
    assert not [key for key in wanted if not torch.equal(narrow[key], wanted[key])], "rounded as torch rounds"
    assert tf.AutoConfig.from_pretrained(work / "hf").dtype == torch.bfloat16
