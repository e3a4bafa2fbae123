"""`every` counts training steps in each callback, not calls, which have several of them."""

from types import SimpleNamespace

import pytest
from support.frontends import FRONTENDS, every_frontend

pytestmark = pytest.mark.once

CALLBACKS = {
    "TrustRatios": lambda ours, every: ours.TrustRatios(every=every, print_fn=None),
    "StopOnDivergence": lambda ours, every: ours.StopOnDivergence(every=every),
    "NoiseScale": lambda ours, every: ours.NoiseScale(8, every=every, verbose=False),
    "StopAtBaseSteps": lambda ours, every: ours.StopAtBaseSteps(9, every=every),
}
every_callback = pytest.mark.parametrize("name", CALLBACKS)


class Model:
    """As much of one as a callback asks for, of either Keras."""

    metrics = ()
    stop_training = False

    def __init__(self, steps_per_execution):
        self.steps_per_execution = steps_per_execution
        self._steps_per_execution = self  # which tf_keras keeps in a variable

    def numpy(self):
        return self.steps_per_execution

    def _flatten_layers(self):
        return []


@pytest.mark.parametrize("a_call", [1, 3, 4])
@every_callback
@every_frontend
def test_it_reads_at_the_first_call_after_so_many_batches(frontend, name, a_call):
    """Two epochs of 10 batches each, of which the last call of 3 or 4 has fewer."""
    watch = CALLBACKS[name](FRONTENDS[frontend][1], 8)
    model, read, done = Model(a_call), [], 0
    setattr(watch, "model" if frontend == "tf_keras" else "_model", model)
    watch._optimizer = SimpleNamespace(base_steps=0, _guard=SimpleNamespace())
    watch.set_params({"steps": 10, "epochs": 2})
    watch.on_train_begin()
    watch._at_reading = lambda: read.append(done)
    for _ in range(2):
        for batch in range(0, 10, a_call):
            watch.on_train_batch_begin(batch)
            done += min(a_call, 10 - batch)
            watch.on_train_batch_end(done)
    expected = {1: [8, 16], 3: [9, 16], 4: [8, 18]}
    assert read == expected[a_call]
