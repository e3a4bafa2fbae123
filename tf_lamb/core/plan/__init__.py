"""Patterns meet the paths of variables: one treatment a variable."""

from tf_lamb.core.plan.paths import numbered, stable_path, unique
from tf_lamb.core.plan.patterns import exact, groups_of
from tf_lamb.core.plan.plan import Layer, Plan, Treatment, paths_of, plan_for

__all__ = [
    "Layer", "Plan", "Treatment", "exact", "groups_of", "numbered", "paths_of", "plan_for",
    "stable_path", "unique",
]  # fmt: skip
