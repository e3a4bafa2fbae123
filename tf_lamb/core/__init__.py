"""The mathematics: numbers and arrays only, with the standard library alone.

Nothing here imports a framework, so every line can be run, tested and checked against its paper
with NumPy, or with no array library at all. What a recipe needs of the rest of the package it is
given here, by `tf_lamb/__init__.py`.
"""

from collections.abc import Callable
from typing import Any

default_schedules: Callable[[], Any]  # the module of schedules of the Keras that `tf.keras` names
plot_recipes: Callable[..., Any]  # `tf_lamb.api.plots.recipes`
in_notebook: Callable[[Any], str]  # `tf_lamb.api.plots.in_notebook`
