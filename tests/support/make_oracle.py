"""Make tiny checkpoints with random weights and record the outputs of bert4keras.

This is a separate script because bert4keras needs the old Keras:

    TF_KERAS=1 TF_USE_LEGACY_KERAS=1 python tests/support/make_oracle.py FOLDER --seed 1

It writes the bert4keras files of tests/fixtures/oracle with other weights and inputs: a zip in the
released layout for every family, and an .npz for every recording (the README there explains its
keys). With ROFORMER_TF_ORACLE=FOLDER, tests read this folder instead of their fixtures.

Nothing of roformer_tf is used: names, shapes and layouts are those of bert4keras.
"""

import argparse
import json
import tempfile
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf
from bert4keras.backend import apply_rotary_position_embeddings, keras, sinusoidal_embeddings
from bert4keras.models import build_transformer_model
from bert4keras.snippets import AutoRegressiveDecoder

SPECIAL = {  # ids of [CLS], [SEP], [MASK] and of the first word in the released vocabularies
    "word": (2, 3, 4, 5),
    "char": (101, 102, 103, 104),
}
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
}
SCALES = (  # a weight's standard deviation, by the first matching end of its name …
    ("gamma", 0.2),
    ("beta", 0.1),
    ("bias", 0.2),
    ("embeddings", 0.3),
    ("output_weights", 0.3),
    ("query/kernel", 0.25),
    ("key/kernel", 0.25),
)  # … or 0.85 / sqrt(inputs): large enough that a wrong weight changes the outputs
HEAD = {"MLM-Activation": "logits", "Output-MLM-Activation": "logits", "MLM-Norm": "transform"}
SGD_STEPS, LEARNING_RATE = 20, 0.01
MAX_TOKENS = 12
TRACED = (
    "bert/embeddings/token_type_embeddings",
    "bert/embeddings/LayerNorm/gamma",
    "bert/encoder/layer_0/attention/self/query/kernel",
    "bert/encoder/layer_0/attention/self/key/bias",
    "bert/encoder/layer_1/output/dense/kernel",
    "bert/embeddings/word_embeddings",
)


@dataclass(frozen=True)
class Family:
    """A small version of a released model: its file, bert4keras' arguments and its config."""

    stem: str
    build: dict
    changes: dict = field(default_factory=dict)
    tokens: str = "char"
    model: str = "roformer"

    @property
    def config(self):
        return CONFIG | {"vocab_size": 2003 if self.tokens == "word" else 1501} | self.changes


MASKED, SIMILAR = {"with_mlm": "linear"}, {"application": "unilm", "with_mlm": "linear"}
FAMILIES = {
    "word": Family("chinese_roformer_L-2_H-32_A-4", MASKED, tokens="word"),
    "char": Family(
        "chinese_roformer-char_L-3_H-32_A-4",
        MASKED,
        {"num_hidden_layers": 3, "intermediate_size": 64},
    ),
    "gpt_char": Family(
        "chinese_roformer-gpt-char_L-2_H-32_A-4", {"application": "lm", "with_mlm": "linear"}
    ),
    "sim_char": Family("chinese_roformer-sim-char_L-2_H-32_A-4", SIMILAR | {"with_pool": "linear"}),
    "sim_char_ft": Family(
        "chinese_roformer-sim-char-ft_L-2_H-32_A-4",
        SIMILAR | {"with_pool": "linear"},
        {"intermediate_size": 64},
    ),
    "v2_char": Family(
        "chinese_roformer-v2-char_L-3_H-32_A-4",
        MASKED,
        {"num_hidden_layers": 3, "hidden_act": "relu"},
        model="roformer_v2",
    ),
    "word_project": Family(
        "roformer_project_L-2_H-32_A-4", MASKED, {"embedding_size": 20}, tokens="word"
    ),
    "word_adam": Family(
        "thirdparty_roformer_adam_L-2_H-32_A-4", MASKED | {"with_nsp": True}, tokens="word"
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder, seed = arguments.folder, arguments.seed
    folder.mkdir(parents=True, exist_ok=True)

    def rng(name):
        return np.random.default_rng([seed, zlib.crc32(name.encode())])

    def save(name, arrays):
        np.savez_compressed(folder / f"{name}.npz", **arrays)

    for name, family in FAMILIES.items():
        write_zip(folder, family, rng(name), slots=name == "word_adam")
        loaded = load(folder, family)
        if name == "word_adam":
            save(name, record_pair_head(loaded, rows(family, rng(name + " rows"))))
        else:
            save(name, record(loaded, family, rng(name + " rows")))
        if "application" in family.build:
            save(f"{name}_written", record_generation(loaded, family, rng(name + " written")))
    word = FAMILIES["word"]
    ids = rng("word_long").integers(5, word.config["vocab_size"], (2, 700))
    save("word_long", record_long(load(folder, word), ids))
    save("word_pruned", record_pruned(folder, word, rng("word_pruned")))
    save("finetune_mlm", record_masked_lm_steps(load(folder, word), word, rng("finetune_mlm")))
    save("finetune_cls", record_classifier_steps(load(folder, word), word, rng("finetune_cls")))
    sim = FAMILIES["sim_char"]
    save("sim_training", record_sim_losses(load(folder, sim), sim, rng("sim_training")))
    save("rotary", record_rotation(rng("rotary")))


# --- Checkpoints ---------------------------------------------------------------------------------


def write_zip(folder, family, rng, slots):
    """Write a checkpoint of random weights; with `slots`, also Adam's moments and the step."""
    model = build_transformer_model(
        model=family.model, return_keras_model=False, **family.config, **family.build
    )
    arrays = {
        name: random_weight(name, tuple(variable.shape), rng)
        for name, variable in variables(model).items()
    }
    if slots:
        moments = {
            f"{name}/adam_{moment}": (1e-3 * rng.random(array.shape)).astype("float32")
            for name, array in arrays.items()
            for moment in "mv"
        }
        arrays |= moments | {"global_step": np.array(20_000)}
    with tempfile.TemporaryDirectory() as name:
        inner_folder = Path(name)
        tf.raw_ops.SaveV2(
            prefix=str(inner_folder / "bert_model.ckpt"),
            tensor_names=list(arrays),
            shape_and_slices=[""] * len(arrays),
            tensors=[tf.constant(array) for array in arrays.values()],
        )
        (inner_folder / "checkpoint").write_text('model_checkpoint_path: "bert_model.ckpt"\n')
        (inner_folder / "bert_config.json").write_text(json.dumps(family.config, indent=2))
        text = "".join(f"{token}\n" for token in vocabulary(family))
        (inner_folder / "vocab.txt").write_text(text, encoding="utf-8")
        with zipfile.ZipFile(folder / f"{family.stem}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(inner_folder.iterdir()):
                archive.write(path, f"{family.stem}/{path.name}")


def variables(model):
    """The variables of a bert4keras model by TF1 name."""
    return {
        name: variable
        for layer, names in model.variable_mapping().items()
        if layer in model.layers
        for name, variable in zip(names, model.layers[layer].trainable_weights, strict=True)
    }


def random_weight(name, shape, rng):
    """A random weight. bert4keras transposes the kernel of the next-sentence head."""
    shape = shape[::-1] if name == "cls/seq_relationship/output_weights" else shape
    scale = next((s for end, s in SCALES if name.endswith(end)), 0.85 / np.sqrt(shape[0]))
    mean = 1.0 if name.endswith("gamma") else 0.0
    return (mean + scale * rng.normal(size=shape)).astype("float32")


def vocabulary(family):
    """Special tokens at their released ids, characters, and for word models two-character words."""
    size, (cls, _, mask, first) = family.config["vocab_size"], SPECIAL[family.tokens]
    tokens = ["[PAD]"] + [f"[unused{i}]" for i in range(1, first)]
    tokens[cls - 1 : mask + 1] = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    single = 1000 if family.tokens == "word" else size
    tokens += map(chr, range(0x4E00, 0x4E00 + single - len(tokens)))
    return tokens + [f"{chr(0x4E00 + i)}{chr(0x4E01 + i)}" for i in range(size - len(tokens))]


def load(folder, family, **build):
    """Load a zip with bert4keras."""
    with tempfile.TemporaryDirectory() as name:
        with zipfile.ZipFile(folder / f"{family.stem}.zip") as archive:
            archive.extractall(name)
        inner_folder = Path(name) / family.stem
        return build_transformer_model(
            str(inner_folder / "bert_config.json"),
            str(inner_folder / "bert_model.ckpt"),
            model=family.model,
            return_keras_model=False,
            **family.build,
            **build,
        )


# --- Rows ----------------------------------------------------------------------------------------


def rows(family, rng, segments=True):
    """Token and segment ids (5, T) of a full pair, a short text, a padded pair, two tokens, one."""
    cls, sep, mask, first = SPECIAL[family.tokens]
    length = int(rng.integers(15, 21))
    token_ids, segment_ids = np.zeros((2, 5, length), "int32")
    for row, sizes in enumerate([(8, length - 11), (5,), (3, 4), ()]):
        ids, token_segments = [cls], [0]
        for segment, size in enumerate(sizes or (0,)):
            text = rng.integers(first, family.config["vocab_size"], size)
            text[1:2] = mask
            ids += [*text, sep]
            token_segments += [segment * segments] * (size + 1)
        token_ids[row, : len(ids)], segment_ids[row, : len(token_segments)] = ids, token_segments
    token_ids[4, 0] = cls
    return token_ids, segment_ids


def attended(token_ids):
    """Which keys are attended to. The first always is."""
    mask = token_ids != 0
    mask[:, 0] = True
    return mask


# --- Recordings ----------------------------------------------------------------------------------


def outputs(model, *names):
    """A function of token and segment ids that returns the outputs of these layers."""
    inner = keras.Model(model.inputs, [model.layers[name].output for name in names])
    return lambda *inputs: inner.predict_on_batch(list(inputs))


def hidden_layers(model):
    """The layers with the hidden states: of the embeddings, then of every Transformer layer."""
    mapping = "Embedding-Mapping"
    first = mapping if mapping in model.layers else "Embedding-Norm"
    return [first] + [f"Transformer-{i}-FeedForward-Norm" for i in range(model.num_hidden_layers)]


def record(model, family, rng):
    """Hidden states, vocabulary scores, and the outputs of the family's heads."""
    application = family.build.get("application")
    pair = rows(family, rng, segments=application != "lm")
    head = [name for name in HEAD if name in model.layers]
    hidden = hidden_layers(model)
    values = outputs(model, *hidden, *head)(*pair)
    actual = dict(zip([HEAD[name] for name in head], values[len(hidden) :], strict=True))
    arrays = {
        "token_ids": pair[0],
        "segment_ids": pair[1],
        "attended": attended(pair[0]),
        "hidden": np.stack(values[: len(hidden)]),
    }
    prefix = "lm" if application else "mlm"
    arrays |= {f"{prefix}_{k}": v for k, v in scores(actual["logits"], pair[0], rng).items()}
    if application == "lm":
        return arrays | greedy_continuation(model, pair[0])
    if application == "unilm":
        return arrays | record_sentences(model, pair, rows(family, rng, segments=False))
    if "transform" in actual:
        arrays["mlm_transform"] = actual["transform"]
    return arrays | record_edges(model, *pair)


def scores(logits, token_ids, rng):
    """Excerpts of the logits (B, T, V), because all of them would be megabytes."""
    real = np.argwhere(attended(token_ids))
    at = np.sort(rng.choice(real, 10, replace=False), axis=0)
    selected = logits[tuple(at.T)]
    sums = np.log(np.exp(logits.astype("float64")).sum(-1))
    return {
        "at": at.astype("int32"),
        "logits": selected,
        "probs": tf.nn.softmax(selected[:4]).numpy(),
        "logsumexp": sums.astype("float32"),
        "argmax": logits.argmax(-1).astype("int32"),
        "token_logit": np.take_along_axis(logits, token_ids[..., None], -1)[..., 0],
    }


def record_edges(model, token_ids, segment_ids):
    """Sequences with a 0 inside, a 0 at the start, and only zeros."""
    token_ids = token_ids[[0, 1, 0]].copy()
    token_ids[0, 4] = token_ids[1, 0] = token_ids[2] = 0
    segment_ids = segment_ids[[0, 1, 3]]
    return {
        "edge_token_ids": token_ids,
        "edge_segment_ids": segment_ids,
        "edge_hidden_last": outputs(model, hidden_layers(model)[-1])(token_ids, segment_ids),
    }


def greedy_continuation(model, token_ids):
    """Extend the short text greedily by eight tokens, from the text without its [SEP]."""
    ids, top_two = token_ids[1:2, : (token_ids[1] != 0).sum() - 1], []
    for _ in range(8):
        logits = outputs(model, "MLM-Activation")(ids, np.zeros_like(ids))[0, -1]
        ids = np.append(ids, logits.argmax()).astype("int32")[None]
        top_two.append(np.sort(tf.nn.softmax(logits).numpy())[:-3:-1])
    return {"greedy_ids": ids, "greedy_top2_probs": np.stack(top_two)}


class Generator(AutoRegressiveDecoder):
    """Generate text after a prompt; for UniLM, as the second segment."""

    def __init__(self, model, unilm, end_id):
        super().__init__(start_id=None, end_id=end_id, maxlen=MAX_TOKENS)
        self.model, self.unilm = model, unilm

    @AutoRegressiveDecoder.wraps(default_rtype="logits")
    def predict(self, inputs, output_ids, states):
        token_ids = np.concatenate([inputs[0], output_ids], 1)
        segment_ids = np.concatenate([0 * inputs[0], 0 * output_ids + self.unilm], 1)
        logits = self.last_token(self.model).predict_on_batch([token_ids, segment_ids])
        return logits[-1] if self.unilm else logits  # the first output is the pooler's

    def rows(self, prompts, beams):
        """The ids that are generated after each prompt, including the end id, padded with -1."""
        written = np.full((len(prompts), MAX_TOKENS), -1, "int32")
        for row, prompt in enumerate(prompts):
            ids = self.beam_search([prompt], topk=beams)
            written[row, : len(ids)] = ids
        return written


def record_generation(model, family, rng):
    """Generate after twenty texts, greedily and with four beams.

    The texts end once at [SEP], which random weights rarely generate, and once at a token that they
    generate often.
    """
    cls, sep, _, first = SPECIAL[family.tokens]
    unilm = family.build["application"] == "unilm"
    texts = [rng.integers(first, family.config["vocab_size"], size) for size in range(1, 21)]
    prompts = [np.array([cls, *text, *[sep] * unilm]) for text in texts]
    padded = np.full((len(prompts), max(map(len, prompts))), -1, "int32")
    for row, prompt in enumerate(prompts):
        padded[row, : len(prompt)] = prompt
    actual = {"prompts": padded}
    for name, end in (("", sep), ("_ended", None)):
        if end is None:  # the token in the most texts
            tokens = [token for row in actual["greedy"] for token in set(row[row >= 0].tolist())]
            end = actual["end"] = np.bincount(tokens).argmax().astype("int32")
        generator = Generator(model, unilm, int(end))
        actual |= {
            f"greedy{name}": generator.rows(prompts, 1),
            f"beams{name}": generator.rows(prompts, 4),
        }
    return actual


def record_sentences(model, pair, texts):
    """Sentence vectors of single texts and of pairs, and the attention mask of the pairs."""
    hidden = hidden_layers(model)
    *states, sentence = outputs(model, *hidden, "Pooler-Dense")(*texts)
    pooled, mask = outputs(model, "Pooler-Dense", "Attention-UniLM-Mask")(*pair)
    unit = sentence / np.linalg.norm(sentence, axis=1, keepdims=True)
    return {
        "sentence_token_ids": texts[0],
        "sentence_segment_ids": texts[1],
        "sentence_hidden": np.stack(states),
        "sentence": sentence,
        "sentence_unit": unit,
        "similarity": unit @ unit.T,
        "pooled": pooled,
        "unilm_mask": mask & attended(pair[0])[:, None, :],
    }


def record_pair_head(model, pair):
    """The outputs of a tanh pooler and of the next-sentence head."""
    last, pooled, probs = outputs(model, hidden_layers(model)[-1], "Pooler-Dense", "NSP-Proba")(
        *pair
    )
    arrays = {"hidden_last": last, "pooled_tanh": pooled, "nsp_probs": probs}
    return {"token_ids": pair[0], "segment_ids": pair[1]} | arrays


def record_long(model, token_ids):
    """Sequences longer than max_position_embeddings."""
    token_ids = token_ids.astype("int32")
    token_ids[1, 650:] = 0
    segment_ids = np.zeros_like(token_ids)
    return {
        "token_ids": token_ids,
        "segment_ids": segment_ids,
        "attended": attended(token_ids),
        "hidden_last": outputs(model, hidden_layers(model)[-1])(token_ids, segment_ids),
    }


def record_pruned(folder, family, rng):
    """A vocabulary pruned to some tokens, plus three compound tokens."""
    keep = np.sort(rng.choice(np.arange(5, family.config["vocab_size"]), 300, replace=False))
    keep = [*range(5), *keep.tolist()]
    compound = [[7, 9], [20, 21, 22], [11, 250]]
    model = load(folder, family, keep_tokens=keep, compound_tokens=compound)
    token_ids = rng.integers(5, len(keep) + len(compound), (2, 9)).astype("int32")
    token_ids[:, 0], token_ids[1, 4], token_ids[1, 7:] = 2, len(keep), 0
    names = hidden_layers(model)[-1], "MLM-Activation"
    hidden, logits = outputs(model, *names)(token_ids, np.zeros_like(token_ids))
    return {
        "keep_tokens": np.array(keep, "int32"),
        "compound_tokens": np.array([[*ids, -1][:3] for ids in compound], "int32"),
        "token_ids": token_ids,
        "segment_ids": np.zeros_like(token_ids),
        "hidden_last": hidden,
        "mlm_logits": logits,
    }


def record_masked_lm_steps(model, family, rng):
    """SGD steps on the mean cross-entropy of the labels above 0."""
    token_ids, segment_ids = rows(family, rng)
    labels = np.where((rng.random(token_ids.shape) < 0.3) & (token_ids > 4), token_ids, 0)
    labels[0, 1] = token_ids[0, 1]  # at least one label
    chosen = np.argwhere(labels)

    def loss():
        logits = tf.gather_nd(model.model([token_ids, segment_ids]), chosen)
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels[labels > 0], logits)
        )

    traced = (*TRACED, "cls/predictions/transform/dense/kernel", "cls/predictions/output_bias")
    batch = {"token_ids": token_ids, "segment_ids": segment_ids, "labels": labels}
    return batch | record_steps(loss, variables(model), traced, token_ids)


def record_classifier_steps(model, family, rng):
    """SGD steps of a binary classifier on the mean of all tokens."""
    token_ids, segment_ids = rows(family, rng)
    labels = np.array([[1], [0], [1], [0], [1]], "float32")
    kernel = tf.Variable(rng.normal(0, 0.3, (32, 1)).astype("float32"))
    bias = tf.Variable(rng.normal(0, 0.3, (1,)).astype("float32"))
    arrays = {"head_kernel": kernel.numpy(), "head_bias": bias.numpy()}
    encoder = keras.Model(model.inputs, model.layers[hidden_layers(model)[-1]].output)
    weights = attended(token_ids)[..., None].astype("float32")

    def mean_of_tokens():
        hidden = encoder([token_ids, segment_ids])
        return tf.reduce_sum(hidden * weights, 1) / weights.sum(1)

    def loss():
        logits = mean_of_tokens() @ kernel + bias
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))

    arrays["mean_pooled"] = mean_of_tokens().numpy()
    arrays["probs"] = tf.sigmoid(mean_of_tokens() @ kernel + bias).numpy()
    trained = {
        name: variable for name, variable in variables(model).items() if not name.startswith("cls/")
    } | {"head/kernel": kernel, "head/bias": bias}
    batch = {"token_ids": token_ids, "segment_ids": segment_ids, "labels": labels}
    steps = record_steps(loss, trained, (*TRACED, "head/kernel", "head/bias"), token_ids)
    return batch | arrays | steps


def record_sim_losses(model, family, rng):
    """The losses and gradients of RoFormer-Sim's three scripts.

    Stages 1 and 2 use rows of two texts in both orders, the supervised stage pairs of single texts.
    """
    cls, sep, mask, first = SPECIAL[family.tokens]

    def drawn(size):
        return rng.integers(first, family.config["vocab_size"], size).tolist()

    def stacked(texts):
        padded = [[*text, *[0] * (max(map(len, texts)) - len(text))] for text in texts]
        return np.array(padded, "int32")

    pairs = [(drawn(5), drawn(3)), (drawn(2), drawn(6)), (drawn(7), drawn(4))]
    ordered_pairs = [ordered for a, b in pairs for ordered in ((a, b), (b, a))]
    ordered_pairs[2] = ([mask, *ordered_pairs[2][0][1:]], ordered_pairs[2][1])
    token_ids = stacked([[cls, *a, sep, *b, sep] for a, b in ordered_pairs])
    segment_ids = stacked([[0] * (len(a) + 2) + [1] * (len(b) + 1) for a, b in ordered_pairs])
    vectors = rng.normal(size=(6, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    teacher = (vectors @ vectors.T).astype("float32")
    names = ("Pooler-Dense", "MLM-Activation")
    inner = keras.Model(model.inputs, [model.layers[name].output for name in names])

    def lm_loss_and_cosines():
        pooled, logits = inner([token_ids, segment_ids])
        second = segment_ids[:, 1:].astype("float32")
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(token_ids[:, 1:], logits[:, :-1])
        unit = tf.math.l2_normalize(pooled, 1)
        return tf.reduce_sum(losses * second) / second.sum(), tf.matmul(unit, unit, False, True)

    def stage1():
        lm_loss, cosines = lm_loss_and_cosines()
        scores = 20 * cosines - 1e12 * tf.eye(len(ordered_pairs))
        neighbours = np.arange(len(ordered_pairs)) ^ 1
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(neighbours, scores)
        return lm_loss + tf.reduce_mean(losses)

    def stage2():
        lm_loss, cosines = lm_loss_and_cosines()
        return lm_loss + 100 * tf.reduce_mean((cosines - teacher) ** 2)

    texts = stacked([[cls, *drawn(size), sep] for size in (3, 6, 2, 5, 4, 4, 7, 1)])  # a, b, a, b …
    classes = np.array([0, 3, 1, 3], "int32")
    kernel = tf.Variable(rng.normal(0, 0.3, (96, 5)).astype("float32"))

    def supervised():
        pooled = inner([texts, np.zeros_like(texts)])[0]
        a, b = pooled[::2], pooled[1::2]
        logits = tf.concat([a, b, tf.abs(a - b)], 1) @ kernel
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(classes, logits))

    trained = variables(model)
    traced = (*TRACED, "bert/pooler/dense/kernel", "bert/pooler/dense/bias")
    arrays = {
        "token_ids": token_ids,
        "segment_ids": segment_ids,
        "teacher": teacher,
        "texts": texts,
        "classes": classes,
        "classifier": kernel.numpy(),
    }
    for name, loss in (("stage1", stage1), ("stage2", stage2), ("supervised", supervised)):
        last = {"classifier": kernel} if name == "supervised" else {}
        with tf.GradientTape() as tape:
            value = loss()
        actual = tape.gradient(value, {**trained, **last}, unconnected_gradients="zero")
        actual = {key: tf.convert_to_tensor(x).numpy() for key, x in actual.items()}
        recorded = traced if last else (*traced, "cls/predictions/output_bias")
        arrays[f"{name}_loss"] = np.array(float(value))
        square = sum(np.square(x.astype("float64")).sum() for x in actual.values())
        arrays[f"{name}_norm"] = np.sqrt(square)
        used = np.unique(texts if last else token_ids)
        for key in (*recorded, *last):
            value = actual[key][used[used > 0]] if key.endswith("word_embeddings") else actual[key]
            arrays[f"{name}:{key.replace('/', '.')}"] = value
    return arrays


def record_steps(loss, trained, traced, token_ids):
    """The loss before every step and after the last, the first gradients, and the final weights."""
    used = np.unique(token_ids[token_ids > 0])

    def excerpt(kind, values):
        names = {f"{kind}:{name.replace('/', '.')}": name for name in traced}
        return {
            key: values[name][used] if name.endswith("word_embeddings") else values[name]
            for key, name in names.items()
        }

    losses, first = [], None
    for _ in range(SGD_STEPS):
        with tf.GradientTape() as tape:
            value = loss()
        gradients = tape.gradient(value, list(trained.values()))
        gradients = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
        first = first or dict(zip(trained, gradients, strict=True))
        losses.append(float(value))
        for variable, gradient in zip(trained.values(), gradients, strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)
    square = sum(np.square(g.astype("float64")).sum() for g in first.values())
    weights = {name: variable.numpy() for name, variable in trained.items()}
    return {
        "word_rows": used.astype("int32"),
        "lr": np.array(LEARNING_RATE),
        "losses": np.array([*losses, float(loss())]),
        "grad_norm_step0": np.sqrt(square),
        **excerpt("grad0", first),
        **excerpt("final", weights),
    }


def record_rotation(rng):
    """The table of sines and cosines, and queries and keys that are rotated with it."""

    def table(positions, size):
        return sinusoidal_embeddings(tf.constant(positions, "float32"), size).numpy()

    far = np.array([0, 1, 2, 511, 512, 1023, 1535, 4096], "int32")
    near = np.arange(24)
    q, k = rng.normal(size=(2, 2, 24, 3, 8)).astype("float32")
    rotated = apply_rotary_position_embeddings(*map(tf.constant, (table(near, 8)[None], q, k)))
    q_rotated, k_rotated = (x.numpy() for x in rotated)
    return {
        "table": table(near, 8),
        "far_positions": far,
        "far_table": table(far, 8),
        "table_dim64": table(near, 64),
        "q": q,
        "k": k,
        "q_rotated": q_rotated,
        "k_rotated": k_rotated,
        "scores": np.einsum("btnh,bsnh->bnts", q_rotated, k_rotated) / 8**0.5,
    }


if __name__ == "__main__":
    main()
