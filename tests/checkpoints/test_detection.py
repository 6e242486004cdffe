import json
import shutil
from pathlib import Path

import pytest

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.tokenizers.tokenizer import find_tokenizer

MASKED, CAUSAL, ENCODER = "RoFormerForMaskedLM", "RoFormerForCausalLM", {"encoder"}


@pytest.mark.parametrize(
    ("name", "overrides", "parts", "scores", "mask", "class_name"),
    [
        ("word", {}, ENCODER | {"mlm"}, True, "bidirectional", MASKED),
        ("gpt_char", {}, ENCODER | {"mlm"}, True, "causal", CAUSAL),
        (
            "gpt_char",
            {"attention_type": "bidirectional"},  # the user's setting overrides the name
            ENCODER | {"mlm"},
            True,
            "bidirectional",
            MASKED,
        ),
        (
            "gpt_char",
            {"attention_type": "causal"},
            ENCODER | {"mlm"},
            True,
            "causal",
            CAUSAL,
        ),
        ("sim_char", {}, ENCODER | {"mlm", "pooler"}, True, "unilm", MASKED),
        (
            "word_adam",  # trained on sentence pairs with bidirectional attention
            {},
            ENCODER | {"mlm", "pooler", "seq_relationship"},
            True,
            "bidirectional",
            MASKED,
        ),
        ("v2_char", {}, ENCODER, True, "bidirectional", MASKED),
        (
            "hf_word_seqcls",
            {},
            ENCODER | {"classifier"},
            False,
            "bidirectional",
            "RoFormerForSequenceClassification",
        ),
    ],
)
def test_the_class_follows_from_the_parts(
    name, overrides, parts, scores, mask, class_name, released
):
    with OpenedSource(released(name)) as source:
        checkpoint = source.checkpoint(**overrides)
        assert checkpoint.parts == parts
        assert checkpoint.is_language_model is scores
        assert checkpoint.attention_type == mask
        assert checkpoint.described.transformers_class == class_name


def test_an_encoder_is_not_a_language_model(released, tmp_path):
    from roformer_tf.models.encoder import RoFormerEncoder

    RoFormerEncoder.from_pretrained(released("word")).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with OpenedSource(tmp_path) as source:
        assert find_tokenizer(source, source.checkpoint().config) is None
        checkpoint = source.checkpoint()
        assert not checkpoint.is_language_model
        assert checkpoint.transformers_class == "RoFormerModel"


@pytest.fixture
def detect(tmp_path, unpacked):
    """A function that renames a checkpoint and returns its attention_type and is_called_gpt.

    zipped: the name is that of a zip; config: keys to change in the config.
    """

    def read_renamed(family, name, zipped=False, **config):
        folder = unpacked(family).rename(tmp_path / ("files" if zipped else name))
        (file,) = (f for f in folder.glob("*config.json") if "tokenizer" not in f.name)
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
        target = tmp_path / name
        if zipped:
            result = shutil.make_archive(tmp_path / "made", "zip", tmp_path, folder.name)
            target = Path(result).rename(target)
        with OpenedSource(target) as source:
            checkpoint = source.checkpoint()
            output = checkpoint.attention_type
            written = checkpoint.described.config.attention_type
            assert written == (output if output == "causal" else checkpoint.config.attention_type)
            return output, checkpoint.is_called_gpt

    return read_renamed


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("chinese_roformer-gpt-char_L-12_H-768_A-12", {}, ("causal", True)),
        ("chinese_roformer-gpt-char", {}, ("causal", True)),
        ("Chinese_RoFormer-GPT-char-base (1)", {}, ("causal", True)),
        ("chinese_roformer-gpt-char_L-2.zip", {"zipped": True}, ("causal", True)),
        ("renamed.zip", {"zipped": True}, ("bidirectional", False)),
        ("my_gpt", {}, ("bidirectional", True)),  # ambiguous: commands ask for --attention-type
        ("my_chinese_roformer-gpt-char", {}, ("bidirectional", True)),
        ("chinese_roformer-char_L-12_H-768_A-12", {}, ("bidirectional", False)),
        (
            "chinese_roformer-gpt-char",
            {"attention_type": "bidirectional"},
            ("bidirectional", False),
        ),
        ("chinese_roformer-gpt-char", {"attention_type": "unilm"}, ("unilm", False)),
        ("chinese_roformer-char", {"is_decoder": True}, ("causal", False)),
        ("chinese_roformer-gpt-char", {"is_decoder": False}, ("causal", True)),
    ],
)
def test_the_config_takes_precedence_over_the_name(name, changes, expected, detect):
    assert detect("char", name, **changes) == expected


def test_a_language_model_with_a_pooler_is_a_sim_model_under_any_name(detect):
    assert detect("sim_char", "model") == ("unilm", False)


def test_a_classifier_is_bidirectional_despite_its_name(detect):
    assert detect("hf_word_seqcls", "chinese_roformer-gpt-char-reviews")[0] == "bidirectional"


def test_names_of_links_and_of_the_working_folder_are_used(unpacked, tmp_path, monkeypatch):
    folder = unpacked("char").rename(tmp_path / "chinese_roformer-gpt-char")
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    monkeypatch.chdir(folder)
    for path in (".", "../link"):
        with OpenedSource(path) as source:
            assert source.checkpoint().attention_type == "causal"
