"""The body of `finetune`: labelled examples → a model that answers, and a report on it.

OUTPUT/settings.yaml   every setting; usable as --config
OUTPUT/model/          the best weights, the tokenizer, task.json, and README.md, the model card
OUTPUT/report.md, report.html, report.json, predictions.tsv
OUTPUT/label_issues.tsv  rows whose label is probably wrong, if any; .xlsx where --train is one
OUTPUT/validation_pairs.jsonl  of a model of pairs: what `search --rerank` measures it on
OUTPUT/metrics.jsonl, evaluations.jsonl, tensorboard/, checkpoints/
OUTPUT/trials/NAME/    the same of each training, where there are several (seeds, folds, a sweep)
OUTPUT/export/         what --export asks for
"""

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from roformer_tf.checkpoints.huggingface import classifier_opens_in_transformers
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.errors import DivergedError, InputError
from roformer_tf.export.command import export
from roformer_tf.export.formats import check_export
from roformer_tf.files import locked
from roformer_tf.finetuning.losses import (
    check_loss,
    check_vector_settings,
)
from roformer_tf.finetuning.rates import MOST_EPOCHS, spelled, usual_epochs, usual_rate
from roformer_tf.finetuning.report.analysis import analyse, write_report
from roformer_tf.finetuning.report.card import model_card
from roformer_tf.finetuning.results import Results, print_summary
from roformer_tf.finetuning.search import Search, Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trainer import Start
from roformer_tf.finetuning.trial import Recipe, labels_of
from roformer_tf.finetuning.vectors import check_pieces
from roformer_tf.kernels.devices import device_in_words
from roformer_tf.labelled.encoding import pick_max_length
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import Layout, find_layout, read_examples
from roformer_tf.labelled.splits import folds, split_examples
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import Metric
from roformer_tf.tasks.table import TASKS
from roformer_tf.tokenizers.tokenizer import missing_vocabulary
from roformer_tf.training.run_files import (
    check_output,
    plain,
    read_settings,
    settle_precision,
    tidy,
    write_settings,
)
from roformer_tf.translation import choose_language

MAY_CHANGE = (
    *("output", "save_every", "log_every"),
    *("export", "language", "baseline", "first_line", "strict"),
)
"""Settings that may differ when a run continues, since they change no weight, or show in the
examples, which are compared. Beside --valid, so
may --test, which then judges the same model anew: nothing is split off for it."""

POOLINGS = {
    "pooler": "what the checkpoint's pooler gives of the first token",
    "mean": "the mean of all tokens",
    "cls": "the first token's",
}
"""What a text's vector may be, in words."""

WHOLE = 1 << 30
"""A length that no text reaches, to see how long they are."""


def finetune(config: FinetuneConfig) -> None:
    """Fine-tune a checkpoint on labelled texts, and report on what came out."""
    with locked(config.output):
        _finetune(config)


def _finetune(config: FinetuneConfig) -> None:
    output = Path(config.output)
    config = settle_auto(settle_precision(config))
    check_output(config, (*MAY_CHANGE, "test") if config.valid else MAY_CHANGE)
    for to in config.export:
        check_export(to, output / "export" / to)
    layout = find_layout(config.train, config.columns, config.task, TASKS)
    print(layout.report)
    check_vector_settings(layout.task, config.vectors)
    check_pieces(config.batch_size, config.vectors.pieces)
    sets = read_sets(config, layout)
    task = define_task(config, layout, sets)
    for line in task.labelling.notes(sets.train):
        print(line)
    keras.utils.set_random_seed(config.seed)  # of heads that the checkpoint lacks
    start = make_start(config, layout.task)
    config = choose_epochs(choose_rate(config, start), task, sets)
    check_steps(config, task, sets)
    task = dataclasses.replace(task, max_length=choose_length(config, task, sets, start))
    recipe = Recipe(
        optimizer=config.optimizer,
        loss=config.loss,
        metric=choose_metric(config, task, sets),
        epochs=int(config.epochs),
        batch_size=config.batch_size,
        patience=config.patience,
        save_every=config.save_every,
        log_every=config.log_every,
        vectors=config.vectors,
    )
    search = Search(output, sets, start, task, recipe, config.seed, config.seeds, config.sweep)
    tidy(output)
    write_settings(config)
    try:
        results = Results(search, search.run())
    except DivergedError as error:
        raise DivergedError(
            f"training stopped: {error} Start again under another --output with a lower "
            "--learning-rate or a longer --warmup."
        ) from None
    report = analyse(results.for_report(plain(config), config.baseline))
    issues = results.label_issues(plain(config), report)
    if issues is not None:
        issues.write(output)
        report["label_issues"] = issues.as_json()
    language = choose_language(
        config.language, (text for example in sets.train for text in example.texts)
    )
    results.save(
        model_card(
            *(report, results.best.task, language, start.architecture.is_v2),
            opens_elsewhere=classifier_opens_in_transformers(start.architecture),
        )
    )
    write_report(output, report, language)
    print_summary(output, report)
    for to in config.export:
        export(output / "model", output / "export" / to, to, results.examples)


def settle_auto(config: FinetuneConfig) -> FinetuneConfig:
    """Replace "auto" for epochs and learning rate by what the run began with, if it has begun."""
    began = read_settings(Path(config.output))
    if config.epochs == "auto":
        config = dataclasses.replace(config, epochs=began.get("epochs", "auto"))
    if config.optimizer.learning_rate == "auto":
        config = _with_rate(config, began.get("learning_rate", "auto"))
    return config


def _with_rate(config: FinetuneConfig, rate: float | Literal["auto"]) -> FinetuneConfig:
    optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
    return dataclasses.replace(config, optimizer=optimizer)


def choose_rate(config: FinetuneConfig, start: Start) -> FinetuneConfig:
    """Replace the learning rate "auto" by the usual one of the model's size, and print it."""
    if config.optimizer.learning_rate != "auto":
        return config
    rate = usual_rate(start.architecture, from_scratch=not start.weights)
    print(f"learning rate {spelled(rate)}, the default for a model of this size")
    return _with_rate(config, rate)


def read_sets(config: FinetuneConfig, layout: Layout) -> Sets:
    """Read the files, and split off what is not given. Raises InputError for bad examples."""

    def read(path: str | None) -> list[Example]:
        return read_examples(path, layout, config.columns) if path else []

    given, valid, test = read(config.train), read(config.valid), read(config.test)
    shares = (
        0.0 if config.valid or config.folds else config.valid_share,
        0.0 if config.valid or config.test else config.test_share,
    )
    train, own_valid, own_test = split_examples(given, layout.task, shares, config.seed)
    parts = folds(train, layout.task, config.folds, config.seed) if config.folds else []
    return Sets(train, valid or own_valid, test or own_test, parts)


def define_task(config: FinetuneConfig, layout: Layout, sets: Sets) -> Task:
    """The task as the training examples define it; its rows have no greatest length yet.

    Raises InputError for a label of the other sets that training does not have, and for settings
    that the task has no use for.
    """
    if config.crf and not layout.task.labelling.has_units:
        raise InputError(
            f"crf is about labels that follow each other, but a {layout.task.name} has one answer "
            "for a text. Leave --crf out."
        )
    task = layout.task.from_examples(
        sets.train,
        text_columns=layout.text_columns,
        label_column=layout.label_column,
        label_separator=config.columns.label_separator,
        long_texts=config.long_texts,
        max_length=WHOLE,
        crf=config.crf,
    )
    names = [name for name in task.objective.vector_settings if name != "pieces"]
    settings = {name: getattr(config.vectors, name) for name in names}
    task = task.objective.with_vector_settings(**settings)
    if config.long_texts != "head" and (fixed := task.labelling.why_long_texts_fixed()):
        raise InputError(
            f"long_texts is {config.long_texts}, but of a {task.name} {fixed} Leave it out."
        )
    for example in (*sets.valid, *sets.test):
        task.labelling.target(example)
    check_loss(task, config.loss)
    return task


def choose_epochs(config: FinetuneConfig, task: Task, sets: Sets) -> FinetuneConfig:
    """Replace `epochs="auto"` by a number, and print it."""
    if config.epochs != "auto":
        return config
    rate = float(config.optimizer.learning_rate)
    batches = -(-len(sets.train) * task.labelling.rows_per_example // config.batch_size)
    steps = max(1, batches // config.optimizer.accumulate)
    epochs = MOST_EPOCHS if config.from_scratch else usual_epochs(rate, steps)
    why = f": {len(sets.train):,} examples are many at a learning rate of {spelled(rate)}"
    print(f"epochs {epochs}{why if epochs < MOST_EPOCHS else ''}")
    return dataclasses.replace(config, epochs=epochs)


def check_steps(config: FinetuneConfig, task: Task, sets: Sets) -> None:
    """Raise InputError where all batches together make no step."""
    rows = len(sets.train) * task.labelling.rows_per_example
    batches = int(config.epochs) * -(-rows // config.batch_size)
    if batches < config.optimizer.accumulate:
        raise InputError(
            f"accumulate is {config.optimizer.accumulate}, but the run has only {batches} batches. "
            "Lower --accumulate, or give more --epochs."
        )


def make_start(config: FinetuneConfig, task: type[Task]) -> Start:
    """Read the checkpoint; what it learned to write with, a mask, is left aside, and that is said.

    Raises InputError where there is none, or none with a vocabulary.
    """
    changes: dict[str, Any] = {}
    if config.dropout is not None:
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        changes |= dict.fromkeys(names, config.dropout)
    if config.pooling and config.pooling not in task.objective.poolings:
        raise InputError(
            f"pooling is {config.pooling}, but a {task.name} is read from "
            f"{' or '.join(task.objective.poolings)}. Give one of these, or leave --pooling out."
        )
    with _heads_unsaid(), OpenedSource(config.checkpoint) as source:
        pooling = config.pooling or task.objective.choose_pooling(source.checkpoint(), source)
        encoder = task.objective.source_class().from_source(source, pooling=pooling, **changes)
    if config.pooling is None and task.texts_apart and len(task.objective.poolings) > 1:
        print(f"vectors are {POOLINGS[pooling]}")
    if encoder.tokenizer is None:
        raise InputError(missing_vocabulary(str(config.checkpoint)))
    architecture = encoder.config
    if task.writes:
        architecture = architecture.replace(attention_type="unilm")
    elif architecture.attention_type in ("causal", "unilm"):
        # By its own mask the first token of all, which an answer is read from, sees no other text.
        architecture = architecture.replace(attention_type="bidirectional")
        print(f"{config.checkpoint} learned to write; here each token sees the whole text")
    weights = {} if config.from_scratch else encoder.named_variables()
    return Start(
        architecture,
        {name: keras.ops.convert_to_numpy(variable) for name, variable in weights.items()},
        encoder.tokenizer,
        config.precision,
    )


@contextmanager
def _heads_unsaid() -> Iterator[None]:
    """Do not warn that a checkpoint's heads are left aside: a new head in their place is meant."""

    def is_else(record: logging.LogRecord) -> bool:
        return "left unused by" not in record.getMessage()

    logger = logging.getLogger(PretrainedModel.__module__)
    logger.addFilter(is_else)
    try:
        yield
    finally:
        logger.removeFilter(is_else)


def choose_length(config: FinetuneConfig, task: Task, sets: Sets, start: Start) -> int:
    """Most tokens of a row, as asked or by the training texts' lengths; say so.

    Raises InputError for more than a model with learned positions has.
    """
    lengths = task.labelling.encode(sets.train, start.tokenizer).lengths
    if config.max_length == "auto":
        chosen = pick_max_length(lengths, task.labelling.default_max_length)
        if start.architecture.position_embedding_type == "learned":
            chosen = min(chosen, start.architecture.max_position_embeddings)
    else:
        chosen = int(config.max_length)
        start.architecture.check_length(chosen, "max_length")
    print(
        f"device: {device_in_words()}\n"
        f"{len(sets.train):,} examples to train on, {len(sets.valid):,} to choose by, "
        f"{len(sets.test):,} to judge by\n"
        f"rows of at most {chosen} tokens; {np.mean(lengths > chosen):.1%} of the training texts "
        f"are longer ({task.long_texts})"
    )
    return chosen


def choose_metric(config: FinetuneConfig, task: Task, sets: Sets) -> Metric:
    """The metric that the best weights are kept by: as asked, or the first that can be computed.

    Raises InputError for one that the task does not have, and for one that the labels of the
    validation set, or of a fold, cannot give.
    """
    known = {metric.name: metric for metric in task.metrics.usable()}
    if config.metric is not None and config.metric not in known:
        raise InputError(
            f"a {task.name} has no metric {config.metric!r}. It has {', '.join(known)}."
        )
    wanted = config.metric or next(iter(known))
    undefined: dict[str, str] = {}
    for examples in (sets.valid, *(held_out for _, held_out in sets.folds)):
        if examples:
            undefined |= task.metrics.why_undefined(labels_of(examples))
    if wanted not in undefined:
        return known[wanted]
    others = [name for name in known if name not in undefined]
    problem = f"{wanted} cannot be computed on the validation set, because {undefined[wanted]}."
    if config.metric or not others:
        instead = f", or --metric {others[0]}" if others else ""
        raise InputError(f"{problem} Give another --valid{instead}.")
    print(f"{problem} The best weights are kept by {others[0]}.")
    return known[others[0]]
