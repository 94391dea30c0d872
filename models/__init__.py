"""Formal models of what the protocols rest on, for the model checker Spin."""
