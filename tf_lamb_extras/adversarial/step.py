"""One step of concurrent adversarial training: attack, remember the parameters, train on both."""

from typing import Any

import keras
from keras import ops

from tf_lamb_extras.adversarial import checks, rules
from tf_lamb_extras.adversarial.normalization import BY_AUXILIARY, Flag

_ATTACK = ("epsilon", "step_size", "steps", "input_range")
# Whether the batch is a clean one and its adversarial one.
_DOUBLED = Flag("doubled")


class AdversarialStep(keras.Model):
    """A model whose steps are on both; its constructor gives it what is read here.

    `_arguments`: those of the attack. `_line`: copies of the parameters of the last tau steps,
    oldest first. `_random_state`: of what draws where attacks begin. `_steps_done`: a counter.
    """

    def fit(self, x=None, *arguments, **options):
        """Trains as Keras's `fit`; first checks that images lie in the input range."""
        if (images := some_images(x)) is not None:
            lowest, highest = float(ops.min(images)), float(ops.max(images))
            checks.check_pixels(lowest, highest, self._arguments["input_range"])
        return super().fit(x, *arguments, **options)

    def make_train_function(self, force=False):
        """Makes the function as Keras's does, which every `fit` calls before its first step."""
        checks.check_unfrozen(self._line, self.trainable_variables)
        if int(ops.convert_to_numpy(self._steps_done)) == 0:
            # Weights may have been loaded since this model was made.
            for copies in self._line:
                for copy, v in zip(copies, self.trainable_variables, strict=True):
                    copy.assign(ops.copy(v.value))
        return super().make_train_function(force)

    def train_step(self, *arguments):
        """Keras's, on the batch and its adversarial one."""
        if keras.backend.backend() == "jax":
            return self._stateless_train_step(*arguments)
        with _DOUBLED.up():
            return super().train_step(self._double(*arguments))

    def _stateless_train_step(self, state, data):
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
        """The batch twice, the second time with adversarial images; then the line moves on."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        checks.check_image("the data", x)
        x = ops.cast(x, keras.config.floatx())
        adversarial = self.adversarial(x, y, sample_weight)
        for copies, values in zip(self._line, rules.delayed(*self._parameters()), strict=True):
            for copy, value in zip(copies, values, strict=True):
                copy.assign(value)
        self._steps_done.assign_add(1)
        y, sample_weight = each(lambda a: ops.concatenate([a, a]), (y, sample_weight))
        both = ops.concatenate([x, ops.stop_gradient(adversarial)])
        return keras.utils.pack_x_y_sample_weight(both, y, sample_weight)

    def _parameters(self):
        """Those of the last tau steps, oldest first, and those of now."""
        line = [[ops.convert_to_tensor(v) for v in copies] for copies in self._line]
        return line, [ops.convert_to_tensor(v) for v in self.trainable_variables]

    def adversarial(self, x: Any, y: Any, sample_weight: Any = None) -> Any:
        """The adversarial images of a batch of the next step, which do not depend on its weights.

        Args:
            x, y, sample_weight: A batch, as `train_on_batch` takes it; the model is compiled.

        Returns:
            Images within epsilon of x, and within the input range.
        """
        checks.check_labels(y)
        theta = rules.stale(*self._parameters())
        attack = {key: self._arguments[key] for key in _ATTACK}
        x = ops.cast(x, keras.config.floatx())
        shape = ops.shape(x)
        seeds = StoredSeeds(self._random_state)
        noise = keras.random.uniform(shape, -1, 1, x.dtype, seeds)
        drawn = keras.random.uniform((shape[0], 1, 1, 1), 0, 1, x.dtype, seeds)
        is_clean = drawn < self._arguments["clean_start"]
        begin = rules.start(ops, x, noise, is_clean, attack["epsilon"])
        rest = [ops.convert_to_tensor(v) for v in self.non_trainable_variables]
        known = [(v, v.value) for v in (*self.metrics_variables, *self.optimizer.variables)]

        def loss(images):
            with BY_AUXILIARY.up():
                outputs, _ = self.stateless_call(theta, rest, images, training=True)
            with keras.StatelessScope(known):
                plain = super(AdversarialStep, self).compute_loss(images, y, outputs, sample_weight)
                return self.optimizer.scale_loss(plain)  # else small ones are 0 in float16

        return rules.attack(ops, lambda images: gradient(loss, images), x, begin, **attack)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Keras's; of a doubled batch, the weighted sum of both halves' losses."""
        checks.check_labels(y)
        if not _DOUBLED:
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        arrays = (x, y, y_pred, sample_weight)
        clean = super().compute_loss(*half(arrays, 0), training)
        adversarial = super().compute_loss(*half(arrays, 1), training)
        return rules.weighted(clean, adversarial, self._arguments["alpha"])

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Keras's; of a doubled batch, those of its clean half."""
        if _DOUBLED:
            x, y, y_pred, sample_weight = half((x, y, y_pred, sample_weight), 0)
        return super().compute_metrics(x, y, y_pred, sample_weight)


class StoredSeeds(keras.random.SeedGenerator):
    """Keras's generator, on a state that is a weight of the model."""

    def __init__(self, state):
        self.state = state

    def next(self, ordered=True):
        """The seed of the next draw, as Keras's own counts."""
        seed = ops.copy(ops.convert_to_tensor(self.state))
        self.state.assign(seed + ops.convert_to_tensor([0, 1], seed.dtype))
        return seed


def some_images(data):
    """Up to 64 images of what `fit` is given; None where they could be had only once."""
    if hasattr(data, "take") and hasattr(data, "element_spec"):  # of tf.data
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
    """The function of each array of a nest; of None, None."""
    return keras.tree.map_structure(lambda a: None if a is None else function(a), arrays)


def half(arrays, which):
    """The first or the second half of each."""
    return each(lambda a: ops.split(a, 2)[which], arrays)


def gradient(loss, images):
    """The gradient of the loss by the images."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.grad(loss)(images)
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(images)
        value = loss(images)
    return tape.gradient(value, images)
