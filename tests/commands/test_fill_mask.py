"""`roformer-tf fill-mask` in a new process. Predictions are tested in tests/inference."""

import re


def test_masks_are_filled_by_a_released_checkpoint(start_command, released):
    process = start_command(
        "roformer-tf",
        *("fill-mask", "--model", released("word"), "--top", 3),
        *("今天[MASK]很好，可以去公园。", "[MASK]的[MASK]"),
    )
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    best = r"(\S+ [\d.]+% ?){3}"
    assert re.fullmatch(
        rf"今天［.+］很好，可以去公园。\n  \[MASK\] {best}\n"
        rf"［.+］的［.+］\n  \[MASK\] 1 {best}\n  \[MASK\] 2 {best}\n",
        out,
    )
    assert err == ""
