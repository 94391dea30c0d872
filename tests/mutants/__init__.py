"""Bugs on purpose: each must be noticed. `make mutants` runs them all."""
