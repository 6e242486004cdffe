"""Fit only the simple baseline of a report; print its settings, test metrics and time.

    python -m benchmarks.baseline ../shared/data/tnews

FOLDER has train, valid and test files with the same columns. The settings are chosen on `valid`;
`test` is used once, at the end.
"""

import argparse
import time
from pathlib import Path

from roformer_tf.labelled.columns import ColumnsConfig
from roformer_tf.labelled.reading import find_layout, read_examples
from roformer_tf.tasks.table import TASKS
from roformer_tf.tasks.tfidf import fit_tfidf


def main() -> None:
    """Print the baseline's name, its test metrics and the seconds for tuning and fitting."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--task", choices=TASKS)
    arguments = parser.parse_args()
    train, valid, test = (
        str(next(arguments.folder.glob(f"{name}.*"))) for name in ("train", "valid", "test")
    )
    columns = ColumnsConfig()
    layout = find_layout(train, columns, arguments.task, TASKS)
    training, chosen_by, evaluated_on = (
        read_examples(path, layout, columns) for path in (train, valid, test)
    )
    task = layout.task.from_examples(training)
    began = time.perf_counter()
    metrics = task.metrics
    if metrics.linear_model:
        fitted = fit_tfidf(task, training, chosen_by, metrics.usable()[0])
        name, predictions = fitted.name, fitted.predictions(task, evaluated_on, chosen_by)
    else:
        name, predictions = metrics.rule(training, evaluated_on, chosen_by)
    seconds = time.perf_counter() - began
    print(f"{name}, {seconds:.1f} s")
    gold = [example.label for example in evaluated_on]
    ends = metrics.intervals(gold, predictions)
    for metric, value in metrics.compute(gold, predictions).items():
        print(f"  {metric} {value} {ends[metric]}")


if __name__ == "__main__":
    main()
