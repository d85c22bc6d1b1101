#!/bin/sh
# Restart the nodes of a cluster one after the other, for an upgrade or a downgrade under load.
#
#   rolling-restart.sh upgrade|downgrade RESTART KIND/NAME...
#
# RESTART is a program. "RESTART KIND NAME" installs the other version on the host of the node and restarts the
# node, and returns when the node serves. KIND is metadata, bookie, write-proxy, read-proxy or gateway.
#
# "dlog" of the newer version must be in PATH, and find the cluster (DLOG_URI or a context). The program stops
# at the first error. It can be started again with the remaining nodes.
set -eu

usage() {
    echo "usage: rolling-restart.sh upgrade|downgrade RESTART KIND/NAME..." >&2
    exit 2
}

wait_healthy() {
    dlog --quiet status --wait --timeout 600 >/dev/null && return
    dlog status >&2
    exit 1
}

# Another node can fail between the two checks. Then the answer of "can-stop" is negative (exit code 6). Without
# a spare bookie it stays negative, so the program stops after 10 minutes.
wait_until_node_can_stop() {
    tries=120
    while :; do
        wait_healthy
        dlog --quiet node can-stop "$1" && return
        [ $? = 6 ] || exit 1
        tries=$((tries - 1))
        [ $tries -gt 0 ] || exit 1
        sleep 5
    done
}

[ $# -ge 3 ] || usage
case $1 in
upgrade) order="metadata bookie write-proxy read-proxy gateway" ;;
downgrade) order="gateway read-proxy write-proxy bookie metadata" ;;
*) usage ;;
esac
restart=$2
shift 2
for node in "$@"; do
    case " $order " in
    *" ${node%%/*} "*) ;;
    *) usage ;;
    esac
done

for kind in $order; do
    for node in "$@"; do
        name=${node#*/}
        [ "$node" = "$kind/$name" ] || continue
        case $kind in
        metadata | bookie)
            wait_until_node_can_stop "$name"
            ;;
        write-proxy)
            wait_healthy
            dlog --quiet proxy drain "$name"
            ;;
        *)
            wait_healthy
            ;;
        esac
        echo "restart $node"
        "$restart" "$kind" "$name"
    done
done
wait_healthy
