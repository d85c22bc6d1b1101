"""Leader election: who can write the log leads.

A candidate opens the log's writer; one gets it, the others are refused, which names the leader, and wait. The
leader writes what it decides into the log: one that was paused and does not know that another leads now is
fenced at its next word, by the bookies and not by a clock. The segment of a leader's first word ascends from
leader to leader: what it commands elsewhere carries that number, and a smaller one is refused there.

python examples/cookbook/leader_election.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import sys
from secrets import token_hex

from distributedlog import OwnershipAcquireFailed, WriterFenced
from distributedlog.blocking import Log, LogWriter, local_cluster, open_namespace


class Machine:
    """Something that leaders command: it obeys no leader of before."""

    def __init__(self) -> None:
        self.term = 0

    def command(self, term: int, what: str) -> str:
        """Do it, unless a later leader has been here."""
        if term < self.term:
            return f"refused {what!r}: of term {term}, now is {self.term}"
        self.term = term
        return f"did {what!r} in term {term}"


def campaign(log: Log, who: str) -> tuple[LogWriter, int] | None:
    """Become the leader of a term, or be told who is."""
    try:
        writer = log.open_writer(wait_s=0)
    except OwnershipAcquireFailed as error:
        print(f"{who}: {error.owner} leads")
        return None
    term = writer.write(f"{who} leads".encode()).segment
    print(f"{who}: I lead")
    return writer, term


def run(uri: str) -> None:
    """Two candidates; the first leader is paused for too long."""
    name = f"leader-{token_hex(3)}"
    machine = Machine()
    with (
        open_namespace(uri, config={"owner": "ann"}) as ann,
        open_namespace(uri, config={"owner": "bob"}) as bob,
    ):
        elected = campaign(ann.open_log(name), "ann")
        assert elected is not None
        first, term = elected
        print(machine.command(term, "start"))
        assert campaign(bob.open_log(name), "bob") is None

        # Bob's operators have not heard of ann for long, and say that he leads: she may live.
        with bob.open_log(name).open_writer(takeover=True) as second:
            next_term = second.write(b"bob leads").segment
            print("bob: I lead")
            print(machine.command(next_term, "stop"))
            print(machine.command(term, "go on"))
            try:
                first.write(b"ann decides")
            except WriterFenced:
                print("ann: I lead no more")
        first.abort()
        with bob.open_log(name).open_reader(to="end") as reader:
            assert [record.payload for record in reader] == [b"ann leads", b"bob leads"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with local_cluster() as cluster:
            run(cluster.uri)
