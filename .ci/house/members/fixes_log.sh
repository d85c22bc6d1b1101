#!/bin/sh
# Part "log": what the tables cannot reach: untyped (Any) uses, names in strings, classes in functions.
# Run in the checkout after log.members.tsv and log.names.tsv were applied. Idempotent.
set -e
s() { f=$1; shift; [ -f "$f" ] && sed -i -E "$@" "$f"; }
# names of methods in strings
s distributedlog/generate_api_variants.py -e 's/"find create_or_find start close"/"resolve_name create_or_find start close"/' \
  -e 's/"read_columns read_by_log take read_from_several next check run"/"read_columns read_by_log read_ready start_parallel_read current_range check run"/' \
  -e 's/"leave ungiven"/"exit_block return_undelivered"/' \
  -e 's/"begin finish ungiven put_back extend open_stretch run"/"store_hold finish return_undelivered return_to_queue extend open_item run"/'
s tests/log/test_crossing.py -e 's/ModelReader\.note_lac"/ModelReader.record_lac"/' -e 's/state\.open_from == 2/state.first_open_segment == 2/'
s tests/bookie/gc/test_compactor.py -e 's/"tests\.bookie\.kit\.CutFile\.punch"/"tests.bookie.kit.CutFile.punch_hole"/'
s tests/log/interfaces/test_error_boundary.py -e 's/_queue\._heard\./_queue._last_response./' \
  -e 's/setattr\(writer\.pipeline\._due, "call"/setattr(writer.send_queue._scheduled_send, "call"/' \
  -e 's/setattr\(r\._queue, "wait_taken"/setattr(r._queue, "wait_capacity"/' \
  -e 's/fetcher_of\(r\)\._follower, "_take"/fetcher_of(r)._state_watch, "_update"/' \
  -e 's/fetcher\._follower\./fetcher._state_watch./' -e 's/fetcher\._take_tail\(/fetcher._deliver_tail(/' -e 's/fetcher\.out\.error/fetcher.queue.error/'
# untyped values
s testing/sim/bugs/proxy_injected_bugs.py -e 's/writer\.sequenced\./writer.sequenced_writer./' -e 's/writer\.pipeline\.producers/writer.send_queue.producers/' \
  -e 's/producers\._live\[/producers._active[/' -e 's/request\.through/request.acked_through/g'
s tests/log/test_ledgers_contract.py -e 's/\.note_lac\(/.record_lac(/g' -e 's/\.link_share\(/.link_ops(/g' -e 's/\.deletion_share\(/.delete_ops(/g' \
  -e 's/(prepared|first)\.transaction\(\)/\1.create_ops()/g' -e 's/\.closing_share\(/.close_ops(/g'
s tests/log/format/test_producer_table.py -e 's/self\._live\b/self._active/g' -e 's/producing\._Live\b/producing._ActiveProducer/g'
s tests/test_face_interrupts.py -e 's/_buffer\.writer\._claim\b/_buffer.writer._log_lock/' -e "s/give_back = claim\\.give_back\$/give_back = claim.release/" -e "s/claim\\.give_back = late/claim.release = late/" -e 's/queue\.state\(\)\.line\b/queue.state().items/'
s tests/proxy/client/test_proxied_namespace.py -e 's/sink\._sent\b/sink._unacked/g' -e 's/sink\._ask_another\b/sink._probe_other_proxy/g'
s tests/proxy/client/test_producer_sink.py -e 's/link\.gathers\b/link.is_gathering/g' -e 's/close_stream = leave$/close_stream = remove_stream/'
s tests/sim/planted_cluster.py -e 's/self\._certain\b/self._is_current/'
s tests/cluster/test_shared_reading.py -e 's/\(state\.line, state\.aside\)/(state.items, state.retry_queue)/'
# fakes: classes in functions, SimpleNamespace
s tests/gateway/test_bounds.py -e 's/def sequenced\(/def sequenced_writer(/'
s tests/proxy/test_write_proxy.py -e 's/async def enter\(self, path/async def acquire(self, path/' -e 's/def leave\(self, path/def release(self, path/' \
  -e 's/SimpleNamespace\(leave=lambda path/SimpleNamespace(release=lambda path/' -e 's/leaving=False, writer=SimpleNamespace\(over=None\), used=False/is_releasing=False, writer=SimpleNamespace(over=None), has_new_frames=False/' \
  -e 's/one\.used = True/one.has_new_frames = True/' -e 's/metadata=None, find=find,/metadata=None, resolve_name=find,/' -e 's/SimpleNamespace\(knock=knock\)/SimpleNamespace(probe=knock)/'
s tests/test_numbers.py -e 's/through\._through\b/through._namespace/'
# names of functions and fields in strings
s testing/sim/faults/unexpected_errors.py -e 's/"Endpoint\._contained"/"Endpoint._run_contained"/' -e 's/"Endpoint\._contain_fault"/"Endpoint._run_serving"/'
s tests/sim/faults/test_unexpected_errors.py -e 's/"Fetcher\._catch_up"/"Fetcher._read_parallel"/' -e 's/"MultiReader\._join", "MultiReader\._take_in"/"MultiReader._open_member", "MultiReader._start_opening"/' \
  -e 's/"RangeReader\.read_from_several"/"RangeReader.start_parallel_read"/' -e 's/"WorkQueue\._rest"/"WorkQueue._wait_for_work"/' -e 's/"Background\._begin"/"Background._start_call"/' \
  -e 's/"_Served\._(greet|handle_handshake)"/"_ServerConnection._handle_handshake"/' -e 's/"WorkFailures\._run_watched"/"WorkFailures._run_until_recovered"/' \
  -e 's/"Owner\._sweep"/"LogManager._sweep"/' -e 's/"WrittenLog\._on_refused"/"HostedLog._on_refused"/' -e 's/"WrittenLog\.take"/"HostedLog.append"/'
for f in cluster/auth/bookie_change_rules.py cluster/auth/record_change_rules.py; do
  s $f -e 's/"open_from"/"first_open_segment"/' -e 's/"unordered_once"/"had_unordered_txids"/' -e 's/"producers"/"producer_snapshot_segment"/'
done
# keywords that pass through untyped **options
s tests/log/format/test_record.py -e 's/"wall_ms": 0, \*\*options/"written_ms": 0, **options/' -e '/entry_of\(/s/wall_ms=/written_ms=/'
s tests/cluster/auth/test_record_change_rules.py -e '/state\(/s/open_from=/first_open_segment=/'
s tests/log/model/test_txid_policy.py -e '/older\(/s/unordered_once=/had_unordered_txids=/'
s tests/sim/planted_bookie.py -e 's/\bdurable_floor\b/min_durable_to/g' -e 's/\bexcused\b/known_gaps/g'
s tests/log/interfaces/test_error_boundary.py -e 's/plant\(keeper_of\(writer\), "_step"/plant(keeper_of(writer), "_run_step"/' -e 's/(plant\(keeper_of\(writer\)\.current(_target)?), "end"/\1, "segment_end"/'
s tests/proxy/session/test_client_authorizer.py -e 's/namespace\.find\(name\)/namespace.resolve_name(name)/'
