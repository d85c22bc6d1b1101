#!/bin/sh
# Restart the nodes of a cluster one after the other, for an upgrade or a downgrade under load.
#
#   rolling-restart.sh upgrade RESTART KIND/NAME...
#   rolling-restart.sh downgrade VERSION RESTART KIND/NAME...
#
# A downgrade to VERSION is refused with exit code 6 if the cluster is finalized for a newer version.
#
# RESTART is a program. "RESTART KIND NAME" installs the other version on the host of the node and restarts the
# node, and returns when the node serves. KIND is metadata, bookie, write-proxy, read-proxy or gateway.
#
# "dlog" of the newer version must be in PATH, and find the cluster (DLOG_URI or a context). The program stops
# at the first error. It can be started again with the remaining nodes.
set -eu

usage() {
    echo "usage: rolling-restart.sh upgrade RESTART KIND/NAME..." >&2
    echo "       rolling-restart.sh downgrade VERSION RESTART KIND/NAME..." >&2
    exit 2
}

# Version 0.1 starts in a finalized cluster, too, and cannot read its data.
refuse_if_finalized() {
    code=0
    dlog --quiet cluster can-downgrade "$1" >&2 || code=$?
    [ $code = 0 ] && return
    echo "no node was restarted: a downgrade to version $1 is impossible or cannot be checked" >&2
    exit $code
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
version=
case $1 in
upgrade) order="metadata bookie write-proxy read-proxy gateway" ;;
downgrade)
    order="gateway read-proxy write-proxy bookie metadata"
    version=$2
    shift
    [ $# -ge 3 ] || usage
    case $version in
    [0-9]*.[0-9]*) ;;
    *) usage ;;
    esac
    ;;
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

[ -z "$version" ] || refuse_if_finalized "$version"
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
