"""`python -m benchmarks.neighbours`: its recall is that of sets, its vectors are of one model."""

import json

import numpy as np
import pytest

from benchmarks.neighbours import NeighbourBenchmark, main, recall
from roformer_tf.errors import InputError
from roformer_tf.inference.nearest import Found


def found(*rows):
    """Places, and scores that fall with them."""
    places = np.array(rows)
    return Found(places, np.float32(1) - places.astype(np.float32) / 100)


def test_recall_counts_what_is_among_the_nearest():
    assert recall(found([0, 1, 2]), found([0, 1, 2])) == 1
    assert recall(found([2, 1, 0], [0, 1, 9]), found([0, 1, 2], [0, 1, 2])) == 5 / 6


def test_one_that_is_as_near_counts():
    tied = Found(np.array([[0, 7]]), np.float32([[1, 0.99]]))
    assert recall(tied, found([0, 1])) == 1


def unit(rows, seed, size=8):
    vectors = np.random.default_rng(seed).normal(size=(rows, size)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_figures_of_a_file_of_vectors(tmp_path, capsys):
    pytest.importorskip("faiss", reason="needs the extra [search]")
    np.save(tmp_path / "v.npy", unit(500, 0))
    np.save(tmp_path / "q.npy", unit(20, 1))
    main(NeighbourBenchmark(tmp_path / "v.npy", tmp_path / "q.npy"))
    figures = json.loads(capsys.readouterr().out)
    assert (figures["vectors"], figures["queries"]) == (500, 20)
    assert figures["recall"] > 0.99
    assert figures["graph_ms_a_query_alone"] > 0


def test_vectors_of_two_models_are_refused(tmp_path):
    np.save(tmp_path / "v.npy", unit(5, 0))
    np.save(tmp_path / "q.npy", unit(5, 1, size=4))
    with pytest.raises(InputError, match=r"of 8 numbers, .* of 4"):
        main(NeighbourBenchmark(tmp_path / "v.npy", tmp_path / "q.npy"))
