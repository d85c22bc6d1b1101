"""Show a cluster in a browser: `dlog console`. It is a client that needs only a URI, read-only by default.

HTTP and access:

    server.py             Map paths to answers, and send the streams of states.
    http.py               Requests, pages and event streams over HTTP.
    access_guard.py       Check the console's token and the origin of requests, and restrict the page.
    user_consoles.py      One console per user's token, with the rights of that user.
    actions.py            Changes of logs and bookies, with their effects; only with --allow-changes.

States:

    cluster_state.py      The health of the cluster, its nodes and rates.
    node_connections.py   Connections to the nodes, kept between requests, closed when idle.
    work_state_poller.py  Repairs and drains: progress, and the reason of a wait.
    log_states.py         The list of logs, and one log.
    lag_list.py           The consumers of logs: positions, subscribers and work queues, with their lag.
    record_browser.py     Records from a position on, and a tail.
    rate_history.py       Rates per second from counters, and those of the last hour (pure).
    record_rate.py        Records per second of a small namespace, one log at a time.
    suggested_command.py  The command for each health condition (pure).

The page:

    static/               One HTML file, modules and a style sheet, without a build step.

A state is one small JSON object. It is made at most once per second for all browsers, and only while one is
connected. Only the figures of the charts are sampled without a browser.
"""
