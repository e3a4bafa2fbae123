"""Tests whether the training loss has passed its minimum, by a Gaussian process of scikit-learn.

    prior    y(x) = f(x) + e;  f has the mean of the losses and the covariance
             s exp(-(x - x')^2 / (2 l^2)), l = 0.2;  e is noise
    test     P = max_i Phi((m_n - m_i) / sqrt(V_ii + V_nn - 2 V_in + 1e-4))

y are the losses, and x their steps, scaled to [0, 1]. m and V are the posterior mean and covariance
of f on a grid over [0, 1], of which n is the last point. Phi is the distribution function of the
standard normal distribution. P is the probability that the loss was lower before than it is now.
The scale s and the variance of e maximize the marginal likelihood of at most 100 losses. The
posterior uses at most 500.

The method is AutoWU of Kim et al., arXiv:2107.05855. Two things differ from the authors' code. Here
L-BFGS finds the maximum of the marginal likelihood, while their code takes 100 steps of Adam
towards it. And here the mean of f is not fitted.
"""

from typing import NamedTuple

from tf_lamb.core import messages

LENGTH_SCALE = 0.2  # the length scale l of the covariance, as a fraction of the steps so far
# _FITTED: the most losses to which the prior is fitted. _SEEN: the most losses from which the
# posterior is computed. _GRID: the number of points at which the posterior is computed.
_FITTED, _SEEN, _GRID = 100, 500, 500
_JITTER = 1e-4  # added to the variance of f_n - f_i, in the unit of the loss squared


class MinimumTest(NamedTuple):
    """Holds the outcome of one test.

    Attributes:
        probability: P, the probability that the loss was lower before than it is now.
        lowest: The point in [0, 1], a scaled step, at which the mean of the posterior is lowest.
    """

    probability: float
    lowest: float


class Prior(NamedTuple):
    """Holds the fitted parameters of the prior of the loss, y(x) = f(x) + e.

    Attributes:
        scale: s, the variance of f, in the unit of the loss squared.
        noise: The variance of e, in the same unit.
    """

    scale: float
    noise: float


def check_installed() -> None:
    """Raises ModuleNotFoundError, which says what to install, if a required package is missing."""
    messages.require_installed("AutoWarmup", "sklearn", "threadpoolctl", install="scikit-learn")


def tests(x, y, count: int) -> list[MinimumTest]:
    """Makes several tests and returns their outcomes. The same losses give the same outcomes.

    Args:
        x: The steps of the losses, scaled to [0, 1].
        y: The losses.
        count: The number of tests. Each uses another sample of the losses.
    """
    import numpy as np
    from threadpoolctl import threadpool_limits

    x, y = np.asarray(x), np.asarray(y)
    # One thread is enough for these small matrices. On a machine that is busy with training,
    # several threads would wait for each other.
    with threadpool_limits(1):
        prior = fitted(*_sample(x, y, _FITTED, 0))
        samples = (_sample(x, y, _SEEN, i + 1) for i in range(count))
        return [test(*posterior(prior, *sample)) for sample in samples]


def curve(x, y):
    """Returns a grid over [0, 1], the mean of f on it, and its standard deviation, for a plot.

    f is the loss without noise, as the Gaussian process estimates it.

    Args:
        x: The steps of the losses, scaled to [0, 1].
        y: The losses.
    """
    import numpy as np

    x, y = _sample(np.asarray(x), np.asarray(y), _SEEN, 0)
    grid, mean, covariance = posterior(fitted(x, y), x, y)
    return grid, mean, np.sqrt(np.maximum(np.diag(covariance), 0))


def test(grid, mean, covariance) -> MinimumTest:
    """Tests whether the loss has passed its minimum, from the posterior of f on a grid.

    f is the loss without noise, as the Gaussian process estimates it.

    Args:
        grid: The points of the grid, in ascending order.
        mean: The mean of f at each point.
        covariance: The covariance of f between the points, a square matrix.
    """
    import numpy as np
    from scipy.special import ndtr

    variance = np.diag(covariance)
    spread = variance[:-1] + variance[-1] - 2 * covariance[:-1, -1] + _JITTER
    probability = ndtr((mean[-1] - mean[:-1]) / np.sqrt(spread)).max()
    return MinimumTest(float(probability), float(grid[mean.argmin()]))


def posterior(prior: Prior, x, y, points: int = _GRID) -> tuple:
    """Returns a grid over [0, 1], and the posterior mean and covariance of f on it.

    f is the loss without noise.

    Args:
        prior: The parameters of the prior.
        x: The steps of the losses, scaled to [0, 1].
        y: The losses.
        points: The number of points of the grid. Defaults to 500.
    """
    import numpy as np
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    kernel = ConstantKernel(prior.scale) * RBF(LENGTH_SCALE)
    # `alpha` is the variance of the noise in the losses; the covariance of f does not contain it.
    process = _process(kernel, alpha=prior.noise, optimizer=None).fit(x[:, None], y - y.mean())
    grid = np.linspace(0, 1, points)
    mean, covariance = process.predict(grid[:, None], return_cov=True)
    return grid, mean + y.mean(), covariance


def fitted(x, y) -> Prior:
    """Returns the parameters of the prior that maximize the marginal likelihood of the losses.

    Args:
        x: The steps of the losses, scaled to [0, 1].
        y: The losses.
    """
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    kernel = ConstantKernel(1.0, (1e-6, 1e6)) * RBF(LENGTH_SCALE, "fixed")
    kernel += WhiteKernel(1e-3, (1e-4, 1e6))
    with warnings.catch_warnings():
        # scikit-learn warns if the fitted noise is at one of its bounds. That is no error here: the
        # authors' code has such a bound, too.
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted_kernel = _process(kernel, alpha=0.0).fit(x[:, None], y - y.mean()).kernel_
    return Prior(float(fitted_kernel.k1.k1.constant_value), float(fitted_kernel.k2.noise_level))


def _process(kernel, **arguments):
    """Returns scikit-learn's Gaussian process with this kernel."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    return GaussianProcessRegressor(kernel, **arguments)


def _sample(x, y, max_points: int, seed: int) -> tuple:
    """Returns x and y, or a random sample of `max_points` of their points if they have more.

    The sample keeps the order of the points. It depends only on the seed and the number of points.
    """
    import numpy as np

    if len(x) <= max_points:
        return x, y
    rng = np.random.default_rng((seed, len(x)))
    indices = np.sort(rng.choice(len(x), max_points, replace=False))
    return x[indices], y[indices]
