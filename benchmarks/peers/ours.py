"""Our package with the default settings of its commands."""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count as numbers
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.peers import inputs
from benchmarks.peers.worker import (
    Figures,
    Prepared,
    fresh_processes,
    peak_memory,
    peak_of_children,
    serve,
    timed,
    timed_without_setup,
)

ENDLESS = sys.maxsize

START = """
import sys, time
began = time.perf_counter()
import keras
from roformer_tf import RoFormerForMaskedLM
imported = time.perf_counter()
model = RoFormerForMaskedLM.from_pretrained(sys.argv[1])
loaded = time.perf_counter()
model(model.tokenizer(["一丁一七一丈"]))
print(imported - began, loaded - imported, time.perf_counter() - loaded)
"""


def mlm_step(*, checkpoint: str, batch: int, length: int, dropout: float) -> Prepared:
    """`pretrain`'s step from a checkpoint, repeated on one batch."""
    from roformer_tf import RoFormerForMaskedLM
    from roformer_tf.training.devices import choose_precision

    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    model = RoFormerForMaskedLM.from_pretrained(
        f"{checkpoint}/own", dtype=choose_precision("auto"), **rates
    )
    return training(model, repeated_batch(full_batch(batch, length, model.config.vocab_size)))


def scaled_step(*, shape: dict[str, Any], batch: int, length: int) -> Prepared:
    """The same step of a new model of the given shape."""
    from roformer_tf import RoFormerConfig

    model = new_model(RoFormerConfig(**shape, max_position_embeddings=length))
    step = training(model, repeated_batch(full_batch(batch, length, shape["vocab_size"])))
    return step._replace(facts=step.facts | {"tokens_a_step": batch * length})


def fed_step(*, rows: str, batch: int, data: str) -> Prepared:
    """The step on "real" rows, masked by a thread, or on "one" batch; "no": only the rows."""
    from roformer_tf.corpus.batches import pretraining_batches
    from roformer_tf.corpus.objectives import MaskingConfig, make_objective
    from roformer_tf.corpus.shards import PreparedRows
    from roformer_tf.pretraining.settings import read_architecture
    from roformer_tf.pretraining.training_loop import with_labels
    from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
    from roformer_tf.training.fitting import prefetched

    tokenizer = RoFormerTokenizer.from_pretrained(rows)
    batches = pretraining_batches(
        PreparedRows.open(rows),
        batch_size=batch,
        seed=0,
        objective=make_objective("masked", tokenizer, MaskingConfig()),
    ).map(with_labels)
    if data == "no":
        endless = iter(prefetched(batches))
        return Prepared(timed(lambda: next(endless)), {})
    model = new_model(read_architecture("small").replace(vocab_size=tokenizer.vocab_size))
    return training(model, prefetched(batches) if data == "real" else repeated_batch(batches[0]))


def profiled_step(*, checkpoint: str, forms: str, **settings: Any) -> Prepared:
    """Profile of the step, with the plain or the fast implementations."""
    import tensorflow as tf

    from benchmarks.peers.operations import milliseconds
    from roformer_tf.kernels.forms import plain_forms

    tf.config.threading.set_inter_op_parallelism_threads(1)  # one operation at a time
    with plain_forms() if forms == "plain" else nullcontext():
        step = mlm_step(checkpoint=checkpoint, **settings)

    def run(count: int) -> Figures:
        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            figures = step.run(count)
            tf.profiler.experimental.stop()
            return figures | {"milliseconds": milliseconds(Path(folder), count)}

    return Prepared(run, step.facts)


def new_model(config: Any) -> Any:
    """Return a model with random weights in the precision that `pretrain` chooses."""
    from roformer_tf import RoFormerForMaskedLM
    from roformer_tf.training.devices import choose_precision

    return RoFormerForMaskedLM(config, dtype=choose_precision("auto"))


def training(model: Any, batches: Any) -> Prepared:
    """Compile and fit with the arguments that `pretrain` uses.

    A round is timed from the start of its first step to the end of its last.
    """
    import keras

    from roformer_tf.pretraining.settings import StepConfig
    from roformer_tf.pretraining.train_step import MaskedTokenLoss, PretrainingModel
    from roformer_tf.training.devices import choose_jit
    from roformer_tf.training.optimizers import make_optimizer
    from roformer_tf.training.settings import OptimizerConfig

    optimizer = make_optimizer(
        OptimizerConfig(), model.trainable_variables, 1_000_000, model.compute_dtype
    )
    trained = PretrainingModel(model, StepConfig())
    trained.compile(optimizer, MaskedTokenLoss(), jit_compile=choose_jit())

    class Stopwatch(keras.callbacks.Callback):
        began = ended = 0.0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                self.began = time.perf_counter()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ended = time.perf_counter()

    watch = Stopwatch()

    def run(count: int) -> Figures:
        history = trained.fit(
            batches, steps_per_epoch=count, shuffle=False, callbacks=[watch], verbose=0
        )
        return {"seconds": watch.ended - watch.began, "loss": history.history["loss"][0]}

    first = run(1)["loss"]
    return Prepared(run, {"first_loss": first, "precision": model.dtype_policy.name})


def repeated_batch(batch: Any) -> Any:
    """Return an endless pipeline of one batch, with the prefetching of real batches."""
    import grain

    from roformer_tf.training.fitting import prefetched

    return prefetched(grain.MapDataset.range(ENDLESS).map(lambda _: batch))


def full_batch(batch: int, length: int, vocabulary: int) -> tuple[Any, ...]:
    """Return a batch of full rows in the form in which `pretrain` passes it to its model."""
    result = inputs.masked_batch(batch, length, vocabulary)
    tokens = {
        "token_ids": result.token_ids.astype("int32"),
        "sequence_ids": np.ones((batch, length), "int32"),
        "masked_positions": result.positions.astype("int32"),
        "labels": result.labels.astype("int32"),
    }
    return tokens, result.labels.astype("int32"), np.ones(result.labels.shape, "float32")


def inference(*, checkpoint: str, texts: str, precision: str, engine: str = "keras") -> Prepared:
    """Hidden states of one text or of 32 texts of mixed lengths, in the batches of `predict`."""
    from roformer_tf.models.rows import run_rows

    model, vocab_size = (_by_keras if engine == "keras" else _by_graph)(
        f"{checkpoint}/own", engine, precision
    )
    rows = inputs.rows_of(texts, vocab_size)
    return Prepared(
        timed(lambda: run_rows(model, rows)), inputs.state_figure(run_rows(model, rows))
    )


def _by_keras(folder: str, _: str, precision: str) -> tuple[Any, int]:
    from roformer_tf import RoFormerEncoder

    model = RoFormerEncoder.from_pretrained(folder, dtype=precision)
    return model, model.config.vocab_size


def _by_graph(folder: str, engine: Any, precision: Any) -> tuple[Any, int]:
    from roformer_tf.checkpoints.sources import OpenedSource
    from roformer_tf.engines.choice import choose
    from roformer_tf.engines.model import graph_model
    from roformer_tf.engines.network import Network

    chosen = choose(engine, precision)  # its message names a missing package
    assert (chosen.engine, chosen.precision) == (engine, precision), chosen.note
    with OpenedSource(folder) as source:
        checkpoint = source.checkpoint()
        network = Network(checkpoint.config, checkpoint.arrays)
        return graph_model(network, engine, precision), checkpoint.config.vocab_size


def generate(*, checkpoint: str, batch: int, prompt: int, new: int, dtype: str) -> Prepared:
    """Greedy generation; also reports the time of the first call, an early and a late token."""
    from roformer_tf import RoFormerForCausalLM
    from roformer_tf.models.generation_config import GenerationConfig

    model = RoFormerForCausalLM.from_pretrained(
        f"{checkpoint}/own", dtype=dtype, attention_type="causal"
    )
    prompts = inputs.prompts(batch, prompt, model.config.vocab_size)
    config = GenerationConfig(max_tokens=new, min_tokens=new)
    times: list[float] = []

    def work() -> Any:
        times.clear()
        return model.generate_ids(
            prompts, config, rows=batch, on_token=lambda *_: times.append(time.perf_counter())
        )

    began = time.perf_counter()
    first = work()
    first_call = time.perf_counter() - began
    assert all(len(item.token_ids) == new for (item,) in first)

    def run(count: int) -> Figures:
        actual = timed(work)(count)
        steps = np.diff(np.array(times).reshape(new, batch)[:, 0])
        early, late = (float(np.median(x)) for x in (steps[5:20], steps[-15:]))
        return actual | {"early_token": early, "late_token": late}

    return Prepared(run, {"first_call": first_call})


def paraphrase(*, checkpoint: str, samples: int, new: int) -> Prepared:
    """Paraphrases by the code of `generate --paraphrases`; one sentence is one unit of work."""
    from roformer_tf import RoFormerForSentenceSimilarity
    from roformer_tf.inference.generate import GenerateConfig, generate_texts
    from roformer_tf.models.generation_config import GenerationConfig

    together = 8
    model = RoFormerForSentenceSimilarity.from_pretrained(
        f"{checkpoint}/own", attention_type="unilm"
    )
    texts = inputs.sentences(together)
    config = GenerateConfig(
        model="",
        text=tuple(texts),
        generation=GenerationConfig(samples=samples, max_tokens=new),
        paraphrases=samples,
        batch_size=together * samples,
    )
    list(generate_texts(model, texts, config))

    def run(count: int) -> Figures:
        actual = timed(lambda: list(generate_texts(model, texts, config)))(count)
        return {"seconds": actual["seconds"] / together}

    return Prepared(run, {})


def embed(*, model: str, texts: str, dtype: Literal["float32", "bfloat16"]) -> Prepared:
    """Vectors of all lines of a file, written like `embed` writes them but without its checks."""
    from roformer_tf.inference.embed import VectorSettings
    from roformer_tf.inference.vector_files import vector_file

    embedder = VectorSettings(precision=dtype).open(model)
    folder = tempfile.TemporaryDirectory()  # deleted when it is garbage-collected

    def work() -> None:
        output = f"{folder.name}/vectors.npy"
        with Path(texts).open(encoding="utf-8") as file:
            lines = [line.rstrip("\n") for line in file]
        with vector_file(output, embedder, len(lines)) as write:
            for block in embedder.blocks(lines):
                write(block.texts, block.vectors)

    def run(count: int) -> Figures:
        actual = timed(work)(count)
        return actual | inputs.vector_figures(np.load(f"{folder.name}/vectors.npy", mmap_mode="r"))

    return Prepared(run, {})


def rotary(*, form: str, dtype: str) -> Prepared:
    """Rotation of queries and keys, forward and backward."""
    import tensorflow as tf

    from roformer_tf.layers import rotary as forms

    rotate = {"ours": forms.rotate, "paper": forms.rotate_as_in_the_paper}[form]

    @tf.function
    def call(query: Any, key: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([query, key])
            rotated_pair = [rotate(x, tf.range(x.shape[1])) for x in (query, key)]
        return tape.gradient(rotated_pair, [query, key], [query, key])

    query, key = (tf.cast(x, dtype) for x in inputs.queries_and_keys())
    return Prepared(timed(lambda: call(query, key)), {})


def split(*, rotated: bool, dtype: str) -> Prepared:
    """Splitting of a step's projection, with or without rotation, forward and backward.

    The difference is the cost of rotation in each layer.
    """
    import tensorflow as tf

    from roformer_tf.kernels.forms import island, with_gradient
    from roformer_tf.kernels.rotation import split_and_rotate
    from roformer_tf.layers.rotary import angles

    @island
    def split_heads(projected: Any) -> Any:  # (B, T, 3, N, 2, H/2) → 3 × (B, N, T, H)
        query, key, value = tf.unstack(tf.transpose(projected, (2, 0, 3, 1, 4, 5)))
        flat = [tf.reshape(x, (*x.shape[:3], -1)) for x in (query, key, value)]
        return flat[0] * flat[0].shape[-1] ** -0.5, flat[1], flat[2]

    @island
    def merge_heads(query: Any, key: Any, value: Any) -> Any:
        flat = tf.stack([query * query.shape[-1] ** -0.5, key, value])
        pairs = tf.reshape(flat, (*flat.shape[:-1], 2, -1))
        return tf.transpose(pairs, (1, 3, 0, 2, 4, 5))

    @with_gradient
    def split_alone(projected: Any) -> Any:
        return split_heads(projected), merge_heads

    @tf.function
    def call(projected: Any) -> Any:
        theta = angles(tf.range(projected.shape[1]), 2 * projected.shape[-1])
        with tf.GradientTape() as tape:
            tape.watch(projected)
            if rotated:
                result = split_and_rotate(projected, tf.cos(theta), tf.sin(theta), training=True)
            else:
                result = split_alone(projected)
        return result, tape.gradient(result, projected, list(result))

    query, key = inputs.queries_and_keys()
    together = np.stack([query, key, key], axis=2)  # (B, T, 3, N, H)
    projected = tf.cast(together.reshape(*together.shape[:-1], 2, -1), dtype)
    return Prepared(timed(lambda: call(projected)), {})


def linear_attention(*, form: str, length: int, causal: bool = False) -> Prepared:
    """Attention over one row, with gradients of input and weights."""
    import tensorflow as tf

    from roformer_tf import RotaryLinearAttention, RotaryMultiHeadAttention
    from roformer_tf.layers.masks import visible_band
    from roformer_tf.layers.self_attention import RoFormerSelfAttention

    arguments: dict[str, Any] = {}
    if form == "softmax":
        layer = RotaryMultiHeadAttention(4, 64)
    elif form == "window":  # equals a local layer with `local_attention` 128
        layer, ids = RoFormerSelfAttention(4, 64), tf.ones((1, length), "int32")
        # Keras cannot: its `build` has the shape of a value, which `call` lacks.
        layer.build((1, length, 256), (1, length, 256))
        arguments["attention_mask"] = visible_band(None, ids, tf.zeros_like(ids), 64)
    else:
        layer = RotaryLinearAttention(4, 64, feature_map=form, causal=causal)

    @tf.function
    def call(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = () if form == "window" else (x,)
            output = layer(x, *values, **arguments)
        return tape.gradient(output, [x, *layer.trainable_variables], output)[0]

    x = tf.constant(np.random.default_rng(0).normal(size=(1, length, 256)), "float32")
    call(x)
    return Prepared(timed(lambda: call(x)), {"tokens": length})


def tokenization(*, corpus: str, tokenizer: str) -> Prepared:
    """Conversion of every document of a file to ids in one call, with empty tokenizer caches."""
    from roformer_tf import RoFormerTokenizer

    texts = list(inputs.texts_of(corpus))

    def make() -> Callable[[], Any]:
        new = RoFormerTokenizer.from_pretrained(tokenizer)
        return lambda: new.ids_and_words_of(texts)

    ids, _, bounds = make()()
    return Prepared(
        timed_without_setup(make), inputs.text_figures(texts, np.split(ids, bounds[1:-1]))
    )


def preparation(*, corpus: str, **settings: Any) -> Prepared:
    """The whole `prepare` command: documents to words, ids, rows and shards."""
    from roformer_tf.corpus.preparation import PreparationConfig, prepare

    folder = tempfile.TemporaryDirectory()
    outputs = map(Path(folder.name).joinpath, map(str, numbers()))

    def work() -> Path:
        return prepare(PreparationConfig(corpus=(corpus,), output=str(next(outputs)), **settings))

    characters = sum(map(len, inputs.texts_of(corpus)))
    return Prepared(
        timed(work), {"characters": characters}, lambda: max(peak_memory(), peak_of_children())
    )


def startup(*, checkpoint: str, layout: str) -> Prepared:
    """A process that imports, loads a checkpoint, predicts one text, and ends."""
    return fresh_processes(START, f"{checkpoint}/{layout}")


if __name__ == "__main__":
    cases: list[Callable[..., Prepared]] = [
        mlm_step,
        scaled_step,
        fed_step,
        profiled_step,
        inference,
        generate,
        paraphrase,
        embed,
    ]
    cases += [rotary, split, linear_attention, tokenization, preparation, startup]
    serve(cases, ("roformer-tf", "keras", "tensorflow"))
