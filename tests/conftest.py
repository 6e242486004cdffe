"""Fixtures and hooks shared by all test folders.

Keras is imported only by the fixtures that need it.
"""

import gc
import io
import json
import os
import shutil
import sqlite3  # noqa: F401  # before TensorFlow, whose own SQLite has no FTS5
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from roformer_tf.startup import set_up_tensorflow

# Before TensorFlow is loaded, so that this process and a command's compute identical bits.
set_up_tensorflow()

os.environ["LC_ALL"] = "C.UTF-8"  # English messages in any locale of the developer

gc.disable()  # until collection ends: the imports create a million objects that stay

settings.register_profile(  # a slow machine is not a failure
    "unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("unhurried")

# torch imports triton, which crashes the process if TensorFlow was loaded first. Any conftest may
# load TensorFlow, and a hook would run after all of them: so import triton here.
if "hf" in " ".join(sys.argv) and find_spec("triton"):
    import_module("triton._C.libtriton")

ROOT = Path(__file__).parents[1]
os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # unknown names are not looked up on the hub
BIN = Path(sys.executable).parent
FIXTURES = Path(__file__).parent / "fixtures" / "oracle"
ORACLE = Path(os.environ.get("ROFORMER_TF_ORACLE", FIXTURES))  # or the output of make_oracle.py
RELEASED = {  # recorded outputs: the zip with the weights that bert4keras used
    "word": "chinese_roformer_L-2_H-32_A-4.zip",
    "word_long": "chinese_roformer_L-2_H-32_A-4.zip",
    "word_pruned": "chinese_roformer_L-2_H-32_A-4.zip",
    "finetune_mlm": "chinese_roformer_L-2_H-32_A-4.zip",
    "finetune_cls": "chinese_roformer_L-2_H-32_A-4.zip",
    "char": "chinese_roformer-char_L-3_H-32_A-4.zip",
    "gpt_char": "chinese_roformer-gpt-char_L-2_H-32_A-4.zip",
    "sim_char": "chinese_roformer-sim-char_L-2_H-32_A-4.zip",
    "sim_char_ft": "chinese_roformer-sim-char-ft_L-2_H-32_A-4.zip",
    "v2_char": "chinese_roformer-v2-char_L-3_H-32_A-4.zip",
    "word_project": "roformer_project_L-2_H-32_A-4.zip",
    "word_adam": "thirdparty_roformer_adam_L-2_H-32_A-4.zip",
    "hf_word": "hf_word",
    "hf_char": "hf_char",
    "hf_v2_char": "hf_v2_char",
    "hf_word_seqcls": "hf_word_seqcls",
}

LONG = (  # slowest files first
    *("tests/every_flag/", "tests/commands/test_finetune.py", "tests/test_jax.py"),
    *("tests/faults/", "tests/pretraining/", "tests/finetuning/", "tests/wiring/"),
    *("tests/test_architecture.py", "tests/test_configs.py"),
    "tests/test_serialization.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Run the slowest files first, so that no process is left working alone at the end.

    Also mark the cases that a `quick_cases` mark does not select as slow.
    """

    def priority(item):
        starts = (number for number, start in enumerate(LONG) if item.nodeid.startswith(start))
        return next(starts, len(LONG))

    items.sort(key=priority)
    for item in items:
        for mark in item.iter_markers("quick_cases"):
            if not any(fnmatchcase(item.callspec.id, pattern) for pattern in mark.args):
                item.add_marker("slow")


def pytest_collection_finish(session):
    """Reduce the overhead of the quick tests.

    Freeze what was imported: otherwise the garbage collector scans a million permanent objects, and
    Python calls it after most traces. Also skip TensorFlow's graph optimization, which costs a
    quarter of a traced step and more than running the tiny step. Slow tests, and tests in separate
    processes, keep the optimization, as users do.
    """
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()
    if _only_quick(session.config):
        _optimize_graphs(False)
        _keep_kernels()


def _only_quick(config):
    """Whether only quick tests run."""
    return "not slow" in config.getoption("markexpr")


def _optimize_graphs(enabled):
    """Turn TensorFlow's graph optimization on or off, if TensorFlow is loaded."""
    if tf := sys.modules.get("tensorflow"):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not enabled})


def _keep_kernels():
    """Let TensorFlow keep its cached operations when a seed is set. It saves a sixth of the time.

    TensorFlow clears the cache for random operations with a state of their own. There are none
    here: Keras and the package pass a seed to every random operation.
    """
    if sys.modules.get("tensorflow"):
        import_module("tensorflow.python.pywrap_tfe").TFE_ContextClearCaches = lambda context: None
        variables = import_module("tensorflow.python.ops.gen_resource_variable_ops")
        # The name is only for debugging, but each one would need an operation of its own.
        make = variables.var_handle_op
        variables.var_handle_op = lambda *x, debug_name="", **settings: make(*x, **settings)


@pytest.fixture(scope="session", autouse=True)
def original_choose():
    """Make `--engine auto` use float32 even on a CPU with bfloat16. Yield the original function.

    Tests compare outputs to the last digit. Tests of bfloat16 use the original.
    """
    from roformer_tf.inference import opening

    original = opening.choose

    def choose(engine, precision, *, unsupported, lossy):
        lossy = lossy and engine != "auto"
        return original(engine, precision, unsupported=unsupported, lossy=lossy)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "choose", choose)
        yield original


@pytest.fixture(scope="session", autouse=True)
def blank_pictures(pytestconfig):
    """Save empty pictures in the quick tests: drawing one takes as long as a tiny training run.

    Yields the original `Figure.savefig`. Tests of pictures use the fixture `pictures`.
    """
    from matplotlib.figure import Figure

    contents = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<svg/>"}

    def save(figure, target, **settings):
        content = contents[settings.get("format", "png")]
        if isinstance(target, io.BytesIO):
            target.write(content)
        else:
            Path(target).write_bytes(content)

    original = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        if _only_quick(pytestconfig):
            patch.setattr(Figure, "savefig", save)
        yield original


@pytest.fixture
def pictures(blank_pictures, monkeypatch):
    """Draw real pictures."""
    from matplotlib.figure import Figure

    monkeypatch.setattr(Figure, "savefig", blank_pictures)


@pytest.fixture(scope="session")
def optimized_graphs():
    """optimized_graphs(): a context whose steps equal those of a user's process bit by bit."""

    @contextmanager
    def optimized():
        tf = sys.modules.get("tensorflow")
        before = tf.config.optimizer.get_experimental_options() if tf else {}
        _optimize_graphs(True)
        try:
            yield
        finally:
            _optimize_graphs(not before.get("disable_meta_optimizer", False))

    return optimized


@pytest.fixture(scope="session")
def eagerly(pytestconfig):
    """eagerly(): a context in which TensorFlow runs steps eagerly.

    Tracing a step takes as long as running ten. Use it in tests of what a step or a command does,
    when another test covers the compiled step.
    """

    @contextmanager
    def untraced():
        on_jax = os.environ.get("KERAS_BACKEND") == "jax"  # JAX has no eager mode
        if on_jax or not _only_quick(pytestconfig):
            yield
            return
        import tensorflow as tf

        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(True)
        try:
            yield
        finally:
            tf.config.run_functions_eagerly(before)

    return untraced


@pytest.fixture
def eager_steps(eagerly):
    """Run the whole test within `eagerly`."""
    with eagerly():
        yield


@pytest.fixture
def no_garbage_collection(monkeypatch):
    """Skip the garbage collection after each quantized layer, which takes half a second each."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


def pytest_terminal_summary(terminalreporter):
    """Print the recorded `difference` of each test: (family, output, largest difference, bound)."""
    rows = [
        value
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for name, value in report.user_properties
        if name == "difference" and report.when == "call"
    ]
    if rows:
        terminalreporter.section("family × output × largest difference (bound)")
    for family, output, difference, bound in rows:
        line = f"{family:<15} {output:<18} {difference:.1e} ({bound:.0e})"
        terminalreporter.write_line(line, red=difference > bound)


@pytest.fixture(scope="session")
def released():
    """released("word") → path of a tiny checkpoint in the released layout."""
    return lambda name: ORACLE / RELEASED[name]


@pytest.fixture(scope="session")
def shallow(released, tmp_path_factory):
    """A folder with the released character model cut to one layer, which compiles faster."""
    from roformer_tf import RoFormerForMaskedLM

    full = RoFormerForMaskedLM.from_pretrained(released("char"))
    model = RoFormerForMaskedLM(full.config.replace(num_hidden_layers=1))
    model.tokenizer = full.tokenizer
    weights = full.named_variables()
    for name, variable in model.named_variables().items():
        variable.assign(weights[name])
    folder = tmp_path_factory.mktemp("shallow") / "model"
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def unpacked(released, tmp_path):
    """unpacked("word") → a new folder with the checkpoint's files."""

    def unpack(name):
        source, target = released(name), tmp_path / name
        if source.is_dir():
            return shutil.copytree(source, target)
        with zipfile.ZipFile(source) as archive:
            archive.extractall(tmp_path)
        return (tmp_path / source.stem).rename(target)

    return unpack


@pytest.fixture(scope="session")
def recorded():
    """recorded("word") → the arrays that bert4keras computed (transformers for hf_*), by name."""

    def load(name):
        with np.load(ORACLE / f"{name}.npz") as file:
            return dict(file)

    return load


@pytest.fixture(scope="session")
def torch():
    """PyTorch, for tests marked `hf`. They fail if it is missing instead of being skipped."""
    import torch

    return torch


@pytest.fixture(scope="session")
def transformers(torch):
    """Hugging Face transformers, for tests marked `hf`, on PyTorch."""
    import transformers

    return transformers


@pytest.fixture(scope="session")
def gradient():
    """gradient(f, x) → ∂ Σ f(x) / ∂x as NumPy, on the current backend."""
    import keras

    def by_jax(function, x):
        import jax

        return np.asarray(jax.grad(lambda x: function(x).sum())(x))

    def by_tensorflow(function, x):
        import tensorflow as tf

        x = tf.convert_to_tensor(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = tf.reduce_sum(function(x))
        return tape.gradient(total, x).numpy()

    return {"jax": by_jax, "tensorflow": by_tensorflow}[keras.backend.backend()]


@pytest.fixture(scope="session")
def write_corpus():
    """write_corpus(path, documents, length=60, seed=0): write random Chinese characters."""
    characters = list(
        "今天天气很好我们去公园学习中国经济发展人民生活改革工作北京上海新闻记者报道的了在和是不也都"
    )

    def write(path, documents, length=60, seed=0):
        texts = np.random.default_rng(seed).choice(characters, (documents, length))
        path.write_text("。\n".join(map("".join, texts)) + "。\n", encoding="utf-8")
        return path

    return write


SPEED_KEYS = ("tokens_per_second", "waiting", "mfu")


@pytest.fixture(scope="session")
def stable_metrics():
    """stable_metrics(file) → the lines of a metrics file without what depends on speed."""

    def lines(path):
        with path.open(encoding="utf-8") as file:
            read = [json.loads(line) for line in file]
        return [{key: x for key, x in line.items() if key not in SPEED_KEYS} for line in read]

    return lines


@pytest.fixture(scope="session")
def pretrain_flags(write_corpus, tmp_path_factory):
    """pretrain_flags(output, steps=8, …) → command-line flags of `pretrain` for a tiny model.

    One layer of size 32, because most of the time goes into compiling. Dropout is on. Neither
    saving nor logging falls on the last step. A value of None removes a flag.
    """
    folder = tmp_path_factory.mktemp("tiny")
    corpus = write_corpus(folder / "corpus.txt", 200)
    architecture = folder / "architecture.json"
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    architecture.write_text(json.dumps({"vocab_size": 1, "intermediate_size": 64} | sizes))

    def flags(output, **changes):
        settings = {
            "corpus": corpus,
            "vocab_size": 200,
            "tokenization": "char",
            "length": 32,
            "held_out": 0.1,
            "workers": 1,
            "architecture": architecture,
            "batch_size": 8,
            "steps": 8,
            "save_every": 3,
            "log_every": 5,
            "evaluation_rows": 16,
            "learning_rate": 1e-3,
            "output": output,
        }
        arguments = {key: value for key, value in (settings | changes).items() if value is not None}
        return [
            word
            for key, value in arguments.items()
            for word in ("--" + key.replace("_", "-"), str(value))
        ]

    return flags


@pytest.fixture(scope="session")
def pretrained(pretrain_flags, tmp_path_factory, eagerly):
    """The folder of a finished eager run with `pretrain_flags`. Copy it before changing it."""
    from roformer_tf.cli import main

    output = tmp_path_factory.mktemp("pretrained") / "run"
    with eagerly():
        assert main(["pretrain", *pretrain_flags(output)]) == 0
    return output


@pytest.fixture(scope="session")
def start_command():
    """start_command("pretrain/run_mlm.py", *flags) → a process, started as a user would in a clone.

    A script runs with this Python; "roformer-tf" is the installed command.
    """

    def start(command, *flags, **environment):
        script = command.endswith(".py")
        program = [sys.executable, ROOT / command] if script else [BIN / command]
        return subprocess.Popen(
            [*program, *map(str, flags)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that its workers can be killed with it
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"} | environment,
        )

    return start


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless Chromium with Chinese as its language, for tests marked `browser`."""
    from selenium import webdriver

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program, "install chromium"
    assert driver, "install chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        f"--user-data-dir={tmp_path_factory.mktemp('browser')}",
    ):
        options.add_argument(flag)
    options.add_experimental_option("prefs", {"intl.accept_languages": "zh-CN"})
    with webdriver.Chrome(options, webdriver.ChromeService(driver)) as chrome:
        yield chrome
