"""The body of `pretrain`: corpus → rows → masked batches → model → run folder.

OUTPUT/settings.yaml   every setting; usable as --config
OUTPUT/rows/           what `prepare` makes of --corpus
OUTPUT/checkpoints/    what a killed run continues from
OUTPUT/model/          the model at the last checkpoint, in our own format
OUTPUT/metrics.jsonl, evaluations.jsonl, tensorboard/, loss.png
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grain
import keras
import numpy as np

from roformer_tf.config import RoFormerConfig
from roformer_tf.data.batches import held_out_batches, prefetched, pretraining_batches
from roformer_tf.data.masking import MaskingConfig, replacement_ids
from roformer_tf.data.neighbours import neighbour_vectors
from roformer_tf.data.packing import TOKEN
from roformer_tf.data.preparation import PreparationConfig, prepare
from roformer_tf.data.shards import PreparedRows, read_manifest
from roformer_tf.errors import DivergedError, InputError, TerminatedError
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.callbacks import (
    MetricsFile,
    Schedule,
    StepLog,
    Termination,
    read_lines,
)
from roformer_tf.training.devices import Precision, choose_jit
from roformer_tf.training.losses import MaskedTokenLoss
from roformer_tf.training.metrics import MaskedTokenScores, evaluate
from roformer_tf.training.optimizers import OptimizerConfig, make_optimizer
from roformer_tf.training.plots import plot_loss
from roformer_tf.training.resume import (
    RunState,
    checkpoints,
    publish,
    save_checkpoint,
)
from roformer_tf.training.runs import (
    CHECKPOINTS,
    check_output,
    resume,
    settle_precision,
    tidy,
    write_settings,
)


@dataclass(frozen=True, kw_only=True)
class PretrainConfig(PreparationConfig):
    """Pretrain a masked language model, from scratch or from a checkpoint.

    Killed, the same command continues where the last checkpoint stands.
    """

    corpus: tuple[str, ...] = ()
    """Files, or patterns such as 'data/*.jsonl.gz'; they are prepared first."""
    output: str
    """Folder of the run: `model/`, `metrics.jsonl`, plots, checkpoints."""
    rows: str | None = None
    """Instead of --corpus: a folder that `roformer-tf prepare` wrote."""
    init_from: str | None = None
    """Checkpoint to continue from; its vocabulary is used."""
    architecture: str | None = None
    """Instead of --init-from: a bert_config.json; its vocab_size gives way to the vocabulary's."""
    embeddings: Literal["random", "neighbours"] = "random"
    """How a new model's word embeddings begin: by chance, or with which tokens stand side by side
    in the corpus, which spares a small one thousands of steps."""
    batch_size: int = 32
    """Rows a step."""
    steps: int = 100_000
    """Steps in all."""
    save_every: int = 1000
    """Steps between two checkpoints; the held-out rows are evaluated then, too."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""
    seed: int = 0
    """Seed of the new weights, the order of the rows, the masks and dropout."""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    dropout: float | None = None
    """Dropout rate on hidden states and attention; unset, what the architecture says."""
    precision: Precision = "auto"
    """Keras dtype policy; "auto" takes bfloat16 products where the device is fast at them."""
    rematerialize: bool = False
    """Keep less for the gradients and compute it again: longer rows or larger batches in the same
    memory, at a third to a half more time."""
    evaluation_rows: int = 2048
    """Most held-out rows to evaluate."""
    keep: int = 2
    """Checkpoints to keep."""

    def __post_init__(self) -> None:
        if bool(self.corpus) == bool(self.rows):
            raise InputError("give either --corpus, files of text, or --rows, a prepared folder.")
        if self.init_from and self.architecture:
            raise InputError(
                "give either --init-from, to continue from a checkpoint, or --architecture, "
                "to start anew."
            )
        if self.init_from and self.vocab_size:
            raise InputError("--init-from brings its own vocabulary: leave --vocab-size out.")
        if self.rows and (self.vocab or self.vocab_size):
            raise InputError("--rows bring their own vocabulary: leave the vocabulary out.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed is {self.seed}, but must be at least 0 and below 2^32.")
        for name in ("batch_size", "steps", "save_every", "log_every", "evaluation_rows", "keep"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least 1.")
        if self.corpus:
            self.preparation()  # its own checks, before any work

    def preparation(self) -> PreparationConfig:
        """What `prepare` has to do first."""
        names = [field.name for field in dataclasses.fields(PreparationConfig)]
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        settings["vocab"] = self.vocab or self.init_from
        return PreparationConfig(**settings | {"output": str(Path(self.output) / "rows")})


MAY_CHANGE = ("corpus", "output", "rows", "save_every", "log_every", "keep", "workers", "strict")
"""Settings that may differ when a run continues, since they change no weight."""

SMALL = RoFormerConfig(
    vocab_size=1,  # to be replaced
    hidden_size=384,
    num_hidden_layers=6,
    num_attention_heads=6,
    intermediate_size=1536,
)
"""The released small size, trained where neither --init-from nor --architecture is given."""

CHANCE = 0.3
"""What is left of random embeddings in those from neighbours, so that no two tokens are equal."""

COUNTED_ROWS = 5000
"""Rows in which a new model's tokens are counted."""


def pretrain(config: PretrainConfig) -> None:
    """Pretrain a masked language model, from scratch or from a checkpoint.

    Raises InputError for what it is given, DivergedError for a loss that explodes, and, told to
    end by SIGTERM, TerminatedError once the step at hand is saved.
    """
    with Termination() as termination:
        _pretrain(config, termination)


def _pretrain(config: PretrainConfig, termination: Termination) -> None:
    output = Path(config.output)
    config = settle_precision(config)
    check_output(config, MAY_CHANGE)
    keras.utils.set_random_seed(config.seed)
    begin = _beginning(config)  # what is wrong with it is said before the long preparation
    rows_folder = Path(config.rows) if config.rows else prepare(config.preparation())
    rows, held_out = PreparedRows.open(rows_folder), PreparedRows.open(rows_folder, "held_out")
    tokenizer = RoFormerTokenizer.from_pretrained(rows_folder)
    model = begin(tokenizer, rows)
    model.tokenizer = tokenizer  # to be saved beside it
    model.encoder.rematerialize = config.rematerialize
    model.compile(
        make_optimizer(
            config.optimizer, model.trainable_variables, config.steps, model.compute_dtype
        ),
        MaskedTokenLoss(),
        jit_compile=choose_jit(),
    )
    fingerprint = read_manifest(rows_folder)["fingerprint"]
    start, checkpoint = resume(output / CHECKPOINTS, model, fingerprint)
    if checkpoint is not None:
        publish(checkpoint / "model", output / "model")  # unless the run was killed before it did
    tidy(output)
    _describe(model, rows, held_out)
    if start >= config.steps:
        print(f"the run is finished: {start:,} steps. Its model: {output / 'model'}")
        return
    write_settings(config)
    masked: dict[str, Any] = {
        "batch_size": config.batch_size,
        "seed": config.seed,
        "mask_id": tokenizer.mask_id,
        "random_ids": replacement_ids(tokenizer.vocabulary),
        "masking": config.masking,
    }
    batches = pretraining_batches(rows, **masked, start_step=start)
    test = held_out_batches(held_out, **masked)[: -(-config.evaluation_rows // config.batch_size)]
    try:
        train(
            config,
            model,
            batches,
            test,
            RunState(start, fingerprint),
            config.batch_size * rows.length,
            termination,
        )
    except DivergedError as error:
        raise DivergedError(_diverged(config, error)) from None


def train(
    config: PretrainConfig,
    model: RoFormerForMaskedLM,
    batches: grain.MapDataset,
    held_out: grain.MapDataset,
    begun: RunState,
    tokens_per_step: int,
    termination: Termination,
) -> None:
    """Train a compiled model from `begun` to the last step, evaluating and saving on the way."""
    output, start = Path(config.output), begun.step
    span: dict[str, Any] = {"start": start, "last": config.steps}
    scores = MaskedTokenScores(model)
    board = output / "tensorboard"
    with (
        MetricsFile(
            output / "metrics.jsonl", resumed_at=start, tensorboard=board / "training"
        ) as lines,
        MetricsFile(
            output / "evaluations.jsonl", resumed_at=start, tensorboard=board / "held_out"
        ) as evaluations,
        StepLog(
            lines,
            every=config.log_every,
            tokens_per_step=tokens_per_step,
            uniform_loss=math.log(model.config.vocab_size),
            **span,
        ) as log,
    ):

        def test(step: int) -> None:
            result = evaluate(scores, held_out)
            log.check(step, "the held-out loss", result.loss)
            evaluations.write({"step": step} | result.line())
            log.say(f"step {step:,}: {result}")

        def draw(step: int) -> None:
            curve = [*read_lines(lines.path), *read_lines(evaluations.path)]
            plot_loss(curve, output / "loss.png", title=output.name)

        def save(step: int) -> None:
            state = RunState(step, begun.rows)
            checkpoint = save_checkpoint(output / CHECKPOINTS, state, model, config.keep)
            publish(checkpoint / "model", output / "model")

        if start == 0 and len(held_out):
            test(0)
        hooks = [test, draw] if len(held_out) else [draw]
        rhythm: dict[str, Any] = {"every": config.save_every, "log": log, **span}
        model.fit(
            prefetched(batches.map(with_labels)),
            steps_per_epoch=config.steps - start,
            shuffle=False,  # the batches are in their order already
            callbacks=[
                log,
                *(Schedule(hook, **rhythm) for hook in hooks),
                Schedule(save, also=termination.received, **rhythm),  # saved: the step is done
                termination,
            ],
            verbose=0,
        )
    if termination.stopped:
        saved = next(checkpoints(output / CHECKPOINTS))
        raise TerminatedError(f"told to end (SIGTERM), saved {saved}. The same command continues.")
    print(f"the model is in {output / 'model'}, its loss drawn in {output / 'loss.png'}")


def with_labels(batch: tuple[dict[str, Any], Any, Any]) -> tuple[dict[str, Any], Any, Any]:
    """Let the model see a batch's labels, so that it gives losses instead of logits."""
    inputs, labels, weights = batch
    return inputs | {"labels": labels}, labels, weights


def new_model(
    architecture: RoFormerConfig,
    tokenizer: RoFormerTokenizer,
    rows: PreparedRows,
    dtype: str = "float32",
    embeddings: str = "random",
) -> RoFormerForMaskedLM:
    """Make a new model for a vocabulary, which guesses by frequency from its first step on.

    Its weights are random but for two: the output bias, without which the first hundreds of steps
    learn nothing but frequencies (RoFormerV2 has none); and, with `embeddings="neighbours"`, the
    word embeddings, which are then the corpus' neighbour vectors, as long as random ones.
    """
    config = architecture.replace(
        vocab_size=tokenizer.vocab_size,
        max_position_embeddings=max(architecture.max_position_embeddings, rows.length),
    )
    model = RoFormerForMaskedLM(config, dtype=dtype)
    model.tokenizer = tokenizer
    if model.mlm.bias is not None:
        model.mlm.bias.assign(log_frequencies(rows, tokenizer))
    if embeddings == "neighbours":
        words = model.encoder.embeddings.word.embeddings
        length = config.initializer_range * math.sqrt(config.embedding_size)
        vectors = length * neighbour_vectors(rows, *words.shape)
        words.assign(vectors + CHANCE * keras.ops.convert_to_numpy(words))
    return model


def log_frequencies(rows: PreparedRows, tokenizer: RoFormerTokenizer) -> np.ndarray:
    """Logarithm of each token's share of the text, (V,); some thousands of rows are counted."""
    sample = [rows[i] for i in range(0, len(rows), -(-len(rows) // COUNTED_ROWS))]
    counts = np.bincount(np.stack(sample)[:, TOKEN].ravel(), minlength=tokenizer.vocab_size)
    predicted = np.zeros(tokenizer.vocab_size, bool)
    predicted[replacement_ids(tokenizer.vocabulary)] = True
    smoothed = np.where(predicted, counts, 0) + 0.5
    return np.log(smoothed / smoothed.sum())


def _beginning(
    config: PretrainConfig,
) -> Callable[[RoFormerTokenizer, PreparedRows], RoFormerForMaskedLM]:
    """Give what makes the model once there are rows: a new one, or the checkpoint's, read now."""
    dtype, changes = config.precision, {}
    if config.dropout is not None:
        names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
        changes = dict.fromkeys(names, config.dropout)
    if config.init_from is None:
        given = config.architecture
        architecture = RoFormerConfig.from_file(given) if given else SMALL
        architecture = architecture.replace(**changes)
        resumed = any(checkpoints(Path(config.output, CHECKPOINTS)))  # then they are read
        embeddings = "random" if resumed else config.embeddings
        return lambda tokenizer, rows: new_model(architecture, tokenizer, rows, dtype, embeddings)
    model = RoFormerForMaskedLM.from_pretrained(config.init_from, dtype=dtype, **changes)
    vocabulary = RoFormerTokenizer.from_pretrained(config.rows or config.vocab or config.init_from)
    _check_vocabulary(model, vocabulary, config.init_from)
    return lambda tokenizer, rows: model


def _check_vocabulary(
    model: RoFormerForMaskedLM, tokenizer: RoFormerTokenizer, source: str
) -> None:
    """Raise InputError unless the rows' ids mean to the checkpoint what they mean to us."""
    own = model.tokenizer
    if own is not None and own.vocabulary != tokenizer.vocabulary:
        raise InputError(
            f"the vocabulary ({len(tokenizer.vocabulary):,} tokens) does not fit {source}, whose "
            f"own has {len(own.vocabulary):,} and other ids. Leave --vocab out, and prepare rows "
            "with the checkpoint's vocab.txt."
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the vocabulary has {tokenizer.vocab_size:,} ids, but {source} only "
            f"{model.config.vocab_size:,} embeddings. Give the vocab.txt that belongs to it."
        )


def _describe(model: RoFormerForMaskedLM, rows: PreparedRows, held_out: PreparedRows) -> None:
    """Say what is trained on what."""
    shape = model.config
    print(
        f"model: {shape.num_hidden_layers} layers of {shape.hidden_size}, "
        f"{shape.num_attention_heads} heads, vocabulary {shape.vocab_size:,}: "
        f"{model.count_params():,} parameters, {model.dtype_policy.name}\n"
        f"rows: {len(rows):,} to train on, {len(held_out):,} held out, {rows.length} tokens each"
    )


def _diverged(config: PretrainConfig, error: DivergedError) -> str:
    """What happened, what is left, and what to do."""
    advice = "Start again under another --output with a lower --learning-rate or a longer --warmup"
    saved = next(checkpoints(Path(config.output, CHECKPOINTS)), None)
    if saved is None:
        return f"training stopped: {error} {advice}."
    return (
        f"training stopped: {error} The last good checkpoint is {saved}. "
        f"{advice}, from there with --init-from {saved / 'model'}."
    )
