"""The search whose order a reranker improves: BM25 among all documents of a run."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from roformer_tf.finetuning.search_baselines import scores_of
from roformer_tf.labelled.examples import Example
from roformer_tf.search.keywords import BM25
from roformer_tf.top_k import top_k

if TYPE_CHECKING:
    from roformer_tf.finetuning.search import Sets

# Wrong documents of a query in training, and documents that are ordered in an evaluation.
NEGATIVES, CANDIDATES = 7, 20


def searched(sets: "Sets", negatives: int) -> "Sets":
    """The sets with documents in the order of BM25.

    A query whose documents are all relevant gets others. In training these are the first
    `negatives` wrong ones of the training set: other documents would always be wrong, and a model
    learns to put them last. In an evaluation a query has what the search returns, with its relevant
    documents or without them. Where a file names wrong documents, too, they are only ordered.
    """

    def indexed(examples: Sequence[Example]) -> tuple[list[str], BM25]:
        documents = list(dict.fromkeys(text for x in examples for text in x.texts[1:]))
        return documents, BM25(documents)

    of_all_sets = indexed([*sets.train, *sets.valid, *sets.test])

    def ordered(some: Sequence[Example], extra: int) -> list[Example]:
        documents, index = indexed(some) if extra else of_all_sets
        result = []
        scores = scores_of(index, [example.texts[0] for example in some])
        for example, of_query in zip(some, scores, strict=True):
            own = dict(zip(example.texts[1:], example.label, strict=True))
            labelled = not all(own.values())
            count = len(documents) if labelled else (extra or CANDIDATES) + len(own)
            matches = [documents[i] for i in top_k(of_query, min(count, len(documents)))]
            if labelled:
                chosen = [text for text in matches if text in own]
            elif extra:
                chosen = [*own, *[text for text in matches if text not in own][:extra]]
            else:
                chosen = matches[:CANDIDATES]
            label = tuple(own.get(text, 0.0) for text in chosen)
            result.append(example._replace(texts=(example.texts[0], *chosen), label=label))
        return result

    return dataclasses.replace(
        sets,
        train=ordered(sets.train, negatives),
        valid=ordered(sets.valid, 0),
        test=ordered(sets.test, 0),
        folds=[(ordered(a, negatives), ordered(b, 0)) for a, b in sets.folds],
    )
