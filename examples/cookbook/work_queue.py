"""A work queue: jobs in a log, processed by worker processes, one of which is killed during a job.

A worker claims a range of the log, processes its jobs, makes their results durable, and marks the claim as
done. The claims of a killed worker are reassigned, so each job is processed at least once. Therefore each
result is stored under the sequence ID of its job, and a repetition changes nothing.

python examples/cookbook/work_queue.py [distributedlog://HOST:PORT/NAMESPACE]
"""

import os
import signal
import subprocess
import sys
from secrets import token_hex

from distributedlog import LogBatch, LogRecord
from distributedlog.blocking import local_cluster, open_namespace

JOBS = 60
WORKERS = 3
RANGE_BYTES = 400


def work(uri: str, name: str, number: int) -> None:
    """Process jobs until all are done. Worker 0 kills itself while it holds its first claim."""
    with open_namespace(uri) as namespace:
        results = namespace.open_log(f"{name}/results/{number}")
        with (
            results.open_writer() as writer,
            namespace.open_log(f"{name}/jobs").work_queue("squares") as queue,
        ):
            while (claim := queue.claim(bytes_max=RANGE_BYTES)) is not None:
                with (
                    claim,
                    claim.open_reader() as reader,
                ):  # returned to the queue if an exception leaves the block
                    for columns in reader:
                        for job in columns.records():
                            square = int(job.payload) ** 2
                            writer.submit(LogRecord(0, b"%d %d" % (job.sequence_id, square)))
                            if number == 0:
                                os.kill(os.getpid(), signal.SIGKILL)
                    writer.commit()  # the results must be durable before the claim is done


def start(uri: str, name: str, number: int) -> subprocess.Popen[bytes]:
    """Start a worker process."""
    return subprocess.Popen([sys.executable, __file__, uri, name, str(number)])


def run(uri: str) -> None:
    """Write the jobs, run the workers, and check the results."""
    name = f"work-{token_hex(3)}"
    with open_namespace(uri) as namespace:
        with namespace.open_log(f"{name}/jobs").open_writer() as writer:
            for job in range(JOBS):
                writer.write(LogRecord(job, b"%d" % job))
            writer.mark_end_of_stream()  # so that the workers end
        codes = [
            start(uri, name, 0).wait()
        ]  # first, because the others could otherwise process all jobs
        workers = [start(uri, name, number) for number in range(1, WORKERS)]
        codes += [worker.wait() for worker in workers]
        assert codes == [-signal.SIGKILL] + [0] * (WORKERS - 1)
        squares: dict[int, int] = {}
        with namespace.open_reader(pattern=f"{name}/results/*") as reader:
            while (item := reader.next(wait_s=1.0)) is not None:
                if isinstance(item, LogBatch):
                    for _, payload in item.columns.tuples():
                        job, square = map(int, payload.split())
                        squares[job] = square
        assert squares == {job: job**2 for job in range(JOBS)}
        queue = namespace.open_log(f"{name}/jobs").work_queues()["squares"]
        assert not queue.dead_lettered
        print(f"{len(squares)} jobs are done, although one of {WORKERS} workers was killed")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        work(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        with local_cluster() as cluster:
            run(cluster.uri)
