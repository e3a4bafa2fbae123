"""Long runs: rare rows, columns that die, gradients of 1e-30 to 1e15, and some that are broken."""

import numpy as np
import pytest
from support.frontends import BACKEND, FRONTENDS
from support.references import NAMES
from support.soaking import MODES, Soak

pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="many steps in one program")


def assert_holds(frontend, name, steps, mode="plain", **arguments):
    soak = Soak(frontend, name, steps, **MODES[mode], **arguments).run()
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
    frontend = list(FRONTENDS)[CASES.index((name, mode, dtype, slots)) % len(FRONTENDS)]
    assert_holds(frontend, name, 2000, mode, dtype=dtype, slots=slots)


@pytest.mark.slow
@pytest.mark.parametrize("frontend", FRONTENDS)
@pytest.mark.parametrize("mode", ["plain", "accumulating"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_in_a_longer_run(frontend, name, mode):
    assert_holds(frontend, name, 5000, mode, slots="bfloat16")
