"""bert4keras with the settings of its scripts; "tuned" adds TensorFlow's automatic bfloat16."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jieba
import numpy as np
import tensorflow as tf
import tf_keras
from bert4keras.backend import apply_rotary_position_embeddings
from bert4keras.layers import SinusoidalPositionEmbedding
from bert4keras.models import build_transformer_model
from bert4keras.snippets import AutoRegressiveDecoder
from bert4keras.tokenizers import Tokenizer

from benchmarks.peers import inputs
from benchmarks.peers.worker import Prepared, fresh_processes, serve, timed, timed_without_setup

VOCABULARY = 50_000

START = """
import sys, time
began = time.perf_counter()
from bert4keras.models import build_transformer_model
from bert4keras.tokenizers import Tokenizer
import numpy as np
imported = time.perf_counter()
folder = sys.argv[1]
tokenizer = Tokenizer(f"{folder}/vocab.txt", do_lower_case=True)
model = build_transformer_model(
    f"{folder}/bert_config.json", f"{folder}/bert_model.ckpt", model="roformer", with_mlm="linear"
)
loaded = time.perf_counter()
ids, segments = tokenizer.encode("一丁一七一丈")
model.predict([np.array([ids]), np.array([segments])], verbose=0)
print(imported - began, loaded - imported, time.perf_counter() - loaded)
"""


def mlm_step(*, checkpoint: str, batch: int, length: int, dropout: float, variant: str) -> Prepared:
    """`train_on_batch` of the masked language model: every position is projected."""
    if variant == "tuned":
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
    model = build_transformer_model(
        f"{checkpoint}/tf1/bert_config.json",
        f"{checkpoint}/tf1/bert_model.ckpt",
        model="roformer",
        with_mlm="linear",
        dropout_rate=dropout,
        attention_dropout_rate=dropout,
    )
    model.compile(tf_keras.optimizers.AdamW(1e-4, weight_decay=0.01), masked_loss)
    result = inputs.masked_batch(batch, length, model.output_shape[-1])
    tokens = result.token_ids.astype("int32")
    rows = (tokens, tokens * 0), result.labels_everywhere().astype("int32")
    batches = iter(tf.data.Dataset.from_tensors(rows).repeat())
    function = model.make_train_function()

    def step() -> float:
        return float(function(batches)["loss"])

    return Prepared(timed(step), {"first_loss": step(), "precision": "float32"})


def masked_loss(labels: Any, logits: Any) -> Any:
    """Cross-entropy averaged over the masked positions, as in bert4keras' script."""
    predicted = tf.cast(labels >= 0, "float32")
    losses = tf_keras.losses.sparse_categorical_crossentropy(
        tf.maximum(labels, 0), logits, from_logits=True
    )
    return tf.reduce_sum(losses * predicted) / tf.reduce_sum(predicted)


def inference(*, checkpoint: str, texts: str) -> Prepared:
    """Hidden states by `predict`, with texts padded to the longest."""
    model = build_transformer_model(
        f"{checkpoint}/tf1/bert_config.json",
        f"{checkpoint}/tf1/bert_model.ckpt",
        model="roformer",
    )
    rows = inputs.rows_of(texts, VOCABULARY)
    ids, _ = inputs.padded(rows)

    def work() -> Any:
        return model.predict([ids, ids * 0], batch_size=len(ids), verbose=0)

    states = [each[: len(row)] for each, row in zip(work(), rows, strict=True)]
    return Prepared(timed(work), inputs.state_figure(states))


class Generator(AutoRegressiveDecoder):
    """Generator of the released scripts."""

    def __init__(self, model: Any, unilm: bool, new: int) -> None:
        super().__init__(start_id=None, end_id=3, maxlen=new)
        self.model, self.unilm = model, unilm

    @AutoRegressiveDecoder.wraps(default_rtype="logits")
    def predict(self, inputs: Any, output_ids: Any, states: Any) -> Any:
        """Return the logits of the next token of each row."""
        token_ids = np.concatenate([inputs[0], output_ids], 1)
        segment_ids = np.concatenate([0 * inputs[0], 0 * output_ids + self.unilm], 1)
        return self.last_token(self.model).predict([token_ids, segment_ids], verbose=0)


def language_model(checkpoint: str, application: str) -> Any:
    """Return the checkpoint as a language model; application is "lm" or "unilm"."""
    return build_transformer_model(
        f"{checkpoint}/tf1/bert_config.json",
        f"{checkpoint}/tf1/bert_model.ckpt",
        model="roformer",
        application=application,
        with_mlm="linear",
    )


def generate(*, checkpoint: str, batch: int, prompt: int, new: int) -> Prepared:
    """Greedy generation from prompts of one length; each step encodes all tokens again."""
    generator = Generator(language_model(checkpoint, "lm"), False, new)
    prompts = np.array(inputs.prompts(batch, prompt, VOCABULARY))

    def work(steps: int = new) -> Any:
        ids = np.zeros((batch, 0), int)
        for _ in range(steps):  # bert4keras' `beam_search` supports only one prompt
            scores = generator.predict([prompts], ids, None)[0]
            ids = np.concatenate([ids, scores.argmax(1)[:, None]], 1)
        return ids

    work(2)
    return Prepared(timed(work), {})


def paraphrase(*, checkpoint: str, samples: int, new: int) -> Prepared:
    """`gen_synonyms` of the released generate.py; one sentence is one unit of work."""
    model = language_model(checkpoint, "unilm")
    last = model.get_layer("Transformer-11-FeedForward-Norm")
    encoder = tf_keras.Model(model.inputs, last.output)
    generator = Generator(model, True, new)
    tokenizer = Tokenizer(f"{checkpoint}/tf1/vocab.txt", do_lower_case=True)
    ids, _ = tokenizer.encode(inputs.sentences(1)[0])

    def work() -> Any:
        drawn = generator.random_sample([ids], samples, 5)
        rows = np.array([[*ids, *[0] * new][: len(ids) + new] for _ in drawn])
        return encoder.predict([rows, rows * 0], verbose=0)[:, 0]

    return Prepared(timed(work), {})


def rotary(*, dtype: str) -> Prepared:
    """Rotation of queries and keys, forward and backward."""
    query, key = (tf.cast(x, dtype) for x in inputs.queries_and_keys())
    positions = SinusoidalPositionEmbedding(query.shape[-1], merge_mode="zero")
    table = tf.cast(positions(tf.zeros((1, *query.shape[1::2]))), dtype)

    @tf.function
    def call(query: Any, key: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([query, key])
            rotated = apply_rotary_position_embeddings(table, query, key)
        return tape.gradient(rotated, [query, key], [query, key])

    call(query, key)
    return Prepared(timed(lambda: call(query, key)), {})


def tokenization(*, corpus: str, tokenizer: str, word: bool) -> Prepared:
    """Conversion of every document of a file to ids."""
    texts = list(inputs.texts_of(corpus))

    def make() -> Callable[[], Any]:
        new = Tokenizer(
            f"{tokenizer}/vocab.txt",
            do_lower_case=True,
            pre_tokenize=partial(jieba.cut, HMM=False) if word else None,
        )
        return lambda: [new.tokens_to_ids(new.tokenize(text)[1:-1]) for text in texts]

    return Prepared(timed_without_setup(make), inputs.text_figures(texts, make()()))


def startup(*, checkpoint: str) -> Prepared:
    """A process that imports, loads an unpacked checkpoint, predicts one text, and ends."""
    return fresh_processes(START, f"{checkpoint}/tf1")


if __name__ == "__main__":
    serve(
        [mlm_step, inference, generate, paraphrase, rotary, tokenization, startup],
        ("bert4keras", "tf-keras", "tensorflow", "jieba"),
    )
