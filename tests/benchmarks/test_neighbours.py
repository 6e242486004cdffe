"""`python -m benchmarks.neighbours`: its recall is that of sets, its vectors are of one model."""

import json

import numpy as np
import pytest

from benchmarks.neighbours import NeighbourBenchmark, main
from roformer_tf.errors import InputError


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
