"""Conversion between layouts loses nothing, and the libraries of the layouts read the results."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest

import roformer_tf
from roformer_tf.checkpoints.archives import Files
from roformer_tf.checkpoints.names import IGNORED
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import RoFormerConfig
from roformer_tf.conversion.change_vocabulary import VocabularyConfig, change_vocabulary
from roformer_tf.conversion.convert import ConvertConfig, OutputConfig, convert
from roformer_tf.errors import InputError
from roformer_tf.tasks.choices.multiple_choice import SummaryChoices
from roformer_tf.tasks.classification import Pair
from tests.support import hostile_zips as hostile
from tests.support.random_model import random_model, save_random_models

DATA = "bert_model.ckpt.data-00000-of-00001"
SUPPORT = Path(__file__).parents[1] / "support"
FAMILIES = {  # arguments of bert4keras' build_transformer_model
    "word": {"with_mlm": "linear"},
    "char": {"with_mlm": "linear"},
    "gpt_char": {"with_mlm": "linear", "application": "lm"},
    "sim_char": {"with_mlm": "linear", "with_pool": "linear", "application": "unilm"},
    "sim_char_ft": {"with_mlm": "linear", "with_pool": "linear", "application": "unilm"},
    "v2_char": {"with_mlm": "linear", "model": "roformer_v2"},
    "word_project": {"with_mlm": "linear"},
    "word_adam": {"with_pool": True, "with_nsp": True},
}


def run(source, target, to, **flags):
    dtype = flags.pop("dtype", None)
    convert(
        ConvertConfig(
            source=str(source), target=target, output=OutputConfig(to=to, dtype=dtype), **flags
        )
    )
    return target


# --- Round trips -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_trip_keeps_every_tensor(family, converted, tensors_in):
    paths = converted(family)
    before, after = tensors_in(paths["start"]), tensors_in(paths["tf1"])
    assert after.keys() == {name for name in before if not IGNORED.fullmatch(name)}
    for name, tensor in after.items():
        assert (tensor.dtype, tensor.shape) == (before[name].dtype, before[name].shape)
        assert tensor.tobytes() == before[name].tobytes()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_round_trip_keeps_config_and_vocabulary(family, converted):
    paths = converted(family)
    with Files(paths["start"]) as start, Files(paths["tf1"]) as end:
        assert folder_name_in(paths["tf1"]) == paths["start"].stem
        before, after = (json.loads(files.read("bert_config.json")) for files in (start, end))
        assert end.read("vocab.txt") == start.read("vocab.txt")
        assert {path.name for path in end.folder.iterdir()} == {
            "bert_config.json",
            "bert_model.ckpt.index",
            "bert_model.ckpt.data-00000-of-00001",
            "checkpoint",
            "vocab.txt",
        }
    assert before.items() <= after.items()


def folder_name_in(path):
    with zipfile.ZipFile(path) as archive:
        (name,) = {Path(member).parts[0] for member in archive.namelist()}
    return name


@pytest.mark.parametrize("family", FAMILIES)
def test_own_and_huggingface_write_the_same_files(family, converted):
    own, other = converted(family)["own"], converted(family)["huggingface"]
    names, rest = (
        {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        for folder in (own, other)
    )
    assert names == rest
    assert names >= {"config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"}
    for name in names - {"config.json"}:  # its keys may be in another order
        assert (own / name).read_bytes() == (other / name).read_bytes()
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (own, other))
    assert ours == theirs


@pytest.mark.parametrize(
    ("family", "theirs"), [("word", "hf_word"), ("char", "hf_char"), ("v2_char", "hf_v2_char")]
)
def test_tensors_equal_those_of_hugging_face(family, theirs, converted, released, tensors_in):
    """Our tensors equal those saved by transformers and JunnYu's package from the same weights."""
    ours, want = tensors_in(converted(family)["huggingface"]), tensors_in(released(theirs))
    constant = {n for n in ours.keys() | want.keys() if IGNORED.fullmatch(n)}
    assert ours.keys() - constant == want.keys() - constant
    for name in want.keys() - constant:
        assert ours[name].tobytes() == want[name].tobytes()


@pytest.mark.usefixtures("eager_steps")
@pytest.mark.parametrize("to", ["huggingface", "own"])
def test_a_model_of_multiple_choice_remains_one(to, tmp_path):
    """Its layer has the names of a tagger's, so only its class in the config shows what it is."""
    keras.utils.set_random_seed(3)
    random_model(SummaryChoices()).save_pretrained(tmp_path / "start")
    config = json.loads((tmp_path / "start/config.json").read_text())
    config["architectures"] = ["RoFormerForMultipleChoice"]
    (tmp_path / "start/config.json").write_text(json.dumps(config))
    example, folders = ("今天天气", ["很好", "公园", "学习"]), (tmp_path / "start", tmp_path / to)
    run(*folders, to)
    before, after = (roformer_tf.load(folder, engine="keras")(example) for folder in folders)
    assert len(before["scores"]) == 3
    assert after == before


@pytest.mark.parametrize(
    ("family", "flags", "expected"),
    [
        ("word", {}, "RoFormerForMaskedLM"),
        ("gpt_char", {}, "RoFormerForCausalLM"),
        ("char", {"attention_type": "causal"}, "RoFormerForCausalLM"),
        ("gpt_char", {"attention_type": "bidirectional"}, "RoFormerForMaskedLM"),
        ("sim_char", {}, "RoFormerForMaskedLM"),
        ("sim_char", {"attention_type": "unilm"}, "RoFormerForMaskedLM"),
        ("hf_word_seqcls", {}, "RoFormerForSequenceClassification"),
    ],
)
def test_the_transformers_class_matches_the_heads(family, flags, expected, released, tmp_path):
    target = run(released(family), tmp_path / "own", "own", **flags)
    config = json.loads((target / "config.json").read_text())
    assert config["architectures"] == [expected]
    is_causal = expected == "RoFormerForCausalLM"
    assert config["is_decoder"] is is_causal
    recorded = "causal" if is_causal else flags.get("attention_type")
    assert RoFormerConfig.from_file(target / "config.json").attention_type == recorded
    # The ids of [CLS] and [SEP] in this family's vocab.txt.
    ids = {"bos_token_id": 101, "eos_token_id": 102, "pad_token_id": 0}
    assert (ids.items() <= config.items()) is is_causal
    file = target / "generation_config.json"
    assert (json.loads(file.read_text()) if is_causal else file.exists()) == (
        ids if is_causal else False
    )


def test_v2_has_a_model_card_with_a_warning(converted):
    card = (converted("v2_char")["own"] / "README.md").read_text(encoding="utf-8")
    assert "Do not load this model with `transformers`" in card
    assert not (converted("word")["own"] / "README.md").exists()


@pytest.mark.parametrize("to", ["tf1", "own"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_dtype_is_kept_unless_another_is_given(to, dtype, released, tmp_path, capsys):
    small = run(released("char"), tmp_path / "small", to, dtype=dtype)
    bound = {"float16": 2**-11, "bfloat16": 2**-8}[dtype] * 2  # values are up to 2
    actual = float(capsys.readouterr().out.split("difference: ")[1].split(",")[0])
    assert 0 < actual <= bound
    other_layout = run(small, tmp_path / "kept", "own" if to == "tf1" else "tf1")
    back = run(other_layout, tmp_path / "back", to, dtype="float32")
    assert capsys.readouterr().out.count("round-trip difference: 0.") == 2
    with (
        OpenedSource(released("char")) as first,
        OpenedSource(other_layout) as second,
        OpenedSource(back) as third,
    ):
        start, middle, end = (source.checkpoint() for source in (first, second, third))
        assert set(map(str, middle.arrays.dtypes.values())) == {dtype}
        assert set(map(str, end.arrays.dtypes.values())) == {"float32"}
        for name, array in start.arrays.items():
            rounded = array.astype(middle.arrays.dtypes[name])
            assert rounded.tobytes() == middle.arrays[name].tobytes()
            np.testing.assert_array_equal(end.arrays[name], rounded.astype("float32"))


@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_a_round_trip_with_either_rotary_style(style, released, tmp_path, tensors_in):
    from roformer_tf.models.heads import RoFormerForMaskedLM

    model = RoFormerForMaskedLM.from_pretrained(released("char"), rotary_style=style)
    model.save_pretrained(tmp_path / "own")
    after = tensors_in(run(tmp_path / "own", tmp_path / "x.zip", "tf1"))
    before = tensors_in(released("char"))
    assert before.keys() == after.keys()
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)


FORMS = [
    ({"rotary_share": 0.5}, "rotary_share 0.5", ("huggingface", "tf1")),
    ({"rotary_value": True}, "rotary_value True", ("tf1",)),
    ({"use_logn_attn": True}, "use_logn_attn True", ("huggingface", "tf1")),
    ({"local_attention": 8}, "local_attention 8", ("huggingface", "tf1")),
    ({"position_embedding_type": "t5"}, "'t5'", ("huggingface", "tf1")),
    ({"position_embedding_type": "learned"}, "", ()),
    (
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        "rope_parameters",
        ("huggingface", "tf1"),
    ),
]


@pytest.mark.quick_cases("*learned*-interleaved", "*rotary_*-interleaved", "*rope*-interleaved")
@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize(("form", "named", "refusing"), FORMS, ids=str)
def test_settings_of_positions_are_kept_or_refused(form, named, refusing, style, tmp_path):
    from roformer_tf.models.heads import RoFormerForMaskedLM

    sizes = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, "max_position_embeddings": 40, "initializer_range": 0.3,
    }  # fmt: skip
    model = RoFormerForMaskedLM(RoFormerConfig(**sizes, rotary_style=style, **form))
    model.save_pretrained(tmp_path / "model")
    ids = {"token_ids": np.arange(1, 41, dtype="int32")[None]}
    want = keras.ops.convert_to_numpy(model(ids))
    for to in ("own", "huggingface", "tf1"):
        target = tmp_path / to
        if to in refusing:
            with pytest.raises(InputError, match=named):
                run(tmp_path / "model", target, to)
            assert not target.exists()
            continue
        run(tmp_path / "model", target, to)
        reread = RoFormerForMaskedLM.from_pretrained(target)
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(reread(ids)), want)
        # Files always have the interleaved order, so the other style gives the same outputs.
        other = {"interleaved": "half", "half": "interleaved"}[style]
        other_style = RoFormerForMaskedLM.from_pretrained(target, rotary_style=other)
        actual = keras.ops.convert_to_numpy(other_style(ids))
        np.testing.assert_allclose(actual, want, atol=2e-5)


# --- The other libraries -----------------------------------------------------------------------


@pytest.mark.skipif(
    not (find_spec("bert4keras") and find_spec("tf_keras")),
    reason="bert4keras is not installed: `make test` does it",
)
@pytest.mark.parametrize(
    "families",
    [
        pytest.param(("gpt_char", "sim_char", "v2_char", "word_project"), id="four ways to build"),
        pytest.param(("word", "char", "sim_char_ft", "word_adam"), id="others"),
    ],
)
@pytest.mark.slow
def test_bert4keras_computes_the_recorded_outputs_from_our_zips(
    families, converted, recorded, tmp_path, record_property
):
    jobs = {}
    for family in families:
        options = FAMILIES[family]
        with Files(converted(family)["tf1"]) as files:
            folder = shutil.copytree(files.folder, tmp_path / family)
        np.savez(
            folder / "in.npz", **{k: recorded(family)[k] for k in ("token_ids", "segment_ids")}
        )
        options = json.dumps({"epsilon": 1e-7, "model": "roformer"} | options)
        files = ("bert_model.ckpt", "in.npz", "out.npz")
        jobs[family] = ["bert4keras", *(str(folder / name) for name in files), options]
    process = subprocess.run(
        [sys.executable, SUPPORT / "bert4keras_outputs.py"],
        input=json.dumps(list(jobs.values())),
        env=os.environ
        | {"TF_KERAS": "1", "TF_USE_LEGACY_KERAS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
        | {"PYTHONPATH": str(SUPPORT.parents[1])},
        capture_output=True,
        encoding="utf-8",
    )
    assert process.returncode == 0, process.stderr
    for family, (*_, outputs, _) in jobs.items():
        with np.load(outputs) as file:
            for name, difference, bound in output_differences(recorded(family), dict(file)):
                record_property(
                    "difference", (family, f"exported {name}", float(difference), bound)
                )
                assert difference <= bound, (family, name)


def output_differences(recorded, outputs):
    """Yield name, difference and bound of each recorded output."""
    not_padding = recorded["token_ids"] != 0
    states = [v for k, v in outputs.items() if k.startswith("layer_")]
    if "hidden" in recorded:
        for i, (got, want) in enumerate(
            zip([outputs["embeddings"], *states], recorded["hidden"], strict=True)
        ):
            yield f"hidden {i}", np.abs(got - want)[not_padding].max(), 1e-5
    else:
        yield "hidden, last", np.abs(states[-1] - recorded["hidden_last"])[not_padding].max(), 1e-5
    if "pooled" in recorded:
        yield "pooled", np.abs(outputs["pooled"] - recorded["pooled"]).max(), 1e-5
    if "pooled_tanh" in recorded:
        yield "pooled, tanh", np.abs(outputs["pooled"] - recorded["pooled_tanh"]).max(), 1e-5
    for head in ("mlm", "lm"):
        if f"{head}_logits" in recorded:
            got = outputs["logits"][tuple(recorded[f"{head}_at"].T)]
            yield "logits", np.abs(got - recorded[f"{head}_logits"]).max(), 2e-5


# --- Refusals and warnings ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "name", "message"),
    [
        ("own", "full", "full exists, and nothing is overwritten"),
        ("tf1", "full", "full exists, and nothing is overwritten"),
        ("tf1", "full.zip", r"full\.zip exists"),
        ("own", "长" * 300, "cannot write .*: File name too long"),
    ],
)
def test_nothing_is_overwritten(to, name, message, released, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "full.zip").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=message):
        run(released("word"), tmp_path / name, to)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("to", ["own", "tf1"])
def test_an_empty_folder_may_be_filled(to, released, tmp_path):
    (tmp_path / "empty").mkdir()
    run(released("word"), tmp_path / "empty", to)
    assert (tmp_path / "empty" / "vocab.txt").exists()


@pytest.mark.parametrize("to", ["own", "tf1"])
def test_nothing_is_written_when_the_vocabulary_does_not_fit(to, unpacked, tmp_path):
    folder = unpacked("word")
    with (folder / "vocab.txt").open("a", encoding="utf-8") as file:
        file.write("more\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=r"2,004 ids, but its weights have 2,003 embeddings"):
        run(folder, tmp_path / "target", to)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("to", "name"), [("own", "target"), ("tf1", "target.zip")])
def test_nothing_is_written_when_weights_cannot_be_read(to, name, unpacked, tmp_path):
    folder = unpacked("word")
    data = folder / "bert_model.ckpt.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="cannot read the tensor"):
        run(folder, tmp_path / name, to)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("to", "files"),
    [
        ("own", {"config.json", "model.safetensors"}),
        ("huggingface", {"config.json", "model.safetensors"}),
        ("tf1", {"bert_config.json", "checkpoint", "bert_model.ckpt.index", DATA}),
    ],
)
def test_weights_without_a_vocabulary_are_converted_with_a_warning(
    to, files, released, tmp_path, caplog
):
    source = hostile.copied(released("word"), tmp_path / "bare.zip", skip=["vocab.txt"])
    target = run(source, tmp_path / "new", to)
    assert {path.name for path in target.iterdir()} == files
    (line,) = caplog.messages
    assert f"{source} contains no vocab.txt, so {target} has no tokenizer" in line


@pytest.mark.parametrize(
    ("setting", "argument"),
    [({"do_lower_case": False}, "lower_case=False"), ({"tokenization": "word"}, "'word'")],
)
def test_settings_of_a_tokenizer_give_a_warning_where_they_are_not_recorded(
    setting, argument, unpacked, tmp_path, caplog
):
    folder = unpacked("hf_char")
    settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8")) | setting
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    run(folder, tmp_path / "own", "own")
    assert caplog.messages == []
    run(folder, tmp_path / "tf1", "tf1")
    assert "tf1 cannot record how its tokenizer splits text" in caplog.text
    assert argument in caplog.text


def test_a_bidirectional_gpt_model_gives_a_warning(unpacked, tmp_path, caplog):
    """A GPT-like name gives a warning if the attention type is unknown.

    Released GPT models are recognized by their names, but this name is ambiguous.
    """
    folder = unpacked("gpt_char").rename(tmp_path / "roformer_gpt_mine")
    run(folder, tmp_path / "silent", "huggingface")
    (line,) = caplog.messages
    assert f"{folder} has the name of a gpt model" in line
    assert "RoFormerForMaskedLM" in line
    assert "--attention-type causal" in line
    run(folder, tmp_path / "causal", "huggingface", attention_type="causal")
    run(folder, tmp_path / "back.zip", "tf1")
    assert len(caplog.messages) == 1


def test_other_models_give_no_warning(converted, caplog):
    for family in ("word", "char", "v2_char", "gpt_char"):
        run(converted(family)["start"], converted(family)["own"].with_name("quiet"), "own")
    assert caplog.messages == []


def test_a_zip_may_be_in_a_folder_that_looks_like_a_pattern(released, tmp_path, capsys):
    run(released("char"), tmp_path / "a[1]" / "new.zip", "tf1")
    assert "round-trip difference: 0." in capsys.readouterr().out


# --- Files copied with the weights ---------------------------------------------------------------


@pytest.mark.parametrize("to", ["own", "huggingface"])
def test_a_converted_fine_tuned_model_predicts_the_same(to, tmp_path):
    task = Pair(labels=("不", "是"), text_columns=("句一", "句二"), max_length=16)
    folder = save_random_models({"t": task}, tmp_path)["t"]
    run(folder, tmp_path / "half", to, dtype="float16")
    actual, want = (
        roformer_tf.load(source)([("今天天气很好", "我们去公园")])[0]
        for source in (tmp_path / "half", folder)
    )
    assert actual["label"] == want["label"]
    assert actual["scores"] == pytest.approx(want["scores"], abs=2e-3)
    assert actual["scores"] != want["scores"]  # the scores are of the rounded model
    assert (tmp_path / "half/task.json").read_bytes() == (folder / "task.json").read_bytes()
    assert not (tmp_path / "half" / "modules.json").exists()  # it is not an embedding model


def test_a_sim_model_as_tf1_keeps_its_vectors_without_a_warning(released, tmp_path, caplog):
    """The released sim models have no embedding.json, and need none."""
    folder = tmp_path / "folder"
    run(released("sim_char"), tmp_path / "direct.zip", "tf1")
    run(released("sim_char"), folder, "own")
    run(folder, tmp_path / "back.zip", "tf1")
    assert caplog.messages == []
    settings = json.loads((folder / "embedding.json").read_text("utf-8")) | {"pooling": "mean"}
    (folder / "embedding.json").write_text(json.dumps(settings), "utf-8")
    run(folder, tmp_path / "mean.zip", "tf1")
    assert "mean.zip has the weights and the vocabulary, but not embedding.json" in caplog.text


def test_a_fine_tuned_model_without_its_task_gives_a_warning(tmp_path, caplog):
    folder = save_random_models({"t": Pair(labels=("不", "是"), max_length=16)}, tmp_path)["t"]
    run(folder, tmp_path / "own", "own")
    assert caplog.messages == []
    run(folder, tmp_path / "tf1.zip", "tf1")
    assert "tf1.zip has the weights and the vocabulary, but not task.json" in caplog.text


def test_a_fine_tuned_model_with_new_words_predicts_the_same(tmp_path):
    task = Pair(labels=("不", "是"), text_columns=("句一", "句二"), max_length=16)
    folder = save_random_models({"t": task}, tmp_path)["t"]
    (tmp_path / "words.txt").write_text("海\n", encoding="utf-8")
    config = VocabularyConfig(
        source=str(folder),
        target=tmp_path / "more",
        output=OutputConfig(to="own"),
        add=tmp_path / "words.txt",
    )
    change_vocabulary(config)
    assert (tmp_path / "more/task.json").read_bytes() == (folder / "task.json").read_bytes()
    inputs = [("今天天气很好", "我们去公园")]
    actual, want = (roformer_tf.load(x)(inputs)[0]["scores"] for x in (tmp_path / "more", folder))
    assert actual == pytest.approx(want, abs=1e-6)
