"""Tests of every family of released models against every output recorded of it.

The run prints a table at the end: family × output × largest difference.
"""

import re
from functools import cache

import numpy as np
import pytest
from keras import ops

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.layers.masks import visible_keys
from roformer_tf.models.encoder import sequences
from roformer_tf.models.heads import (
    RoFormerForCausalLM,
    RoFormerForMaskedLM,
    RoFormerForSentenceSimilarity,
    RoFormerForSequenceClassification,
)

pytestmark = pytest.mark.usefixtures("eager_steps")
HIDDEN, LOGITS, EXACT = 1e-5, 2e-5, 0.0
"""Bounds of the largest difference."""


class Recording(dict):
    """The arrays recorded of one family, and the checkpoint from which they were computed."""

    def __init__(self, arrays, source):
        super().__init__(arrays)
        self.source = source
        self._computed = {}

    def inputs(self, of=""):
        """Return the inputs of a model; `of` is the key prefix of a second set of sequences."""
        return {key: self[of + key] for key in ("token_ids", "segment_ids")}

    def cached(self, name, compute):
        """Return compute(), cached for the keys that share it."""
        if name not in self._computed:
            self._computed[name] = compute()
        return self._computed[name]

    def real(self, of=""):
        """Return (B, T) bool: the positions to compare, always including the first."""
        real = self[f"{of}token_ids"] != 0
        real[:, 0] = True
        return real


# --- Functions of a recorded key: our output and the recorded one, at the positions to compare ----


def attended(model, recording, key):
    return array(sequences(recording.inputs()) != 0), recording[key]


def mask(model, recording, key):
    documents, segments = sequences(recording.inputs()), recording["segment_ids"]
    visible, real = visible_keys(model.config.attention_type, documents, segments), recording.real()
    return array(visible)[real], recording[key][real]


def hidden(model, recording, key):
    of = key.removesuffix("hidden")
    states, real = model.encoder.hidden_states(recording.inputs(of)), recording.real(of)
    return np.stack([array(state)[real] for state in states]), recording[key][:, real]


def hidden_last(model, recording, key):
    of = key.removesuffix("hidden_last")
    states, real = model.encoder(recording.inputs(of)), recording.real(of)
    return array(states)[real], recording[key][real]


def transform(model, recording, key):
    states, real = model.encoder(recording.inputs()), recording.real()
    return array(model.mlm.transform(states))[real], recording[key][real]


def some_logits(model, recording, key):
    at = tuple(recording[key.replace("logits", "at")].T)
    real = recording.real()[at]  # a few were recorded at padding
    assert real.sum() >= 5
    return scores(model, recording)[at][real], recording[key][real]


def some_probabilities(model, recording, key):
    at = tuple(recording[key.replace("probs", "at")][:4].T)
    assert recording.real()[at].all()
    return softmax(scores(model, recording)[at]), recording[key]


def log_sum_of_exponents(model, recording, key):
    logits, real = scores(model, recording), recording.real()
    return np.log(np.exp(logits[real]).sum(-1)), recording[key][real]


def most_likely(model, recording, key):
    logits, real = scores(model, recording), recording.real()
    return logits[real].argmax(-1), recording[key][real]


def logits_of_tokens(model, recording, key):
    logits, real = scores(model, recording), recording.real()
    arguments = np.take_along_axis(logits, recording["token_ids"][..., None], -1)[..., 0]
    return arguments[real], recording[key][real]


def greedy_continuation(model, recording, key):
    ids, probabilities = recording.cached(
        "continued", lambda: _greedy_continuation(model, recording)
    )
    return (ids if key == "greedy_ids" else probabilities), recording[key]


def _greedy_continuation(model, recording):
    """Generate eight most likely tokens after the second sequence without its [SEP]."""
    length = recording.real()[1].sum() - 1
    ids, top_two = np.zeros((1, length + 8), "int32"), []
    ids[:, :length] = recording["token_ids"][1, :length]
    for last in range(length - 1, length + 7):  # causal attention ignores later tokens
        logits = array(model({"token_ids": ids}))[:, last]
        ids[:, last + 1] = logits.argmax(-1)
        top_two.append(np.sort(softmax(logits)[0])[:-3:-1])
    return ids, np.stack(top_two)


def pooled(model, recording, key):
    return array(model(recording.inputs())["embedding"]), recording[key]


def sentence(model, recording, key):
    vectors = recording.cached(
        "sentence", lambda: array(model(recording.inputs("sentence_"))["embedding"])
    )
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    arguments = {"sentence": vectors, "sentence_unit": units, "similarity": units @ units.T}
    return arguments[key], recording[key]


def pair_head(model, recording, key):
    """Compute BERT's pooler and its next-sentence head, for which we have no class."""
    vectors = np.tanh(array(model(recording.inputs())["embedding"]))
    if key == "pooled_tanh":
        return vectors, recording[key]
    with OpenedSource(recording.source) as source:
        arrays = source.checkpoint().arrays
        kernel, bias = (arrays[f"seq_relationship/{of}"] for of in ("kernel", "bias"))
    return softmax(vectors @ kernel + bias), recording[key]


def labels(model, recording, key):
    return array(model(recording.inputs())), recording[key]


def scores(model, recording):
    """Return logits (B, T, V) in float64."""

    def compute():
        arguments = model(recording.inputs())
        return array(arguments["logits"] if isinstance(arguments, dict) else arguments).astype(
            "float64"
        )

    return recording.cached("scores", compute)


def softmax(logits):
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def array(tensor):
    return ops.convert_to_numpy(tensor)


OUTPUTS = {
    "attended": (attended, EXACT),
    "unilm_mask": (mask, EXACT),
    "hidden": (hidden, HIDDEN),
    "hidden_last": (hidden_last, HIDDEN),
    "edge_hidden_last": (hidden_last, HIDDEN),
    "mlm_transform": (transform, HIDDEN),
    "greedy_ids": (greedy_continuation, EXACT),
    "greedy_top2_probs": (greedy_continuation, HIDDEN),
    "pooled": (pooled, HIDDEN),
    "sentence_hidden": (hidden, HIDDEN),
    "sentence": (sentence, HIDDEN),
    "sentence_unit": (sentence, HIDDEN),
    "similarity": (sentence, HIDDEN),
    "pooled_tanh": (pair_head, HIDDEN),
    "nsp_probs": (pair_head, HIDDEN),
    "logits": (labels, LOGITS),
}
for head in ("mlm", "lm"):
    OUTPUTS |= {
        f"{head}_logits": (some_logits, LOGITS),
        f"{head}_logsumexp": (log_sum_of_exponents, LOGITS),
        f"{head}_token_logit": (logits_of_tokens, LOGITS),
        f"{head}_probs": (some_probabilities, LOGITS),
        f"{head}_argmax": (most_likely, EXACT),
    }

# --- The recorded outputs of each family ---------------------------------------------------------

ENCODER = ["attended", "hidden", "edge_hidden_last"]
MASKED_LM = [output for output in OUTPUTS if output.startswith("mlm_")]
CAUSAL_LM = [output for output in OUTPUTS if output.startswith(("lm_", "greedy_"))]
SIMILARITY = [output for output in OUTPUTS if output.startswith(("lm_", "sentence"))]
SIMILARITY += ["attended", "unilm_mask", "hidden", "pooled", "similarity"]
WITHOUT_TRANSFORM = [output for output in MASKED_LM if output != "mlm_transform"]
FAMILIES = {  # the class that loads it, and its recorded outputs
    "word": (RoFormerForMaskedLM, ENCODER + MASKED_LM),
    "char": (RoFormerForMaskedLM, ENCODER + MASKED_LM),
    "gpt_char": (RoFormerForCausalLM, ["attended", "hidden", *CAUSAL_LM]),
    "sim_char": (RoFormerForSentenceSimilarity, SIMILARITY),
    "sim_char_ft": (RoFormerForSentenceSimilarity, SIMILARITY),
    "v2_char": (RoFormerForMaskedLM, ENCODER + WITHOUT_TRANSFORM),
    "word_project": (RoFormerForMaskedLM, ENCODER + MASKED_LM),
    "word_adam": (RoFormerForSentenceSimilarity, ["hidden_last", "pooled_tanh", "nsp_probs"]),
    "word_long": (RoFormerForMaskedLM, ["attended", "hidden_last"]),
    "hf_word": (RoFormerForMaskedLM, ["hidden", "mlm_logits", "mlm_argmax"]),
    "hf_char": (RoFormerForMaskedLM, ["hidden", "mlm_logits", "mlm_argmax"]),
    "hf_v2_char": (RoFormerForMaskedLM, ENCODER + WITHOUT_TRANSFORM),
    "hf_word_seqcls": (RoFormerForSequenceClassification, ["logits"]),
}


@pytest.fixture(scope="module")
def recording(released, recorded):
    """Return a function: recording("word"). The V2 folder shares the recording of the V2 zip."""

    def load(family):
        if not released(family).exists():
            pytest.skip(f"{released(family)} is not there: make_oracle.py makes no such folder")
        name = "v2_char" if family == "hf_v2_char" else family
        return Recording(recorded(name), released(family))

    return cache(load)


@pytest.fixture(scope="module")
def loaded_model():
    """Return a function: loaded_model("word", source) → its model, loaded once (do not change)."""
    return cache(lambda family, source: FAMILIES[family][0].from_pretrained(source))


@pytest.mark.parametrize(
    ("family", "output"),
    [(family, output) for family, (_, outputs) in FAMILIES.items() for output in outputs],
)
def test_outputs_equal_the_recorded_ones(family, output, recording, loaded_model, record_property):
    arrays, (compute, bound) = recording(family), OUTPUTS[output]
    if family == "word_long" and bound:
        bound = LOGITS  # errors of bert4keras' float32 angles grow with the position
    got, want = compute(loaded_model(family, arrays.source), arrays, output)
    assert got.shape == want.shape
    difference = float(np.abs(got.astype("float64") - want).max())
    record_property("difference", (family, output, float(difference), bound))
    assert difference <= bound


@pytest.mark.parametrize("family", FAMILIES)
def test_every_recorded_output_is_compared(family, recording):
    arguments = re.compile(r"(edge_|sentence_)?(token|segment)_ids|attention_mask|m?lm_at")
    outputs = {key for key in recording(family) if not arguments.fullmatch(key)}
    assert outputs == set(FAMILIES[family][1])
