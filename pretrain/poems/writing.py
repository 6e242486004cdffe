"""Poems that the model writes: for the measurements, and those of the page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pretrain.poems.corpus import Poem
from pretrain.poems.forms import FORMS, MARKS, forms_from, is_of_form, lines_of
from pretrain.poems.page import ShownPoem
from pretrain.poems.settings import Poems

if TYPE_CHECKING:
    from roformer_tf.models.heads import RoFormerForCausalLM

# Maximum number of tokens to generate: a 七律 with its marks has 64, and longer ones should show.
ROOM = 72
# Poems that are generated in one batch.
ROWS = 128
# Poems that are generated for each one shown; the first of the right form is taken.
TRIES = 8


def ask_as_real(count: int, held_out: Sequence[Poem], seed: int) -> list[Poem]:
    """Random held-out poems, whose forms and rhymes are then requested; equal ones are adjacent.

    So generated poems have the same distribution as the real poems that they are compared with.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.choice(len(held_out), count, replace=count > len(held_out))
    return sorted((held_out[i] for i in drawn.tolist()), key=lambda poem: poem.front)


def write(
    model: "RoFormerForCausalLM",
    asked: Sequence[tuple[str, str]],
    sampling: dict[str, Any],
    seed: int,
) -> list[str]:
    """A poem for each control token and beginning; equal requests give different poems."""
    prompts = [front + beginning for front, beginning in asked]
    written = model.generate(prompts, max_tokens=ROOM, rows=ROWS, seed=seed, **sampling)
    return [
        beginning + "".join(text.split())
        for (_, beginning), (text,) in zip(asked, written, strict=True)
    ]


def write_shown(
    model: "RoFormerForCausalLM", poems: Poems, held_out: Sequence[Poem]
) -> list[ShownPoem]:
    """The poems to show: from first lines, from a form and a rhyme, and from nothing.

    For each, the first of `TRIES` poems that has the right form; without one, none is shown.
    """
    plans = plan_shown(poems, held_out)
    begun = [(plan.front, plan.first_line and plan.first_line + MARKS[0]) for plan in plans]
    texts = write(model, begun * TRIES, poems.sampling, poems.seed + 1) if plans else []
    shown = []
    for number, plan in enumerate(plans):
        right = [text for text in texts[number :: len(plans)] if is_of_form(text, plan.form)]
        shown += [plan._replace(lines=lines_of(text)) for text in right[:1]]
    return shown


def plan_shown(poems: Poems, held_out: Sequence[Poem]) -> list[ShownPoem]:
    """The poems to show, still without lines.

    First lines: the user's, each for both of its possible forms, or those of a held-out poem of
    each form that rhymes. Forms: each twice. From nothing: four. Forms and rhymes are those of
    random held-out poems, so they are as frequent as in real ones.
    """
    rng = np.random.default_rng(poems.seed)
    shown = [poem for poem in held_out if poems.form in (None, poem.form.token)]
    by_form = {form: [p for p in shown if p.form == form] for form in FORMS}

    def drawn(chosen: Sequence[Poem], rhyming: bool = True) -> Poem:
        fitting = [p for p in chosen if p.front != p.form.token] if rhyming else []
        fitting = fitting or list(chosen)
        return fitting[int(rng.integers(len(fitting)))]

    def plan(kind: str, poem: Poem, line: str = "", original: Sequence[str] = ()) -> ShownPoem:
        front = poem.form.token + poems.rhyme if poems.rhyme else poem.front
        return ShownPoem(kind, poem.form, [], line, original, front)

    plans = [
        plan("first line", drawn(by_form[form]), line)
        for line in poems.first_lines
        for form in forms_from(line)
        if by_form[form]
    ]
    used = [of_form for of_form in by_form.values() if of_form]
    if not poems.first_lines:
        real = [drawn(of_form) for of_form in used]
        plans = [plan("first line", poem, poem.lines[0], poem.lines) for poem in real]
    plans += [plan("form", drawn(of_form)) for of_form in used for _ in range(2)]
    return plans + [plan("nothing", drawn(shown, rhyming=False)) for _ in range(4 if shown else 0)]
