"""Keras loads `.keras` files after `import keras, roformer_tf` or `import roformer_tf.layers`."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import roformer_tf
from roformer_tf.pretraining.train_step import MaskedTokenLoss
from roformer_tf.registration import CLASSES, register
from roformer_tf.training.optimizers import EmaAdamW, Lamb, LayerwiseAdamW, Muon, WarmupDecay

PACKAGE = Path(roformer_tf.__file__).parent
OLD_FILES = Path(__file__).parent / "fixtures" / "keras"
OPTIMIZERS = {
    "EmaAdamW": lambda rate: EmaAdamW(rate, ema=0.9),
    "LayerwiseAdamW": lambda rate: LayerwiseAdamW(rate, scales=[1.0, 0.5]),
    "Lamb": Lamb,
    "Muon": lambda rate: Muon(rate, matrix_rate=2.0, product_dtype="bfloat16"),
}
READER = """
import json, sys
{imports}
loaded = [name for name in sys.modules if name.startswith("roformer_tf.")]
import numpy as np
folder, before = sys.argv[1:]
loaded_classes = {{"loaded": loaded}}
for name in json.loads({names!r}):
    model = keras.saving.load_model(f"{{folder}}/{{name}}.keras")
    rate = model.optimizer.get_config()["learning_rate"]["class_name"]
    loaded_classes[name] = [type(model.optimizer).__name__, rate, type(model.loss).__name__]
answers = np.load(f"{{before}}/answers.npz")
layer = keras.saving.load_model(f"{{before}}/layer.keras")
got = keras.ops.convert_to_numpy(layer([answers["features"], answers["sequence_ids"]]))
real = answers["sequence_ids"] != 0
loaded_classes["layer"] = float(np.abs(got - answers["layer"])[real].max())
model = keras.models.load_model(f"{{before}}/model.keras")
got = keras.ops.convert_to_numpy(model({{"token_ids": answers["token_ids"]}}))
loaded_classes["model"] = float(np.abs(got - answers["model"]).max())
print(json.dumps(loaded_classes))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder of plain Keras models that were compiled with our optimizers and our loss."""
    folder = tmp_path_factory.mktemp("compiled")
    for name, make in OPTIMIZERS.items():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(make(WarmupDecay(1e-3, 2, 10)), MaskedTokenLoss())
        model.optimizer.build(model.trainable_variables)
        model.save(folder / f"{name}.keras")
    return folder


@pytest.mark.quick_cases("import keras, roformer_tf-*")
@pytest.mark.parametrize(
    ("imports", "names"),
    [
        ("import keras, roformer_tf", [*OPTIMIZERS]),
        ("import roformer_tf.layers, keras", ["EmaAdamW"]),
    ],
)
def test_a_new_process_loads_new_and_old_files(imports, names, compiled):
    code = READER.format(imports=imports, names=json.dumps(names))
    done = subprocess.run(
        [sys.executable, "-c", code, str(compiled), str(OLD_FILES)],
        capture_output=True,
        text=True,
        check=False,
        cwd=PACKAGE.parent,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    # The import stays quick: classes are imported only when a file needs them.
    modules = ["roformer_tf.registration"]
    assert sorted(result.pop("loaded")) == sorted(
        [*modules, *["roformer_tf.layers"] * ("layers" in imports)]
    )
    assert result.pop("layer") < 1e-5
    assert result.pop("model") < 1e-5
    assert result == {name: [name, "WarmupDecay", "MaskedTokenLoss"] for name in names}


def registered():
    """Name in Keras' registry → module, for every class with the registration decorator."""
    modules = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for decorator in getattr(node, "decorator_list", ()):
                if "register_keras_serializable" in ast.unparse(decorator):
                    (package,) = (key.value.value for key in decorator.keywords)
                    modules[f"{package}>{node.name}"] = ".".join(parts)
    return modules


def test_every_serializable_class_is_listed_with_its_module():
    listed = {f"roformer_tf>{name}": f"roformer_tf.{x}" for name, x in CLASSES.items()}
    assert listed == registered()


def test_an_imported_class_replaces_the_registered_name():
    register()
    registry = keras.saving.get_custom_objects()
    assert registry["roformer_tf>Lamb"] is Lamb
    assert registry.keys() >= {f"roformer_tf>{name}" for name in CLASSES}
