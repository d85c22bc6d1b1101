// The figures of the charts: one row per interval, as the console keeps them (rate_history.py).

const SERIES = ["records_s", "entries_s", "in_bytes_s", "out_bytes_s", "sync_p99_s", "uncounted"];
const LENGTHS = [300, 360];

// The rows of each resolution, by the number of their interval.
let rings = [];
let loading = false;

// Adds the newest intervals of a state. If there are intervals between, all are loaded again, then `loaded` is called.
export function add(newest, loaded) {
  const joins = newest.every(({ rows }, at) => rows.length === 0 || (rings[at]?.last ?? -Infinity) >= rows[0][0] - 1);
  const restarted = newest.some(({ rows }, at) => rows.length > 0 && rings[at] && rings[at].last > rows.at(-1)[0] + LENGTHS[at]);
  if (restarted) rings = [];
  merge(newest);
  if ((!joins || restarted) && !loading) load(loaded);
}

// The points of the ring `at`, oldest first.
export function points(at) {
  const ring = rings[at];
  const found = [];
  if (ring) {
    for (const [index, ...values] of ring.rows.values()) {
      const point = { at: ring.base_ms + (index + 1) * ring.step_ms };
      SERIES.forEach((name, each) => {
        point[name] = values[each];
      });
      found.push(point);
    }
    found.sort((one, other) => one.at - other.at);
  }
  found.step_ms = ring?.step_ms ?? 1000;
  return found;
}

function merge(next) {
  next.forEach(({ step_ms, base_ms, rows }, at) => {
    const ring = rings[at] ??= { rows: new Map(), last: -Infinity };
    // The clocks of the console differ by a few milliseconds from state to state: points would move.
    if (!(Math.abs(ring.base_ms - base_ms) < 500)) ring.base_ms = base_ms;
    ring.step_ms = step_ms;
    for (const row of rows) {
      ring.rows.set(row[0], row);
      ring.last = Math.max(ring.last, row[0]);
    }
    for (const index of ring.rows.keys()) if (index <= ring.last - LENGTHS[at]) ring.rows.delete(index);
  });
}

async function load(loaded) {
  loading = true;
  try {
    const answer = await fetch("/points");
    if (answer.ok) {
      merge((await answer.json()).points);
      loaded();
    }
  } catch {
    // without them the charts begin now
  } finally {
    loading = false;
  }
}
