"""`.keras` files, opened by Keras alone: `import roformer_tf` is all that the reader adds."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import keras
import pytest

import roformer_tf
from roformer_tf.finetuning.losses import TaskLoss
from roformer_tf.pretraining.train_step import MaskedTokenLoss
from roformer_tf.runs.optimizers.adamw import EmaAdamW, LayerwiseAdamW
from roformer_tf.runs.optimizers.lamb import Lamb
from roformer_tf.runs.optimizers.muon import Muon
from roformer_tf.runs.schedules import WarmupDecay

PACKAGE = Path(roformer_tf.__file__).parent
BEFORE = Path(__file__).parent / "fixtures" / "keras"
OPTIMIZERS = {
    "EmaAdamW": lambda rate: EmaAdamW(rate, ema=0.9),
    "LayerwiseAdamW": lambda rate: LayerwiseAdamW(rate, scales=[1.0, 0.5]),
    "Lamb": Lamb,
    "Muon": lambda rate: Muon(rate, matrix_rate=2.0, product_dtype="bfloat16"),
}
READER = """
import json, sys
{first}
{second}
loaded = [name for name in sys.modules if name.startswith("roformer_tf.")]
import numpy as np
folder, before = sys.argv[1:]
said = {{"loaded": loaded}}
for name in json.loads({names!r}):
    model = keras.saving.load_model(f"{{folder}}/{{name}}.keras")
    rate = model.optimizer.get_config()["learning_rate"]["class_name"]
    said[name] = [type(model.optimizer).__name__, rate, type(model.loss).__name__]
answers = np.load(f"{{before}}/answers.npz")
layer = keras.saving.load_model(f"{{before}}/layer.keras")
got = layer.predict([answers["features"], answers["sequence_ids"]], verbose=0)
real = answers["sequence_ids"] != 0
said["layer"] = float(np.abs(got - answers["layer"])[real].max())
model = keras.models.load_model(f"{{before}}/model.keras")
got = keras.ops.convert_to_numpy(model({{"token_ids": answers["token_ids"]}}))
said["model"] = float(np.abs(got - answers["model"]).max())
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder of models without a layer of ours, compiled with our optimizers and losses."""
    folder = tmp_path_factory.mktemp("compiled")
    for number, (name, make) in enumerate(OPTIMIZERS.items()):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        loss = MaskedTokenLoss() if number % 2 else TaskLoss("classification")
        model.compile(make(WarmupDecay(1e-3, 2, 10)), loss)
        model.optimizer.build(model.trainable_variables)
        model.save(folder / f"{name}.keras")
    return folder


@pytest.mark.quick_cases("import keras-*")
@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("import keras", "import roformer_tf", [*OPTIMIZERS]),
        ("import roformer_tf", "import keras", ["EmaAdamW"]),
    ],
)
def test_a_new_process_loads_files_of_now_and_of_before(first, second, names, compiled):
    code = READER.format(first=first, second=second, names=json.dumps(names))
    done = subprocess.run(
        [sys.executable, "-c", code, str(compiled), str(BEFORE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    # of ours nothing but what keeps TensorFlow quiet, where that is still to come
    around = ["roformer_tf.companions", "roformer_tf.terminal"]
    assert said.pop("loaded") == around * (first == "import roformer_tf")
    assert said.pop("layer") < 1e-5
    assert said.pop("model") < 1e-5
    assert said == {
        name: [name, "WarmupDecay", "MaskedTokenLoss" if number % 2 else "TaskLoss"]
        for number, name in enumerate(names)
    }


def registered():
    """Name in Keras' registry → (module, class) of every class that is decorated for it."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", ()):
                if "register_keras_serializable" in ast.unparse(decorator):
                    given = {key.arg: key.value.value for key in decorator.keywords}
                    name = f"{given['package']}>{given.get('name', node.name)}"
                    found[name] = (".".join(parts), node.name)
    return found


def test_keras_is_told_of_every_class_and_where_it_is():
    """Whatever was loaded before: the loaded ones stand there themselves."""
    registry = keras.saving.get_custom_objects()
    told = {name: one for name, one in registry.items() if name.startswith("roformer_tf>")}
    where = registered()
    assert told.keys() == where.keys()
    for name, (module, of_name) in where.items():
        one = told[name]
        assert one in ((module, of_name), getattr(import_module(module), of_name)), name


def test_the_watcher_finds_nothing_of_its_own(monkeypatch):
    watcher = roformer_tf._WhenKerasIsImported()
    assert watcher.find_spec("keras") is not None
    monkeypatch.setattr(sys, "meta_path", [watcher])
    assert watcher.find_spec("json") is None
    assert watcher.find_spec("keras") is None
