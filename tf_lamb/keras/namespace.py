"""`keras.ops` as rules see it: a branch is one only where a program is traced."""

from keras.ops import *  # noqa: F403

from tf_lamb.keras import linalg as linalg
from tf_lamb.keras.host import cond as cond
