"""What each `plot()` draws: fed by hand, for what a training feeds them is tested elsewhere."""

import math
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from support.notebooks import assert_shown

from tf_lamb.api.callbacks import NoiseScale, TrustRatios
from tf_lamb.api.optimizers.observation import Observation
from tf_lamb.core import recipes

pytestmark = pytest.mark.once


def noise_scale():
    watch = NoiseScale(batch_size=2048)
    watch.history = {"step": [10, 20, 30], "noise_scale": [math.nan, 50.0, 4000.0]}
    return watch


# A ratio at steps 1, 2, 3; "bias" is excluded, and "a" and "b" are one layer.
RATIOS = {
    "net/one/kernel": [1.0, 1.0, 1.0],
    "net/far/kernel": [1.0, 1.0, 100.0],
    "net/near/kernel": [9.0, 9.0, 1.5],
    "net/low/kernel": [0.5, 0.5, 0.02],
    "net/broken/kernel": [2.0, 2.0, math.nan],
    "net/late/kernel": [None, 2.0, 2.0],
}


def trust_ratios():
    watch = TrustRatios(print_fn=None)
    for i in range(3):
        seen = [
            Observation(path, at, "", 1, 1.0, 1.0, series[i])
            for at, (path, series) in enumerate(RATIOS.items())
        ]
        joined = [Observation(path, 7, "a and b", 1, 1.0, 1.0, 1.25) for path in ("a", "b")]
        watch.history.add(i + 1, [*seen, Observation("bias", 6, "", 0), *joined])
    return watch


def recipe():
    return recipes.scale(1024, 128, 0.1, 0.2, examples=60000, epochs=25)


FULL = [noise_scale, trust_ratios, recipe]
EMPTY = [lambda: NoiseScale(8), lambda: TrustRatios(print_fn=None)]


def of_label(ax, label):
    (line,) = (line for line in ax.lines if line.get_label() == label)
    return line


def test_the_noise_scale_and_the_batch():
    ax = noise_scale().plot()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("optimizer steps", "noise scale, examples")
    assert ax.get_yscale() == "log"
    assert list(of_label(ax, "batch size: 2,048").get_ydata()) == [2048, 2048]
    model = of_label(ax, "noise scale (undefined in 1 of 3 readings)")
    np.testing.assert_array_equal(model.get_data(), [[10, 20, 30], [math.nan, 50, 4000]])


def test_trust_ratios_their_median_their_range_and_the_outliers_of_the_table():
    watch = trust_ratios()
    ax = watch.plot()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("optimizer steps", "trust ratio")
    assert ax.get_yscale() == "log"
    # Seven layers: what is excluded is none, and what is joined is one.
    median = of_label(ax, "their median")
    np.testing.assert_allclose(median.get_data(), [[1, 2, 3], [1.125, 1.25, 1.375]])
    (band,) = ax.collections
    assert band.get_label() == "all 7 layers"
    (vertices,) = (path.vertices for path in band.get_paths())
    for step, low, high in ((1, 0.5, 9.0), (2, 0.5, 9.0), (3, 0.02, 100.0)):
        ends = vertices[vertices[:, 0] == step, 1]
        assert (ends.min(), ends.max()) == (low, high)
    layers = [line.get_label() for line in ax.lines if line is not median]
    assert layers == ["net/broken/kernel", "net/far/kernel", "net/low/kernel"]
    first = [row.split()[0] for row in watch.table().splitlines()[3:6]]
    assert first == layers
    assert list(of_label(ax, "net/far/kernel").get_ydata()) == [1, 1, 100]


@pytest.mark.parametrize("readings", [512, 513, 5000])
def test_a_long_run_keeps_a_bounded_number_of_readings_evenly(readings):
    history = TrustRatios().history
    for step in range(1, readings + 1):
        history.add(10 * step, [Observation("kernel", 0, "", 1, 1.0, 1.0, float(step))])
    (curve,) = history.curves().values()
    steps = list(curve)
    assert 256 <= len(steps) <= 513 and len(history._ratios_by_step) <= 512
    assert (steps[0], steps[-1]) == (10, 10 * readings)
    assert len(set(np.diff(steps[:-1]))) == 1
    assert all(ratio == step / 10 for step, ratio in curve.items())


@pytest.mark.parametrize("make", FULL)
def test_axes_are_named_and_legends_cover_nothing(make):
    ax = make().plot()
    ax.figure.draw_without_rendering()
    assert ax.get_xlabel() == "optimizer steps" and ax.get_ylabel()
    legend = ax.get_legend().get_window_extent()
    for box in (ax.bbox, ax.xaxis.label.get_window_extent()):
        assert not legend.overlaps(box)
    assert legend.y0 >= 0 and legend.x0 >= 0 and legend.x1 <= ax.figure.bbox.x1


@pytest.mark.parametrize("make", [noise_scale, trust_ratios])
def test_it_draws_where_it_is_told_to(make):
    ax = plt.subplots()[1]
    assert make().plot(ax) is ax
    assert ax.lines and len(plt.get_fignums()) == 1


@pytest.mark.parametrize("make", EMPTY)
def test_with_nothing_to_draw_yet_all_say_the_same(make):
    words = (
        r"^There is nothing to draw yet: plot\(\) is for after fit, once a reading is a number.$"
    )
    with pytest.raises(ValueError, match=words):
        make().plot()
    assert not plt.get_fignums()


@pytest.mark.parametrize("stages", [False, True])
def test_a_notebook_shows_the_text_of_a_recipe_and_its_plot(stages, monkeypatch):
    recipe = recipes.scale(1024, 256, 1e-3, 0, examples=65536, epochs=10)
    recipe = recipes.growing(recipe, 4096) if stages else recipe
    assert_shown(recipe)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert recipe._repr_html_().endswith("</pre>")


@pytest.mark.parametrize("make", FULL)
def test_without_matplotlib_all_say_what_to_install(make, monkeypatch):
    watch = make()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"^A picture of .* pip install matplotlib\.$"):
        watch.plot()
