"""`make poems`: a causal RoFormer learns Tang and Song verse in ten minutes and writes poems.

It prints and runs the commands that a user would type; only the measurements and the page are its
own code. The poems are in the page `poems.html` and, with all figures, in `poems.json`.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pretrain.demo.__main__ import command, settings, train
from pretrain.poems.corpus import (
    PACKAGE,
    VERSION,
    fetch,
    files_in,
    read_corpus,
    write_corpus,
)
from pretrain.poems.forms import BY_TOKEN, MARKS, with_marks
from pretrain.poems.kneser_ney import Integers, KneserNey, bits
from pretrain.poems.measures import Measures, final_of, measure
from pretrain.poems.page import page
from pretrain.poems.settings import Poems
from pretrain.poems.writing import TRIES, ask_as_real, write, write_shown
from roformer_tf.corpus.objectives import MaskingConfig, make_objective
from roformer_tf.corpus.packing import DOCUMENT, TOKEN
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer
from roformer_tf.usage import from_words

if TYPE_CHECKING:
    from roformer_tf.models.heads import RoFormerForCausalLM

PROGRAM = "python -m pretrain.poems"
# Fraction of the poems that are held out: some four thousand.
HELD_OUT = 0.02
# Of the n-gram model. Longer n-grams hardly help: 8.31, 8.30 and 8.30 bits with 3, 4 and 5.
ORDER = 4


class Surprise(NamedTuple):
    """Cross-entropy of held-out poems, in bits per character."""

    model: float
    # Of the n-gram model, which knows the positions of marks and ends.
    kneser_ney: float
    characters: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything with the flags of `Poems`; return the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return make(from_words(Poems, arguments, PROGRAM))
    except InputError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2


def make(poems: Poems) -> int:
    """Run everything; return the exit code of the command that failed, or 0."""
    began = time.monotonic()
    final_of("山")  # raises now, not after the training, if pypinyin is missing
    gather(poems)
    if code := command(
        "prepare",
        *("--corpus", poems.text, "--output", poems.rows),
        *("--vocab", poems.vocab, "--tokenization", "char", "--length", poems.length),
        *("--fill", 0, "--held-out", HELD_OUT),  # with --fill 0 no poem is split
    ):
        return code
    training = ("--config", poems.config, "--rows", poems.rows, "--seed", poems.seed)
    speed = {"length": poems.length, "pilot_steps": poems.pilot_steps}
    seconds = 60 * poems.minutes
    if code := train(training, poems.output, seconds=seconds, steps=poems.steps, **speed):
        return code
    report(poems)
    folder = poems.output
    print(
        f"\nto read     {folder / 'poems.html'}\n"
        f"figures     {folder / 'poems.json'}\n"
        f"model       {folder / 'model'}   (roformer-tf generate --model {folder / 'model'} "
        f"--temperature {poems.temperature} --top-p {poems.top_p} qilvang)\n"
        f"curves      {folder / 'loss.png'}, tensorboard --logdir {folder / 'tensorboard'}"
    )
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes in all")
    return 0


def gather(poems: Poems) -> None:
    """Write the corpus and its vocabulary, unless they exist.

    Raises InputError if they were written from another source, and for first lines with characters
    that the vocabulary lacks.
    """
    source = poems.output / "source.txt"
    wanted = str(poems.corpus.absolute()) if poems.corpus else f"{PACKAGE} {VERSION}"
    if not source.exists():
        archive = poems.corpus or fetch()
        print(f"writing {poems.text}: poems of the four forms from {archive}", flush=True)
        written = write_corpus(files_in(archive), poems.text, poems.vocab, HELD_OUT)
        write_text(source, wanted + "\n")
        print(
            f"{written.read:,} poems, {written.of_form:,} of them in the four forms; of these "
            f"{written.kept:,} kept, without rare characters, {written.held_out:,} of them held out"
        )
    elif (there := source.read_text(encoding="utf-8").strip()) != wanted:
        raise InputError(
            f"{poems.output} was started with the poems of {there}, not {wanted}. Choose another "
            "--output, or remove it."
        )
    known = set(poems.vocab.read_text(encoding="utf-8").split())
    if unknown := set("".join(poems.first_lines)) - known:
        raise InputError(
            f"--first-lines: {'、'.join(sorted(unknown))} is in none of the poems, or in few. "
            "Use traditional characters: 龍, not 龙."
        )
    shown = [poems.form] if poems.form else list(BY_TOKEN)
    if poems.rhyme and not known.issuperset(form + poems.rhyme for form in shown):
        raise InputError(
            f"--rhyme is {poems.rhyme!r}, in which no poem rhymes, or none of some form. Give a "
            "final as pypinyin spells it, such as an, ang, ou or van (üan)."
        )


def report(poems: Poems) -> None:
    """Measure the model, generate poems, print the figures, and save page and figures."""
    from roformer_tf.models.heads import RoFormerForCausalLM

    model = RoFormerForCausalLM.from_pretrained(poems.output / "model")
    corpus = read_corpus(poems.text)
    outside = [is_held_out(poem.text, HELD_OUT) for poem in corpus]
    trained = [poem for poem, out in zip(corpus, outside, strict=True) if not out]
    held_out = [poem for poem, out in zip(corpus, outside, strict=True) if out]
    surprise = compare(model, poems.rows)
    print(
        f"\nbits per character of held-out poems, {surprise.characters:,} of them (lower is better)"
    )
    print(f"  {'characters counted, n-grams of 1 to 4 (Kneser-Ney)':52}{surprise.kneser_ney:8.2f}")
    print(f"  {'this model':52}{surprise.model:8.2f}", flush=True)

    # The model knows only control tokens that occur in the training text.
    vocabulary = set(poems.vocab.read_text(encoding="utf-8").split())
    usable = [poem for poem in held_out if poem.front in vocabulary]
    requested = ask_as_real(poems.samples, usable, poems.seed)
    texts = write(model, [(poem.front, "") for poem in requested], poems.sampling, poems.seed)
    known = {line for poem in trained for line in poem.lines}
    forms = [poem.form for poem in requested]
    generated = measure(list(zip(forms, texts, strict=True)), known)
    real = measure([(poem.form, with_marks(poem.lines)) for poem in held_out], known)
    print_measures(generated, real)
    shown = write_shown(model, poems, usable)
    print("\nsome generated poems; given first lines are in brackets")
    for poem in shown:
        prompt = f"（{poem.first_line}）" if poem.first_line else ""
        rest = with_marks(poem.lines)[len(poem.first_line) :]
        print(f"  {poem.form.name}  {prompt}{rest}")

    folder = poems.output
    figures = {
        "settings": {key: settings(folder)[key] for key in ("steps", "seed", "batch_size")},
        "sampling": {**poems.sampling, "seed": poems.seed},
        "held_out": surprise._asdict() | {"poems": len(held_out)},
        "written": generated._asdict() | {"rhymes": generated.rhymes._asdict()},
        "real": real._asdict() | {"rhymes": real.rhymes._asdict()},
        "poems": [
            {"asked": poem.front, "text": text} for poem, text in zip(requested, texts, strict=True)
        ],
    }
    write_text(folder / "poems.json", json.dumps(figures, ensure_ascii=False, indent=1) + "\n")
    facts = {
        "steps": settings(folder)["steps"],
        "model_bits": surprise.model,
        "kneser_ney_bits": surprise.kneser_ney,
        "trained": len(trained),
        "held_out": len(held_out),
        "generated": generated,
        "real": real,
        "tries": TRIES,
    }
    write_text(folder / "poems.html", page(shown, facts))


def print_measures(generated: Measures, real: Measures) -> None:
    """Print form, rhymes and novelty of the generated poems, next to rhymes of real ones."""
    print(f"\nof {generated.poems:,} generated poems, the form given")
    for name, fraction in (
        ("have the requested form", generated.of_form),
        ("pairs of even lines that end in the same final", generated.rhymes.share),
        ("  … in real poems, held out", real.rhymes.share),
        ("  … by chance", real.rhymes.chance),
        ("lines that are in no poem of the training text", generated.new_lines),
    ):
        print(f"  {name:52}{fraction:8.1%}")


def compare(model: "RoFormerForCausalLM", folder: Path) -> Surprise:
    """Bits per character of held-out poems, of the model and of n-grams of the training text.

    The sum is over characters of the vocabulary and control tokens, since these have information
    about the poem; marks and ends are excluded. It is divided by the number of characters.
    """
    from roformer_tf.corpus.batches import held_out_batches
    from roformer_tf.pretraining.evaluation import TokenMetrics, token_metrics

    tokenizer = RoFormerTokenizer.from_pretrained(folder)
    ids = tokenizer.vocabulary
    marks = [ids[mark] for mark in MARKS]
    uncounted = [*marks, tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id]
    rows = PreparedRows.open(folder, "held_out")
    batches = held_out_batches(
        rows, batch_size=32, seed=0, objective=make_objective("causal", tokenizer, MaskingConfig())
    )
    outputs = token_metrics(TokenMetrics(model), batches)
    counted = (outputs["weights"] > 0) & ~np.isin(outputs["labels"], uncounted)
    ours = -outputs["log_likelihood"][counted].astype("float64") / np.log(2)

    training = stream(PreparedRows.open(folder), tokenizer.cls_id)
    counts = KneserNey(*training, ORDER, tokenizer.vocab_size)
    tokens, begins = stream(rows, tokenizer.cls_id)
    theirs = bits(counts, tokens, begins, never=[*marks, tokenizer.sep_id])
    theirs = theirs[~np.isin(tokens[~begins], uncounted)]
    assert len(theirs) == len(ours)  # the same tokens
    fronts = [number for token, number in ids.items() if token[0] in ascii_lowercase]
    characters = int(np.sum(~np.isin(outputs["labels"][counted], fronts)))
    return Surprise(float(ours.sum()) / characters, float(theirs.sum()) / characters, characters)


def stream(rows: PreparedRows, cls_id: int) -> tuple[Integers, np.ndarray]:
    """The tokens of all documents, concatenated, and where each begins: (T,) both."""
    all_rows = np.stack([rows[i] for i in range(len(rows))])
    tokens = all_rows[:, TOKEN][all_rows[:, DOCUMENT] > 0].astype(np.int64)
    return tokens, tokens == cls_id


if __name__ == "__main__":
    sys.exit(main())
