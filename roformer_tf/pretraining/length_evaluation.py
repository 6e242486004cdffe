"""The body of `evaluate --corpus`: held-out loss and accuracy of a language model by length."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from roformer_tf.checkpoints.sources import OpenedSource
from roformer_tf.corpus.documents import (
    CorpusConfig,
    CorpusReport,
    filtered,
    find_files,
    read_documents,
)
from roformer_tf.corpus.objectives import MaskingConfig, ObjectiveName, check_masks
from roformer_tf.corpus.packing import Documents
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.errors import InputError, check_needed, check_numbers
from roformer_tf.files import check_writable, is_folder, write_json
from roformer_tf.terminal import table, terminal_width
from roformer_tf.tokenizers.padding import SPECIALS, check_length
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer, fitting_tokenizer
from roformer_tf.training.plots import plot_lengths
from roformer_tf.training.settings import Precision

if TYPE_CHECKING:
    from roformer_tf.pretraining.initialization import PretrainedLM
    from roformer_tf.pretraining.windowed_losses import WordedText

# Unless the model was trained on shorter sequences.
DEFAULT_LENGTH = 512
DOCUMENTS_AT_ONCE = 64  # are tokenized

Scaling: TypeAlias = Literal["none", "linear", "dynamic", "yarn", "log-n"]


@dataclass(frozen=True, kw_only=True)
class EvaluateCorpusConfig(CorpusConfig):
    r"""Evaluate a language model on text that it was not trained on, at several sequence lengths.

    The same tokens are predicted at every length: masked words, or every next token. Documents that
    are shorter than the longest sequence are joined.

    Examples:
        roformer-tf evaluate runs/mine/model --corpus news.jsonl --lengths 512 1024
        roformer-tf evaluate chinese_roformer-base --corpus 'data/*.txt' \
            --output lengths.json
    """

    model: Annotated[str, "MODEL"]
    """A language model: the model/ of a run of `pretrain`, a released zip or name, a folder."""
    lengths: tuple[int, ...] = ()
    """Sequence lengths, with [CLS] and [SEP], such as 512 1024 2048. Default: 512, or the model's
    trained length if that is smaller."""
    output: Path | None = None
    """JSON file to write. A plot of the same name, ending in .png, is written next to it."""
    max_tokens: int = 200_000
    """Read the first tokens of the corpus, up to this number."""
    held_out: float | None = None
    """For the corpus that the model was trained on: the --held-out of `prepare`. Reads only the
    documents that were held out. Default: all documents."""
    only_long: bool = False
    """Skip documents that are shorter than the longest sequence instead of joining them."""
    scalings: tuple[Scaling, ...] = ()
    """Evaluate once with each way to read beyond the trained length: "linear" interpolation,
    "dynamic" NTK, "yarn", "log-n" attention, or "none". Default: the model's own."""
    trained_length: int | None = None
    """Longest sequence that the model was trained on, from which scaling starts. Default: the
    config's trained_length or max_position_embeddings."""
    objective: ObjectiveName | None = None
    """What is predicted: "masked" words or "causal" (next token). Default: the model's training
    objective."""
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    seed: int = 0
    """Seed of the masks."""
    precision: Precision = "float32"
    """Keras dtype policy. auto: bfloat16 products where the device is fast at them."""
    data: Annotated[str | None, "FILE"] = None
    """Labelled examples to evaluate a fine-tuned model on, instead of --corpus."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.data is not None:
            raise InputError(
                "give either --corpus (text, for a language model) or --data (labelled examples, "
                "for a fine-tuned model)."
            )
        for length in self.lengths:
            check_length(length)
        if isinstance(self.masking.mask_rate, tuple):
            raise InputError(
                "--mask-rate has two numbers, but an evaluation has no steps over which the rate "
                "could change. Give one."
            )
        check_numbers(self, "max_tokens", "trained_length", at_least=1)
        if not self.scalings:
            check_needed(self, "--scalings", "trained_length")
        check_numbers(self, "held_out", above=0, below=1)
        check_numbers(self, "seed", at_least=0)
        if self.output is not None and is_folder(self.output):
            raise InputError(f"--output {self.output} is a folder. Name a file.")


def evaluate_corpus(config: EvaluateCorpusConfig) -> None:
    """Print loss and accuracy by length; write the report and the plot that are asked for."""
    # These load Keras, for which --help does not wait.
    from roformer_tf.pretraining.windowed_losses import figures, predicted_texts, token_losses
    from roformer_tf.training.devices import choose_precision

    if config.output is not None:
        plot = config.output.with_suffix(".png")
        check_writable(config.output)
        check_writable(plot)
        if plot == config.output:
            raise InputError(
                f"--output {plot} will be JSON, and the plot next to it ends in .png. Give a name "
                "that ends in .json."
            )
    files = find_files(config.corpus)
    precision = choose_precision(config.precision)
    model, tokenizer, objective = open_language_model(config.model, config.objective, precision)
    check_masks(objective, config.masking)
    trained = model.config.trained_length or model.config.max_position_embeddings
    lengths = tuple(sorted(set(config.lengths))) or (min(DEFAULT_LENGTH, trained),)
    model.config.check_length(max(lengths), "--lengths")
    read = CorpusReport()
    texts = read_texts(config, files, tokenizer, max(lengths) - SPECIALS, read)
    predicted = predicted_texts(texts, objective, tokenizer, config.masking, config.seed)
    by_scaling: dict[str, dict[str, Any]] = {}
    for scaling in config.scalings or ("",):
        if scaling:
            changes = scaled(scaling, max(lengths), config.trained_length or trained)
            # Opened again, because angles and scales are part of the layers.
            model, *_ = open_language_model(config.model, objective, precision, **changes)
        losses = token_losses(model, tokenizer, objective, predicted, lengths, scaling)
        by_scaling[scaling] = figures(losses)
    report = {
        "model": config.model,
        "corpus": list(config.corpus),
        "objective": objective,
        "documents": read.documents,
        "texts": len(texts),
        "tokens": sum(len(text.token_ids) for text in texts),
        # The figures of the first scaling are at the top level, as without --scalings.
        **next(iter(by_scaling.values())),
        **({"by_scaling": by_scaling} if config.scalings else {}),
    }
    if config.output is not None:
        write_json(config.output, report)
        plot_lengths(by_scaling, plot)
    print(read.summary())
    print_tables(report, by_scaling)


def scaled(scaling: Scaling, longest: int, trained: int) -> dict[str, Any]:
    """Keys of the config by which a model reads sequences longer than it was trained on.

    They replace the model's own scaling.

    >>> scaled("linear", 2048, 512)["rope_parameters"]
    {'rope_type': 'linear', 'factor': 4.0}
    """
    factor = max(1.0, longest / trained)
    scales_angles = scaling not in ("none", "log-n")
    return {
        "trained_length": trained,
        "rope_parameters": {"rope_type": scaling, "factor": factor} if scales_angles else None,
        "use_logn_attn": scaling == "log-n",
    }


def open_language_model(
    source: str,
    objective: ObjectiveName | None,
    precision: str,
    **overrides: Any,
) -> tuple["PretrainedLM", RoFormerTokenizer, ObjectiveName]:
    """Open a model and its tokenizer; by default the objective is the one it was trained with.

    `overrides`: keys of its config to replace. Raises InputError for a model that is no language
    model, or has no vocabulary.
    """
    from roformer_tf.pretraining.initialization import MODELS, check_sees_both_sides

    with OpenedSource(source) as opened:
        checkpoint = opened.checkpoint()
        if not checkpoint.is_language_model:
            raise InputError(
                f"{opened.name} is not a language model: it has no head that scores the "
                "vocabulary. Evaluate a fine-tuned model with --data, a labelled file."
            )
        attention = checkpoint.attention_type
        objective = objective or ("masked" if attention == "bidirectional" else "causal")
        check_sees_both_sides(attention, objective, opened.name)
        if objective == "causal":
            overrides["attention_type"] = "causal"
        tokenizer = fitting_tokenizer(opened, checkpoint.config)
        model = MODELS[objective].from_source(opened, dtype=precision, **overrides)
    return model, tokenizer, objective


def read_texts(
    config: EvaluateCorpusConfig,
    files: Sequence[Any],
    tokenizer: RoFormerTokenizer,
    min_length: int,
    report: CorpusReport,
) -> "list[WordedText]":
    """Read texts of at least `min_length` tokens, until there are `config.max_tokens` tokens.

    Raises InputError if the corpus has no such text.
    """
    from roformer_tf.pretraining.windowed_losses import WordedText, long_texts

    fraction = config.held_out
    # Only as many documents as are needed are read: the loop below stops after --max-tokens.
    documents = read_documents(files, config, report)

    def tokenized() -> Iterator[Documents]:
        while chunk := list(islice(documents, DOCUMENTS_AT_ONCE)):
            kept, _ = filtered(chunk, config)
            chosen = [x for x in kept if x and (fraction is None or is_held_out(x, fraction))]
            yield Documents(*tokenizer.ids_and_words_of(chosen))

    texts: list[WordedText] = []
    tokens = 0
    for text in long_texts(tokenized(), min_length, tokenizer.sep_id, joined=not config.only_long):
        # The last text is cut, but it fills at least one of the longest sequences.
        room = max(min_length, config.max_tokens - tokens)
        texts.append(WordedText(text.token_ids[:room], text.words[:room]))
        tokens += len(texts[-1].token_ids)
        if tokens >= config.max_tokens:
            break
    if not texts:
        which = "held-out text" if config.held_out else "text"
        where = "in one document" if config.only_long else "in all documents together"
        raise InputError(
            f"a sequence of {min_length + SPECIALS:,} tokens needs a text of {min_length:,}, but "
            f"{' '.join(config.corpus)} has less {which} {where}: {report.summary()}. "
            "Give more text, or smaller --lengths."
        )
    return texts


def print_tables(report: Mapping[str, Any], by_scaling: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures; of several scalings their losses only, in a column each."""
    kind = "tokens" if report["objective"] == "causal" else "masked tokens"
    longest = max(map(int, report["by_length"]))
    print(f"texts: {report['texts']:,}; {report['predictions']:,} {kind}, equal at every length")
    several = len(by_scaling) > 1
    spans = [f"{span['from']:,}–{span['to']:,}" for span in report["by_position"]]
    lengths = [f"{int(length):,}" for length in report["by_length"]]
    by_length = {"loss by length" if several else "length": lengths}
    by_position = {f"positions, of {longest:,}": spans}
    for name, own in by_scaling.items():
        title = name if several else "loss"
        by_length[title] = [f"{x['loss']:.4f}" for x in own["by_length"].values()]
        by_position[title] = [f"{x['loss']:.4f}" for x in own["by_position"]]
    if not several:
        figures = report["by_length"].values()
        by_length |= {
            "95 % interval": [
                "{:.4f}–{:.4f}".format(*x["interval"]) if x["interval"] else "" for x in figures
            ],
            "perplexity": [f"{x['perplexity']:,.1f}" for x in figures],
            "accuracy": [f"{x['accuracy']:.2%}" for x in figures],
        }
        figures = report["by_position"]
        by_position["accuracy"] = [f"{x['accuracy']:.2%}" for x in figures]
        by_position[kind] = [f"{x['predictions']:,}" for x in figures]
    for columns in (by_length, by_position):
        rows = [list(columns), *zip(*columns.values(), strict=True)]
        print("", *table(rows, terminal_width()), sep="\n")
