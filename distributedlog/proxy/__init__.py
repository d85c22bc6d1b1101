"""Share logs through proxies: many producers write one log, many readers read it.

Both kinds of proxies:

    protocol/proxy_messages.py             Messages between clients and proxies (pure).
    membership/proxy_registration.py       The registration of a proxy in the metadata (pure).
    membership/proxy_members.py            List the registered proxies and watch for changes.
    membership/rendezvous_hash.py          Choose the proxy of a log, and plan a balance (pure).
    declarations/options.py                Options (pure).
    declarations/metrics.py                Metrics, by their public names (pure).
    declarations/events.py                 Events.
    session/client_authorizer.py           Authorize clients by the metadata; end their work on revocation.
    session/namespace_cache.py             The namespaces that a proxy serves, opened on first use.
    session/proxy_session.py               Requests that both kinds of proxies answer.
    session/log_calls.py                   Calls about logs, such as deletion, that a proxy makes for clients.
    session/fair_queue.py                  Share a limited resource fairly, and choose the next owner (pure).

Write proxy, in the order of a frame:

    write/produce_session.py               One connection of a client to a write proxy.
    write/producer_stream.py               The frames of one producer's stream, and their outcomes (pure).
    write/hosted_log.py                    One log that this proxy writes.
    write/log_manager.py                   All logs that this proxy writes: acquire, close and hand over.
    write/write_proxy_peers.py             Check that another write proxy is reachable; hand a log to it.

Client:

    client/proxy_client.py                 Connections to proxies, and the location of each log.
    client/producer_sink.py                Send the entries of a writer as frames to the log's proxy.
    client/batch_sender.py                 Send one producer's frames, for callers that repeat requests.
    client/proxied_namespace.py            A namespace whose logs are reached through proxies.
    client/entry_source.py                 Fill a reader's queue by a subscription. When it ends, subscribe
                                           again, at the next proxy.

Read proxy, in the order of an entry:

    protocol/read_messages.py              Messages between readers and read proxies (pure).
    read/read_server.py                    Sessions of readers, and the start of subscriptions.
    read/tail_feed.py                      Read the end of a log once for all its subscribers.
    read/entry_ring.py                     The ring of a log's newest entries; position and credit of each
                                           reader (pure).
    read/push_loop.py                      Serve all subscribers of a process in rounds.
    read/history_reads.py                  Read ranges from bookies for readers below the ring. Equal reads
                                           are shared.
"""
