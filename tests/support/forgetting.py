"""Drops what the frameworks have built and compiled, so that many tests fit into memory."""

import gc
import sys


def forget():
    for host in ("keras", "tf_keras"):
        if host in sys.modules:
            sys.modules[host].backend.clear_session()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()
