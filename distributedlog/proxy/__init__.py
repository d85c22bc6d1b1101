"""Processes between a log's users and its storage: many producers write one log, many readers read it.

    protocol/proxy_messages.py                         what is said on the wire (pure)
    membership/proxy_registration.py, membership/proxy_members.py     who there is (pure); followed
    membership/rendezvous_hash.py, declarations/options.py            which of them should have a log (pure);
    what can be set declarations/metrics.py, declarations/events.py           what is counted, as it is called
    outside (pure); what is told session/client_authorizer.py                what each client may do, as the
    metadata say, and the end of it session/namespace_cache.py                   the namespaces that a proxy
    serves session/proxy_session.py, session/log_calls.py what a proxy of either kind answers; calls about
    logs session/fair_queue.py                     how much of what many share one of them takes, and who is
    next (pure)

Writing, in the order a frame meets it:

    write/produce_session.py              one connection to a write proxy
    write/producer_stream.py                      what is known of one producer's frames (pure)
    write/hosted_log.py, write/log_manager.py        one log that is written here; all of them, taken and
    given up write/write_proxy_peers.py                        what one write proxy asks of another: are you
    there, take this log

A client's side:

    client/proxy_client.py                       connections; who has which log
    client/batch_sender.py                 one producer's frames by hand, for callers that repeat requests
    client/producer_sink.py                a writer's entries, as frames to that proxy
    client/proxied_namespace.py                      a namespace and its logs, the calls of which proxies make

Reading, in the order an entry meets it:

    protocol/read_messages.py                    what a reader and a read proxy say (pure)
    read/read_server.py                  a read proxy: sessions, and how a subscription begins
    read/tail_feed.py, read/entry_ring.py                a log is followed once, into a ring of its newest
    entries, and the
                                    position and credit of each reader (pure)
    read/push_loop.py                       rounds for all readers
    read/history_reads.py                         who is below the ring reads ranges, equal ones once
    client/entry_source.py                 at the reader: a subscription fills its queue, and goes on
    elsewhere
"""
