"""The body of `pretrain`: corpus → sequences → batches of an objective → model → run folder.

OUTPUT/settings.yaml   every setting; usable as --config
OUTPUT/rows/           prepared from --corpus; rows-512/, … for stages of several lengths
OUTPUT/checkpoints/    from which a killed run resumes
OUTPUT/model/          the model at the last checkpoint, in our own format
OUTPUT/best/           the model at the best evaluation at the current sequence length, likewise
OUTPUT/metrics.jsonl, evaluations.jsonl, tensorboard/, loss.png
"""

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keras

from roformer_tf.corpus.batches import epoch_rows
from roformer_tf.corpus.documents import find_files
from roformer_tf.corpus.preparation import prepare
from roformer_tf.corpus.shards import MANIFEST, PreparedRows, open_vocabulary, read_manifest
from roformer_tf.errors import DivergedError, InputError
from roformer_tf.files import locked
from roformer_tf.kernels.accelerators import device_in_words
from roformer_tf.kernels.forms import flashes
from roformer_tf.pretraining.initialization import new_architecture, new_model, read_checkpoint
from roformer_tf.pretraining.settings import (
    OF_PREPARATION,
    PretrainConfig,
    Stage,
    may_change,
    with_rows_settled,
)
from roformer_tf.pretraining.train_step import PretrainingModel
from roformer_tf.pretraining.training_loop import (
    PretrainingRun,
    compile_stage,
    publish_checkpoint,
    train_stage,
)
from roformer_tf.terminal import say
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.checkpointing import checkpoints, resume
from roformer_tf.training.devices import ProcessGroup, join, replicas
from roformer_tf.training.optimizers import swap_ema_weights
from roformer_tf.training.run_files import (
    CHECKPOINTS,
    MODEL,
    check_output,
    plain,
    settings_to_continue,
    settle_precision,
    tidy,
    tracked,
    write_settings,
)


def pretrain(config: PretrainConfig) -> None:
    """Pretrain a language model, masked or causal, from scratch or from a checkpoint.

    Raises InputError for bad settings or data, DivergedError for a loss that explodes, and
    TerminatedError after SIGTERM, once the current step is saved.
    """
    group = join(config.hardware)
    with group.reporting_failure(), contextlib.ExitStack() as held:
        if not group.first:  # only the first of several processes prints
            nowhere = held.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            held.enter_context(contextlib.redirect_stdout(nowhere))
        # One lock for all processes.
        group.run_on_first(lambda: held.enter_context(locked(config.output)))
        _pretrain(config, group)


def _pretrain(config: PretrainConfig, group: ProcessGroup) -> None:
    output = Path(config.output)
    config = settle_precision(config)
    group.check_equal(config.precision == "float32", "the precision; name one by --precision")
    config = with_rows_settled(config)
    check_output(config, may_change(config))
    keras.utils.set_random_seed(config.seed)
    stages = config.plan()
    _check_stages(stages, config.length if config.rows else None)
    longest = max(stage.length for stage in stages)
    model = tokenizer = None
    # Checked and read before the preparation, which may take hours: errors come first.
    if config.mixing.corpus_weights and not config.rows:
        # Only the names matter here: each corpus counts as one sequence.
        epoch_rows({file.corpus: 1 for file in find_files(config.corpus)}, config.mixing)
    if config.init_from:
        model, tokenizer = read_checkpoint(config, longest)
    else:
        architecture = new_architecture(config, longest)
    folders = _prepared(config, stages, tokenizer, group)
    first = folders[stages[0].length]
    tokenizer = open_vocabulary(first)
    if model is None:
        resumed = any(checkpoints(output / CHECKPOINTS))  # restores embeddings: do not count again
        embeddings = "random" if resumed else config.embeddings
        rows = PreparedRows.open(first)
        model = new_model(
            architecture, tokenizer, rows, config.precision, embeddings, config.objective
        )
    _check_model_parallel(model.config, config.hardware.model_parallel)
    model.tokenizer = tokenizer  # is saved with the model
    model.encoder.rematerialize = config.rematerialize
    # Of the data of all lengths: a checkpoint resumes only if none of them has changed.
    fingerprint = " ".join(read_manifest(folder)["fingerprint"] for folder in folders.values())
    trained = PretrainingModel(model, config.stepping)
    _run(PretrainingRun(config, stages, group, folders, fingerprint, trained))


def _run(run: PretrainingRun) -> None:
    """Train the stages that are not done yet, from the last checkpoint on."""
    config, output, stages = run.config, run.output, run.stages
    trained, group = run.model, run.group
    # Compiled before the checkpoint is restored: that needs the optimizer's variables.
    compile_stage(run, compiled := stages[0])
    start, checkpoint = resume(output / CHECKPOINTS, trained, run.fingerprint)
    group.check_equal(start, "the step to continue from")
    if checkpoint is not None:
        swap_ema_weights(trained)  # a checkpoint holds the two sets of weights swapped
    if group.first:
        if checkpoint is not None:
            publish_checkpoint(output, checkpoint)  # in case the run was killed before
        tidy(output)
    if start >= stages[-1].stop:
        say(
            "the run is finished: {steps:,} steps. Its model: {model}",
            steps=start,
            model=output / MODEL,
        )
        return
    if group.first:
        # A run that began with --corpus keeps it when it continues with --rows.
        began_with_corpus = bool(settings_to_continue(output).get("corpus"))
        kept = {"rows", *OF_PREPARATION} - {"output"} if config.rows and began_with_corpus else ()
        write_settings(config, kept)
    _describe(run)
    tracker = config.tracker if group.first else None
    with tracked(tracker, config.project, output, plain(config)) as track:
        for stage in stages:
            if start >= stage.stop:
                continue
            # Its optimizer gets a copy of the state, also of one from a checkpoint.
            if stage is not compiled:
                compile_stage(run, compiled := stage)
            try:
                train_stage(run, stage, start, track)
            except DivergedError as error:
                raise DivergedError(_diverged(config, error)) from None
            start = stage.stop
    say("model: {model}; plot of the loss: {plot}", model=output / MODEL, plot=output / "loss.png")


def _prepared(
    config: PretrainConfig,
    stages: Sequence[Stage],
    tokenizer: RoFormerTokenizer | None,
    group: ProcessGroup,
) -> dict[int, Path]:
    """The folders of prepared sequences by length. The first process prepares what is missing.

    `tokenizer`: that of the checkpoint to continue from.
    """
    lengths = list(dict.fromkeys(stage.length for stage in stages))
    if config.rows:
        # One length, as `_check_stages` has made sure.
        return {lengths[0]: Path(config.rows)}
    folders: dict[int, Path] = {}
    vocabulary = None
    for length in lengths:
        name = "rows" if len(lengths) == 1 else f"rows-{length}"
        folder = folders[length] = Path(config.output, name)
        preparation = config.preparation(length, folder, vocabulary)
        group.run_on_first(partial(prepare, preparation, tokenizer), folder / MANIFEST)
        if config.vocab_size:  # built once, for the first length
            vocabulary = folders[lengths[0]]
    return folders


def _check_stages(stages: Sequence[Stage], length: int | None) -> None:
    """Raise InputError for batches that cannot be split, and for another length than prepared.

    `length`: of the sequences in --rows.
    """
    for number, stage in enumerate(stages, start=1):
        which = f"stage {number}: " if len(stages) > 1 else ""
        parts = stage.accumulate * replicas()
        if stage.batch_size % parts:
            raise InputError(
                f"{which}batches of {stage.batch_size} sequences cannot be split over the devices "
                f"({replicas()}) and micro-batches ({stage.accumulate}): give a batch size that is "
                f"a multiple of {parts}."
            )
        if length not in (None, stage.length):
            raise InputError(
                f"stage {number} has length {stage.length}, but --rows holds sequences of "
                f"{length}. Give --corpus, which is prepared for every length."
            )


def _check_model_parallel(architecture: Any, model_parallel: int) -> None:
    """Raise InputError for a model that cannot be split over so many devices."""
    names = ("num_attention_heads", "intermediate_size", "embedding_size")
    indivisible = [name for name in names if getattr(architecture, name) % model_parallel]
    if indivisible:
        size = getattr(architecture, indivisible[0])
        raise InputError(
            f"{indivisible[0]} is {size}, which {model_parallel} devices cannot share. "
            "Give another --model-parallel."
        )


def _describe(run: PretrainingRun) -> None:
    """Print the model, the device and the data."""
    shape = run.model.config
    say(
        "model: {layers} layers of {hidden}, {heads} heads, vocabulary {vocabulary:,}: "
        "{parameters:,} parameters, {policy}",
        layers=shape.num_hidden_layers,
        hidden=shape.hidden_size,
        heads=shape.num_attention_heads,
        vocabulary=shape.vocab_size,
        parameters=run.model.model.count_params(),
        policy=run.model.dtype_policy.name,
    )
    say("device: {device}", device=f"{device_in_words()}{_attention(run.model)}")
    for length, folder in run.folders.items():
        counts = {name: split["rows"] for name, split in read_manifest(folder)["splits"].items()}
        needed = sum(stage.rows for stage in run.stages if stage.length == length)
        say(
            "sequences of {length} tokens: {train:,} for training, {held_out:,} held out; "
            "passes over the training set: {passes:,.1f}",
            length=length,
            passes=needed / counts["train"],
            **counts,
        )
    if replicas() > 1 or run.group.count > 1:
        say(
            "batches are split over the copies of the model: {copies}; devices of each: {devices}; "
            "processes: {processes}",
            copies=replicas(),
            devices=run.config.hardware.model_parallel,
            processes=run.group.count,
        )


def _attention(model: PretrainingModel) -> str:
    """How attention is computed, where there is a choice."""
    if not flashes():
        return ""
    if model.compute_dtype == "float32":
        return "; attention plain, because its kernel takes no float32"
    if model.config.attention_probs_dropout_prob:
        return "; attention plain, because its kernel has no dropout: give --attention-dropout 0"
    return "; attention by cuDNN"


def _diverged(config: PretrainConfig, error: DivergedError) -> str:
    """The error, the last checkpoint, and what to do."""
    advice = "Start again under another --output with a lower --learning-rate or a longer --warmup"
    saved = next(checkpoints(Path(config.output, CHECKPOINTS)), None)
    if saved is None:
        return f"training stopped: {error} {advice}."
    return (
        f"training stopped: {error} The last good checkpoint is {saved}. "
        f"{advice}, from there with --init-from {saved / MODEL}."
    )
