"""Our optimizers against the steps that ten more packages made, and the page that says how.

`ROWS` is the one place that knows the arguments; docs/other_lambs.md shows them word by word.
"""

import dataclasses
import re

import keras
import numpy as np
import pytest
from goldens import load, problem
from support.frontends import train, uncompiled
from support.pages import ROOT, blocks

import tf_lamb

pytestmark = pytest.mark.once  # that backends agree is held by `test_steps`
PAGE = ROOT / "docs" / "other_lambs.md"
# As the page calls those of `test_goldens`.
PEERS = {
    f"{title} {load.versions(peer)[name]}"
    for title, peer, name in (
        ("TensorFlow Addons", "tensorflow_addons", "tensorflow-addons"),
        ("Model Garden", "model_garden", "tf-models-official"),
        ("optax", "optax", "optax"),
        ("Keras", "keras", "keras"),
    )
}


class Code(str):
    """An argument that a user makes of their own rate and decay; `Corrected` is the page's."""

    __repr__ = str.__str__


@dataclasses.dataclass(frozen=True)
class Row:
    """A package's optimizer, and ours with the same steps.

    Attributes:
        package: Its file of goldens.
        case: The case in it.
        title: As the page calls it.
        arguments: Of ours, besides the rate, the decay and what is excluded from decay.
        within: The largest difference of a weight.
        at_least: How far the nearest are, where no arguments give its steps.
        undecayed: What the package excludes from decay.
    """

    package: str
    case: str
    title: str
    arguments: dict
    within: float = 2e-6
    at_least: float = 0.0
    undecayed: tuple = tuple(problem.EXCLUDED)

    @property
    def heading(self):
        return {"lamb": "LAMB", "lars": "LARS", "muon": "Muon"}[self.golden["rule"]]

    @property
    def golden(self):
        return load.cases(self.package)[self.case]

    @property
    def name(self):
        versions = load.versions(self.package)
        version = versions["paddlepaddle" if self.package == "paddle" else self.package]
        return f"{self.package} {version.partition('+')[0]}, {self.title}"


ADAPTS_ALL = {"exclude_from_layer_adaptation": []}
UP_TO_10 = {"bounds": {"weight_norm": (0, 10)}}
UP_TO_RATIO_1 = {"bounds": {"trust_ratio": (0, 1)}}
AT_REST = {"treatments": {"beta|bias": {"rate": 0.0}}}
RAW = {"bias_correction": False}
BIASES = ("beta", "bias")  # MXNet's LAMB decays what is called gamma
FIRST = Code("Corrected(rate, beta_2=0)")

ROWS = [
    Row("timm", "lamb", "`Lamb`", {"global_clipnorm": 1.0}),
    Row(
        "timm", "lamb_trust_clip", "`Lamb(max_grad_norm=None, trust_clip=True, always_adapt=True)`",
        {"bounds": {"trust_ratio": (0, 1)}} | ADAPTS_ALL,
    ),
    Row(
        "timm", "lamb_decoupled", "`Lamb(decoupled_decay=True)`",
        {"global_clipnorm": 1.0, "weight_decay_mode": "decoupled"},
    ),
    Row("paddle", "lamb", "`Lamb`", {}),
    Row("paddle", "lamb_always_adapt", "`Lamb(always_adapt=True)`", ADAPTS_ALL),
    Row("lightning_flash", "lamb", "`LAMB`", ADAPTS_ALL),
    Row("mxnet", "lamb", "`LAMB`", ADAPTS_ALL, undecayed=BIASES),
    Row(
        "mxnet", "lamb_upper_bound", "`LAMB(upper_bound=1)`",
        {"bounds": {"weight_norm": (0, 1)}} | ADAPTS_ALL,
        undecayed=BIASES,
    ),
    Row(
        "mxnet", "lamb_lower_bound", "`LAMB(lower_bound=0.5)`",
        {"bounds": {"weight_norm": (0.5, float("inf"))}} | ADAPTS_ALL, within=1e-2, at_least=1e-3,
        undecayed=BIASES,
    ),
    Row("torch_optimizer", "lamb", "`Lamb`", RAW | UP_TO_10 | ADAPTS_ALL),
    Row(
        "torch_optimizer", "lamb_debias", "`Lamb(debias=True)`",
        RAW | {"learning_rate": Code("Corrected(rate)")} | UP_TO_10 | ADAPTS_ALL,
    ),
    Row(
        "pytorch_optimizer", "lamb", "`Lamb`",
        RAW | {"learning_rate": FIRST, "weight_decay_mode": "decoupled",
               "weight_decay": Code("Corrected(decay, beta_2=0, inverse=True)"),
               "bounds": {"weight_norm": (0, 10)}} | ADAPTS_ALL,
    ),
    Row(
        "pytorch_optimizer", "lamb_coupled", "`Lamb(weight_decouple=False)`",
        RAW | {"learning_rate": FIRST} | UP_TO_10 | ADAPTS_ALL,
    ),
    Row("colossalai", "lamb", "`Lamb`", RAW | ADAPTS_ALL),
    Row(
        "colossalai", "distributed_lamb", "`DistributedLamb`",
        RAW | {"learning_rate": Code("Corrected(rate)")} | ADAPTS_ALL,
    ),
    Row(
        "deepspeed", "onebit_lamb", "`OnebitLamb`, warmup stage",
        RAW | {"epsilon": 1e-8, "bounds": {"trust_ratio": (0.01, 10)}} | ADAPTS_ALL,
    ),
    Row(
        "bitsandbytes", "lamb_no_decay", "`LAMB` without decay",
        RAW | {"learning_rate": Code("Corrected(rate)"), "epsilon": 1e-8}
        | UP_TO_RATIO_1 | AT_REST | ADAPTS_ALL,
    ),
    Row(
        "bitsandbytes", "lamb", "`LAMB`",
        RAW | {"learning_rate": Code("Corrected(rate)"), "epsilon": 1e-8} | UP_TO_RATIO_1
        | {"weight_decay_mode": "decoupled", "weight_decay": Code("Corrected(decay, inverse=True)")}
        | AT_REST | ADAPTS_ALL,
        within=3e-6,
    ),
    Row("paddle", "lars", "`LarsMomentumOptimizer`", {}),
    Row("timm", "lars", "`Lars`", {"form": {"momentum": "mixed"}, "epsilon": 1e-8}),
    Row(
        "timm", "lars_trust_clip", "`Lars(trust_clip=True)`",
        {"form": {"momentum": "mixed", "clip": True}, "epsilon": 1e-8},
    ),
    Row("lightning_flash", "lars", "`LARS`", {"form": {"momentum": "mixed"}, "epsilon": 1e-8}),
    Row("pytorch_optimizer", "lars", "`LARS`", {"form": {"momentum": "mixed"}}),
    Row(
        "colossalai", "lars", "`Lars`",
        {"form": {"momentum": "outside"}, "bounds": {"trust_ratio": (0, 50)}} | ADAPTS_ALL,
    ),
    Row(
        "bitsandbytes", "lars", "`LARS`",
        {"form": {"momentum": "outside", "denominator": "norm_of_update"}}
        | UP_TO_RATIO_1 | AT_REST | ADAPTS_ALL,
    ),
    Row("mxnet", "lars_no_correction", "`LARS(momentum_correction=False)`", {}),
    Row("mxnet", "lars", "`LARS`", {"form": {"momentum": "mixed"}}, within=2, at_least=1e-2),
    Row(
        "torch", "muon", "`Muon`", {"form": {"update_scale": "shape"}}, within=1e-3,
    ),
    Row(
        "torch", "muon_adamw", '`Muon(adjust_lr_fn="match_rms_adamw")`',
        {}, within=5e-4,
    ),
]  # fmt: skip


def corrected():
    """The schedule that the page shows."""
    names = {}
    exec(blocks(PAGE, "python")[-1][1], names)
    return names["Corrected"]


def weights_of(row):
    """Path -> our weights after each of the ten steps."""
    golden = row.golden
    rates = problem.SCHEDULE["lars" if golden["rule"] == "lars" else "lamb"]
    piecewise = keras.optimizers.schedules.PiecewiseConstantDecay
    given = {
        "learning_rate": piecewise(list(range(len(rates) - 1)), rates),
        "weight_decay": golden["arguments"]["weight_decay"],
    }
    if golden["rule"] != "muon":
        given["exclude_from_weight_decay"] = row.undecayed
    if golden["rule"] == "lars":
        given["trust_coefficient"] = problem.TRUST_COEFFICIENT
    else:
        given["exclude_from_layer_adaptation"] = [] if golden["rule"] == "muon" else None
    own = {"rate": given["learning_rate"], "decay": given["weight_decay"]}
    for name, value in row.arguments.items():
        is_code = isinstance(value, Code)
        given[name] = eval(value, {"Corrected": corrected()}, own) if is_code else value
    optimizer = getattr(tf_lamb.keras, row.heading)(**given)
    start = {path: problem.START[path] for path in golden["weights"]}
    steps = [{p: problem.GRADIENTS[p][i] for p in start} for i in range(problem.STEPS)]
    with uncompiled():
        weights = list(train("keras", optimizer, start, steps))
    return {path: np.stack([each[path] for each in weights]) for path in start}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.package} {row.case}")
def test_ten_steps_as_the_package_made_them(row):
    ours, theirs = weights_of(row), row.golden["weights"]
    worst = max(np.max(np.abs(ours[path] - theirs[path])) for path in theirs)
    assert row.at_least <= worst <= row.within


def spelled(row):
    """The last cell of its row on the page."""
    words = ", ".join(f"{name}={value!r}" for name, value in row.arguments.items())
    # In a table of Markdown a bar is escaped.
    words = f"`{words}`".replace("|", r"\|") if words else "none"
    tolerance = f"{row.within:.0e}".replace("e-0", "e-")
    return words if row.within == 2e-6 else f"within {tolerance}: {words}"


def cells(heading):
    """The rows of a table, whose cells are apart by a bar without a backslash."""
    text = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|\n ") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in rows[2:]]


@pytest.mark.parametrize("heading", ["LAMB", "LARS", "Muon"])
def test_the_page_has_these_rows(heading):
    page = {name: ours for name, _, ours in cells(heading)}
    for row in (row for row in ROWS if row.heading == heading):
        if row.at_least:
            assert page.pop(row.name).startswith("cannot be had"), row.name
        else:
            assert page.pop(row.name) == spelled(row), row.name
    for name in page:  # of those that `test_goldens` has
        assert name.split(",")[0] in PEERS, name
