"""`checkpoints average`: means compared with NumPy, files copied with them, and refusals."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import roformer_tf
from roformer_tf.conversion.average import AverageConfig, average
from roformer_tf.conversion.convert import ConvertConfig, OutputConfig, convert
from roformer_tf.errors import InputError
from roformer_tf.tasks.classification import Classification
from roformer_tf.tasks.multilabel import Multilabel
from tests.support.random_model import save_random_models

WEIGHTS = "model.safetensors"
TABLE = "roformer.encoder.embed_positions.weight"
"""A constant that transformers requires in the file. It is not a weight."""


@pytest.fixture
def own_folder(released, tmp_path):
    """A function that converts a family to a folder, and adds noise to its weights.

    noise is the standard deviation relative to that of each tensor.
    """

    def make(family, name, noise=0.0, dtype=None):
        folder = tmp_path / name
        output = OutputConfig(to="own", dtype=dtype)
        convert(ConvertConfig(source=str(released(family)), target=folder, output=output))
        if noise:
            rng = np.random.default_rng(len(name))
            tensors = load_file(folder / WEIGHTS)
            perturbed = {
                key: (t + rng.normal(0, noise * t.std(), t.shape)).astype(t.dtype)
                for key, t in tensors.items()
                if key != TABLE
            }
            save_file({TABLE: tensors[TABLE]} | perturbed, folder / WEIGHTS, {"format": "pt"})
        return folder

    return make


def run(*sources, output):
    average(AverageConfig(sources=tuple(map(str, sources)), output=output))
    return load_file(output / WEIGHTS)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


# The mean


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("sim_char", None), ("word_project", "float16"), ("char", "bfloat16")],
)
def test_each_weight_is_the_mean_in_the_models_dtype(family, dtype, own_folder, tmp_path):
    noises = {"a": 0, "bb": 0.1, "ccc": 0.3}
    folders = [own_folder(family, name, noise, dtype) for name, noise in noises.items()]
    actual = run(*folders, output=tmp_path / "mean")
    tensors_of_each = [load_file(folder / WEIGHTS) for folder in folders]
    assert actual.keys() == tensors_of_each[0].keys()
    for name, tensor in actual.items():
        want = np.mean([t[name].astype(np.float64) for t in tensors_of_each], axis=0)
        assert tensor.dtype == tensors_of_each[0][name].dtype
        np.testing.assert_array_equal(tensor, want.astype(tensor.dtype), name)


@pytest.mark.parametrize("dtypes", [("bfloat16", None), ("float16", "bfloat16")])
def test_the_mean_of_several_dtypes_is_float32(dtypes, own_folder, tmp_path):
    """In the dtype of the first, it was rounded to three digits."""
    folders = [own_folder("char", "a" * i, 0.1, dtype) for i, dtype in enumerate(dtypes, start=1)]
    actual = run(*folders, output=tmp_path / "mean")
    first, second = (load_file(folder / WEIGHTS) for folder in folders)
    for name, tensor in actual.items():
        want = (first[name].astype(np.float64) + second[name]) / 2
        np.testing.assert_array_equal(tensor, want.astype("float32"), name)


def test_a_model_given_twice_counts_twice(own_folder, tmp_path):
    first, second = own_folder("char", "a"), own_folder("char", "bb", 0.2)
    actual = run(first, second, first, output=tmp_path / "mean")
    a, b = load_file(first / WEIGHTS), load_file(second / WEIGHTS)
    for name, tensor in actual.items():
        want = (2 * a[name].astype(np.float64) + b[name]) / 3
        np.testing.assert_allclose(tensor, want, rtol=1e-6, atol=1e-9, err_msg=name)


def test_layouts_may_differ(own_folder, released, tmp_path):
    perturbed = own_folder("word", "moved", 0.2)
    actual = run(released("word"), perturbed, output=tmp_path / "mean")
    first, second = load_file(own_folder("word", "plain") / WEIGHTS), load_file(perturbed / WEIGHTS)
    for name, tensor in actual.items():
        want = (first[name].astype(np.float64) + second[name]) / 2
        np.testing.assert_array_equal(tensor, want.astype("f4"), name)


# Files copied with the mean


def test_the_mean_keeps_the_task(tmp_path):
    task = {"t": Classification(labels=("坏", "好"), max_length=16)}
    first = save_random_models(task, tmp_path / "a")["t"]
    second = shutil.copytree(first, tmp_path / "b")
    tensors = load_file(first / WEIGHTS)
    save_file({name: tensor * 1.5 for name, tensor in tensors.items()}, second / WEIGHTS)
    run(first, second, output=tmp_path / "mean")
    assert json.loads((tmp_path / "mean" / "task.json").read_text())["labels"] == ["坏", "好"]
    actual = roformer_tf.load(tmp_path / "mean")(["今天天气很好"])[0]["scores"]
    half = {name: (tensor + tensor * 1.5) / 2 for name, tensor in tensors.items()}
    save_file(half, second / WEIGHTS)
    want = roformer_tf.load(second)(["今天天气很好"])[0]["scores"]
    assert actual == pytest.approx(want, abs=1e-6)


def test_the_mean_of_embedding_models_keeps_their_files(own_folder, tmp_path):
    folders = own_folder("sim_char", "a"), own_folder("sim_char", "bb", 0.3)
    actual = run(*folders, output=tmp_path / "mean")
    for name in ("embedding.json", "modules.json"):
        assert (tmp_path / "mean" / name).read_bytes() == (folders[0] / name).read_bytes()
    dense = load_file(tmp_path / "mean" / "2_Dense" / WEIGHTS)
    np.testing.assert_array_equal(dense["linear.weight"], actual["roformer.pooler.dense.weight"])


def test_the_mean_of_gpt_models_is_causal(released, tmp_path):
    run(released("gpt_char"), released("gpt_char"), output=tmp_path / "mean")
    assert json.loads((tmp_path / "mean" / "config.json").read_text())["attention_type"] == "causal"


# Refusals


def other_size(folder, tmp_path):
    edit(folder / "config.json", layer_norm_eps=1e-5)
    return "different architectures: layer_norm_eps is 1e-12 in the first and 1e-05"


def other_labels(folder, tmp_path):
    edit(folder / "config.json", id2label={"0": "好", "1": "坏"})
    return "different architectures: id2label is None in the first and {'0': '好', '1': '坏'}"


def other_weights(folder, tmp_path):
    tensors = load_file(folder / WEIGHTS)
    written = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
    save_file(written, folder / WEIGHTS, {"format": "pt"})
    for name in ("embedding.json", "modules.json"):
        (folder / name).unlink()
    return "have different weights, such as pooler/dense/"


def other_vocabulary(folder, tmp_path):
    lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    lines[-1], lines[-2] = lines[-2:]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").unlink(missing_ok=True)  # it would contradict it
    return "have different vocabularies"


def other_tokenization(folder, tmp_path):
    edit(folder / "tokenizer_config.json", do_lower_case=False)
    return "have different vocabularies"


def no_vocabulary(folder, tmp_path):
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").unlink(missing_ok=True)
    return "have different vocabularies"


def other_pooling(folder, tmp_path):
    edit(folder / "embedding.json", pooling="mean")
    return "have different files embedding.json"


def a_task(folder, tmp_path):
    Classification(labels=("坏", "好")).save(folder)
    return "have different files task.json, or one has none"


def other_thresholds(folder, tmp_path):
    """As of a run with another seed, whose thresholds suit its own weights."""
    Multilabel(labels=("坏", "好"), thresholds=(0.4, 0.4)).save(folder)
    return "Thresholds in task.json are chosen for the weights of one model"


def other_lexical_features(folder, tmp_path):
    """As of a run with another seed, whose training set is another one."""
    (folder / "lexical.npz").write_bytes(b"other")
    return (
        "files lexical.npz, or one has none. Give models that were trained for the same task, "
        "with the same recipe; for lexical.npz, with --lexical-features no. "
    )


@pytest.mark.parametrize(
    "change",
    [
        other_lexical_features,
        other_size,
        other_labels,
        other_weights,
        other_vocabulary,
        other_tokenization,
        no_vocabulary,
        other_pooling,
        a_task,
        other_thresholds,
    ],
)
@pytest.mark.parametrize("position", [1, 2])
def test_incompatible_models_are_refused(change, position, own_folder, tmp_path):
    folders = [own_folder("sim_char", name) for name in "abc"]
    message = change(folders[position], tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError) as error:
        run(*folders, output=tmp_path / "mean")
    assert message in str(error.value)
    assert str(folders[0]) in str(error.value)
    assert str(folders[position]) in str(error.value)
    assert sorted(tmp_path.iterdir()) == before


def test_settings_of_training_may_differ(own_folder, tmp_path):
    first, second = own_folder("char", "a"), own_folder("char", "b")
    edit(second / "config.json", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    run(first, second, output=tmp_path / "mean")
    written = json.loads((tmp_path / "mean" / "config.json").read_text())
    assert written == json.loads((first / "config.json").read_text())


def test_a_single_model_is_refused(own_folder, tmp_path):
    with pytest.raises(InputError, match=r"a mean needs two or more models"):
        run(own_folder("char", "a"), output=tmp_path / "mean")


def test_nothing_is_overwritten(own_folder, tmp_path):
    first = own_folder("char", "a")
    with pytest.raises(InputError, match="exists, and nothing is overwritten"):
        run(first, first, output=first)
