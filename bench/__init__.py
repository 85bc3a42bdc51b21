"""Measurements: what, against what, in one run."""
