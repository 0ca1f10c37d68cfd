"""Measurements and experiments; each file is one, with a tiny mode for the tests."""
