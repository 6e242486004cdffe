"""Write RESULTS.md and its plots from results.json."""

import inspect
import statistics
from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks import plots
from benchmarks.cases import CASES, LIMIT
from benchmarks.environments import HERE
from benchmarks.results import Record, Results, exponent, median
from roformer_tf.files import write_text

FILE = HERE / "RESULTS.md"
# Written by hand: what was tried, and the bounds of missed goals. Appended to RESULTS.md.
NOTES = HERE / "NOTES.md"

TITLES = {
    "square": "What the machine can do",
    "mlm_step": "A training step",
    "variables": "Settings that were tried",
    "profile": "Where the step's time goes",
    "feeding": "Real data costs no time",
    "inference": "Inference",
    "generate": "Writing",
    "paraphrase": "Sentences that mean the same",
    "embed": "Sentence vectors",
    "rotary": "One rotation",
    "linear_attention": "Linear attention",
    "tokenization": "Tokenization",
    "preparation": "Corpus preparation",
    "startup": "Start",
    "scaling": "How the step grows",
    "corpus_scaling": "How preparation grows",
}

# Goals for a training step with dropout: the contender's time over ours.
GOALS = {"Hugging Face, stock": 4.0, "Hugging Face, tuned": 2.0, "bert4keras": 6.0, LIMIT: 0.75}

HOW = """
`make bench` measures all of this and writes this file; `make bench CASES="inference startup"` only
some of it. Every contender runs in a process and an environment of its own
(`benchmarks/peers/*.txt`). Those of one block of a table take turns, in an order that rotates,
while the others sleep; a first turn is not counted. Times are medians, least and most in brackets;
**ratio** is a contender's time over ours: above 1 we are faster. Memory is the largest resident
memory of the process after building and compiling, model included. All open the same checkpoint
with random weights and are given the same tokens; **answer** (the first loss, the mean of the
hidden states' first feature, the number of tokens) shows that they did the same work.
torch.compile needs a C++ compiler, g++. Nothing is set for ours; for the others, what their lines
say.
"""


def write_report(results: Results) -> None:
    """Write RESULTS.md and its plots."""
    plots.draw(results, HERE / "plots")
    write_text(FILE, render(results))


def render(results: Results) -> str:
    """Return the text of RESULTS.md."""
    parts = ["# How fast it is, compared with the alternatives", HOW, _machine(results)]
    for case, make in CASES.items():
        records = results.of(case)
        if records:
            parts += [f"## {TITLES[case]}", inspect.getdoc(make) or "", *_body(case, records)]
    if NOTES.exists():
        parts.append(NOTES.read_text(encoding="utf-8"))
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def summary(record: Record) -> str:
    """Return one measurement as text for the terminal."""
    return "\n".join([f"{record['case']} {_shape(record)}", *map("  ".join, _cells(record))])


def _body(case: str, records: list[Record]) -> Iterator[str]:
    """Yield the paragraphs of a case's section."""
    if case == "mlm_step":
        yield _goals(records)
    if case == "profile":
        yield _profile(records[0])
    if case != "scaling":  # its contenders are sizes, which need no description
        yield _contenders(records)
    yield _table(
        ["", "contender", "time", "rate", "ratio", "memory", "answer"],
        ([_shape(record), *cells] for record in records for cells in _cells(record)),
    )
    if case == "corpus_scaling":
        yield _growth(records)
    if case in plots.DRAWN:
        yield f"![{TITLES[case]}](plots/{case}.png)"


def _cells(record: Record) -> Iterator[list[str]]:
    """Yield name, time, rate, ratio, memory and answer of each contender."""
    ours = next((median(record, row["name"]) for row in record["rows"]), None)
    for row in record["rows"]:
        if row["failed"]:
            yield [row["name"], f"failed: {row['failed']}", "", "", "", ""]
            continue
        time = statistics.median(row["seconds"])
        yield [
            row["name"],
            f"{_seconds(time)} ({_seconds(min(row['seconds']))} to "
            f"{_seconds(max(row['seconds']))})",
            _rate(record, row, time),
            f"{time / ours:.2f}" if ours else "",
            _megabytes(row["facts"].get("peak_memory")),
            _answer(row["facts"]),
        ]


def _rate(record: Record, row: Record, seconds: float) -> str:
    """Return the throughput of a contender, as text."""
    facts, settings = row["facts"], record["settings"] | record["shape"]
    if "operations" in facts:
        return f"{facts['operations'] / seconds / 1e12:.2f} TFLOP/s"
    if "characters" in facts:
        return f"{facts['characters'] / seconds / 1e6:.2f} M characters/s"
    if "batch" in settings or "tokens_a_step" in facts:
        result = "new" if "new" in settings else "length"  # generated or encoded tokens
        tokens = facts.get("tokens_a_step") or settings["batch"] * settings[result]
        return f"{tokens / seconds:,.0f} tokens/s" + _stages_of_writing(facts)
    if "vectors" in facts:
        return f"{facts['vectors'] / seconds:,.0f} texts/s"
    if "samples" in settings:
        return f"{1 / seconds:.2f} sentences/s"
    if "stages" in facts:
        stages = zip(("import", "load", "predict"), facts["stages"], strict=True)
        return ", ".join(f"{name} {_seconds(stage)}" for name, stage in stages)
    return ""


def _stages_of_writing(facts: dict[str, Any]) -> str:
    """Return the time of the first call (which compiles), of an early and of a late token."""
    facts_shown = []
    if "first_call" in facts:
        facts_shown.append(f"first call {_seconds(facts['first_call'])}")
    if "early_token" in facts:
        facts_shown.append(f"token 10 {_seconds(facts['early_token'])}")
        facts_shown.append(f"token 120 {_seconds(facts['late_token'])}")
    return "".join(f", {item}" for item in facts_shown)


def _answer(facts: dict[str, Any]) -> str:
    """Return the contender's result, which shows that all contenders did the same work."""
    actual = (facts.get(key) for key in ("first_loss", "mean_of_first_feature", "tokens"))
    return next((f"{value:,}" if value > 1e3 else f"{value:.4f}" for value in actual if value), "")


def _goals(records: list[Record]) -> str:
    """Return a table of ratios by shape, with the goals in its header."""
    names = list(GOALS)
    rows = []
    for record in records:
        ours = median(record, "ours")
        times = [median(record, name) for name in names]
        ratios = ["" if not (ours and time) else f"{time / ours:.2f}" for time in times]
        rows.append([_shape(record), *ratios])
    heads = [f"{name}, goal {goal:g}" for name, goal in GOALS.items()]
    return "How many times as fast as each; of the matrix products, the share of the limit.\n\n" + (
        _table(["", *heads], rows)
    )


def _profile(record: Record) -> str:
    """Return a table of the milliseconds of each group of operations, before and after."""
    before, after = (row["facts"].get("milliseconds", {}) for row in record["rows"])
    total = [sum(each.values()) or 1 for each in (before, after)]
    rows = [
        [
            group,
            *(
                f"{ms.get(group, 0):.0f} ({100 * ms.get(group, 0) / total_ms:.0f} %)"
                for ms, total_ms in zip((before, after), total, strict=True)
            ),
        ]
        for group in sorted(before | after, key=lambda group: -before.get(group, 0))
    ]
    rows.append(["all", *(f"{total_ms:.0f}" for total_ms in total)])
    return _table(["operations", "before, ms", "after, ms"], rows)


def _growth(records: list[Record]) -> str:
    """Return the fitted exponent over all sizes and without the smallest.

    Start-up time dominates the smallest size.
    """
    actual = [(r["shape"]["megabytes"], median(r, "ours")) for r in records]
    points = [(size, seconds) for size, seconds in actual if seconds]
    if len(points) < 3:
        return ""
    all_sizes, large = (exponent(*map(list, zip(*p, strict=True))) for p in (points, points[1:]))
    return f"Time grows with size to the power of {all_sizes:.2f}; from 10 MB on, {large:.2f}."


def _contenders(records: list[Record]) -> str:
    """Return a list of the contenders' settings."""
    about = {row["name"]: row for record in records for row in record["rows"]}
    return "\n".join(
        f"- **{name}**: {row['about'] or 'as it comes'}" for name, row in about.items()
    )


def _machine(results: Results) -> str:
    """Return a table of the hardware, the commits and the versions of all software."""
    records = results.measurements.values()
    versions = {f"{name} {number}" for r in records for name, number in r["software"].items()}
    commits = {record["commit"] for record in records}
    rows = [
        *results.machine.items(),
        ("software", ", ".join(sorted(versions))),
        ("commit", ", ".join(sorted(commits))),
    ]
    return _table(["", ""], ([name, value] for name, value in rows))


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    """Return a Markdown table. A first cell that repeats the one above is left empty."""
    lines = [heads, ["---"] * len(heads)]
    first = ""
    for row in rows:
        lines.append([row[0] if row[0] != first else "", *row[1:]])
        first = row[0]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _shape(record: Record) -> str:
    return ", ".join(f"{name} {value}" for name, value in record["shape"].items())


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.2f} ms"


def _megabytes(size: float | None) -> str:
    return f"{size / 1e6:,.0f} MB" if size else ""
