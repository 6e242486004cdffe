"""The last stage: masked words, and titles that find their texts.

    python -m pretrain.mini.joint --init-from MODEL --rows ROWS --pairs pairs.jsonl --output DIR

A masked language model never uses the vector of [CLS]. Here it learns, together with the mean of
the tokens, to find the text below a title among those of a batch. The weights stay those of an
ordinary masked language model: the second objective has none of its own.
"""

import dataclasses
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tyro
from keras import ops

from roformer_tf.corpus.batches import held_out_batches, pretraining_batches
from roformer_tf.corpus.masking import MaskingConfig
from roformer_tf.corpus.mixing import MixingConfig
from roformer_tf.corpus.objectives import make_objective
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.evaluation import TokenMetrics, evaluate
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.callbacks import MetricsFile, PeriodicCallback, StepLog
from roformer_tf.training.checkpointing import RunState, publish, resume, save_checkpoint
from roformer_tf.training.feeding import fed
from roformer_tf.training.optimizers.adamw import ema_weights
from roformer_tf.training.optimizers.factory import make_optimizer
from roformer_tf.training.run_files import CHECKPOINTS, METRICS_FILE
from roformer_tf.training.settings import OptimizerConfig
from roformer_tf.training.training_model import TrainingModel, tensorflow_gradients


@dataclass(frozen=True, kw_only=True)
class JointConfig:
    """Train masked words and pairs of title and text together."""

    init_from: str
    """The masked language model to continue."""
    rows: str
    """Rows that `prepare` wrote with its vocabulary."""
    pairs: str
    """JSON lines of "text_a", a title, and "text_b", its text."""
    output: str
    """Folder of the run; the same command resumes it."""
    steps: int = 4000
    """Steps of one batch of rows and one of pairs."""
    batch_size: int = 32
    """Rows of a step."""
    pair_batch_size: int = 64
    """Pairs of a step: each title has 63 wrong texts."""
    title_length: int = 24
    """Maximum tokens of a title."""
    text_length: int = 56
    """Maximum tokens of a text."""
    temperature: float = 0.05
    """Cosines are divided by it."""
    pair_weight: float = 0.2
    """Weight of the pairs' loss; that of masked words has weight 1."""
    save_every: int = 500
    """Steps between two checkpoints."""
    seed: int = 0
    """Seed of order and masks."""
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    mixing: MixingConfig = dataclasses.field(default_factory=MixingConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)


class JointModel(TrainingModel):
    """A masked language model, trained with both losses."""

    def __init__(self, model: RoFormerForMaskedLM, config: JointConfig) -> None:
        super().__init__(model, "joint")
        self.joint_config = config

    def train_step(self, data: Any) -> dict[str, Any]:
        """Take a step of the optimizer on TensorFlow."""
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.loss_of(data[0], training=True)
        gradients = tensorflow_gradients(tape, loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.metrics[0].update_state(loss)
        return {"loss": self.metrics[0].result()}

    def loss_of(self, inputs: dict[str, Any], training: bool | None = None) -> Any:
        """Rows, their labels and weights, titles (P, T) and texts (P, S) → scalar loss, nats."""
        inputs = dict(inputs)
        titles, texts, weights = (inputs.pop(x) for x in ("titles", "texts", "weights"))
        losses = self.model(inputs, training=training)
        masked = ops.sum(losses * weights) / ops.maximum(ops.sum(weights), 1.0)
        pairs = zip(self.vectors(titles, training), self.vectors(texts, training), strict=True)
        paired = sum(contrast(a, b, self.joint_config.temperature) for a, b in pairs)
        return masked + self.joint_config.pair_weight * paired

    def vectors(self, token_ids: Any, training: bool | None) -> tuple[Any, Any]:
        """The first token's vectors and the mean of all, each (B, H) float32."""
        hidden = ops.cast(self.model.encoder({"token_ids": token_ids}, training=training), "float32")
        present = ops.cast(ops.not_equal(token_ids, 0), "float32")[..., None]
        return hidden[:, 0], ops.sum(hidden * present, axis=1) / ops.sum(present, axis=1)


def contrast(a: Any, b: Any, temperature: float) -> Any:
    """Cross-entropy of finding b[i] by a[i] among all b, and the reverse: scalar, nats."""
    cosines = ops.matmul(ops.normalize(a, axis=-1), ops.transpose(ops.normalize(b, axis=-1)))
    scores = cosines / temperature
    numbers = ops.arange(ops.shape(scores)[0])
    losses = (
        ops.sparse_categorical_crossentropy(numbers, direction, from_logits=True)
        for direction in (scores, ops.transpose(scores))
    )
    return sum(ops.mean(loss) for loss in losses) / 2


def read_pairs(config: JointConfig, tokenizer: RoFormerTokenizer) -> tuple[np.ndarray, np.ndarray]:
    """Titles (N, T) and texts (N, S) int32, padded with 0; kept as a file next to the run."""
    cache = Path(config.output) / "pairs.npz"
    if not cache.exists():
        with open(config.pairs, encoding="utf-8") as lines:
            entries = [json.loads(line) for line in lines]
        arrays = {}
        for name, length in (("text_a", config.title_length), ("text_b", config.text_length)):
            arrays[name] = np.zeros((len(entries), length), "int32")
            for row, entry in zip(arrays[name], entries, strict=True):
                token_ids = tokenizer.encode(entry[name], max_length=length)[0]
                row[: len(token_ids)] = token_ids
        cache.parent.mkdir(parents=True, exist_ok=True)
        np.savez(cache, **arrays)
    with np.load(cache) as file:
        return file["text_a"], file["text_b"]


def batches(config: JointConfig, tokenizer: RoFormerTokenizer, start: int) -> Iterator[Any]:
    """The batches from a step on."""
    rows = pretraining_batches(
        PreparedRows.open(Path(config.rows)),
        batch_size=config.batch_size,
        seed=config.seed + 1,  # another order than before
        objective=make_objective("masked", tokenizer, config.masking),
        mixing=config.mixing,
    )
    titles, texts = read_pairs(config, tokenizer)
    per_epoch = len(titles) // config.pair_batch_size
    for step in range(start, config.steps):
        epoch, position = divmod(step, per_epoch)
        order = np.random.default_rng((config.seed, epoch)).permutation(len(titles))
        chosen = order[position * config.pair_batch_size :][: config.pair_batch_size]
        inputs, labels, weights = rows[step]
        more = {"labels": labels, "weights": weights.astype("float32")}
        yield inputs | more | {"titles": titles[chosen], "texts": texts[chosen]}, np.zeros(1)


def main(config: JointConfig) -> None:
    """Train, or continue; the model is in OUTPUT/model."""
    output = Path(config.output)
    keras.utils.set_random_seed(config.seed)
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = RoFormerForMaskedLM.from_pretrained(config.init_from)
    tokenizer = RoFormerTokenizer.from_pretrained(config.init_from)
    joint = JointModel(model, config)
    optimizer = make_optimizer(
        config.optimizer, joint.trainable_variables, config.steps, model.compute_dtype
    )
    joint.compile(optimizer, loss=lambda _, loss: loss, jit_compile=False)
    name = str(zlib.crc32(repr(config).encode()))
    start, _ = resume(output / CHECKPOINTS, joint, name)
    held_out = held_out_batches(
        PreparedRows.open(Path(config.rows), "held_out"),
        batch_size=32,
        seed=0,
        objective=make_objective("masked", tokenizer, MaskingConfig()),
        numbers=range(0, 2048, 4),
    )
    metrics = TokenMetrics(model)
    with (
        MetricsFile(output / METRICS_FILE, resumed_at=start) as lines,
        StepLog(
            lines,
            every=10,
            tokens_per_step=config.batch_size * 128
            + config.pair_batch_size * (config.title_length + config.text_length),
            uniform_loss=float("inf"),
            start=start,
            last=config.steps,
        ) as log,
    ):

        def save(step: int) -> None:
            with ema_weights(joint):
                log.say(f"step {step}: {evaluate(metrics, held_out, {'all': 512})}")
                model.save_pretrained(output / "model")
            save_checkpoint(output / CHECKPOINTS, RunState(step, name), joint, keep=1)

        joint.fit(
            fed(_Iterable(config, tokenizer, start), static_shapes=True),
            steps_per_epoch=config.steps - start,
            callbacks=[log, PeriodicCallback(save, every=config.save_every, log=log, start=start, last=config.steps)],
            verbose=0,
        )


@dataclass(frozen=True)
class _Iterable:
    config: JointConfig
    tokenizer: RoFormerTokenizer
    start: int

    def __iter__(self) -> Iterator[Any]:
        return batches(self.config, self.tokenizer, self.start)


if __name__ == "__main__":
    main(tyro.cli(JointConfig, config=(tyro.conf.OmitArgPrefixes,)))
