"""AutoWarmup has the weights again, too, of the moment whose learning rate it goes back to."""

import sys

import numpy as np
import pytest
from support.frontends import FRONTENDS, array, every_frontend

from tf_lamb.core import autowarmup, gaussian_process
from tf_lamb.core.autowarmup import AutoWUState, Kept, Settings


def test_the_lowest_epoch_is_the_one_that_ends_lowest():
    never = gaussian_process.MinimumTest(0.0, 1.0)
    warmup = AutoWUState(Settings(100), lambda x, y, tests: [never])
    for step, loss in enumerate([9.0, 9, 9, 5] + [1.0, 1, 1, 9] + [8.0, 8, 8, 3] + [4.0] * 4):
        warmup.record(step, loss)
        if step % 4 == 3:
            warmup.end_epoch(step + 1)
    assert warmup.lowest == 12  # the second had lower losses, and ended with a high one
    again = AutoWUState(Settings(100))
    again.restore(warmup.state(), 16)
    assert again.lowest == 12


def test_one_state_is_kept_and_found_again_by_another_process(tmp_path):
    file = tmp_path / "state.json"
    # A scalar is what `.numpy()` of a TensorFlow variable without axes is: no array.
    arrays = [np.arange(3, dtype="float32"), np.int64(7), np.array(8), np.ones((2, 2), "float16")]
    like = [0 * array for array in arrays]
    kept = Kept(file)
    for step in (4, 8):
        kept.keep(step, arrays)
        kept.drop(but=step)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json.8.weights"]
    assert kept.at(8, like) is arrays
    assert Kept(file).at(4, like) is None
    assert Kept(file).at(8, like[:2]) is None  # of another model
    for one, other in zip(Kept(file).at(8, like), arrays, strict=True):
        np.testing.assert_array_equal(one, other)
    kept.drop()
    assert not list(tmp_path.iterdir())


def weights(frontend, seen):
    host, ours = FRONTENDS[frontend]

    class Watcher(host.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            optimizer = self.model.optimizer
            seen.append([array(v) for v in [*self.model.weights, *optimizer.variables]])

    return Watcher()


@every_frontend
def test_after_the_switch_the_model_is_as_at_the_end_of_that_epoch(frontend, monkeypatch, capsys):
    """A rate that destroys what was learned: the losses of the last epochs are the highest."""
    host, ours = FRONTENDS[frontend]
    judge = lambda x, y, tests: [gaussian_process.MinimumTest(float(len(x) > 8), 0.5)]  # noqa: E731
    monkeypatch.setattr(autowarmup.AutoWUState.__init__, "__defaults__", (judge,))
    model = host.Sequential([host.layers.Input((2,)), host.layers.Dense(1)])
    model.compile(host.optimizers.SGD(0.1, momentum=0.5), "mse", run_eagerly=True)
    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")
    before, after = [], []
    warmup = ours.AutoWarmup(1e-2, 1e3, patience=2)
    callbacks = [weights(frontend, before), warmup, weights(frontend, after)]
    model.fit(x, x[:, :1], batch_size=4, epochs=10, shuffle=False, verbose=0, callbacks=callbacks)
    switch, lowest = int(warmup.warmup.begin) // 4, warmup.warmup.lowest // 4
    assert lowest < switch == 4
    for one, other, now in zip(
        before[lowest - 1], after[switch - 1], before[switch - 1], strict=True
    ):
        np.testing.assert_array_equal(one, other)
        assert one.ndim == 0 or (one != now).any()
    assert f"are those of step {lowest * 4} again" in capsys.readouterr().out


@every_frontend
def test_a_resumed_run_goes_back_to_the_counter_and_the_weights_of_an_unbroken_one(
    frontend, monkeypatch, tmp_path
):
    """Adam, whose step depends on `iterations`; the switch comes after the interruption."""
    host, ours = FRONTENDS[frontend]
    judge = lambda x, y, tests: [gaussian_process.MinimumTest(float(len(x) > 8), 0.5)]  # noqa: E731
    monkeypatch.setattr(autowarmup.AutoWUState.__init__, "__defaults__", (judge,))
    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")

    def fit(folder, ends_before=None):
        host.utils.set_random_seed(1)
        model = host.Sequential([host.layers.Input((2,)), host.layers.Dense(1)])
        model.compile(host.optimizers.Adam(0.1), "mse", run_eagerly=True)
        warmup = ours.AutoWarmup(
            1e-2, 1e3, patience=2, state_file=str(folder / "warmup.json"), verbose=False
        )
        backup = ours.BackupAndRestore(str(folder / "backup"), delete_checkpoint=False)
        ends = host.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: 1 / 0 if epoch == ends_before else None
        )
        callbacks = [warmup, backup, ends]
        try:
            model.fit(
                x, x[:, :1], batch_size=4, epochs=10, shuffle=False, verbose=0, callbacks=callbacks
            )
        except ZeroDivisionError:
            return None
        assert warmup.warmup.lowest < warmup.warmup.begin == 16
        return int(array(model.optimizer.iterations)), model.get_weights()

    updates, expected = fit(tmp_path / "unbroken")
    assert updates < 40
    fit(tmp_path / "broken", ends_before=3)
    again, weights = fit(tmp_path / "broken")
    assert again == updates
    for one, other in zip(weights, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@every_frontend
def test_a_decay_that_diverges_goes_back_until_it_does_not(frontend, monkeypatch, capsys):
    """From a peak that is set too high, at which what was learned is lost."""
    host, ours = FRONTENDS[frontend]
    judge = lambda x, y, tests: [gaussian_process.MinimumTest(float(len(x) > 24), 1.0)]  # noqa: E731
    monkeypatch.setattr(autowarmup.AutoWUState.__init__, "__defaults__", (judge,))

    class TooHigh(host.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if callback.warmup.found:
                callback.warmup.peak = 10.0

    x = np.random.default_rng(0).normal(size=(16, 2)).astype("float32")

    host.utils.set_random_seed(1)
    model = host.Sequential([host.layers.Input((2,)), host.layers.Dense(1)])
    model.compile(host.optimizers.SGD(0.1), "mse", run_eagerly=True)
    before, after = [], []
    callback = ours.AutoWarmup(1e-2, 10.0, patience=2)
    callbacks = [weights(frontend, before), callback, TooHigh(), weights(frontend, after)]
    losses = model.fit(
        x, x[:, :1], batch_size=4, epochs=16, shuffle=False, verbose=0, callbacks=callbacks
    ).history["loss"]
    warmup = callback.warmup
    cut = warmup.cuts[0][0] // 4
    assert losses[cut - 1] > 10 > losses[0] > 100 * losses[-1]
    for at, _ in warmup.cuts:
        for one, other in zip(before[warmup.lowest // 4 - 1], after[at // 4 - 1], strict=True):
            np.testing.assert_array_equal(one, other)
    assert f"are those of step {warmup.lowest} again" in capsys.readouterr().out


@every_frontend
def test_a_training_that_ends_lost_says_so(frontend):
    host, ours = FRONTENDS[frontend]
    model = host.Sequential([host.layers.Input((2,)), host.layers.Dense(1)])
    model.compile(ours.LAMB(), "mse")
    warmup = ours.AutoWarmup()
    warmup.set_model(model)
    lost = {"is_lost": lambda _: True, "halfway": 1.25, "peak_at": lambda _: 0.02}
    warmup.warmup = type("Warmup", (), lost)()
    with pytest.warns(UserWarning, match="no loss below 1.25.* or with max_learning_rate=0.01"):
        warmup.on_train_end()


@every_frontend
def test_lost_copies_of_weights_are_an_error_at_once(frontend):
    warmup = FRONTENDS[frontend][1].AutoWarmup()
    warmup.warmup = type("Warmup", (), {"peak_at": lambda _: 0.02})()
    warmup._copies = list
    with pytest.warns(UserWarning, match="not to the weights of step 4.*max_learning_rate=0.02"):
        assert warmup._go_back(4) == ""


@pytest.mark.parametrize("missing", ["sklearn", "threadpoolctl"])
@every_frontend
def test_without_its_packages_it_fails_when_it_is_made(frontend, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[autowarmup\]"'):
        FRONTENDS[frontend][1].AutoWarmup()


def test_the_settings_can_be_written(tmp_path):
    assert type(Settings(np.int64(10)).total_steps) is int
