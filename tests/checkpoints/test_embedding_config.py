import json

import pytest

from roformer_tf.checkpoints.embedding_config import FILE, EmbeddingConfig
from roformer_tf.errors import InputError
from tests.support.embedding_file import load


@pytest.mark.parametrize("dimensions", [None, (128, 64)])
@pytest.mark.parametrize("pooling", ["pooler", "mean", "cls"])
def test_saving_and_loading_returns_the_same_config(tmp_path, pooling, dimensions):
    EmbeddingConfig(pooling, 64, dimensions).save(tmp_path)
    assert load(tmp_path) == EmbeddingConfig(pooling, 64, dimensions and (64, 128))
    assert json.loads((tmp_path / FILE).read_text("utf-8")) == {
        "pooling": pooling,
        "max_length": 64,
        "dimensions": dimensions and [64, 128],
    }


def test_a_folder_without_the_file_has_no_config(tmp_path):
    assert load(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"pooling": "mean"}',
        '{"pooling": "max", "max_length": 64}',
        '{"pooling": ["mean"], "max_length": 64}',
        '{"pooling": "mean", "max_length": 2}',
        '{"pooling": "mean", "max_length": true}',
        '{"pooling": "mean", "max_length": "64"}',
        '{"pooling": "mean", "max_length": 64, "dimensions": []}',
        '{"pooling": "mean", "max_length": 64, "dimensions": [0]}',
        '{"pooling": "mean", "max_length": 64, "dimensions": ["a", 1]}',
        '{"pooling": "mean", "max_length": 64, "dimensions": "64"}',
    ],
)
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / FILE).write_text(content, "utf-8")
    with pytest.raises(InputError, match=FILE):
        load(tmp_path)


def test_unknown_keys_of_later_versions_are_ignored(tmp_path):
    content = {"pooling": "cls", "max_length": 8, "dimensions": None, "prompt": "query: "}
    (tmp_path / FILE).write_text(json.dumps(content), "utf-8")
    assert load(tmp_path) == EmbeddingConfig("cls", 8)
