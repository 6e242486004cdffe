"""Tests that transformers' RoFormer loads our saved models. They need the extra [hf]."""

import json

import numpy as np
import pytest

from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)

pytestmark = pytest.mark.hf


def load_completely(cls, folder):
    """Load with transformers; no weight may be missing, unused or of another shape."""
    model, report = cls.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def outputs(model, inputs, real, **arguments):
    """Return the outputs of a transformers model."""
    import torch  # local: this file is also collected without torch

    with torch.no_grad():
        return model(
            input_ids=torch.tensor(inputs["token_ids"], dtype=torch.long),
            token_type_ids=torch.tensor(inputs["segment_ids"], dtype=torch.long),
            attention_mask=torch.tensor(real, dtype=torch.long),
            **arguments,
        )


def hidden_states(model, inputs, real):
    """Return every hidden state of a transformers model: a list of (B, T, H)."""
    states = outputs(model, inputs, real, output_hidden_states=True).hidden_states
    return [state.numpy() for state in states]


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("name", ["word", "char", "word_project"])
def test_transformers_gives_the_same_hidden_states(
    name, style, released, recorded, inputs_of, real_positions, to_float64, tmp_path, transformers
):
    encoder = RoFormerEncoder.from_pretrained(released(name), rotary_style=style)
    encoder.save_pretrained(tmp_path)
    inputs = inputs_of(recorded(name))
    real = real_positions(inputs["token_ids"])
    theirs = hidden_states(load_completely(transformers.RoFormerModel, tmp_path), inputs, real)
    ours = encoder.hidden_states(inputs)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):  # theirs[0] has size E, not H
        np.testing.assert_allclose(to_float64(mine)[real], other[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("name", ["word", "char", "word_project"])
def test_transformers_gives_the_same_logits(
    name, style, released, recorded, inputs_of, real_positions, to_float64, tmp_path, transformers
):
    model = RoFormerForMaskedLM.from_pretrained(released(name), rotary_style=style)
    model.save_pretrained(tmp_path)
    inputs = inputs_of(recorded(name))
    real = real_positions(inputs["token_ids"])
    theirs = outputs(load_completely(transformers.RoFormerForMaskedLM, tmp_path), inputs, real)
    ours = to_float64(model(inputs))
    np.testing.assert_allclose(ours[real], theirs.logits.numpy()[real], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("cls", "source", "num_labels"),
    [
        (RoFormerForCausalLM, "gpt_char", None),
        (RoFormerForSequenceClassification, "hf_word_seqcls", None),
        (RoFormerForSequenceClassification, "word", 2),  # transformers does not save this default
        (RoFormerForSequenceClassification, "char", 1),
        (RoFormerForTokenClassification, "word_project", 7),
    ],
)
def test_transformers_gives_the_same_logits_of_every_head(
    cls,
    source,
    num_labels,
    released,
    recorded,
    inputs_of,
    real_positions,
    to_float64,
    tmp_path,
    transformers,
):
    arguments = {} if num_labels is None else {"num_labels": num_labels}
    model = cls.from_pretrained(released(source), initializer_range=0.3, **arguments)
    model.save_pretrained(tmp_path / "ours")
    inputs = inputs_of(recorded(source))
    real = real_positions(inputs["token_ids"])
    theirs = load_completely(getattr(transformers, cls.__name__), tmp_path / "ours")
    ours = to_float64(model(inputs))
    got = outputs(theirs, inputs, real).logits.numpy()
    assert got.shape == ours.shape
    compared = real if got.ndim == 3 else slice(None)
    np.testing.assert_allclose(ours[compared], got[compared], rtol=0, atol=2e-5)
    # We load the same model from what transformers saves.
    theirs.save_pretrained(tmp_path / "theirs")
    again = cls.from_pretrained(tmp_path / "theirs")
    assert again.config.attention_type == model.config.attention_type
    # Both are first calls, which are eager: later calls use a graph, which rounds differently.
    np.testing.assert_array_equal(to_float64(again(inputs)), ours)


@pytest.mark.parametrize(
    "labels", [{}, {"id2label": {0: "差", 1: "好"}, "label2id": {"差": 0, "好": 1}}]
)
def test_transformers_reads_the_label_names(labels, tiny, tmp_path, transformers):
    model = RoFormerForSequenceClassification(tiny(unknown=labels), num_labels=2)
    model.save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert config.id2label == labels.get("id2label", {0: "LABEL_0", 1: "LABEL_1"})
    assert config.num_labels == 2


def test_transformers_uses_another_rotary_base(
    tiny, real_positions, to_float64, tmp_path, transformers
):
    encoder = RoFormerEncoder(tiny(rotary_base=50.0, hidden_act="gelu_new"))
    encoder.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(1, 50, (2, 30))
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
    theirs = hidden_states(
        load_completely(transformers.RoFormerModel, tmp_path), inputs, real_positions(ids)
    )
    np.testing.assert_allclose(theirs[-1], to_float64(encoder(inputs)), rtol=0, atol=1e-5)


def test_a_model_with_a_head_is_loaded_as_encoder_and_saved_again(
    released, recorded, inputs_of, real_positions, to_float64, tmp_path, transformers
):
    """We load the same checkpoint from what transformers saves of our model."""
    model = RoFormerForMaskedLM.from_pretrained(released("char"))
    model.save_pretrained(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [
        "RoFormerForMaskedLM"
    ]
    inputs = inputs_of(recorded("char"))
    real = real_positions(inputs["token_ids"])
    encoder = transformers.RoFormerModel.from_pretrained(tmp_path / "ours").eval()
    want = to_float64(model.encoder(inputs))
    got = hidden_states(encoder, inputs, real)[-1]
    np.testing.assert_allclose(got[real], want[real], rtol=0, atol=1e-5)
    load_completely(transformers.RoFormerForMaskedLM, tmp_path / "ours").save_pretrained(
        tmp_path / "theirs"
    )
    again = RoFormerForMaskedLM.from_pretrained(tmp_path / "theirs")
    np.testing.assert_array_equal(to_float64(again(inputs)), to_float64(model(inputs)))
