"""The model card of `chinese_roformer-tf-mini`: data, licences, steps and figures of a run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from roformer_tf.config import RoFormerConfig
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.training.run_files import EVALUATIONS_FILE, METRICS_FILE, read_metrics

# Folder and description of each stage.
STAGES = {
    "words": "masked words",
    "joint": "masked words, a quarter of the rows in characters, and titles that find their texts",
    "compare": "the same, and two texts in one sequence: which tokens both have, and how many",
    "longer": "the same with longer texts",
}
TEMPLATE = Path(__file__).with_name("card.md.jinja")


def write_card(run: Path, length: int, tokens: Mapping[str, int]) -> None:
    """Write RUN/model/README.md from the files of a run.

    tokens: the number of tokens per step of each stage, by its folder.
    """
    counts: dict[str, Any] = json.loads((run / "text" / "counts.json").read_text(encoding="utf-8"))
    for name in ("characters", "repeated_lines", "other_lines", "tested_lines"):
        counts[name] = sum(source[name] for source in counts["sources"])
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True)
    card = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        config=RoFormerConfig.from_file(run / "model" / "config.json"),
        parameters=RoFormerForMaskedLM.from_pretrained(run / "model").count_params(),
        stages=[stage(STAGES[folder], run / folder, count) for folder, count in tokens.items()],
        evaluation=read_metrics(run / list(tokens)[-1] / EVALUATIONS_FILE)[-1],
        counts=counts,
        length=length,
    )
    (run / "model" / "README.md").write_text(card, encoding="utf-8")


def stage(name: str, folder: Path, tokens: int) -> dict[str, Any]:
    """Return steps, tokens and hours of a stage with `tokens` tokens per step."""
    lines = read_metrics(folder / METRICS_FILE)
    steps = lines[-1]["step"]
    speeds = [line["tokens_per_second"] for line in lines if line["tokens_per_second"]]
    # All lines cover the same number of steps, so the mean time per token is that of the lines.
    hours = steps * tokens * sum(1 / speed for speed in speeds) / len(speeds) / 3600
    return {"name": name, "steps": steps, "tokens": steps * tokens, "hours": hours}
