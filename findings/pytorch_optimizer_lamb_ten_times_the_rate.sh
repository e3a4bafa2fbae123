#!/usr/bin/env bash
# pytorch_optimizer 4.1.0 with torch 2.13.0, Python 3.11 to 3.13.
# Guess: LAMB's first step is as long as the rate times the weight, as the trust ratio has it.
# Behaviour: the rate is divided by 1 - beta_1^t after the ratio: the first step is ten times as
# long, the second 5.3 times, and the weight's norm counts as 10 at most.
# Output: first steps over rate times norm: 10.0 5.3; of a norm of 100: 1.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile pytorch_optimizer==4.1.0 torch==2.13.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import torch
from pytorch_optimizer import Lamb


def steps(norm, count):
    """The lengths of the first steps, each over the rate and the norm of the weight before it."""
    weight = torch.nn.Parameter(torch.full((4,), norm / 2))
    optimizer, lengths = Lamb([weight], lr=1e-3), []
    for _ in range(count):
        before = weight.detach().clone()
        weight.grad = torch.ones(4)
        optimizer.step()
        step = torch.linalg.norm(before - weight.detach())
        lengths.append(round(float(step / (1e-3 * torch.linalg.norm(before))), 1))
    return lengths


seen = steps(1.0, 2), steps(100.0, 1)
print("first steps over rate times norm:", *seen[0], "of a norm of 100:", *seen[1])
sys.exit(seen != ([10.0, 5.3], [1.0]))
PYTHON
