"""The body of `generate`: prompts → what a causal or a UniLM model writes."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import tyro

from roformer_tf.checkpoints.detection import attention_type, is_language_model, parts
from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.errors import InputError
from roformer_tf.files import check_writable, file_beside, is_folder
from roformer_tf.inference.answers import one_line
from roformer_tf.inference.predict import KerasPrecision
from roformer_tf.inference.text_files import TextRow
from roformer_tf.labelled.columns import FirstLine
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.reading import ColumnsConfig, open_unanswered
from roformer_tf.labelled.skipped import BadLine, SkippedRows
from roformer_tf.models.generation_config import GenerationConfig
from roformer_tf.models.rows import run_rows
from roformer_tf.terminal import Progress

if TYPE_CHECKING:
    from roformer_tf.models.embedder import SentenceEmbedder
    from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForSentenceSimilarity

    Writer: TypeAlias = RoFormerForCausalLM | RoFormerForSentenceSimilarity

ROWS = 64
CHUNK = 512
"""Prompts that are read before they are answered, those of like length together."""
CANDIDATES, LIKELIEST = 20, 5
"""What `--paraphrases` draws: at least so many texts, each token of so many likeliest ones, as the
released script does (RoFormer-Sim, generate.py)."""


class WrittenText(NamedTuple):
    """One text that was written."""

    text: str
    score: float
    """Mean log-probability of a token in nats; of a paraphrase its cosine with the source."""


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    """Let a model write: a gpt model continues a text, a sim model writes another that means it.

    The standard output holds what was written alone, a line each: without the prompt.
    """

    model: str
    """A released zip or name, a folder with a checkpoint, or the model/ of a causal run."""
    text: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Texts to begin from."""
    input: str | None = None
    """File of texts to begin from: one a line, or a .tsv, .csv, .jsonl, .parquet or .xlsx."""
    output: str | None = None
    """File to write, a TSV with the columns input, output, score: the mean log-probability of a
    token in nats, or of a paraphrase its cosine with the input."""
    writing: GenerationConfig = field(default_factory=GenerationConfig)
    paraphrases: int = 0
    """Of a sim model: so many other texts that mean the same, the nearest first, out of --samples
    that are drawn (20 at least, unless given)."""
    attention_type: Literal["causal", "unilm"] | None = None
    """What a token sees, where neither the config, nor the name, nor its parts say it."""
    stream: bool = False
    """Print one text while it is written."""
    batch_size: int = ROWS
    """Texts that are written side by side."""
    precision: KerasPrecision = "float32"
    """bfloat16 is faster where the hardware has it; another token may come out where two are alike
    likely."""
    text_columns: tuple[str, ...] = ()
    """Column of the texts in --input, by name or by number from 1."""
    encoding: str = "auto"
    """Of --input, such as utf-8 or gb18030; "auto" finds out."""
    first_line: FirstLine = "auto"
    """What the first line of a tsv, csv or xlsx is: a header or a text; "auto" finds out."""
    sheet: str | None = None
    """Sheet of an .xlsx input, by its name; unset, the first that is not hidden, nor empty."""

    def __post_init__(self) -> None:
        if bool(self.text) == (self.input is not None):
            raise InputError(
                "give texts to begin from, or --input with a file of them: one of both."
            )
        if self.input is not None and self.output is None:
            raise InputError(f"--input {self.input} needs --output: a file to write.")
        if self.output is not None and is_folder(self.output):
            raise InputError(f"--output {self.output} is a folder. Name a file.")
        for number, text in enumerate(self.text, 1):
            if not text.strip():
                raise InputError(f"text {number} is blank: there is nothing to begin from.")
        if self.batch_size < 1:
            raise InputError(f"batch_size is {self.batch_size}, but must be at least 1.")
        if self.paraphrases < 0:
            raise InputError(f"paraphrases is {self.paraphrases}, but must not be negative.")
        if self.paraphrases and self.writing.beams > 1:
            raise InputError("--paraphrases are drawn at random, which --beams are not: leave one.")
        many = len(self.text) != 1 or self.writing.samples > 1 or self.writing.beams > 1
        if self.stream and (many or self.paraphrases):
            raise InputError(
                "--stream prints one text while it is written: give one text, and no --samples, "
                "--beams or --paraphrases."
            )


def generate(config: GenerateConfig) -> None:
    """Write behind every text, in their order, and tell on stderr how long it took."""
    if config.output is not None:
        check_writable(config.output)
    texts = _read(config) if config.input is not None else list(config.text)
    model = load_writer(config.model, config.attention_type, config.precision)
    if config.paraphrases and getattr(model, "pooler", None) is None:
        raise InputError(
            f"{config.model} has no pooler for vectors, by which paraphrases are chosen. Give a "
            "sim model, such as chinese_roformer-sim-char-ft_L-12_H-768_A-12."
        )
    unknown = check_prompts(model, texts, "--input line" if config.input is not None else "text")
    if unknown:
        shown = " ".join(unknown[:10]) + " …" * (len(unknown) > 10)
        print(f"the vocabulary lacks, and the model reads as [UNK]: {shown}", file=sys.stderr)
    began = time.perf_counter()
    with (
        _target(config.output) as beside,
        Progress(
            desc="generate",
            unit=" texts",
            total=len(texts),
            disable=config.stream or len(texts) == 1,
        ) as bar,
    ):
        if config.output is None:
            _print(config, model, texts, bar)
        else:
            _write(beside, config, model, texts, bar)
    seconds = time.perf_counter() - began
    print(f"{len(texts):,} prompts in {seconds:.1f} s, loading apart.", file=sys.stderr)


def load_writer(
    source: str | Path, attention: str | None = None, precision: KerasPrecision = "float32"
) -> "Writer":
    """Read a model that writes: gpt, sim, or what `pretrain --objective causal` made.

    Raises InputError, with the reason, for one that does not, and where nothing tells.
    """
    from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForSentenceSimilarity

    with OpenedSource(source) as opened:
        checkpoint = opened.checkpoint()
        held = parts(checkpoint)
        found = attention or attention_type(checkpoint, opened)
        if not is_language_model(checkpoint):
            raise InputError(
                f"{opened.name} writes nothing: it holds {', '.join(sorted(held))}, but not the "
                "head that scores the vocabulary. Give a gpt or a sim model, or pretrain one with "
                "--objective causal."
            )
        if found not in ("causal", "unilm"):
            raise InputError(
                f"{opened.name} is a masked language model, as far as its files say: it fills "
                "masks and writes nothing. If it was trained to write, say how it reads with "
                "--attention-type causal or unilm; else give a gpt or a sim model."
            )
        is_sim = found == "unilm" and "pooler" in held
        kind = RoFormerForSentenceSimilarity if is_sim else RoFormerForCausalLM
        model = kind.from_source(opened, dtype=precision, attention_type=found)
    tokenizer = model.tokenizer
    if tokenizer is None or tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(f"{source} has no vocab.txt that fits it: put the one there that does.")
    return model


def check_prompts(model: "Writer", texts: Sequence[str], name: str = "text") -> list[str]:
    """Raise InputError for a text that is too long, or of which the vocabulary knows nothing.

    Gives the tokens that it lacks among others.
    """
    tokenizer, most = model.tokenizer, model.config.max_position_embeddings
    assert tokenizer is not None
    unknown: dict[str, None] = {}
    for number, text in enumerate(texts, 1):
        ids = model.encode_prompt(text)
        if len(ids) >= most:
            raise InputError(
                f"{name} {number} has {len(ids):,} tokens, but the model was made for texts of "
                f"{most:,}, with what it writes. Shorten it."
            )
        own = [i for i in ids if i not in (tokenizer.cls_id, tokenizer.sep_id)]
        if not own or all(i == tokenizer.unk_id for i in own):
            raise InputError(
                f"{name} {number}, {text[:40]!r}, has no character that the model's vocabulary "
                "holds: there is nothing to begin from. Give a text in the model's language."
            )
        if tokenizer.unk_id in own:
            words = tokenizer.tokenize(text)
            unknown |= dict.fromkeys(w for w in words if w not in tokenizer.vocabulary)
    return list(unknown)


def written(
    model: "Writer",
    texts: Sequence[str],
    config: GenerateConfig,
    bar: Any = None,
    embedder: "SentenceEmbedder | None" = None,
) -> list[list[WrittenText]]:
    """What the model writes behind each text: as many as `samples`, or as `paraphrases`.

    embedder: as `nearest_of` takes it.
    """
    prompts = [model.encode_prompt(text) for text in texts]
    settings = config.writing
    if config.paraphrases:
        settings = drawing(settings, config.paraphrases)
    found = model.generate_ids(
        prompts,
        settings,
        rows=config.batch_size,
        on_done=lambda *_: bar.update() if bar is not None else None,
    )
    if not config.paraphrases:
        return [[WrittenText(one.text, one.score) for one in each] for each in found]
    drawn = [[one.text for one in each] for each in found]
    return nearest_of(model, texts, drawn, config.paraphrases, embedder)


def drawing(given: GenerationConfig, paraphrases: int) -> GenerationConfig:
    """How candidates for so many paraphrases are drawn, unless the user says otherwise."""
    samples = given.samples if given.samples > 1 else max(CANDIDATES, 4 * paraphrases)
    cut = given.top_k is None and given.top_p is None
    return replace(given, samples=samples, top_k=LIKELIEST if cut else given.top_k)


def embedder_of(model: Any) -> "SentenceEmbedder":
    """What gives a sim model's own vectors."""
    from roformer_tf.models.embedder import SentenceEmbedder

    return SentenceEmbedder(model.encoder, model.pooler)


def nearest_of(
    model: Any,
    texts: Sequence[str],
    candidates: Sequence[Sequence[str]],
    count: int,
    embedder: "SentenceEmbedder | None" = None,
) -> list[list[WrittenText]]:
    """Of the candidates for each text those that differ from it and each other, nearest first.

    Nearness is the cosine of the model's own vectors. Fewer than `count` where fewer differ.
    embedder: `embedder_of(model)`, which whoever asks often makes once.
    """
    tokenizer = model.tokenizer
    others = []
    for text, found in zip(texts, candidates, strict=True):
        itself = tokenizer.decode(tokenizer.ids(text))  # as the model would write it
        others.append([x for x in dict.fromkeys(found) if x and x not in (text, itself)])
    rows = [x for text, found in zip(texts, others, strict=True) for x in (text, *found)]
    ids = [tokenizer.encode(x)[0] for x in rows]
    vectors = np.stack(run_rows(embedder or embedder_of(model), ids))
    chosen, start = [], 0
    for found in others:
        own, rest = vectors[start], vectors[start + 1 : start + 1 + len(found)]
        start += 1 + len(found)
        cosines = rest @ own
        order = np.argsort(-cosines, kind="stable")[:count]
        chosen.append([WrittenText(found[i], float(cosines[i])) for i in order])
    return chosen


def _print(config: GenerateConfig, model: "Writer", texts: Sequence[str], bar: Any) -> None:
    """The texts alone, on the standard output."""
    if config.stream:
        for piece in streamed(model, texts[0], config.writing):
            print(piece, end="", flush=True)
        print()
        return
    for each in written(model, texts, config, bar):
        for one in each:
            print(one.text)


def _write(
    path: Any, config: GenerateConfig, model: "Writer", texts: Sequence[str], bar: Any
) -> None:
    """A TSV of all, some hundreds of prompts at a time."""
    remaining = iter(texts)
    embedder = embedder_of(model) if config.paraphrases else None  # traced once for all
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as out:
        out.write("input\toutput\tscore\n")
        while chunk := list(islice(remaining, CHUNK)):
            found = written(model, chunk, config, bar, embedder)
            for text, each in zip(chunk, found, strict=True):
                for one in each:
                    out.write(f"{one_line(text)}\t{one_line(one.text)}\t{one.score:.6f}\n")


def streamed(model: Any, text: str, config: GenerationConfig) -> Iterator[str]:
    """The pieces of one text, as they are written."""
    from roformer_tf.models.generation import stream

    yield from stream(model, model.encode_prompt(text), config)


def _target(output: str | None) -> Any:
    return nullcontext() if output is None else file_beside(output)


def _read(config: GenerateConfig) -> list[str]:
    """The texts of --input. Raises InputError, naming them all, where rows are empty or bad."""
    assert config.input is not None
    columns = ColumnsConfig(
        text_columns=config.text_columns,
        first_line=config.first_line,
        encoding=config.encoding,
        sheet=config.sheet,
    )
    unanswered = open_unanswered(config.input, TextRow(name="generate"), columns)
    rows = list(unanswered.examples)
    skipped = SkippedRows(config.input)
    for row in rows:
        if isinstance(row, BadLine):
            skipped.add(row)
    if skipped.rows:
        lines = "\n".join(f"  {line}" for line in skipped.lines(with_blank=True))
        raise InputError(f"{skipped.rows:,} rows have no text to begin from:\n{lines}\nMend them.")
    if not rows:
        raise InputError(f"{config.input} holds no texts.")
    if unanswered.said:
        print(unanswered.said, file=sys.stderr)
    return [row.texts[0] for row in rows if isinstance(row, Example)]
