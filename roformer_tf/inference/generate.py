"""The body of `generate`: prompts → texts from a causal or a UniLM language model."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

from roformer_tf.engines.choice import KerasPrecision
from roformer_tf.errors import InputError, check_numbers
from roformer_tf.inference.opening import open_model
from roformer_tf.inference.prediction_files import check_output, opened_text, tsv_line
from roformer_tf.inference.text_files import TextFileConfig, check_not_blank, checked_texts, report
from roformer_tf.models.generation_config import ROWS, GenerationConfig
from roformer_tf.terminal import Progress, until_pipe_closes
from roformer_tf.top_k import top_k
from roformer_tf.translation import Message

if TYPE_CHECKING:
    from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForSentenceSimilarity

    CausalModel: TypeAlias = RoFormerForCausalLM | RoFormerForSentenceSimilarity

# Prompts that are continued before their texts are written; within them, those of similar length
# form batches.
CHUNK = 512
# `--paraphrases` samples at least 20 texts, and each token from the 5 likeliest, as the released
# script does (RoFormer-Sim, generate.py).
CANDIDATES, LIKELIEST = 20, 5
COLUMNS = ("input", "output", "score")


class ScoredText(NamedTuple):
    """A generated text."""

    text: str
    score: float
    """Mean log-probability of a token in nats; of a paraphrase its cosine with the source."""


@dataclass(frozen=True, kw_only=True)
class GenerateConfig:
    r"""Generate text: a gpt model continues a prompt, a sim model paraphrases it.

    The standard output holds the generated texts alone, one a line, without the prompts.

    Examples:
        roformer-tf generate --model chinese_roformer-gpt-char-base '今天天气很好，' \
            --stop 。
        roformer-tf generate --model chinese_roformer-sim-char-ft-base '怎么退款' \
            --paraphrases 5
    """

    model: Annotated[str, "MODEL"]
    """A released zip or name, a folder with a checkpoint, or the model/ of a causal run."""
    text: tuple[str, ...] = ()
    """Prompts."""
    input: Annotated[str | None, "FILE"] = None
    """File of prompts: one a line, or a .tsv, .csv, .jsonl, .parquet or .xlsx."""
    output: Annotated[str | None, "FILE"] = None
    """File to write, a TSV with the columns input, output, score: the mean log-probability of a
    token in nats, or of a paraphrase its cosine with the input."""
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    paraphrases: int = 0
    """Of a sim model: the number of paraphrases, the nearest first, out of --samples (default: at
    least 20)."""
    attention_type: Literal["causal", "unilm"] | None = None
    """The attention mask, where neither the config, nor the name, nor the weights show it."""
    stream: bool = False
    """Print a single text while it is generated."""
    batch_size: int = ROWS
    """Texts that are generated at the same time."""
    precision: KerasPrecision = "float32"
    """bfloat16 is faster where the hardware has it; a token may differ where two are about equally
    likely."""
    reading: TextFileConfig = field(default_factory=TextFileConfig)

    def __post_init__(self) -> None:
        if bool(self.text) == (self.input is not None):
            raise InputError("give prompts, or --input with a file of them, but not both.")
        if self.input is not None and self.output is None:
            raise InputError(f"--input {self.input} needs --output: a file to write.")
        check_not_blank("text", self.text)
        check_numbers(self, "batch_size", at_least=1)
        check_numbers(self, "paraphrases", at_least=0)
        if self.paraphrases and self.generation.beams > 1:
            raise InputError("--paraphrases are sampled, which --beams are not. Omit one of them.")
        if self.paraphrases:
            sampling_settings(self.generation, self.paraphrases)  # which checks the numbers
        many = len(self.text) != 1 or self.generation.samples > 1 or self.generation.beams > 1
        if self.stream and (many or self.paraphrases or self.output is not None):
            raise InputError(
                "--stream prints a single text: give one prompt, and no --samples, --beams, "
                "--paraphrases or --output."
            )


def generate(config: GenerateConfig) -> None:
    """Generate for every prompt, in their order, and report the time on stderr.

    Raises InputError as `checked_rows` does for rows of --input.
    """
    check_output(config.output, config.input)
    texts = list(config.text)
    if config.input is not None:
        texts = checked_texts(config.input, config.reading)
    model = open_generator(config.model, config.attention_type, config.precision)
    if config.paraphrases and getattr(model, "pooler", None) is None:
        raise InputError(
            f"{config.model} has no pooler for vectors, by which paraphrases are chosen. Give a "
            "sim model, such as chinese_roformer-sim-char-ft_L-12_H-768_A-12."
        )
    unknown = check_prompts(model, texts, f" of {config.input}" if config.input else "")
    if unknown:
        shown = " ".join(unknown[:10]) + (" …" if len(unknown) > 10 else "")
        report(f"not in the vocabulary, and read as [UNK]: {shown}")
    began = time.perf_counter()
    # A bar would be printed between the chunks of a streamed text.
    is_short = config.stream or len(texts) == 1
    with Progress(
        desc=Message("generate"), unit=Message("texts"), total=len(texts), disable=is_short
    ) as bar:
        # Nothing is generated before it is written or printed.
        outputs = zip(
            texts, generate_texts(model, texts, config, lambda *_: bar.update()), strict=True
        )
        with until_pipe_closes():
            if config.output is not None:
                _write(config.output, outputs)
            elif config.stream:
                _stream(model, texts[0], config.generation)
            else:
                for _, each in outputs:
                    for output in each:
                        print(output.text)
    seconds = time.perf_counter() - began
    report(f"prompts: {len(texts):,}; {seconds:.1f} s, without loading.")


def _stream(model: "CausalModel", text: str, config: GenerationConfig) -> None:
    """Generate one continuation, and print each part of it that no later token changes."""
    from roformer_tf.models.generation import TextStream

    written = TextStream(model.own_tokenizer)

    def on_token(_prompt: int, _sample: int, token: int) -> None:
        print(written.add(token), end="", flush=True)

    prompt = model.encode_prompt(text)
    ((continuation,),) = model.generate_ids([prompt], config, on_token=on_token)
    print(written.rest(continuation.text), flush=True)


def open_generator(
    source: str | Path, attention: str | None = None, precision: KerasPrecision = "float32"
) -> "CausalModel":
    """Open a causal or UniLM language model: gpt, sim, or a run of `pretrain --objective causal`.

    attention: the mask, where the files do not show it. Raises InputError, with the reason, for
    another model.
    """
    with open_model(source, "keras", precision) as opened:
        checkpoint, choice = opened.checkpoint, opened.choice()
        # After `choice`, which imports Keras quickly, and without TensorFlow's notes.
        from roformer_tf.models.heads import RoFormerForCausalLM, RoFormerForSentenceSimilarity

        attention = attention or checkpoint.attention_type
        if not checkpoint.is_language_model:
            raise InputError(
                f"{opened.name} cannot generate: it holds {', '.join(sorted(checkpoint.parts))}, "
                "but not the head that scores the vocabulary. Give a gpt or a sim model, or "
                "pretrain one with --objective causal."
            )
        if attention not in ("causal", "unilm"):
            raise InputError(
                f"{opened.name} is a masked language model by its files, which fills masks and "
                "cannot generate. If it was trained to generate, give --attention-type causal or "
                "unilm; else give a gpt or a sim model. `serve --pooling mean` serves its vectors."
            )
        # Only a sim model has a pooler, whose vectors choose among paraphrases.
        is_sim = attention == "unilm" and "pooler" in checkpoint.parts
        kind = RoFormerForSentenceSimilarity if is_sim else RoFormerForCausalLM
        return opened.keras_model(kind, choice.precision, attention_type=attention)


def check_prompts(model: "CausalModel", texts: Sequence[str], place: str = "") -> list[str]:
    """The tokens of prompts that the vocabulary lacks.

    place: what follows a text's number in messages, such as " of prompts.txt".
    Raises InputError for a prompt that is too long, or that has no known token at all.
    """
    tokenizer = model.own_tokenizer
    # A set that keeps the order in which words appear.
    unknown: dict[str, None] = {}
    for number, text in enumerate(texts, 1):
        ids = model.encode_prompt(text)
        name = f"text {number}{place}"
        model.check_fits(ids, name)
        # A prompt of unknown tokens alone, such as in another language, would give random text.
        own = [i for i in ids if i not in (tokenizer.cls_id, tokenizer.sep_id)]
        if all(i == tokenizer.unk_id for i in own):
            raise InputError(
                f"{name}, {text[:40]!r}, has no character that the model's vocabulary "
                "holds. Give a text in the model's language."
            )
        if tokenizer.unk_id in own:
            words = tokenizer.tokenize(text)
            unknown |= dict.fromkeys(w for w in words if w not in tokenizer.vocabulary)
    return list(unknown)


def generate_texts(
    model: "CausalModel",
    texts: Sequence[str],
    config: GenerateConfig,
    on_done: Callable[..., Any] = lambda *_: None,
) -> Iterator[list[ScoredText]]:
    """The texts generated for each prompt: as many as `samples`, or `paraphrases`.

    on_done: as of `generate_ids`.
    """
    from roformer_tf.models.generation import turns_of

    settings = config.generation
    if config.paraphrases:
        settings = sampling_settings(settings, config.paraphrases)
    prompts = [model.encode_prompt(text) for text in texts]
    turns = turns_of(prompts)  # of all: equal prompts have different samples in every chunk
    for start in range(0, len(texts), CHUNK):
        part = slice(start, start + CHUNK)
        outputs = model.generate_ids(
            prompts[part], settings, rows=config.batch_size, turns=turns[part], on_done=on_done
        )
        if config.paraphrases:
            candidates = [[output.text for output in each] for each in outputs]
            yield from nearest_paraphrases(model, texts[part], candidates, config.paraphrases)
        else:
            yield from ([ScoredText(x.text, x.score) for x in each] for each in outputs)


def sampling_settings(config: GenerationConfig, paraphrases: int) -> GenerationConfig:
    """Sample enough candidates for so many paraphrases, unless the user chose other settings.

    Raises InputError for fewer samples than paraphrases.
    """
    if 1 < config.samples < paraphrases:
        raise InputError(
            f"samples is {config.samples}, but paraphrases, which are chosen among them, is "
            f"{paraphrases}. Give more samples, or none."
        )
    # One sample is the default of GenerationConfig: the user chose no number.
    samples = config.samples if config.samples > 1 else max(CANDIDATES, 4 * paraphrases)
    is_cut = config.top_k is not None or config.top_p is not None
    return replace(config, samples=samples, top_k=config.top_k if is_cut else LIKELIEST)


def nearest_paraphrases(
    model: Any, texts: Sequence[str], candidates: Sequence[Sequence[str]], count: int
) -> list[list[ScoredText]]:
    """Of the candidates for each text, those that differ from it and each other, nearest first.

    By the cosine of a sim model's own vectors. Fewer than `count` where fewer differ.
    """
    tokenizer = model.own_tokenizer
    different = []
    for text, each in zip(texts, candidates, strict=True):
        itself = tokenizer.decode(tokenizer.ids(text))  # as the model would generate it
        different.append([x for x in dict.fromkeys(each) if x and x not in (text, itself)])
    # All vectors are computed together: each text, followed by its candidates.
    rows = [x for text, each in zip(texts, different, strict=True) for x in (text, *each)]
    vectors = model.embed(rows)
    chosen, start = [], 0
    for each in different:
        own, rest = vectors[start], vectors[start + 1 : start + 1 + len(each)]
        start += 1 + len(each)
        cosines = rest @ own
        chosen.append([ScoredText(each[i], float(cosines[i])) for i in top_k(cosines, count)])
    return chosen


def _write(path: str, outputs: Iterable[tuple[str, list[ScoredText]]]) -> None:
    """A TSV of prompts and what was generated for each."""
    with opened_text(path) as out:
        out.write(tsv_line(COLUMNS))
        for text, each in outputs:
            for output in each:
                out.write(tsv_line((text, output.text, f"{output.score:.6f}")))
