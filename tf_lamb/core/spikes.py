"""Steps whose gradient is far longer than those of the steps before."""

LENGTH, DEVIATIONS = 128, 6.0  # of the window; OLMo's and MaxText's


def norm_of(xp, gradients):
    """|g| of all gradients together, in float32."""
    squares = [xp.sum(xp.square(xp.cast(g, "float32"))) for g in gradients]
    return xp.sqrt(xp.sum(xp.stack(squares)))


def watched(xp, window, norm, *, deviations):
    """Whether a norm is a spike, and the window of norms with it.

        n     = how many norms the window has
        mu    = sum x / n
        s^2   = sum (x - mu)^2 / (n - 1)
        spike = norm > mu + k s,  once n + 1 is half of the window, and n is 2

    The norm enters the window, whether its step is taken or not: a new level is soon none. One that
    is not finite does not, and one of 0 is none. The latest is the last; k are the deviations.

    Source: `skip_step_on_spikes` of MaxText, after OLMo-core's `SkipStepOptimizer`, which look at
    the loss as well. Unlike MaxText, one known norm, of deviation 0, judges none.
    """
    is_filled = window > 0
    n = xp.sum(xp.where(is_filled, 1.0, xp.zeros_like(window)))
    mu = xp.sum(window) / xp.maximum(n, 1.0)
    squares = xp.where(is_filled, xp.square(window - mu), xp.zeros_like(window))
    s = xp.sqrt(xp.sum(squares) / xp.maximum(n - 1.0, 1.0))
    is_judging = n + 1.0 >= max(3, window.shape[0] // 2)
    is_spike = is_judging & (norm - mu > deviations * s)
    shifted = xp.concatenate([window[1:], xp.reshape(norm, (1,))])
    return is_spike, xp.where(xp.isfinite(norm), shifted, window)
