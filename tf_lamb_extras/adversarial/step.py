"""Takes one training step of concurrent adversarial learning (ConAdv).

A step computes adversarial images, with parameters that are tau steps old. It then copies the
current parameters, for later steps, and trains on the clean and the adversarial images.
"""

from typing import Any

import keras
from keras import ops

from tf_lamb_extras.adversarial import checks, rules
from tf_lamb_extras.adversarial.normalization import BY_AUXILIARY, Flag

# The arguments of the constructor of `ConcurrentAdversarial` that are passed on to `rules.attack`.
_ATTACK = ("epsilon", "step_size", "steps", "input_range")
# Is True while a batch consists of clean images followed by their adversarial images.
_DOUBLED = Flag("doubled")


class AdversarialStep(keras.Model):
    """Defines the training step of `ConcurrentAdversarial`.

    The subclass's constructor must set these attributes, because this class reads them:

        _arguments       the constructor's arguments by name, including those of the attack
        _line            copies of the parameters of the last tau steps, oldest first
        _copied          the `id`s of the parameters, in the order of their copies
        _random_state    the state of the random generator for the starting points of attacks
        _steps_done      the number of training steps so far
    """

    def fit(self, x=None, *arguments, **options):
        """Trains as Keras's `fit` does, but first checks that pixels lie in the input range.

        Args:
            x: The data, as for Keras's `fit`.
            arguments: Further positional arguments of Keras's `fit`.
            options: Further keyword arguments of Keras's `fit`.

        Raises:
            ValueError: If pixels lie far outside the input range.
        """
        if (images := some_images(x)) is not None:
            lowest, highest = float(ops.min(images)), float(ops.max(images))
            checks.check_pixels(lowest, highest, self._arguments["input_range"])
        return super().fit(x, *arguments, **options)

    def make_train_function(self, force=False):
        """Makes the compiled training step, as Keras does; every `fit` calls this method.

        If the model was not trained yet, it also sets all copies of parameters of earlier steps to
        the current parameters.

        Args:
            force: Whether to make the training step again if it exists. Defaults to False.

        Raises:
            ValueError: If layers were frozen or unfrozen since construction.
        """
        if self._line:
            checks.check_unfrozen(self._copied, self.trainable_variables)
        if int(ops.convert_to_numpy(self._steps_done)) == 0:
            # The copies may be out of date, because weights were loaded after construction.
            for copies in self._line:
                for copy, v in zip(copies, self.trainable_variables, strict=True):
                    copy.assign(ops.copy(v.value))
        return super().make_train_function(force)

    def train_step(self, *arguments):
        """Trains on a batch and its adversarial images.

        The arguments and the result are those of Keras's `train_step`.
        """
        if keras.backend.backend() == "jax":
            return self._stateless_train_step(*arguments)
        with _DOUBLED.up():
            return super().train_step(self._double(*arguments))

    def _stateless_train_step(self, state, data):
        """Takes a training step on the JAX backend, without side effects.

        Args:
            state: A tuple of four lists of values: of the trainable variables, of the non-trainable
                variables, of the optimizer's variables, and of the metrics' variables.
            data: The batch.

        Returns:
            The pair (logs, new state).
        """
        trainable, _, optimizer, metrics = state
        variables = (
            *self.trainable_variables, *self.non_trainable_variables, *self.optimizer.variables,
            *self.metrics_variables,
        )  # fmt: skip
        values = [value for part in state for value in part]
        with keras.StatelessScope(list(zip(variables, values, strict=True))) as scope:
            data = self._double(data)
        non_trainable = [scope.get_current_value(v) for v in self.non_trainable_variables]
        with _DOUBLED.up():
            return super().train_step((trainable, non_trainable, optimizer, metrics), data)

    def _double(self, data):
        """Returns a batch of twice the size: the images in `data`, then their adversarial images.

        It also copies the current parameters, for the attacks of later steps, counts the step, and
        advances the state of the random generator.
        """
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        checks.check_image("the data", x)
        x = ops.cast(x, keras.config.floatx())
        adversarial = self.adversarial(x, y, sample_weight)
        for copies, values in zip(self._line, rules.delayed(*self._parameters()), strict=True):
            for copy, value in zip(copies, values, strict=True):
                copy.assign(value)
        self._steps_done.assign_add(1)
        y, sample_weight = each(lambda array: ops.concatenate([array, array]), (y, sample_weight))
        images = ops.concatenate([x, ops.stop_gradient(adversarial)])
        return keras.utils.pack_x_y_sample_weight(images, y, sample_weight)

    def _parameters(self):
        """Returns the pair (parameters of the last tau steps, current parameters), as tensors.

        The first item is a list with a list of tensors for each step, oldest first.
        """
        line = [[ops.convert_to_tensor(v) for v in copies] for copies in self._line]
        return line, [ops.convert_to_tensor(v) for v in self.trainable_variables]

    def adversarial(self, x: Any, y: Any, sample_weight: Any = None) -> Any:
        """Returns the adversarial images that the next step would use for a batch.

        With tau above 0, they do not depend on the current weights. The model must be compiled.
        Each call advances the state of the random generator, so that the next call or step starts
        from other random points.

        Args:
            x: A batch of images, as `train_on_batch` takes it.
            y: The labels of the images.
            sample_weight: The weights of the images in the loss. Defaults to None.

        Returns:
            Images within epsilon of x, and within the input range.

        Raises:
            ValueError: If there are no labels.
        """
        checks.check_labels(y)
        theta = rules.stale(*self._parameters())
        attack = {key: self._arguments[key] for key in _ATTACK}
        x = ops.cast(x, keras.config.floatx())
        shape = ops.shape(x)
        seeds = StoredSeeds(self._random_state)
        noise = keras.random.uniform(shape, -1, 1, x.dtype, seeds)
        uniform = keras.random.uniform((shape[0], 1, 1, 1), 0, 1, x.dtype, seeds)
        is_clean = uniform < self._arguments["clean_start"]
        begin = rules.start(ops, x, noise, is_clean, attack["epsilon"])
        non_trainable = [ops.convert_to_tensor(v) for v in self.non_trainable_variables]
        values = [(v, v.value) for v in (*self.metrics_variables, *self.optimizer.variables)]

        def loss(images):
            with BY_AUXILIARY.up():
                outputs, _ = self.stateless_call(theta, non_trainable, images, training=True)
            with keras.StatelessScope(values):
                plain = super(AdversarialStep, self).compute_loss(images, y, outputs, sample_weight)
                # Without the scaled loss, small gradients would be rounded to 0 in float16.
                return self.optimizer.scale_loss(plain)

        return rules.attack(ops, lambda images: gradient(loss, images), x, begin, **attack)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the loss of a batch.

        If the batch consists of clean images followed by their adversarial images, the loss is the
        weighted sum of Keras's loss of the clean ones and that of the adversarial ones.

        Args:
            x: The images. Defaults to None.
            y: The labels. Defaults to None.
            y_pred: The model's predictions. Defaults to None.
            sample_weight: The weights of the images. Defaults to None.
            training: Whether the model trains. Defaults to True.

        Raises:
            ValueError: If there are no labels.
        """
        checks.check_labels(y)
        if not _DOUBLED:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        arrays = (x, y, y_pred, sample_weight)
        clean = super().compute_loss(*half(arrays, 0), training)
        adversarial = super().compute_loss(*half(arrays, 1), training)
        return rules.weighted(clean, adversarial, self._arguments["alpha"])

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Updates the metrics as Keras does, but from the clean images of a batch only.

        Args:
            x: The images.
            y: The labels.
            y_pred: The model's predictions.
            sample_weight: The weights of the images. Defaults to None.

        Returns:
            The values of the metrics by name.
        """
        if _DOUBLED:
            x, y, y_pred, sample_weight = half((x, y, y_pred, sample_weight), 0)
        return super().compute_metrics(x, y, y_pred, sample_weight)


class StoredSeeds(keras.random.SeedGenerator):
    """Generates seeds as Keras's `SeedGenerator` does, but keeps its state in a weight of a model.

    Args:
        state: The weight, two integers as Keras's generator has them.
    """

    def __init__(self, state):
        self.state = state

    def next(self, ordered=True):
        """Returns the seed of the next draw, and advances the state as Keras's generator does.

        Args:
            ordered: Ignored, as every draw is ordered. Defaults to True.
        """
        seed = ops.copy(ops.convert_to_tensor(self.state))
        self.state.assign(seed + ops.convert_to_tensor([0, 1], seed.dtype))
        return seed


def some_images(data):
    """Returns up to 64 images of the data that are passed to `fit`.

    Args:
        data: The argument `x` of `fit`.

    Returns:
        The images, or None if the data have no images, or can be read only once.
    """
    if hasattr(data, "take") and hasattr(data, "element_spec"):  # a tf.data.Dataset
        data = next(iter(data.take(1)), None)
    elif isinstance(data, keras.utils.PyDataset):
        data = data[0]
    while isinstance(data, (tuple, list)) and data:
        data = data[0]
    if len(getattr(data, "shape", ())) != 4:
        return None
    images = ops.convert_to_tensor(data[:64])
    return images if ops.size(images) else None


def each(function, arrays):
    """Applies a function to each array of a nested structure, and returns the new structure.

    None stays None.

    Args:
        function: A function of one array.
        arrays: Arrays in nested tuples, lists or dicts.
    """
    return keras.tree.map_structure(
        lambda array: None if array is None else function(array), arrays
    )


def half(arrays, which):
    """Returns the first or the second half of each of several arrays; None stays None.

    Args:
        arrays: Arrays in nested tuples, lists or dicts. The batch is the first axis of each.
        which: 0 for the first half, 1 for the second.
    """
    return each(lambda array: ops.split(array, 2)[which], arrays)


def gradient(loss, images):
    """Returns the gradient of a loss with respect to the images.

    Args:
        loss: A function from images to a scalar.
        images: A batch of images.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.grad(loss)(images)
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(images)
        value = loss(images)
    return tape.gradient(value, images)
