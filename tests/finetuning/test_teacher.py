"""A teacher's vectors belong to the texts of the data."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from roformer_tf.finetuning.search import teacher_vectors
from roformer_tf.finetuning.settings import FinetuneConfig
from roformer_tf.finetuning.trial import Trial, complete_data
from roformer_tf.inference.embed import VectorSettings
from roformer_tf.labelled.examples import Example
from roformer_tf.labelled.paraphrases import ParaphraseBatches
from roformer_tf.tasks.metrics import ACCURACY

GROUPS = [("今天天气", "天气很好"), ("北京", "上海", "公园")]


@pytest.mark.usefixtures("eager_steps")
def test_teacher_vectors_are_those_of_the_texts(released):
    source = str(released("sim_char"))
    embedder = VectorSettings().open(source)
    examples = [Example(group, "belongs", "") for group in GROUPS]
    data = ParaphraseBatches(examples, embedder.tokenizer, 16)
    teacher = partial(teacher_vectors, source)
    config = FinetuneConfig(train="", output="")
    trial = Trial(Path(), [], [], config, ACCURACY, teacher=teacher)
    complete = complete_data(data, None, trial)
    np.testing.assert_allclose(complete.teacher, embedder.embed(data.spelled), atol=1e-6)
