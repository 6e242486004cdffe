"""The output of `checkpoints inspect`, compared with the files."""

import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roformer_tf.checkpoints.names import IGNORED
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.conversion.inspection import InspectConfig, inspect
from roformer_tf.errors import InputError


@pytest.fixture
def lines(capsys):
    """A function that inspects a checkpoint and returns the printed lines."""

    def run(source, **flags):
        inspect(InspectConfig(source=str(source), **flags))
        return capsys.readouterr().out.splitlines()

    return run


def facts(lines):
    """Return the lines above the table by their first word."""
    return dict(line.split(maxsplit=1) for line in lines[: lines.index("")])


def tensors(lines):
    """Return {name: (shape, dtype, [min, max, mean, deviation])} of the table."""
    row = re.compile(r"(\S+) +\[([\d, ]+)\] +(\S+)" + r" +(\S+)" * 4)
    actual = [match for line in lines if (match := row.fullmatch(line))]
    return {
        m[1]: (tuple(map(int, m[2].split(","))), m[3], [float(m[i]) for i in range(4, 8)])
        for m in actual
    }


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("word", "RoFormer, word-level, with encoder, mlm"),
        ("char", "RoFormer, char-level, with encoder, mlm"),
        ("sim_char", "RoFormer, char-level, with encoder, mlm, pooler"),
        ("word_adam", "RoFormer, word-level, with encoder, mlm, pooler, seq_relationship"),
        ("v2_char", "RoFormerV2, char-level, with encoder"),
        ("hf_v2_char", "RoFormerV2, char-level, with encoder"),
        ("hf_word_seqcls", "RoFormer, word-level, with encoder, classifier"),
    ],
)
def test_the_family_is_detected_from_the_tensors(name, family, released, lines):
    assert facts(lines(released(name)))["family"] == family


def test_sizes_are_those_of_the_files(released, lines, tensors_in):
    actual = facts(lines(released("word_project")))
    total = sum(tensor.size for tensor in tensors_in(released("word_project")).values())
    assert actual["parameters"].startswith(f"{total:,} (encoder ")
    assert actual["size"] == "2 layers of 32, 4 heads, feed-forward 96, embeddings 20"
    assert actual["vocabulary"] == "2,003 tokens, word-level, lower-cased; 2,003 embeddings"
    assert (actual["layout"], actual["attention"].split()[0]) == ("tf1", "not")


@pytest.mark.parametrize("name", ["word_adam", "hf_v2_char"])
def test_every_tensor_is_shown_with_its_statistics(name, released, lines):
    actual = tensors(lines(released(name)))
    with OpenedSource(released(name)) as source:
        checkpoint = source.checkpoint()
        assert actual.keys() == checkpoint.arrays.keys()
        for key, (shape, dtype, values) in actual.items():
            array = checkpoint.arrays[key].astype(np.float64)
            assert (shape, dtype) == (array.shape, "float32")
            want = [array.min(), array.max(), array.mean(), array.std()]
            np.testing.assert_allclose(values, want, rtol=1e-3)


def test_ignored_tensors_are_listed(released, lines, tensors_in):
    actual = lines(released("word_adam"))
    start = actual.index("not loaded, because no model needs them:")
    names = {name for name in tensors_in(released("word_adam")) if IGNORED.fullmatch(name)}
    assert {line.strip() for line in actual[start + 1 :]} == names
    assert len(names) == 91
    assert not any("not loaded" in line for line in lines(released("word")))


def test_unknown_tensors_are_refused_or_listed(unpacked, lines):
    folder = unpacked("hf_word")
    values = load_file(folder / "model.safetensors")
    values["extra.weight"] = np.zeros(3, "float32")
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"extra\.weight.*--ignore-unknown"):
        lines(folder)
    actual = lines(folder, ignore_unknown=True)
    start = actual.index("not loaded, because no RoFormer has them:")
    assert actual[start + 1 :] == ["  extra.weight"]


def test_a_vocabulary_that_does_not_fit_is_shown(unpacked, lines):
    folder = unpacked("word")
    with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("more\n")
    assert facts(lines(folder))["vocabulary"].startswith("2,004 tokens, word-level")
    (folder / "vocab.txt").unlink()
    assert facts(lines(folder))["vocabulary"] == "2,003 embeddings; there is no vocab.txt"


def test_weights_that_are_not_finite_are_listed(unpacked, lines):
    folder = unpacked("hf_word")
    values = load_file(folder / "model.safetensors")
    words = "roformer.embeddings.word_embeddings.weight"
    values[words][3, 4] = np.nan
    values["cls.predictions.decoder.weight"] = values[words].copy()
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    actual = lines(folder)
    start = actual.index("not finite, so that other commands refuse the checkpoint:")
    assert actual[start + 1] == "  encoder/embeddings/word/embeddings"


def test_a_file_without_any_weight_of_a_roformer_is_refused(unpacked, lines):
    folder = unpacked("hf_word")
    tensors = {f"conv{i}.weight": np.zeros(3, "float32") for i in range(9)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match="contains no weights of a RoFormer"):
        lines(folder, ignore_unknown=True)
