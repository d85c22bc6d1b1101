"""Logs over HTTP: `dlog serve gateway`. A client like any other, of proxies or of the cluster itself.

    gateway_lifecycle.py              a gateway from its start to its end
    server.py               connections: hypercorn on listeners that bound them
    https_certificates.py                the certificate that they show, where it speaks TLS itself
    request_guard.py                 who is answered at all, and how many at once
    request_sessions.py, user_share.py   with whose rights a request is done; what one user may have of all
    app.py                  which path answers what (starlette); openapi.json says the same
    event_stream.py                 records as server-sent events, as they come
    append_handler.py            the writers of logs, and their producers, whichever way the gateway has to
    them request_format.py                records, places and producers, as JSON and as bytes
    error_responses.py               errors as JSON, and what to do (pure)
    options.py, metrics.py  what can be set and what is counted (pure)

It keeps nothing that a client needs: a producer's number and sequence travel with each request, so that any
gateway answers a request that was sent before to another one.
"""
