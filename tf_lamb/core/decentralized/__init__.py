"""Decentralized training: its rules, who averages with whom, and whether the workers agree."""
