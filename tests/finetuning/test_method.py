"""Logistic regression on vectors of a frozen encoder for few examples, and its selection."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.optimize import minimize

import roformer_tf
from roformer_tf.cli import main
from roformer_tf.config import RoFormerConfig
from roformer_tf.errors import InputError
from roformer_tf.files import RECIPES
from roformer_tf.finetuning import frozen
from roformer_tf.finetuning import method as method_module
from roformer_tf.finetuning.command import settle_auto
from roformer_tf.finetuning.method import OF_BOTH, settle_method, training_flags, with_method
from roformer_tf.finetuning.report import pages as report_pages
from roformer_tf.finetuning.search import Search, Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.splits import folds
from roformer_tf.models.heads import RoFormerForSequenceClassification
from roformer_tf.tasks.lexical import LexicalFeatures
from roformer_tf.tasks.losses import LossConfig
from roformer_tf.tasks.metrics import ACCURACY
from roformer_tf.tasks.table import TASKS
from roformer_tf.training.settings import FinetuneOptimizerConfig
from tests.support.task_files import load_task

LETTERS = {"甲": "今天气很好我们", "乙": "学习中国经济发展", "丙": "新闻记者报道"}


def examples_of(per_label, labels=LETTERS, seed=0):
    """Return examples whose texts contain mostly the letters of their label."""
    rng = np.random.default_rng(seed)
    return [
        Example(
            ("".join(rng.choice(list(LETTERS[label] + "的了在和是"), 12)),), label, f"{i} {label}"
        )
        for i in range(per_label)
        for label in labels
    ]


def config_of(**settings):
    return FinetuneConfig(train="", output="", **settings)


@pytest.mark.quick_cases("2-cls", "3-mean")
@pytest.mark.parametrize(("labels", "pooling"), [(3, "cls"), (2, "cls"), (3, "mean")])
def test_the_head_is_a_logistic_regression_on_the_pooled_vectors(labels, pooling, shallow):
    """The reference is fitted by SciPy in float64, with the best regularization strength."""
    rng = np.random.default_rng(1)
    examples = examples_of(10, list(LETTERS)[:labels])
    model = RoFormerForSequenceClassification.from_pretrained(
        shallow, num_labels=labels, pooling=pooling
    )
    task = TASKS["classification"].from_examples(
        examples, text_columns=("text",), label_column="label", max_length=64
    )
    encoded = task.labelling.encode(examples, model.tokenizer)
    targets = np.array([task.labels.index(example.label) for example in examples])
    folds = np.array_split(rng.permutation(len(examples)), 3)
    held_out = frozen.fit_head(model, encoded, targets, folds)

    hidden = [np.asarray(model.encoder(model.tokenizer(list(x.texts))), "f8")[0] for x in examples]
    vectors = np.array([x[0] if pooling == "cls" else x.mean(0) for x in hidden])
    x = (vectors - vectors.mean(0)) / (vectors.std(0) + 1e-6)
    one_hot = np.eye(labels)[targets]

    def fit_scipy(rows, strength):
        """Fit a regression to these rows and return its function from features to logits."""

        def loss(flat):
            weights, bias = np.split(flat.reshape(-1, labels), [x.shape[1]])
            logits = x[rows] @ weights + bias
            norms = np.logaddexp.reduce(logits, 1)
            errors = np.exp(logits - norms[:, None]) - one_hot[rows]
            slope = np.vstack([x[rows].T @ errors + weights / strength, errors.sum(0)[None]])
            value = np.sum(norms - (logits * one_hot[rows]).sum(1))
            return value + np.sum(weights**2) / 2 / strength, slope.ravel()

        size = (x.shape[1] + 1) * labels
        best = minimize(loss, np.zeros(size), jac=True, options={"gtol": 1e-7, "maxiter": 5000})
        weights, bias = np.split(best.x.reshape(-1, labels), [x.shape[1]])
        return lambda features: features @ weights + bias

    def softmax(logits):
        return np.exp(logits - np.logaddexp.reduce(logits, 1)[:, None])

    best = None
    for strength in frozen.STRENGTHS:
        logits = np.empty(one_hot.shape)
        for fold in folds:
            rows = np.setdiff1d(np.arange(len(examples)), fold)
            logits[fold] = fit_scipy(rows, strength)(x[fold])
        entropy = -np.mean(np.log((softmax(logits) * one_hot).sum(1)))
        if best is None or entropy < best[0]:
            best = entropy, strength, logits
    # scikit-learn stops at a tolerance of 1e-4. For two labels it penalizes w = w1 - w0 with w²/2
    # instead of w0²/2 + w1²/2 = w²/4.
    tolerance = 0.02 if labels > 2 else 0.15
    np.testing.assert_allclose(softmax(held_out), softmax(best[2]), atol=tolerance)
    expected = softmax(fit_scipy(np.arange(len(examples)), best[1])(x))
    logits = np.array([np.asarray(model(model.tokenizer(list(e.texts))))[0] for e in examples])
    np.testing.assert_allclose(softmax(logits.astype("f8")), expected, atol=tolerance)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
def test_stored_weights_invert_the_activation_of_the_head(act, shallow):
    model = RoFormerForSequenceClassification.from_pretrained(shallow, num_labels=3, hidden_act=act)
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(5, 4, model.config.hidden_size)).astype("f4") * 3
    weights, bias = rng.normal(size=(model.config.hidden_size, 3)), rng.normal(size=3)
    frozen._store(model.classifier, weights, bias)
    actual = np.asarray(model.classifier(hidden, np.ones((5, 4), "i4")))
    np.testing.assert_allclose(actual, hidden[:, 0] @ weights + bias, rtol=1e-4, atol=1e-4)


def test_the_head_has_a_maximum_number_of_labels():
    config = RoFormerConfig.from_file(RECIPES / "demo.json").replace(hidden_size=64)
    assert not frozen.why_no_room(config, 32)
    assert not frozen.why_no_room(config.replace(pooling="mean"), 33)
    assert "at most 32 labels" in frozen.why_no_room(config, 33)


def test_too_many_labels_require_full_training(tmp_path):
    search = fake_search(tmp_path, 0.0, hidden_size=4)
    assert with_method(search).method["name"] == "full"
    config = replace(search.config, method="vectors", output=str(tmp_path / "other"))
    with pytest.raises(InputError, match="--method vectors: a head of 4 units stores at most 2"):
        with_method(replace(search, config=config))


@pytest.mark.parametrize(
    ("settings", "per_label", "task", "want"),
    [
        ({}, 10, "classification", "auto"),
        ({}, 64, "classification", "auto"),
        ({}, 65, "classification", "full"),
        ({}, 1, "classification", "full"),  # no cross-validation
        ({}, 10, "pair", "full"),
        ({"method": "vectors"}, 65, "classification", "vectors"),
        ({"method": "full"}, 10, "classification", "full"),
        ({"method": "vectors"}, 1, "classification", "two examples of each label"),
        ({"method": "vectors"}, 10, "pair", "not for the task pair"),
    ],
)
def test_method_auto_is_kept_for_few_examples(settings, per_label, task, want):
    arguments = config_of(**settings), TASKS[task], examples_of(per_label)
    if " " in want:
        with pytest.raises(InputError, match=f"--method vectors: .*{want}.* --method full"):
            settle_method(*arguments)
    else:
        assert settle_method(*arguments).method == want


@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({"batch_size": 7, "seeds": 2}, "--batch-size, --seeds"),
        ({"optimizer": FinetuneOptimizerConfig(ema=0.9)}, "--ema"),
        ({"loss": LossConfig(class_weights="balanced", fgm=0.5)}, "--class-weights, --fgm"),
    ],
)
def test_settings_without_effect_on_a_head_are_refused(settings, flags):
    with pytest.raises(InputError, match=f"does not use {flags}\\. Omit"):
        settle_auto(config_of(method="vectors", **settings))
    rate = FinetuneOptimizerConfig(learning_rate=1e-3)  # as settings.yaml of a run has it
    config = config_of(method="vectors", folds=3, epochs=10, optimizer=rate)
    assert settle_auto(config).method == "vectors"


def test_a_killed_comparison_is_continued_with_the_settings_of_its_run(tmp_path):
    """As numbers of a settings.yaml, epochs and learning rate select no method."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "settings.yaml").write_text("method: auto\nepochs: 10\nlearning_rate: 0.001\n")
    rate = FinetuneOptimizerConfig(learning_rate=1e-3)
    config = replace(config_of(epochs=10, optimizer=rate), output=str(tmp_path))
    assert settle_auto(config).method == "auto"


def test_the_training_set_of_a_fold_needs_two_examples_of_each_label(tmp_path):
    optimizer = FinetuneOptimizerConfig(learning_rate=1e-3)
    search = fake_search(tmp_path, 0.0, per_label=2, method="vectors", optimizer=optimizer)
    parts = folds(search.sets.train, search.task, 2)
    search = replace(search, sets=replace(search.sets, folds=parts))
    with pytest.raises(InputError, match=r"two examples of each label .* has one"):
        search.run()


@pytest.mark.parametrize(
    ("settings", "want"),
    [({}, True), ({"max_length": 30}, True), ({"epochs": 3}, False), ({"seeds": 2}, False)],
)
def test_training_settings_select_full_training(settings, want):
    assert (not training_flags(config_of(**settings), OF_BOTH)) == want


@dataclass(frozen=True)
class FakeSearch(Search):
    """A search without training: a given fraction of the predictions is right."""

    right: Any = None
    started: Any = None

    def first(self, trainer=None):
        self.started.append((self.config.method, self.prefix, self.sets))
        name = "test" if self.prefix.startswith("fold-") else "valid"
        examples = self.sets.test if name == "test" else self.sets.valid or self.sets.train
        count = round(self.right[self.config.method] * len(examples))
        wrong = {"甲": "乙", "乙": "丙", "丙": "甲"}
        predictions = [
            SimpleNamespace(label=x.label if i < count else wrong[x.label], scores=np.ones(3) / 3)
            for i, x in enumerate(examples)
        ]
        metrics = self.task.metrics.compute([x.label for x in examples], predictions)
        return SimpleNamespace(predictions={name: predictions}, metrics={name: metrics})


def fake_search(tmp_path, full, per_label=16, valid_examples=(), hidden_size=64, **settings):
    train = examples_of(per_label)
    task = TASKS["classification"].from_examples(
        train, text_columns=("text",), label_column="label", max_length=64
    )
    sizes = SimpleNamespace(architecture=SimpleNamespace(hidden_size=hidden_size, pooling="cls"))
    sets = Sets(train, list(valid_examples), [], [])
    config = FinetuneConfig(train="", output=str(tmp_path), **settings)
    right = {"vectors": 0.75, "full": full}
    return FakeSearch(config, sets, sizes, task, ACCURACY, right=right, started=[])


@pytest.mark.parametrize("full", [0.5, 0.75, 1.0])
def test_the_better_method_in_cross_validation_is_chosen(full, tmp_path):
    search = fake_search(tmp_path, full)
    chosen = with_method(search)
    name = "full" if full > 0.75 else "vectors"
    assert chosen.config.method == name == chosen.method["name"]
    assert chosen.method["compared"] == pytest.approx({"vectors": 0.75, "full": full}, abs=0.06)
    assert chosen.method["cross_validated"] == (name == "vectors")
    (_, _, sets), *fold_calls = search.started
    assert sets.train == search.sets.train
    assert len(fold_calls) == chosen.method["folds"] == 4
    tested = [example for *_, sets in fold_calls for example in sets.test]
    assert sorted(tested) == sorted(search.sets.train)  # each example is tested once
    for _, _, sets in fold_calls:
        known = [example.source_line for part in (sets.train, sets.valid) for example in part]
        assert not {example.source_line for example in sets.test} & set(known)
    # Running the same command again does not repeat the comparison.
    search.started.clear()
    settled = replace(search, config=replace(search.config, method=name))
    repeated = with_method(settled)
    assert (repeated.method, repeated.prefix, search.started) == (chosen.method, chosen.prefix, [])


@pytest.mark.parametrize(("method", "pattern"), [("full", ""), ("cloze", "{label}：{text}")])
def test_a_method_that_the_user_gives_replaces_an_earlier_choice(method, pattern, tmp_path):
    chosen = with_method(fake_search(tmp_path, 1.0, per_label=7))
    assert chosen.config.method == "vectors"
    search = fake_search(tmp_path, 1.0, per_label=7, method=method, pattern=pattern)
    again = with_method(search)
    assert (again.config.method, again.method, again.prefix) == (method, {}, "")
    assert not (tmp_path / "method.json").exists()


def test_methods_are_compared_on_a_validation_set(tmp_path):
    valid = examples_of(4, seed=1)
    search = fake_search(tmp_path, 1.0, 16, valid, valid="valid.tsv")
    chosen = with_method(search)
    assert (chosen.config.method, chosen.prefix) == ("full", "full-")
    assert [method for method, *_ in search.started] == ["vectors", "full"]
    assert chosen.method["folds"] == 0


def test_very_few_examples_use_vectors_without_a_comparison(tmp_path):
    search = fake_search(tmp_path, 1.0, per_label=7)
    chosen = with_method(search)
    assert (chosen.method["name"], chosen.method["fewest"], search.started) == ("vectors", 8, [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("few")
    for name, per_label in (("train", 7), ("test", 8)):
        rows = examples_of(per_label, seed=len(name))
        # Every eighth label is taken from another text; otherwise all predictions would be right.
        labels = [rows[i - 4 if i % 8 == 0 else i].label for i in range(len(rows))]
        pairs = zip(rows, labels, strict=True)
        text = "".join(f"{example.texts[0]}\t{label}\n" for example, label in pairs)
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + text, encoding="utf-8")
    return folder


@pytest.mark.quick_cases("yes")
@pytest.mark.parametrize("lexical", ["yes", "no"])
def test_a_run_without_a_validation_set_trains_on_all_rows(lexical, shallow, folder, monkeypatch):
    """Validation metrics come from cross-validation: no model has seen the example."""
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
    run = folder / f"run-{lexical}"
    arguments = ["finetune", "--checkpoint", shallow, "--train", folder / "train.tsv"]
    arguments += ["--output", run, "--language", "en", "--lexical-features", lexical]
    assert main([*map(str, arguments)]) == 0
    report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    method = {"name": "vectors", "fewest": 8, "cross_validated": True}
    assert report["method"] == method
    names = ("train", "valid", "test")  # without other files, each set has all rows
    assert {part["name"]: part["examples"] for part in report["data"]} == dict.fromkeys(names, 21)
    assert report["test"] == report["valid"]
    held_out = np.load(next(run.glob("**/held_out.npy")))
    page = (run / "report.md").read_text(encoding="utf-8")
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    assert "by a model that was fitted without it" in card
    assert "| epochs |" not in card
    for text in ("logistic regression was fitted", "fewer than 8", "by a model that was fitted"):
        assert text in page
    assert "which also selected the best weights" not in page
    settings = yaml.safe_load((run / "settings.yaml").read_text(encoding="utf-8"))
    assert settings["method"] == "vectors"
    lines = (run / "predictions.tsv").read_text(encoding="utf-8").splitlines()
    rows = [dict(zip(lines[0].split("\t"), line.split("\t"), strict=True)) for line in lines[1:]]
    right = np.mean([row["gold"] == row["label"] for row in rows])
    assert right == pytest.approx(report["valid"]["accuracy"])
    assert right > 0.5  # predictions are in the order of the texts
    kept = [sorted(LETTERS)[i] for i in held_out.argmax(1)]
    assert np.mean([x == row["gold"] for x, row in zip(kept, rows, strict=True)]) > 0.5
    assert report["baseline"]["test"]["accuracy"] < 0.9  # the baseline is cross-validated, too
    if lexical == "yes":  # TF-IDF is cross-validated, too
        task = load_task(run / "model")
        content = (run / "model" / "lexical.npz").read_bytes()
        features = LexicalFeatures.from_bytes(content, task, "model")
        examples = [Example((row["text"],), row["gold"], "") for row in rows]
        plain = task.decoding.predict_all(held_out)
        gold_probabilities = {
            "known": [
                x.scores[task.labels.index(e.label)]
                for x, e in zip(features.combined(task, examples, plain), examples, strict=True)
            ],
            "reported": [float(row[f"p({row['gold']})"]) for row in rows],
        }
        assert np.mean(gold_probabilities["reported"]) < np.mean(gold_probabilities["known"]) - 0.02
    if lexical == "no":
        labels = sorted(LETTERS)
        assert [labels[i] for i in held_out.argmax(1)] == [row["label"] for row in rows]
    predictions = roformer_tf.load(run / "model")([row["text"] for row in rows])
    fitted = np.mean([x["label"] == row["gold"] for x, row in zip(predictions, rows, strict=True)])
    assert fitted > right  # the final model was trained on these rows

    before = (run / "model" / "model.safetensors").read_bytes()
    assert main([*map(str, arguments)]) == 0  # the same command
    assert (run / "model" / "model.safetensors").read_bytes() == before
    second_report = json.loads((run / "report.json").read_text(encoding="utf-8"))
    assert {key: second_report[key] for key in ("valid", "method")} == {
        key: report[key] for key in ("valid", "method")
    }


@pytest.mark.usefixtures("eager_steps")
def test_a_run_whose_method_was_chosen_can_be_repeated(shallow, tmp_path, monkeypatch):
    """The order of the names is not that of the labels, which the split depends on."""
    monkeypatch.setattr(report_pages, "cut_font", lambda characters: b"font")  # slow
    monkeypatch.setattr(method_module, "_compared", lambda search: {"name": "full"})
    rows = examples_of(12)
    rows = [x for i, x in enumerate(rows) if x.label != "丙" or i % 2]  # fewer of one label
    lines = [f"{example.texts[0]}\t{example.label}\n" for example in rows]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "".join(lines), encoding="utf-8")
    arguments = ["finetune", "--checkpoint", shallow, "--train", tmp_path / "train.tsv"]
    arguments += ["--label-names", *"cab", "--output", tmp_path / "run", "--no-baseline"]
    reports = []
    for _ in range(2):
        assert main([*map(str, arguments)]) == 0
        reports.append(json.loads((tmp_path / "run" / "report.json").read_text("utf-8")))
    first, second = reports
    assert first["method"]["name"] == "full"
    assert [part["name"] for part in first["data"]] == ["train", "valid", "test"]
    for key in ("data", "valid", "test", "losses", "method"):
        assert first[key] == second[key], key


@pytest.mark.slow
def test_method_auto_keeps_the_better_method(shallow, folder, tmp_path):
    rows = examples_of(9, seed=3)
    result = roformer_tf.finetune(
        shallow,
        [(*example.texts, example.label) for example in rows],
        tmp_path / "run",
        test=str(folder / "test.tsv"),
    )
    method = result.report["method"]
    better = max(method["compared"], key=method["compared"].__getitem__)
    assert method["name"] == better or len(set(method["compared"].values())) == 1
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert len(result.predict(["今天天气很好"])) == 1
