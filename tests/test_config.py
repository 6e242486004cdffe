"""RoFormerConfig: the files it reads and writes, its warnings, and the values it refuses."""

import json
import math
import warnings
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roformer_tf.config import _FORMS, RoFormerConfig
from roformer_tf.errors import InputError

SIZES = {
    "vocab_size": 100,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}
COUNTS = st.integers(1, 2**40)


def test_a_bert_config_is_read(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps(SIZES | {"hidden_act": "relu", "hidden_dropout_prob": 0.2}))
    config = RoFormerConfig.from_file(path)
    assert (config.hidden_act, config.hidden_dropout_prob) == ("relu", 0.2)
    assert (config.embedding_size, config.head_size) == (48, 12)
    assert config.unknown == {}


@pytest.mark.parametrize("name", ["hf_word", "hf_char", "hf_v2_char", "hf_word_seqcls"])
def test_what_transformers_writes_is_read_without_a_warning(name, released):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = RoFormerConfig.from_file(released(name) / "config.json")
    assert config.unknown["model_type"] == "roformer"


def test_unset_keys_have_their_defaults():
    config = RoFormerConfig.from_dict(SIZES | {"embedding_size": None, "bos_token_id": None})
    assert config == RoFormerConfig(**SIZES)


def test_unknown_keys_are_kept_with_a_warning():
    unknown_keys = {"shape": "round", "colour": [1]}
    with pytest.warns(UserWarning, match=r"my\.json has unknown keys.*: colour, shape$"):
        config = RoFormerConfig.from_dict(
            SIZES | unknown_keys | {"model_type": "roformer"}, "my.json"
        )
    assert config.unknown == unknown_keys | {"model_type": "roformer"}
    assert config.to_dict()["colour"] == [1]


def test_transformers_configs_set_version_and_labels(released):
    v2, labelled = (
        RoFormerConfig.from_file(released(name) / "config.json")
        for name in ("hf_v2_char", "hf_word_seqcls")
    )
    assert (v2.is_v2, v2.norm_type, v2.use_bias) == (True, "rms_norm", False)
    assert (labelled.is_v2, labelled.num_labels, labelled.attention_type) == (False, 3, None)


@pytest.mark.parametrize(
    ("keys", "key", "want"),
    [
        ({"is_decoder": True}, "attention_type", "causal"),
        ({"is_decoder": False}, "attention_type", None),
        ({"is_decoder": True, "attention_type": "unilm"}, "attention_type", "unilm"),
        ({"id2label": {"0": "bad", "1": "good"}}, "num_labels", 2),
        ({"id2label": {"0": "bad", "1": "good"}, "num_labels": 3}, "num_labels", 3),
        ({"id2label": None}, "num_labels", 0),
        ({"id2label": "bad or good"}, "num_labels", 0),
    ],
)
def test_transformers_keys_are_mapped_and_ours_take_precedence(keys, key, want):
    assert getattr(RoFormerConfig.from_dict(SIZES | keys), key) == want


def test_an_attention_type_that_was_removed_is_not_read_from_the_key_of_transformers_again():
    config = RoFormerConfig.from_dict(SIZES | {"is_decoder": True}).replace(attention_type=None)
    assert RoFormerConfig.from_dict(config.to_dict()) == config


@given(
    layers=COUNTS,
    heads=st.integers(1, 64),
    half_head=st.integers(1, 128),
    embedding=st.integers(0, 4096),
    dropout=st.floats(0, 1, exclude_max=True),
    style=st.sampled_from(["interleaved", "half"]),
    v2=st.booleans(),
    attention=st.sampled_from([None, "bidirectional", "causal", "unilm"]),
    labels=st.integers(0, 2**40),
    pooling=st.sampled_from(["cls", "mean"]),
    unknown=st.dictionaries(st.sampled_from(["model_type", "use_cache"]), st.booleans()),
)
def test_a_config_survives_a_json_round_trip(
    layers,
    heads,
    half_head,
    embedding,
    dropout,
    style,
    v2,
    attention,
    labels,
    pooling,
    unknown,
):
    config = RoFormerConfig(
        vocab_size=7,
        hidden_size=2 * half_head * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=3,
        embedding_size=embedding,
        attention_probs_dropout_prob=dropout,
        rotary_style=style,
        norm_type="rms_norm" if v2 else "layer_norm",
        use_bias=not v2,
        attention_type=attention,
        num_labels=labels,
        pooling=pooling,
        unknown=unknown,
    )
    assert RoFormerConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", SIZES)
def test_a_missing_key_is_reported(name):
    values = {key: value for key, value in SIZES.items() if key != name}
    with pytest.raises(InputError, match=rf"there\.json lacks '{name}', which"):
        RoFormerConfig.from_dict(values, "there.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0, but must be at least 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"intermediate_size": 96.0}, r"intermediate_size is 96\.0"),
        ({"hidden_size": "48"}, "hidden_size is '48'"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"embedding_size": -3}, "embedding_size is -3"),
        ({"num_attention_heads": 5}, "hidden_size 48 over num_attention_heads 5"),
        ({"num_attention_heads": 16}, "no even head size"),
        ({"hidden_dropout_prob": 1}, "hidden_dropout_prob is 1, but must be at least 0"),
        ({"attention_probs_dropout_prob": -0.1}, r"attention_probs_dropout_prob is -0\.1"),
        ({"hidden_dropout_prob": "0.1"}, "hidden_dropout_prob is '0.1'"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob is nan"),
        ({"hidden_act": "swish"}, r"hidden_act is 'swish', but must be one of gelu, "),
        ({"hidden_act": ["gelu"]}, "hidden_act is"),
        ({"rotary_style": "gpt"}, r"rotary_style is 'gpt', .* one of interleaved, half"),
        ({"norm_type": "batch_norm"}, r"norm_type is 'batch_norm', .*layer_norm, rms_norm"),
        ({"use_bias": "no"}, r"use_bias is 'no', but must be one of True, False"),
        ({"norm_type": "rms_norm"}, "use_bias True with norm_type 'rms_norm' is no known"),
        ({"use_bias": False}, "use_bias False with norm_type 'layer_norm' is no known"),
        ({"attention_type": "lm"}, "attention_type is 'lm', but must be one of .*causal"),
        ({"attention_type": "unilm", "type_vocab_size": 1}, "'unilm' needs two segments"),
        ({"pooling": "max"}, r"pooling is 'max', but must be one of cls, mean, pooler"),
        ({"num_labels": -1}, "num_labels is -1, but must be at least 0"),
        ({"num_labels": True}, "num_labels is True"),
        ({"label_mean": math.nan}, "label_mean is nan, but must be a finite"),
        ({"label_mean": "3"}, "label_mean is '3'"),
        ({"label_deviation": 0}, "label_deviation is 0, but must be at least"),
        ({"label_deviation": math.inf}, "label_deviation is inf"),
        ({"rotary_base": 0}, "rotary_base is 0, but must be above 0"),
        ({"rotary_base": "10000"}, "rotary_base is '10000'"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_eps is '1e-12'"),
        ({"layer_norm_eps": -1e-12}, "layer_norm_eps is -1e-12"),
        ({"layer_norm_eps": math.inf}, "layer_norm_eps is inf, but must be a finite"),
        ({"layer_norm_eps": math.nan}, "layer_norm_eps is nan"),
        ({"layer_norm_eps": 1e39}, r"layer_norm_eps is 1e\+39"),
        ({"rotary_base": math.inf}, "rotary_base is inf"),
        ({"rotary_base": math.nan}, "rotary_base is nan"),
        ({"rotary_base": 10**400}, "rotary_base is 1000"),
        ({"initializer_range": math.inf}, "initializer_range is inf"),
        ({"initializer_range": False}, "initializer_range is False"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"rotary_share": 0.3}, r"rotary_share is 0\.3 of heads of 12 dimensions"),
        ({"rotary_share": 0}, "rotary_share is 0, but must be above 0"),
        ({"rotary_share": 1.5}, r"rotary_share is 1\.5, but must be above 0 and at most 1"),
        ({"rotary_share": "1"}, "rotary_share is '1', but must be a number"),
        ({"rotary_value": "yes"}, "rotary_value is 'yes'"),
        ({"rotary_value": True, "position_embedding_type": "t5"}, "rotary_value is about rotary"),
        ({"rope_parameters": {"rope_type": "su"}}, r"'su'.* must be a mapping whose rope_type is"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn' lack a factor"),
        ({"rope_parameters": "linear"}, "rope_parameters is 'linear', but must be a mapping"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 0}},
            "rotary_base is 0",
        ),
        (
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5.0},
                "rotary_base": 6.0,
            },
            r"rotary_base is 6\.0, but rope_theta of rope_parameters is 5\.0",
        ),
        ({"trained_length": -1}, "trained_length is -1"),
        ({"local_attention": True}, "local_attention is True"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
        ({"relative_attention_num_buckets": 3}, "relative_attention_num_buckets is 3"),
    ],
)
def test_values_that_describe_no_model_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        RoFormerConfig(**SIZES | changes)
    with pytest.raises(InputError, match=rf"my\.json: .*{message}"):
        RoFormerConfig.from_dict(SIZES | changes, "my.json")


def test_transformers_rope_parameters_are_mapped_to_our_keys():
    arguments = {"rope_theta": 500.0, "partial_rotary_factor": 0.5, "rope_type": "default"}
    config = RoFormerConfig.from_dict(SIZES | {"rope_parameters": arguments})
    assert (config.rotary_base, config.rotary_share, config.rope_parameters) == (500.0, 0.5, None)
    scaled = config.replace(rope_parameters=arguments | {"rope_type": "linear", "factor": 2.0})
    assert scaled.rope_parameters == {"rope_type": "linear", "factor": 2.0}
    assert (scaled.rotary_base, scaled.rotary_share) == (500.0, 0.5)
    assert RoFormerConfig.from_dict(scaled.to_dict()) == scaled
    assert arguments["rope_theta"] == 500.0  # the caller's dictionary is unchanged


SCALE = ("label_mean", "label_deviation")


def test_the_scale_of_labels_is_written_only_if_set():
    config = RoFormerConfig(**SIZES, label_mean=-3, label_deviation=1.5)
    assert {name: config.to_dict()[name] for name in SCALE} == {
        "label_mean": -3,
        "label_deviation": 1.5,
    }
    assert RoFormerConfig.from_dict(config.to_dict()) == config


def test_keys_of_unusual_forms_are_written_only_if_set():
    assert RoFormerConfig(**SIZES).to_dict().keys() == {
        *(f.name for f in fields(RoFormerConfig) if f.name not in (*_FORMS, *SCALE, "unknown"))
    }
    chosen = RoFormerConfig(**SIZES, position_embedding_type="t5", local_attention=4)
    assert (
        chosen.to_dict().items() >= {"position_embedding_type": "t5", "local_attention": 4}.items()
    )
    assert chosen.unusual_form() == "position_embedding_type 't5'"
    assert RoFormerConfig(**SIZES).unusual_form() is None
    learned = RoFormerConfig(**SIZES, position_embedding_type="learned")
    assert (learned.unusual_form(learned=True), bool(learned.unusual_form())) == (None, True)
    assert RoFormerConfig(**SIZES, rotary_value=True).unusual_form(value=True) is None


def test_a_learned_position_table_has_a_maximum_length():
    learned = RoFormerConfig(**SIZES, position_embedding_type="learned", max_position_embeddings=9)
    learned.check_length(9, "max_length")
    with pytest.raises(InputError, match="max_length is 10, but the model has learned 9 positions"):
        learned.check_length(10, "max_length")
    learned.replace(position_embedding_type="rotary").check_length(10, "max_length")


@pytest.mark.parametrize(("every", "want"), [(1, ()), (2, (1, 3)), (3, (1, 2)), (9, (1, 2, 3))])
def test_every_nth_layer_attends_globally(every, want):
    config = RoFormerConfig(**SIZES, local_attention=8, global_attn_every_n_layers=every)
    assert tuple(i for i in range(4) if config.is_local(i)) == want
    assert not any(RoFormerConfig(**SIZES).is_local(i) for i in range(4))


def test_replace_changes_keys_and_refuses_unknown_ones():
    config = RoFormerConfig(**SIZES, unknown={"note": 1})
    changed = config.replace(num_hidden_layers=5)
    assert (changed.num_hidden_layers, changed.unknown) == (5, {"note": 1})
    assert config.num_hidden_layers == 2
    with pytest.raises(InputError, match=r"has no hidden_dropot, note\. It has: .*hidden_size"):
        config.replace(hidden_dropot=1, note=2)
    with pytest.raises(InputError, match="vocab_size is 0"):
        config.replace(vocab_size=0)


def test_replace_changes_the_embedding_size_unless_it_was_different():
    config = RoFormerConfig(**SIZES)
    assert config.replace(hidden_size=96).embedding_size == 96
    assert config.replace(hidden_size=96, embedding_size=48).embedding_size == 48
    assert config.replace(embedding_size=24).replace(hidden_size=96).embedding_size == 24
    assert config.replace(num_hidden_layers=3).embedding_size == 48
    with pytest.raises(InputError, match="hidden_size is '96'"):
        config.replace(hidden_size="96")


@pytest.mark.parametrize("marks", ["[]", ('{"a":', "}")])
def test_deeply_nested_json_is_refused(marks, tmp_path):
    (first, last), depth = marks, 100_000
    nested = first * depth + (last * depth if first == "[" else "1" + last * depth)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SIZES)[:-1] + f', "note": {nested}}}')
    with pytest.raises(InputError, match=rf"{path} .*nested .*Give a config file"):
        RoFormerConfig.from_file(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b"\xff\xfe{}", "is not valid JSON"),
        (b"[]", "contains no JSON object"),
        (b"3", "contains no JSON object"),
    ],
)
def test_a_file_without_a_config_is_refused(content, message, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=rf"config\.json {message}.*Give a config file"):
        RoFormerConfig.from_file(tmp_path / "config.json")


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(InputError, match=f"cannot read {path}: .*Give a config file"):
            RoFormerConfig.from_file(path)
