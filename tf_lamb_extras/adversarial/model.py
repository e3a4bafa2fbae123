"""Trains a Keras 3 image model on adversarial examples from weights of earlier steps (ConAdv).

It runs on Keras's TensorFlow and JAX backends.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tf_lamb.core.checks import integer, number
from tf_lamb_extras.adversarial import checks, normalization
from tf_lamb_extras.adversarial.keras import SplitBatchNormalization
from tf_lamb_extras.adversarial.step import AdversarialStep


@keras.saving.register_keras_serializable(package="tf_lamb")
class ConcurrentAdversarial(AdversarialStep):
    """Trains an image model on each batch and on adversarial examples of the batch (ConAdv).

        delta_t = argmax over |d| <= epsilon of L(theta_{t-tau}; x_t + d, y_t)
        loss_t  = (1 - alpha) L(theta_t; x_t, y_t) + alpha L(theta_t; x_t + delta_t, y_t)

    theta_t are the parameters at step t, x_t and y_t the images and labels of its batch, and L is
    the loss. The argmax is approximated by steps along the sign of the gradient, with the model in
    training mode. This search for delta_t, the attack, reads parameters that are tau steps old, so
    that it does not wait for the previous update. The parameters of the last tau steps are weights
    of this model, and are saved with it. `compile`, `fit`, `evaluate` and `predict` work as for any
    model. Metrics are computed on the clean images only.

    Each `BatchNormalization` of the model becomes a `SplitBatchNormalization`, in place. Clean
    images and evaluation use its main set, adversarial images its auxiliary set.

    Args:
        model: A built image model, (batch, height, width, channels) or channels first.
        epsilon: The largest change of a pixel, in the units of the model's input. Defaults to None:
            9/255 of the input range (the authors' code).
        input_range: The lowest and the highest value of a pixel in the model's input, such as
            (0, 255) or (-1, 1).
        step_size: Size of one step of the attack, in the units of the model's input. Defaults to
            None: epsilon (the authors' code).
        steps: Steps per attack. Defaults to 1 (the authors' code).
        tau: Age of the parameters that the attack reads, in batches. The model keeps tau copies of
            its parameters. With 0 the attack reads the current parameters, and has to wait for
            them. Defaults to 1 (the paper).
        alpha: Weight of the adversarial loss, in [0, 1]. Defaults to 0.5 (the paper).
        clean_start: Fraction of images for which the attack starts at the image; for the others it
            starts at a random point within epsilon of the image. Defaults to 0.2 (the authors'
            code).
        seed: Seed of the random starts. Defaults to None.
        name: Name of the model. Defaults to "concurrent_adversarial".

    Raises:
        ValueError, TypeError: At construction: for an argument out of its range, or for a model
            without an image input, without weights, or with a batch normalization that cannot be
            split. In `fit`: for images far outside the input range, unless the data can be read
            only once, and if layers were frozen or unfrozen after construction. When a step is
            traced: for data without labels.

    Example:

    >>> import keras, numpy as np, tf_lamb.keras
    >>> from tf_lamb_extras.adversarial import ConcurrentAdversarial
    >>> layers = [keras.layers.Conv2D(4, 3), keras.layers.BatchNormalization()]
    >>> head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    >>> model = keras.Sequential([keras.Input((8, 8, 1)), *layers, *head])
    >>> training = ConcurrentAdversarial(model, input_range=(0, 1))
    >>> training.compile(tf_lamb.keras.LARS(0.1), "mse")
    >>> x, y = np.random.uniform(size=(16, 8, 8, 1)), np.zeros((16, 2))
    >>> sorted(training.fit(x, y, batch_size=8, verbose=0).history)
    ['loss']

    References:
        - Liu et al., Concurrent Adversarial Learning for Large-Batch Training,
          https://arxiv.org/abs/2106.00221
    """

    def __init__(
        self,
        model: Any,
        epsilon: float | None = None,
        *,
        input_range: Sequence[float],
        step_size: float | None = None,
        steps: int = 1,
        tau: int = 1,
        alpha: float = 0.5,
        clean_start: float = 0.2,
        seed: int | None = None,
        name: str = "concurrent_adversarial",
    ):
        checks.check_backend()
        low, high = checks.input_range(input_range)
        width, fraction = high - low, "[0, 1]"
        epsilon = checks.distance("epsilon", epsilon, 9 / 255 * width, width)
        step_size = checks.distance("step_size", step_size, epsilon, width)
        arguments = {
            "epsilon": epsilon, "input_range": (low, high), "step_size": step_size,
            "steps": integer("steps", steps), "tau": integer("tau", tau, 0),
            "alpha": number("alpha", alpha, fraction),
            "clean_start": number("clean_start", clean_start, fraction), "seed": seed,
        }  # fmt: skip
        checks.check_model(model)
        super().__init__(name=name)
        self._arguments = arguments
        self.model = split(model)
        self._line = [self._copies(age) for age in range(tau, 0, -1)]
        # These are ids, because Keras would count the variables themselves as further weights.
        self._copied = tuple(map(id, self.model.trainable_variables))
        self._steps_done = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="steps_done"
        )
        # Keras does not save a generator's state, so the state is a weight of this model.
        initial = keras.random.SeedGenerator(seed).state
        self._random_state = self.add_weight(
            shape=initial.shape, dtype=initial.dtype, trainable=False, autocast=False,
            initializer=lambda shape, dtype=None: ops.copy(initial.value), name="random_state",
        )  # fmt: skip
        self.built = True

    def _copies(self, age):
        """Adds and returns a weight for each parameter, to hold its value of `age` steps ago.

        Before the first step, these weights hold the current values of the parameters.
        """
        return [
            self.add_weight(
                shape=v.shape, dtype=v.dtype, trainable=False, autocast=False,
                initializer=lambda shape, dtype=None, v=v: ops.copy(v.value),
                name=f"stale_{age}_{i}",
            )
            for i, v in enumerate(self.model.trainable_variables)
        ]  # fmt: skip

    def load_own_variables(self, store):
        """Loads the variables of this model, apart from those of its layers, as in Keras.

        A file that an earlier version of this class saved has no state of the random generator. The
        state then stays as it is.

        Args:
            store: The variables in the file, by name.
        """
        # seam: private API of Keras 3.15.1.
        variables = self._trainable_variables + self._non_trainable_variables
        if len(store.keys()) == len(variables) - 1:
            store = {**store, str(len(variables) - 1): variables[-1]}
        super().load_own_variables(store)

    def call(self, inputs, training=None):
        """Returns the outputs of the wrapped model.

        Args:
            inputs: A batch of images.
            training: Whether the model is in training mode. Defaults to None: Keras decides.
        """
        return self.model(inputs, training=training)

    def get_config(self):
        """Returns the constructor's arguments by name, with the model in serialized form."""
        model = keras.saving.serialize_keras_object(self.model)
        return {"model": model, **self._arguments, "name": self.name}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        """Makes the model from the result of `get_config`.

        Args:
            config: The result of `get_config`.
            custom_objects: Classes that Keras does not know, by name. Defaults to None.
        """
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects)
        return cls(**{**config, "model": model})


def split(model):
    """Gives the batch normalizations of a model separate statistics for adversarial images.

    The layers are changed in place.

    Args:
        model: A built Keras 3 model.

    Returns:
        The same model.

    Raises:
        ValueError: If a layer of batch normalization cannot be split.
    """
    layers = model._flatten_layers()  # seam: private API of Keras 3.15.1
    norms = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    checks.check_normalization(norms)
    return normalization.split(model, SplitBatchNormalization) if norms else model
