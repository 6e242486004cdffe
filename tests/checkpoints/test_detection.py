import json
import shutil
from pathlib import Path

import pytest

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.tokenizers.tokenizer import find_tokenizer

MASKED, CAUSAL, ENCODER = "RoFormerForMaskedLM", "RoFormerForCausalLM", {"encoder"}


@pytest.mark.parametrize(
    ("name", "overrides", "held", "scores", "mask", "class_name"),
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
def test_a_checkpoint_is_what_its_parts_are(
    name, overrides, held, scores, mask, class_name, released
):
    with OpenedSource(released(name)) as source:
        checkpoint = source.checkpoint(**overrides)
        assert checkpoint.parts == held
        assert checkpoint.is_language_model is scores
        assert checkpoint.attention_type == mask
        assert checkpoint.described.transformers_class == class_name


def test_an_encoder_alone_is_no_language_model(released, tmp_path):
    from roformer_tf.models.encoder import RoFormerEncoder

    RoFormerEncoder.from_pretrained(released("word")).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with OpenedSource(tmp_path) as source:
        assert find_tokenizer(source) is None
        checkpoint = source.checkpoint()
        assert not checkpoint.is_language_model
        assert checkpoint.transformers_class == "RoFormerModel"


@pytest.fixture
def seen(tmp_path, unpacked):
    """A function that renames a checkpoint and returns its attention_type and is_called_gpt.

    zipped: the name is that of a zip; config: keys to change in the config.
    """

    def look(family, name, zipped=False, **config):
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

    return look


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
def test_the_config_counts_first_and_then_the_name(name, changes, expected, seen):
    assert seen("char", name, **changes) == expected


def test_a_language_model_with_a_pooler_is_a_sim_model_under_any_name(seen):
    assert seen("sim_char", "model") == ("unilm", False)


def test_a_classifier_of_that_name_was_trained_with_all_tokens_in_sight(seen):
    assert seen("hf_word_seqcls", "chinese_roformer-gpt-char-reviews")[0] == "bidirectional"


def test_a_link_and_the_working_folder_have_names(unpacked, tmp_path, monkeypatch):
    folder = unpacked("char").rename(tmp_path / "chinese_roformer-gpt-char")
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    monkeypatch.chdir(folder)
    for place in (".", "../link"):
        with OpenedSource(place) as source:
            assert source.checkpoint().attention_type == "causal"
