"""Vectors from exports with TensorFlow or ONNX Runtime, without importing roformer_tf."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import keras
import numpy as np
import pytest

from roformer_tf.cli import main
from roformer_tf.errors import InputError
from roformer_tf.export.command import ExportConfig, export_model
from roformer_tf.export.formats import export_card
from roformer_tf.inference.embed import VectorSettings
from tests.export.test_export_card import code_of

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="TensorFlow writes exports"
)
TEXTS = ["今天天气很好", "北京", "我们去公园学习中国经济" * 3]


@pytest.mark.parametrize("to", ["savedmodel", "onnxruntime"])
@pytest.mark.slow
def test_the_card_gives_the_same_vectors_without_the_package(to, released, tmp_path, monkeypatch):
    if to == "onnxruntime" and not find_spec("onnxruntime"):
        pytest.skip("needs the extra [onnx]")
    source = released("sim_char")
    embedder = VectorSettings(dimensions=7).open(source)
    flags = ["--to", to, "--output", str(tmp_path / "out"), "--dimensions", "7"]
    assert main(["export", str(source), *flags]) == 0
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    run = code_of(card)[
        code_of(card).index("import onnx" if to == "onnxruntime" else "import tensor") :
    ]
    assert "roformer_tf" not in run
    rows = embedder.tokenizer(TEXTS)
    np.savez(tmp_path / "rows.npz", **rows)
    script = (
        "import numpy as np, sys\n"
        f"inputs = dict(np.load({str(tmp_path / 'rows.npz')!r}))\n{run}\n"
        f"np.save({str(tmp_path / 'vectors.npy')!r}, vectors)\n"
    )
    import_check = "assert not [name for name in sys.modules if name.startswith('roformer_tf')]\n"
    if to == "onnxruntime":
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        python = [sys.executable, "-c", script + import_check]
        subprocess.run(python, check=True, cwd=tmp_path / "out", env=environment)
    else:  # TensorFlow is loaded here already; loading it in a new process takes seconds
        monkeypatch.chdir(tmp_path / "out")
        exec(script, {})
    np.testing.assert_allclose(
        np.load(tmp_path / "vectors.npy"), embedder.embed(TEXTS), rtol=0, atol=1e-5
    )


@pytest.mark.skipif(not find_spec("onnxruntime"), reason="needs the extra [onnx]")
def test_int8_vectors_are_close_to_the_model(released, tmp_path):
    from roformer_tf.engines.model import onnx_session
    from roformer_tf.models.rows import run_rows

    source = str(released("sim_char"))
    export_model(ExportConfig(model=source, to="int8", output=tmp_path / "out"))
    embedder = VectorSettings().open(source)
    ids = [embedder.tokenizer.encode(text)[0] for text in TEXTS]
    rounded = np.stack(run_rows(onnx_session(tmp_path / "out" / "model.onnx"), ids))
    assert np.einsum("nd,nd->n", rounded, embedder.embed(TEXTS)).min() > 0.99
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"model.onnx", "embedding.json", "README.md", "vocab.txt"}
    tokenizer_config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text("utf-8"))
    assert tokenizer_config["model_max_length"] == 512  # the same as `embed`


def test_dimensions_are_only_for_vectors(finetuned, tmp_path):
    config = ExportConfig(
        model=str(finetuned("classification")), to="onnx", output=tmp_path / "x", dimensions=3
    )
    with pytest.raises(InputError, match="--dimensions cuts vectors"):
        export_model(config)


@pytest.mark.hf
@pytest.mark.parametrize("name", ["sim_char", "word"])
def test_the_card_tokenizes_like_the_package(name, released, tmp_path, monkeypatch):
    embedder = VectorSettings().open(released(name))
    embedder.tokenizer.save_pretrained(tmp_path)
    card = export_card("onnxruntime", embedder.tokenizer, embedder.config.max_length)
    monkeypatch.chdir(tmp_path)
    actual = {"texts": TEXTS}
    exec(code_of(card).split("import onnxruntime")[0], actual)
    want = [embedder.tokenizer.encode(text)[0] for text in TEXTS]
    assert [row[row != 0].tolist() for row in actual["inputs"]["token_ids"]] == want
