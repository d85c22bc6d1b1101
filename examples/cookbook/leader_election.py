"""Leader election: the process that owns the log's writer is the leader.

Each candidate opens the writer of a log. One of them succeeds. The others receive an error that names the
leader, and can try again. The leader writes its decisions to the log. If it was paused and has been replaced,
the bookies reject its next write, without any clock. The segment number of a leader's first record increases
from leader to leader. Commands to other systems carry this number, and the receiver rejects a lower one.

python examples/cookbook/leader_election.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import sys
from secrets import token_hex

from distributedlog import OwnershipAcquireFailed, WriterFenced
from distributedlog.blocking import Log, LogWriter, local_cluster, open_namespace


class Machine:
    """A system that leaders command. It rejects commands of former leaders."""

    def __init__(self) -> None:
        self.term = 0

    def command(self, term: int, what: str) -> str:
        """Execute a command, unless a later leader has sent one before."""
        if term < self.term:
            return f"refused {what!r} of term {term}, the current term is {self.term}"
        self.term = term
        return f"did {what!r} in term {term}"


def campaign(log: Log, who: str) -> tuple[LogWriter, int] | None:
    """Try to become the leader. Return the writer and the term, or None if another process leads."""
    try:
        writer = log.open_writer(wait_s=0)
    except OwnershipAcquireFailed as error:
        print(f"{who}: {error.owner} leads")
        return None
    term = writer.write(f"{who} leads".encode()).segment
    print(f"{who}: I lead")
    return writer, term


def run(uri: str) -> None:
    """Run two candidates. The second one takes over from the first, which was paused for too long."""
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

        # Bob's operators consider ann failed and make bob the leader, although ann may still run.
        with bob.open_log(name).open_writer(takeover=True) as second:
            next_term = second.write(b"bob leads").segment
            print("bob: I lead")
            print(machine.command(next_term, "stop"))
            print(machine.command(term, "go on"))
            try:
                first.write(b"ann decides")
            except WriterFenced:
                print("ann: I no longer lead")
        first.abort()
        with bob.open_log(name).open_reader(to="end") as reader:
            assert [record.payload for record in reader] == [b"ann leads", b"bob leads"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with local_cluster() as cluster:
            run(cluster.uri)
