"""What disks, network and scheduler know of a simulated machine; `host.py` has the rest."""

from collections.abc import Callable


class HostDown(BaseException):
    """Raised into code of a machine that was switched off, or of a process that was killed.

    No `Exception`: ``except Exception`` must not survive a kill.
    """


class MachineState:
    """Whether a machine has power, which life of its process runs, and where that is made to die."""

    def __init__(self, name: str, die: Callable[[str, bool], None]) -> None:
        self.name = name
        self.incarnation = 0
        self.powered = True
        self.running = False
        self.stalled = False
        self._die = die
        """Called at a crash point, with what was done there and whether the power fails."""
        self._crash_in = 0
        self._crash_power = False

    def crash_after(self, steps: int, *, power: bool) -> None:
        """Die at the ``steps``-th disk or network step from now (1: the very next; 0: at none)."""
        self._crash_in, self._crash_power = steps, power

    def step(self, what: str) -> None:
        """Every contact with the world passes here: a crash point."""
        if self._crash_in:
            self._crash_in -= 1
            if not self._crash_in:
                self._die(what, self._crash_power)
                raise HostDown(self.name)

    def lives(self, incarnation: int) -> bool:
        """Does this life of the process go on?"""
        return self.running and self.incarnation == incarnation

    def check(self, incarnation: int) -> None:
        """Raise `HostDown` unless this life of the process goes on."""
        if not self.running or self.incarnation != incarnation:
            raise HostDown(self.name)
