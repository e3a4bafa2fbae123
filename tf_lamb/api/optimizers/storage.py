"""What an optimizer keeps of its variables from step to step."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_lamb.api.optimizers import named
from tf_lamb.core.plan import Plan
from tf_lamb.core.step import Slot, State, Stored


@dataclasses.dataclass
class Storage:
    """The arrays beside each variable, in build order, and those there are once, all untracked."""

    plan: Plan  # of the build
    declared: Sequence[Sequence[Slot]]  # of each variable
    weights: Sequence  # the variables
    slots: Sequence[Sequence]  # in the order of the rule; none where a layer overwrites a variable
    masters: Sequence  # copies in float32, or None
    averages: Sequence = ()  # or None; empty without `use_ema`
    accumulators: Any = ()  # sums of micro-batches; empty without accumulation
    micro_step: Any = None  # the micro-batches of this update so far
    has_averages: Any = None  # 0 before the averages begin
    steps: int | str | None = None  # of an update, or "growing": sums are named by it
    shown: Sequence[tuple] = ()  # what shows trust ratios, where a step leaves them (`observation`)
    native: Callable = lambda variable: variable  # gives the variable that an update works on

    def state(self, indices: Sequence[int], weights: Sequence, averaged: set[int]) -> State:
        """The variables of these positions that a step changes; sums of the frozen are dropped."""
        own, sums = self.native, self.accumulators
        frozen = set(range(len(sums))) - self.plan.frozen - set(indices)
        return State(
            [
                Stored(own(w), [own(slot) for slot in self.slots[i]], own(self.masters[i]))
                for i, w in zip(indices, weights, strict=True)
            ],
            [own(sums[i]) for i in indices] if sums else [],
            [
                (own(average), Stored(own(w), (), own(master)))
                for average, (w, _, master) in self.averaged(averaged)
            ],
            [self.shown[i] for i in indices] if self.shown else [],
            dropped=[own(sums[i]) for i in sorted(frozen)],
        )

    def vectors(self) -> list:
        """Those that show trust ratios."""
        return [vector for own in self.shown for vector in own]

    def averaged(self, of: Iterable[int] | None = None) -> list[tuple[Any, Stored]]:
        """Pairs of an average and its `Stored`, without slots; of these positions, or of all."""
        wanted = range(len(self.weights)) if of is None else set(of)
        every = zip(self.averages, self.weights, self.masters, strict=False)
        return [
            (average, Stored(weight, (), master))
            for i, (average, weight, master) in enumerate(every)
            if average is not None and i in wanted
        ]

    def of(self, index: int) -> dict[str, Any]:
        """By name the slots of a variable, and its "average" if there is one."""
        names = (slot.name for slot in self.declared[index])
        kept = dict(zip(names, self.slots[index], strict=True))
        return {**kept, **dict(("average", average) for average, _ in self.averaged({index}))}

    def once(self) -> dict[str, Any]:
        """By name what there is once."""
        kept = {}
        if self.steps:
            kept[named.of_micro_steps("micro_step", self.steps)] = self.micro_step
        if self.has_averages is not None:
            kept["has_averages"] = self.has_averages
        return kept

    def parts(self) -> list[named.Part]:
        """By variable all that is kept of it, as a file has it."""
        made = []
        for i, (name, shape) in enumerate(zip(self.plan.names, self.plan.shapes, strict=True)):
            kept = self.of(i)
            if self.masters[i] is not None:
                kept["master"] = self.masters[i]
            if self.steps:
                kept[named.of_micro_steps("accumulator", self.steps)] = self.accumulators[i]
            initial = {slot.name: slot.initial for slot in self.declared[i]}
            made.append(named.Part(name, shape, kept, initial))
        return made
