"""The face of AdaScale: an optimizer whose learning rate follows the noise of its gradients."""

from tf_lamb.api.noise.scaling import Scaling
from tf_lamb.core import checks


class AdaScale(Scaling):
    """AdaScale: the learning rate and schedule of a small batch, at a large one.

    With S times the batch, a step is worth between 1 and S steps of the base batch: 1 where all
    parts of the batch say the same, S where they are noise. AdaScale measures which:

        r   = (sigma^2 + mu^2) / (sigma^2/S + mu^2)        the gain, from averages over steps
        lr  = r schedule(floor(tau))                       the inner optimizer's own schedule
        tau <- tau + r                                     steps of the base batch, from 0

    sigma^2 is the variance of the gradient of a base batch and mu^2 the squared norm of the true
    gradient, both from the replicas or micro-batches of a step. Keep momentum, weight decay and the
    schedule as they were tuned at the base batch; warmup is not needed. Training is over when tau
    has reached the number of steps that the base batch took: add
    `StopAtScaleInvariantStep(steps)` to the callbacks of `fit`, or give Model Garden's experiment
    `scale_invariant_steps`.

    For Adam, AdamW, LAMB and AdamP the squares are those of g/(sqrt(v_hat) + epsilon), and the
    learning rate is multiplied by the root of r; in their first 5 steps, when v_hat says little,
    nothing is measured.

    `optimizer.learning_rate` remains the base batch's, for callbacks that read and set it;
    `optimizer.gain`, `optimizer.scale_invariant_steps` and `optimizer.scaled_learning_rate` are the
    rest, and are saved with checkpoints. Under Keras's own SGD the gain enters the velocity, as
    does the learning rate there.

    Args:
        inner: SGD, Adam or AdamW of this Keras, or an optimizer of this package.
        scale: S, the whole batch over the base batch, at least 1.
        previous_gradient: As for `Measured`. Defaults to False.
        averaging: "paper" is the plain mean of the first steps, then an exponential average with
            theta = 1 - S/1000, and a gain of 1 in the first step that is measured; "debiased" the
            exponential average from the start (fairscale). Defaults to "paper".
        preconditioned: Whether to measure preconditioned gradients, as above. Defaults to None: for
            optimizers that have second moments.
        groups: As for `Measured`, whose noise scales are kept too. Defaults to None.
        smoothing: As for `Measured`; the gain has theta of its own. Defaults to 0.99.
        name: Name of the optimizer. Defaults to "adascale".

    Raises:
        ValueError, TypeError: at construction, for an optimizer that cannot be wrapped or an
            argument out of its range; when it is built, where a step has only one part.

    Example:

    >>> import tensorflow as tf, tf_lamb
    >>> model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(2)])
    >>> optimizer = tf_lamb.AdaScale(
    ...     tf_lamb.LARS(0.1, gradient_accumulation_steps=8), scale=8)
    >>> model.compile(optimizer=optimizer, loss="mse")

    References:
        - Johnson et al., AdaScale SGD: A User-Friendly Algorithm for Distributed Training,
          https://arxiv.org/abs/2007.05105; the preconditioned form is adaptdl's AdamScale.
    """

    def __init__(
        self,
        inner,
        scale,
        *,
        previous_gradient=False,
        averaging="paper",
        preconditioned=None,
        groups=None,
        smoothing=0.99,
        name="adascale",
    ):
        self._wrap(inner, checks.text("name", name))
        self._take(previous_gradient=previous_gradient, groups=groups, smoothing=smoothing)
        self._take_scale(scale, averaging, preconditioned)

    def _arguments(self):
        """The constructor's arguments but the inner optimizer."""
        return {
            "scale": self.scale,
            "previous_gradient": self._previous_gradient,
            "averaging": self._averaging,
            "preconditioned": self._preconditioned,
            "groups": list(self._groups) or None,
            "smoothing": self._smoothing,
            "name": self.name,
        }
