"""AutoWU: the learning rate rises until the loss has passed its minimum, goes back, and decays.

settings.py          the learning rate at a step, and the numbers that it depends on
warmup.py            the state machine: losses in, one decision at the end of an epoch
gaussian_process.py  the decision: has the loss passed its minimum? scikit-learn's part
keeping.py           the weights of the moment to which it goes back
"""

from tf_lamb.core.autowarmup import gaussian_process
from tf_lamb.core.autowarmup.keeping import Kept
from tf_lamb.core.autowarmup.settings import Settings
from tf_lamb.core.autowarmup.warmup import Warmup

__all__ = ["Kept", "gaussian_process", "Settings", "Warmup"]
