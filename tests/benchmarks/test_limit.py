import pytest

from benchmarks.checkpoints import SIZES
from benchmarks.peers.limit import Product, products


def test_a_step_of_the_small_model_has_350_billion_operations():
    actual = products(SIZES["small"], [512] * 8, predictions=76)
    assert 3 * sum(each.operations for each in actual) == pytest.approx(350e9, rel=2e-3)


def test_the_last_layer_is_computed_only_at_predictions():
    shape, length, predictions = SIZES["tiny"] | {"num_hidden_layers": 1}, 40, 6
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    actual = products(shape, [length] * 3, predictions=predictions)
    token_products = 3 * length * 2 * hidden * hidden  # keys and values
    # queries, attention output and the two products of the feed-forward layer
    output_products = 3 * predictions * (2 * hidden * hidden + 2 * hidden * inner)
    attention_products = 3 * 2 * predictions * length * hidden
    head_products = 3 * predictions * (hidden * hidden + hidden * shape["vocab_size"])
    want = 2 * (token_products + output_products + attention_products + head_products)
    assert sum(each.operations for each in actual) == want


def test_dense_products_are_two_operations_per_weight_and_token():
    shape = {
        "hidden_size": 6,
        "intermediate_size": 10,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "vocab_size": 7,
    }
    actual = products(shape, [11] * 5)
    dense = sum(each.operations for each in actual if each.stack == 1)
    weights = 3 * (4 * 6 * 6 + 2 * 6 * 10)
    assert dense == 2 * 5 * 11 * weights
    scores = [each for each in actual if each.stack > 1]
    assert sum(each.operations for each in scores) == 2 * (2 * 3 * 5 * 11 * 11 * 6)


def test_attention_depends_on_each_rows_length():
    lengths = [3, 7, 7]
    actual = products(SIZES["tiny"], lengths)
    heads, width, layers = 2, 8, 2
    scores = sum(each.operations for each in actual if each.stack > 1)
    assert scores == 2 * layers * heads * sum(2 * n * n * width for n in lengths)
    assert max(each.columns for each in actual) < SIZES["tiny"]["vocab_size"]  # no head


def test_operations_of_one_product():
    assert Product(times=2, stack=3, rows=4, inner=5, columns=6).operations == 2 * 2 * 3 * 4 * 5 * 6
