"""Tests of embeddings by `VectorSettings`, against bert4keras and calls of each text alone."""

import json
import shutil

import keras
import numpy as np
import pytest

from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.inference import embed
from roformer_tf.inference.embed import VectorSettings, chunks
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.rows import run_rows

TEXTS = [
    "今天天气很好",
    "好",
    "我们去公园学习，" * 9,
    "北京",
    "",
    "上海的天气",
    "今天去北京了",
    "好",
]


pytestmark = pytest.mark.usefixtures("eager_steps")


@pytest.fixture(scope="module")
def converted(released, tmp_path_factory):
    """Return a function: converted(name) → a copy of a released checkpoint in our layout."""
    folders = {}

    def convert(name):
        folder = tmp_path_factory.mktemp(name) / "model"
        if name not in folders:
            main(["checkpoints", "convert", str(released(name)), str(folder), "--to", "own"])
            folders[name] = folder
        return shutil.copytree(folders[name], tmp_path_factory.mktemp(name) / "copy")

    return convert


def separately_embedded(folder, texts, pooling, max_length=512, dimensions=None):
    """Return the vector of each text, from a separate call and pooled in float64."""
    encoder = RoFormerEncoder.from_pretrained(folder)
    actual = []
    for text in texts:
        ids, _ = encoder.tokenizer.encode(text, max_length=max_length)
        hidden = np.asarray(encoder({"token_ids": np.array([ids])}), np.float64)[0]
        vector = (hidden.mean(axis=0) if pooling == "mean" else hidden[0])[:dimensions]
        actual.append(vector / np.linalg.norm(vector))
    return np.stack(actual)


@pytest.mark.parametrize("name", ["sim_char", "sim_char_ft"])
def test_vectors_equal_bert4keras(name, released, recorded, record_property):
    want = recorded(name)
    embedder = VectorSettings().open(released(name))
    rows = [row[row != 0] for row in want["sentence_token_ids"]]
    got = embedder.finished(np.stack(run_rows(embedder.pooled, rows)))
    difference = float(np.abs(got - want["sentence_unit"]).max())
    record_property("difference", (name, "sentence vectors", difference, 1e-5))
    assert difference <= 1e-5
    assert embedder.config == EmbeddingConfig("pooler", 512)


@pytest.mark.parametrize(("pooling", "dimensions"), [(None, None), ("cls", None), ("mean", 7)])
def test_vectors_are_in_order_and_independent_of_the_batch(pooling, dimensions, released):
    settings = VectorSettings(pooling=pooling, dimensions=dimensions, batch_size=3)
    embedder = settings.open(released("char"))
    want = separately_embedded(released("char"), TEXTS, pooling or "mean", dimensions=dimensions)
    got = embedder.embed(iter(TEXTS))
    assert (got.dtype, got.shape) == (np.float32, (len(TEXTS), dimensions or 32))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    assert embedder.embed([]).shape == (0, dimensions or 32)


def test_chunks_are_limited_by_texts_and_characters():
    texts = ["甲" * n for n in (1, 2, 3, 50, 1, 1, 1, 9)]
    assert list(chunks(texts, 3, 40)) == [texts[:3], [texts[3]], texts[4:7], [texts[7]]]


def test_texts_in_many_chunks_keep_their_order(released, monkeypatch):
    embedder = VectorSettings().open(released("sim_char"))
    unchunked = embedder.embed(TEXTS * 3)
    monkeypatch.setattr(embed, "chunks", lambda texts: chunks(texts, 5))
    blocks = list(embedder.blocks(TEXTS * 3))
    assert [len(block.texts) for block in blocks] == [5, 5, 5, 5, 4]
    assert [text for block in blocks for text in block.texts] == TEXTS * 3
    np.testing.assert_allclose(np.concatenate([b.vectors for b in blocks]), unchunked, atol=1e-6)


def test_long_texts_are_truncated_and_counted(converted):
    folder = converted("char")
    EmbeddingConfig("mean", 10).save(folder)
    texts = [*TEXTS, "今天去北京公园了"]  # 8 tokens, [CLS] and [SEP]: the text just fits
    (block,) = VectorSettings().open(folder).blocks(texts)
    want = separately_embedded(folder, texts, "mean", max_length=10)
    np.testing.assert_allclose(block.vectors, want, rtol=0, atol=1e-5)
    assert block.cut == 1


def test_the_fingerprint_depends_on_everything_that_determines_vectors(
    released, converted, tmp_path
):
    zip_fingerprint = VectorSettings().open(released("sim_char")).fingerprint
    folder = converted("sim_char")
    assert VectorSettings().open(folder).fingerprint == zip_fingerprint
    assert VectorSettings(precision="bfloat16").open(folder).fingerprint == zip_fingerprint
    EmbeddingConfig("pooler", 512, (8, 16)).save(folder)  # which truncates nothing
    assert VectorSettings().open(folder).fingerprint == zip_fingerprint
    changed = [
        VectorSettings(pooling="mean").open(folder).fingerprint,
        VectorSettings(dimensions=8).open(folder).fingerprint,
        VectorSettings(max_length=32).open(folder).fingerprint,
        VectorSettings().open(released("sim_char_ft")).fingerprint,
    ]
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for other in ({"layer_norm_eps": 1e-3}, {"rotary_share": 0.5}, {"local_attention": 8}):
        (folder / "config.json").write_text(json.dumps(config | other))
        changed.append(VectorSettings().open(folder).fingerprint)
    (folder / "config.json").write_text(json.dumps(config))
    lines = (folder / "vocab.txt").read_text("utf-8").splitlines()
    lines[200], lines[201] = lines[201], lines[200]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n", "utf-8")
    (folder / "tokenizer.json").unlink()
    changed.append(VectorSettings().open(folder).fingerprint)
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    for other in ({"do_lower_case": False}, {"tokenization": "word"}):
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | other))
        changed.append(VectorSettings().open(folder).fingerprint)
    assert len({zip_fingerprint, *changed}) == 11


def test_a_single_weight_changes_the_fingerprint(converted):
    folder = converted("char")
    before = VectorSettings().open(folder).fingerprint
    encoder = RoFormerEncoder.from_pretrained(folder)
    bias = encoder.named_variables()["encoder/layer_0/output/bias"]
    bias.assign(bias + np.eye(1, 32, 3)[0] * 1e-3)
    encoder.save_pretrained(folder)
    assert VectorSettings().open(folder).fingerprint != before


@pytest.mark.parametrize(("value", "message"), [(np.nan, "not finite"), (0.0, "zero")])
def test_an_invalid_vector_is_reported_with_its_text(value, message, converted):
    folder = converted("sim_char")
    embedder = VectorSettings(engine="keras").open(folder)
    for variable in embedder.pooled.pooler.weights:
        variable.assign(keras.ops.full_like(variable, value))
    with pytest.raises(InputError, match=f"vector of text 1, .今天天气很好., is {message}"):
        embedder.embed(TEXTS)


def test_pooling_by_a_missing_pooler_is_refused(released):
    with pytest.raises(InputError, match=r"--pooling pooler of .* asks for a pooler"):
        VectorSettings(pooling="pooler").open(released("char"))
