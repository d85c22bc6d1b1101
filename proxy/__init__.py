"""Processes between a log's users and its storage: many producers write one log, many readers read it.

    wire.py                         what is said on the wire (pure)
    registration.py, members.py     who there is (pure); followed
    route.py, options.py            which of them should have a log (pure); what can be set
    metrics.py, events.py           what is counted, as it is called outside (pure); what is told
    client_rights.py                what each client may do, as the metadata say, and the end of it
    namespaces.py                   the namespaces that a proxy serves
    common_session.py, log_calls.py what a proxy of either kind answers; calls about logs
    fairness.py                     how much of what many share one of them takes, and who is next (pure)

Writing, in the order a frame meets it:

    produce_session.py              one connection to a write proxy
    streams.py                      what is known of one producer's frames (pure)
    written_log.py, owner.py        one log that is written here; all of them, taken and given up
    peers.py                        what one write proxy asks of another: are you there, take this log

A client's side:

    client.py                       connections; who has which log
    frame_sender.py                 one producer's frames by hand, for callers that repeat requests
    producer_sink.py                a writer's entries, as frames to that proxy
    proxied.py                      a namespace and its logs, the calls of which proxies make

Reading, in the order an entry meets it:

    read_wire.py                    what a reader and a read proxy say (pure)
    read_server.py                  a read proxy: sessions, and how a subscription begins
    feed.py, ring.py                a log is followed once, into a ring of its newest entries, and the
                                    position and credit of each reader (pure)
    pusher.py                       rounds for all readers
    cold.py                         who is below the ring reads ranges, equal ones once
    entry_source.py                 at the reader: a subscription fills its queue, and goes on elsewhere
"""
