"""A process of a cluster: prints what a function of a test module returns.

`clusters.py` starts it: python workers.py MODULE FUNCTION
"""

import importlib
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

arguments = []
if "TF_CONFIG" in os.environ:  # before anything else runs
    arguments = [tf.distribute.MultiWorkerMirroredStrategy()]

module, function = sys.argv[1:]
print(json.dumps(getattr(importlib.import_module(module), function)(*arguments)))
