"""Logs over HTTP: `dlog serve gateway`. A client like any other, of proxies or of the cluster itself.

    running.py              a gateway from its start to its end
    server.py               connections: hypercorn on listeners that bound them
    https.py                the certificate that they show, where it speaks TLS itself
    door.py                 who is answered at all, and how many at once
    sessions.py, share.py   with whose rights a request is done; what one user may have of all
    app.py                  which path answers what (starlette); openapi.json says the same
    tail.py                 records as server-sent events, as they come
    appending.py            the writers of logs, and their producers, whichever way the gateway has to them
    forms.py                records, places and producers, as JSON and as bytes
    faults.py               errors as JSON, and what to do (pure)
    options.py, metrics.py  what can be set and what is counted (pure)

It keeps nothing that a client needs: a producer's number and sequence travel with each request, so that any
gateway answers a request that was sent before to another one.
"""
