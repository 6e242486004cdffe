"""Tests of attention types: what a token can attend to, and which setting decides."""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSentenceSimilarity,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)
from tests.support.random_model import tokenizer_of

LENGTH, SOURCE, VOCABULARY = 12, 5, 50


@pytest.fixture(
    scope="module",
    params=[
        (kind, version, dtype)
        for kind, version in [("causal", "v1"), ("unilm", "v1"), ("causal", "v2")]
        for dtype in ("float32", "mixed_bfloat16")
    ],
    ids=" ".join,
)
def model(request, tiny):
    kind, version, dtype = request.param
    changes = {"norm_type": "rms_norm", "use_bias": False} if version == "v2" else {}
    keras.utils.set_random_seed(0)
    config = tiny(num_hidden_layers=1, attention_type=kind, **changes)
    return RoFormerForCausalLM(config, dtype=dtype)


@pytest.mark.quick_cases("* v1 float32", "unilm v1 *", "causal v2 mixed_bfloat16")
@settings(max_examples=8)
@given(
    ids=st.lists(st.integers(1, VOCABULARY - 1), min_size=LENGTH, max_size=LENGTH),
    position=st.integers(0, LENGTH - 1),
    step=st.integers(1, VOCABULARY - 2),
)
def test_a_changed_token_affects_exactly_the_tokens_that_attend_to_it(
    model, to_float64, ids, position, step
):
    """Segment 0 is the source; with UniLM's mask, source tokens attend in both directions."""
    segment_ids = (np.arange(LENGTH) >= SOURCE).astype("int32")[None]
    first = {"token_ids": np.array([ids], "int32"), "segment_ids": segment_ids}
    changed = first["token_ids"].copy()
    changed[0, position] = (changed[0, position] - 1 + step) % (VOCABULARY - 1) + 1
    logits, rest = (
        to_float64(model({**first, "token_ids": token_ids}))[0]
        for token_ids in (first["token_ids"], changed)
    )
    source = model.config.attention_type == "unilm" and position < SOURCE
    before = 0 if source else position  # number of tokens that cannot attend to the change
    np.testing.assert_array_equal(logits[:before], rest[:before])
    assert (logits[before:] != rest[before:]).any(-1).all()


@pytest.mark.usefixtures("eager_steps")
def test_without_a_mask_every_token_attends_to_the_last(tiny, to_float64):
    model = RoFormerForMaskedLM(tiny(num_hidden_layers=1))
    ids = np.arange(1, LENGTH + 1)[None]
    changed = np.append(ids[:, :-1], [[40]], axis=1)
    first, second = (to_float64(model({"token_ids": x}))[0] for x in (ids, changed))
    assert (first != second).any(-1).all()


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (RoFormerEncoder, None),
        (RoFormerForMaskedLM, None),
        (RoFormerForCausalLM, "causal"),
        (RoFormerForSentenceSimilarity, "unilm"),
        (RoFormerForSequenceClassification, None),
        (RoFormerForTokenClassification, None),
    ],
)
def test_the_class_sets_the_default_attention_type(cls, kind, tiny):
    def attention_types(model):
        return model.config.attention_type, getattr(model, "encoder", model).config.attention_type

    changes = {"num_hidden_layers": 1}
    changes |= {"num_labels": 2} if "Classification" in cls.__name__ else {}
    assert attention_types(cls(tiny(**changes))) == (kind, kind)
    for other in ("bidirectional", "causal", "unilm"):
        assert attention_types(cls(tiny(attention_type=other, **changes))) == (other, other)


@pytest.mark.parametrize(
    ("cls", "name", "kind"),
    [
        (RoFormerForCausalLM, "gpt_char", "causal"),
        (RoFormerForMaskedLM, "gpt_char", None),
        (RoFormerForSentenceSimilarity, "sim_char", "unilm"),
        (RoFormerForCausalLM, "hf_word", "causal"),  # its config has is_decoder false
        (RoFormerForSentenceSimilarity, "word_adam", "bidirectional"),  # it has an NSP head
    ],
)
def test_attention_types_of_released_checkpoints(cls, name, kind, released, tmp_path):
    model = cls.from_pretrained(released(name))
    assert model.config.attention_type == kind
    other = cls.from_pretrained(released(name), attention_type="unilm")
    assert other.config.attention_type == "unilm"
    other.save_pretrained(tmp_path)
    assert RoFormerEncoder.from_pretrained(tmp_path).config.attention_type == "unilm"


@pytest.mark.parametrize(
    ("cls", "changes", "saved"),
    [
        (RoFormerForCausalLM, None, ("RoFormerForCausalLM", "causal")),
        (RoFormerForCausalLM, "causal", ("RoFormerForCausalLM", "causal")),
        # transformers lacks these masks and would generate other text
        (RoFormerForCausalLM, "unilm", ("RoFormerForMaskedLM", "unilm")),
        (RoFormerForCausalLM, "bidirectional", ("RoFormerForMaskedLM", "bidirectional")),
        (RoFormerForSentenceSimilarity, None, ("RoFormerForMaskedLM", "unilm")),
        (RoFormerForMaskedLM, None, ("RoFormerForMaskedLM", None)),
    ],
)
def test_only_causal_models_are_saved_as_generators(cls, changes, saved, tiny, tmp_path):
    """The saved config has the special token ids, which every program that generates text needs."""
    tokenizer = tokenizer_of()
    RoFormerForCausalLM(tiny(vocab_size=tokenizer.vocab_size)).save_pretrained(tmp_path)
    model = cls(tiny(attention_type=changes, vocab_size=tokenizer.vocab_size))
    model.tokenizer = tokenizer
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    generates = saved[1] == "causal"
    assert (config["architectures"], config["attention_type"]) == ([saved[0]], saved[1])
    assert config["is_decoder"] is generates
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}  # line numbers of the vocab.txt
    assert (ids.items() <= config.items()) is generates
    file = tmp_path / "generation_config.json"  # a file of the previous model is removed
    assert (json.loads(file.read_text()) if file.exists() else None) == (ids if generates else None)
    assert RoFormerEncoder.from_pretrained(tmp_path).config.attention_type == saved[1]
