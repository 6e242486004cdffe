"""What `save_pretrained` writes, opened by transformers' own RoFormer. Needs the extra [hf]."""

import json

import numpy as np
import pytest

from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.heads import RoFormerForMaskedLM

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def loaded_whole(cls, folder):
    """Load with transformers; nothing may be missing, left over or of another shape."""
    model, report = cls.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def hidden_states(model, inputs, real):
    """Every hidden state by transformers: a list of (B, T, H)."""
    with torch.no_grad():
        states = model(
            input_ids=torch.tensor(inputs["token_ids"], dtype=torch.long),
            token_type_ids=torch.tensor(inputs["segment_ids"], dtype=torch.long),
            attention_mask=torch.tensor(real, dtype=torch.long),
            output_hidden_states=True,
        ).hidden_states
    return [state.numpy() for state in states]


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("name", ["word", "char", "word_project"])
def test_transformers_gives_the_same_hidden_states(
    name, style, released, recorded, inputs_of, real_positions, to_float64, tmp_path
):
    encoder = RoFormerEncoder.from_pretrained(released(name), rotary_style=style)
    encoder.save_pretrained(tmp_path)
    inputs = inputs_of(recorded(name))
    real = real_positions(inputs["token_ids"])
    theirs = hidden_states(loaded_whole(transformers.RoFormerModel, tmp_path), inputs, real)
    ours = encoder.hidden_states(inputs)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):  # theirs begin before E → H
        np.testing.assert_allclose(to_float64(mine)[real], other[real], rtol=0, atol=1e-5)


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize("name", ["word", "char", "word_project"])
def test_transformers_gives_the_same_logits(
    name, style, released, recorded, inputs_of, real_positions, to_float64, tmp_path
):
    model = RoFormerForMaskedLM.from_pretrained(released(name), rotary_style=style)
    model.save_pretrained(tmp_path)
    inputs = inputs_of(recorded(name))
    real = real_positions(inputs["token_ids"])
    with torch.no_grad():
        theirs = loaded_whole(transformers.RoFormerForMaskedLM, tmp_path)(
            input_ids=torch.tensor(inputs["token_ids"], dtype=torch.long),
            token_type_ids=torch.tensor(inputs["segment_ids"], dtype=torch.long),
            attention_mask=torch.tensor(real, dtype=torch.long),
        ).logits.numpy()
    ours = to_float64(model(inputs))
    np.testing.assert_allclose(ours[real], theirs[real], rtol=0, atol=2e-5)


def test_transformers_turns_by_another_base_too(tiny, real_positions, to_float64, tmp_path):
    encoder = RoFormerEncoder(tiny(rotary_base=50.0, hidden_act="gelu_new"))
    encoder.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(1, 50, (2, 30))
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids)}
    theirs = hidden_states(
        loaded_whole(transformers.RoFormerModel, tmp_path), inputs, real_positions(ids)
    )
    np.testing.assert_allclose(theirs[-1], to_float64(encoder(inputs)), rtol=0, atol=1e-5)


def test_a_model_with_a_head_opens_as_the_bare_encoder_and_back(
    released, recorded, inputs_of, real_positions, to_float64, tmp_path
):
    """What transformers writes of what we wrote is the same checkpoint to us."""
    model = RoFormerForMaskedLM.from_pretrained(released("char"))
    model.save_pretrained(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [
        "RoFormerForMaskedLM"
    ]
    inputs = inputs_of(recorded("char"))
    real = real_positions(inputs["token_ids"])
    bare = transformers.RoFormerModel.from_pretrained(tmp_path / "ours").eval()
    want = to_float64(model.encoder(inputs))
    got = hidden_states(bare, inputs, real)[-1]
    np.testing.assert_allclose(got[real], want[real], rtol=0, atol=1e-5)
    loaded_whole(transformers.RoFormerForMaskedLM, tmp_path / "ours").save_pretrained(
        tmp_path / "theirs"
    )
    again = RoFormerForMaskedLM.from_pretrained(tmp_path / "theirs")
    np.testing.assert_array_equal(to_float64(again(inputs)), to_float64(model(inputs)))
