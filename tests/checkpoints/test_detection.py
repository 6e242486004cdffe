import pytest

from roformer_tf.checkpoints.detection import (
    attention_type,
    is_language_model,
    parts,
    transformers_class,
)
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.tokenizers.tokenizer import find_tokenizer

MASKED, ENCODER = "RoFormerForMaskedLM", {"encoder"}


@pytest.mark.parametrize(
    ("name", "overrides", "held", "scores", "mask", "class_name"),
    [
        ("word", {}, ENCODER | {"mlm"}, True, "bidirectional", MASKED),
        ("gpt_char", {}, ENCODER | {"mlm"}, True, "bidirectional", MASKED),
        (
            "gpt_char",
            {"attention_type": "causal"},
            ENCODER | {"mlm"},
            True,
            "causal",
            "RoFormerForCausalLM",
        ),
        ("sim_char", {}, ENCODER | {"mlm", "pooler"}, True, "unilm", MASKED),
        (
            "word_adam",  # trained to tell pairs of sentences, with all tokens in sight
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
        assert parts(checkpoint) == held
        assert is_language_model(checkpoint) is scores
        assert attention_type(checkpoint) == mask
        assert transformers_class(checkpoint) == class_name


def test_an_encoder_alone_is_no_language_model(released, tmp_path):
    from roformer_tf.models.encoder import RoFormerEncoder

    RoFormerEncoder.from_pretrained(released("word")).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with OpenedSource(tmp_path) as source:
        assert find_tokenizer(source) is None
        checkpoint = source.checkpoint()
        assert not is_language_model(checkpoint)
        assert transformers_class(checkpoint) == "RoFormerModel"
