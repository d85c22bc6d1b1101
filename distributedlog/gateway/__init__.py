"""Serve logs over HTTP: `dlog serve gateway`. It is a client of proxies or of the cluster itself.

Start and connections:

    gateway_lifecycle.py   Run a gateway from its start to its end.
    server.py              Accept connections and limit them; hypercorn handles HTTP.
    https_certificates.py  The gateway's own TLS certificate, replaced while it runs.
    request_guard.py       Reject requests by host name, origin or token, and above a limit of requests.

Requests:

    app.py                 Map paths to handlers (starlette); openapi.json describes the same paths.
    request_sessions.py    Run a request with the rights of the gateway or of its user.
    user_share.py          The share of one user in all limits (pure).
    append_handler.py      The writers and producers of logs, directly or through proxies.
    event_stream.py        Send records as server-sent events.
    request_format.py      Records, positions and producers as JSON and as bytes.
    error_responses.py     Errors as JSON, with the action to take (pure).

Declarations:

    options.py             The options of a gateway (pure).
    metrics.py             The metrics of a gateway (pure).

A gateway stores nothing that a client needs: a producer's number and sequence are part of each request. So
any gateway can answer a request that was sent to another gateway before.
"""
