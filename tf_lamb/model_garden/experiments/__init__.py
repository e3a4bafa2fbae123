"""The experiments of this package, and the optimizers, schedules and recipes in their settings."""
