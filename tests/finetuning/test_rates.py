"""Default learning rates and numbers of epochs."""

import pytest

from roformer_tf.config import RoFormerConfig
from roformer_tf.finetuning.rates import default_epochs, default_rate, nearest, spelled

PUBLISHED = {  # (layers, hidden size): the range of learning rates in published fine-tuning recipes
    (24, 1024): (1e-5, 2e-5),  # chinese_roformer-v2-char-large
    (12, 768): (2e-5, 5e-5),  # base
    (6, 384): (1e-4, 2e-4),  # small
    (12, 256): (1e-4, 3e-4),  # ELECTRA small
    (4, 256): (3e-4, 5e-4),  # benchmarks/sentiment
    (2, 256): (5e-4, 5e-4),  # the demo: docs/LOG.md
    (1, 32): (1e-3, 1e-3),
}


def config_of(layers, width):
    sizes = {"num_hidden_layers": layers, "num_attention_heads": 4, "intermediate_size": 64}
    return RoFormerConfig(vocab_size=9, hidden_size=width, **sizes)


@pytest.mark.parametrize("size", PUBLISHED)
def test_default_rates_are_in_the_published_range(size):
    low, high = PUBLISHED[size]
    assert low <= default_rate(config_of(*size)) <= high


def test_training_from_scratch_uses_a_higher_rate():
    for size in ((2, 256), (6, 384), (12, 768)):
        usual, scratch = (default_rate(config_of(*size), from_scratch=x) for x in (False, True))
        assert usual < scratch <= 3 * usual


def test_a_trained_head_uses_a_lower_rate():
    assert default_rate(config_of(4, 256), new_head=False) == 1e-4
    assert default_rate(config_of(4, 256)) == 5e-4


def test_rates_are_rounded_to_1_2_or_5():
    assert [nearest(x) for x in (2.9e-5, 3.3e-5, 8e-4, 0.99)] == [2e-5, 5e-5, 1e-3, 1.0]


def test_rates_are_formatted_in_short_notation():
    assert [spelled(x) for x in (2e-5, 0.0005, 1.5e-4, 1e-10, 0.001)] == [
        "2e-5",
        "5e-4",
        "1.5e-4",
        "1e-10",
        "1e-3",
    ]


@pytest.mark.parametrize(
    ("rate", "steps", "epochs"),
    [
        (5e-4, 1, 10),
        (5e-4, 5, 10),  # 160 examples: 10 epochs were better than 3
        (2e-5, 20, 5),
        (5e-4, 38, 3),  # 1,185 examples: 6 were no better
        (5e-4, 157, 3),  # 5,000 examples: the third epoch was the best in two tasks
        (5e-4, 249, 3),
        (5e-4, 251, 2),
        (5e-4, 528, 1),  # 16,883 examples: one epoch was better than three
        (2e-5, 3750, 3),  # 120,000 examples at the rate of a base model
        (2e-5, 13_000, 1),
        (1e-3, 10**6, 1),
    ],
)
def test_default_epochs_depend_on_rate_and_steps(rate, steps, epochs):
    assert default_epochs(rate, steps) == epochs


@pytest.mark.parametrize(
    ("labels", "steps", "epochs"),
    [
        (2, 313, 2),
        (10, 313, 3),  # 10,000 headlines of 10 topics: 86.4 %, 86.0 after 2 epochs
        (118, 313, 3),  # 10,000 questions of 118 intents: 77.6 %, 72.3 after 2 epochs
        (10, 2000, 1),
        (118, 6000, 2),
    ],
)
def test_many_labels_need_more_epochs(labels, steps, epochs):
    assert default_epochs(5e-4, steps, labels=labels) == epochs
