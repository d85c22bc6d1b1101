#!/bin/sh
# What the tables cannot reach, part "rest": tests of log, proxy, cli, console, gateway, spark, sim and the root.
# Run in the checkout after the tables and log.manual.sh were applied. Idempotent.
set -e
s() { f=$1; shift; if [ -f "$f" ]; then sed -i -E "$@" "$f"; fi; }
# The key `current` of contexts.toml is stored; the rename of the function `current` must not follow into the string.
s distributedlog/cli/framework/named_clusters.py -e 's/contexts\["current_context"\]/contexts["current"]/' \
  -e 's/"""``current_context`` and ``previous``, names; ``contexts``, ``credentials`` by name\. Raises a usage$/"""``current`` and ``previous``, names; ``contexts``, ``credentials`` by name. Raises a usage/'
# names in strings
s tests/cli/test_usage.py -e 's/"    with changing\(\) as contexts/"    with edit_contexts() as contexts/'
s testing/sim/world/bug_injection.py -e 's/"RaftReplica\.end_if_must"/"RaftReplica.raise_failure"/'
s tests/sim/planted_cluster.py -e 's/"end_if_must"/"raise_failure"/'
s tests/spark/client/test_retry.py \
  -e 's/^( *)f"import logging; \{setup\}\\nfrom distributedlog\.spark\.client\.spark_errors import (speak|log_warnings_to_stderr)\\n"/\1f"import logging; {setup}\\n"\n\1"from distributedlog.spark.client.spark_errors import log_warnings_to_stderr\\n"/' \
  -e 's/"speak\(\); speak\(\)\\n"/"log_warnings_to_stderr(); log_warnings_to_stderr()\\n"/'
s tests/spark/client/test_worker_heap.py -e 's/heap\.settle\(/heap.freeze_worker_heap(/'
s tests/test_events.py -e 's/``EVENT\.say\(/``EVENT.emit(/' -e 's/"\.say\("/".emit("/' -e 's/node\.func\.attr == "say"/node.func.attr == "emit"/'
# keywords and names that pass through Any
s tests/log/segments/test_segment_merge.py -e 's/after\(run, later=\(1,\)\)/after(run, unknown_fields=(1,))/'
s tests/log/test_ledgers_contract.py -e 's/wait_s=5, take=take\)/wait_s=5, on_entries=take)/'
# fakes
s tests/log/test_reader_misses.py -e 's/async def next\(self\)/async def next_batch(self)/'
s tests/console/test_streams.py -e 's/async def look\(self\)/async def poll(self)/'
s tests/sim/oracles/test_connection_observer.py -e 's/dialled=/is_dialer=/g' -e 's/\bfar=SimpleNamespace/peer_end=SimpleNamespace/'
s tests/spark/test_spark_credentials.py -e '/class Client:/,/def lent_to/{s/^        alive = True/        is_alive = True/;s/^        _used = 0/        _use_count = 0/;s/def take\(self, lent/def update_token(self, lent/}'
s tests/spark/read/test_task_entries.py -e '/class Racing/,/made = Racing/{s/def _full\(/def _is_paused(/;s/@_full\.setter/@_is_paused.setter/;s/self\._is_full/self._paused/}'
# names in the tour
s docs/internals/source-tour.md -e 's/On the way back, `confirmed` takes/On the way back, `handle_confirmed` takes/' -e 's/\(entry\): `sendable`$/(entry): `can_send`/' -e 's/`look` prepares/`prepare_send` prepares/' \
  -e 's/`rests`/`schedule`/' -e 's/`push` keeps/`add` keeps/' -e 's/with `sent`\. On the way back, `left`\./with `add_sent`. On the way back, `set_unconfirmed`./' -e 's/`received` cuts/`parse_received` cuts/' \
  -e 's/`take_lone`/`add_single_entries`/' -e 's/`commit_now`/`try_commit_inline`/' -e 's/`header_into`/`write_header`/' -e 's/`gathered` selects/`commit_adds` selects/' -e 's/`wake` resumes/`on_ledger_changed` resumes/' \
  -e 's/`_take` pass/`_handle_frames` pass/' -e 's/`ColdReader`/`DeviceReader`/' -e 's/`_read_segment`, `_take_tail`/`_read_current_segment`, `_deliver_tail`/' -e 's/`_catch_up`/`_read_parallel`/' \
  -e 's/`give` cuts/`add_entry` cuts/' -e 's/`take` removes/`pop_entry` removes/'
s testing/sim/faults/unexpected_errors.py -e 's/"kept_until_the_end\.<locals>\./"run_services.<locals>./'
s tests/proxy/session/test_client_authorizer.py -e 's/batch = await watch\.next\(\)/batch = await watch.next_batch()/'
s tests/sim/faults/test_unexpected_errors.py -e 's/"_Run\.(_start_child|start_planned|stop_children)"/"_NodeRunner.\1"/g' -e 's/"OpenLedgers\.work"/"OpenLedgerCloser.run_pass"/' \
  -e 's/"Pulling\.pull"/"PullReplication.pull_ledger"/' -e 's/"Strangers\._ask_all"/"UnknownPeers._query_all"/' -e 's/"Strangers\.may_speak"/"UnknownPeers.is_trusted"/'
# names in comments and docstrings
s bookie/declarations/counters.py -e 's/`Store\.info`/`BookieStore.info`/' -e 's/`Store\.what_is_wrong`/`BookieStore.health_conditions`/'
s distributedlog/runtime/__init__.py -e 's/`Store\.info`/`BookieStore.info`/'
s cluster/gc/ledger_lookup.py -e 's/`Store\.end_tombstones`/`BookieStore.drop_tombstones`/'
s bookie/integrity/scrubber.py -e 's/`done_as`/`completed_number`/'
s bookie/session/bookie_session.py -e 's/`on_wait_over`/`on_poll_done`/'
s cluster/repair/pull_replication.py -e 's/`lost\.Job`/`RepairJob`/'
s distributedlog/log/limits/memory_budget.py -e 's/\(`keeps`\)/(`retain`)/'
s distributedlog/log/read/state_watch.py -e 's/time to `meet`/time to `resolve_position`/'
s distributedlog/log/services/ephemeral_key.py -e 's/`Claim\.held_at`/`LogLock.lock_revision`/'
s distributedlog/log/services/lease_session.py -e 's/`_tidy`/`_reacquire_and_clean`/'
s distributedlog/log/write/entry_batch.py -e 's/`take_packed`/`set_columns`/'
s distributedlog/log/write/send_queue.py -e 's/`LogWriter\.take_frame`/`SequencedWriter.append_batch`/'
s distributedlog/log/write/sequenced_writer.py -e 's/`frame_room`/`wait_capacity`/g' -e 's/`take_frame`/`append_batch`/g' -e 's/`_find_last`/`_resolve_tail`/' -e 's/`frame_after`/`append_if_last`/'
s distributedlog/proxy/client/producer_sink.py -e 's/`sendable`/`can_send`/'
s distributedlog/proxy/read/history_reads.py -e 's/`_meet`/`_resolve_position`/'
s distributedlog/runtime/disk/directory_disk.py -e 's/`check_place`/`check_directory`/'
s distributedlog/spark/options/option_values.py -e 's/`offsets\.wanted_positions`/`offsets.requested_positions`/'
for f in metadata/auth/authorizer.py metadata/model/acl_records.py metadata/state/kv_state.py; do
  s $f -e 's/`commands\.TrustChange`/`AuthorizationChange`/'
done
s metadata/auth/namespace_usage.py -e 's/`KeyClass\.lasting`/`KeyClass.is_made_once`/'
for f in metadata/model/command_results.py metadata/raft/raft_messages.py; do
  s $f -e 's/`FEATURE_CODES`/`FEATURE_ERROR_CODES`/'
done
s metadata/storage/member_identity.py -e 's/`blocks\.header_into`/`write_header`/'
for f in testing/chaos/adapters/local_processes.py testing/chaos/adapters/containers.py; do
  s $f -e 's/`Adapter\.spoiled`/`Adapter.is_memory_spoiled`/' -e 's/`Adapter\.running`/`Adapter.is_running`/'
done
# lines that became too long
python3 -c 'import sys; sys.path.insert(0, ".ci/house"); from pathlib import Path; from wrap_lines import wrap
for name in sys.argv[1:]: wrap(Path(name))' distributedlog/log/read/state_watch.py distributedlog/log/write/sequenced_writer.py distributedlog/proxy/read/history_reads.py distributedlog/runtime/__init__.py metadata/auth/namespace_usage.py metadata/model/command_results.py
