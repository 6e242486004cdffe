import numpy as np
import pytest

from roformer_tf.corpus.batches import held_out_batches
from roformer_tf.corpus.objectives import (
    MaskedTokens,
    predictions_per_row,
    replacement_ids,
)
from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.models.heads import RoFormerForMaskedLM
from roformer_tf.pretraining import evaluation as metrics
from roformer_tf.pretraining.evaluation import (
    LanguageModelMetrics,
    TokenMetrics,
    evaluate,
    length_bucket,
    token_metrics,
)


@pytest.fixture(scope="module")
def model(pretrained):
    return RoFormerForMaskedLM.from_pretrained(pretrained / "model")


@pytest.fixture(scope="module")
def rows(pretrained):
    return PreparedRows.open(pretrained / "rows", "held_out")


@pytest.fixture(scope="module")
def objective_arguments(model):
    return {
        "mask_id": model.tokenizer.mask_id,
        "random_ids": replacement_ids(model.tokenizer.vocabulary),
    }


def reference(model, rows, objective_arguments):
    """Return loss, accuracy and number of predictions, computed row by row in float64."""
    losses, hits = [], []
    for number, row in enumerate(rows):
        batch, labels, weights = MaskedTokens(**objective_arguments)(row[None], [(5, 0, number)])
        inputs = {"token_ids": batch["token_ids"], "sequence_ids": row[1].astype("int32")[None]}
        logits = np.asarray(model(inputs), "float64")[0]  # (L, V)
        used = weights > 0
        positions = batch["masked_positions"]
        for position, label in zip(positions[used], labels[used], strict=True):
            scores = logits[position]
            losses.append(np.log(np.exp(scores - scores[label]).sum()))
            hits.append(scores.argmax() == label)
    return np.mean(losses), np.mean(hits), len(losses)


@pytest.mark.slow
def test_the_loss_is_reported_by_the_length_of_documents(
    monkeypatch, model, rows, objective_arguments
):
    """The loss by document length is the mean over the tokens of each bucket.

    The smallest bucket is 8 here, because the rows have only 32 tokens.
    """
    monkeypatch.setattr(metrics, "LEAST_BUCKET", 8)
    batches = held_out_batches(
        rows, batch_size=16, seed=5, objective=MaskedTokens(**objective_arguments)
    )
    scores = TokenMetrics(model)
    arrays = token_metrics(scores, batches)
    losses = {}
    for number, row in enumerate(rows):
        inputs, _, weights = batches[number // 16]
        position = number % 16
        for slot in np.flatnonzero(weights[position]):
            document = row[1][inputs["masked_positions"][position, slot]]
            length = (row[1] == document).sum()
            bucket = next(m for m in (8, 16, 32) if length <= m)
            losses.setdefault(bucket, []).append(-arrays["log_likelihood"][number, slot])
    assert len(losses) >= 2
    got = evaluate(scores, batches).loss_by_length
    assert list(got) == sorted(losses)
    assert got == pytest.approx(
        {bucket: np.mean(x, dtype="float64") for bucket, x in losses.items()}
    )


def test_length_buckets_are_powers_of_two():
    lengths = np.array([1, 63, 64, 65, 128, 129, 512, 513, 1536])
    assert length_bucket(lengths).tolist() == [64, 64, 64, 128, 128, 256, 512, 1024, 2048]


@pytest.mark.parametrize("batch_size", [1, 16])
def test_evaluation_equals_a_loop_over_rows(model, rows, objective_arguments, batch_size):
    assert len(rows) % 16  # the last batch is padded with rows of weight 0
    batches = held_out_batches(
        rows, batch_size=batch_size, seed=5, objective=MaskedTokens(**objective_arguments)
    )
    scores = evaluate(TokenMetrics(model), batches)
    loss, accuracy, predictions = reference(model, rows, objective_arguments)
    assert scores.predictions == predictions
    assert scores.loss == pytest.approx(loss, rel=1e-5)
    assert scores.accuracy == pytest.approx(accuracy)
    assert scores.perplexity == pytest.approx(np.exp(loss), rel=1e-4)


def test_each_of_several_corpora_has_its_own_figures(model, rows, objective_arguments):
    """Each corpus has its own figures, except one without predictions, which has none."""
    scores = TokenMetrics(model)
    settings = {"seed": 5, "objective": MaskedTokens(**objective_arguments)}
    batches = held_out_batches(rows, batch_size=16, **settings)
    last = len(rows) - 1

    def without_last_row(step, batch):
        inputs, labels, weights = batch
        return inputs, labels, np.where((16 * step + np.arange(16))[:, None] == last, 0, weights)

    corpora = {"news": 5, "law": last - 5, "none": 1}
    output = evaluate(scores, batches.map_with_index(without_last_row), corpora).by_corpus
    assert list(output) == ["news", "law"]
    for name, numbers in {"news": range(5), "law": range(5, last)}.items():
        own_batches = held_out_batches(rows, batch_size=4, numbers=[*numbers], **settings)
        want = evaluate(scores, own_batches)
        assert output[name] == {
            "loss": pytest.approx(want.loss, rel=1e-5),
            "accuracy": pytest.approx(want.accuracy),
        }
    assert evaluate(scores, batches, {"": len(rows)}).by_corpus == {}


def test_token_metrics_returns_arrays_per_token(
    model, rows, objective_arguments, check_autotune_off
):
    batches = held_out_batches(
        rows, batch_size=16, seed=5, objective=MaskedTokens(**objective_arguments)
    )
    arrays = token_metrics(TokenMetrics(model), batches)
    shape = (-(-len(rows) // 16) * 16, predictions_per_row(rows.length, 0.15))
    keys = ("log_likelihood", "likeliest", "labels", "weights", "document_lengths")
    assert {key: x.shape for key, x in arrays.items()} == dict.fromkeys(keys, shape)
    assert (arrays["weights"][len(rows) :] == 0).all()
    assert (arrays["log_likelihood"] < 0).all()


def test_evaluation_does_not_change_the_model(model, rows, objective_arguments):
    before = {name: np.asarray(v) for name, v in model.named_variables().items()}
    batches = held_out_batches(
        rows, batch_size=16, seed=5, objective=MaskedTokens(**objective_arguments)
    )
    first = evaluate(TokenMetrics(model), batches)
    assert evaluate(TokenMetrics(model), batches) == first
    for name, variable in model.named_variables().items():
        assert (np.asarray(variable) == before[name]).all()


def test_the_figures_are_printed_as_text_and_as_numbers():
    by_length = {64: 1.5, 256: 2.25}
    scores = LanguageModelMetrics(2.0, 0.25, predictions=1234, loss_by_length=by_length)
    assert scores.line() == {
        "held_out_loss": 2.0,
        "held_out_perplexity": pytest.approx(7.389056),
        "held_out_accuracy": 0.25,
        "held_out_loss_by_length": {"64": 1.5, "256": 2.25},
    }
    by_corpus = {"news": {"loss": 1.0, "accuracy": 0.5}, "law": {"loss": 3.0, "accuracy": 0.0}}
    both = LanguageModelMetrics(2.0, 0.25, 1234, loss_by_length=by_length, by_corpus=by_corpus)
    assert both.line() == scores.line() | {"held_out_by_corpus": by_corpus}
    assert str(scores) == (
        "held-out loss 2.000 (perplexity 7.4), accuracy 25.0% of 1,234 masked tokens"
    )
