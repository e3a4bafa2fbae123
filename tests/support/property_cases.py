"""What the two files `test_properties.py` draw, and what the oracle makes of it."""

import collections
import functools

import hypothesis
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import references
from support.running_error import FLOAT32, Doubt, Namespace, Tracked, ulps

from tf_lamb.core import rules, stacks, step
from tf_lamb.core.plan import Treatment
from tf_lamb.core.rules.lamb import Bounds
from tf_lamb.core.rules.lars import Bounds as RatioBounds
from tf_lamb.core.rules.lars import LARSForm

# Magnitudes in float32, whose squares and quotients it can hold.
SMALLEST, LARGEST = float(np.float32(1e-15)), float(np.float32(1e15))
# How ill-conditioned a case may be: beyond this its bound would say nothing.
MOST_ULPS = 2000

# What the oracle loses of its own digits: in 1 - b^t as it stands, with b = 0.9999 and t = 1.
ORACLE = 2.0**-38

# The same cases every day; `benchmarks/fuzz/properties.py` has a profile of its own, and a larger
# scale.
SCALE = 1
hypothesis.settings.register_profile(
    "every day", derandomize=True, deadline=None, database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip
hypothesis.settings.load_profile("every day")

COUNTS = collections.Counter()  # by property: the cases that held
WORST = collections.Counter()  # by property: the largest difference, in units in the last place
NEAREST = collections.Counter()  # by property: the largest difference, as a share of its bound


def cases(count):
    """A property with this many cases a day."""
    return hypothesis.settings(max_examples=count * SCALE)


def held(name):
    """Counts a case."""
    COUNTS[name] += 1


# -- numbers --------------------------------------------------------------------------------------

positive = functools.partial(st.floats, width=32, allow_subnormal=False)
RATES = positive(float(np.float32(1e-4)), 10.0)
STEPS = st.integers(1, 10**6)
DECAYS = st.just(0.0) | st.floats(1e-6, 1.0)
BETAS = st.just(0.0) | st.floats(0.01, 0.9999)
EPSILONS = st.floats(1e-12, 1.0)
BOUNDS = st.none() | st.tuples(st.floats(1e-3, 1.0), st.floats(1.0, 1e3))

OPTIONS = {
    "LAMB": {
        "beta_1": BETAS, "beta_2": BETAS, "epsilon": EPSILONS,
        "bias_correction": st.booleans(),
        "weight_decay_mode": st.sampled_from(["update", "decoupled"]),
        "bounds": st.builds(Bounds, weight_norm=BOUNDS, trust_ratio=BOUNDS),
    },
    "LARS": {
        "momentum": BETAS, "nesterov": st.booleans(),
        "trust_coefficient": st.floats(1e-4, 1.0), "epsilon": st.just(0.0) | EPSILONS,
        "form": st.builds(
            lambda form, clip: LARSForm(*form, clip),
            st.sampled_from([
                ("inside", "sum_of_norms"), ("inside", "norm_of_sum"), ("mixed", "sum_of_norms"),
                ("mixed", "norm_of_sum"), ("outside", "sum_of_norms"), ("outside", "norm_of_sum"),
                ("outside", "norm_of_update"),
            ]),
            st.booleans(),
        ),
        "bounds": st.builds(RatioBounds, trust_ratio=BOUNDS),
    },
    "AdamP": {
        "beta_1": BETAS, "beta_2": BETAS, "epsilon": EPSILONS, "nesterov": st.booleans(),
        "delta": st.floats(0.01, 2.0), "wd_ratio": st.floats(0, 1),
    },
    "SGDP": {
        "momentum": BETAS, "epsilon": EPSILONS,
        "nesterov": st.booleans(), "delta": st.floats(0.01, 2.0), "wd_ratio": st.floats(0, 1),
    },
}  # fmt: skip
RULES = {family: rules.OURS[family].step for family in OPTIONS}


@st.composite
def options(draw, family):
    """Hyper-parameters of a rule, by name."""
    drawn = draw(st.fixed_dictionaries(OPTIONS[family]))
    if "form" in drawn and drawn["form"].clip:
        drawn["bounds"] = RatioBounds()  # refused together
    return drawn


# -- arrays ---------------------------------------------------------------------------------------

SHAPES = st.one_of(
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
    arrays.array_shapes(min_dims=4, max_dims=6, min_side=1, max_side=2),
    st.sampled_from([(), (1,), (0,), (3, 0), (129,), (7, 19), (3, 3, 2, 4)]),
)


@st.composite
def values(draw, shape, smallest=SMALLEST, largest=LARGEST, width=32):
    """An array: of unlike numbers that hypothesis chooses, or of like ones, as training has."""
    if draw(st.booleans()):
        some = st.floats(smallest, largest, width=width, allow_subnormal=False)
        elements = st.just(0.0) | some | some.map(lambda x: -x)
        return draw(arrays.arrays(np.dtype(f"float{width}"), shape, elements=elements))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = draw(st.floats(np.log10(smallest) + 2, np.log10(largest) - 2))
    array = random.uniform(0.1, 10, shape) * random.choice([-1, 1], shape)
    return np.asarray(array * 10**scale).astype(f"float{width}")


def history(family, g, opts):
    """Slots that one earlier gradient has left, and nothing larger."""
    g = g.astype(np.float64)
    if family in ("LAMB", "AdamP"):
        slots = (1 - opts["beta_1"]) * g, (1 - opts["beta_2"]) * g * g
    else:
        slots = (g,)
    return [np.asarray(slot, np.float32) for slot in slots]


# -- the oracle -----------------------------------------------------------------------------------


WORDS = {
    "beta_1": "b1", "beta_2": "b2", "epsilon": "eps", "bias_correction": "debias",
    "weight_decay_mode": "decay_enters", "momentum": "mu", "trust_coefficient": "eta",
}  # fmt: skip


def words(family, opts, channel_axes):
    """The options of a rule in the oracle's words."""
    own = {WORDS.get(n, n): v for n, v in opts.items() if n not in ("bounds", "form")}
    if family in ("AdamP", "SGDP"):
        return own | {"channel_axes": channel_axes}
    bounds, free = opts["bounds"], (0.0, np.inf)
    own["bounds"] = bounds.trust_ratio or free
    if family == "LAMB":
        return own | {"phi": bounds.weight_norm or free}
    form = opts["form"]
    return own | {"form": form.momentum, "denominator": form.denominator, "larc": form.clip}


def expected(family, g, state, *, lr, t, decay, adapt, opts, channel_axes=1):
    """The state after the step, in float64, by the oracle."""
    g, w, *slots = (np.asarray(array, np.float64) for array in (g, *state))
    if w.size == 0:
        return [w, *slots]
    w, slots = references.step(
        family, g, w, slots, t=t, rate=float(lr), decay=decay, adapt=adapt,
        **words(family, opts, channel_axes),
    )  # fmt: skip
    return [w, *slots]


# -- the comparison -------------------------------------------------------------------------------


def one_step(xp, family, treatment, g, state, *, lr, t, opts):
    """Ours: one step of a rule, as the frontends call it."""
    rule = functools.partial(RULES[family], **opts)
    with np.errstate(all="ignore"):
        made = step.apply_rule(xp, rule, [treatment], [g], [state], lr=lr, t=t)
        (new,) = stacks.run_single(xp, made)
    return new


def tracked(family, treatment, g, state, *, lr, t, opts, precision=FLOAT32):
    """The same step with a bound on its error; a case whose branch is a matter of luck goes."""
    g, *state = (Tracked(array, 0.0, precision) for array in (g, *state))
    lr, t = Tracked(lr, 0.0, precision), Tracked(t, 0.0, precision)
    try:
        return one_step(Namespace, family, treatment, g, state, lr=lr, t=t, opts=opts)
    except Doubt:
        hypothesis.reject()


def well_conditioned(start, after, bound, dtype=np.float32):
    """Refuses a case in which the bound is too wide to tell right from wrong."""
    with np.errstate(all="ignore"):
        wide = ulps(bound.error, np.abs(start) + np.abs(after - start), dtype)
    if np.any(~(wide <= MOST_ULPS)):
        hypothesis.reject()


def compare(name, got, exact, bound, start):
    """Every array is the oracle's, within the error that its arithmetic may have."""
    for ours, theirs, each in zip(got, exact, bound, strict=True):
        ours = np.asarray(ours)
        assert ours.shape == theirs.shape
        difference = np.abs(ours.astype(np.float64) - theirs)
        magnitude = np.abs(start) + np.abs(theirs - start)
        slack = each.error + stored(theirs, ours) + ORACLE * (each.error + magnitude)
        assert np.all(difference <= slack), (ours, theirs, each.error)
        if np.any(slack):
            share = np.max(difference[slack > 0] / slack[slack > 0])
            NEAREST[name] = max(NEAREST[name], float(share))
    weight = np.asarray(got[0])
    if weight.size:
        difference = weight.astype(np.float64) - exact[0]
        magnitude = np.abs(start) + np.abs(exact[0] - start)
        WORST[name] = max(WORST[name], float(np.max(ulps(difference, magnitude, weight.dtype))))


def stored(exact, kept):
    """Half a unit in the last place of the half precision in which a result of float32 is kept."""
    if kept.dtype.itemsize > 2:
        return 0.0
    spacing = np.spacing(np.abs(exact).astype(kept.dtype)).astype(np.float64)
    return spacing * (0.5 + 2.0**-10)


@st.composite
def treatments(draw, family, shape):
    """What a plan could say of a variable of this shape, and how many axes its channels have."""
    rank, channel_axes, layout = len(shape), 1, {}
    if family in ("AdamP", "SGDP"):
        if rank > 1:
            channel_axes = draw(st.sampled_from([1, 2])) if rank > 2 else 1
            layout["axes"] = tuple(range(rank - channel_axes))
    elif rank and 0 not in shape and draw(st.integers(0, 3)) == 0:
        axis = draw(st.integers(0, rank - 1))
        count = draw(st.sampled_from([n for n in (1, 2, shape[axis]) if shape[axis] % n == 0]))
        view = (*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
        layout = {"view": view, "axes": tuple(i for i in range(rank + 1) if i != axis)}
    decay, adapt = draw(DECAYS), draw(st.integers(0, 3)) > 0
    return Treatment(decay=decay, adapt=adapt, **layout), channel_axes


def sliced(treatment, arrays_):
    """The arrays of each layer of its own that a treatment makes of a variable."""
    if treatment.view is None:
        return [(arrays_, ...)]
    (axis,) = set(range(len(treatment.view))) - set(treatment.axes)
    indices = [(slice(None),) * axis + (i,) for i in range(treatment.view[axis])]
    viewed = [np.reshape(array, treatment.view) for array in arrays_]
    return [([array[index] for array in viewed], index) for index in indices]


def oracle_of(family, treatment, channel_axes, g, state, scalars):
    """The state after a step of every layer that a treatment makes of one variable."""
    result = [np.zeros(treatment.view or array.shape) for array in state]
    for (g_, *state_), index in sliced(treatment, [g, *state]):
        new = expected(
            family, g_, state_, decay=treatment.decay, adapt=treatment.adapt,
            channel_axes=channel_axes, **scalars,
        )  # fmt: skip
        for whole, part in zip(result, new, strict=True):
            whole[index] = part
    return [whole.reshape(g.shape) for whole in result]
