"""Lexical features: a model's predictions combined with those of TF-IDF, `lexical.npz`.

    logits = factor · the model's + other factor · those of TF-IDF

For labels this is a geometric mean of two distributions. The factors have the lowest loss on the
validation set. They need not add up to 1, which includes a temperature: without it, TF-IDF would be
added only to make an overconfident model less so.
"""

import io
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from roformer_tf.checkpoints.archives import LEXICAL_FILE
from roformer_tf.errors import InputError
from roformer_tf.tasks.losses import PLAIN
from roformer_tf.tasks.parts import Examples, Prediction
from roformer_tf.tasks.tfidf import LinearModel, TfIdf, TfIdfModel

Wanted = Literal["auto", "yes", "no"]

# Of the squares of factors, in a sum of losses: a normal distribution whose deviation is 2.2.
PENALTY = 0.1


@dataclass(frozen=True)
class LexicalFeatures:
    """TF-IDF with its part in the predictions."""

    model: TfIdfModel
    # Of the model's logits, and of TF-IDF's.
    factors: tuple[float, float]
    # Of TF-IDF, from 0 to 1: its part in how much the logits of the validation set vary.
    weight: float

    def combined(
        self,
        task: Any,
        examples: Examples,
        predictions: Sequence[Prediction],
        held_out: np.ndarray | None = None,
    ) -> list[Prediction]:
        """The predictions, combined with those of TF-IDF for the same examples.

        held_out: logits (N, C) of TF-IDF for them, if it was fitted to them.
        """
        if not predictions:
            return []
        logits = task.decoding.logits(np.stack([x.scores for x in predictions]))
        ours, theirs = self.factors
        of_tfidf = self.model.logits(task, examples) if held_out is None else held_out
        return task.decoding.predict_all(ours * logits + theirs * of_tfidf)

    def to_bytes(self) -> bytes:
        """The content of `lexical.npz`."""
        arrays = {**vars(self.model.tfidf), **self.model.linear._asdict()}
        file = io.BytesIO()
        np.savez_compressed(file, factors=self.factors, weight=self.weight, **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes, task: Any, folder: str) -> "LexicalFeatures":
        """Read `lexical.npz`. Raises InputError for a damaged file, or that of another model."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                tfidf = TfIdf(int(arrays["longest"]), arrays["ngrams"], arrays["idf"])
                linear = LinearModel(arrays["coefficients"], arrays["intercepts"])
                ours, theirs = arrays["factors"].tolist()
                weight = float(arrays["weight"])
            known = tfidf.width(len(task.text_columns)), len(linear.intercepts)
            # Of two labels the linear model has one output, from which `linear_logits` makes two.
            outputs = task.metrics.linear_logits(linear.intercepts[None]).shape[1]
            if (linear.coefficients.shape, outputs) != (known, task.outputs):
                raise ValueError("it belongs to another model")
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(
                f"cannot read {folder}/{LEXICAL_FILE}: {error}. Put back the file that `finetune` "
                "wrote, or fine-tune again."
            ) from None
        return cls(TfIdfModel(tfidf, linear), (ours, theirs), weight)


def choose_lexical(
    task: Any,
    model: TfIdfModel,
    valid: Examples,
    predictions: Sequence[Prediction],
    wanted: Wanted = "auto",
    held_out: np.ndarray | None = None,
    balanced: bool = False,
) -> LexicalFeatures | None:
    """The factors with the lowest loss on the validation set, for the model's predictions there.

    held_out: as for `LexicalFeatures.combined`. balanced: whether the loss has class weights.
    None where "auto" finds no gain beyond chance over the model at its best temperature: more than
    the standard error of the gain.
    """
    from scipy.optimize import minimize

    model = model.compact()
    logits = task.decoding.logits(np.stack([x.scores for x in predictions]))
    parts = np.stack([logits, model.logits(task, valid) if held_out is None else held_out])
    targets = np.stack([task.labelling.target(example) for example in valid])
    weights = task.objective.class_weights(targets) if balanced else None

    def losses(factors: np.ndarray) -> np.ndarray:
        """(N,) float64, with factors of the first part or of both."""
        # Σ factor · part. A single factor is the inverse of a temperature, of the model alone.
        mixed = np.tensordot(factors, parts[: len(factors)], 1).astype(np.float32)
        return np.asarray(task.objective.losses(targets, mixed, PLAIN, weights), np.float64)

    def best(number: int) -> np.ndarray:
        # The penalty draws factors towards the start: equal parts, or the model at a temperature of
        # 1.
        start, positive = np.full(number, 1 / number), [(0.0, None)] * number

        def penalized(factors: np.ndarray) -> float:
            # If a few validation examples are all right, the loss alone has no minimum.
            return float(
                losses(factors).mean() + PENALTY / len(valid) * np.sum((factors - start) ** 2)
            )

        # Without derivatives, because losses are float32.
        return minimize(penalized, start, method="Nelder-Mead", bounds=positive, tol=1e-4).x

    factors = best(2)
    gains = losses(best(1)) - losses(factors)
    if wanted == "auto" and gains.mean() <= gains.std() / np.sqrt(len(gains)):
        return None
    spread = factors * parts.std(axis=1).mean(axis=1)
    return LexicalFeatures(model, tuple(factors.tolist()), float(spread[1] / (spread.sum() or 1)))
