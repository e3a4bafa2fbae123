"""What decentralized training refuses, each in one error before it trains."""

import keras
import numpy as np
import pytest
from support.decentralized import compiled, data, dense, fit
from support.frontends import BACKEND, on_jax

from tf_lamb_extras.decentralized import Decentralized


@pytest.mark.skipif(BACKEND == "jax", reason="about other backends")
def test_another_backend_is_one_error():
    with pytest.raises(ValueError, match=f"runs on '{BACKEND}'.* set KERAS_BACKEND=jax"):
        Decentralized(compiled())


class Custom(keras.Sequential):
    def train_step(self, *arguments):
        return super().train_step(*arguments)


def with_optimizer(optimizer, model=None):
    model = model or dense()
    model.compile(optimizer, "mse")
    return model


def distributed():
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    return compiled()


# The ring without a worker's own weight: those of even and of odd number change places.
NEIGHBOURS = (np.roll(np.eye(8), 1, axis=1) + np.roll(np.eye(8), -1, axis=1)) / 2
BAD = {
    "distribution": (distributed, {}, "under DataParallel.*set_distribution\\(None\\)"),
    "method": (compiled, {"method": "adam"}, "method must be one of 'decentlam', 'dmsgd'"),
    "topology": (compiled, {"topology": "star"}, "topology must be one of 'ring'.*not 'star'"),
    "other number": (compiled, {"topology": np.full((4, 4), 0.25)}, "for 4 workers, .* are 8"),
    "apart": (
        compiled, {"topology": "one_peer_exponential"},
        "drives these 8 workers apart, 1.11 times further .* or a momentum of at most 0.7",
    ),
    "perhaps apart": (
        compiled, {"topology": (np.eye(8) + np.eye(8)[[1, 2, 4, 0, 5, 6, 7, 3]]) / 2},
        r"nothing is known. Use \(W \+ W.T\)/2",
    ),
    "islands": (
        compiled, {"topology": np.kron(np.eye(2), np.full((4, 4), 0.25))},
        "leaves worker 4 without a way from worker 0, so that they never agree",
    ),
    "circle": (
        lambda: compiled(momentum=0.0),
        {"method": "dsgd", "topology": np.roll(np.eye(8), 1, axis=1)},
        r"'dsgd' never brings these 8 workers together.*Use \(W \+ I\)/2",
    ),
    "neighbours alone": (
        compiled, {"method": "dmsgd", "topology": NEIGHBOURS},
        r"'dmsgd' never brings these 8 workers together.*Use \(W \+ I\)/2",
    ),
    "not compiled": (dense, {}, "is not compiled. First model.compile"),
    "train_step": (lambda: compiled(Custom([keras.layers.Dense(3)])), {}, "Custom has a train_st"),
    "optimizer": (lambda: with_optimizer(keras.optimizers.Adam()), {}, "it cannot run Adam"),
    "nesterov": (
        lambda: with_optimizer(keras.optimizers.SGD(0.1, 0.9, nesterov=True)), {},
        "'decentlam' has no nesterov, and the optimizer has nesterov=True",
    ),
    "decoupled decay": (
        lambda: with_optimizer(keras.optimizers.SGD(0.1, 0.9, weight_decay=0.1)), {},
        r"no weight_decay.*say Decentralized\(weight_decay=",
    ),
    "no momentum": (lambda: with_optimizer("sgd"), {}, "momentum=0.0 do not go together"),
    "momentum": (compiled, {"method": "dsgd"}, "momentum=0.9 do not go together"),
    "rate": (lambda: compiled(rate=0.0), {}, "'decentlam' divides by the learning rate, which is"),
}  # fmt: skip


@on_jax
@pytest.mark.parametrize("case", BAD)
def test_what_cannot_train_is_one_error(case):
    make, options, message = BAD[case]
    try:
        with pytest.raises((ValueError, TypeError), match=message):
            Decentralized(make(), **options)
    finally:
        keras.distribution.set_distribution(None)


@on_jax
def test_decentlam_takes_a_ring_without_weights_of_ones_own():
    """Its momentum brings them together; `test_topologies.py` has the eigenvalues."""
    fit(Decentralized(compiled(), topology=NEIGHBOURS), 1)


@on_jax
@pytest.mark.parametrize("made", [("adam",), (None, "mae")], ids=["optimizer", "loss"])
def test_another_compile_is_one_error(made):
    workers = Decentralized(compiled())
    with pytest.raises(ValueError, match="cannot change them. Compile the model so"):
        workers.compile(*made)


@on_jax
def test_the_same_compile_again_is_none():
    workers = Decentralized(compiled())
    workers.compile(workers.optimizer)
    fit(workers, 1)


@on_jax
@pytest.mark.parametrize(
    ("size", "words"),
    [
        (12, r"a batch of 12 .* 8 workers: 12 = 1 x 8 \+ 4.* 8 or 16"),
        (32, "a batch of 28 does not divide"),
    ],
    ids=["every one", "the last one"],
)
def test_a_batch_that_workers_do_not_divide_is_one_error_before_the_first_step(size, words):
    x, y = data(60)
    workers = Decentralized(compiled())
    with pytest.raises(ValueError, match=words):
        fit(workers, 1, x=x, y=y, batch_size=size)
    assert not workers.built


@on_jax
def test_after_a_batch_that_workers_do_not_divide_the_run_goes_on():
    x, y = data(60)
    workers = Decentralized(compiled())
    # Where the last is never reached, it does not matter.
    fit(workers, 1, x=x, y=y, batch_size=32, steps_per_epoch=1)

    def batches():
        yield x[:16], y[:16]
        yield x[:5], y[:5]

    with pytest.raises(ValueError, match="a batch of 5 does not divide"):
        workers.fit(batches(), verbose=0)
    assert workers.optimizer.iterations.numpy() == 2
    fit(workers, 1)


def of_one_layer():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


@on_jax
def test_one_worker_has_nobody_to_average_with():
    import jax

    with pytest.warns(UserWarning, match="one worker, .* nobody to average with"):
        Decentralized(of_one_layer(), devices=jax.devices()[:1])


@on_jax
@pytest.mark.parametrize("times", [0, 2], ids=["none", "one twice"])
def test_devices_that_cannot_be_are_one_error(times):
    import jax

    with pytest.raises(ValueError, match="must be different devices, and one at least"):
        Decentralized(of_one_layer(), devices=jax.devices()[:1] * times)
