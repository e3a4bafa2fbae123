"""A network in integers, in NumPy."""

import numpy as np
from keras import ops


def array(x):
    return np.asarray(ops.convert_to_numpy(x))


def summing(model):
    """The layers that sum up: convolutions and dense ones."""
    return [layer for layer in model.layers if hasattr(layer, "bias_initializer")]


def rounded(layer, bits=8):
    """The kernel as whole numbers times a power of two."""
    kernel = layer.weights[0]
    largest = float(np.abs(array(kernel)).max())
    step = 2.0 ** (np.frexp(largest)[1] - bits + 1)
    kernel.assign(np.round(array(kernel) / step) * step)


def summed(layer, x, step):
    """What a layer sums up, in integers, without its bias."""
    kernel = array(layer.weights[0]).astype(np.float64) / step
    whole = np.round(kernel).astype(np.int64)
    np.testing.assert_array_equal(whole, kernel)
    if whole.ndim == 2:
        return x @ whole
    if layer.padding == "same":
        x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
    if "depth" in layer.name:
        y = np.einsum("nhwcij,ijcm->nhwcm", windows, whole)
        return y.reshape(*y.shape[:3], -1)
    return np.einsum("nhwcij,ijco->nhwo", windows, whole)


def in_integers(model, fixed, x):
    """The model's outputs and the levels of its activations: integers alone, but for the head."""
    x, levels, scale = x.astype(np.int64), {}, 1.0
    before = None
    for layer in model.layers:
        if layer.name == "head":
            return (x * scale) @ array(layer.kernel).astype(float) + array(layer.bias), levels
        if layer in summing(model):
            before = layer
        elif hasattr(layer, "moving_mean"):
            numbers = fixed.layers[layer.name]
            x = numbers.in_numpy(summed(before, x, numbers.kernel_step)).astype(np.int64)
        elif hasattr(layer, "bits"):
            levels[layer.name], scale = x, layer.scale
        elif "pool" in layer.name:
            n, h, w, c = x.shape
            x = x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
        elif "flat" in layer.name:
            x = x.reshape(len(x), -1)
