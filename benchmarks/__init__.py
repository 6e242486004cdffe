"""Measurements, run from a clone. A package, since pyarrow 17 installs another of this name."""
