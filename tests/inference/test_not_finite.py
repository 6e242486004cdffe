"""Tests that non-finite weights are refused on opening, and non-finite outputs when computed."""

import shutil
from importlib.util import find_spec

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roformer_tf import (
    InputError,
    RoFormerConfig,
    RoFormerForMaskedLM,
    RoFormerForSentenceSimilarity,
    load,
)
from roformer_tf.checkpoints.arrays import tensors_of_file
from roformer_tf.cli import main
from roformer_tf.inference.fill_mask import MaskedModel, candidates
from roformer_tf.labelled.examples import Example
from roformer_tf.tasks.classification import Classification
from tests.support.finetuned import predict
from tests.support.random_model import TINY, random_causal_lm, random_model, tokenizer_of

needs_onnx = pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]")
KERNEL = "roformer.encoder.layer.0.output.dense.weight"


@pytest.fixture(scope="module")
def valid_folders(finetuned, tmp_path_factory):
    """One folder of each kind, with finite weights."""
    folder = tmp_path_factory.mktemp("sound")
    tokenizer = tokenizer_of()
    config = RoFormerConfig(**TINY, vocab_size=tokenizer.vocab_size)
    for name, kind in (("masked", RoFormerForMaskedLM), ("sim", RoFormerForSentenceSimilarity)):
        model = kind(config)
        model.tokenizer = tokenizer
        model.save_pretrained(folder / name)
    random_causal_lm(folder / "causal")
    return {path.name: path for path in folder.iterdir()} | {
        "labels": finetuned("classification"),
        "tags": finetuned("tagging"),
    }


@pytest.fixture
def damaged(valid_folders, tmp_path):
    """damaged("masked", value, name) → a copy with one number replaced by value."""

    def copy(kind, value=np.nan, name=KERNEL):
        target = shutil.copytree(valid_folders[kind], tmp_path / f"{kind}-damaged")
        tensors = load_file(target / "model.safetensors")
        tensors[name].reshape(-1)[-1] = value
        save_file(tensors, target / "model.safetensors", {"format": "pt"})
        return target

    return copy


COMMANDS = {
    "predict --model MODEL --input rows.tsv --output OUT": "labels",
    "predict --model MODEL --input rows.tsv --output OUT --engine keras": "tags",
    "evaluate --model MODEL --data rows.tsv": "labels",
    "evaluate --model MODEL --corpus rows.txt": "masked",
    "serve MODEL --port 0": "labels",
    "export --model MODEL --output OUT --to savedmodel": "labels",
    "export --model MODEL --output OUT --to onnx": "labels",
    "fill-mask --model MODEL 今[MASK]": "masked",
    "fill-mask --model MODEL --engine keras 今[MASK]": "masked",
    "generate --model MODEL 今": "causal",
    "embed --model MODEL --input rows.tsv --output OUT.npy": "sim",
    "similarity --model MODEL 今 天": "sim",
    "search --model MODEL --documents rows.tsv --queries 今": "sim",
    "checkpoints convert MODEL OUT --to own": "masked",
    "checkpoints convert MODEL OUT --to tf1": "causal",
    "checkpoints average MODEL MODEL --output OUT": "masked",
    "checkpoints verify MODEL --against bert4keras": "masked",
    "finetune --checkpoint MODEL --train rows.tsv --valid rows.tsv --test rows.tsv "
    "--output OUT": "masked",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_weights_that_are_not_finite(command, damaged, tmp_path, capsys):
    folder = damaged(COMMANDS[command], np.inf if "convert" in command else np.nan)
    rows = tmp_path / "rows.tsv"
    rows.write_text("text\tlabel\n今天气\t好\n很好\t坏\n公园\t好\n", encoding="utf-8")
    paths = {"MODEL": folder, "OUT": tmp_path / "out", "rows.tsv": rows}
    paths |= {"OUT.npy": tmp_path / "out.npy", "rows.txt": shutil.copy(rows, tmp_path / "rows.txt")}
    try:
        code = main([str(paths.get(word, word)) for word in command.split()])
    except SystemExit as exit_:
        code = exit_.code
    err = capsys.readouterr().err
    assert (code, "Traceback" in err) == (2, False), err
    for message in ("not finite", KERNEL, str(folder)):
        assert message in err
    assert not (tmp_path / "out").is_file()
    assert not list(tmp_path.glob("out/**/*.safetensors"))


@pytest.mark.parametrize("kind", ["labels", "masked", "sim"])
@pytest.mark.parametrize("engine", ["auto", "keras"])
def test_load_refuses_weights_that_are_not_finite(kind, engine, damaged):
    folder = damaged(kind, -np.inf, "roformer.embeddings.word_embeddings.weight")
    with pytest.raises(InputError, match=r"word_embeddings\.weight .*not finite"):
        load(folder, engine=engine)


def test_classes_refuse_weights_that_are_not_finite(damaged):
    folder = damaged("masked")
    with pytest.raises(InputError, match="not finite"):
        RoFormerForMaskedLM.from_pretrained(folder)


def test_inspect_shows_weights_that_are_not_finite(damaged, capsys):
    """`inspect` is for finding out what is wrong with a file."""
    assert main(["checkpoints", "inspect", str(damaged("masked"))]) == 0
    out = capsys.readouterr().out
    assert "nan" in out
    assert (
        "not finite, so that other commands refuse the checkpoint:\n  encoder/layer_0/output/kernel"
        in out
    )


@needs_onnx
def test_outputs_of_an_exported_graph_are_checked(valid_folders, tmp_path):
    """Only ONNX Runtime reads the weights of an exported graph."""
    import onnx
    from onnx import numpy_helper

    target = tmp_path / "onnx"
    command = ["export", "--model", valid_folders["labels"], "--output", target, "--to", "onnx"]
    assert main(list(map(str, command))) == 0
    model = onnx.load(target / "model.onnx")
    for weight in model.graph.initializer:
        if len(weight.dims) == 2:
            array = numpy_helper.to_array(weight) * np.float32("nan")
            weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(model, target / "model.onnx")
    with pytest.raises(InputError, match="not finite"):
        load(target)(["今天"])


def test_outputs_of_a_model_in_memory_are_checked(valid_folders):
    task = Classification(labels=("坏", "好"))
    model = random_model(task)
    model.classifier.out_proj.bias.assign([np.nan, 0.0])
    examples = [Example(("今天",), None, "text 0")]
    with pytest.raises(InputError, match="not finite"):
        predict(model, model.tokenizer, task, examples)
    masked = RoFormerForMaskedLM.from_pretrained(valid_folders["masked"])
    masked.mlm.bias.assign(masked.mlm.bias * np.nan)
    with pytest.raises(InputError, match="not finite"):
        candidates(MaskedModel(masked, masked.tokenizer), ["今[MASK]"])


@pytest.mark.parametrize("beams", [1, 2])
def test_a_generator_stops_at_logits_that_are_not_finite(beams, tmp_path):
    model = random_causal_lm(tmp_path / "causal")
    model.mlm.bias.assign(model.mlm.bias * np.nan)
    with pytest.raises(InputError, match="not finite"):
        model.generate(["今"], beams=beams)


def test_a_diverged_model_does_not_replace_a_finite_one(valid_folders, tmp_path):
    folder = shutil.copytree(valid_folders["masked"], tmp_path / "model")
    model = RoFormerForMaskedLM.from_pretrained(folder)
    model.mlm.bias.assign(model.mlm.bias * np.nan)
    with pytest.raises(InputError, match=r"bias has numbers that are not finite"):
        model.save_pretrained(folder)
    assert load(folder)("今[MASK]")


def test_weights_that_a_dtype_cannot_hold_are_not_written(valid_folders):
    model = RoFormerForMaskedLM.from_pretrained(valid_folders["masked"])
    arrays = {name: np.asarray(x) for name, x in model.named_variables().items()}
    arrays["mlm/bias"] = arrays["mlm/bias"] + 70_000
    with pytest.raises(InputError, match=r"cls\.predictions\.bias .* float16"):
        dict(tensors_of_file(arrays, model.config, "huggingface", "float16"))
    dict(tensors_of_file(arrays, model.config, "huggingface", "bfloat16"))
