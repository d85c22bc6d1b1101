"""Judges a run, wherever it ran: clients that note what they see, and checkers of the guarantees.

The same judges for the simulator, for chaos on real processes, and for pipelines.

    workload.py, pipeline.py        clients that use a log as hard as its promises allow
    once.py                         producers that send again, and what of theirs is in the log
    crowd.py                        many producers and readers of one log, through proxies and beside them
    history.py, notes.py            what they saw, in this process and from many
    checkers.py                     docs/guarantees.md over a history, record by record
    log_verdict.py, readings.py     the same over notes, for runs of any length
    registers.py, linear.py         linearizability of the metadata's registers
    oracles.py                      promises of one node, judged on the wire and against its own platter
    second_judge.py                 had whoever did this a grant for it?
    rights_verdict.py               was anybody refused who has the right, or let in who has none?
    judgement.py, availability.py   the verdict on a whole run; how it felt to its writers
    svg.py                          what the pictures of runs share
"""
