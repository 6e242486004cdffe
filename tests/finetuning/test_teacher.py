"""Teacher vectors of the texts are computed once, and a resumed training reads them."""

from functools import partial

import numpy as np
import pytest

from roformer_tf.finetuning.search import teacher_vectors
from roformer_tf.finetuning.settings import VectorConfig
from roformer_tf.finetuning.trial import complete_data
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.paraphrases import ParaphraseBatches

GROUPS = [("今天天气", "天气很好"), ("北京", "上海", "公园")]


@pytest.mark.usefixtures("eager_steps")
def test_teacher_vectors_are_computed_once_and_cached(released, tmp_path):
    source = str(released("sim_char"))
    embedder = VectorSettings().open(source)
    examples = [Example(group, "belongs", "") for group in GROUPS]
    data = ParaphraseBatches.of(examples, embedder.tokenizer, 16)
    calls = []

    def teacher(texts):
        calls.append(texts)
        return teacher_vectors(source, texts)

    complete = partial(complete_data, model=None, vectors=VectorConfig(), folder=tmp_path)
    first = complete(data, "these", teacher=teacher)
    np.testing.assert_allclose(first.teacher, embedder.embed(data.spelled), atol=1e-6)
    resumed = complete(data, "these", teacher=teacher)
    np.testing.assert_array_equal(resumed.teacher, first.teacher)
    assert len(calls) == 1
    complete(data, "others", teacher=teacher)
    assert len(calls) == 2
