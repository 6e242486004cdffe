import json
import re
import signal
import time
from contextlib import nullcontext
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from roformer_tf import terminal
from roformer_tf.errors import DivergedError, handling_termination
from roformer_tf.training.fitting import PeriodicCallback, StepLog, Termination
from roformer_tf.training.optimizers import WarmupDecay
from roformer_tf.training.run_files import metrics_file, read_metrics

LOSSES = [8.0, 6.0, 4.0, 7.0, 3.0, 5.0, 2.0, 1.0, 3.0, 2.0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@keras.saving.register_keras_serializable()
class _Label(keras.losses.Loss):
    def call(self, y_true, y_pred):
        return y_true[:, 0] + 0 * y_pred[:, 0]


def toy_model():
    """Return a compiled model whose loss is the label."""
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(WarmupDecay(1.0, 0, len(LOSSES))), _Label())
    return model


def run(
    path,
    model,
    losses,
    *,
    every=3,
    start=0,
    hooks=(),
    min_seconds=0,
    uniform_loss=4.0,
    **settings,
):
    """Fit the model from step `start` and return its metrics; hooks are (function, every)."""
    settings |= {"every": every, "tokens_per_step": 100, "uniform_loss": uniform_loss}
    settings |= {"start": start, "last": start + len(losses)}
    with (
        metrics_file(path, resumed_at=start, board="training") as write_line,
        StepLog(write_line, **settings) as log,
    ):
        schedules = [
            PeriodicCallback(f, every=n, log=log, min_seconds=min_seconds) for f, n in hooks
        ]
        labels = np.array(losses, "float32")[:, None]
        model.fit(
            np.ones_like(labels),
            labels,
            batch_size=1,
            shuffle=False,
            verbose=0,
            callbacks=[log, *schedules],
        )
    return read_metrics(path)


def test_a_line_has_the_mean_since_the_previous_line(path):
    lines = run(path, toy_model(), LOSSES)
    assert [line["step"] for line in lines] == [3, 6, 9, 10]
    assert [line["loss"] for line in lines] == pytest.approx([6, 5, 2, 2])
    assert list(lines[0]) == ["step", "loss", "learning_rate", "tokens_per_second"]


@pytest.mark.parametrize(("min_seconds", "expected_calls"), [(0, [2, 4, 6, 8, 10]), (3600, [10])])
def test_min_seconds_skips_calls_except_the_last(path, min_seconds, expected_calls):
    steps = []
    run(path, toy_model(), LOSSES, hooks=[(steps.append, 2)], min_seconds=min_seconds)
    assert steps == expected_calls


def test_the_learning_rate_is_that_of_the_last_step(path):
    rates = [line["learning_rate"] for line in run(path, toy_model(), LOSSES)]
    assert rates == pytest.approx([0.8, 0.5, 0.2, 0.1])


def test_a_resumed_run_writes_the_same_lines(path):
    """A resumed run logs the same lines, although it was interrupted between two of them."""
    model = toy_model()
    expected = run(path, model, LOSSES)
    state = {}

    def save_metrics_state(step):
        state[step] = [keras.ops.convert_to_numpy(v) for v in model.metrics_variables]

    model = toy_model()
    run(path, model, LOSSES, hooks=[(save_metrics_state, 4)])
    path.write_text("".join(json.dumps(line) + "\n" for line in expected) + '{"step": 1')
    model = toy_model()
    model.optimizer.iterations.assign(4)
    for variable, value in zip(model.metrics_variables, state[4], strict=True):
        variable.assign(value)
    resumed = run(path, model, LOSSES[4:], start=4)
    for before, after in zip(expected, resumed, strict=True):
        assert {**before, "tokens_per_second": 0} == {**after, "tokens_per_second": 0}


def test_tokens_per_second_excludes_the_first_step_and_hooks(path):
    def slow(step):
        time.sleep(0.3)

    lines = run(path, toy_model(), LOSSES, hooks=[(slow, 2)])
    assert all(line["tokens_per_second"] > 100 * 2 / 0.3 for line in lines)


def test_a_line_of_only_the_first_step_has_no_tokens_per_second(path):
    rates = [line["tokens_per_second"] for line in run(path, toy_model(), LOSSES, every=1)]
    assert rates[0] is None
    assert all(rate > 0 for rate in rates[1:])


def test_mfu_is_flops_per_second_over_the_peak(path):
    """MFU is FLOPs per second divided by the peak.

    The speed gives the time of a step, because a step has 100 tokens.
    """
    lines = run(path, toy_model(), LOSSES, flops_per_step=6e9, peak=3e12)
    assert list(lines[0]) == ["step", "loss", "learning_rate", "tokens_per_second", "mfu"]
    for line in lines:
        steps_per_second = line["tokens_per_second"] / 100
        assert line["mfu"] == pytest.approx(steps_per_second * 6e9 / 3e12, abs=2e-4)
        assert line["mfu"] > 0


def test_mfu_is_none_without_tokens_per_second(path):
    lines = run(path, toy_model(), LOSSES, every=1, flops_per_step=6e9, peak=3e12)
    assert [line["mfu"] is None for line in lines] == [True] + 9 * [False]


@pytest.mark.parametrize("known", [{"flops_per_step": 6e9}, {"peak": 3e12}])
def test_mfu_is_absent_without_flops_or_peak(path, known):
    assert all("mfu" not in line for line in run(path, toy_model(), LOSSES, **known))


def test_hooks_are_called_at_their_steps_and_after_the_last_step(path):
    calls = []
    run(path, toy_model(), LOSSES[:7], start=3, hooks=[(calls.append, 4), (calls.append, 10)])
    assert calls == [4, 8, 10, 10]


@pytest.mark.parametrize(("every", "expected_calls"), [(1, [1, 2, 3, 4]), (3, [2, 3, 4])])
def test_also_is_called_after_every_step(every, expected_calls):
    """`also` is called after every step, even if the hook is due anyway.

    So a run that saves at each step also notices that it has to end.
    """
    queries, calls = [], []

    def also():
        queries.append(len(queries) + 1)
        return queries[-1] == 2

    log = SimpleNamespace(paused=nullcontext, start=0, last=4)
    hook = PeriodicCallback(calls.append, every=every, log=log, also=also)
    hook.set_model(SimpleNamespace(jax_state_sync=lambda: None))
    for batch in range(4):
        hook.on_train_batch_end(batch)
    assert (queries, calls) == ([1, 2, 3, 4], expected_calls)


def test_a_line_is_on_disk_when_hooks_run(path):
    seen = []
    run(path, toy_model(), LOSSES, hooks=[(lambda step: seen.append(len(read_metrics(path))), 5)])
    assert seen == [1, 4]


def test_hooks_see_the_weights_of_their_step(path):
    """Hooks see the weights of their step, although `fit` on JAX keeps them elsewhere."""
    model, seen = toy_model(), []
    run(path, model, LOSSES, hooks=[(lambda step: seen.append(int(model.optimizer.iterations)), 4)])
    assert seen == [4, 8, 10]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 100.0])
def test_a_nan_or_exploding_loss_stops_the_run(path, bad):
    losses, calls = [*LOSSES[:7], bad, *LOSSES[8:]], []
    with pytest.raises(DivergedError, match=r"the loss is (nan|inf|[\d.]+) at step 8"):
        run(path, toy_model(), losses, hooks=[(calls.append, 1)])
    assert calls == list(range(1, 8))
    assert [line["step"] for line in read_metrics(path)] == [3, 6]


@pytest.mark.parametrize("uniform_loss", [4.0, 20.0])
def test_a_moderately_rising_loss_does_not_stop_the_run(path, uniform_loss):
    """A loss up to three times the first one or twice the uniform loss does not stop the run."""
    highest = max(3 * LOSSES[0], 2 * uniform_loss)
    lines = run(path, toy_model(), [*LOSSES, 0.99 * highest], every=1, uniform_loss=uniform_loss)
    assert len(lines) == 11


def test_a_new_run_removes_older_lines(path):
    path.write_text('{"step": 0, "loss": 1.0}\n{"step": 3, "loss": 1.0}\n')
    with metrics_file(path, resumed_at=0, board="training"):
        assert read_metrics(path) == []


def test_a_resumed_run_keeps_the_lines_up_to_its_step(path):
    path.write_text('{"step": 0}\n{"step": 3}\n{"step": 4}\n{"st')
    with metrics_file(path, resumed_at=3, board="training") as write_line:
        assert read_metrics(path) == [{"step": 0}, {"step": 3}]
        write_line({"step": 5})
    assert path.read_text() == '{"step": 0}\n{"step": 3}\n{"step": 5}\n'


def test_a_missing_file_has_no_lines(path):
    assert read_metrics(path) == []


def test_tensorboard_has_the_same_values(path, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with metrics_file(path, resumed_at=0, board="held_out") as write_line:
        write_line({"step": 10, "loss": 2.5, "tokens_per_second": None})
        write_line({"step": 20, "loss": 1.25, "tokens_per_second": 4096.0, "by": {"64": 0.5}})
    board = EventAccumulator(str(tmp_path / "tensorboard" / "held_out"))
    board.Reload()
    values = {
        name: [
            (event.step, float(event.tensor_proto.float_val[0])) for event in board.Tensors(name)
        ]
        for name in board.Tags()["tensors"]
    }
    assert values == {
        "loss": [(10, 2.5), (20, 1.25)],
        "tokens_per_second": [(20, 4096.0)],
        "by/64": [(20, 0.5)],
    }


def test_a_signal_after_the_check_stops_after_the_next_step():
    class Model:
        stop_training = False

    termination = Termination()
    termination.set_model(Model())
    assert not termination.received()  # so nothing is saved
    termination.receive(signal.SIGTERM, None)
    termination.on_train_batch_end(0)
    assert not termination.model.stop_training
    assert termination.received()  # now a checkpoint is saved
    termination.on_train_batch_end(1)
    assert termination.model.stop_training


@pytest.fixture
def harmless_handlers():
    """Handlers of SIGTERM and SIGUSR1 that do nothing.

    With the default handlers, a late signal would kill the test process.
    """
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    yield [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_sigbreak_is_handled_like_sigterm(monkeypatch, harmless_handlers):
    """SIGBREAK is handled like SIGTERM. It exists only on Windows, so SIGUSR1 replaces it."""
    monkeypatch.setattr(signal, "SIGBREAK", signal.SIGUSR1, raising=False)
    for number, name in ((signal.SIGUSR1, "SIGUSR1"), (signal.SIGTERM, "SIGTERM")):
        termination = Termination()
        with handling_termination(termination.receive):
            signal.raise_signal(number)  # is only recorded: the step is completed
            assert termination.received()
            assert termination.signal == name
    assert [
        signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)
    ] == harmless_handlers


def test_the_speed_is_shown_in_full(path, monkeypatch, capfd):
    """tqdm shortens numbers: 2,000.4 became 2e+3."""
    monkeypatch.setattr(terminal, "EVERY", 0)
    run(path, toy_model(), LOSSES[:1])
    assert "tokens_per_s" not in capfd.readouterr().err  # the only step was mostly compilation
    run(path, toy_model(), LOSSES)
    assert re.search(r"loss=\d\.\d{3}, tokens_per_s=[\d,]+\b(?!\.)", capfd.readouterr().err)
