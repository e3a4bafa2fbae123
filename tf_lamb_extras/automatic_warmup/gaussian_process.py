"""Has the loss passed its minimum? The test of AutoWU, on scikit-learn's Gaussian process.

    prior    y(x) = f(x) + e;  f has the mean of the losses and the covariance
             s exp(-(x - x')^2 / (2 l^2)), l = 0.2;  e is noise
    test     P = max_i Phi((m_n - m_i) / sqrt(V_ii + V_nn - 2 V_in + 1e-4))

m and V are the posterior's mean and covariance on a grid over [0, 1], of which n is the last point:
P is how probable it is that the loss was lower before than it is now. The scale s and the variance
of e maximize the marginal likelihood of at most 100 losses; the posterior sees at most 500.

Source: Kim et al., arXiv:2107.05855, and the authors' code. Unlike there, L-BFGS finds the maximum,
anew each time, where theirs takes 100 steps of Adam towards it; and the mean is not among what is
fitted.
"""

from typing import NamedTuple

from tf_lamb.core import messages

LENGTH_SCALE = 0.2
_FITTED, _SEEN, _GRID = 100, 500, 500
_JITTER = 1e-4


class MinimumTest(NamedTuple):
    """The outcome of one test."""

    probability: float  # P, that the loss was lower before
    lowest: float  # where in [0, 1] the mean of the posterior is lowest


class Prior(NamedTuple):
    """The fitted s and the variance of e, in squares of the loss."""

    scale: float
    noise: float


def check_installed() -> None:
    """Raises, with the way out, where the test of an epoch would fail for want of a package."""
    messages.require_installed("AutoWarmup", "sklearn", "threadpoolctl", extra="autowarmup")


def tests(x, y, count: int) -> list[MinimumTest]:
    """Several tests of the losses y at x, in [0, 1]; equal for equal losses."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    x, y = np.asarray(x), np.asarray(y)
    # On a machine that trains, threads for matrices of this size wait for each other.
    with threadpool_limits(1):
        prior = fitted(*_sample(x, y, _FITTED, 0))
        samples = (_sample(x, y, _SEEN, i + 1) for i in range(count))
        return [test(*posterior(prior, *sample)) for sample in samples]


def curve(x, y):
    """A grid over [0, 1], and on it the mean and the deviation of f."""
    import numpy as np

    x, y = _sample(np.asarray(x), np.asarray(y), _SEEN, 0)
    grid, mean, covariance = posterior(fitted(x, y), x, y)
    return grid, mean, np.sqrt(np.maximum(np.diag(covariance), 0))


def test(grid, mean, covariance) -> MinimumTest:
    """The test of a posterior on a grid."""
    import numpy as np
    from scipy.special import ndtr

    variance = np.diag(covariance)
    spread = variance[:-1] + variance[-1] - 2 * covariance[:-1, -1] + _JITTER
    probability = ndtr((mean[-1] - mean[:-1]) / np.sqrt(spread)).max()
    return MinimumTest(float(probability), float(grid[mean.argmin()]))


def posterior(prior: Prior, x, y, points: int = _GRID) -> tuple:
    """The grid, and on it the mean and the covariance of f."""
    import numpy as np
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(prior.scale) * RBF(LENGTH_SCALE)
    # `alpha` is noise of what was seen, and not of f.
    process = _process(kernel, alpha=prior.noise, optimizer=None).fit(x[:, None], y - y.mean())
    grid = np.linspace(0, 1, points)
    mean, covariance = process.predict(grid[:, None], return_cov=True)
    return grid, mean + y.mean(), covariance


def fitted(x, y) -> Prior:
    """The prior under which these losses are most probable."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-6, 1e6)) * RBF(LENGTH_SCALE, "fixed")
    kernel += WhiteKernel(1e-3, (1e-4, 1e6))
    with warnings.catch_warnings():
        # At a bound of the noise, which the authors have too.
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = _process(kernel, alpha=0.0).fit(x[:, None], y - y.mean()).kernel_
    return Prior(float(found.k1.k1.constant_value), float(found.k2.noise_level))


def _process(kernel, **arguments):
    from sklearn.gaussian_process import GaussianProcessRegressor

    return GaussianProcessRegressor(kernel, **arguments)


def _sample(x, y, most: int, seed: int) -> tuple:
    """At most so many of the points, in order."""
    import numpy as np

    if len(x) <= most:
        return x, y
    rng = np.random.default_rng((seed, len(x)))
    chosen = np.sort(rng.choice(len(x), most, replace=False))
    return x[chosen], y[chosen]
