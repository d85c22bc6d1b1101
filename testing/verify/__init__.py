"""Judges a run, wherever it ran: clients that note what they see, and checkers of the guarantees.

The same judges for the simulator, for chaos on real processes, and for pipelines.

    workloads/workload.py, workloads/pipeline.py        clients that use a log as hard as its promises allow
    workloads/exactly_once.py                         producers that send again, and what of theirs is in the
    log workloads/crowd.py                        many producers and readers of one log, through proxies and
    beside them history/run_history.py, history/observations.py            what they saw, in this process and
    from many checks/history_check.py                     the guarantees over a history, record by record
    checks/log_check.py, checks/read_check.py     the same over notes, for runs of any length
    checks/register_check.py, checks/linearizability.py         linearizability of the metadata's registers
    checks/wire_oracles.py                      promises of one node, judged on the wire and against its own
    platter checks/independent_authorizer.py                 had whoever did this a grant for it?
    checks/authorization_check.py               was anybody refused who has the right, or let in who has none?
    checks/run_check.py, report/availability.py   the verdict on a whole run; how it felt to its writers
    report/svg_chart.py                          what the pictures of runs share
"""
