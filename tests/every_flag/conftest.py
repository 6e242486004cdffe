"""The tiny models and files that the tables name, and a fixture that runs their commands."""

import contextlib
import importlib.machinery
import io
import json
import os
import re
import shlex
import shutil
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import ModuleType

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForMaskedLM
from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.regression import Regression
from tests.every_flag.service import ask_all
from tests.support.download_server import make_zip
from tests.support.random_model import (
    TINY,
    save_random_models,
    tokenizer_of,
)

LETTERS = "今天气很好我们去公园学习中国经济发展人民生活北京上海的了甲乙丙ab"
TEXTS = [
    "今天天气很好",
    "我们去公园学习",
    "中国经济发展",
    "人民生活很好，天气好，我们去学习",
    "北京的公园",
]
MORE = ["上海的天气", "我们学习经济，去北京公园", "生活"]


def _lines(rows, separator="\t"):
    return "".join(separator.join(row) + "\n" for row in rows)


def _book(path, **sheets):
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    book.save(path)


def _masked_model(folder, seed):
    keras.utils.set_random_seed(seed)
    tokenizer = tokenizer_of(LETTERS)
    model = RoFormerForMaskedLM(RoFormerConfig(**TINY, vocab_size=tokenizer.vocab_size))
    model.tokenizer = tokenizer
    model.save_pretrained(folder)


def _causal_model(folder, seed):
    """A causal model whose greedy text ends after a few tokens and differs from its beam search."""
    keras.utils.set_random_seed(seed)
    tokenizer = tokenizer_of(LETTERS)
    sizes = TINY | {"num_hidden_layers": 2, "initializer_range": 0.9}
    model = RoFormerForCausalLM(RoFormerConfig(**sizes, vocab_size=tokenizer.vocab_size))
    model.tokenizer = tokenizer
    bias = np.zeros(tokenizer.vocab_size)
    bias[:5] = -9  # no special token is generated
    bias[tokenizer.sep_id] = 4.5
    model.mlm.bias.assign(bias)
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, released):
    """Files and models by their names in the tables."""
    folder = tmp_path_factory.mktemp("inputs")
    tasks = {
        "classifier": Classification(labels=("好", "坏", "平")),
        "multilabel": Multilabel(labels=("甲", "乙")),
        "pair": Pair(labels=("0", "1"), text_columns=("text_a", "text_b")),
        "regression": Regression(mean=1.0, deviation=2.0),
        "nli": Pair(labels=("entailment", "neutral"), text_columns=("text_a", "text_b")),
    }
    actual = save_random_models(tasks, folder, tokenizer_of(LETTERS))
    rest = {"other_classifier": tasks["classifier"]}
    actual |= save_random_models(rest, folder, tokenizer_of(LETTERS), seed=3)
    for seed, name in enumerate(("mlm", "other_mlm")):
        _masked_model(folder / name, seed)
        actual[name] = folder / name
    for seed, name in ((20, "writer"), (13, "other_writer")):
        _causal_model(folder / name, seed)
        actual[name] = folder / name
    actual["sim"] = released("sim_char")
    with socket.create_server(("127.0.0.1", 0)) as at:
        actual["port"] = at.getsockname()[1]

    def write(name, file, content, encoding="utf-8"):
        actual[name] = folder / file
        actual[name].write_text(content, encoding)

    write("texts", "texts.txt", _lines([x] for x in TEXTS))
    write("more_texts", "more.txt", _lines([x] for x in MORE))
    rng = np.random.default_rng(0)
    write("many", "many.txt", _lines(["".join(rng.choice(list(LETTERS), 9))] for _ in range(40)))
    write("holes", "holes.txt", "今天\n\n学习\n")
    write("columns", "columns.tsv", _lines([("text", "乙"), *zip(TEXTS[:3], MORE, strict=True)]))
    triples = [("甲", "乙", "丙"), *zip(TEXTS[:3], MORE, TEXTS[2:], strict=True)]
    write("triples", "triples.tsv", _lines(triples))
    write(
        "pairs_file",
        "pairs.tsv",
        _lines([("text_a", "text_b"), *zip(TEXTS[:3], MORE, strict=True)]),
    )
    write("more_pairs", "more_pairs.tsv", "text_a\ttext_b\n天气\t公园\n")
    write("pairs_big5", "pairs_big5.tsv", "text_a\ttext_b\n天氣很好\t我們學習\n", "big5")
    _book(folder / "book.xlsx", 一=[("text",), ("天气",)], 二=[("text",), ("学习",)])
    _book(
        folder / "pairs.xlsx",
        一=[("text_a", "text_b"), ("天气", "公园")],
        二=[("text_a", "text_b"), ("学习", "生活")],
    )
    actual |= {"book": folder / "book.xlsx", "pairs_book": folder / "pairs.xlsx"}
    write("big5", "big5.tsv", _lines([("text",), ("a 天氣很好",), ("b 我們學習",)]), "big5")
    labels = ["好", "坏", "平", "好", "坏"]
    rows = [
        ("text", "label", "备注", "类"),
        *zip(TEXTS, labels, [*MORE, "去", "好"], labels[::-1], strict=True),
    ]
    write("labelled", "labelled.tsv", _lines(rows))
    flags = ("--model", actual["mlm"], "--documents", actual["texts"], "--index", folder / "index")
    assert main(["search", *map(str, flags)]) == 0
    actual["index"] = folder / "index"
    write("more_labelled", "more_labelled.tsv", _lines([rows[0], *rows[2:]]))
    write("several", "several.tsv", "text\tlabels\n天气\t甲;乙\n学习\t甲\n公园\t乙\n")
    write("labelled_holes", "labelled_holes.tsv", _lines([*rows, ("", "好", "", "")]))
    write("headless", "headless.tsv", _lines([("text", "好"), *zip(TEXTS, labels, strict=True)]))
    write("labelled_big5", "labelled_big5.tsv", "text\tscore\n天氣\t1\n學習\t2\n今天\t3\n", "big5")
    _book(folder / "labelled.xlsx", 一=rows, 二=[rows[0], *rows[2:]])
    actual["labelled_book"] = folder / "labelled.xlsx"
    write("long", "long.txt", _lines([["".join(TEXTS * 4)], ["".join(MORE * 30)], ["天气"]]))
    write("damaged", "damaged.txt", _lines([x] for x in TEXTS))
    documents = [{"text": x, "甲": x[::-1]} for x in TEXTS]
    write("corpus", "corpus.jsonl", "".join(json.dumps(x) + "\n" for x in documents * 4))
    repeated = [{"text": f"{x}\n{x}\n生活{y}"} for x in TEXTS for y in LETTERS[:12]]
    write("repeated", "repeated.jsonl", "".join(json.dumps(x) + "\n" for x in repeated))
    lines = [
        "。".join(rng.choice(list(LETTERS), n) for n in ())
        or "".join(rng.choice(list(LETTERS), 24 + 7 * (i % 3)))
        for i in range(40)
    ]
    write("passages", "passages.txt", _lines([x] for x in lines))
    write("more_passages", "more_passages.txt", _lines([x] for x in lines[5:]))
    write("doubled", "doubled.txt", _lines([x] for x in [*lines[:20], *lines[:9]]))
    write(
        "near",
        "near.txt",
        _lines([x] for x in [*lines[:20], *(x[:18] + "上海北京公园" for x in lines[:9])]),
    )
    write("latin", "latin.txt", _lines([x + "Abc aBC"] for x in lines))
    write(
        "corpus_big5",
        "corpus_big5.txt",
        "".join(
            f"今天天氣很好{x}\n我們去公園{x * 2}\n" for x in "一二三四五六七八九十上下大小中天人"
        ),
        "big5",
    )
    for name, rate in (("run", 0.001), ("other_run", 0.0001)):
        actual[name] = folder / ("slow" if name == "other_run" else name)
        actual[name].mkdir()
        line = {"step": 10, "loss": 4.0, "learning_rate": rate, "tokens_per_second": 1000}
        (actual[name] / "settings.yaml").write_text(f"steps: 20\nlearning_rate: {rate}\n")
        (actual[name] / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    sizes = {"vocab_size": 90, **TINY}
    write("architecture", "architecture.json", json.dumps(sizes))
    recipe = "corpus: x.txt\noutput: x\nvocab-size: 90\nsteps: 100\n"
    architecture = f"architecture: {actual['architecture']}\n"
    write("recipe", "recipe.yaml", recipe + architecture)
    write("other_recipe", "other.yaml", recipe.replace("100", "200") + architecture)
    write("recipe_without_architecture", "without.yaml", recipe)
    write("words", "words.txt", "阿里\n公园学习\n")
    actual["word"] = released("word")
    actual["release"] = folder / "release.zip"
    make_zip(actual["release"])
    actual["unknown"] = shutil.copytree(actual["mlm"], folder / "unknown")
    weights = load_file(actual["unknown"] / "model.safetensors")
    weights["strange"] = np.zeros(3, np.float32)
    save_file(weights, actual["unknown"] / "model.safetensors")

    actual["copies"] = shutil.copytree(actual["mlm"], folder / "copies")
    weights = load_file(actual["mlm"] / "model.safetensors")
    halved = {f"ema.{name}": array / 2 for name, array in weights.items()}
    save_file(weights | halved, actual["copies"] / "model.safetensors")

    marks = ["北京", "上海", "上海"]
    texts = [marks[i % 3] + "".join(rng.choice(list(LETTERS[:20]), 6)) for i in range(18)]
    head = ("text", "label", "备注", "类")
    examples = [
        (text, "0" if "北京" in text else "1", text[::-1], "01"[i % 2])
        for i, text in enumerate(texts)
    ]
    write("examples", "examples.tsv", _lines([head, *examples]))
    write("more_examples", "more_examples.tsv", _lines([head, *examples[6:]]))
    write("without_header", "without_header.tsv", _lines(x[:2] for x in examples))
    write("with_holes", "with_holes.tsv", _lines([head, *examples, ("", "1", "", "0")]))
    several = "".join(f"{text}\t{('a', 'b', 'a;b')[i % 3]}\n" for i, text in enumerate(texts))
    write("separated", "separated.tsv", f"text\tlabels\n{several}")
    _book(folder / "examples.xlsx", 一=[head, *examples], 二=[head, *examples[6:]])
    actual["examples_book"] = folder / "examples.xlsx"
    big5 = "".join(f"天氣很好{x}\t{i % 2}\n" for i, x in enumerate("一二三四五六七八九十" * 2))
    write("examples_big5", "examples_big5.tsv", f"text\tlabel\n{big5}", "big5")
    tags = [[(x, "B-LOC" if x in "北上" else "O") for x in text] for text in texts]
    conll = "\n".join("".join(f"{x}\t{tag}\n" for x, tag in text) for text in tags)
    write("tags", "tags.conll", conll)
    scored = _lines((*two, str(i % 5 / 4)) for i, two in enumerate(pairwise(texts)))
    write("scored", "scored.tsv", f"text_a\ttext_b\tscore\n{scored}")
    matches = _lines(pairwise(texts))
    write("matches", "matches.tsv", f"text_a\ttext_b\n{matches}")
    # Documents that a search already ranks correctly, so that reranking cannot improve them.
    ordered = [
        {"query": f"{i} {text}", "documents": [f"{i} {text}", f"{i + 99}"], "labels": [1, 0]}
        for i, text in enumerate(texts)
    ]
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in ordered)
    write("ordered", "ordered.jsonl", "".join(lines))

    def prepare(name, *corpus):
        actual[name] = folder / name
        flags = ("--vocab", actual["mlm"], "--length", "16", "--held-out", "0.1", "--workers", "1")
        words = ("--corpus", *corpus, "--output", actual[name], *flags)
        assert main(["prepare", *map(str, words)]) == 0

    prepare("rows", actual["passages"])
    prepare("more_rows", actual["more_passages"])
    prepare("two_corpora", f"a={actual['passages']}", f"b={actual['many']}")
    write("other_architecture", "other.json", json.dumps(sizes | {"intermediate_size": 24}))
    with actual["damaged"].open("ab") as file:
        file.write(b"\xff\xfe\xfd\n")
    return actual


@pytest.fixture(scope="module")
def computed():
    """A list of all calls that compute: (engine, precision, shape of the token ids)."""
    return []


def _recording_runner(runner, computed):
    def recording_runner(model):
        actual = runner(model)
        inner = getattr(model, "pooled", model)
        engine = getattr(inner, "engine", "keras")
        precision = getattr(inner, "precision", None) or getattr(model, "compute_dtype", None)

        def run(rows):
            computed.append((engine, precision, rows["token_ids"].shape))
            return actual.run(rows)

        return actual._replace(run=run)

    return recording_runner


def _recorded_steps(computed):
    """A patch of the encoder that records the shapes of training batches."""
    from roformer_tf.models.encoder import RoFormerEncoder

    hidden_states = RoFormerEncoder.hidden_states

    def recording_hidden_states(self, inputs, training=None, positions=None):
        if training:
            computed.append(("training", self.rematerialize, tuple(inputs["token_ids"].shape)))
        return hidden_states(self, inputs, training, positions)

    return recording_hidden_states


class _FakeWandb(ModuleType):
    """A fake of the wandb module."""

    id = "run"

    def __init__(self, computed):
        super().__init__("wandb")
        self.computed = computed
        self.__spec__ = importlib.machinery.ModuleSpec("wandb", None)

    def init(self, **settings):
        self.computed.append(("wandb", settings["project"], (0,)))
        return self

    def __getattr__(self, name):
        return lambda *_, **__: None


@pytest.fixture(scope="module", autouse=True)
def recorded_commands(computed, eagerly):
    """Run commands eagerly and record what is computed. Reset everything for other test modules."""
    from roformer_tf.conversion import verify
    from roformer_tf.corpus import workers
    from roformer_tf.finetuning import trial
    from roformer_tf.finetuning.report import pages
    from roformer_tf.models import generator, rows
    from roformer_tf.models.encoder import RoFormerEncoder
    from roformer_tf.pretraining import train_step
    from roformer_tf.training import devices

    runner, batches = rows.runner, generator._batches
    save_checkpoint = trial.save_checkpoint

    def recording_save(*arguments, **settings):
        computed.append(("saved", None, ()))
        return save_checkpoint(*arguments, **settings)

    def recording_processes(task, count):
        computed.append(("processes", None, (count,)))
        return workers.in_this_process(task)

    def recording_batches(*arguments):
        for batch in batches(*arguments):
            computed.append(("keras", None, (len(batch),)))
            yield batch

    with pytest.MonkeyPatch.context() as patch, eagerly():
        patch.setattr(rows, "runner", _recording_runner(runner, computed))
        patch.setattr(generator, "_batches", recording_batches)
        patch.setattr(RoFormerEncoder, "hidden_states", _recorded_steps(computed))
        patch.setattr(devices, "multiplies_bfloat16", lambda: False)  # the same on every machine
        patch.setattr(train_step, "SETTLED", 1)  # steps after which a spike is detected
        patch.setattr(trial, "save_checkpoint", recording_save)
        patch.setattr(pages, "cut_font", lambda characters: b"font")
        patch.setattr(workers, "usable_cores", lambda: 1)
        patch.setattr(workers, "processes", recording_processes)
        patch.setattr(workers, "CONNECTING", 0.1)
        patch.setenv(workers.ADDRESS, "tcp://127.0.0.1:9")  # nothing listens there
        patch.setitem(sys.modules, "wandb", _FakeWandb(computed))
        # the other libraries compute in separate processes, which take ten seconds
        patch.setattr(verify, "their_outputs", verify.our_outputs)
        patch.setattr(verify, "check_installed", lambda against: None)
        patch.setattr(verify.metadata, "version", lambda name: "0")
        patch.setenv("ROFORMER_TF_CACHE", "")  # set again for each run
        patch.setenv("ROFORMER_TF_MIRROR", "http://127.0.0.1:9")  # nothing listens there
        yield


@pytest.fixture(scope="module")
def responses(recorded_commands):
    """The responses of a service that `serve` started to the requests of `ask_all`."""
    from uvicorn import supervisors

    from roformer_tf.serving import command

    received = {}
    make_server = command.make_server

    def run_with_requests(run, stop, listener):
        def ask():
            try:
                return ask_all(listener.getsockname())
            finally:
                stop()

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(ask)
            run()
            received.update(future.result())

    def server_with_requests(app, config):
        server = make_server(app, config)
        run = server.run

        def stop():
            server.should_exit = True

        server.run = lambda sockets: run_with_requests(lambda: run(sockets), stop, sockets[0])
        return server

    class WorkersWithRequests(supervisors.Multiprocess):
        def run(self):
            run_with_requests(super().run, self.should_exit.set, self.sockets[0])

    # not `uvicorn.Server` itself, which other tests in this process run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "make_server", server_with_requests)
        patch.setattr(supervisors, "Multiprocess", WorkersWithRequests)
        yield received


class RecordingOutput(io.StringIO):
    """Standard output that also records the separate writes."""

    def __init__(self):
        super().__init__()
        self.writes = []

    def write(self, text):
        self.writes.append(text)
        return super().write(text)


DURATIONS = re.compile(r"[\d.,]+ (m?s|a second|秒)\b")
SPEEDS = re.compile(r'("(?:tokens_per_second|waiting|mfu|seconds)": )[\d.e-]+')


def _without_settings(content):
    """JSON without times, file names and settings: a flag must change more than these."""
    ignored = (
        "seconds",
        "settings",
        "model",
        "file",
        "corpus",
        "output",
        "checkpoint",
        "name",
        "recipe",
    )
    if isinstance(content, list):
        return [_without_settings(item) for item in content]
    if isinstance(content, dict):
        return {
            key: _without_settings(value) for key, value in content.items() if key not in ignored
        }
    return content


def _content(path, out):
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix in (".json", ".tsv", ".txt", ".md", ".jsonl"):
        text = SPEEDS.sub(r"\g<1>0", path.read_text("utf-8")).replace(str(out), "OUT")
        return (
            _without_settings(json.loads(text))
            if path.suffix == ".json"
            else DURATIONS.sub("", text)
        )
    return path.read_bytes()


def _end_after_the_steps(patch, command):
    """End a training run when its steps are done and logged in metrics.jsonl.

    Evaluation, report, baseline and saving take more than half of the time of a tiny run.
    """

    def end(*_):
        raise SystemExit(0)

    if command == "finetune":
        patch.setattr("roformer_tf.finetuning.trial.predict_encoded", end)
    else:
        loop = "roformer_tf.pretraining.training_loop."
        patch.setattr(f"{loop}predicts", lambda *_: False)  # so nothing is evaluated
        patch.setattr(f"{loop}PretrainingRun.plot", lambda *_: None)
        patch.setattr(f"{loop}take_snapshot", end)


@pytest.fixture(scope="module")
def outcome(inputs, computed, responses, tmp_path_factory):
    """outcome(command, words) → outputs by part. Each distinct command runs once."""
    outcomes = {}

    def run(command, words):
        if (command, words) not in outcomes:
            out = tmp_path_factory.mktemp("out")
            arguments = shlex.split(words.format_map(inputs | {"out": out}))
            stdout, stderr = RecordingOutput(), io.StringIO()
            os.environ["ROFORMER_TF_CACHE"] = str(out / "cache")
            computed.clear()
            responses.clear()
            name, _, scope = command.partition(" (")
            patch = pytest.MonkeyPatch()
            if scope == "preparation)":  # do not train
                patch.setattr("roformer_tf.pretraining.command._run", lambda run: None)
            elif scope == "steps)":
                _end_after_the_steps(patch, name)
            with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
                try:
                    code = main([*name.split(), *arguments])
                except SystemExit as ended:
                    code = ended.code
            if "port" in responses:  # a free port differs each time
                responses["port"] = str(responses["port"]) in arguments
            patch.undo()
            output = {
                name: DURATIONS.sub("", stream.getvalue().replace(str(out), "OUT"))
                for name, stream in (("stdout", stdout), ("stderr", stderr))
            }
            files = {
                path.relative_to(out).as_posix(): _content(path, out)
                for path in out.rglob("*")
                if path.is_file()
            }
            outcomes[command, words] = {"exit": code, **output, "writes": stdout.writes}
            outcomes[command, words] |= {"computed": [*computed], **responses, **files}
        return outcomes[command, words]

    return run
