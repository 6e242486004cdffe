"""Fine-tuned models shared by several tests, which do not change them."""

from functools import cache

import pytest

from roformer_tf.tasks.classification import Classification, Pair
from roformer_tf.tasks.extraction.question_answering import QuestionAnswering
from roformer_tf.tasks.multilabel import Multilabel
from roformer_tf.tasks.ranking import Ranking
from roformer_tf.tasks.regression import Regression
from roformer_tf.tasks.tagging import Tagging
from tests.support.random_model import save_random_models, tokenizer_of

TOKENIZER = tokenizer_of("今天天气很好我们去公园学习北京上海的了")
SIZES = {"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.3}
TASKS = {
    "classification": Classification(labels=("坏", "好")),
    "multilabel": Multilabel(labels=("甲", "乙", "丙")),
    "pair": Pair(labels=("0", "1"), text_columns=("句一", "句二")),
    "regression": Regression(mean=3.0, deviation=1.5),
    "ranking": Ranking(text_columns=("a", "b", "c")),
    "question-answering": QuestionAnswering(text_columns=("question", "context")),
    "tagging": Tagging(labels=("O", "B-LOC", "I-LOC")),
}


@pytest.fixture(scope="session")
def finetuned(tmp_path_factory):
    """Return a function: finetuned("tagging") → a random model's folder as `finetune` writes it."""

    @cache
    def save(name):
        result = save_random_models(
            {name: TASKS[name]}, tmp_path_factory.mktemp(name), TOKENIZER, seed=1, **SIZES
        )
        return result[name]

    return save
