"""Figures of the server's benchmark."""

from bench.server.report import Figures
from bench.server.rounds import Big, Connected, Polling, Shared, Spread

SPREAD = Spread(0.5, 1.0, 1.5, 10_000)


def figures(agents: int = 10_000, answered: float = 0.25) -> Figures:
    """Return figures whose shared changes were answered after this time."""
    shared = Shared(answered, SPREAD, 1.0)
    reported = Shared(answered, SPREAD, 9.0, acknowledged=8.0, read_p99=0.05)
    return Figures(
        agents,
        Connected(9.0, 18.0, 1.0, 7.0),
        (shared, shared, Shared(9.0, SPREAD, 1.0)),
        (reported,),
        (reported,),
        (Polling(SPREAD, 90.0),),
        (0.01, 0.012, 0.03),
        (0.004, 0.005),
        {"list": 0.02},
        20.0,
        15.0,
        shared,
        Big(2.0, SPREAD, 8.0, 0.3),
    )
