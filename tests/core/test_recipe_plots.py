"""The picture of a recipe: what is drawn is what an optimizer is given, joints and jumps too."""

import dataclasses
import subprocess
import sys
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tf_lamb.core import recipes, schedules


def legw(batch_size, **arguments):
    tuned = 128, 0.1, 0.2, 60000, 25
    return recipes.scale(batch_size, *tuned, rule="legw", **arguments)


def warmup_alone():
    with warnings.catch_warnings(action="ignore"):  # of just that
        return dataclasses.replace(legw(1024), train_steps=94)


RECIPES = {
    "warmup": legw(1024),
    "drop": recipes.published("untuned_lamb_bert", 32768),
    "multi-step": recipes.published("linear_resnet50_sgd", 8192),
    "without warmup": recipes.scale(4096, 256, 1e-3, 0, examples=60000, epochs=25),
    "constant": legw(1024, decay="constant"),
    "warmup alone": warmup_alone(),
    "a boundary beyond the end": dataclasses.replace(
        recipes.published("linear_resnet50_sgd", 8192), train_steps=10000
    ),
    "stages": recipes.published("nvidia_bert"),
}


def rates(recipe, steps):
    return recipe.schedule(schedules).value(np, np.asarray(steps, float))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_every_step_of_the_schedule_is_on_the_line(recipe):
    (line,) = recipe.plot().lines
    x, y = line.get_data()
    np.testing.assert_array_equal(y, rates(recipe, x))
    # Between its points, too, to what an eye can see.
    steps = np.arange(recipe.train_steps)
    drawn = np.interp(steps, x, y)
    np.testing.assert_allclose(drawn, rates(recipe, steps), rtol=0, atol=1e-3 * y.max())
    assert x[0] == 0 and x[-1] == pytest.approx(recipe.train_steps)


@pytest.mark.parametrize(
    ("name", "jumps"),
    [
        ("warmup", {}),
        ("drop", {3125: (0.005, 0.004)}),
        ("multi-step", {4710: (3.2, 0.32), 9420: (0.32, 0.032), 12560: (0.032, 0.0032)}),
        ("a boundary beyond the end", {4710: (3.2, 0.32), 9420: (0.32, 0.032)}),
    ],
)
def test_a_jump_is_vertical(name, jumps):
    x, y = RECIPES[name].plot().lines[0].get_data()
    joints = np.flatnonzero(np.diff(x) < 1e-9)
    found = {x[i + 1]: (y[i], y[i + 1]) for i in joints if abs(y[i + 1] / y[i] - 1) > 1e-9}
    assert found == {step: pytest.approx(both) for step, both in jumps.items()}


def test_stages_warm_up_again_and_count_examples_of_their_own():
    recipe = recipes.published("nvidia_bert")
    (line,) = recipe.plot(over="examples").lines
    x, y = line.get_data()
    first, second = recipe
    begin = first.train_steps * 65536
    peak = begin + second.warmup_steps * 32768
    assert x[-1] == pytest.approx(recipe.examples_seen)
    assert y[np.isclose(x, begin, rtol=1e-12)].min() == 0
    assert y[np.isclose(x, peak, rtol=1e-12)].max() == pytest.approx(second.learning_rate)
    assert line.get_label() == "batch 65,536, then 32,768"


def test_recipes_of_one_batch_have_different_labels():
    ax = legw(1024).plot(recipes.scale(1024, 128, 0.1, 0.2, 60000, 25))
    assert [line.get_label() for line in ax.lines] == [
        "LEGW, batch 1,024", "Square-root scaling, batch 1,024",
    ]  # fmt: skip


def test_the_legend_covers_nothing():
    ax = legw(128).plot(legw(512), legw(2048))
    ax.figure.draw_without_rendering()
    legend, title, label = (
        each.get_window_extent() for each in (ax.get_legend(), ax.title, ax.xaxis.label)
    )
    assert legend.y0 >= 0 and legend.y1 <= label.y0 < ax.bbox.y0  # below all, and not cut off
    assert title.y1 <= ax.figure.bbox.y1


def test_an_unknown_axis_is_refused():
    with pytest.raises(ValueError, match="over must be one of 'steps', 'examples', not 'epochs'"):
        legw(128).plot(over="epochs")
    assert not plt.get_fignums()


@pytest.mark.parametrize("wrong", ["x.png", 512])
def test_what_is_no_recipe_is_not_drawn(wrong):
    with pytest.raises(TypeError, match=r"plot\(ax=axes\).*savefig\('recipe.png'\)"):
        legw(128).plot(wrong)
    assert not plt.get_fignums()


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install matplotlib\.$"):
        legw(128).plot()


def test_recipes_load_neither_matplotlib_nor_numpy():
    code = (
        "import sys, tf_lamb; recipe = tf_lamb.recipes.published('untuned_lamb_bert', 512); "
        "print(recipe, *sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "numpy"} & set(out.stdout.split())
