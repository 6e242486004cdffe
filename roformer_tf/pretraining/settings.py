"""The settings of a pretraining run: the flags of `pretrain`."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from roformer_tf.corpus.masking import MaskingConfig
from roformer_tf.corpus.mixing import MixingConfig
from roformer_tf.corpus.objectives import ObjectiveName
from roformer_tf.corpus.preparation import PreparationConfig
from roformer_tf.corpus.shards import read_manifest
from roformer_tf.errors import MAX_SEED, InputError, check_numbers
from roformer_tf.training.optimizers.settings import OptimizerConfig
from roformer_tf.training.settings import DevicesConfig, Precision

# Stages


@dataclass(frozen=True)
class Stage:
    """One stage, its steps counted from the beginning of the run."""

    length: int
    batch_size: int
    start: int
    """Steps before its first one."""
    stop: int
    """Steps when it is done."""
    learning_rate: float
    warmup: float
    accumulate: int

    @property
    def steps(self) -> int:
        """Its own."""
        return self.stop - self.start

    @property
    def rows(self) -> int:
        """That it trains on, each as often as its turn comes."""
        return self.steps * self.batch_size


KEYS: dict[str, type] = {
    "length": int,
    "batch-size": int,
    "steps": int,
    "learning-rate": float,
    "warmup": float,
    "accumulate": int,
}
"""What a stage may have of its own, and how it is read."""


def make_stages(texts: Sequence[str], defaults: dict[str, Any]) -> list[Stage]:
    """Read stages such as "length=512 batch-size=64 steps=1000"; none is one of the defaults alone.

    `defaults` has a value for each of `KEYS`, with underscores. Raises InputError for a stage that
    cannot be read, or has no steps of its own.
    """
    stages = []
    start = 0
    for number, text in enumerate(texts or [""], start=1):
        given = _read(text, number)
        if texts and "steps" not in given:
            raise InputError(f"stage {number}, {text!r}, does not say for how many steps.")
        values = defaults | given
        stop = start + values.pop("steps")
        stages.append(Stage(start=start, stop=stop, **values))
        start = stop
    return stages


def rows_before(stages: Sequence[Stage], stage: Stage) -> int:
    """Rows of a stage's length that earlier ones have used: it goes on behind them."""
    return sum(s.rows for s in stages if s.length == stage.length and s.start < stage.start)


def _read(text: str, number: int) -> dict[str, Any]:
    """The values of one stage, under the names of `Stage` and "steps"."""
    values: dict[str, Any] = {}
    for word in text.replace(",", " ").split():
        key, _, value = word.partition("=")
        kind = KEYS.get(key.replace("_", "-"))
        if kind is None:
            raise InputError(
                f"stage {number} has {word!r}, but takes only {', '.join(KEYS)}, as in "
                "'length=512 batch-size=64 steps=1000'."
            )
        try:
            values[key.replace("-", "_")] = kind(value)
        except ValueError:
            raise InputError(f"stage {number}: {key} is {value!r}, which is no number.") from None
        if values[key.replace("-", "_")] < (0 if key == "warmup" else 1e-12):
            raise InputError(f"stage {number}: {key} is {value}, but must be above 0.")
    return values


@dataclass(frozen=True, kw_only=True)
class InitializationConfig:
    """What is trained, and where its weights come from."""

    objective: ObjectiveName = "masked"
    """What the model learns to tell: "masked", hidden words from what stands on both sides of them,
    to understand texts; "causal", each next token from those before it, to write them."""
    init_from: str | None = None
    """Checkpoint to continue from; its vocabulary is used."""
    extend_vocab: str | None = None
    """With --init-from, a file of words, one a line, to be appended to the vocabulary, each with
    the mean embedding of the tokens that stood for it so far."""
    architecture: str | None = None
    """Instead of --init-from: a bert_config.json, or base, small, v2. Its vocabulary size is
    replaced by that of the data."""
    embeddings: Literal["random", "neighbours"] = "random"
    """Initial word embeddings of a new model: random ones, or those that tell which
    tokens stand side by side in the corpus, which spares a small one thousands of steps."""
    dropout: float | None = None
    """Dropout rate on hidden states and attention; unset, what the architecture says."""
    attention_dropout: float | None = None
    """Dropout rate on attention's weights; unset, as --dropout. With 0 a GPU may take kernels that
    never store them."""

    def __post_init__(self) -> None:
        if self.init_from and self.architecture:
            raise InputError(
                "give either --init-from, to continue from a checkpoint, or --architecture, "
                "to start anew."
            )
        if self.extend_vocab and not self.init_from:
            raise InputError(
                "--extend-vocab adds to a checkpoint's vocabulary: give the one with --init-from."
            )


@dataclass(frozen=True)
class StepConfig:
    """How a batch becomes a step."""

    accumulate: int = 1
    """Pieces that a batch is computed in, one after another: larger batches than fit into memory.
    The gradient is that of the whole batch."""
    spike_factor: float = 2.0
    """A batch whose loss is more than this many times the usual one is skipped, as is one whose
    loss or gradient is not finite."""
    max_skipped: int = 20
    """Batches skipped in a row after which the run stops."""

    def __post_init__(self) -> None:
        check_numbers(self, "accumulate", "max_skipped", at_least=1)
        if self.spike_factor != math.inf:  # which skips no batch for its loss
            check_numbers(self, "spike_factor", above=1)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(InitializationConfig, PreparationConfig):
    """Pretrain a language model, masked or causal, from scratch or from a checkpoint.

    Killed, the same command continues where the last checkpoint stands.
    """

    corpus: tuple[str, ...] = ()
    """Files, or patterns such as 'data/*.jsonl.gz'; they are prepared first."""
    output: str
    """Folder of the run: `model/`, `metrics.jsonl`, plots, checkpoints."""
    rows: str | None = None
    """Instead of --corpus: a folder that `roformer-tf prepare` wrote. Its settings are those of the
    rows then; flags that say otherwise are refused."""
    length: int | None = None  # type: ignore[assignment]  # to tell what is typed from what is not
    """Tokens in a row, with [CLS] and [SEP]. Unset: 512, or what --rows have."""
    batch_size: int = 32
    """Rows a step, on all devices together."""
    steps: int = 100_000
    """Steps in all."""
    stages: tuple[str, ...] = ()
    """Instead of --steps: stages one after another, such as 'length=512 batch-size=64 steps=1000'.
    What a stage does not say (also learning-rate, warmup, accumulate) is as without stages. The
    learning rate rises and falls in each; the optimizer remembers what came before."""
    one_schedule: bool = False
    """With --stages, have the learning rate rise and fall once, over all of them."""
    save_every: int = 1000
    """Steps between two checkpoints; the held-out rows are evaluated then, too."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""
    seed: int = 0
    """Seed of the new weights, the order of the rows, the masks and dropout."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    stepping: StepConfig = dataclasses.field(default_factory=StepConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    mixing: MixingConfig = dataclasses.field(default_factory=MixingConfig)
    hardware: DevicesConfig = dataclasses.field(default_factory=DevicesConfig)
    precision: Precision = "auto"
    """Keras dtype policy; "auto" takes bfloat16 products where the device is fast at them."""
    rematerialize: bool = False
    """Keep less for the gradients and compute it again: longer rows or larger batches in the same
    memory, at a third to a half more time."""
    evaluation_rows: int = 2048
    """Most held-out rows to evaluate: an even sample of all, with rows of every corpus."""
    keep_checkpoints: int = 2
    """Checkpoints to keep."""
    wandb: str | None = None
    """Project at Weights & Biases that gets the metrics as well."""

    def __post_init__(self) -> None:
        if bool(self.corpus) == bool(self.rows):
            raise InputError("give either --corpus, files of text, or --rows, a prepared folder.")
        InitializationConfig.__post_init__(self)
        if self.init_from and self.vocab_size:
            raise InputError("--init-from brings its own vocabulary: leave --vocab-size out.")
        if self.rows and self.vocab:
            raise InputError("--rows bring their own vocabulary: leave --vocab out.")
        if self.vocab and self.extend_vocab:
            raise InputError("--extend-vocab makes the vocabulary: leave --vocab out.")
        if self.objective == "causal" and self.masking != MaskingConfig():
            raise InputError(
                "--mask-rate, --mask-replace-rate and --random-replace-rate are of masked words, "
                "but --objective causal masks none. Leave them out."
            )
        check_numbers(self, "seed", at_least=0, at_most=MAX_SEED)
        counts = ("batch_size", "steps", "save_every", "log_every")
        check_numbers(self, *counts, "evaluation_rows", "keep_checkpoints", at_least=1)
        for number, stage in enumerate(self.plan(), start=1):
            self._check_stage(stage, f"stage {number}: " if self.stages else "")

    def _check_stage(self, stage: Stage, which: str) -> None:
        """Have a stage's settings checked before any work, whenever its turn comes."""
        try:
            self.optimizer_of(stage)
            if self.corpus:
                self.preparation(stage.length, Path(self.output, "rows"))
        except InputError as error:
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
        """What `prepare` has to do first; `vocab`: a vocabulary that was made on the way."""
        names = [field.name for field in dataclasses.fields(PreparationConfig)]
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        settings |= {"output": str(output), "length": length, "vocab": self.vocab or self.init_from}
        if vocab is not None:
            settings |= {"vocab": str(vocab), "vocab_size": None}
        return PreparationConfig(**settings)


MAY_CHANGE = (
    "corpus",
    "output",
    "rows",
    "save_every",
    "log_every",
    "keep_checkpoints",
    "workers",
    "engine",
    "scheduler",
    "strict",
    "devices",
    "model_parallel",
    "distributed",
    "peak_flops",
    "attention_form",
    "max_skipped",
    "wandb",
)
"""Settings that may differ when a run continues, since they change no weight."""

OF_PREPARATION = {field.name for field in dataclasses.fields(PreparationConfig)}


def may_change(config: PretrainConfig) -> tuple[str, ...]:
    """Settings that may differ when a run continues; of --rows, it is their content that counts."""
    return (*MAY_CHANGE, *OF_PREPARATION) if config.rows else MAY_CHANGE


def with_rows_settled(config: PretrainConfig, began: Mapping[str, Any]) -> PretrainConfig:
    """Give the settings with a length, and with those that --rows were prepared with.

    `began`: what the run's folder recorded, if it was begun before: earlier versions recorded
    unread what was given beside --rows, so that may be given again. Raises InputError for other
    settings of preparation than those of --rows. How many processes would prepare is no such.
    """
    if config.rows is None:
        length = PreparationConfig.length if config.length is None else config.length
        return dataclasses.replace(config, length=length)
    manifest = read_manifest(config.rows)
    if config.vocab_size is not None and manifest["vocab_size"] > config.vocab_size:
        raise InputError(
            f"--vocab-size is {config.vocab_size:,}, but {config.rows} was prepared with "
            f"{manifest['vocab_size']:,} tokens. Leave --vocab-size out, or prepare anew."
        )
    made = {key: value for key, value in manifest.get("settings", {}).items() if value is not None}
    made["length"] = manifest["length"]
    settled = OF_PREPARATION - {"corpus", "output", "vocab", "vocab_size", "workers"}
    wrong = [
        f"--{name.replace('_', '-')} is {given}"
        + (f", but they were prepared with {made[name]}" if name in made else "")
        for name in sorted(settled)
        if (given := getattr(config, name))
        not in (getattr(PretrainConfig, name), made.get(name), began.get(name))
    ]
    if wrong:
        raise InputError(
            f"--rows {config.rows} are prepared already, so these change nothing: "
            f"{'; '.join(wrong)}. Leave them out, or prepare other rows."
        )
    return dataclasses.replace(config, **{name: made[name] for name in settled & made.keys()})
