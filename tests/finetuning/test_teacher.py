"""A teacher's vectors belong to the texts of the data, also where a training goes on."""

import numpy as np
import pytest

from roformer_tf.finetuning import teacher
from roformer_tf.finetuning.teacher import with_teacher
from roformer_tf.inference.embed import open_embedder
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.paraphrases import ParaphraseBatches

GROUPS = [("今天天气", "天气很好"), ("北京", "上海", "公园")]


@pytest.mark.usefixtures("eager_steps")
def test_the_vectors_are_those_of_the_texts_and_kept(released, tmp_path, monkeypatch):
    source = str(released("sim_char"))
    embedder = open_embedder(source)
    examples = [Example(group, "belongs", "") for group in GROUPS]
    data = ParaphraseBatches.of(examples, embedder.tokenizer, 16)
    first = with_teacher(data, source, tmp_path, "these")
    np.testing.assert_allclose(first.teacher, embedder.embed(data.spelled), atol=1e-6)
    opened = []
    monkeypatch.setattr(teacher, "open_embedder", lambda name: opened.append(name) or embedder)
    again = with_teacher(data, source, tmp_path, "these")
    assert opened == []
    np.testing.assert_array_equal(again.teacher, first.teacher)
    with_teacher(data, source, tmp_path, "others")
    assert opened == [source]
