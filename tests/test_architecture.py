"""Which folder of the package may import which, what an import loads, and the size limits."""

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

import roformer_tf
from tests.support.private_names import PRIVATE_NAMES

PACKAGE = Path(roformer_tf.__file__).parent
parsed = cache(ast.parse)  # many rules check the same modules

MAY_IMPORT = {  # folder or top-level module: what it may import, and all that those may import
    "errors": ("translation",),
    "files": ("errors",),
    "config": ("errors", "files"),
    "translation": (),
    "flags": ("errors", "files", "translation"),
    "usage": ("flags", "terminal"),  # help pages
    "templates": ("translation",),
    "terminal": ("translation",),  # messages, progress of long tasks, tables
    "startup": (),  # how a command loads Keras and TensorFlow
    "registration": (),  # names of the classes in `.keras` files
    "internals": (),  # all private names of Keras, TensorFlow, JAX and jieba
    "machine": (),
    "top_k": (),  # the largest scores; NumPy alone
    # text, weights, layers
    "checkpoints": ("errors", "files", "config", "terminal", "templates", "startup"),
    "tokenizers": ("checkpoints", "internals"),
    "kernels": ("errors", "internals"),
    "layers": ("config", "kernels", "registration"),
    "engines": ("checkpoints", "machine", "startup"),
    "models": ("layers", "checkpoints", "tokenizers", "engines", "top_k"),
    "readers": ("errors", "files"),
    "training": ("models", "flags", "machine"),
    # pretraining on a corpus
    "corpus": ("readers", "tokenizers", "machine"),
    "pretraining": ("corpus", "models", "training", "conversion", "flags", "templates"),
    # fine-tuning on labels
    "labelled": ("readers", "tokenizers"),
    "tasks": ("labelled", "models", "engines", "top_k", "translation"),
    "finetuning": ("tasks", "training", "inference", "search", "export", "templates"),
    "adaptation": ("pretraining", "finetuning"),  # the only one that imports both
    "api": ("adaptation", "flags", "readers"),  # `roformer_tf.finetune`
    # using a model
    "inference": ("tasks", "models", "engines", "tokenizers", "readers", "checkpoints", "kernels"),
    "export": ("inference", "templates"),
    "search": ("inference",),
    "serving": ("search", "inference", "machine"),
    "conversion": ("checkpoints", "tokenizers", "models"),
    "cli": ("usage", "startup"),  # and all others within functions
    "__main__": ("cli",),  # `python -m roformer_tf`
}


def importable(folder: str) -> set[str]:
    """All folders that a folder may import from, directly or through others."""
    return {name for direct in MAY_IMPORT[folder] for name in (direct, *importable(direct))}


ALLOWED = {folder: importable(folder) for folder in MAY_IMPORT}
PRETRAINING = {"corpus", "pretraining"}
FINETUNING = {"labelled", "tasks", "finetuning", "inference", "search", "serving", "export"}
WITHOUT_KERAS = {
    "errors",
    "files",
    "config",
    "internals",
    "flags",
    "usage",
    "machine",
    "translation",
    "templates",
    "top_k",
    "terminal",
    "startup",
    "registration",
    "checkpoints",
    "tokenizers",
    "readers",
    "corpus",
    "labelled",
}
"""Importing these loads neither Keras nor a backend. The same holds for KERAS_WHEN_CALLED."""
KERAS_WHEN_CALLED = {"tasks", "inference", "search", "serving", "export"}
WITH_KERAS = {"kernels", "layers", "models", "training", "pretraining", "finetuning", "conversion"}
MAX_SHARE = 0.22  # of the lines of the package, in one folder
SEGMENTATION = "roformer_tf.tokenizers.segmentation"
FRAMEWORKS = {  # modules that read a framework's files, and may import it within functions
    "roformer_tf.checkpoints.tf1": "tensorflow",
    "roformer_tf.checkpoints.huggingface": "torch",
    "roformer_tf.conversion.other_libraries": "torch",
    "roformer_tf.engines.model": "tensorflow",
}
WITH_BACKENDS = {
    "internals",
    "kernels",
    "training",
    "pretraining",
    "finetuning",
}  # may have code for one backend, which is imported within functions
INTERNALS = "roformer_tf.internals"
HOOKS = {reliance.attribute for reliance in PRIVATE_NAMES if reliance.hook}
PRIVATE_MODULE = re.compile(r"(keras\.src|(tensorflow|tf)\.python|jax\._src|jaxlib)\b")
DOCUMENTED = {"_replace", "_asdict", "_fields", "_make", "_field_defaults", "_exit"}
"""Documented names of named tuples and of `os` that begin with an underscore."""
RENAMING = {"os.replace", "os.rename", "os.renames", "shutil.move"}


@cache
def sources() -> dict[str, str]:
    """Source of every module of the package by its dotted name."""
    modules = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = path.read_text(encoding="utf-8")
    return modules


@cache
def imports(source: str) -> list[tuple[str, bool]]:
    """The full name of every import, and whether it is in a function or for type checkers."""
    tree = parsed(source)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    in_functions = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, functions)
        or (isinstance(function, ast.If) and ast.unparse(function.test) == "TYPE_CHECKING")
        for node in ast.walk(function)
    }
    imported = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        imported += [(name, id(node) in in_functions) for name in names]
    return imported


def folder_of(name: str) -> str:
    """`roformer_tf.corpus.shards.Shard` → `corpus`; the package itself → ""."""
    return name.split(".")[1] if "." in name else ""


def may_import(module: str, name: str, lazily: bool) -> bool:
    """Whether the rules allow `module` to import `name`."""
    top = name.split(".")[0]
    if top == "roformer_tf":
        if folder_of(module) == "cli" and lazily:
            return True
        return folder_of(name) == folder_of(module) or folder_of(name) in ALLOWED[folder_of(module)]
    if top in ("jieba", "rjieba"):
        return module == SEGMENTATION
    if top in ("tensorflow", "jax", "torch"):
        allowed = top == FRAMEWORKS.get(module) or folder_of(module) in WITH_BACKENDS
        return allowed and lazily
    if top == "keras":
        return folder_of(module) in WITH_KERAS or (
            lazily and folder_of(module) in KERAS_WHEN_CALLED
        )
    return top != ""  # a relative import hides its target


def broken_imports(modules: dict[str, str]) -> list[str]:
    """Imports that break a rule.

    The package's `__init__` is exempt: its imports are for type checkers.
    """
    return [
        f"{module} imports {name}"
        for module, source in modules.items()
        if module != "roformer_tf"
        for name, lazily in imports(source)
        if not may_import(module, name, lazily)
    ]


def renaming_calls(source: str) -> list[str]:
    """Calls that rename or replace a file, which only `files.py` may contain.

    `x.replace(y)` with one positional argument is a path's: for text it has two, for a config
    keywords.
    """
    calls = [name for name, _ in imports(source) if name in RENAMING]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            single_argument = len(node.args) == 1 and not node.keywords
            function_name = ast.unparse(node.func)
            if function_name in RENAMING or (
                single_argument and node.func.attr in ("rename", "replace")
            ):
                calls.append(ast.unparse(node))
    return calls


def private(name: str) -> bool:
    """Whether a name is private: `_name`, but neither `_` nor `__name__`."""
    return bool(re.match(r"_[A-Za-z]", name))


def names_we_define(modules: dict[str, str]) -> set[str]:
    """The private names of the functions, classes, attributes and variables of the package."""
    names = set()
    for source in modules.values():
        for node in ast.walk(parsed(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(getattr(node, "ctx", None), ast.Store):
                name = ast.unparse(node)
                names.add(name.removeprefix("self."))  # only our own definitions
    return {name for name in names if private(name) and name.isidentifier()}


def foreign_private_names(modules: dict[str, str]) -> list[str]:
    """Uses of other libraries' private names outside of `internals`, as "module: use".

    A private name belongs to another library if the package does not define it. Names listed in
    `internals` belong to other libraries as well, except for hooks, which our classes define.
    """
    listed = {reliance.attribute for reliance in PRIVATE_NAMES} - HOOKS
    our_names = (names_we_define(modules) | HOOKS | DOCUMENTED) - listed
    return [
        f"{module}: {use}"
        for module, source in modules.items()
        if module != INTERNALS
        for use in [*private_imports(source), *private_uses(source, our_names)]
    ]


def private_imports(source: str) -> Iterator[str]:
    """Imports of private modules and names of other libraries."""
    for name, _ in imports(source):
        if folder_of(name) and name.startswith("roformer_tf."):
            continue
        if PRIVATE_MODULE.match(name) or any(map(private, name.split("."))):
            yield f"import of {name}"


def private_uses(source: str, our_names: set[str]) -> Iterator[str]:
    """Uses of private names of other libraries: as attributes, in getattr, and in strings."""
    for node in ast.walk(parsed(source)):
        text, name = "", ""
        if isinstance(node, ast.Attribute):
            text, name = ast.unparse(node), node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            name = ast.unparse(node.args[1]).lstrip("f").strip("'\"")  # "_name", f"_{part}_dense"
            name = name.partition("{")[0] + name.partition("{")[2]
        if PRIVATE_MODULE.match(text) or (private(name) and name not in our_names):
            yield ast.unparse(node)


@pytest.mark.slow
def test_private_names_of_other_libraries_are_used_in_internals_only():
    assert foreign_private_names(sources()) == []


@pytest.mark.parametrize(
    "use",
    [
        "optimizer._learning_rate(1)",
        "self._momentums[0]",
        "variable._initializer = zeros",
        "getattr(x, '_keras_mask', None)",
        "getattr(layer, f'_{part}_dense')",
        "super()._compute_attention_mask(x)",
        "from jax._src import distributed",
        "from keras.src.backend import common",
        "import tensorflow.python.eager.context",
        "tf.python.eager",
        "import_module('keras.src.backend')",
        "import jieba._compat",
    ],
)
def test_the_check_detects_a_private_name(use):
    assert foreign_private_names({"roformer_tf.training.x": use})
    assert not foreign_private_names({INTERNALS: use})


def classes_named_twice(modules: dict[str, str]) -> dict[str, list[str]]:
    """Public classes of the same name in several modules."""
    places_of: dict[str, list[str]] = {}
    for module, source in modules.items():
        for node in parsed(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places_of.setdefault(node.name, []).append(module)
    return {name: places for name, places in places_of.items() if len(places) > 1}


def test_every_folder_has_a_rule():
    assert {folder_of(module) for module in sources()} - {""} <= ALLOWED.keys()


def test_no_import_breaks_a_rule():
    assert broken_imports(sources()) == []


def test_only_files_py_renames_files():
    calls_in = {module: renaming_calls(source) for module, source in sources().items()}
    assert {module for module, calls in calls_in.items() if calls} == {"roformer_tf.files"}


def test_no_module_imports_itself_through_others():
    modules = sources()
    graph = {
        module: {name.rpartition(".")[0] for name, _ in imports(source)} & modules.keys()
        for module, source in modules.items()
        if module != "roformer_tf"
    }
    assert list(TopologicalSorter(graph).static_order())  # a CycleError names the cycle


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("roformer_tf.tokenizers.x", "from roformer_tf.corpus import documents"),
        ("roformer_tf.tokenizers.x", "def f():\n    import roformer_tf.models.encoder"),
        ("roformer_tf.readers.x", "from roformer_tf.tokenizers import tokenizer"),
        ("roformer_tf.corpus.x", "import keras"),
        ("roformer_tf.corpus.x", "from roformer_tf.labelled import splits"),
        ("roformer_tf.labelled.x", "from roformer_tf.corpus import packing"),
        ("roformer_tf.labelled.x", "from roformer_tf.tasks import metrics"),
        ("roformer_tf.tasks.x", "import keras"),
        ("roformer_tf.tasks.x", "from roformer_tf.training import callbacks"),
        ("roformer_tf.training.x", "from roformer_tf.corpus import batches"),
        ("roformer_tf.training.x", "from roformer_tf.labelled import batches"),
        ("roformer_tf.pretraining.x", "from roformer_tf.finetuning import trainer"),
        ("roformer_tf.finetuning.x", "def f():\n    from roformer_tf.pretraining import losses"),
        ("roformer_tf.conversion.x", "from roformer_tf.inference import predict"),
        ("roformer_tf.checkpoints.x", "from roformer_tf.models.encoder import RoFormerEncoder"),
        ("roformer_tf.layers.x", "from roformer_tf.models import encoder"),
        ("roformer_tf.layers.x", "from . import rotary"),
        ("roformer_tf.models.x", "from roformer_tf.cli import main"),
        ("roformer_tf.finetuning.x", "from roformer_tf.cli import main"),
        ("roformer_tf.inference.x", "from roformer_tf.finetuning import trainer"),
        ("roformer_tf.inference.x", "from roformer_tf.search import index"),
        ("roformer_tf.search.x", "from roformer_tf.finetuning import trainer"),
        ("roformer_tf.cli", "from roformer_tf.pretraining import command"),
        ("roformer_tf.corpus.x", "import jieba.posseg"),
        ("roformer_tf.kernels.x", "import tensorflow as tf"),
        ("roformer_tf.models.x", "def f():\n    import tensorflow as tf"),
        ("roformer_tf.checkpoints.tf1", "from tensorflow import raw_ops"),
        ("roformer_tf.checkpoints.tf1", "def f():\n    import torch"),
        ("roformer_tf.corpus.x", "from roformer_tf import RoFormerEncoder"),
    ],
)
def test_the_check_detects_a_broken_rule(module, source):
    assert broken_imports({module: source})


def test_no_public_class_has_the_name_of_another():
    assert classes_named_twice(sources()) == {}


def test_the_check_detects_a_duplicate_class_name():
    modules = {
        "roformer_tf.training.x": "class Run:\n    pass",
        "roformer_tf.corpus.x": "class _Run: 1",
    }
    assert classes_named_twice(modules) == {}
    modules["roformer_tf.pretraining.x"] = "import ast\n@dataclass\nclass Run(Base):\n    x: int"
    assert classes_named_twice(modules) == {
        "Run": ["roformer_tf.training.x", "roformer_tf.pretraining.x"]
    }


@pytest.mark.parametrize(
    "source", ["os.replace(a, b)", "path.rename(b)", "path.replace(b)", "from os import rename"]
)
def test_the_check_detects_a_renaming(source):
    assert renaming_calls(source)
    assert not renaming_calls("'a'.replace('a', 'b'); config.replace(hidden_size=3)")


def run_python(code: str, **environment: str) -> dict:
    """Run code in a new interpreter, and parse its last line of output as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        cwd=PACKAGE.parent,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


JAX_OR_DEFAULT = {"KERAS_BACKEND": "jax"} if find_spec("jax") else {}


def test_importing_the_package_loads_none_of_its_modules():
    code = "import json, sys, roformer_tf; print(json.dumps(list(sys.modules)))"
    loaded = run_python(code)
    assert [name for name in loaded if name.startswith("roformer_tf")] == ["roformer_tf"]


def test_pretraining_and_finetuning_do_not_import_each_other():
    assert not [name for name in PRETRAINING if ALLOWED[name] & FINETUNING]
    assert not [name for name in FINETUNING if ALLOWED[name] & PRETRAINING]


def test_no_folder_has_more_than_its_share_of_the_lines():
    lines = Counter()
    for module, source in sources().items():
        lines[folder_of(module)] += source.count("\n")
    shares = {name: count / lines.total() for name, count in lines.items()}
    assert {name: share for name, share in shares.items() if share > MAX_SHARE} == {}


def test_text_is_prepared_and_read_without_keras_or_a_backend():
    modules = [name for name in sources() if folder_of(name) in WITHOUT_KERAS | KERAS_WHEN_CALLED]
    code = f"import json, sys, {', '.join(modules)}; print(json.dumps(list(sys.modules)))"
    assert {"keras", "tensorflow", "torch", "jieba"}.isdisjoint(run_python(code))


SLOW_TO_LOAD = {
    *("matplotlib", "sklearn", "scipy", "pandas", "pyarrow", "tensorboard", "jieba", "fastapi"),
    *("onnx", "onnxruntime", "dask", "requests", "fsspec", "jinja2", "fontTools", "openpyxl"),
}


def test_public_names_load_no_slow_packages_except_those_of_keras():
    code = """
import json, sys
import keras
before = set(sys.modules)
import roformer_tf
for name in roformer_tf.__all__:
    getattr(roformer_tf, name)
print(json.dumps([name.partition(".")[0] for name in set(sys.modules) - before]))
"""
    assert SLOW_TO_LOAD.isdisjoint(run_python(code, **JAX_OR_DEFAULT))


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("jax"), reason="needs the extra [jax]")
def test_on_jax_no_module_loads_tensorflow():
    code = f"import json, sys, {', '.join(sources())}; print(json.dumps(list(sys.modules)))"
    loaded = run_python(code, KERAS_BACKEND="jax")
    assert [name for name in loaded if name.startswith("tensorflow")] == []
