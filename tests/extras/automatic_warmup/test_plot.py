"""What `plot()` draws: fed by hand, for what a training feeds it is tested elsewhere."""

import sys

import pytest
from support.drawing import close_figures, plt  # noqa: F401

from tf_lamb_extras.automatic_warmup.callback import AutoWarmup
from tf_lamb_extras.automatic_warmup.decisions import AutoWUState, Settings

pytestmark = pytest.mark.once


@pytest.fixture
def watch():
    watch = AutoWarmup(verbose=False)
    watch.warmup = AutoWUState(Settings(100, 1e-5, 1.0))
    for step in range(30):
        watch.warmup.record(step, 2 - 0.05 * step)
    return watch


@pytest.mark.parametrize("given", [False, True])
def test_axes_are_named_and_legends_cover_nothing(watch, given):
    axes = tuple(plt.subplots(2)[1]) if given else None
    above, below = drawn = watch.plot(axes)
    assert not given or drawn == axes
    assert below.get_xlabel() == "optimizer steps" and below.get_yscale() == "log"
    assert above.get_legend_handles_labels()[1][0] == "loss"
    if given:  # without a layout that makes room
        return
    figure = above.figure
    figure.draw_without_rendering()
    boxes = [above.bbox, below.bbox, below.xaxis.label.get_window_extent()]
    for ax in drawn:
        assert ax.get_ylabel()
        legend = ax.get_legend().get_window_extent()
        assert not any(legend.overlaps(box) for box in boxes)
        assert legend.y0 >= 0 and legend.x0 >= 0 and legend.x1 <= figure.bbox.x1


def test_with_nothing_to_draw_or_without_matplotlib_it_says_so(watch, monkeypatch):
    with pytest.raises(ValueError, match="There is nothing to draw yet"):
        AutoWarmup().plot()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'^A picture of .* pip install "\.\[pictures\]"'):
        watch.plot()
