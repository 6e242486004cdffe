"""The body of `finetune`: labelled examples → a model that predicts, and a report on it.

OUTPUT/settings.yaml   every setting; usable as --config
OUTPUT/model/          the best weights, the tokenizer, task.json, and README.md, the model card;
                       lexical.npz, if TF-IDF is combined with the model
OUTPUT/report.md, report.html, report.json, predictions.tsv
OUTPUT/label_issues.tsv  examples whose label is probably wrong, if any; .xlsx where --train is one
OUTPUT/metrics.jsonl, evaluations.jsonl, tensorboard/, checkpoints/
OUTPUT/trials/NAME/    the same for each training, if there are several (seeds, folds, a
                       sweep, a comparison without the teacher)
OUTPUT/adapted/        with --adapt, the run that continued the checkpoint's pretraining
OUTPUT/export/         the formats of --export
OUTPUT/train.jsonl     from Python, examples that are in no file; valid.jsonl and test.jsonl, too
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import keras
import numpy as np

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.config import dropout_changes
from roformer_tf.errors import DivergedError, InputError, check_number
from roformer_tf.export.command import export
from roformer_tf.export.formats import check_export, check_model
from roformer_tf.files import locked
from roformer_tf.finetuning.first_stage import NEGATIVES, searched
from roformer_tf.finetuning.method import OF_BOTH, settle_method, training_flags, with_method
from roformer_tf.finetuning.rates import USUAL_EPOCHS, default_epochs, default_rate, spelled
from roformer_tf.finetuning.report.analysis import analyse
from roformer_tf.finetuning.report.figures import window_notes
from roformer_tf.finetuning.report.pages import model_card, write_report
from roformer_tf.finetuning.results import Results, print_summary
from roformer_tf.finetuning.search import Search, Sets
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.teacher import read_unlabelled
from roformer_tf.finetuning.trainer import InitialState, check_loss
from roformer_tf.inference.embed import DESCRIPTIONS
from roformer_tf.inference.text_files import Texts
from roformer_tf.kernels.accelerators import device_in_words
from roformer_tf.labelled.encoding import pick_max_length
from roformer_tf.labelled.examples import Example, labels_of
from roformer_tf.labelled.reading import Layout, find_layout, read_examples
from roformer_tf.labelled.splits import folds, split_examples
from roformer_tf.tasks.base import Task
from roformer_tf.tasks.metrics import Metric, scores_text
from roformer_tf.tasks.table import TASKS
from roformer_tf.terminal import printable, say
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, fitting_tokenizer
from roformer_tf.training import run_files
from roformer_tf.translation import Message, Translator, choose_language, terminal_language

# Settings that may differ when a run is resumed: they change no training, or the examples, which
# are compared, show a difference. Without lexical features another training may be the best one.
# With --valid, --test may differ, too: no part of --train depends on it, and the report then has
# the figures of the new test set. In reranking the documents of a test set are searched, too, for
# the queries of the validation set.
MAY_CHANGE = (
    *("output", "save_every", "log_every", "compare_without_teacher"),
    *("export", "language", "baseline", "lexical_features", "keep_useless", "first_line", "strict"),
)

# A maximum length that no text reaches, to measure how long the texts are.
UNLIMITED = 1 << 30


# Settings and training texts → the folder of the checkpoint, adapted to the texts.
Adapt: TypeAlias = Callable[[FinetuneConfig, Iterable[str]], Path]


def finetune(
    config: FinetuneConfig, adapt: Adapt, files: Mapping[Path, str] = MappingProxyType({})
) -> None:
    """Fine-tune a checkpoint on labelled texts, and report on the result.

    `adapt` is called if the settings ask for it. files: the content of files of examples in the
    run's folder, which are written first.
    """
    with locked(config.output), run_files.stored(files, Path(config.output)):
        try:
            _finetune(config, adapt)
        except DivergedError as error:
            raise DivergedError(
                f"training stopped: {error} Start again under another --output with a lower "
                "--learning-rate or a longer --warmup."
            ) from None


def _finetune(config: FinetuneConfig, adapt: Adapt) -> None:
    output = Path(config.output)
    config = settle_auto(run_files.settle_precision(config))
    layout = find_layout(config.train, config.columns, config.task, TASKS)
    may_change_test = config.valid and not layout.task.reranks
    run_files.check_output(config, (*MAY_CHANGE, "test") if may_change_test else MAY_CHANGE)
    for to in config.export:  # before hours of training
        check_export(to, output / "export" / to)
    say(layout.report)
    check_uses(layout.task, config)
    sets = read_sets(config, layout)
    config = settle_method(config, layout.task, sets.train)
    # With "vectors", and while "auto" is open, all examples stay together: without --valid the
    # validation is a cross-validation.
    if config.method in ("full", "cloze") or config.folds:
        sets = split_sets(config, layout, sets)
    if layout.task.reranks:
        sets = searched(sets, config.vectors.hard_negatives or NEGATIVES, config.first_stage)
    task = define_task(config, layout, sets)
    task, sets = name_labels(config.label_names, task, sets)
    is_taught = config.loss.teacher is not None and not task.generates
    if is_taught:
        sets = dataclasses.replace(sets, unlabelled=read_unlabelled(config, task))
    elif config.unlabelled and config.adapt == "no":
        raise InputError(
            f"the task {task.name} trains on no --unlabelled texts except with --adapt. Remove "
            "--unlabelled, or give --adapt yes."
        )
    for line in task.labelling.notes(sets.train):
        say(line)
    keras.utils.set_random_seed(config.seed)  # for heads that the checkpoint lacks
    initial = read_initial_state(config, type(task))
    for to in config.export:  # before hours of training, too
        check_model(to, initial.architecture, task, "the model")
    config = choose_rate(config, initial, task.objective.trains_new_head)
    config = choose_epochs(config, task, sets)
    check_steps(config, task, sets)
    task = dataclasses.replace(task, max_length=choose_length(config, task, sets, initial))
    check_windows(task, sets, initial.tokenizer)
    search = Search(config, sets, initial, task, choose_metric(config, task, sets))
    if is_taught:
        search = search.with_teacher()
    run_files.tidy(output)
    run_files.write_settings(config)
    if config.adapt != "no":
        search = adapted_search(search, adapt)
    search = with_method(search)
    run_files.write_settings(search.config)
    if config.method == "auto" and search.config.method == "full" and not config.valid:
        # Now the examples are split, first of all, as when the command is repeated.
        _finetune(search.config, adapt)
        return
    results = Results(search, search.run())
    if config.compare_without_teacher:
        untaught = search.without_teacher()
        results = Results(search, results.trials, Results(untaught, untaught.run()))
    _write_results(search.config, results)


def _write_results(config: FinetuneConfig, results: Results) -> None:
    """Write model, model card, predictions, report and exports."""
    output, search = Path(config.output), results.search
    if (why := results.best.task.why_useless) and not config.keep_useless:
        raise InputError(f"no model is written: {why}. --keep-useless writes it all the same.")
    report = analyse(results.for_report(run_files.plain(config), config.baseline))
    issues = results.label_issues(report)
    if issues is not None:
        issues.write(output)
        report["label_issues"] = issues.as_json()
    texts = (text for example in search.sets.train for text in example.texts)
    language = choose_language(config.language, texts)
    task = results.best.task
    architecture = task.decoding.described_in(search.initial.architecture)
    # With the learning rate and the seed of the training whose model is kept.
    own = report | {"settings": run_files.plain(results.best.trial.config)}
    results.save(model_card(own, task, language, architecture))
    write_report(output, report, language)
    print_summary(output, report)
    for to in config.export:
        export(output / "model", output / "export" / to, to)


def adapted_search(search: Search, adapt: Adapt) -> Search:
    """The trainings that begin with the adapted checkpoint, unless "auto" chooses the others."""
    config, sets = search.config, search.sets
    reader = search.task
    if len(reader.text_columns) > 1:  # any texts are good for pretraining, also single ones
        reader = Texts(text_columns=reader.text_columns[:1])
    examples = [*sets.train, *(sets.unlabelled or read_unlabelled(config, reader))]
    adapted = adapt(config, (text for example in examples for text in example.texts))
    with OpenedSource(str(adapted)) as source:
        arrays = source.checkpoint().arrays
        # Filling masks does not train the pooler of a sim model, which stays as it is.
        new = {name: np.asarray(arrays[name]) for name in search.initial.weights if name in arrays}
    initial = dataclasses.replace(search.initial, weights=search.initial.weights | new)
    if config.adapt == "yes":
        return dataclasses.replace(search, initial=initial)
    searches = {
        Message("not adapted"): dataclasses.replace(search, prefix="plain-"),
        Message("adapted"): dataclasses.replace(search, prefix="adapted-", initial=initial),
    }
    # Two whole trainings, in folders of their own, which a repeated command finds.
    results = {name: variant.first() for name, variant in searches.items()}
    best = max(results, key=lambda name: results[name].goodness)
    metric = search.metric.name
    say(
        "{metric} on the validation set: {values}. The checkpoint is used {best}.",
        metric=metric,
        values=scores_text({name: x.metrics["valid"][metric] for name, x in results.items()}),
        best=best,
    )
    return searches[best]


def settle_auto(config: FinetuneConfig) -> FinetuneConfig:
    """Replace "auto" by the values of a run that is resumed.

    The method of a new run is "full" if a setting of the training is given.
    Raises InputError for such a setting next to the method "vectors".
    """
    # A run's settings.yaml has numbers in place of these two.
    unused = [x for x in training_flags(config) if x not in ("--epochs", "--learning-rate")]
    if config.method == "vectors" and unused:
        raise InputError(
            f"--method vectors trains no weights of the encoder, so it does not use "
            f"{', '.join(unused)}. Omit that, or give --method full."
        )
    # Of a new run, this depends on which settings the user gave: before they are replaced.
    known: dict[str, Any] = {"method": "full" if training_flags(config, OF_BOTH) else "auto"}
    known |= run_files.settings_to_continue(Path(config.output))
    for name in ("method", "epochs"):
        if getattr(config, name) == "auto":
            config = dataclasses.replace(config, **{name: known.get(name, "auto")})
    if config.optimizer.learning_rate == "auto":
        config = _with_rate(config, known.get("learning_rate", "auto"))
    return config


def _with_rate(config: FinetuneConfig, rate: float | Literal["auto"]) -> FinetuneConfig:
    optimizer = dataclasses.replace(config.optimizer, learning_rate=rate)
    return dataclasses.replace(config, optimizer=optimizer)


def choose_rate(
    config: FinetuneConfig, initial: InitialState, new_head: bool = True
) -> FinetuneConfig:
    """Replace the learning rate "auto" by the default for the model's size, and print it."""
    if config.optimizer.learning_rate != "auto":
        return config
    rate = default_rate(initial.architecture, not initial.weights, new_head)
    if config.method != "vectors":
        say("learning rate {rate}, the default for a model of this size", rate=spelled(rate))
    return _with_rate(config, rate)


def check_uses(task: type[Task], config: FinetuneConfig) -> None:
    """Raise InputError for a setting that the task has no use for.

    Prints why "auto" tries no lexical features, if the task has them.
    """
    kind, lexical = task.labelling, config.lexical_features
    pools = task.decoding.graph_part in ("classifier", "pooled")
    # What settings are for, if they are set and the task is something else.
    useless = {
        "crf": config.crf and (kind.has_spans or not kind.has_units) and "sequences of labels",
        "label_prompts": config.label_prompts and not kind.has_spans and "entities (spans)",
        "label_names": config.label_names
        and not task.decoding.lists_labels
        and "labels of whole texts",
        "first_stage": config.first_stage and not task.reranks and "reranking documents",
        "pooling": config.pooling and not pools and "whole texts",
        "lexical_features": lexical == "yes" and not task.metrics.linear_model and "whole texts",
    }
    if config.compare_without_teacher and task.generates:  # the teacher replaces a loss
        useless["compare_without_teacher"] = "a loss that a teacher adds to"
    for field in dataclasses.fields(config.vectors):
        is_set = getattr(config.vectors, field.name) != field.default
        is_useless = is_set and field.name not in task.objective.vector_settings
        useless[field.name] = is_useless and "sentence vectors"
    for name, what in useless.items():
        if what:
            flag = name.replace("_", "-")
            raise InputError(f"{name} is for {what}, not for {task.name}. Remove --{flag}.")
    if task.metrics.linear_model and lexical == "auto" and config.export:
        say("no lexical features, because a model with them cannot be exported")


def read_sets(config: FinetuneConfig, layout: Layout) -> Sets:
    """Read the files, which may differ in their columns. Raises InputError for bad examples."""

    def read(path: str | None) -> list[Example]:
        if path is None:
            return []
        names = layout.text_columns, layout.label_column
        own = find_layout(path, config.columns, layout.task.name, TASKS, *names)
        say(own.report)
        return read_examples(path, own, config.columns)

    train = read_examples(config.train, layout, config.columns)
    return Sets(train, read(config.valid), read(config.test), [])


def split_sets(config: FinetuneConfig, layout: Layout, sets: Sets) -> Sets:
    """The sets, with those that have no file split off from the training examples."""
    # Who gives --valid has split the data already: no test set is taken from --train then.
    fractions = (
        0.0 if config.valid or config.folds else config.valid_share,
        0.0 if config.valid or config.test else config.test_share,
    )
    train, own_valid, own_test = split_examples(sets.train, layout.task, fractions, config.seed)
    parts = folds(train, layout.task, config.folds, config.seed) if config.folds else []
    return Sets(train, sets.valid or own_valid, sets.test or own_test, parts)


def name_labels(names: tuple[str, ...], task: Task, sets: Sets) -> tuple[Task, Sets]:
    """The task and the examples with these names of the labels, in the order of the labels.

    Without names they stay as they are. Raises InputError for another number of names.
    """
    if not names:
        return task, sets
    if len(names) != len(task.labels) or len(set(names)) < len(names):
        raise InputError(
            f"label_names has {len(set(names))} different names, but there are {len(task.labels)} "
            f"labels: {', '.join(task.labels)}. Give a name for each, in this order."
        )
    # The order of labels that are no numbers is easily mistaken.
    shown = ", ".join(f"{label} → {name}" for label, name in zip(task.labels, names, strict=True))
    say("names of the labels: {names}", names=printable(shown))
    task = dataclasses.replace(task, labels=tuple(names), label_values=task.labels)
    return task, sets.mapped(task.labelling.named, task.labelling.named)


def define_task(config: FinetuneConfig, layout: Layout, sets: Sets) -> Task:
    """The task as the training examples define it, still without a maximum length.

    Raises InputError for examples of several kinds, for a label of the other sets that training
    does not have, and for settings that the task has no use for.
    """
    task = layout.task_of(
        sets.train,
        config.columns,
        config.long_texts,
        max_length=UNLIMITED,
        crf=config.crf,
        **({"label_prompts": True} if config.label_prompts else {}),
        **({"pattern": config.pattern} if config.pattern else {}),
    )
    task = task.objective.with_vector_settings(config.vectors, config.loss.teacher)
    for example in (*sets.train, *sets.valid, *sets.test):
        task.labelling.target(example)
    check_loss(task, config.loss)
    return task


def _epoch_batches(config: FinetuneConfig, task: Task, examples: int) -> int:
    return -(-examples * task.labelling.rows_per_example // config.batch_size)


def choose_epochs(config: FinetuneConfig, task: Task, sets: Sets) -> FinetuneConfig:
    """Replace `epochs="auto"` by a number, and print it."""
    if config.epochs != "auto":
        return config
    rate = float(config.optimizer.learning_rate)
    number = len(sets.train) + len(sets.unlabelled)
    steps = max(1, _epoch_batches(config, task, number) // config.optimizer.accumulate)
    usual, few_steps = task.objective.epochs, task.objective.few_steps
    epochs = default_epochs(rate, steps, usual, few_steps, len(task.labels))
    if config.from_scratch:  # random weights do not overfit so soon
        epochs = max(epochs, USUAL_EPOCHS)
    if config.method != "vectors":
        say(
            "epochs {epochs}, the default for {number:,} examples at a learning rate of {rate}",
            epochs=epochs,
            number=number,
            rate=spelled(rate),
        )
    return dataclasses.replace(config, epochs=epochs)


def check_steps(config: FinetuneConfig, task: Task, sets: Sets) -> None:
    """Raise InputError if all batches of a training do not suffice for one step."""
    fewest = min(len(train) for train in (sets.train, *(train for train, _ in sets.folds)))
    batches = int(config.epochs) * _epoch_batches(config, task, fewest)
    if batches < config.optimizer.accumulate:
        raise InputError(
            f"accumulate is {config.optimizer.accumulate}, but the run has only {batches} batches. "
            "Lower --accumulate, or give more --epochs."
        )


def read_initial_state(config: FinetuneConfig, task: type[Task]) -> InitialState:
    """Read the checkpoint. A causal mask of its pretraining is not used, with a message.

    Raises InputError if there is no checkpoint, it has no vocabulary, or its vectors are shorter
    than `dimensions`.
    """
    dropout = task.objective.dropout if config.dropout is None else config.dropout
    if config.pooling and config.pooling not in task.objective.poolings:
        raise InputError(
            f"pooling is {config.pooling}, but the task {task.name} has "
            f"{' or '.join(task.objective.poolings)}. Give one of these, or remove --pooling."
        )
    with OpenedSource(config.checkpoint) as source:
        checkpoint = source.checkpoint()
        pooling = config.pooling or task.objective.choose_pooling(checkpoint, source)
        architecture = checkpoint.config.replace(pooling=pooling, **dropout_changes(dropout))
        kind, arrays = task.objective.source_class(), checkpoint.arrays
        encoder = kind.from_arrays(architecture, arrays, source.path, None)
        tokenizer = fitting_tokenizer(source, architecture)
    tokenizer.segments = architecture.type_vocab_size > 1  # whatever other trainings did
    tokenizer.vocabulary_text()  # raises an error if it could not be saved after training
    if config.pooling is None and task.separate_texts and len(task.objective.poolings) > 1:
        vectors = DESCRIPTIONS[pooling]
        say("{checkpoint} gives vectors, {vectors}", checkpoint=config.checkpoint, vectors=vectors)
    for size in config.vectors.dimensions:
        check_number("one of --dimensions", size, at_least=1, at_most=architecture.hidden_size)
    if task.generates:
        # The first text is read in both directions, the second is generated from left to right.
        architecture = architecture.replace(attention_type="unilm")
    elif architecture.attention_type in ("causal", "unilm"):
        # By its own mask the first token, which a prediction is read from, attends to no other.
        architecture = architecture.replace(attention_type="bidirectional")
        say(
            "{checkpoint} is a causal model; here each token attends to the whole text",
            checkpoint=config.checkpoint,
        )
    weights = {} if config.from_scratch else encoder.named_variables()
    return InitialState(
        architecture,
        {name: keras.ops.convert_to_numpy(variable) for name, variable in weights.items()},
        tokenizer,
        config.precision,
    )


def choose_length(config: FinetuneConfig, task: Task, sets: Sets, initial: InitialState) -> int:
    """Maximum length of a sequence, as set or by the training texts' lengths; print it.

    Raises InputError if the model has learned positions, and not so many, or no segment for second
    texts.
    """
    # The task's maximum length is `UNLIMITED` here, so nothing is cut.
    encoded = task.labelling.encode(sets.train, initial.tokenizer)
    if initial.architecture.type_vocab_size == 1 and any(map(np.any, encoded.segment_ids)):
        raise InputError(
            f"{config.checkpoint} has one segment (type_vocab_size 1), but the second text of a "
            f"{task.name} is in another one. Give a checkpoint with two."
        )
    if config.max_length == "auto":
        chosen = pick_max_length(encoded.lengths, task.labelling.default_max_length)
        if initial.architecture.position_embedding_type == "learned":
            chosen = min(chosen, initial.architecture.max_position_embeddings)
    else:
        chosen = int(config.max_length)
        initial.architecture.check_length(chosen, "max_length")
    say("device: {device}", device=device_in_words())
    say(
        "{train:,} examples for training, {valid:,} for validation, {test:,} for the test",
        train=len(sets.train),
        valid=len(sets.valid),
        test=len(sets.test),
    )
    say(
        "sequences of at most {length} tokens; {longer:.1%} of the training texts are longer",
        length=chosen,
        longer=np.mean(encoded.lengths > chosen),
    )
    return chosen


def check_windows(task: Task, sets: Sets, tokenizer: RoFormerTokenizer) -> None:
    """Print how many entities or answers of each set every window cuts.

    Raises InputError if those are all of the training set.
    """
    data: list[dict[str, Any]] = [
        {"name": name, "in_no_window": task.labelling.in_no_window(examples, tokenizer)}
        for name in ("train", "valid", "test")
        if (examples := getattr(sets, name))
    ]
    report = {"task": task.name, "max_length": task.max_length, "data": data}
    sentences = window_notes(report, Translator(terminal_language()))
    # data[0] is the training set, which has examples.
    if (lost := data[0]["in_no_window"]) and lost["number"] == lost["of"]:
        raise InputError(sentences[0])
    for sentence in sentences:
        say(sentence)


def choose_metric(config: FinetuneConfig, task: Task, sets: Sets) -> Metric:
    """The metric that selects the best weights: as set, or the first that can be computed.

    Raises InputError for one that the task does not have, and for one that the labels of the
    validation set, or of a fold, cannot give.
    """
    known = {metric.name: metric for metric in task.metrics.usable()}
    if config.metric is not None and config.metric not in known:
        raise InputError(
            f"the task {task.name} has no metric {config.metric!r}. It has {', '.join(known)}."
        )
    wanted = config.metric or next(iter(known))
    undefined: dict[str, str] = {}
    for examples in (sets.valid, *(held_out for _, held_out in sets.folds)):
        if examples:
            undefined |= task.metrics.why_undefined(labels_of(examples))
    if wanted not in undefined:
        return known[wanted]
    defined = [name for name in known if name not in undefined]
    problem = Message(
        "{metric} cannot be computed on the validation set, because {reason}.",
        metric=wanted,
        reason=undefined[wanted],
    )
    if config.metric or not defined:
        instead = f", or --metric {defined[0]}" if defined else ""
        raise InputError(f"{problem} Give another --valid{instead}.")
    say("{problem} The best weights are selected by {metric}.", problem=problem, metric=defined[0])
    return known[defined[0]]
