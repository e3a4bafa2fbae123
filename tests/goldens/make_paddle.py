"""Goldens of Paddle 3.2.2: Lamb and LarsMomentum."""

import itertools
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import load
import others
import paddle
import problem
from paddle.incubate.optimizer import LarsMomentumOptimizer

NUMBERS = itertools.count()
CASES = {
    "lamb": ("lamb", {}),
    "lamb_always_adapt": ("lamb", {"always_adapt": True}),
    "lars": ("lars", {"lars_coeff": others.TRUST}),
}


def is_excluded(parameter):
    return any(each in parameter.name for each in problem.EXCLUDED)


def run(rule, arguments):
    parameters = {}
    for path, array in problem.START.items():
        parameters[path] = paddle.create_parameter(
            array.shape, "float32", name=f"{next(NUMBERS)}/{path}",  # once a process
            default_initializer=paddle.nn.initializer.Assign(array),
        )  # fmt: skip
    common = {"learning_rate": problem.LEARNING_RATE[rule]}
    if rule == "lamb":
        optimizer = paddle.optimizer.Lamb(
            parameters=list(parameters.values()), lamb_weight_decay=others.DECAY,
            exclude_from_weight_decay_fn=is_excluded, **common, **arguments,
        )  # fmt: skip
    else:
        optimizer = LarsMomentumOptimizer(
            momentum=0.9, parameter_list=list(parameters.values()), lars_weight_decay=others.DECAY,
            exclude_from_weight_decay=problem.EXCLUDED, **common, **arguments,
        )  # fmt: skip

    def step(rate, gradients):
        optimizer.set_lr(rate)
        for path, parameter in parameters.items():
            parameter.grad = paddle.to_tensor(gradients[path])
        optimizer.step()

    recorded = {**arguments, "weight_decay": others.DECAY}
    return others.case(rule, recorded, lambda path: parameters[path].numpy(), step)


def main():
    paddle.set_device("cpu")
    cases = {name: run(*case) for name, case in CASES.items()}
    load.write("paddle", cases=cases, distributions=["paddlepaddle", "numpy"])


if __name__ == "__main__":
    main()
