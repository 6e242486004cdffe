"""What `compare-positions` shows: a table for the terminal, and one page as Markdown and HTML."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from roformer_tf.runs.plots import draw_positions
from roformer_tf.terminal import table

HEAD = ("positions", "loss", "accuracy", "difference", "95 % interval", "ms/step", "MiB", "weights")


def rows(report: Mapping[str, Any]) -> list[list[str]]:
    """A row of cells for each kind of positions, as `HEAD` names them, the best loss first."""
    ordered = sorted(report["positions"].items(), key=lambda item: item[1]["held_out_loss"])
    return [
        [
            name,
            f"{one['held_out_loss']:.4f}",
            f"{one['held_out_accuracy']:.2%}",
            f"{one['difference']:+.4f}" if "difference" in one else "",
            "{:+.4f} to {:+.4f}".format(*one["interval"]) if "interval" in one else "",
            f"{1000 * one['seconds_per_step']:,.0f}",
            f"{one['peak_memory'] / 2**20:,.0f}" if one["peak_memory"] else "",
            f"{one['parameters']:,}",
        ]
        for name, one in ordered
    ]


def facts(report: Mapping[str, Any]) -> Iterator[str]:
    """What the figures are of, in sentences."""
    kind = "masked words" if report["objective"] == "masked" else "next tokens"
    several = "seed" if report["seeds"] == 1 else "seeds"
    yield (
        f"Held-out loss in nats for each of the {kind}, after {report['steps']:,} steps of "
        f"{report['batch_size']} rows of {report['length']} tokens; {report['seeds']} {several}. "
        f"Architecture: {report['architecture']}."
    )
    yield (
        f"The difference is that from {report['baseline']}: below 0 is better than it. All kinds "
        "saw the same text in the same order under the same masks, seed by seed. The interval is "
        + (
            "Student's t over the seeds."
            if report["interval_over"] == "seeds"
            else "a bootstrap over the held-out rows; what another seed would change is not in it."
        )
    )
    yield (
        "Time is the median of a step, and memory the largest that a training process took, "
        "libraries included."
    )
    yield ". ".join(f"{name}: {value}" for name, value in report["machine"].items()) + "."


def lines(report: Mapping[str, Any], width: int) -> Iterator[str]:
    """The table as the terminal shows it."""
    yield ""
    yield from table([list(HEAD), *rows(report)], width)
    yield ""
    yield from list(facts(report))[:2]


def markdown_page(report: Mapping[str, Any]) -> str:
    """comparison.md, whose plot is comparison.png beside it."""
    return (
        "\n\n".join(
            [
                "# Positions compared",
                *list(facts(report))[:2],
                _markdown_table([list(HEAD), *rows(report)]),
                "![Held-out loss by step, and differences with intervals](comparison.png)",
                *list(facts(report))[2:],
                "",
            ]
        ).rstrip("\n")
        + "\n"
    )


def _markdown_table(cells: Sequence[Sequence[str]]) -> str:
    head, *others = (f"| {' | '.join(row)} |" for row in cells)
    rule = f"| --- {'| ---: ' * (len(cells[0]) - 1)}|"
    return "\n".join([head, rule, *others])


def html_page(report: Mapping[str, Any]) -> str:
    """comparison.html: one file that needs no other."""
    import jinja2

    template = files("roformer_tf.pretraining").joinpath("positions.html.jinja")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    picture = base64.b64encode(draw_positions(report)).decode("ascii")
    return (
        environment.from_string(template.read_text(encoding="utf-8")).render(
            head=HEAD,
            rows=rows(report),
            best=min(report["positions"], key=lambda x: report["positions"][x]["held_out_loss"]),
            facts=list(facts(report)),
            picture=f"data:image/svg+xml;base64,{picture}",
        )
        + "\n"
    )
