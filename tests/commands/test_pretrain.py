"""`pretrain` in a new process. Details are tested in tests/pretraining and tests/faults."""

import json
import re
from importlib.metadata import version

from roformer_tf.corpus.shards import PreparedRows
from roformer_tf.models.heads import RoFormerForMaskedLM


def test_a_run_with_a_settings_file_and_flags_over_it(start_command, pretrain_flags, tmp_path):
    words = pretrain_flags(None)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    lines = [f"{flag.removeprefix('--')}: {json.dumps(value)}" for flag, value in pairs]
    config = tmp_path / "settings.yaml"
    config.write_text("\n".join(lines))
    process = start_command(
        "roformer-tf",
        *("pretrain", "--config", config, "--steps", 6, "--log-every", 2),
        *("--output", tmp_path / "run"),
    )
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err

    assert "1 layers of 32, 2 heads" in out
    splits = ("train", "held_out")
    train, held_out = (len(PreparedRows.open(tmp_path / "run" / "rows", x)) for x in splits)
    assert f": {train:,} for training, {held_out:,} held out" in out
    assert (
        f"passes over the training set: {6 * int(dict(pairs)['--batch-size']) / train:.1f}" in out
    )
    assert train > held_out > 0
    assert re.search(r"step 0: held-out loss [\d.]+ \(perplexity [\d.]+\), accuracy [\d.]+%", out)
    assert re.search(r"step 6: held-out loss", out)
    assert str(tmp_path / "run" / "model") in out
    if version("tensorflow").startswith("2.20."):  # its compiler ignores the log level
        err = re.sub(r"(?m)^(WARNING: All log messages before absl|[IW]0000 ).*\n", "", err)
    err = re.sub(r"(?m)^pretraining: \d of 6 steps, .*\n", "", err)  # after half a minute
    assert err == ""  # no bar: stderr is not a terminal
    assert (tmp_path / "run" / "loss.png").stat().st_size > 1000  # an image
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 4, 6]
    assert RoFormerForMaskedLM.from_pretrained(tmp_path / "run" / "model").tokenizer
