"""`roformer_tf.finetune`: the command `finetune`, for data and settings of a Python program."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from roformer_tf import adaptation
from roformer_tf.errors import InputError
from roformer_tf.files import read_json
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.flags import from_keywords, in_python_names
from roformer_tf.inference.opening import open_model
from roformer_tf.inference.predictor import Predictor, load
from roformer_tf.models.pretrained import PretrainedModel
from roformer_tf.readers.memory import json_lines
from roformer_tf.tasks.table import TASKS
from roformer_tf.training.run_files import MODEL, REPORT


@dataclass(frozen=True)
class FinetuneResult:
    """A finished run of `finetune`; its files are in the folder `output`."""

    output: Path

    @cached_property
    def report(self) -> dict[str, Any]:
        """The content of report.json: `test`, `valid`, `baseline` … with their metrics."""
        report: dict[str, Any] = read_json(self.output / REPORT, "Fine-tune again.")
        return report

    @cached_property
    def predict(self) -> Predictor:
        """A function of texts, as `load` returns it: `result.predict(["很好", "太差了"])`."""
        return load(self.output / MODEL)

    @cached_property
    def model(self) -> "PretrainedModel":
        """The Keras model with the best weights, in float32, and its tokenizer.

        Without lexical features, which `predict` has.
        """
        with open_model(self.output / MODEL, "keras", "float32") as opened:
            assert opened.task is not None  # `finetune` has written it
            return opened.keras_model(opened.task.objective.model_class(), "float32")


def finetune(
    checkpoint: str | Path | None, train: Any, output: str | Path, **settings: Any
) -> FinetuneResult:
    """Fine-tune a checkpoint on labelled texts, as the command `finetune` does.

        rows = [("房间很干净", "good"), ("太吵了", "bad"), …]
        result = roformer_tf.finetune(None, rows, "runs/reviews", epochs=5)
        result.predict(["很好"])  # [{"label": "good", "scores": {…}}]
        result.report["test"]["accuracy"]

    checkpoint: as for `load`; None for that of `config`, else our own chinese_roformer-tf-mini.
    train: the path of a file, a list of tuples (text, label) or (text, text, label), a list of
    dictionaries, a pandas or polars data frame, or a `datasets.Dataset`. output: the folder of the
    run. settings: the flags of the command with underscores, such as `learning_rate=1e-4`,
    `task="pair"`, `label_column="stars"`; `valid` and `test` may be what `train` may be. `config`
    is a YAML file or the name of a recipe. Data that are in no file are written to `train.jsonl`
    in the folder, where line 12 is row 12. Called again after an interruption, it resumes.
    Raises InputError for bad data, and for settings that are unknown or wrong.
    """
    sets = {"train": train, "valid": settings.get("valid"), "test": settings.get("test")}
    in_memory = {name: x for name, x in sets.items() if not isinstance(x, str | os.PathLike | None)}
    files = {name: Path(output, f"{name}.jsonl") for name in in_memory}
    words = settings | {"checkpoint": checkpoint, "train": train, "output": output} | files
    config = from_keywords(FinetuneConfig, words)
    # Embeddings are of matching texts: the last cell of a tuple may be a text, too.
    labelling = TASKS[config.task].labelling if config.task else None
    count = max(labelling.text_counts) if labelling and labelling.label_optional else 0
    content = {files[name]: json_lines(x, name, unlabelled=count) for name, x in in_memory.items()}
    try:
        adaptation.finetune(config, content)
    except InputError as error:
        message = str(error)
        for name, path in files.items():  # the file is removed if the run does not begin
            message = message.replace(str(path), name)
        raise InputError(in_python_names(message)) from None
    return FinetuneResult(Path(output))
