"""Multiple choice by transformers' RoFormerForMultipleChoice.

Its linear layer scores one hidden state of a candidate's tokens, or their mean: the `summary_type`
of its config. By default that is the last position of the batch, which is padding unless all
candidates have the same length or the padding is on the left. Here it is the last token.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from roformer_tf.engines.network import Part as NetworkPart
from roformer_tf.errors import InputError
from roformer_tf.labelled.encoding import EncodedTexts
from roformer_tf.tasks.base import part
from roformer_tf.tasks.choices.multiple_choice import ChoiceDecoding, Choices, ListObjective

if TYPE_CHECKING:
    from roformer_tf.config import RoFormerConfig
    from roformer_tf.models.pretrained import PretrainedModel

# The layer is linear: the mean of its outputs is its output for the mean.
SUMMARIES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "last": lambda logits: logits[-1],
    "first": lambda logits: logits[0],
    "mean": lambda logits: logits.mean(axis=0),
}


class SummaryObjective(ListObjective):
    """The model whose linear layer has an output for each token."""

    @classmethod
    def model_class(cls) -> "type[PretrainedModel]":
        """A token classifier of one label."""
        from roformer_tf.models.heads import RoFormerForTokenClassification

        return RoFormerForTokenClassification


class SummaryDecoding(ChoiceDecoding):
    """Logits of tokens (T, 1) → of candidates (C,)."""

    task: "SummaryChoices"
    graph_part: ClassVar[NetworkPart] = "token_classifier"

    def combine(self, row_logits: Sequence[np.ndarray], encoded: EncodedTexts) -> list[np.ndarray]:
        """The logit of each candidate's summary."""
        summary = SUMMARIES[self.task.summary]
        return super().combine([summary(logits) for logits in row_logits], encoded)


@dataclass(frozen=True, kw_only=True)
class SummaryChoices(Choices):
    """Pairs of a text and a candidate, scored as in transformers."""

    objective = part(SummaryObjective)
    decoding = part(SummaryDecoding)

    summary: str = "last"
    """One of `SUMMARIES`."""

    @classmethod
    def of_config(cls, config: "RoFormerConfig", name: str) -> "SummaryChoices":
        """The task of a model saved by transformers; `name` for messages.

        Raises InputError for a summary that is not supported.
        """
        summary = config.unknown.get("summary_type", "last")
        if summary not in SUMMARIES or config.unknown.get("summary_activation"):
            raise InputError(
                f"{name}: its config has summary_type {summary!r} and summary_activation "
                f"{config.unknown.get('summary_activation')!r}, but only a summary_type of "
                f"{', '.join(SUMMARIES)} without activation is supported."
            )
        length, columns = config.max_position_embeddings, ("text", "choices")
        return cls(text_columns=columns, max_length=length, summary=summary)
