"""When a run has diverged, and what its last readings say of it."""

import collections
import math

from tf_lamb.api.optimizers.guard import ADVICE
from tf_lamb.api.optimizers.observation import NORMS_AND_RATIO, short
from tf_lamb.api.variables import step_of

_SHOWN = 5  # variables
_UNTRAINED = (
    "No step has made them so: a layer such as BatchNormalization averages what it sees, of a "
    "batch whose step is skipped, too, and a NaN stays in its average. Leave such batches out, "
    "and begin from a checkpoint of before; tf_lamb's GhostBatchNormalization and "
    "SplitBatchNormalization (replace_batch_normalization) keep averages that are finite."
)


class Readings:
    """The last readings of a run.

    Args:
        keep: How many.
        patience: Steps skipped in a row that make a divergence.
    """

    def __init__(self, keep, patience):
        self._kept: collections.deque = collections.deque(maxlen=keep)  # (step, observations)
        self._patience = patience
        self._step = self._skipped = self._skipped_before = 0

    def add(self, step, skipped, loss, strange, observations, untrained=False):
        """One more reading.

        Args:
            step: optimizer steps taken.
            skipped: steps skipped so far.
            loss: of the present epoch, or None.
            strange: paths of the variables that are not finite.
            observations: of the optimizer; none where it has no trust ratios.
            untrained: whether no optimizer trains any of those that are not finite.

        Returns:
            The report, if training has diverged; else None.
        """
        if step != self._step or skipped < self._skipped:  # a step was taken; another run began
            self._skipped_before = skipped
        self._step, self._skipped = step, skipped
        if self._kept and self._kept[-1][0] == step:
            self._kept.pop()
        self._kept.append((step, {seen.path: seen for seen in observations}))
        if strange:
            names = ", ".join(map(repr, strange[:_SHOWN]))
            more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
            return self._report(f"the weights of {names}{more} are not finite", strange,
                                _UNTRAINED if untrained else ADVICE)  # fmt: skip
        if (row := skipped - self._skipped_before) >= self._patience:
            return self._report(f"the last {row} steps were all skipped: their gradients were not "
                                "finite", [])  # fmt: skip
        # One skipped batch spoils the mean loss of its epoch, and nothing else.
        if loss is not None and not math.isfinite(loss) and not skipped:
            return self._report(f"the loss is {loss}", [])
        return None

    def _report(self, why, strange, advice=ADVICE):
        lines = [f"Training has diverged: at step {self._step:,}, {why}."]
        if table := self._table(strange):
            lines += ["", *table, ""]
        return "\n".join([*lines, advice])

    def _table(self, strange):
        """Norms and ratio of the variables in question, a line a reading."""
        _, latest = self._kept[-1]
        shown = [path for path in [*strange, *self._risen()] if path in latest]
        shown = list(dict.fromkeys(shown))[:_SHOWN]
        if not shown:
            return []
        width = max(map(len, shown))
        line = f"{{:{width}}}  {{:>9}}  {{:>11}}  {{:>11}}  {{:>11}}".format
        lines = [line("variable", "step", "weight norm", "update norm", "trust ratio")]
        for path in shown:
            for i, (step, seen) in enumerate(self._kept):
                numbers = (short(getattr(seen[path], name)) for name in NORMS_AND_RATIO)
                lines.append(line("" if i else path, f"{step:,}", *numbers))
        return lines

    def _risen(self):
        """The paths that have a ratio, by how much their norms have grown, the largest first."""
        (_, first), (_, last) = self._kept[0], self._kept[-1]
        growth = {
            path: max(_growth(first[path].weight_norm, seen.weight_norm),
                      _growth(first[path].update_norm, seen.update_norm))
            for path, seen in last.items()
            if seen.trust_ratio is not None and path in first
        }  # fmt: skip
        return sorted(growth, key=growth.__getitem__, reverse=True)


def diagnose(readings, optimizer, loss, model=None):
    """Reads the optimizer, and all weights of the model where there is one.

    Raises:
        FloatingPointError: with the report, if training has diverged.
    """
    observations = optimizer.trust_ratios() if optimizer._observer.vectors else []
    strange = optimizer.strange_weights(model)
    untrained = optimizer._plan is not None and not set(strange) & set(optimizer._plan.paths)
    report = readings.add(
        step_of(optimizer), optimizer.skipped_steps, loss, strange, observations, untrained
    )
    if report:
        raise FloatingPointError(report)


def _growth(before, after):
    if not before or after is None or math.isnan(after):
        return math.inf
    return after / before
