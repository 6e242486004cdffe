"""Tests that mteb evaluates our folders on custom tasks with the metrics of our report."""

import json

import numpy as np
import pytest

import roformer_tf

pytestmark = [pytest.mark.hf, pytest.mark.usefixtures("eager_steps")]
WORDS = ["今天", "天气", "很好", "我们", "公园", "学习", "北京", "上海", "中国", "经济"]
SETTINGS = {"task": "embedding", "epochs": 1, "batch_size": 8, "max_length": 16}


@pytest.fixture(scope="module")
def mteb():
    return pytest.importorskip("mteb")


def texts(count, seed):
    rng = np.random.default_rng(seed)
    return ["".join(rng.choice(WORDS, 4)) for _ in range(count)]


def pairs(count, seed, scored):
    """Return different texts with scores of 0 to 4, or with a shuffled first text as the second."""
    first, rng = list(dict.fromkeys(texts(count, seed))), np.random.default_rng(seed)
    second = ["".join(rng.permutation(list(text))) + "了" for text in first]
    if not scored:
        return list(zip(first, second, strict=True))
    scores = rng.integers(0, 5, len(first)).tolist()
    return list(zip(first, rng.permutation(second).tolist(), scores, strict=True))


@pytest.fixture
def run(released, tmp_path, eagerly):
    """Return a function: run(training, test) → the test metrics in report.json."""

    def finetune(training, test):
        with eagerly():
            sets = {"train": training, "valid": training[:10], "test": test}
            roformer_tf.finetune(released("char"), **sets, output=tmp_path / "run", **SETTINGS)
        return json.loads((tmp_path / "run/report.json").read_text("utf-8"))["test"]

    return finetune


def mteb_scores(mteb, folder, kind, metric, dataset):
    """Return the scores of the folder on an mteb task of this kind."""
    from sentence_transformers import SentenceTransformer

    class OwnTask(getattr(mteb.abstasks, f"AbsTask{kind}")):
        metadata = mteb.TaskMetadata(
            name="OwnTask",
            description="Pairs of texts",
            dataset={"path": "none", "revision": "1"},
            type=kind,
            main_score=metric,
            eval_langs=["zho-Hans"],
            eval_splits=["test"],
        )

        def load_data(self, **settings):
            self.dataset, self.data_loaded = dataset, True

    model = SentenceTransformer(str(folder), device="cpu")
    result = mteb.evaluate(model, OwnTask(), cache=None, co2_tracker=False)
    return result.task_results[0].scores["test"][0]


def test_scored_pairs(mteb, run, tmp_path):
    from datasets import Dataset

    test = pairs(40, 2, scored=True)
    metrics = run(pairs(24, 1, scored=True), test)
    columns = dict(zip(("sentence1", "sentence2", "score"), zip(*test, strict=True), strict=True))
    dataset = {"test": Dataset.from_dict({name: list(x) for name, x in columns.items()})}
    scores = mteb_scores(mteb, tmp_path / "run/model", "STS", "cosine_spearman", dataset)
    for name in ("spearman", "pearson"):
        assert scores[f"cosine_{name}"] == pytest.approx(metrics[name], abs=1e-4), name


def test_retrieval(mteb, run, tmp_path):
    from datasets import Dataset

    test = pairs(40, 2, scored=False)
    metrics = run(pairs(24, 1, scored=False), test)
    columns = {
        name: Dataset.from_dict({"id": [f"{name}{i}" for i in range(len(test))], "text": list(x)})
        for name, x in zip(("queries", "corpus"), zip(*test, strict=True), strict=True)
    }
    relevant = {f"queries{i}": {f"corpus{i}": 1} for i in range(len(test))}
    split = columns | {"relevant_docs": relevant, "top_ranked": None}
    dataset = {"default": {"test": split}}
    scores = mteb_scores(mteb, tmp_path / "run/model", "Retrieval", "ndcg_at_10", dataset)
    for name in ("ndcg_at_10", "mrr_at_10", "recall_at_1", "recall_at_10"):
        assert scores[name] == pytest.approx(metrics[name], abs=1e-4), name
    assert 0 < metrics["recall_at_1"] < 1
