"""A training run as a file of settings: read, checked, saved, and turned into data, network and phases."""
