"""The body of `pretrain`: corpus → rows → batches of an objective → model → run folder.

OUTPUT/settings.yaml   every setting; usable as --config
OUTPUT/rows/           what `prepare` makes of --corpus; rows-512/, … for stages of several lengths
OUTPUT/initial/        with --extend-vocab, what --init-from has become
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/model/          the model at the last checkpoint, in our own format
OUTPUT/best/           the model at the best evaluation since rows have their length, likewise
OUTPUT/metrics.jsonl, evaluations.jsonl, tensorboard/, loss.png
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras

from roformer_tf.checkpoints.huggingface import MODEL_CARD
from roformer_tf.corpus.batches import held_out_batches, held_out_sample, pretraining_batches
from roformer_tf.corpus.objectives import make_objective
from roformer_tf.corpus.preparation import prepare_with
from roformer_tf.corpus.shards import MANIFEST, PreparedRows, read_manifest
from roformer_tf.errors import TRY_AGAIN, DivergedError, InputError, TerminatedError
from roformer_tf.files import locked
from roformer_tf.kernels.devices import device_in_words
from roformer_tf.kernels.forms import attention_by, attention_form
from roformer_tf.pretraining.card import model_card
from roformer_tf.pretraining.evaluation import TokenMetrics, evaluate, predicts
from roformer_tf.pretraining.flops import stage_flops
from roformer_tf.pretraining.initialization import extend_vocabulary, initializer
from roformer_tf.pretraining.losses import MaskedTokenLoss
from roformer_tf.pretraining.settings import (
    InitializationConfig,
    PretrainConfig,
    may_change,
    with_rows_settled,
)
from roformer_tf.pretraining.stages import Stage, rows_before
from roformer_tf.pretraining.train_step import PretrainingModel
from roformer_tf.runs.callbacks import (
    MetricsFile,
    PeriodicCallback,
    StepLog,
    Termination,
)
from roformer_tf.runs.checkpointing import (
    CheckpointWriter,
    RunState,
    checkpoints,
    publish,
    resume,
    take_snapshot,
)
from roformer_tf.runs.comparison import best_evaluation
from roformer_tf.runs.devices import choose_jit
from roformer_tf.runs.distribution import (
    ProcessGroup,
    exit_without_shutdown,
    join,
    peak_of_devices,
    replicas,
)
from roformer_tf.runs.feeding import fed, prefetched
from roformer_tf.runs.optimizers.adamw import ema_weights, swap_ema_weights
from roformer_tf.runs.optimizers.factory import make_optimizer
from roformer_tf.runs.plots import plot_loss
from roformer_tf.runs.run_files import (
    BEST,
    CHECKPOINTS,
    EVALUATIONS_FILE,
    METRICS_FILE,
    MODEL,
    check_output,
    plain,
    read_metrics,
    read_settings,
    settle_precision,
    tidy,
    write_settings,
)
from roformer_tf.runs.tracking import Track, check_tracking, tracked
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer


@dataclass(frozen=True)
class PretrainingRun:
    """What the stages of a run share."""

    config: PretrainConfig
    stages: Sequence[Stage]
    group: ProcessGroup
    folders: Mapping[int, Path]
    """Prepared rows by their length."""
    fingerprint: str
    """Of all of them."""
    model: PretrainingModel
    tokenizer: RoFormerTokenizer
    termination: Termination

    @property
    def output(self) -> Path:
        """The run's folder."""
        return Path(self.config.output)


def pretrain(config: PretrainConfig) -> None:
    """Pretrain a language model, masked or causal, from scratch or from a checkpoint.

    Raises InputError for what it is given, DivergedError for a loss that explodes, and, told to
    end by SIGTERM, TerminatedError once the step at hand is saved.
    """
    group = join(config.hardware)
    with (
        Termination() as termination,
        _silent(not group.first),
        attention_by(config.hardware.attention_form),
        group.reporting_failure(),
        contextlib.ExitStack() as held,
    ):
        termination.any_process = group.any
        lock = locked(config.output)
        group.run_on_first(lambda: held.enter_context(lock))  # one for all of a run
        _pretrain(config, group, termination)


def _pretrain(config: PretrainConfig, group: ProcessGroup, termination: Termination) -> None:
    output = Path(config.output)
    config = settle_precision(config)
    group.check_equal(config.precision == "float32", "the precision; name one by --precision")
    config = with_rows_settled(config, read_settings(output))
    check_output(config, may_change(config))
    check_tracking(config.wandb)
    keras.utils.set_random_seed(config.seed)
    stages = config.plan()
    _check_stages(stages, config.length if config.rows else None)
    initialization, vocabulary = _with_extended_vocabulary(config, group)
    if any(checkpoints(output / CHECKPOINTS)):  # then they are read, not counted
        initialization = dataclasses.replace(initialization, embeddings="random")
    longest = max(stage.length for stage in stages)
    initialize, given = initializer(  # what is wrong with it is said before the preparation
        *(initialization, config.rows or config.vocab, config.precision, longest),
        *(config.tokenization, config.lower_case),
    )
    folders = _prepared(config, stages, vocabulary, given, group)
    tokenizer = RoFormerTokenizer.from_pretrained(folders[stages[0].length])
    model = initialize(tokenizer, PreparedRows.open(folders[stages[0].length]))
    _check_model_parallel(model.config, config.hardware.model_parallel)
    model.tokenizer = tokenizer  # to be saved beside it
    model.encoder.rematerialize = config.rematerialize
    fingerprint = " ".join(read_manifest(folder)["fingerprint"] for folder in folders.values())
    trained = PretrainingModel(model, config.stepping)
    _run(
        PretrainingRun(config, stages, group, folders, fingerprint, trained, tokenizer, termination)
    )


def _run(run: PretrainingRun) -> None:
    """Go through the stages, from where the last checkpoint stands."""
    config, output, stages = run.config, run.output, run.stages
    trained, group = run.model, run.group
    _compile(run, compiled := stages[0])
    start, checkpoint = resume(output / CHECKPOINTS, trained, run.fingerprint)
    group.check_equal(start, "the step to continue from")
    if checkpoint is not None:
        swap_ema_weights(trained)  # saved in each other's places
    if group.first:
        if checkpoint is not None:
            _publish(output, checkpoint)  # unless it was killed before it did
        tidy(output)
    if start >= stages[-1].stop:
        print(f"the run is finished: {start:,} steps. Its model: {output / MODEL}")
        return
    if group.first:
        write_settings(config)
    _describe(run)
    with tracked(config.wandb if group.first else None, output, plain(config)) as track:
        for stage in stages:
            if start >= stage.stop:
                continue
            if stage is not compiled:
                _compile(run, compiled := stage)
            try:
                _train(run, stage, start, track)
            except DivergedError as error:
                raise DivergedError(_diverged(config, error)) from None
            start = stage.stop
    print(f"the model is in {output / MODEL}, its loss drawn in {output / 'loss.png'}")


def _train(run: PretrainingRun, stage: Stage, start: int, track: Track) -> None:
    """Train from step `start` to the end of its stage, evaluating and saving on the way."""
    config, output, group, model = run.config, run.output, run.group, run.model
    rows, held_out, corpora = _batches(run, stage, start)
    judging = group.any(predicts(held_out))
    if len(run.stages) > 1:
        number = run.stages.index(stage) + 1
        print(
            f"stage {number} of {len(run.stages)}, to step {stage.stop:,}: batches of "
            f"{stage.batch_size} rows of {stage.length}"
        )
    if start == stage.start:
        model.forget_usual_loss()
    if corpora and not judging:
        print(
            f"nothing is evaluated: the words of all {sum(corpora.values()):,} held-out rows are "
            "too long to be masked. To hold out more, prepare with a larger --held-out."
        )
    span: dict[str, Any] = {"start": start, "last": stage.stop}
    files: dict[str, Any] = {"resumed_at": start, "writing": group.first, "also": track}
    metrics = TokenMetrics(model.model)
    board = output / "tensorboard"
    with (
        MetricsFile(output / METRICS_FILE, tensorboard=board / "training", **files) as lines,
        MetricsFile(
            output / EVALUATIONS_FILE, tensorboard=board / "held_out", **files
        ) as evaluations,
        CheckpointWriter(
            output / CHECKPOINTS,
            model,
            config.keep_checkpoints,
            lambda saved: _publish(output, saved),
        ) as writer,
        StepLog(
            lines,
            every=config.log_every,
            tokens_per_step=stage.batch_size * stage.length,
            uniform_loss=math.log(model.config.vocab_size),
            max_skipped=config.stepping.max_skipped,
            quiet=not group.first,
            flops_per_step=stage_flops(config, stage, model.config),
            peak=peak_of_devices(config.hardware),
            **span,
        ) as log,
    ):

        def test(step: int) -> None:
            with ema_weights(model):
                result = evaluate(metrics, held_out, corpora)
            log.check(step, "the held-out loss", result.loss)
            evaluations.write({"step": step, "length": stage.length} | result.line())
            log.say(f"step {step:,}: {result}")

        def draw(step: int) -> None:
            if group.first:
                curve = [*read_metrics(lines.path), *read_metrics(evaluations.path)]
                plot_loss(curve, output / "loss.png", title=output.name)

        def save(step: int) -> None:
            with ema_weights(model):  # to be published; the last weights are those of the optimizer
                snapshot = take_snapshot(RunState(step, run.fingerprint), model)
            if group.first:
                writer.write(snapshot)

        if start == 0 and judging:
            test(0)
        rhythm: dict[str, Any] = {"every": config.save_every, "log": log, **span}
        drawing = PeriodicCallback(draw, seconds_apart=30, **rhythm)  # takes half a second
        with _explained(run, stage):
            model.fit(
                fed(prefetched(rows), static_shapes=True),
                steps_per_epoch=stage.stop - start,
                shuffle=False,  # the batches are in their order already
                callbacks=[
                    log,
                    *([PeriodicCallback(test, **rhythm)] if judging else []),
                    drawing,
                    PeriodicCallback(
                        save, also=run.termination.received, **rhythm
                    ),  # the step is done
                    run.termination,
                ],
                verbose=0,
            )
    run.termination.training = False
    if run.termination.stopped:
        where = output / CHECKPOINTS  # others may be here before the first process has written
        saved = next(checkpoints(where)) if group.first else f"by the first process in {where}"
        name = run.termination.signal
        raise TerminatedError(f"told to end ({name}), saved {saved}. The same command continues.")


def _batches(run: PretrainingRun, stage: Stage, start: int) -> tuple[Any, Any, dict[str, int]]:
    """Training batches from step `start` on, and the held-out ones; of this process' part.

    The third: how many of the held-out rows, which come by corpus, are of each.
    """
    config, folder = run.config, run.folders[stage.length]
    process, processes = run.group.part
    objective = make_objective(config.objective, run.tokenizer, config.masking)
    shared: dict[str, Any] = {
        "seed": config.seed,
        "objective": objective,
        "process": process,
        "processes": processes,
    }
    used = rows_before(run.stages, stage) + (start - stage.start) * stage.batch_size
    rows = pretraining_batches(
        PreparedRows.open(folder),
        batch_size=stage.batch_size,
        mixing=config.mixing,
        start_row=used,
        **shared,
    )
    size = stage.batch_size // stage.accumulate  # what fits into memory
    size = objective.rows_to_evaluate(size, stage.length, replicas())
    there = PreparedRows.open(folder, "held_out")
    sample = held_out_sample(there.corpora, config.evaluation_rows)
    numbers = [number for own in sample.values() for number in own.tolist()]
    held_out = held_out_batches(there, batch_size=size, numbers=numbers, **shared)
    corpora = {name: len(own) for name, own in sample.items()}
    return rows.map(with_labels), held_out, corpora


def with_labels(batch: tuple[dict[str, Any], Any, Any]) -> tuple[dict[str, Any], Any, Any]:
    """Let the model see a batch's labels, so that it gives losses instead of logits."""
    inputs, labels, weights = batch
    return inputs | {"labels": labels}, labels, weights


def _compile(run: PretrainingRun, stage: Stage) -> None:
    """Compile the model for a stage; what optimizer and metrics remember goes over to it."""
    model, config = run.model, run.config
    settings = config.optimizer_of(stage)
    begin, steps = stage.start, stage.steps
    if config.one_schedule:
        begin, steps = 0, run.stages[-1].stop
    optimizer = make_optimizer(
        settings, model.trainable_variables, steps, model.model.compute_dtype, begin
    )
    before = []
    if model.compiled:
        before = [keras.ops.copy(v) for v in (*model.optimizer.variables, *model.metrics_variables)]
    model.step_config = dataclasses.replace(config.stepping, accumulate=stage.accumulate)
    model.compile(optimizer, MaskedTokenLoss(), jit_compile=choose_jit())
    if before:
        after = (*optimizer.variables, *model.metrics_variables)
        for variable, value in zip(after, before, strict=True):
            variable.assign(value)


def _publish(output: Path, checkpoint: Path) -> None:
    """Make a checkpoint's model the run's, and its best if no comparable evaluation was better."""
    step = int(checkpoint.name.removeprefix("step-"))
    lines = [line for line in read_metrics(output / EVALUATIONS_FILE) if 0 < line["step"] <= step]
    here: dict[str, Any] = next((line for line in reversed(lines) if line["step"] == step), {})
    cards = {}
    if not (checkpoint / MODEL / MODEL_CARD).exists():  # a RoFormerV2 has one that must stand
        cards[MODEL_CARD] = model_card(read_settings(output), step, here)
    publish(checkpoint / MODEL, output / MODEL, cards)
    best = best_evaluation(lines)
    if best is not None and best[0] == step:
        publish(checkpoint / MODEL, output / BEST, cards)


def _with_extended_vocabulary(
    config: PretrainConfig, group: ProcessGroup
) -> tuple[InitializationConfig, Path | None]:
    """Where the weights come from, and their vocabulary if --extend-vocab has made one."""
    if not (config.init_from and config.extend_vocab):
        return config, None
    folder = Path(config.output, "initial")
    source, words = config.init_from, config.extend_vocab
    group.run_on_first(lambda: extend_vocabulary(source, words, folder), folder)
    return dataclasses.replace(config, init_from=str(folder), extend_vocab=None), folder


def _prepared(
    config: PretrainConfig,
    stages: Sequence[Stage],
    vocabulary: Path | None,
    tokenizer: RoFormerTokenizer | None,
    group: ProcessGroup,
) -> dict[int, Path]:
    """The folders of rows by length, made first if need be; one process makes them for all.

    `vocabulary`: where theirs lies, if the settings do not say; `tokenizer`: theirs, if it is read.
    """
    lengths = list(dict.fromkeys(stage.length for stage in stages))
    if config.rows:
        return {lengths[0]: Path(config.rows)}
    folders: dict[int, Path] = {}
    for length in lengths:
        name = "rows" if len(lengths) == 1 else f"rows-{length}"
        folder = folders[length] = Path(config.output, name)
        preparation = config.preparation(length, folder, vocabulary)
        group.run_on_first(partial(prepare_with, preparation, tokenizer), folder / MANIFEST)
        if config.vocab_size:  # built once
            vocabulary = folders[lengths[0]]
    return folders


def _check_stages(stages: Sequence[Stage], length: int | None) -> None:
    """Raise InputError for batches that cannot be split, and rows that are not there.

    `length`: of rows that are prepared already.
    """
    for number, stage in enumerate(stages, start=1):
        which = f"stage {number}: " if len(stages) > 1 else ""
        parts = stage.accumulate * replicas()
        if stage.batch_size % parts:
            raise InputError(
                f"{which}batches of {stage.batch_size} rows cannot be split over {replicas()} "
                f"devices in {stage.accumulate} pieces: give a batch size that is a multiple of "
                f"{parts}."
            )
        if length not in (None, stage.length):
            raise InputError(
                f"stage {number} has rows of {stage.length}, but --rows holds rows of {length}. "
                "Give --corpus, which is prepared for every length."
            )


def _check_model_parallel(architecture: Any, model_parallel: int) -> None:
    """Raise InputError for a model that cannot be split among so many devices."""
    names = ("num_attention_heads", "intermediate_size", "embedding_size")
    odd = [name for name in names if getattr(architecture, name) % model_parallel]
    if odd:
        raise InputError(
            f"{odd[0]} is {getattr(architecture, odd[0])}, which {model_parallel} devices cannot "
            "share. Give another --model-parallel."
        )


@contextlib.contextmanager
def _silent(silent: bool) -> Iterator[None]:
    """Print nothing: another process speaks."""
    if not silent:
        yield
        return
    with (
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        yield


@contextlib.contextmanager
def _explained(run: PretrainingRun, stage: Stage) -> Iterator[None]:
    """Turn what a backend raises for a shard that is gone, or a dead process, into a message."""
    try:
        yield
    except DivergedError:
        raise
    except Exception as error:
        PreparedRows.open(run.folders[stage.length])  # raises where a shard is not whole any more
        if run.group.count > 1 and not isinstance(error, OSError):
            saved = next(checkpoints(run.output / CHECKPOINTS), "nothing yet")
            reason = str(error).strip().splitlines()[0][:200]
            exit_without_shutdown(TRY_AGAIN)
            raise TerminatedError(
                f"lost another process ({reason}). Saved: {saved}. The same command continues."
            ) from None
        raise


def _describe(run: PretrainingRun) -> None:
    """Say what is trained on what."""
    shape = run.model.config
    print(
        f"model: {shape.num_hidden_layers} layers of {shape.hidden_size}, "
        f"{shape.num_attention_heads} heads, vocabulary {shape.vocab_size:,}: "
        f"{run.model.model.count_params():,} parameters, {run.model.dtype_policy.name}"
    )
    print(f"device: {device_in_words()}{_attention(run.model)}")
    for length, folder in run.folders.items():
        rows, held_out = (len(PreparedRows.open(folder, x)) for x in ("train", "held_out"))
        used = read_manifest(folder)["utilization"]
        print(
            f"rows: {rows:,} to train on, {held_out:,} held out, {length} tokens each, "
            f"{used:.1%} of the positions used"
        )
    if replicas() > 1 or run.group.count > 1:
        print(
            f"batches are split over {replicas()} copies of the model, each on "
            f"{run.config.hardware.model_parallel} devices, in {run.group.count} processes"
        )


def _attention(model: PretrainingModel) -> str:
    """How attention is computed, where there is a choice."""
    form = attention_form()
    if keras.backend.backend() != "jax" or device_in_words().startswith("the processor"):
        return ""
    if form != "plain" and model.compute_dtype == "float32":
        return "; attention plain, because its kernels take no float32"
    if form != "plain" and model.config.attention_probs_dropout_prob:
        return "; attention plain, because its kernels have no dropout: give --attention-dropout 0"
    return f"; attention {form}"


def _diverged(config: PretrainConfig, error: DivergedError) -> str:
    """What happened, what is left, and what to do."""
    advice = "Start again under another --output with a lower --learning-rate or a longer --warmup"
    saved = next(checkpoints(Path(config.output, CHECKPOINTS)), None)
    if saved is None:
        return f"training stopped: {error} {advice}."
    return (
        f"training stopped: {error} The last good checkpoint is {saved}. "
        f"{advice}, from there with --init-from {saved / MODEL}."
    )
