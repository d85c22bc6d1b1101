"""A cluster in a browser: `dlog console`. Read only; a client like any other, which needs a URI and no more.

    server.py           which path answers what, and the streams of states
        http.py         requests, pages and streams over HTTP
        access_guard.py        who is let in, and what the page may do
    user_consoles.py            each reads with his own rights: a console for each user's token
    cluster_state.py    the verdict, nodes, rates
        node_connections.py   links to the nodes, while somebody looks
    work_state_poller.py       what is being mended and drained, and what it waits for
    log_states.py       the list of logs, and one log
    record_browser.py          records from a position on, and a tail
    rate_history.py, suggested_command.py counters to numbers a second; the command that goes with a reason
    (pure) static/             the page: one HTML file, modules and a style sheet, as they are written

A state is one small JSON object, made at most once a second for all who look, and only while somebody does.
"""
