"""Files for sentence-transformers.

The quick tests compute its modules with NumPy; those of `-m hf` use sentence-transformers itself.
"""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from roformer_tf.checkpoints.archives import MODULES
from roformer_tf.checkpoints.embedding_config import EmbeddingConfig
from roformer_tf.checkpoints.sentence_transformers import save_modules
from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.models.encoder import RoFormerEncoder

TEXTS = ["今天天气很好", "北京", "我们去公园学习中国经济", "好" * 30, "今天天气很好,去公园"]


pytestmark = pytest.mark.usefixtures("eager_steps")


@pytest.fixture(scope="module")
def folder(released, tmp_path_factory):
    """A function that returns a sim model in our layout with modules for this pooling."""
    converted = tmp_path_factory.mktemp("sim") / "model"
    source = str(released("sim_char"))
    assert main(["checkpoints", "convert", source, str(converted), "--to", "own"]) == 0

    def make(pooling):
        target = shutil.copytree(converted, tmp_path_factory.mktemp("sim") / "model")
        EmbeddingConfig(pooling, 16).save(target)
        save_modules(target)
        return target

    return make


def reference_vectors(folder, texts):
    """Return vectors of the modules, computed with NumPy in float64 from our hidden states."""
    encoder = RoFormerEncoder.from_pretrained(folder)
    limits = json.loads((folder / "sentence_bert_config.json").read_text("utf-8"))
    modules = json.loads((folder / MODULES).read_text("utf-8"))
    assert [item["idx"] for item in modules] == list(range(len(modules)))
    actual = []
    for text in texts:
        ids, _ = encoder.tokenizer.encode(text, max_length=limits["max_seq_length"])
        x = np.asarray(encoder({"token_ids": np.array([ids])}), np.float64)[0]
        for module in modules[1:]:
            settings = folder / module["path"] / "config.json"
            settings = json.loads(settings.read_text("utf-8")) if settings.exists() else {}
            kind = module["type"].removeprefix("sentence_transformers.models.")
            if kind == "Pooling":
                assert settings["word_embedding_dimension"] == x.shape[-1]
                x = x.mean(axis=0) if settings["pooling_mode_mean_tokens"] else x[0]
                assert settings["pooling_mode_mean_tokens"] != settings["pooling_mode_cls_token"]
            elif kind == "Dense":
                weights = load_file(folder / module["path"] / "model.safetensors")
                assert settings["activation_function"].endswith("Identity")
                shape = (settings["out_features"], settings["in_features"])
                assert weights["linear.weight"].shape == shape
                x = weights["linear.weight"] @ x + weights["linear.bias"]
            else:
                assert kind == "Normalize"
                x = x / np.linalg.norm(x)
        actual.append(x)
    return np.stack(actual)


@pytest.mark.parametrize("pooling", ["pooler", "mean", "cls"])
def test_modules_give_our_vectors(pooling, folder):
    actual = folder(pooling)
    embedder = VectorSettings().open(actual)
    assert embedder.config == EmbeddingConfig(pooling, 16)
    got, want = embedder.embed(TEXTS), reference_vectors(actual, TEXTS)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
    assert np.abs(want[0] - want[4]).max() > 1e-3


def test_modules_of_an_earlier_pooling_are_removed(folder):
    actual = folder("pooler")
    assert (actual / "2_Dense").is_dir()
    EmbeddingConfig("mean", 16).save(actual)
    assert save_modules(actual)
    assert not (actual / "2_Dense").exists()
    assert len(json.loads((actual / MODULES).read_text("utf-8"))) == 3


def test_only_converted_sim_models_have_modules(released, tmp_path):
    for name, expected in (("sim_char_ft", True), ("char", False)):
        target = tmp_path / name
        assert (
            main(["checkpoints", "convert", str(released(name)), str(target), "--to", "own"]) == 0
        )
        assert (target / MODULES).exists() is expected
    np.testing.assert_array_equal(
        VectorSettings().open(tmp_path / "sim_char_ft").embed(TEXTS),
        VectorSettings().open(released("sim_char_ft")).embed(TEXTS),
    )


@pytest.mark.parametrize("key", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_the_pooling_of_sentence_transformers_is_read(key, released, tmp_path):
    theirs = shutil.copytree(released("hf_char"), tmp_path / "theirs")
    (theirs / "1_Pooling").mkdir()
    (theirs / "1_Pooling/config.json").write_text(json.dumps(key), "utf-8")
    (theirs / "sentence_bert_config.json").write_text('{"max_seq_length": 16}', "utf-8")
    target = tmp_path / "ours"
    assert main(["checkpoints", "convert", str(theirs), str(target), "--to", "own"]) == 0
    for folder in (theirs, target):
        assert VectorSettings().open(folder).config == EmbeddingConfig("cls", 16)


def test_a_missing_config_of_the_pooling_is_refused(folder, released, tmp_path):
    theirs = shutil.copytree(released("hf_char"), tmp_path / "theirs")
    shutil.copy(folder("cls") / MODULES, theirs)
    with pytest.raises(InputError, match=r"theirs has no 1_Pooling/config\.json"):
        VectorSettings().open(theirs)


@pytest.mark.parametrize(
    ("limits", "tokenizer", "length"),
    [
        ({}, {"model_max_length": 16}, 16),  # of version 6
        ({}, {"model_max_length": 10**30}, 512),
        ({"max_seq_length": None}, {}, 512),
        ({"max_seq_length": 20}, {"model_max_length": 16}, 20),
    ],
)
def test_the_maximum_length_of_sentence_transformers_is_read(
    limits, tokenizer, length, released, tmp_path
):
    theirs = shutil.copytree(released("hf_char"), tmp_path / "theirs")
    settings = json.loads((theirs / "tokenizer_config.json").read_text("utf-8")) | tokenizer
    (theirs / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (theirs / "sentence_bert_config.json").write_text(json.dumps(limits), "utf-8")
    assert VectorSettings().open(theirs).config.max_length == length  # without its modules, too
    (theirs / "1_Pooling").mkdir()
    (theirs / "1_Pooling/config.json").write_text('{"pooling_mode": "mean"}', "utf-8")
    assert VectorSettings().open(theirs).config == EmbeddingConfig("mean", length)


def test_a_converted_model_keeps_the_maximum_length_of_sentence_transformers(released, tmp_path):
    theirs, ours = shutil.copytree(released("hf_char"), tmp_path / "theirs"), tmp_path / "ours"
    (theirs / "sentence_bert_config.json").write_text('{"max_seq_length": 20}', "utf-8")
    assert main(["checkpoints", "convert", str(theirs), str(ours), "--to", "huggingface"]) == 0
    assert VectorSettings().open(ours).config.max_length == 20
    assert json.loads((ours / "tokenizer_config.json").read_text("utf-8"))["model_max_length"] == 20


def test_a_zip_with_modules_is_read_as_its_folder(folder, released, tmp_path):
    theirs = shutil.copytree(released("hf_char"), tmp_path / "theirs")
    (theirs / "1_Pooling").mkdir()
    (theirs / "1_Pooling/config.json").write_text('{"pooling_mode_cls_token": true}', "utf-8")
    for source in (theirs, folder("pooler")):
        zipped = shutil.make_archive(tmp_path / "zipped", "zip", source.parent, source.name)
        actual, want = (VectorSettings().open(x) for x in (zipped, source))
        assert actual.config == want.config
        assert actual.config.pooling == ("cls" if source == theirs else "pooler")
        assert actual.fingerprint == want.fingerprint


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", '[{"type": "sentence_transformers.models.Dense"}]'),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}'),
        ("1_Pooling/config.json", '{"pooling_mode": "lasttoken"}'),
        (
            "1_Pooling/config.json",
            '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}',
        ),
        ("config_sentence_transformers.json", '{"default_prompt_name": "query"}'),
        ("config_sentence_transformers.json", '{"truncate_dim": 16}'),
    ],
)
def test_modules_that_are_not_supported_are_refused(file, content, released, tmp_path):
    theirs = shutil.copytree(released("hf_char"), tmp_path / "theirs")
    (theirs / file).parent.mkdir(exist_ok=True)
    (theirs / file).write_text(content, "utf-8")
    with pytest.raises(InputError, match="theirs is a model of sentence-transformers with"):
        VectorSettings().open(theirs)


def test_no_modules_are_written_for_v2(released, tmp_path):
    target = tmp_path / "v2"
    main(["checkpoints", "convert", str(released("v2_char")), str(target), "--to", "own"])
    EmbeddingConfig("mean", 16).save(target)
    assert not save_modules(target)
    assert not (target / MODULES).exists()


def test_a_missing_pooler_is_reported(released, tmp_path):
    target = tmp_path / "char"
    main(["checkpoints", "convert", str(released("char")), str(target), "--to", "own"])
    EmbeddingConfig("pooler", 16).save(target)
    with pytest.raises(InputError, match="asks for a pooler, but the model has none"):
        VectorSettings().open(target)


@pytest.mark.hf
@pytest.mark.parametrize("pooling", ["pooler", "mean", "cls"])
def test_sentence_transformers_gives_our_vectors(pooling, folder, torch):
    from sentence_transformers import SentenceTransformer

    actual = folder(pooling)
    texts = [*TEXTS, "学习" * 40]  # the last text is truncated
    theirs = SentenceTransformer(str(actual), device="cpu").encode(texts)
    np.testing.assert_allclose(
        VectorSettings().open(actual).embed(texts), theirs, rtol=0, atol=1e-5
    )
