"""The body of `evaluate --corpus`: held-out loss and accuracy of a language model by row length.

The same tokens are judged at every length, hidden alike: what differs is how much stands around
them (`corpus/windows.py`). So the differences are those of the lengths.
"""

import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import grain
import keras
import numpy as np
import numpy.typing as npt

from roformer_tf.checkpoints.detection import attention_type, is_language_model
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.corpus.documents import (
    CorpusConfig,
    CorpusReport,
    filtered,
    find_files,
    read_documents,
)
from roformer_tf.corpus.masking import (
    MaskingConfig,
    mask_row,
    predictions_per_row,
    replacement_ids,
    row_generator,
)
from roformer_tf.corpus.objectives import ObjectiveName
from roformer_tf.corpus.packing import Documents
from roformer_tf.corpus.preparation import is_held_out
from roformer_tf.corpus.windows import NO_WORD, WordedText, long_texts, windows
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.files import check_writable, is_folder, write_text
from roformer_tf.models.rows import say_nothing_of_plans
from roformer_tf.pretraining.evaluation import TokenMetrics
from roformer_tf.pretraining.initialization import MODELS, PretrainedLM
from roformer_tf.runs.devices import choose_precision
from roformer_tf.runs.feeding import fed
from roformer_tf.runs.plots import plot_lengths
from roformer_tf.runs.settings import Precision
from roformer_tf.terminal import FALLBACK, Progress, table
from roformer_tf.tokenizers.tokenizer import SPECIALS, RoFormerTokenizer, check_length

USUAL = 512
"""The length that is judged where none is given, unless the model was trained on shorter rows."""
TOKENS_AT_ONCE: Mapping[ObjectiveName, int] = {"masked": 8192, "causal": 2048}
"""Of a batch, at least a row. A causal model scores the vocabulary at each of them."""
DOCUMENTS_AT_ONCE = 64  # are tokenized
RESAMPLES = 1000
MOST_SPANS = 16  # of positions that are told apart in the longest rows

Scaling: TypeAlias = Literal["none", "linear", "dynamic", "yarn", "log-n"]

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
Figures: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class EvaluateCorpusConfig(CorpusConfig):
    """Judge a language model by text that it was not trained on, at several lengths of rows.

    The same tokens are judged at every length: masked words, or every next token. Documents that
    are shorter than the longest row are joined.
    """

    model: str
    """A language model: the model/ of a run of `pretrain`, a released zip or name, a folder."""
    lengths: tuple[int, ...] = ()
    """Tokens in a row, with [CLS] and [SEP], such as 512 1024 2048. Unset: 512, or what the model
    was trained on if that is less."""
    output: Path | None = None
    """File of JSON to write; a plot of the same name, ending in .png, is put beside it."""
    max_tokens: int = 200_000
    """Most tokens of the corpus to read, from its beginning on."""
    held_out: float | None = None
    """Of a corpus that the model was trained on: the --held-out of `prepare`. Only the documents
    that it kept for evaluation are read then. Unset: all."""
    only_long: bool = False
    """Leave out documents that are shorter than the longest row instead of joining them."""
    scalings: tuple[Scaling, ...] = ()
    """Judge the model once with each: its angles pressed together ("linear"), slowed by a larger
    base ("dynamic": NTK) or pair by pair ("yarn"), so that the longest row fits into what it was
    trained on; scores sharpened ("log-n"); or "none" of it. Unset: the model as it is."""
    trained_length: int | None = None
    """Longest row that the model was trained on, where scaling begins. Unset: what its config
    says, trained_length or max_position_embeddings."""
    objective: ObjectiveName | None = None
    """What is to be told: "masked" words, or "causal", each next token. Unset: what the model was
    trained to tell."""
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    seed: int = 0
    """Seed of the masks."""
    precision: Precision = "float32"
    """Keras dtype policy; "auto" takes bfloat16 products where the device is fast at them."""
    data: str | None = None
    """Labelled examples: instead of --corpus, to judge a fine-tuned model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is not None:
            raise InputError(
                "give either --corpus, text for a language model, or --data, labelled examples for "
                "a fine-tuned one."
            )
        if not self.corpus:
            raise InputError("give --corpus: files of text, or patterns such as 'data/*.jsonl'.")
        for length in self.lengths:
            check_length(length)
        for name in ("lengths", "scalings"):
            given: Sequence[Any] = getattr(self, name)
            if twice := [x for x in given if given.count(x) > 1]:
                raise InputError(f"--{name} has {twice[0]} twice. Leave one.")
        check_numbers(self, "max_tokens", "trained_length", at_least=1)
        check_numbers(self, "held_out", above=0, below=1)
        check_numbers(self, "seed", at_least=0)
        if self.output is not None and is_folder(self.output):
            raise InputError(f"--output {self.output} is a folder. Name a file.")


class PredictedText(NamedTuple):
    """A text of T tokens, some of which are to be told."""

    token_ids: npt.NDArray[np.integer]
    """(T,), as the model sees them."""
    labels: npt.NDArray[np.integer]
    """(T,), as they are."""
    predicted: npt.NDArray[np.bool_]
    """(T,): which are to be told."""


class JudgedTokens(NamedTuple):
    """The J tokens that are to be told, in their order, at each of several lengths."""

    losses: Mapping[int, Floats]
    """By length (J,) float64, in nats."""
    hits: Mapping[int, npt.NDArray[np.bool_]]
    """By length (J,): whether the token is the likeliest."""
    windows: npt.NDArray[np.integer]
    """(J,): the number of each one's row, of those of the longest length."""
    positions: npt.NDArray[np.integer]
    """(J,): its place in that row; [CLS] stands at 0."""


def evaluate_corpus(config: EvaluateCorpusConfig) -> None:
    """Print how well the model tells held-out tokens by length, and write what is asked for."""
    plot = None if config.output is None else config.output.with_suffix(".png")
    for target in (config.output, plot):
        if target is not None:
            check_writable(target)
    if plot is not None and plot == config.output:
        raise InputError(
            f"--output {plot} will be JSON, and the plot beside it ends in .png. Give a name "
            "ending in .json."
        )
    files = find_files(config.corpus)
    precision = choose_precision(config.precision)
    model, tokenizer, objective = open_language_model(config.model, config.objective, precision)
    trained = model.config.trained_length or model.config.max_position_embeddings
    lengths = tuple(sorted(config.lengths)) or (min(USUAL, trained),)
    read = CorpusReport()
    texts = read_texts(config, files, tokenizer, max(lengths) - SPECIALS, read)
    told = predicted_texts(texts, objective, tokenizer, config.masking, config.seed)
    found: dict[str, Figures] = {}
    for scaling in config.scalings or ("",):
        if scaling:
            changes = scaled(scaling, max(lengths), config.trained_length or trained)
            model, *_ = open_language_model(config.model, objective, precision, changes)
        found[scaling] = figures(judge(model, tokenizer, objective, told, lengths, scaling))
    report = {
        "model": config.model,
        "corpus": list(config.corpus),
        "objective": objective,
        "documents": read.documents,
        "texts": len(texts),
        "tokens": sum(len(text.token_ids) for text in texts),
        **next(iter(found.values())),
        **({"by_scaling": found} if config.scalings else {}),
    }
    if config.output is not None and plot is not None:
        text = json.dumps(report, ensure_ascii=False, indent=2) + "\n"
        write_text(config.output, text.encode("utf-8", "backslashreplace").decode())
        plot_lengths(found, plot)
    print("\n".join([read.summary(), *lines(report, shutil.get_terminal_size(FALLBACK).columns)]))


def scaled(scaling: Scaling, longest: int, trained: int) -> dict[str, Any]:
    """The keys of the config by which rows of so many tokens are read by what was trained on less.

    >>> scaled("linear", 2048, 512)
    {'trained_length': 512, 'rope_parameters': {'rope_type': 'linear', 'factor': 4.0}}
    """
    changes: dict[str, Any] = {"trained_length": trained}
    if scaling == "log-n":
        return changes | {"use_logn_attn": True}
    if scaling == "none":
        return changes
    factor = max(1.0, longest / trained)
    return changes | {"rope_parameters": {"rope_type": scaling, "factor": factor}}


def open_language_model(
    source: str,
    objective: ObjectiveName | None,
    precision: str,
    changes: Mapping[str, Any] | None = None,
) -> tuple[PretrainedLM, RoFormerTokenizer, ObjectiveName]:
    """Open a model with its tokenizer, and say what it tells: as asked for, or as it was trained.

    `changes` of its config. Raises InputError for one that is no language model, or has no
    vocabulary.
    """
    with OpenedSource(source) as opened:
        checkpoint = opened.checkpoint()
        if not is_language_model(checkpoint):
            raise InputError(
                f"{opened.name} holds no head that scores the vocabulary: it is no language model. "
                "Judge a fine-tuned model by --data, a labelled file."
            )
        found = attention_type(checkpoint, opened)
        objective = objective or ("masked" if found == "bidirectional" else "causal")
        if objective == "masked" and found == "causal":
            raise InputError(
                f"{opened.name} reads from left to right, but masked words are told from both "
                "sides. Leave --objective out, or give another model."
            )
        overrides = dict(changes or {})
        if objective == "causal":
            overrides["attention_type"] = "causal"
        model = MODELS[objective].from_source(opened, dtype=precision, **overrides)
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(f"{source} has no vocab.txt that fits it: put the one there that does.")
    return model, tokenizer, objective


def read_texts(
    config: EvaluateCorpusConfig,
    files: Sequence[Any],
    tokenizer: RoFormerTokenizer,
    least: int,
    report: CorpusReport,
) -> list[WordedText]:
    """Read texts of at least `least` tokens, until there are `config.max_tokens` of them.

    Raises InputError where the corpus has none.
    """
    documents = _tokenized(config, files, tokenizer, report)
    texts: list[WordedText] = []
    tokens = 0
    for text in long_texts(documents, least, tokenizer.sep_id, joined=not config.only_long):
        room = max(least, config.max_tokens - tokens)
        texts.append(WordedText(text.token_ids[:room], text.words[:room]))
        tokens += len(texts[-1].token_ids)
        if tokens >= config.max_tokens:
            break
    if not texts:
        whose = " that was held out" if config.held_out else ""
        joined = "in one document" if config.only_long else "in all of its documents together"
        raise InputError(
            f"a row of {least + SPECIALS:,} tokens needs a text of {least:,}, but the corpus "
            f"{' '.join(config.corpus)} has none{whose}, {joined}: {report.summary()}. "
            "Give more text, or smaller --lengths."
        )
    return texts


def _tokenized(
    config: EvaluateCorpusConfig,
    files: Sequence[Any],
    tokenizer: RoFormerTokenizer,
    report: CorpusReport,
) -> Iterator[Documents]:
    """The documents that count, tokenized some at a time."""
    share = config.held_out
    read = read_documents(files, config, report)
    while chunk := list(islice(read, DOCUMENTS_AT_ONCE)):
        texts = [text for text in filtered(chunk, config).texts if text is not None]
        texts = [text for text in texts if share is None or is_held_out(text, share)]
        yield Documents(*tokenizer.ids_and_words_of(texts))


def predicted_texts(
    texts: Sequence[WordedText],
    objective: ObjectiveName,
    tokenizer: RoFormerTokenizer,
    masking: MaskingConfig,
    seed: int,
) -> list[PredictedText]:
    """Hide words of each text as `masking` says; or have every token told that is no [SEP]."""
    if objective == "causal":
        return [PredictedText(ids, ids, words != NO_WORD) for ids, words in texts]
    replacements = replacement_ids(tokenizer.vocabulary)
    told = []
    for number, (ids, words) in enumerate(texts):
        masked = mask_row(
            np.stack([ids, words != NO_WORD, words]),
            predictions=predictions_per_row(len(ids) + SPECIALS, masking.mask_rate),
            rng=row_generator(seed, 0, number),
            config=masking,
            mask_id=tokenizer.mask_id,
            random_ids=replacements,
        )
        predicted = np.zeros(len(ids), bool)
        predicted[masked.positions[masked.weights > 0]] = True
        told.append(PredictedText(masked.token_ids, ids, predicted))
    return told


def judge(
    model: PretrainedLM,
    tokenizer: RoFormerTokenizer,
    objective: ObjectiveName,
    texts: Sequence[PredictedText],
    lengths: Sequence[int],
    name: str = "",
) -> JudgedTokens:
    """Have the same tokens told in rows of every length; `name` is shown while it is done."""
    losses, hits = {}, {}
    rows = {length: make_rows(texts, length, tokenizer, objective) for length in lengths}
    sizes = {length: max(1, TOKENS_AT_ONCE[objective] // length) for length in lengths}
    batches = {length: -(-len(rows[length]["labels"]) // sizes[length]) for length in lengths}
    total = sum(batches[length] * sizes[length] * length for length in lengths)
    say_nothing_of_plans()  # each length has one, of each scaling
    with Progress(
        total=total, desc=f"evaluate {name}".strip(), unit=" tokens", unit_scale=True
    ) as bar:
        for length, inputs in rows.items():
            size = sizes[length]
            padding = size * batches[length] - len(inputs["labels"])  # no other shape is compiled
            padded = {name: _padded(x, padding) for name, x in inputs.items()}
            advance = _Advance(bar, size * length)
            metrics = TokenMetrics(model)
            found = metrics.predict(
                fed(_in_batches(padded, size), static_shapes=True),
                steps=batches[length],
                verbose=0,
                callbacks=[advance],
            )
            used = padded["weights"] > 0
            losses[length] = -found["log_likelihood"][used].astype("float64")
            hits[length] = found["likeliest"][used] == found["labels"][used]
    longest = rows[max(lengths)]
    row, slot = np.nonzero(longest["weights"])
    if objective == "causal":  # the next token is told
        return JudgedTokens(losses, hits, row, slot + 1)
    return JudgedTokens(losses, hits, row, longest["masked_positions"][row, slot])


def _in_batches(rows: Mapping[str, npt.NDArray[Any]], size: int) -> grain.MapDataset:
    """The rows (R, …), R / `size` batches of them, one behind the other."""
    stops = range(0, len(rows["labels"]), size)
    return grain.MapDataset.source(stops).map(
        lambda begin: {name: x[begin : begin + size] for name, x in rows.items()}
    )


def make_rows(
    texts: Sequence[PredictedText],
    length: int,
    tokenizer: RoFormerTokenizer,
    objective: ObjectiveName,
) -> dict[str, npt.NDArray[Any]]:
    """All texts in rows of one length: what `TokenMetrics` takes, of R rows with P slots each.

    Read row by row, the slots of weight 1 are the same tokens, in the same order, at any length.
    """
    spans = [(text, window) for text in texts for window in windows(len(text.labels), length - 2)]
    most = max(int(text.predicted[x.judged : x.stop].sum()) for text, x in spans)
    slots = length if objective == "causal" else max(1, most)
    token_ids, sequence_ids = (np.zeros((len(spans), length), np.int32) for _ in range(2))
    positions, labels = (np.zeros((len(spans), slots), np.int32) for _ in range(2))
    weights = np.zeros((len(spans), slots), np.float32)
    for row, (text, window) in enumerate(spans):
        tokens = text.token_ids[window.start : window.stop]
        token_ids[row, : len(tokens) + SPECIALS] = [tokenizer.cls_id, *tokens, tokenizer.sep_id]
        sequence_ids[row, : len(tokens) + SPECIALS] = 1
        told = window.judged + np.flatnonzero(text.predicted[window.judged : window.stop])
        places = told - window.start + 1  # behind [CLS]
        slot = places - 1 if objective == "causal" else np.arange(len(told))
        positions[row, slot] = places
        labels[row, slot] = text.labels[told]
        weights[row, slot] = 1
    inputs = {
        "token_ids": token_ids,
        "sequence_ids": sequence_ids,
        "labels": labels,
        "weights": weights,
        "document_lengths": np.full_like(labels, length),
    }
    return inputs if objective == "causal" else inputs | {"masked_positions": positions}


class _Advance(keras.callbacks.Callback):
    """Moves a bar on behind every batch."""

    def __init__(self, bar: Progress, amount: int) -> None:
        super().__init__()
        self.bar, self.amount = bar, amount

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Move it on."""
        self.bar.update(self.amount)


def _padded(x: npt.NDArray[Any], rows: int) -> npt.NDArray[Any]:
    """Rows of weight 0, like the first one, behind (R, …)."""
    behind = np.zeros_like(x[:1]) if x.dtype == np.float32 else x[:1]
    return np.concatenate([x, np.repeat(behind, rows, axis=0)])


def figures(judged: JudgedTokens) -> Figures:
    """What a report has: {"predictions", "by_length": {"512": …}, "by_position": […]}.

    Of each length `loss`, `perplexity`, `accuracy` and the loss' 95 % `interval`; of the longest
    rows, by position in them from 1 on, too.
    """
    counts = np.bincount(judged.windows).astype("float64")
    by_length = {}
    for length, losses in judged.losses.items():
        sums = np.bincount(judged.windows, losses).astype("float64")
        by_length[str(length)] = {
            "loss": float(losses.mean()),
            "perplexity": float(np.exp(losses.mean())),
            "accuracy": float(judged.hits[length].mean()),
            "interval": interval(sums[counts > 0], counts[counts > 0]),
        }
    longest, shortest = max(judged.losses), min(judged.losses)
    span = max(shortest, -(-longest // MOST_SPANS))
    spans = judged.positions // span
    by_position = [
        {
            "from": int(max(1, number * span)),
            "to": int(min((number + 1) * span, longest) - 1),
            "loss": float(judged.losses[longest][spans == number].mean()),
            "accuracy": float(judged.hits[longest][spans == number].mean()),
            "predictions": int((spans == number).sum()),
        }
        for number in np.unique(spans)
    ]
    predictions = len(judged.positions)
    return {"predictions": predictions, "by_length": by_length, "by_position": by_position}


def interval(sums: Floats, counts: Floats) -> list[float] | None:
    """The 95 % interval of Σ sums / Σ counts by bootstrap over (R,) rows; None for one row."""
    if len(sums) < 2:
        return None
    share = np.full(len(sums), 1 / len(sums))
    drawn = np.random.default_rng(0).multinomial(len(sums), share, RESAMPLES)  # (resamples, R)
    return np.quantile(drawn @ sums / (drawn @ counts), [0.025, 0.975]).tolist()


def lines(report: Mapping[str, Any], width: int) -> Iterator[str]:
    """The figures as tables."""
    kind = "tokens" if report["objective"] == "causal" else "masked tokens"
    yield (
        f"{report['predictions']:,} {kind} of {report['texts']:,} texts are judged, the same at "
        "every length"
    )
    head = ["row length", "loss", "95 % interval", "perplexity", "accuracy"]
    rows = [
        [
            f"{int(length):,}",
            f"{one['loss']:.4f}",
            "" if one["interval"] is None else "{:.4f}–{:.4f}".format(*one["interval"]),
            f"{one['perplexity']:,.1f}",
            f"{one['accuracy']:.2%}",
        ]
        for length, one in report["by_length"].items()
    ]
    longest = max(map(int, report["by_length"]))
    spans = [
        [
            f"{one['from']:,}–{one['to']:,}",
            f"{one['loss']:.4f}",
            f"{one['accuracy']:.2%}",
            f"{one['predictions']:,}",
        ]
        for one in report["by_position"]
    ]
    several = report.get("by_scaling", {})
    if len(several) > 1:
        yield ""
        yield from table(_by_scaling(several, "by_length", "row length"), width)
        yield ""
        yield from table(_by_scaling(several, "by_position", f"in rows of {longest:,}"), width)
        return
    yield ""
    yield from table([head, *rows], width)
    yield ""
    yield from table([[f"in rows of {longest:,}", "loss", "accuracy", kind], *spans], width)


def _by_scaling(several: Mapping[str, Figures], key: str, title: str) -> list[list[str]]:
    """A row of losses for each length, or span of positions, with a column for each scaling."""
    first = next(iter(several.values()))[key]
    if key == "by_length":
        cells = [
            [f"{int(length):,}", *(f"{one[key][length]['loss']:.4f}" for one in several.values())]
            for length in first
        ]
    else:
        cells = [
            [
                f"{span['from']:,}–{span['to']:,}",
                *(f"{one[key][number]['loss']:.4f}" for one in several.values()),
            ]
            for number, span in enumerate(first)
        ]
    return [[title, *(f"loss, {name}" for name in several)], *cells]
