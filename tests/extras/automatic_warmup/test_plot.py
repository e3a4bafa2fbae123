"""What `plot()` draws: fed by hand, for what a training feeds it is tested elsewhere."""

import pytest

from tf_lamb_extras.automatic_warmup.callback import AutoWarmup
from tf_lamb_extras.automatic_warmup.decisions import AutoWUState, Settings

pytestmark = pytest.mark.once


def test_before_a_step_there_is_nothing_to_draw():
    with pytest.raises(ValueError, match="There is nothing to draw yet"):
        AutoWarmup(verbose=False).plot()


def test_axes_are_named_and_legends_cover_nothing():
    watch = AutoWarmup(verbose=False)
    watch.warmup = AutoWUState(Settings(100, 1e-5, 1.0))
    for step in range(30):
        watch.warmup.record(step, 2 - 0.05 * step)
    above, below = watch.plot()
    assert below.get_xlabel() == "optimizer steps" and below.get_yscale() == "log"
    assert above.get_legend_handles_labels()[1][0] == "loss"
    above.figure.draw_without_rendering()
    boxes = [above.bbox, below.bbox, below.xaxis.label.get_window_extent()]
    for ax in (above, below):
        legend = ax.get_legend().get_window_extent()
        assert ax.get_ylabel() and not any(legend.overlaps(box) for box in boxes)
