"""Decentralized training: its rules, who averages with whom, and whether the workers agree."""

from tf_lamb.core.decentralized.rules import decentlam, dmsgd, dsgd

__all__ = ["decentlam", "dmsgd", "dsgd"]
