"""Fine-tuned models with random weights for --rerank."""

from functools import cache

import pytest

from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.regression import Regression
from tests.support.random_model import save_random_models, tokenizer_of

SIZES = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.3}
TASKS = {
    "classification": Classification(labels=("坏", "好")),
    "pair": Pair(labels=("0", "1"), text_columns=("句一", "句二")),
    "regression": Regression(mean=3.0, deviation=1.5),
}


@pytest.fixture(scope="session")
def finetuned(tmp_path_factory):
    """A function that returns a model folder, as written by `finetune`, with random weights."""

    @cache
    def make(name):
        tokenizer = tokenizer_of("今天天气很好我们去公园学习北京上海的了")
        folder = tmp_path_factory.mktemp(name)
        return save_random_models({name: TASKS[name]}, folder, tokenizer, seed=1, **SIZES)[name]

    return make
