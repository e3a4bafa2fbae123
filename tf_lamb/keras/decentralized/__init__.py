"""Training in which each worker averages with its neighbours alone."""
