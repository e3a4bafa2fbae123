"""An input range that may be meant otherwise is said before a step."""

import warnings

import keras
import numpy as np
import pytest

import tf_lamb.keras
from tf_lamb_extras.adversarial import ConcurrentAdversarial, checks, step

RANGE = "input_range is \\(0, 1\\)"


@pytest.mark.parametrize("pixels", [(0, 255), (-1, 1), (-2.1, 2.6), (float("nan"), 1)])
def test_pixels_far_beyond_the_range_are_refused(pixels):
    with pytest.raises(ValueError, match=RANGE):
        checks.check_pixels(*pixels, (0.0, 1.0))


@pytest.mark.parametrize(
    ("pixels", "bounds"), [((-0.1, 1), (0, 1)), ((0, 1.2), (0, 1)), ((0, 1), (0, 255))]
)
def test_pixels_a_little_beyond_it_or_lost_in_it_warn(pixels, bounds):
    with pytest.warns(UserWarning, match="input_range is"):
        checks.check_pixels(*pixels, bounds)


@pytest.mark.parametrize("pixels", [(0, 255), (3, 250.5), (0, 256), (0, 30)])
def test_pixels_within_it_are_not(pixels):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checks.check_pixels(*pixels, (0, 255))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return np.full((2, 4, 4, 1), 9.0), np.zeros(2)


def test_some_images_are_found_where_that_takes_none_away():
    images = np.zeros((100, 4, 4, 1))
    assert step.some_images(images).shape == (64, 4, 4, 1)
    assert float(step.some_images(Batches())[0, 0, 0, 0]) == 9.0
    generator = (images for _ in range(1))
    assert step.some_images(generator) is None
    assert next(generator) is images
    assert step.some_images(images[:0]) is None


@pytest.mark.skipif(keras.backend.backend() not in ("tensorflow", "jax"), reason="it trains there")
def test_fit_looks_before_a_step():
    layers = [keras.layers.Conv2D(1, 3), keras.layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
    training = ConcurrentAdversarial(model, input_range=(0, 1))
    training.compile(tf_lamb.keras.LARS(0.1), "mse")
    with pytest.raises(ValueError, match=RANGE):
        training.fit(np.full((2, 4, 4, 1), 200, "uint8"), np.zeros((2, 1)), verbose=0)
