"""Our optimizers against the steps that ten more packages made, with the arguments of the page.

docs/other_lambs.md is the one place that knows the arguments.
"""

import re

import keras
import numpy as np
import pytest
from goldens import load, problem
from support.frontends import train, uncompiled
from support.pages import ROOT, blocks

import tf_lamb

pytestmark = pytest.mark.once  # that backends agree is held by `test_optimizers`
PAGE = ROOT / "docs" / "other_lambs.md"
# Package -> case of its goldens -> how the page calls it.
TITLES = {
    "timm": {
        "lamb": "`Lamb`",
        "lamb_trust_clip": "`Lamb(max_grad_norm=None, trust_clip=True, always_adapt=True)`",
        "lamb_decoupled": "`Lamb(decoupled_decay=True)`",
        "lars": "`Lars`", "lars_trust_clip": "`Lars(trust_clip=True)`",
    },
    "paddle": {
        "lamb": "`Lamb`", "lamb_always_adapt": "`Lamb(always_adapt=True)`",
        "lars": "`LarsMomentumOptimizer`",
    },
    "lightning_flash": {"lamb": "`LAMB`", "lars": "`LARS`"},
    "mxnet": {
        "lamb": "`LAMB`", "lamb_upper_bound": "`LAMB(upper_bound=1)`",
        "lamb_lower_bound": "`LAMB(lower_bound=0.5)`",
        "lars_no_correction": "`LARS(momentum_correction=False)`", "lars": "`LARS`",
    },
    "torch_optimizer": {"lamb": "`Lamb`", "lamb_debias": "`Lamb(debias=True)`"},
    "pytorch_optimizer": {
        "lamb": "`Lamb`", "lamb_coupled": "`Lamb(weight_decouple=False)`", "lars": "`LARS`",
    },
    "colossalai": {"lamb": "`Lamb`", "distributed_lamb": "`DistributedLamb`", "lars": "`Lars`"},
    "deepspeed": {"onebit_lamb": "`OnebitLamb`, warmup stage"},
    "bitsandbytes": {"lamb_no_decay": "`LAMB` without decay", "lamb": "`LAMB`", "lars": "`LARS`"},
    "torch": {"muon": "`Muon`", "muon_adamw": '`Muon(adjust_lr_fn="match_rms_adamw")`'},
}  # fmt: skip
# Of what cannot be had: the nearest arguments, and between what they are off.
NEAREST = {
    ("mxnet", "lamb_lower_bound"): (
        "bounds={'weight_norm': (0.5, inf)}, exclude_from_layer_adaptation=[]", 1e-3, 1e-2,
    ),
    ("mxnet", "lars"): ("form={'momentum': 'mixed'}", 1e-2, 2),
}  # fmt: skip


def name_of(package, title):
    versions = load.versions(package)
    version = versions["paddlepaddle" if package == "paddle" else package]
    return f"{package} {version.partition('+')[0]}, {title}"


def cells():
    """The name of each row of the page -> its last cell, without the bars that are escaped."""
    text = PAGE.read_text().partition("## LAMB\n")[2].partition("\n## A correction")[0]
    lines = (line.strip("|") for line in text.splitlines() if line.startswith("|"))
    rows = (re.split(r"(?<!\\)\|", line) for line in lines)
    return {name.strip(): ours.strip().replace(r"\|", "|") for name, _, ours in rows}


def corrected():
    """The schedule that the page shows."""
    names = {}
    exec(blocks(PAGE, "python")[-1][1], names)
    return names["Corrected"]


def weights_of(package, golden, arguments):
    """Path -> our weights after each of the ten steps."""
    rule = golden["rule"]
    rates = problem.SCHEDULE["lars" if rule == "lars" else "lamb"]
    piecewise = keras.optimizers.schedules.PiecewiseConstantDecay
    given = {
        "learning_rate": piecewise(list(range(len(rates) - 1)), rates),
        "weight_decay": golden["arguments"]["weight_decay"],
    }
    if rule != "muon":  # MXNet's LAMB decays what is called gamma
        decays_gamma = (package, rule) == ("mxnet", "lamb")
        given["exclude_from_weight_decay"] = (
            ("beta", "bias") if decays_gamma else tuple(problem.EXCLUDED)
        )
    if rule == "lars":
        given["trust_coefficient"] = problem.TRUST_COEFFICIENT
    else:
        given["exclude_from_layer_adaptation"] = [] if rule == "muon" else None
    own = {"rate": given["learning_rate"], "decay": given["weight_decay"], "inf": np.inf}
    given |= eval(f"dict({arguments or ''})", {"Corrected": corrected()}, own)
    family = {"lamb": "LAMB", "lars": "LARS", "muon": "Muon"}[rule]
    start = {path: problem.START[path] for path in golden["weights"]}
    steps = [{p: problem.GRADIENTS[p][i] for p in start} for i in range(problem.STEPS)]
    with uncompiled():
        weights = list(train("keras", getattr(tf_lamb.keras, family)(**given), start, steps))
    return {path: np.stack([each[path] for each in weights]) for path in start}


CASES = [(package, case) for package, titles in TITLES.items() for case in titles]


@pytest.mark.parametrize(("package", "case"), CASES)
def test_ten_steps_as_the_package_made_them(package, case):
    cell = cells()[name_of(package, TITLES[package][case])]
    if (package, case) in NEAREST:
        assert cell.startswith("cannot be had")
        arguments, at_least, within = NEAREST[package, case]
    else:
        tolerance, arguments = re.fullmatch(r"(?:within (\S+): )?(?:`(.*)`|none)", cell).groups()
        at_least, within = 0.0, float(tolerance or 2e-6)
    golden = load.cases(package)[case]
    ours, theirs = weights_of(package, golden, arguments), golden["weights"]
    worst = max(np.max(np.abs(ours[path] - theirs[path])) for path in theirs)
    assert at_least <= worst <= within


def test_the_page_has_every_package():
    """Its own rows here; those of the peers in `test_goldens`."""
    assert {(package, case) for package in load.OTHERS for case in load.cases(package)} == {*CASES}
    peers = {
        f"{title} {load.versions(peer)[distribution]}"
        for title, peer, distribution in (
            ("TensorFlow Addons", "tensorflow_addons", "tensorflow-addons"),
            ("Model Garden", "model_garden", "tf-models-official"),
            ("optax", "optax", "optax"),
            ("Keras", "keras", "keras"),
        )
    }
    own = {name_of(package, title) for package in TITLES for title in TITLES[package].values()}
    rest = {name.split(",")[0] for name in cells().keys() - own}
    assert rest == peers | {"package", "---"}
