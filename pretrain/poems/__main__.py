"""`make poems`: a causal RoFormer learns Tang and Song verse in ten minutes and writes poems.

It runs the commands that a user types, and prints them; only the measuring and the page are its
own. What it writes is in the page `poems.html` and, with all figures, in `poems.json`.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pretrain.demo.__main__ import command, planned_steps, settings, steps_per_second
from pretrain.poems.corpus import (
    PACKAGE,
    VERSION,
    Poem,
    fetch,
    files_in,
    read_corpus,
    write_corpus,
)
from pretrain.poems.forms import (
    BY_TOKEN,
    FORMS,
    MARKS,
    Form,
    form_of,
    is_of_form,
    lines_of,
    with_marks,
)
from pretrain.poems.kneser_ney import Integers, KneserNey, bits
from pretrain.poems.measures import final_of, measure
from pretrain.poems.page import Facts, Piece, write_page
from roformer_tf.corpus.masking import MaskingConfig
from roformer_tf.corpus.objectives import make_objective
from roformer_tf.corpus.packing import DOCUMENT, TOKEN
from roformer_tf.corpus.part_writer import is_held_out
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.errors import InputError
from roformer_tf.files import write_text
from roformer_tf.flags import parsed
from roformer_tf.tokenizers.tokenizer import RoFormerTokenizer

if TYPE_CHECKING:
    from roformer_tf.models.heads import RoFormerForCausalLM

PROGRAM = "python -m pretrain.poems"
HELD_OUT = 0.02
"""Fraction of the poems that are held out: some four thousand."""
ORDER = 4
"""Of the n-gram model. Longer n-grams hardly help it: 8.31, 8.30 and 8.30 bits with 3, 4 and 5."""
ROOM = 72
"""Tokens to write at most: a 七律 with its marks has 64, and what is too long is to be seen."""
ROWS = 128
"""Poems that are written side by side."""
TRIES = 8
"""Poems that are written for each one shown; the first of the right form is taken."""


@dataclass(frozen=True)
class Poems:
    """Train a small model on Tang and Song verse, have it write poems, and measure them."""

    corpus: Path | None = None
    """Folder with the poems of chinese-poetry (poet.tang.0.json, …). Unset: npm fetches them."""
    output: Path = Path("runs/poems")
    """Folder of the run: corpus, rows, `model/`, curves, `poems.html`, `poems.json`."""
    minutes: float = 9.0
    """Of training; reading, counting, writing and measuring take three to four more."""
    steps: int | None = None
    """Steps of training, which give the same model on every machine. Unset: as many as --minutes
    hold at the speed of a short run before."""
    first_lines: tuple[str, ...] = ()
    """First lines, of five or seven characters, to go on from. Unset: those of held-out poems."""
    form: str | None = None
    """Show poems of this form alone: wujue, qijue, wulv or qilv. Unset: of all four."""
    rhyme: str | None = None
    """Show poems with this rhyme alone, a final as pypinyin spells it: ang, ou, van (üan), …"""
    samples: int = 1000
    """Poems to generate and measure."""
    temperature: float = 0.8
    """Below 1, likelier characters are preferred."""
    top_p: float = 0.95
    """Each character is drawn from the likeliest ones that have this probability together."""
    seed: int = 0
    """Of the training and of what is written."""
    config: Path = Path(__file__).parent / "training.yaml"
    """Flags of `pretrain`."""
    length: int = 104
    """Tokens of a row: two 五律, or a 七律 and a 七絕, fill it."""
    pilot_steps: int = 30
    """Of the short run that shows how fast this machine is."""

    def __post_init__(self) -> None:
        if self.minutes <= 0:
            raise InputError(f"--minutes is {self.minutes}, but must be above 0.")
        if self.samples < 1:
            raise InputError(f"--samples is {self.samples}, but must be at least 1.")
        if self.form not in (None, *BY_TOKEN):
            raise InputError(f"--form is {self.form!r}, but must be one of {', '.join(BY_TOKEN)}.")
        for line in self.first_lines:
            if not forms_from(line):
                raise InputError(
                    f"--first-lines: {line!r} is no line of five or seven Chinese characters."
                )

    @property
    def text(self) -> Path:
        """The poems, one a line."""
        return self.output / "corpus.jsonl"

    @property
    def vocab(self) -> Path:
        """Their characters."""
        return self.output / "characters.txt"

    @property
    def rows(self) -> Path:
        """What is prepared of them."""
        return self.output / "rows"

    @property
    def sampling(self) -> dict[str, Any]:
        """How characters are drawn."""
        return {"temperature": self.temperature, "top_p": self.top_p}


class Surprise(NamedTuple):
    """How well the characters of held-out poems were predicted, in bits per character."""

    model: float
    kneser_ney: float
    """Of the n-gram model, which is given the positions of marks and ends."""
    characters: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it all with the flags of `Poems`; give the exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        return make(parsed(Poems, arguments, PROGRAM))
    except InputError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2


def make(poems: Poems) -> int:
    """Run it all; give the exit code of the command that failed, or 0."""
    began = time.monotonic()
    final_of("山")  # pypinyin is missing now, or never
    gather(poems)
    if code := command(
        "prepare",
        *("--corpus", poems.text, "--output", poems.rows),
        *("--vocab", poems.vocab, "--tokenization", "char", "--length", poems.length),
        *("--fill", 0, "--held-out", HELD_OUT),  # no poem is cut
    ):
        return code
    training = ("pretrain", "--config", poems.config, "--rows", poems.rows, "--seed", poems.seed)
    steps = poems.steps or planned_steps(poems.output)
    if steps is None:
        print(f"\n{poems.pilot_steps} steps to see how fast this machine is")
        with tempfile.TemporaryDirectory() as pilot:
            quick = ("--embeddings", "random", "--steps", poems.pilot_steps, "--output", pilot)
            if code := command(*training, *quick):
                return code
            speed = steps_per_second(Path(pilot), poems.length)
        steps = max(1, int(speed * 60 * poems.minutes))
    if code := command(*training, "--steps", steps, "--output", poems.output):
        return code
    report(poems)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes in all")
    return 0


def gather(poems: Poems) -> None:
    """Write the corpus and its vocabulary, unless they are there.

    Raises InputError where it was written of something else, and for first lines with characters
    that it lacks.
    """
    source = poems.output / "source.txt"
    wanted = str(poems.corpus.absolute()) if poems.corpus else f"{PACKAGE} {VERSION}"
    if not source.exists():
        archive = poems.corpus or fetch()
        print(f"writing {poems.text}: poems of the four forms out of {archive}", flush=True)
        written = write_corpus(files_in(archive), poems.text, poems.vocab, HELD_OUT)
        write_text(source, wanted + "\n")
        print(
            f"{written.read:,} poems, {written.of_form:,} of them in the four forms; of these "
            f"{written.kept:,} kept, without rare characters, {written.held_out:,} of them held out"
        )
    elif (there := source.read_text(encoding="utf-8").strip()) != wanted:
        raise InputError(
            f"{poems.output} was begun with the poems of {there}, not {wanted}. Choose another "
            "--output, or remove it."
        )
    known = set(poems.vocab.read_text(encoding="utf-8").split())
    if unknown := set("".join(poems.first_lines)) - known:
        raise InputError(
            f"--first-lines: {'、'.join(sorted(unknown))} is in none of the poems, or in few. "
            "They are written in traditional characters: 龍, not 龙."
        )
    shown = [poems.form] if poems.form else list(BY_TOKEN)
    if poems.rhyme and not known.issuperset(form + poems.rhyme for form in shown):
        raise InputError(
            f"--rhyme is {poems.rhyme!r}, in which no poem rhymes, or none of some form. Give a "
            "final as pypinyin spells it, such as an, ang, ou or van (üan)."
        )


def report(poems: Poems) -> None:
    """Measure the model, have it write, print the figures, and save page and figures."""
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

    vocabulary = set(poems.vocab.read_text(encoding="utf-8").split())
    askable = [poem for poem in held_out if poem.front in vocabulary]
    asked = ask_as_real(poems.samples, askable, poems.seed)
    written = write(model, [(poem.front, "") for poem in asked], poems.sampling, poems.seed)
    texts = [(poem.form, text) for poem, text in zip(asked, written, strict=True)]
    known = {line for poem in trained for line in poem.lines}
    measured = measure(texts, known)
    real = measure([(poem.form, with_marks(poem.lines)) for poem in held_out], known)
    print(f"\nof {measured.poems:,} generated poems, the form given")
    for name, share in (
        ("have the form that was asked for", measured.of_form),
        ("pairs of even lines that end in the same final", measured.rhymes.share),
        ("  … in real poems, held out", real.rhymes.share),
        ("  … by chance", real.rhymes.chance),
        ("lines that are in no poem of the training text", measured.new_lines),
    ):
        print(f"  {name:52}{share:8.1%}")

    pieces = write_pieces(model, poems, askable)
    print("\nsome generated poems; given first lines are in brackets")
    for piece in pieces:
        prompt = f"（{piece.given}）" if piece.given else ""
        print(f"  {piece.form.name}  {prompt}{with_marks(piece.lines)[len(piece.given) :]}")

    figures = {
        "settings": {key: settings(poems.output)[key] for key in ("steps", "seed", "batch_size")},
        "sampling": {**poems.sampling, "seed": poems.seed},
        "held_out": surprise._asdict() | {"poems": len(held_out)},
        "written": measured._asdict() | {"rhymes": measured.rhymes._asdict()},
        "real": real._asdict() | {"rhymes": real.rhymes._asdict()},
        "poems": [
            {"asked": poem.front, "text": text} for poem, text in zip(asked, written, strict=True)
        ],
    }
    write_text(
        poems.output / "poems.json", json.dumps(figures, ensure_ascii=False, indent=1) + "\n"
    )
    facts = Facts(
        surprise.model, surprise.kneser_ney, len(trained), len(held_out), measured, real, TRIES
    )
    write_page(poems.output / "poems.html", pieces, facts)
    folder = poems.output
    print(
        f"\nto read     {folder / 'poems.html'}\n"
        f"figures     {folder / 'poems.json'}\n"
        f"model       {folder / 'model'}   (roformer-tf generate --model {folder / 'model'} "
        f"--temperature {poems.temperature} --top-p {poems.top_p} qilvang)\n"
        f"curves      {folder / 'loss.png'}, tensorboard --logdir {folder / 'tensorboard'}"
    )


def compare(model: "RoFormerForCausalLM", folder: Path) -> Surprise:
    """Bits per character of the held-out rows, by the model and by counting the training rows.

    Characters of the vocabulary and control tokens count, since these carry information
    about the poem; marks and ends do not. All is divided by the number of characters.
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
    """The tokens of rows, one document after the other, and where each begins: (T,) both."""
    all_rows = np.stack([rows[i] for i in range(len(rows))])
    tokens = all_rows[:, TOKEN][all_rows[:, DOCUMENT] > 0].astype(np.int64)
    return tokens, tokens == cls_id


def ask_as_real(count: int, held_out: Sequence[Poem], seed: int) -> list[Poem]:
    """Held-out poems, drawn by chance, whose forms and rhymes are asked for; of like ones together.

    So what is written has as much of each as the real poems that it is compared with.
    """
    chance = np.random.default_rng(seed)
    drawn = chance.choice(len(held_out), count, replace=count > len(held_out))
    return sorted((held_out[i] for i in drawn.tolist()), key=lambda poem: poem.front)


def write(
    model: "RoFormerForCausalLM",
    asked: Sequence[tuple[str, str]],
    sampling: dict[str, Any],
    seed: int,
) -> list[str]:
    """A poem for each control token and given beginning; equal requests give different poems."""
    prompts = [front + beginning for front, beginning in asked]
    written = model.generate(prompts, max_tokens=ROOM, rows=ROWS, seed=seed, **sampling)
    return [
        beginning + "".join(text.split())
        for (_, beginning), (text,) in zip(asked, written, strict=True)
    ]


def write_pieces(
    model: "RoFormerForCausalLM", poems: Poems, held_out: Sequence[Poem]
) -> list[Piece]:
    """The poems to show: from first lines, from a form and a rhyme, and from nothing.

    Of `TRIES` the first one of the right form; none of what never came right.
    """
    plans = plan_pieces(poems, held_out)
    begun = [(plan.front, plan.given and plan.given + MARKS[0]) for plan in plans]
    texts = write(model, begun * TRIES, poems.sampling, poems.seed + 1) if plans else []
    pieces = []
    for number, plan in enumerate(plans):
        right = [text for text in texts[number :: len(plans)] if is_of_form(text, plan.form)]
        pieces += [plan._replace(lines=lines_of(text)) for text in right[:1]]
    return pieces


def plan_pieces(poems: Poems, held_out: Sequence[Poem]) -> list[Piece]:
    """What is to be shown, without its lines.

    First lines: the user's, each for both forms that it may begin, or those of a held-out poem of
    each form that rhymes. Forms: each twice. From nothing: four. Forms and rhymes are those of
    held-out poems drawn by chance, so they come as often as they do in real ones.
    """
    chance = np.random.default_rng(poems.seed)
    shown = [poem for poem in held_out if poems.form in (None, poem.form.token)]
    by_form = {form: [p for p in shown if p.form == form] for form in FORMS}

    def drawn(chosen: Sequence[Poem], rhyming: bool = True) -> Poem:
        fitting = [p for p in chosen if p.front != p.form.token] if rhyming else []
        fitting = fitting or list(chosen)
        return fitting[int(chance.integers(len(fitting)))]

    def piece(kind: str, poem: Poem, line: str = "", original: Sequence[str] = ()) -> Piece:
        front = poem.form.token + poems.rhyme if poems.rhyme else poem.front
        return Piece(kind, poem.form, [], line, original, front)

    plans = [
        piece("first line", drawn(by_form[form]), line)
        for line in poems.first_lines
        for form in forms_from(line)
        if by_form[form]
    ]
    used = [of_form for of_form in by_form.values() if of_form]
    if not poems.first_lines:
        real = [drawn(of_form) for of_form in used]
        plans = [piece("first line", poem, poem.lines[0], poem.lines) for poem in real]
    plans += [piece("form", drawn(of_form)) for of_form in used for _ in range(2)]
    return plans + [piece("nothing", drawn(shown, rhyming=False)) for _ in range(4 if shown else 0)]


def forms_from(line: str) -> list[Form]:
    """The forms whose first line this may be."""
    return [form for form in FORMS if form_of([line] * form.lines) == form]


if __name__ == "__main__":
    sys.exit(main())
