"""The third driver: the protocols and scripts that ship, under a seeded scheduler with virtual time.

`python -m sim` runs it; docs/evidence/simulation.md says what it shows and how a primitive joins.
"""

__all__: list[str] = []
