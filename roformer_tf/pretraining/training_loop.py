"""The training loop of `pretrain`: one stage after another, with evaluations and checkpoints."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import keras
import yaml

from roformer_tf.checkpoints.huggingface import MODEL_CARD
from roformer_tf.corpus.batches import held_out_batches, held_out_sample, pretraining_batches
from roformer_tf.corpus.objectives import make_objective, rows_of_next_tokens
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import (
    DivergedError,
    TerminatedError,
    handling_termination,
    is_out_of_memory,
)
from roformer_tf.pretraining.evaluation import TokenMetrics, evaluate, predicts
from roformer_tf.pretraining.settings import PretrainConfig, Stage, rows_before, stage_flops
from roformer_tf.pretraining.train_step import MaskedTokenLoss, PretrainingModel
from roformer_tf.templates import environment, markdown
from roformer_tf.terminal import say
from roformer_tf.training.checkpointing import (
    checkpoint_writer,
    checkpoints,
    publish,
    take_snapshot,
)
from roformer_tf.training.comparison import best_evaluation
from roformer_tf.training.devices import (
    ProcessGroup,
    choose_jit,
    exit_at_once,
    lost,
    peak_of_devices,
    replicas,
)
from roformer_tf.training.fitting import PeriodicCallback, StepLog, Termination, fed, prefetched
from roformer_tf.training.optimizers import ema_weights, make_optimizer
from roformer_tf.training.plots import plot_loss
from roformer_tf.training.run_files import (
    BEST,
    CHECKPOINTS,
    EVALUATIONS_FILE,
    METRICS_FILE,
    MODEL,
    Track,
    file_name,
    metrics_file,
    read_metrics,
    read_settings,
)

# The hub's pipeline tag for each training objective.
PIPELINES = {"masked": "fill-mask", "causal": "text-generation"}
SHOWN = ("init_from", "architecture", "tokenization", "objective", "length", "batch_size", "seed")


@dataclass(frozen=True)
class PretrainingRun:
    """Settings, data and model of a run, for all its stages."""

    config: PretrainConfig
    stages: Sequence[Stage]
    group: ProcessGroup
    # Prepared sequences by their length.
    folders: Mapping[int, Path]
    # Of all prepared data.
    fingerprint: str
    model: PretrainingModel

    @property
    def output(self) -> Path:
        """The run's folder."""
        return Path(self.config.output)

    def plot(self, step: int) -> None:
        """Draw the metrics up to this step, which takes half a second."""
        if self.group.first:
            files = (self.output / METRICS_FILE, self.output / EVALUATIONS_FILE)
            lines = [line for file in files for line in read_metrics(file)]
            plot_loss(lines, self.output / "loss.png", title=self.output.name)


def compile_stage(run: PretrainingRun, stage: Stage) -> None:
    """Compile the model for a stage. The state of optimizer and metrics is carried over."""
    model, config = run.model, run.config
    # The optimizer counts the steps of the whole run: a schedule needs to know where it begins.
    begin, steps = stage.start, stage.steps
    if config.one_schedule:
        begin, steps = 0, run.stages[-1].stop
    optimizer = make_optimizer(
        config.optimizer_of(stage),
        model.trainable_variables,
        steps,
        model.model.compute_dtype,
        begin,
    )
    before = []
    if model.compiled:  # compiling replaces optimizer and metrics: copy the state of both
        before = [keras.ops.copy(v) for v in (*model.optimizer.variables, *model.metrics_variables)]
    model.step_config = replace(config.stepping, accumulate=stage.accumulate)
    model.compile(optimizer, MaskedTokenLoss(), jit_compile=choose_jit())
    if before:
        after = (*optimizer.variables, *model.metrics_variables)
        for variable, value in zip(after, before, strict=True):
            variable.assign(value)


def train_stage(run: PretrainingRun, stage: Stage, start: int, track: Track) -> None:
    """Train from step `start` to the end of its stage, with evaluations and checkpoints."""
    config, output, model = run.config, run.output, run.model
    sequences, held_out, corpora = _batches(run, stage, start)
    # One decision for all processes: an evaluation needs each of them.
    evaluates = run.group.any(predicts(held_out))
    _announce(run, stage, 0 if evaluates else sum(corpora.values()))
    if start == stage.start:
        model.forget_usual_loss()  # losses of another length are not comparable
    files: dict[str, Any] = {"resumed_at": start, "writing": run.group.first, "also": track}
    with (
        metrics_file(output / METRICS_FILE, board="training", **files) as write_line,
        metrics_file(output / EVALUATIONS_FILE, board="held_out", **files) as write_evaluation,
        checkpoint_writer(
            output / CHECKPOINTS,
            model,
            config.keep_checkpoints,
            lambda checkpoint: publish_checkpoint(output, checkpoint),
        ) as write_snapshot,
        StepLog(
            write_line,
            every=config.log_every,
            tokens_per_step=stage.batch_size * stage.length,
            uniform_loss=math.log(model.config.vocab_size),
            max_skipped=config.stepping.max_skipped,
            quiet=not run.group.first,
            flops_per_step=stage_flops(config, stage, model.config),
            peak=peak_of_devices(config.hardware),
            start=start,
            last=stage.stop,
        ) as log,
    ):
        metrics = TokenMetrics(model.model)

        def evaluate_at(step: int) -> None:
            with ema_weights(model):
                result = evaluate(metrics, held_out, corpora)
            log.check(step, "the held-out loss", result.loss)
            write_evaluation({"step": step, "length": stage.length} | result.line())
            say("step {step:,}: {result}", step=step, result=result)

        def save(step: int) -> None:
            # The averaged weights are published; the optimizer's own are saved next to them.
            with ema_weights(model):
                # All processes take it, because each may hold only a part of a weight; the first
                # writes it.
                snapshot = take_snapshot(step, run.fingerprint, model)
            if run.group.first:
                write_snapshot(snapshot)

        if start == 0 and evaluates:
            evaluate_at(0)
        periodic: dict[str, Any] = {"every": config.save_every, "log": log}
        termination = Termination(run.group.any)
        with _explained(run, stage), handling_termination(termination.receive):
            model.fit(
                fed(prefetched(sequences), static_shapes=True),
                steps_per_epoch=stage.stop - start,
                shuffle=False,  # the batches are shuffled already
                callbacks=[  # the log first, the termination last (see `training/fitting.py`)
                    log,
                    # Before the checkpoint: its model card and best/ need the line of this step.
                    *([PeriodicCallback(evaluate_at, **periodic)] if evaluates else []),
                    PeriodicCallback(run.plot, min_seconds=30, **periodic),
                    PeriodicCallback(save, also=termination.received, **periodic),
                    termination,
                ],
                verbose=0,
            )
    _check_stopped(run, termination)


def _check_stopped(run: PretrainingRun, termination: Termination) -> None:
    """Raise TerminatedError if a signal has ended the stage."""
    # Asked again: one that came during the last checkpoint was received after that step's check.
    if not termination.received():
        return
    # Other processes may reach this line before the first one has written its checkpoint.
    where = run.output / CHECKPOINTS
    saved = next(checkpoints(where)) if run.group.first else f"by the first process in {where}"
    raise TerminatedError(
        f"stopped by {termination.signal}, saved {saved}. The same command continues."
    )


def _announce(run: PretrainingRun, stage: Stage, unused: int) -> None:
    """Print the stage, and why nothing is evaluated: `unused` held-out sequences."""
    if len(run.stages) > 1:
        say(
            "stage {number} of {stages}, to step {stop:,}: batches of {size} sequences of {length}",
            number=run.stages.index(stage) + 1,
            stages=len(run.stages),
            stop=stage.stop,
            size=stage.batch_size,
            length=stage.length,
        )
    if unused:
        say(
            "No evaluation: all words of the {unused:,} held-out sequences are too long to be "
            "masked. Prepare with a larger --held-out.",
            unused=unused,
        )


def _batches(run: PretrainingRun, stage: Stage, start: int) -> tuple[Any, Any, dict[str, int]]:
    """Training batches of this process from step `start` on, and held-out batches.

    The third value is the number of held-out sequences of each corpus; they are in this order.
    """
    config, folder = run.config, run.folders[stage.length]
    objective = make_objective(config.objective, run.model.own_tokenizer, config.masking)
    shared: dict[str, Any] = {
        "seed": config.seed,
        "objective": objective,
        "part": run.group.part,
    }
    sequences = pretraining_batches(
        PreparedRows.open(folder),
        batch_size=stage.batch_size,
        mixing=config.mixing,
        start_row=rows_before(run.stages, stage) + (start - stage.start) * stage.batch_size,
        progress=lambda step: (start + step) / max(1, run.stages[-1].stop - 1),
        **shared,
    )
    size = stage.batch_size // stage.accumulate  # a micro-batch fits into memory
    if config.objective == "causal":
        size = rows_of_next_tokens(size, stage.length, replicas())
    prepared = PreparedRows.open(folder, "held_out")
    sample = held_out_sample(prepared.corpora, config.evaluation_rows)
    numbers = [number for own in sample.values() for number in own.tolist()]
    held_out = held_out_batches(prepared, batch_size=size, numbers=numbers, **shared)
    return sequences.map(with_labels), held_out, {name: len(own) for name, own in sample.items()}


def with_labels(batch: tuple[dict[str, Any], Any, Any]) -> tuple[dict[str, Any], Any, Any]:
    """Add the labels to the model's inputs, so that it returns losses instead of logits."""
    inputs, labels, weights = batch
    return inputs | {"labels": labels}, labels, weights


def publish_checkpoint(output: Path, checkpoint: Path) -> None:
    """Copy a checkpoint's model to model/, and to best/ if its evaluation is the best so far."""
    step = int(checkpoint.name.removeprefix("step-"))
    # Step 0, the initial model, has no checkpoint. There are later lines where a resumed run
    # publishes an older checkpoint again, or where this thread is slower than the training.
    lines = [line for line in read_metrics(output / EVALUATIONS_FILE) if 0 < line["step"] <= step]
    own: dict[str, Any] = next((line for line in reversed(lines) if line["step"] == step), {})
    cards = {}
    if not (checkpoint / MODEL / MODEL_CARD).exists():  # a RoFormerV2's own card is kept
        cards[MODEL_CARD] = model_card(read_settings(output), step, own).encode()
    publish(checkpoint / MODEL, output / MODEL, cards)
    best = best_evaluation(lines)
    if best is not None and best[0] == step:
        publish(checkpoint / MODEL, output / BEST, cards)


def model_card(settings: Mapping[str, Any], step: int, evaluation: Mapping[str, Any]) -> str:
    """The model card: the `README.md` of a model's folder, in Chinese and English.

    It starts with YAML as the Hugging Face hub reads it, and names files without their folders.

    settings: as in settings.yaml; step: training steps; evaluation: the line of evaluations.jsonl
    at that step, {} without one.
    """
    front: dict[str, Any] = {"language": "zh", "library_name": "roformer-tf"}
    if settings.get("objective") in PIPELINES:
        front["pipeline_tag"] = PIPELINES[settings["objective"]]
    front["tags"] = ["roformer", "keras"]
    rows = [("步数 · steps", f"{step:,}")]
    rows += [(name, file_name(settings[name])) for name in SHOWN if settings.get(name) is not None]
    if corpora := [file_name(pattern) for pattern in settings.get("corpus") or []]:
        rows.append(("语料 · corpus", ", ".join(dict.fromkeys(corpora))))
    if "held_out_loss" in evaluation:
        rows.append(("验证集损失 · held-out loss (nats)", f"{evaluation['held_out_loss']:.4f}"))
    if "held_out_accuracy" in evaluation:
        rows.append(("验证集准确率 · held-out accuracy", f"{evaluation['held_out_accuracy']:.1%}"))
    return markdown(
        environment(Path(__file__).parent),
        "card.md.jinja",
        front_matter=yaml.safe_dump(front, allow_unicode=True, sort_keys=False),
        title=PurePath(str(settings.get("output", ""))).name or "roformer",
        rows=rows,
    )


@contextlib.contextmanager
def _explained(run: PretrainingRun, stage: Stage) -> Iterator[None]:
    """Replace a backend's error by its cause: a missing shard, or a process that died."""
    try:
        yield
    except DivergedError:
        raise
    except Exception as error:
        PreparedRows.open(run.folders[stage.length])  # raises InputError if a shard is damaged
        # A full disk (OSError) or too little memory is a problem of this process itself.
        is_own = isinstance(error, OSError) or is_out_of_memory(error)
        if run.group.count > 1 and not is_own:
            saved = next(checkpoints(run.output / CHECKPOINTS), "nothing yet")
            raise lost("another process", error, f" Saved: {saved}.") from None
        if run.group.count > 1:
            exit_at_once(1)  # the others wait for a batch, and then report a lost process
        raise
