#!/usr/bin/env bash
# bitsandbytes 0.50.2 with torch 2.13.0, Python 3.11 to 3.13, on a CPU.
# Guess: LAMB8bit is LAMB with smaller state: a step is as long as the rate times the weight.
# Behaviour: from 4,096 elements on, where its state has 8 bits, there is no trust ratio: it is
# AdamW. One element fewer, and the weight bounds the step.
# Output: 4095 elements: 0.3 times the rate times the norm; 4096: 1000 times
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-compile bitsandbytes==0.50.2 torch==2.13.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
import sys

import bitsandbytes
import torch


def first_step(size):
    """Its length over the rate and the norm of the weight."""
    weight = torch.nn.Parameter(torch.full((size,), 1e-3))
    optimizer = bitsandbytes.optim.LAMB8bit([weight], lr=1e-3)
    before = weight.detach().clone()
    weight.grad = torch.ones(size)
    optimizer.step()
    step = torch.linalg.norm(before - weight.detach())
    return float(step / (1e-3 * torch.linalg.norm(before)))


small, large = first_step(4095), first_step(4096)
print(f"4095 elements: {small:.1f} times the rate times the norm; 4096: {large:.0f} times")
sys.exit(not (small < 2 and large > 500))
PYTHON
