"""Long runs: rare rows, columns that die, gradients of 1e-30 to 1e15, and some that are broken."""

import numpy as np
import pytest
from support.doors import BACKEND, DOORS
from support.soaking import MODES, Soak

pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="many steps in one program")
OPTIMIZERS = ("LAMB", "LANS", "LARS", "AdamP", "SGDP", "Muon")


def assert_holds(door, name, steps, mode="plain", **arguments):
    soak = Soak(door, name, steps, **MODES[mode], **arguments).run()
    assert soak.seen.tolist() == [0, 0]
    assert np.isfinite(soak.numbers()).all()
    assert soak.optimizer.skipped_steps == soak.expected_skips() > 0


# One of each option; what is left out here is in the slow test.
CASES = [
    ("LAMB", "plain", "float32", "bfloat16"),
    ("LANS", "accumulating", "float32", "bfloat16"),
    ("Muon", "averaging", "float32", "bfloat16"),
    ("LARS", "masters", "bfloat16", "bfloat16"),
]


@pytest.mark.parametrize(("name", "mode", "dtype", "slots"), CASES)
def test_nothing_is_lost_in_a_long_run(name, mode, dtype, slots):
    """One Keras a case: they take turns."""
    door = list(DOORS)[CASES.index((name, mode, dtype, slots)) % len(DOORS)]
    assert_holds(door, name, 2000, mode, dtype=dtype, slot_dtype=slots)


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("mode", ["plain", "accumulating"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_is_lost_in_a_longer_run(door, name, mode):
    assert_holds(door, name, 5000, mode, slot_dtype="bfloat16")
