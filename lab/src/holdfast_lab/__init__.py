"""`holdfast lab`: the classic lock schemes, faults injected for real, and what follows from what happened.

Downwards from the command line:

    cli         arguments of the subcommands; `holdfast lab` finds it by its entry point
    commands    what each subcommand does
    report      the matrix of schemes and faults as a page (page.html)
    timeline    one run as text; story: a history as rows for both
    runs        plays a scheme under a fault, in several variants
    faults      the choreography of each fault; waiting: of those that are about a call that waits
    stage       one run: servers, clients, the wires between them, and everything that happens written down
    worker      the processes that play the clients
    handles     every lock that the lab can run; schemes: the classic ones; driver: runs these on servers;
                effects: what they ask of it
    servers     private servers; proxy: the wires; resp: the protocol on them
    verdicts    judges a history
    history     what happened, event by event

A module imports from those below it.
"""

from holdfast_lab.history import Event, History
from holdfast_lab.verdicts import Verdict, judge

__all__ = ["Event", "History", "Verdict", "judge"]
