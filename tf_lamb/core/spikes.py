"""Detects spikes: steps whose gradient is far longer than those of the steps before."""

# The defaults, as in OLMo and MaxText: the number of steps whose norms are in the window, and the
# number of standard deviations by which a spike is above the mean of the window.
DEFAULT_WINDOW, DEFAULT_DEVIATIONS = 128, 6.0


def global_norm(xp, gradients):
    """Computes the Euclidean norm of all gradients as one vector, in float32.

    Args:
        xp: An array namespace such as NumPy.
        gradients: A list of arrays.
    """
    squares = [xp.sum(xp.square(xp.cast(g, "float32"))) for g in gradients]
    return xp.sqrt(xp.sum(xp.stack(squares)))


def detect_spike(xp, window, norm, *, deviations):
    """Decides whether a norm is a spike, and adds it to the window of norms.

        n     = number of norms in the window
        mu    = sum x / n
        s^2   = sum (x - mu)^2 / (n - 1)
        spike = norm > mu + k s,  if n + 1 >= half of the window's length, and n >= 2

    x runs over the norms in the window. The norm enters the window even if its step is skipped, so
    that a lasting higher level soon counts as normal. A norm that is not finite does not enter. A 0
    in the window marks an empty place.

    Args:
        xp: An array namespace such as NumPy.
        window: The norms of the last steps, the latest last; 0 where there is none yet.
        norm: The norm of this step's gradients, a scalar.
        deviations: The number k of standard deviations.

    Returns:
        A boolean scalar, whether the norm is a spike, and the new window.

    Source: `skip_step_on_spikes` of MaxText, which follows `SkipStepOptimizer` of OLMo-core. Both
    also check the loss. Unlike MaxText, this function needs two norms in the window, because the
    standard deviation of one is 0.
    """
    is_filled = window > 0
    n = xp.sum(xp.where(is_filled, 1.0, xp.zeros_like(window)))
    mu = xp.sum(window) / xp.maximum(n, 1.0)
    squares = xp.where(is_filled, xp.square(window - mu), xp.zeros_like(window))
    s = xp.sqrt(xp.sum(squares) / xp.maximum(n - 1.0, 1.0))
    has_enough_norms = n + 1.0 >= max(3, window.shape[0] // 2)
    is_spike = has_enough_norms & (norm - mu > deviations * s)
    shifted = xp.concatenate([window[1:], xp.reshape(norm, (1,))])
    return is_spike, xp.where(xp.isfinite(norm), shifted, window)
