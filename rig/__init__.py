"""The rig: real processes on real servers, a nemesis that breaks them, and a checker that judges what happened.

`python -m rig --help`. Not part of the package: it lives beside the tests and uses their support.

One run is: servers; worker processes of both APIs that take turns at a few locks and write to a protected resource; a
nemesis that draws a fault from the catalogue every few seconds and heals it again; a history of what everyone saw,
stamped with the one monotonic clock of this machine; and, when it is over, the judgement.
"""
