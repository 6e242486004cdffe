"""Tests of BERT checkpoints: reading each naming scheme, and transformers (extra [hf])."""

import json
import re
import zipfile

import keras
import numpy as np
import pytest
from keras import ops
from safetensors.numpy import load_file, save_file

from roformer_tf.checkpoints import tf1
from roformer_tf.errors import InputError
from roformer_tf.models.encoder import RoFormerEncoder
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.heads import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSequenceClassification,
    RoFormerForTokenClassification,
)

IDS = np.random.default_rng(0).integers(1, 50, (2, 30)).astype("int32")
IDS[1, 20:] = 0
INPUTS = {"token_ids": IDS, "segment_ids": np.sort(IDS % 2, axis=1)}
REAL = IDS != 0
BERT = {
    "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 48, "max_position_embeddings": 40, "type_vocab_size": 2,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12, "initializer_range": 0.02,
}  # fmt: skip


@pytest.fixture
def bert(tiny):
    """Return a function: bert(cls, …) → a small model with learned positions and random weights."""

    def make(cls=RoFormerForMaskedLM, **options):
        keras.utils.set_random_seed(2)
        model = cls(tiny(position_embedding_type="learned", max_position_embeddings=40, **options))
        rng = np.random.default_rng(3)
        model.set_weights([0.3 * rng.normal(size=x.shape) for x in model.get_weights()])
        return model

    return make


def named_as_in_bert(model):
    """Return the weights by their names in transformers' BERT, by a mapping of our own."""
    renamed = {
        "encoder/embeddings/word/embeddings": "bert.embeddings.word_embeddings.weight",
        "encoder/embeddings/segment/embeddings": "bert.embeddings.token_type_embeddings.weight",
        "encoder/embeddings/position/embeddings": "bert.embeddings.position_embeddings.weight",
        "mlm/bias": "cls.predictions.bias",
    }
    ours, theirs = r"encoder/layer_(\d+)", r"bert.encoder.layer.\1"
    patterns = [
        (r"encoder/embeddings/norm", "bert.embeddings.LayerNorm"),
        (rf"{ours}/attention/attention_output", f"{theirs}.attention.output.dense"),
        (rf"{ours}/attention/(\w+)", rf"{theirs}.attention.self.\2"),
        (rf"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm"),
        (rf"{ours}/output_norm", f"{theirs}.output.LayerNorm"),
        (rf"{ours}/(intermediate|output)", rf"{theirs}.\2.dense"),
        (r"mlm/dense", "cls.predictions.transform.dense"),
        (r"mlm/norm", "cls.predictions.transform.LayerNorm"),
    ]
    actual = {}
    for name, variable in model.named_variables().items():
        array = ops.convert_to_numpy(variable)
        if name in renamed:
            actual[renamed[name]] = array
            continue
        prefix, kind = name.rsplit("/", 1)
        for pattern, other in patterns:
            if re.fullmatch(pattern, prefix):
                prefix = re.sub(pattern, other, prefix)
                break
        if kind == "kernel":  # (in, out) flat, and transposed
            inputs = 32 if array.ndim == 3 else array.shape[0]
            array = array.reshape(inputs, -1).T
        names = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
        flat = array.reshape(-1) if kind == "bias" else array  # transformers has no axis of heads
        actual[f"{prefix}.{names[kind]}"] = np.ascontiguousarray(flat)
    return actual


def bare(tensors):
    """Return tensors as `BertModel.save_pretrained` writes them: without head and prefix."""
    return {
        name.removeprefix("bert."): x for name, x in tensors.items() if name.startswith("bert.")
    }


def early_pytorch(tensors):
    """Return tensors as in early PyTorch files: TF1's names of norms, and a buffer of positions."""
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): x
        for name, x in tensors.items()
    }
    decoder = {
        "cls.predictions.decoder.weight": renamed["bert.embeddings.word_embeddings.weight"],
        "bert.embeddings.position_ids": np.arange(40)[None],
    }
    return renamed | {name: x.copy() for name, x in decoder.items()}


def folder_of(tmp_path, tensors, **config):
    values = BERT | {"model_type": "bert", "architectures": ["BertForMaskedLM"]} | config
    (tmp_path / "config.json").write_text(json.dumps(values))
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path


@pytest.mark.parametrize("naming", [dict, bare, early_pytorch], ids=["whole", "bare", "old"])
@pytest.mark.parametrize(
    "message",
    [{}, {"position_embedding_type": "absolute"}, {"model_type": None, "architectures": None}],
)
def test_a_bert_folder_of_transformers_is_loaded(
    naming, message, bert, tmp_path, to_float64, caplog
):
    model = bert()
    folder = folder_of(tmp_path, naming(named_as_in_bert(model)), **message)
    encoder = RoFormerEncoder.from_pretrained(folder)
    assert encoder.config.position_embedding_type == "learned"
    assert encoder.config.attention_type == "bidirectional"
    want = to_float64(model.encoder(INPUTS))
    np.testing.assert_array_equal(to_float64(encoder(INPUTS)), want)
    if naming is not bare:
        again = RoFormerForMaskedLM.from_pretrained(folder)
        np.testing.assert_array_equal(to_float64(again(INPUTS)), to_float64(model(INPUTS)))
    else:
        assert "new" not in caplog.text


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "electra", "ernie"])
def test_other_models_with_the_names_of_a_bert_are_refused(kind, bert, tmp_path):
    """Their positions are other ones: without an error, they would be those of a RoFormer."""
    tensors = bare(named_as_in_bert(bert()))
    folder = folder_of(tmp_path, {f"{kind}.{name}": x for name, x in tensors.items()})
    assert RoFormerEncoder.from_pretrained(folder).config.position_embedding_type == "learned"
    folder_of(tmp_path, tensors, model_type=kind)
    with pytest.raises(InputError, match=f"model_type is '{kind}'.*a RoFormer or a BERT"):
        RoFormerEncoder.from_pretrained(folder)


def test_a_released_bert_is_detected_by_its_position_table(bert, tmp_path, to_float64):
    model = bert()
    arrays = {
        name: ops.convert_to_numpy(variable) for name, variable in model.named_variables().items()
    }
    archive_path = tmp_path / "chinese_L-2_H-32_A-4.zip"
    tf1.write(archive_path, model.config, arrays)
    with zipfile.ZipFile(archive_path) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / archive_path.stem
    (folder / "bert_config.json").write_text(json.dumps(BERT))  # without a position type
    again = RoFormerForMaskedLM.from_pretrained(folder)
    assert again.config.position_embedding_type == "learned"
    np.testing.assert_array_equal(to_float64(again(INPUTS)), to_float64(model(INPUTS)))
    # With another position type, the other weights are loaded. A folder named roformer is rotary.
    for source, options in [
        (folder, {"position_embedding_type": "rotary"}),
        (tmp_path / "chinese_roformer_L-2", {}),
    ]:
        source = source if source.exists() else folder.rename(source)
        encoder = RoFormerEncoder.from_pretrained(source, **options)
        assert encoder.config.position_embedding_type == "rotary"
        want = RoFormerEncoder(model.config.replace(position_embedding_type="rotary"))
        for name, variable in want.named_variables().items():
            variable.assign(arrays[name])
        np.testing.assert_array_equal(to_float64(encoder(INPUTS)), to_float64(want(INPUTS)))


def test_another_position_type_is_saved(bert, tmp_path, to_float64):
    folder = folder_of(tmp_path, named_as_in_bert(bert()))
    model = RoFormerForMaskedLM.from_pretrained(folder, position_embedding_type="rotary")
    model.save_pretrained(tmp_path / "again")
    again = RoFormerForMaskedLM.from_pretrained(tmp_path / "again")
    assert again.config.position_embedding_type == "rotary"
    np.testing.assert_array_equal(to_float64(again(INPUTS)), to_float64(model(INPUTS)))
    result = type(model).from_config(model.get_config())  # as Keras recreates it
    assert result.config == model.config


@pytest.mark.parametrize(
    ("cls", "options", "kind", "architecture"),
    [
        (RoFormerEncoder, {}, "bert", "BertModel"),
        (RoFormerForMaskedLM, {}, "bert", "BertForMaskedLM"),
        (RoFormerForCausalLM, {}, "bert", "BertLMHeadModel"),
        (RoFormerForTokenClassification, {"num_labels": 3}, "bert", "BertForTokenClassification"),
        (RoFormerForSequenceClassification, {"num_labels": 3}, "roformer_tf", None),
        (RoFormerForTokenClassification, {"num_labels": 3, "crf": True}, "roformer_crf", None),
        (RoFormerForMaskedLM, {"embedding_size": 16}, "roformer_tf", None),
    ],
)
def test_a_model_is_saved_as_bert_if_compatible(cls, options, kind, architecture, bert, tmp_path):
    bert(cls, **options).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == kind
    names = load_file(tmp_path / "model.safetensors").keys()
    prefix = "bert." if kind == "bert" else "roformer."
    assert f"{prefix}embeddings.position_embeddings.weight" in names
    assert not any("embed_positions" in name for name in names)
    if kind == "bert":
        assert written["architectures"] == [architecture]
        assert written["position_embedding_type"] == "absolute"  # or transformers adds none
        assert "rotary_value" not in written
    again = cls.from_pretrained(tmp_path)
    assert again.config.position_embedding_type == "learned"


def test_a_longer_text_is_refused_after_shorter_ones(bert):
    """TensorFlow's trace then serves all lengths, and no longer knows them."""
    model = bert(num_hidden_layers=1)
    for length in (8, 16):
        model.predict_on_batch({"token_ids": np.ones((1, length), "int32")})
    with pytest.raises(InputError, match="is 41, but the model has learned 40 positions"):
        model.predict_on_batch({"token_ids": np.ones((1, 41), "int32")})


def test_sequences_longer_than_the_table_are_refused(bert):
    model = bert()
    for _ in range(3):  # the later calls are those of a compiled function
        model({"token_ids": np.ones((1, 40), "int32")})
    message = "length of token_ids is 41, but the model has learned 40 positions"
    with pytest.raises(InputError, match=message):
        model({"token_ids": np.ones((1, 41), "int32")})


def test_finished_texts_need_no_more_positions_than_the_table_has(bert):
    """Texts of 40 tokens stay in the batch while shorter ones are continued."""
    model = bert(RoFormerForCausalLM, attention_type="causal", num_hidden_layers=1)
    prompts = [[1, *range(4, 42)], [1, 7], [1, 8]]
    settings = GenerationConfig(max_tokens=6)
    together = model.generate_ids(prompts, settings)
    alone = [model.generate_ids([prompt], settings)[0] for prompt in prompts]
    assert [[x.token_ids for x in each] for each in together] == [
        [x.token_ids for x in each] for each in alone
    ]
    assert len(together[0][0].token_ids) == 1 < len(together[1][0].token_ids)


@pytest.mark.hf
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM", "BertForPreTraining"])
def test_hidden_states_equal_transformers(
    name, tmp_path, to_float64, transformers, record_property
):
    import torch

    torch.manual_seed(0)
    theirs = getattr(transformers, name)(transformers.BertConfig(**BERT)).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "theirs")
    want = states(theirs, INPUTS)
    ours = RoFormerEncoder.from_pretrained(tmp_path / "theirs")
    actual = max_difference(ours.hidden_states(INPUTS), want, to_float64)
    record_property("difference", (name, "hidden states", float(actual), 1e-5))
    assert actual <= 1e-5
    # Saved and loaded by transformers, only weights that our model does not have are missing.
    ours.save_pretrained(tmp_path / "ours")
    reloaded, report = transformers.BertModel.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert {x for x in report["missing_keys"] if not x.startswith("pooler")} == set()
    assert not report["unexpected_keys"]
    again = max_difference(
        [torch.tensor(x) for x in states(reloaded.eval(), INPUTS)], want, to_float64
    )
    assert again <= 1e-6


@pytest.mark.hf
def test_transformers_loads_saved_models_with_equal_logits(
    bert, tmp_path, to_float64, transformers
):
    import torch

    model = bert()
    model.save_pretrained(tmp_path)
    theirs, report = transformers.BertForMaskedLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values()), report
    with torch.no_grad():
        want = theirs.eval()(**arguments(INPUTS)).logits.numpy()
    actual = np.abs(to_float64(model(INPUTS)) - want)[REAL].max()
    assert actual <= 2e-5
    bert(embedding_size=16).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="roformer_tf"):
        transformers.AutoModel.from_pretrained(tmp_path / "other")


def arguments(inputs):
    """Return the arguments of a call of a transformers model."""
    import torch

    return {
        "input_ids": torch.tensor(inputs["token_ids"], dtype=torch.long),
        "token_type_ids": torch.tensor(inputs["segment_ids"], dtype=torch.long),
        "attention_mask": torch.tensor(REAL, dtype=torch.long),
    }


def states(model, inputs):
    """Return every hidden state of a transformers model: a list of (B, T, H)."""
    import torch

    with torch.no_grad():
        actual = model(**arguments(inputs), output_hidden_states=True).hidden_states
    return [state.numpy() for state in actual]


def max_difference(ours, theirs, to_float64):
    pairs = zip(ours, theirs, strict=True)
    return max(np.abs(to_float64(ours_state) - other)[REAL].max() for ours_state, other in pairs)
