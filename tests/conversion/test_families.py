import pytest

from roformer_tf.checkpoints.sources import opened_checkpoint
from roformer_tf.conversion.families import (
    attention_type,
    find_tokenizer,
    parts,
    scores_tokens,
    transformers_class,
)

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
    with opened_checkpoint(released(name), **overrides) as checkpoint:
        assert parts(checkpoint) == held
        assert scores_tokens(checkpoint) is scores
        assert attention_type(checkpoint) == mask
        assert transformers_class(checkpoint) == class_name


def test_an_encoder_alone_is_no_language_model(released, tmp_path):
    from roformer_tf.models.encoder import RoFormerEncoder

    RoFormerEncoder.from_pretrained(released("word")).save_pretrained(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    assert find_tokenizer(tmp_path) is None
    with opened_checkpoint(tmp_path) as checkpoint:
        assert not scores_tokens(checkpoint)
        assert transformers_class(checkpoint) == "RoFormerModel"
