"""The settings of a pretraining run: the flags of `pretrain`, and the cost of a step."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from roformer_tf.config import RoFormerConfig, block_length
from roformer_tf.corpus.batches import MixingConfig
from roformer_tf.corpus.objectives import (
    MaskingConfig,
    ObjectiveName,
    check_masks,
    predictions_per_row,
)
from roformer_tf.corpus.preparation import PreparationConfig
from roformer_tf.corpus.shards import read_manifest
from roformer_tf.errors import MAX_SEED, InputError, check_needed, check_numbers, check_packages
from roformer_tf.files import find_recipe
from roformer_tf.training.settings import DevicesConfig, OptimizerConfig, Precision, Tracker

# Stages


@dataclass(frozen=True)
class Stage:
    """One stage; its fields except `start` are the settings that --stages may give it."""

    length: int
    batch_size: int
    steps: int
    learning_rate: float
    warmup: float
    accumulate: int
    # Steps of the run before the stage.
    start: int = 0

    @property
    def stop(self) -> int:
        """Steps of the run after the stage."""
        return self.start + self.steps

    @property
    def rows(self) -> int:
        """Number of sequences of all its batches, repeated ones included."""
        return self.steps * self.batch_size


# Settings that a stage may have, and their types.
# Classes, which `_read` calls: `from __future__ import annotations` would make them strings.
KEYS: dict[str, Any] = {x.name: x.type for x in dataclasses.fields(Stage) if x.name != "start"}


def make_stages(texts: Sequence[str], defaults: dict[str, Any]) -> list[Stage]:
    """Read stages such as "length=512 batch-size=64 steps=1000"; by default, a single one.

    `defaults` has a value for each of `KEYS`. Raises InputError for a stage that cannot be read, or
    has no steps.
    """
    stages: list[Stage] = []
    for number, text in enumerate(texts or [""], start=1):
        own = _read(text, number)
        if texts and "steps" not in own:
            raise InputError(f"stage {number}, {text!r}, has no number of steps, as in steps=1000.")
        start = stages[-1].stop if stages else 0
        stages.append(Stage(**defaults | own, start=start))
    return stages


def rows_before(stages: Sequence[Stage], stage: Stage) -> int:
    """Sequences of a stage's length that earlier stages used: it continues after them."""
    return sum(s.rows for s in stages if s.length == stage.length and s.start < stage.start)


def _read(text: str, number: int) -> dict[str, Any]:
    """The values of one stage, under the names of `KEYS`."""
    values: dict[str, Any] = {}
    for word in text.replace(",", " ").split():
        key, _, value = word.partition("=")
        name = key.replace("-", "_")
        if name not in KEYS:
            known = ", ".join(KEYS).replace("_", "-")
            raise InputError(
                f"stage {number} has {word!r}, but takes only {known}, as in "
                "'length=512 batch-size=64 steps=1000'."
            )
        try:
            values[name] = KEYS[name](value)
        except ValueError:
            raise InputError(f"stage {number}: {key} is {value!r}, not a number.") from None
        # 1e-12 is above 0 for a learning rate, and means at least 1 for whole numbers.
        if values[name] < (0 if name == "warmup" else 1e-12):
            raise InputError(f"stage {number}: {key} is {value}, but must be above 0.")
    return values


@dataclass(frozen=True, kw_only=True)
class InitializationConfig:
    """The training objective, and the initial weights."""

    objective: ObjectiveName = "masked"
    """Training objective: "masked" predicts masked words from the text on both sides, for
    understanding; "causal" predicts each token from those before it, for generation."""
    init_from: Annotated[str | None, "MODEL"] = None
    """Checkpoint to continue from; its vocabulary is used."""
    extend_vocab: Annotated[str | None, "FILE"] = None
    """With --init-from: a file with one word per line, to append to the vocabulary. The embedding
    of each is the mean over the tokens into which the word was split so far."""
    architecture: Annotated[str | None, "FILE"] = None
    """Instead of --init-from: a bert_config.json, or base, small, v2. Its vocabulary size is
    replaced by that of the data. Default: small."""
    embeddings: Literal["random", "neighbours"] = "random"
    """Initial word embeddings of a new model: random, or computed from how often tokens are
    adjacent in the corpus. The latter saves a small model thousands of steps."""
    dropout: float | None = None
    """Dropout rate on hidden states and attention. Default: the architecture's."""
    attention_dropout: float | None = None
    """Dropout rate on attention weights. Default: as --dropout. With 0, a GPU may use kernels that
    do not store these weights."""

    def __post_init__(self) -> None:
        if self.init_from and self.architecture:
            raise InputError(
                "give either --init-from, to continue from a checkpoint, or --architecture, "
                "for a new model."
            )
        if self.init_from and self.embeddings != "random":
            raise InputError("--init-from has its own embeddings. Remove --embeddings.")
        if not self.init_from:
            check_needed(self, "--init-from", "extend_vocab")


@dataclass(frozen=True)
class StepConfig:
    """The step of a batch: micro-batches, and when it is skipped."""

    accumulate: int = 1
    """Micro-batches into which a batch is split, for batches that do not fit into memory. The
    gradient is that of the whole batch."""
    spike_factor: float = 2.0
    """A batch is skipped if its loss is more than this many times the usual loss, or if its loss or
    gradient is not finite."""
    max_skipped: int = 20
    """Number of consecutive skipped batches after which the run stops."""

    def __post_init__(self) -> None:
        check_numbers(self, "accumulate", "max_skipped", at_least=1)
        if self.spike_factor != math.inf:  # infinity skips no batch for its loss
            check_numbers(self, "spike_factor", above=1)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(InitializationConfig, PreparationConfig):
    r"""Pretrain a language model, masked or causal, from scratch or from a checkpoint.

    If the process is killed, the same command resumes from the last checkpoint.

    Examples:
        roformer-tf pretrain --corpus 'data/*.jsonl' --vocab-size 30000 \
            --output runs/mine
        roformer-tf pretrain --config small --rows rows --output runs/small \
            --steps 20000
    """

    corpus: Annotated[tuple[str, ...], "FILE"] = ()
    """Files, or patterns such as 'data/*.jsonl.gz'. They are prepared first."""
    output: Annotated[str, "DIR"]
    """Folder of the run: `model/`, `metrics.jsonl`, plots, checkpoints."""
    rows: Annotated[str | None, "DIR"] = None
    """Instead of --corpus: a folder that `roformer-tf prepare` wrote. Flags that contradict its
    settings are refused."""
    length: int | None = None  # type: ignore[assignment]  # None: not given
    """Tokens of a sequence, with [CLS] and [SEP]. Default: 512, or the length of --rows."""
    batch_size: int = 32
    """Sequences per step, on all devices together."""
    steps: int = 100_000
    """Total number of steps."""
    stages: tuple[str, ...] = ()
    """Instead of --steps: successive stages, such as 'length=512 batch-size=64 steps=1000'. They
    may also have learning-rate, warmup and accumulate; the default is the flag of the same name.
    Each stage has its own learning rate schedule; the optimizer's state is kept."""
    one_schedule: bool = False
    """With --stages: one learning rate schedule over all stages."""
    save_every: int = 1000
    """Steps between two checkpoints, each with an evaluation on the held-out sequences."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""
    seed: int = 0
    """Seed of new weights, the order of sequences, masks and dropout."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    stepping: StepConfig = dataclasses.field(default_factory=StepConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    mixing: MixingConfig = dataclasses.field(default_factory=MixingConfig)
    hardware: DevicesConfig = dataclasses.field(default_factory=DevicesConfig)
    precision: Precision = "auto"
    """Keras dtype policy. "auto": bfloat16 matrix products if the device is faster with them."""
    rematerialize: bool = False
    """Recompute activations for the gradients instead of storing them. Longer sequences or larger
    batches fit into memory; a step takes a third to a half longer."""
    evaluation_rows: int = 2048
    """Maximum number of held-out sequences to evaluate: an even sample from every corpus."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep."""
    tracker: Tracker | None = None
    """Where metrics are also sent: Weights & Biases, MLflow or SwanLab."""
    project: str = "roformer-tf"
    """Project there; at MLflow an experiment."""

    alternatives: ClassVar[dict[str, tuple[str, ...]]] = PreparationConfig.alternatives | {
        "corpus": ("rows",),
        "rows": ("corpus", "vocab"),
        "init-from": ("architecture", "embeddings", "vocab", "vocab-size"),
        "extend-vocab": ("vocab",),
        "architecture": ("init-from", "extend-vocab"),
        "stages": ("steps",),
        "steps": ("stages", "one-schedule"),
        "corpus-weights": ("corpus-temperature",),
        "corpus-temperature": ("corpus-weights",),
    }

    def __post_init__(self) -> None:
        if bool(self.corpus) == bool(self.rows):
            raise InputError("give either --corpus, files of text, or --rows, a prepared folder.")
        # The checks of PreparationConfig are made below for each stage: they need one length.
        InitializationConfig.__post_init__(self)
        if self.init_from and self.vocab_size:
            raise InputError("--init-from has its own vocabulary. Remove --vocab-size.")
        if self.rows and self.vocab:
            raise InputError("--rows have their own vocabulary. Remove --vocab.")
        if self.vocab and self.extend_vocab:
            raise InputError("--extend-vocab creates the vocabulary. Remove --vocab.")
        check_masks(self.objective, self.masking)
        if self.tracker is None:
            check_needed(self, "--tracker", "project")
        else:
            check_packages(f"--tracker {self.tracker}", self.tracker, self.tracker)
        if not self.stages:
            check_needed(self, "--stages", "one_schedule")
        elif self.steps != PretrainConfig.steps:
            raise InputError("--stages have their own numbers of steps. Remove --steps.")
        peaks = {(stage.learning_rate, stage.warmup) for stage in self.plan()}
        if self.one_schedule and len(peaks) > 1:
            raise InputError(
                "--one-schedule has one learning rate and one warm-up for all stages, but --stages "
                "give several. Remove theirs and give --learning-rate and --warmup, or remove "
                "--one-schedule."
            )
        check_numbers(self, "seed", at_least=0, at_most=MAX_SEED)
        counts = ("batch_size", "steps", "save_every", "log_every")
        check_numbers(self, *counts, "evaluation_rows", "keep_checkpoints", at_least=1)
        # The settings of all stages are checked now, not when each begins.
        for number, stage in enumerate(self.plan(), start=1):
            try:
                self.optimizer_of(stage)
                if self.corpus:
                    self.preparation(stage.length, Path(self.output, "rows"))
            except InputError as error:
                which = f"stage {number}: " if self.stages else ""
                raise InputError(f"{which}{error}") from None

    def optimizer_of(self, stage: Stage) -> OptimizerConfig:
        """The optimizer's settings in a stage."""
        return dataclasses.replace(
            self.optimizer, learning_rate=stage.learning_rate, warmup=stage.warmup
        )

    def plan(self) -> list[Stage]:
        """The stages of the run; one, if there are none."""
        return make_stages(
            self.stages,
            {
                "length": PreparationConfig.length if self.length is None else self.length,
                "batch_size": self.batch_size,
                "steps": self.steps,
                "learning_rate": self.optimizer.learning_rate,
                "warmup": self.optimizer.warmup,
                "accumulate": self.stepping.accumulate,
            },
        )

    def preparation(
        self, length: int, output: Path, vocab: str | Path | None = None
    ) -> PreparationConfig:
        """The settings of `prepare` for this run; `vocab`: the one that an earlier stage built."""
        settings: dict[str, Any] = {name: getattr(self, name) for name in OF_PREPARATION}
        settings |= {"output": str(output), "length": length, "vocab": self.vocab or self.init_from}
        if vocab is not None:
            settings |= {"vocab": str(vocab), "vocab_size": None}
        return PreparationConfig(**settings)


# Settings that may differ when a run is resumed, since they change no weight.
MAY_CHANGE = (
    *("corpus", "output", "rows", "save_every", "log_every", "keep_checkpoints"),
    *("workers", "engine", "scheduler", "strict", "max_skipped", "tracker", "project"),
    *("devices", "model_parallel", "distributed", "peak_flops"),
)

OF_PREPARATION = {field.name for field in dataclasses.fields(PreparationConfig)}


def may_change(config: PretrainConfig) -> tuple[str, ...]:
    """Settings that may differ when a run is resumed; with --rows, only their content counts."""
    return (*MAY_CHANGE, *OF_PREPARATION) if config.rows else MAY_CHANGE


def with_rows_settled(config: PretrainConfig) -> PretrainConfig:
    """The settings with a length, and with those that --rows were prepared with.

    Raises InputError for settings of preparation that differ from those of --rows.
    """
    if config.rows is None:
        length = PreparationConfig.length if config.length is None else config.length
        return dataclasses.replace(config, length=length)
    manifest = read_manifest(config.rows)
    if config.vocab_size is not None and manifest["vocab_size"] > config.vocab_size:
        raise InputError(
            f"--vocab-size is {config.vocab_size:,}, but {config.rows} was prepared with "
            f"{manifest['vocab_size']:,} tokens. Give that number, or prepare new rows."
        )
    prepared = manifest["settings"]
    prepared = {key: value for key, value in prepared.items() if value is not None}
    # The number of workers changes nothing; the vocabulary's size is checked above.
    names = OF_PREPARATION - {"corpus", "output", "vocab", "vocab_size", "workers"}
    # A setting with its default value counts as not set, so it takes the value of the rows.
    wrong = [
        f"--{name.replace('_', '-')} is {value}"
        + (f", but they were prepared with {prepared[name]}" if name in prepared else "")
        for name in sorted(names)
        if (value := getattr(config, name))
        not in (getattr(PretrainConfig, name), prepared.get(name))
    ]
    if wrong:
        raise InputError(
            f"--rows {config.rows} are already prepared, so these have no effect: "
            f"{'; '.join(wrong)}. Remove them, give those of the rows, or prepare other rows."
        )
    return dataclasses.replace(config, **{name: prepared[name] for name in names & prepared.keys()})


def read_architecture(source: str | Path | None, vocab_size: int | None = None) -> RoFormerConfig:
    """The architecture in a file, or one by its name. Default: the released small size.

    `vocab_size` is for a file without it.
    """
    return RoFormerConfig.from_file(find_recipe(source or "small", ".json"), vocab_size=vocab_size)


# Floating-point operations of a step


def step_flops(config: RoFormerConfig, length: int, batch_size: int, predictions: int) -> float:
    """Minimum operations of a step; a multiplication and an addition count as two.

    For `batch_size` sequences of `length` tokens, of which `predictions` are predicted. Per token,
    the forward pass takes 2 · P for the P weights of the layers' matrices, and 4 · L · H · T for
    attention. The backward pass takes twice that: 6 · P + 12 · L · H · T in all.

    In the last layer, only keys and values count for all tokens. The rest, and the head, count for
    the predicted tokens, as the model computes them. A causal model predicts all: `predictions` is
    `length`. Masked scores count, since they are computed, too. A local layer's scores are those of
    its blocks; a last layer that is local has queries for all tokens. Lookups, norms, activations
    and recomputed activations do not count.
    """
    hidden, embedding = config.hidden_size, config.embedding_size
    # 6: a multiplication and an addition, in the forward pass and twice in the backward one.
    projection = 6 * embedding * hidden if embedding != hidden else 0
    transform = 0 if config.is_v2 else 6 * hidden * embedding
    row = float(length * projection)
    row += predictions * (transform + 6 * embedding * config.vocab_size)
    for layer in range(config.num_hidden_layers):
        outputs = length if layer < config.num_hidden_layers - 1 else predictions
        if config.is_local(layer):
            seen, queries = _keys_in_blocks(config, length), length
        else:
            seen, queries = float(length), outputs
        row += 6 * 2 * hidden**2 * length  # keys and values
        # Queries and output projection; then scores, and the sums of values that they weight.
        row += (6 * 2 * hidden**2 + 12 * hidden * seen) * queries
        row += 6 * 2 * hidden * config.intermediate_size * outputs
    return batch_size * row


def _keys_in_blocks(config: RoFormerConfig, length: int) -> float:
    """Keys by which a local layer multiplies a query: `kernels/local_attention.py` uses blocks."""
    block = block_length(config.window)
    # A block attends to itself and the block before it; if it is not causal, also to the next one.
    blocks = 2 if config.attention_type == "causal" else 3
    # The last block is padded, and its padding is multiplied, too: averaged over real queries.
    return math.ceil(length / block) * block * blocks * block / length


def stage_flops(settings: "PretrainConfig", stage: Stage, architecture: RoFormerConfig) -> float:
    """Operations of one step of a stage."""
    predicted = stage.length
    if settings.objective == "masked":
        predicted = predictions_per_row(stage.length, settings.masking.highest_rate)
    else:
        architecture = architecture.replace(attention_type="causal")
    return step_flops(architecture, stage.length, stage.batch_size, predicted)
