import math

import pytest

from benchmarks.attention_dropout import difference, table


def test_difference_has_a_student_t_interval():
    mean, half = difference([0.01, 0.03, 0.02])
    assert mean == pytest.approx(0.02)
    assert half == pytest.approx(4.303 * 0.01 / math.sqrt(3))  # deviation 0.01, two degrees


def test_one_pair_has_no_interval():
    mean, half = difference([0.5])
    assert mean == 0.5
    assert math.isnan(half)


def test_table_has_losses_and_differences_by_seed():
    lines = table({0.0: [5.0, 5.2, 5.1], 0.1: [5.1, 5.2, 5.3]}).splitlines()[2:]
    assert lines[0] == "| 0 | 5.0000, 5.2000, 5.1000 | 5.1000 |"
    assert lines[1] == "| 0.1 | 5.1000, 5.2000, 5.3000 | 5.2000 |"
    assert lines[2] == "| 0 − 0.1 | -0.1000, +0.0000, -0.2000 | -0.1000 [-0.3484, +0.1484] |"
