"""Seconds of a step, and goodput: adaptdl's model (Pollux), in its letters.

    T_accum = alpha_c + beta_c b             a micro-batch of b examples on every replica; between
                                             sizes that were timed, on the line through them
    T_net   = alpha_n + beta_n (R - 2)       R replicas on several nodes
              alpha_r + beta_r (R - 2)       R > 1 replicas on one node
    T_optim = (T_accum^gamma + T_net^gamma)^(1/gamma)
    T       = s T_accum + T_optim + update   s micro-batches before the last
    B       = R b (s + 1)

With gamma 1 the network waits for the gradients, with 10 nearly all of it is hidden. `update`, the
seconds that the update itself takes, is this package's: adaptdl counts it with alpha_c, and so
once a micro-batch. So are the lines between sizes, as the time of a step bends where a cache or a
device is full.

Sources: Qiao et al., Pollux, arXiv:2008.12260; adaptdl 0.2.11, `goodput.py`.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from tf_lamb.core import checks

NO_TIME = 1e-8  # seconds; adaptdl's zero


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The parameters of T in seconds, and how well they are known."""

    alpha_c: float  # a micro-batch
    beta_c: float  # an example more in it
    alpha_n: float = 0.0  # the network of several nodes
    beta_n: float = 0.0  # a replica more on it
    alpha_r: float = 0.0  # the network of one node
    beta_r: float = 0.0
    gamma: float = 1.0
    update: float = 0.0
    residual: float = 0.0  # the largest of the fit, relative
    network: str = ""  # how T_net is known: "measured", "assumed"
    bound: bool = False  # whether it takes this at least
    timed: tuple[tuple[float, float], ...] = ()  # micro-batches and T_accum of each, in order


def fit(micro_batches: Sequence[float], seconds: Sequence[float], update: float = 0.0) -> StepTime:
    """Fits T_accum to measured steps of one device, by relative least squares, none below 0.

        minimize the sum of ((alpha_c + beta_c b)/(t - update) - 1)^2,  alpha_c, beta_c >= 0

    `fit_perf_params` of adaptdl minimizes the RMSE of the logarithms with L-BFGS and priors; on
    exact times both agree, where its search arrives. Not taken: gamma, beta_n and beta_r, which
    need several numbers of replicas and else are what its priors make them; and alpha_c from a
    single micro-batch, where half of the time is a guess.

    Args:
        micro_batches: Examples of each step.
        seconds: That each step took, its update included.
        update: Seconds of the update alone, if it was measured.

    Raises:
        ValueError: if all micro-batches are of one size, or no time is left for one.

    Example:
        >>> time = fit([16, 64, 256], [0.066, 0.114, 0.306])
        >>> round(time.alpha_c, 6), round(time.beta_c, 6)
        (0.05, 0.001)
    """
    sizes = [checks.number("micro_batches", size, "(0, inf)") for size in micro_batches]
    if len(set(sizes)) < 2:
        raise ValueError(
            f"A fit needs two different micro-batches at least, not {sizes}: time a smaller one."
        )
    checks.number("update", update, "[0, inf)")
    rest = [checks.number("seconds", t, "(0, inf)") - update for t in seconds]
    if min(rest) <= 0:
        raise ValueError(f"update={update:g} s is no less than a step of {min(seconds):g} s.")
    rows = [(1 / t, size / t) for size, t in zip(sizes, rest, strict=True)]
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x, y = (sum(r[i] for r in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    alpha, beta = (x * yy - y * xy) / determinant, (y * xx - x * xy) / determinant
    if alpha < 0:
        alpha, beta = 0.0, y / yy
    elif beta < 0:
        alpha, beta = x / xx, 0.0
    residual = max(abs(alpha * r[0] + beta * r[1] - 1) for r in rows)
    least: dict[float, float] = {}
    for size, t in zip(sizes, rest, strict=True):
        least[size] = min(t, least.get(size, t))
    timed = tuple(sorted(least.items()))
    return StepTime(alpha, beta, update=update, residual=residual, timed=timed)


def with_network(time: StepTime, seconds: float, how: str) -> StepTime:
    """Adds T_net: the seconds of a step on several devices beyond those of one device's step.

    One number, for one number of devices; what the gradients hide of the network is not in it.

    Args:
        seconds: Measured on the devices that are planned for, or those of `ring`.
        how: "measured" or "assumed".
    """
    checks.number("seconds", seconds, "[0, inf)")
    return dataclasses.replace(time, alpha_n=seconds, alpha_r=seconds, network=how)


def ring(size: float, replicas: int, bandwidth: float) -> float:
    """Seconds of a ring's all-reduce, 2 (R - 1)/R size/bandwidth, in bytes and bytes a second."""
    return 2 * (replicas - 1) / replicas * size / bandwidth


def accum_time(time: StepTime, micro_batch: float) -> float:
    """T_accum; below and beyond the sizes that were timed, by alpha_c and beta_c."""
    points = ((0.0, time.alpha_c), *time.timed)
    for (smaller, less), (larger, more) in itertools.pairwise(points):
        if micro_batch <= larger:
            return less + (more - less) * (micro_batch - smaller) / (larger - smaller)
    largest, most = points[-1]
    return most + time.beta_c * (micro_batch - largest)


def net_time(time: StepTime, nodes: int, replicas: int) -> float:
    """T_net."""
    alpha, beta = NO_TIME, NO_TIME
    if nodes > 1:
        alpha, beta = time.alpha_n, time.beta_n
    elif replicas > 1:
        alpha, beta = time.alpha_r, time.beta_r
    return alpha + beta * max(replicas - 2, NO_TIME)


def step_time(time: StepTime, nodes: int, replicas: int, micro_batch: float, accum: int) -> float:
    """T, in seconds."""
    accumulated, net = accum_time(time, micro_batch), net_time(time, nodes, replicas)
    optim = (accumulated**time.gamma + net**time.gamma) ** (1 / time.gamma)
    return accum * accumulated + optim + time.update


def throughput(time: StepTime, nodes: int, replicas: int, micro_batch: float, accum: int) -> float:
    """B/T, in examples a second."""
    batch = replicas * micro_batch * (accum + 1)
    return batch / step_time(time, nodes, replicas, micro_batch, accum)


def efficiency(batch: float, base: float, sqr: float, var: float) -> float:
    """The worth of an example at a batch, where one at the base batch is worth 1.

        gain / S,  gain = (var + sqr)/(var/S + sqr),  S = batch/base

    With the noise scale Bn = base var/sqr it is (base + Bn)/(batch + Bn), the examples of
    `noise.cost` at `base` over those at `batch`; and gain is AdaScale's.

    Args:
        sqr: The signal. Where noise hides it so that var/S + sqr <= 0, gain is 1.
        var: The variance of the gradient of one base batch.
    """
    scale = batch / base
    noisy = var / scale + sqr
    return ((var + sqr) / noisy if noisy > 0 else 1.0) / scale


def goodput(
    time: StepTime,
    nodes: int,
    replicas: int,
    micro_batch: float,
    accum: int,
    *,
    base: float,
    sqr: float,
    var: float,
) -> float:
    """throughput x efficiency: base-batch examples a second."""
    batch = replicas * micro_batch * (accum + 1)
    return throughput(time, nodes, replicas, micro_batch, accum) * efficiency(batch, base, sqr, var)
