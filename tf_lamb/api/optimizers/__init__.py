"""The optimizers, one a file: signature, docstring, rule, slots and settings."""

from tf_lamb.api.optimizers.adamp import AdamP
from tf_lamb.api.optimizers.lamb import LAMB
from tf_lamb.api.optimizers.lans import LANS
from tf_lamb.api.optimizers.lars import LARS
from tf_lamb.api.optimizers.muon import Muon
from tf_lamb.api.optimizers.sgdp import SGDP
from tf_lamb.api.optimizers.soap import SOAP

__all__ = ["LAMB", "LANS", "LARS", "SGDP", "SOAP", "AdamP", "Muon"]
