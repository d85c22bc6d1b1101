"""Check runs of a cluster: clients that record their observations, and checkers of the guarantees.

The simulator, chaos runs on real processes, and pipelines use the same checkers.

Clients:

    workloads/workload.py             Writers, readers and registers that use a log as intensively as its
                                      guarantees allow.
    workloads/pipeline.py             Clients that work as pipelines: drivers that replay batches, an archiver
                                      that truncates.
    workloads/exactly_once.py         Producers that repeat requests, and a check of their records in the log.
    workloads/gated_formats.py        A client that tries the formats which an upgrade permits.
    workloads/crowd.py                Many producers and readers of one log, through proxies and directly.

Observations:

    history/run_history.py            The observations of the clients of one process, in order.
    history/observations.py           Files of observations from many client processes, and how they are read
                                      back.

Checkers:

    checks/history_check.py           Check the guarantees over a history, record by record.
    checks/log_check.py               Check the guarantees of a log over files of observations, for runs of
                                      any length.
    checks/read_check.py              Compare the records of each reader with the log and with other readers.
    checks/register_check.py          Check that the metadata's versioned registers are linearizable, without
                                      search.
    checks/linearizability.py         Check the same by search, as a second opinion.
    checks/wire_oracles.py            Check the guarantees of one node from its frames and its durable data.
    checks/independent_authorizer.py  Check that a grant exists for each change and access (pure).
    checks/authorization_check.py     Check that no request was wrongly refused or allowed.
    checks/run_check.py               The result of a whole run: OK, FAIL or VOID.

Reports:

    report/availability.py            Availability for writers: records per second, latency, gaps.
    report/svg_chart.py               Shared parts of the charts of runs.
"""
