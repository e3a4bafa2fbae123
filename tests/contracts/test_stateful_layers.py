"""What a backup has of layers with states between batches, and what it has not."""

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS, every_frontend


class Killed(Exception):
    """The process ends here."""


def run(frontend, folder, resets, dies=False):
    """A stateful RNN after three epochs, in the midst of which the process may have died."""
    host, ours = FRONTENDS[frontend]

    class Reset(host.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if dies and epoch == 2:
                raise Killed
            if resets:
                self.model.layers[-2].reset_states()

    host.utils.set_random_seed(0)
    model = host.Sequential([
        host.layers.InputLayer(batch_shape=(4, 3, 2)) if frontend == "keras"
        else host.layers.InputLayer(batch_input_shape=(4, 3, 2)),
        host.layers.SimpleRNN(3, stateful=True), host.layers.Dense(1),
    ])  # fmt: skip
    model.compile(ours.LAMB(0.05), "mse")
    x = np.random.default_rng(0).normal(size=(16, 3, 2)).astype("float32")
    backup = ours.BackupAndRestore(str(folder))
    model.fit(x, x[:, 0, :1], batch_size=4, epochs=3, shuffle=False, verbose=0,
              callbacks=[backup, Reset()])  # fmt: skip
    return model.get_weights()


@every_frontend
@pytest.mark.parametrize("resets", [True, False])
def test_a_resumed_run_is_the_uninterrupted_one_where_states_are_reset(frontend, resets, tmp_path):
    expected = run(frontend, tmp_path / "whole", resets)
    with pytest.raises(Killed):
        run(frontend, tmp_path / "died", resets, dies=True)
    found = run(frontend, tmp_path / "died", resets)
    # On JAX, `fit` of Keras 3.15.1 carries no states from batch to batch.
    assert all(map(np.array_equal, found, expected)) == (resets or BACKEND == "jax")
