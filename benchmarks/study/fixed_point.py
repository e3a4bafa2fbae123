"""Batch normalization in integers: what it needs, and that nothing changes, on digits.

    python -m benchmarks.study.fixed_point | tee benchmarks/logs/fixed_point.log

A small convolutional network with activations of four bits reads scikit-learn's digits. Its kernels
are rounded to whole numbers of some bits, and its batch normalizations become integers; the network
then runs in NumPy, all but its last layer in integers. Then random lines, and the CPU time
that the integers of one layer take.
"""

import pathlib
import platform
import sys
import time

TESTS = pathlib.Path(__file__).parents[2] / "tests"
sys.path.insert(0, str(TESTS))

import keras  # noqa: E402
import numpy as np  # noqa: E402
from oracle import line_levels  # noqa: E402
from support import integers  # noqa: E402

from tf_lamb_extras.integers import arithmetic, fixed_point  # noqa: E402
from tf_lamb_extras.integers import keras as ours  # noqa: E402


def differing(model, levels, x):
    """Activations of the integers that are not Keras's own, in float32."""
    count = 0
    for layer in model.layers:
        x = layer(x)
        if layer.name in levels:
            count += np.count_nonzero(levels[layer.name] * layer.scale != integers.array(x))
    return count


def network():
    """A small convolutional network, trained on four fifths of scikit-learn's digits; the rest."""
    from sklearn.datasets import load_digits

    pictures, digits = load_digits(return_X_y=True)
    pictures, tests = pictures.reshape(-1, 8, 8, 1).astype("float32"), np.arange(1797) % 5 == 0
    keras.utils.set_random_seed(0)
    layers, blocks = keras.layers, []
    for name, conv in {
        "1": layers.Conv2D(16, 3, padding="same"), "2": layers.Conv2D(16, 3, padding="same"),
        "3": layers.Conv2D(32, 3, padding="same"), "4": layers.Dense(32),
    }.items():  # fmt: skip
        blocks += [conv, layers.BatchNormalization(momentum=0.9, name=f"norm_{name}"),
                   ours.QuantizedReLU(4, name=f"relu_{name}")]  # fmt: skip
        blocks += [layers.MaxPooling2D(name="pool")] if name == "2" else []
        blocks += [layers.Flatten(name="flat")] if name == "3" else []
    model = keras.Sequential([keras.Input((8, 8, 1)), *blocks, layers.Dense(10, name="head")])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(3e-3), loss)
    model.fit(pictures[~tests], digits[~tests], batch_size=64, epochs=10, verbose=0)
    return model, (pictures[tests], digits[tests])


def digits():
    model, (pictures, labels) = network()

    def right(outputs):
        return f"{np.mean(outputs.argmax(1) == labels):.2%}"

    print(
        f"{len(labels)} pictures, kernels in float32: {right(model.predict(pictures, verbose=0))}"
    )
    trained = model.get_weights()
    for bits in (8, 6, 4):
        model.set_weights(trained)
        for layer in integers.summing(model):
            integers.rounded(layer, bits)
        fixed = fixed_point(model, input_range=(0, 16))
        predicted = model.predict(pictures, verbose=0)
        outputs, levels = integers.in_integers(model, fixed, pictures)
        changed = np.count_nonzero(outputs.argmax(1) != predicted.argmax(1))
        in_all = sum(level.size for level in levels.values())
        print(
            f"\nkernels of {bits} bits: {right(predicted)}; in integers {right(outputs)}, "
            f"{changed} predictions changed, {differing(model, levels, pictures):,} of {in_all:,} "
            f"activations\n{fixed}"
        )


def lines(count=10_000):
    random, widths = np.random.default_rng(0), []
    for _ in range(count):
        bits, low = int(random.integers(1, 9)), int(random.integers(-5000, 4000))
        high = low + int(10 ** random.uniform(0, 3.5))
        k = float(random.choice([-1, 1]) * 10 ** random.uniform(-4, 3))
        b = float(random.uniform(-1, 2) * 2**bits - k * random.uniform(low, high))
        found, x = arithmetic.integers(k, b, bits, low, high), np.arange(low, high + 1)
        got = arithmetic.evaluate(np, x.astype("int32"), *map(np.int32, found), bits)
        assert np.array_equal(got, line_levels(x, k, b, bits)), (k, b, bits, low, high)
        widths.append(arithmetic.width(found, low, high))
    print(
        f"\n{count:,} random lines, 1 to 8 bits: float64's at every x; A x + B has a median of "
        f"{np.median(widths):.0f} bits, and {max(widths)} at most"
    )


def one_layer(channels=512):
    for bits in (4, 8):
        random, begun = np.random.default_rng(1), time.process_time()
        for _ in range(channels):
            k, b = random.uniform(0.5, 2) * 2**bits / 4000, random.uniform(0, 2**bits / 2)
            arithmetic.integers(float(k), float(b), bits, -4000, 4000)
        took = time.process_time() - begun
        print(f"{channels} channels of {bits} bits, x from -4,000 to 4,000: {took:.2f} s of CPU")


if __name__ == "__main__":
    print(
        f"Keras {keras.__version__} on {keras.backend.backend()}, NumPy {np.__version__}, Python "
        f"{platform.python_version()}, {platform.machine()}\n"
    )
    digits()
    lines()
    one_layer()
