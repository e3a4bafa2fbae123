"""Patterns meet the paths of variables: one treatment a variable."""

from tf_lamb.core.plan.plan import (
    Layer,
    Plan,
    Treatment,
    exact,
    groups_of,
    paths_of,
    plan_for,
    stable_path,
)

__all__ = [
    "Layer",
    "Plan",
    "Treatment",
    "exact",
    "groups_of",
    "paths_of",
    "plan_for",
    "stable_path",
]
