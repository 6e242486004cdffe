"""What `finetune` makes of its settings before anything is trained."""

import pytest

from roformer_tf.finetuning.command import FinetuneConfig, make_start
from roformer_tf.tasks.table import TASKS


@pytest.mark.parametrize(
    ("given", "task", "pooling"),
    [
        (None, "classification", "cls"),
        ("mean", "classification", "mean"),
        (None, "ranking", "mean"),
        ("cls", "ranking", "cls"),
    ],
)
def test_an_answer_is_read_from_where_it_is_asked_for(released, given, task, pooling):
    config = FinetuneConfig(
        checkpoint=str(released("char")), train="", output="", pooling=given, precision="float32"
    )
    assert make_start(config, TASKS[task]).architecture.pooling == pooling
