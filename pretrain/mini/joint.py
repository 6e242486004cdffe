"""The second and the later stages: masked words, and titles with their texts.

    python -m pretrain.mini.joint --init-from MODEL --rows ROWS --characters ROWS \
        --pairs pairs.jsonl --output DIR [--comparison-weight 1]

Some rows are split into characters, because entities and answers are labelled by characters, most
of which are rare as words. A masked language model does not train the vector of [CLS]. Here this
vector, and the mean of the tokens, are trained to match a title with its text among those of a
batch. The later stages also compare both in one sequence. The weights of their head are dropped, so
the result is an ordinary masked language model.
"""

import json
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grain
import keras
import numpy as np
from absl import flags
from keras import ops

from benchmarks.command_line import settings_of
from pretrain.mini.comparison import INPUTS, comparison_loss, cut, side_by_side
from roformer_tf.corpus.batches import (
    MixingConfig,
    held_out_batches,
    held_out_sample,
    pretraining_batches,
)
from roformer_tf.corpus.objectives import MaskingConfig, make_objective
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.files import temporary_file
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining.evaluation import TokenMetrics, evaluate
from roformer_tf.pretraining.settings import StepConfig
from roformer_tf.pretraining.train_step import MaskedTokenLoss, PretrainingModel
from roformer_tf.terminal import say
from roformer_tf.tokenizers.padding import padded
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.training.checkpointing import resume, save_checkpoint
from roformer_tf.training.devices import choose_jit, choose_precision
from roformer_tf.training.fitting import PeriodicCallback, StepLog, fed, prefetched
from roformer_tf.training.optimizers import make_optimizer
from roformer_tf.training.run_files import CHECKPOINTS, EVALUATIONS_FILE, METRICS_FILE, metrics_file
from roformer_tf.training.settings import OptimizerConfig

# Number of held-out rows to evaluate.
EVALUATION_ROWS = 512
# The encoded pairs, in the folder of the run.
PAIRS = "pairs.npz"
CHARACTER_PAIRS = "character_pairs.npz"


@dataclass(frozen=True, kw_only=True)
class JointConfig:
    """Train on masked words and on pairs of title and text together."""

    init_from: str
    """Masked language model to continue."""
    rows: str
    """Rows of words, prepared with its vocabulary."""
    characters: str
    """Rows of characters with the same vocabulary and length; whole words are masked."""
    pairs: str
    """JSON lines with a title, "text_a", and its text, "text_b"."""
    output: str
    """Folder of the run; the same command resumes it."""
    steps: int = 4000
    """Steps of one batch of rows and one of pairs."""
    batch_size: int = 32
    """Rows of a step."""
    character_rows: int = 8
    """Rows of a step that are split into characters."""
    pair_batch_size: int = 64
    """Pairs of a step; the texts of the other pairs are negatives."""
    title_length: int = 24
    """Maximum tokens of a title."""
    text_length: int = 56
    """Maximum tokens of a text whose vector is trained."""
    compared_length: int = 28
    """Maximum tokens of a text that is compared with a title."""
    compared_batch_size: int = 64
    """Pairs of a step that are compared, the first ones of its pairs."""
    temperature: float = 0.05
    """Temperature by which cosines are divided."""
    pair_weight: float = 0.2
    """Weight of the pairs' loss; the weight of the masked words' loss is 1."""
    comparison_weight: float = 0.0
    """Weight of the loss of comparing a title with a text in one sequence; 0: no comparison."""
    save_every: int = 500
    """Steps between two checkpoints."""
    workers: int = 0
    """Processes that create batches; 0: a thread, which creates 2 million tokens per second."""
    seed: int = 0
    """Seed of the order and the masks."""
    masking: MaskingConfig = MaskingConfig(mask_rate=0.2)  # noqa: RUF009 (frozen)
    mixing: MixingConfig = MixingConfig()  # noqa: RUF009
    # Without more weight decay the weights grow, and single texts lose (docs/LOG.md).
    optimizer: OptimizerConfig = OptimizerConfig(  # noqa: RUF009
        "muon",
        learning_rate=7e-4,
        warmup=0.02,
        schedule="wsd",
        decay_share=0.4,
        weight_decay=0.3,
    )


class JointModel(PretrainingModel):
    """A masked language model trained on batches that also have titles and texts."""

    def __init__(self, model: RoFormerForMaskedLM, config: JointConfig) -> None:
        super().__init__(model, StepConfig())
        self.joint_config = config

    def call(self, inputs: dict[str, Any], training: bool | None = None) -> Any:
        """Return the losses of the masked words, (B, P)."""
        pair_inputs = {"titles", "texts", *INPUTS}
        rows = {name: x for name, x in inputs.items() if name not in pair_inputs}
        return super().call(rows, training=training)

    def compute_loss(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the loss of masked words plus that of titles (N, T) and texts (N, S), in nats."""
        masked_loss = super().compute_loss(x, *args, **kwargs)
        pairs = zip(self.vectors(x["titles"]), self.vectors(x["texts"]), strict=True)
        pair_loss = sum(contrastive_loss(a, b, self.joint_config.temperature) for a, b in pairs)
        return masked_loss + self.joint_config.pair_weight * pair_loss

    def vectors(self, token_ids: Any) -> tuple[Any, Any]:
        """Return the vectors of [CLS] and the means of all tokens, (N, H) float32 each."""
        hidden = self.model.encoder({"token_ids": token_ids}, training=True)
        hidden = ops.cast(hidden, "float32")
        present = ops.cast(ops.not_equal(token_ids, 0), "float32")[..., None]
        return hidden[:, 0], ops.sum(hidden * present, axis=1) / ops.sum(present, axis=1)


class ComparingModel(JointModel):
    """A `JointModel` that also compares a title with a text in one sequence.

    The comparison has a head of its own, which is not part of the language model.
    """

    def build(self, input_shape: Any = None) -> None:
        """Create the head of the comparison."""
        self.comparison_head = keras.layers.Dense(2, dtype="float32", name="comparison")
        self.comparison_head.build((None, None, self.model.config.hidden_size))
        super().build(input_shape)

    def compute_loss(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return the loss of the other objectives plus that of the comparison, in nats."""
        loss = super().compute_loss(x, *args, **kwargs)
        inputs = {"token_ids": x["both"], "segment_ids": x["segments"]}
        hidden = self.model.encoder(inputs, training=True)
        logits = self.comparison_head(ops.cast(hidden, "float32"))
        compared = comparison_loss(logits, x["shared"], x["overlap"])
        return loss + self.joint_config.comparison_weight * compared


def training_model(model: RoFormerForMaskedLM, config: JointConfig) -> JointModel:
    """Return the model with the objectives of the settings."""
    return (ComparingModel if config.comparison_weight else JointModel)(model, config)


def tokens_per_step(config: JointConfig) -> int:
    """Return the number of tokens of a step, rows and pairs, including padding."""
    rows = PreparedRows.open(Path(config.rows)).length
    pair = config.title_length + config.text_length
    tokens = config.batch_size * rows + config.pair_batch_size * pair
    if config.comparison_weight:
        compared = config.title_length + config.compared_length - 1
        tokens += min(config.compared_batch_size, config.pair_batch_size) * compared
    return tokens


def contrastive_loss(a: Any, b: Any, temperature: float) -> Any:
    """Return the symmetric contrastive loss (InfoNCE) of vectors a and b (N, H), in nats."""
    cosines = ops.matmul(ops.normalize(a, axis=-1), ops.transpose(ops.normalize(b, axis=-1)))
    scores = cosines / temperature
    targets = ops.arange(ops.shape(scores)[0])
    losses = (
        ops.sparse_categorical_crossentropy(targets, direction, from_logits=True)
        for direction in (scores, ops.transpose(scores))
    )
    return sum(ops.mean(loss) for loss in losses) / 2


def read_pairs(
    config: JointConfig, tokenizer: RoFormerTokenizer, name: str = PAIRS
) -> tuple[np.ndarray, np.ndarray]:
    """Return titles (N, T) and texts (N, S) int32, padded with 0. They are cached in the run."""
    cache = Path(config.output) / name
    if not cache.exists():
        lines = Path(config.pairs).read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines]

        def encode(side: str, length: int) -> np.ndarray:
            texts = [tokenizer.encode(entry[side], max_length=length)[0] for entry in entries]
            return padded([np.array(text, "int32") for text in texts], (len(texts), length))

        with temporary_file(cache) as temporary, temporary.open("wb") as file:
            titles, texts = (
                encode("text_a", config.title_length),
                encode("text_b", max(config.text_length, config.compared_length)),
            )
            np.savez(file, titles=titles, texts=texts)
    with np.load(cache) as arrays:
        return arrays["titles"], arrays["texts"]


class Batches:
    """Map a step to its batch. Worker processes receive only the settings and open the files."""

    def __init__(self, config: JointConfig) -> None:
        self.config = config
        self.files: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Batches, (self.config,)

    def __call__(self, step: int) -> Any:
        """Return inputs (including labels), labels and weights."""
        self.files = self.files or self.open()
        config, (tokenizer, pairs, character_pairs, *sources) = self.config, self.files
        titles, texts = pairs
        epoch, position = divmod(step, len(titles) // config.pair_batch_size)
        order = np.random.default_rng((config.seed, epoch)).permutation(len(titles))
        chosen = order[position * config.pair_batch_size :][: config.pair_batch_size]
        inputs, labels, weights = keras.tree.map_structure(
            lambda *parts: np.concatenate(parts), *(source[step] for source in sources)
        )
        matched = cut(texts[chosen], config.text_length, tokenizer.sep_id)
        inputs |= {"titles": titles[chosen], "texts": matched, "labels": labels}
        if config.comparison_weight:
            rng = np.random.default_rng((config.seed, step))
            # Half of the steps compare characters.
            titles, texts = character_pairs if rng.random() < 0.5 else pairs
            chosen = chosen[: config.compared_batch_size]
            compared = cut(texts[chosen], config.compared_length, tokenizer.sep_id)
            special = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id)
            inputs |= side_by_side(titles[chosen], compared, special, rng)
        return inputs, labels, weights

    def open(self) -> tuple[Any, ...]:
        """Return the tokenizer, pairs of words and of characters, and the batches of both.

        Only the comparison needs the pairs of characters.
        """
        config = self.config
        tokenizer = RoFormerTokenizer.from_pretrained(config.rows)

        def rows(folder: str, size: int) -> grain.MapDataset:
            return pretraining_batches(
                PreparedRows.open(Path(folder)),
                batch_size=size,
                seed=config.seed + 1,  # another order than in the first stage
                objective=make_objective("masked", tokenizer, config.masking),
                mixing=config.mixing,
            )

        words = rows(config.rows, config.batch_size - config.character_rows)
        characters = rows(config.characters, config.character_rows)
        pairs, character_pairs = read_pairs(config, tokenizer), None
        if config.comparison_weight:
            by_characters = RoFormerTokenizer.from_pretrained(config.characters)
            character_pairs = read_pairs(config, by_characters, CHARACTER_PAIRS)
        return tokenizer, pairs, character_pairs, words, characters


def main(config: JointConfig) -> None:
    """Train or resume a run; the model is written to OUTPUT/model."""
    output = Path(config.output)
    output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(config.seed)
    model = RoFormerForMaskedLM.from_pretrained(config.init_from, dtype=choose_precision("auto"))
    tokenizer = RoFormerTokenizer.from_pretrained(config.init_from)
    joint = training_model(model, config)
    joint.compile(
        make_optimizer(
            config.optimizer, joint.trainable_variables, config.steps, model.compute_dtype
        ),
        MaskedTokenLoss(),
        jit_compile=choose_jit(),
    )
    settings = str(zlib.crc32(repr(replace(config, workers=0)).encode()))
    start, _ = resume(output / CHECKPOINTS, joint, settings)
    if not start:  # the cache may be of a run with other settings
        for name in (PAIRS, CHARACTER_PAIRS):
            (output / name).unlink(missing_ok=True)
    held_out_sample = held_out(config, tokenizer)
    metrics = TokenMetrics(model)
    with (
        metrics_file(output / METRICS_FILE, resumed_at=start, board="training") as write_line,
        metrics_file(
            output / EVALUATIONS_FILE, resumed_at=start, board="held_out"
        ) as write_evaluation,
        StepLog(
            write_line,
            every=10,
            tokens_per_step=tokens_per_step(config),
            uniform_loss=float("inf"),
            start=start,
            last=config.steps,
        ) as log,
    ):

        def save(step: int) -> None:
            result = evaluate(metrics, held_out_sample, {"all": EVALUATION_ROWS})
            write_evaluation({"step": step} | result.line())
            say("step {step:,}: {result}", step=step, result=result)
            model.save_pretrained(
                output / "model", max_length=PreparedRows.open(Path(config.rows)).length
            )
            save_checkpoint(output / CHECKPOINTS, step, settings, joint, keep=1)

        if start < config.steps:
            joint.fit(
                fed(prefetched_batches(config, start), static_shapes=True),
                steps_per_epoch=config.steps - start,
                shuffle=False,  # the batches are already shuffled
                callbacks=[log, PeriodicCallback(save, every=config.save_every, log=log)],
                verbose=0,
            )


def prefetched_batches(config: JointConfig, start: int) -> grain.IterDataset:
    """Return the batches from a step on, prefetched by a thread or by several processes."""
    batches = prefetched(grain.MapDataset.range(start, config.steps).map(Batches(config)))
    if not config.workers:
        return batches
    flags.FLAGS.mark_as_parsed()  # grain reads absl flags; use their defaults
    options = grain.MultiprocessingOptions(config.workers, per_worker_buffer_size=8)
    return batches.mp_prefetch(options)


def held_out(config: JointConfig, tokenizer: RoFormerTokenizer) -> Any:
    """Return batches of an even sample of all held-out rows, with 15 % of words masked."""
    rows = PreparedRows.open(Path(config.rows), "held_out")
    sample = held_out_sample(rows.corpora, EVALUATION_ROWS)
    return held_out_batches(
        rows,
        batch_size=config.batch_size,
        seed=0,
        objective=make_objective("masked", tokenizer, MaskingConfig()),
        numbers=np.concatenate(list(sample.values())).tolist(),
    )


if __name__ == "__main__":
    main(settings_of(JointConfig))
