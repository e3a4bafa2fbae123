"""From flags to an experiment, and all that can be known to be wrong before it starts."""
