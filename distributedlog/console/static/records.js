// Records from a position on, or as a tail. Payloads are untrusted bytes. They are shown as text, never executed.
// The payload is the first column after the position, so that a narrow screen shows it without scrolling.

import { h } from "./dom.js";
import { bytes, count, moment, some, time, visible } from "./format.js";

const ROWS_MAX = 500;
const PAGE = 100;  // records per page, as in record_browser.py
const WAYS = [["last", "the last records"], ["first", "the first record"], ["dlsn", "DLSN"], ["txid", "txid"], ["time", "time, UTC"], ["sequence", "record number"]];
const PLACEHOLDERS = { dlsn: "31.400.0", txid: "1795000000000", time: "2026-11-22 12:00", sequence: "1000000" };
const COLUMNS = [["DLSN of the record.", "position"], ["Content of the record, at most 1 KiB.", "payload"], ["Key of the record.", "key"], ["Headers of the record.", "headers"],
  ["Log time at which its entry was written.", "time, UTC"], ["Transaction ID.", "txid"], ["Size of the payload.", "size", "number"], ["Number of the record since the log was created.", "number", "number"]];
const FORMS = [["json", "JSON"], ["text", "text"], ["hex", "hex"]];

export function records(main, name, route) {
  let source = null;
  let hidden = false;  // the tail was active when the tab was hidden
  let rows = [];
  const way = select("way", WAYS, route.get("from") ?? "last");
  const at = h("input", { id: "at", "aria-label": "Position", spellcheck: "false", autocomplete: "off" });
  at.value = route.get("at") ?? "";
  const form = select("form", FORMS, "json");
  const tail = h("button", { type: "button", id: "tail", "aria-pressed": "false" }, "▶ tail");
  const said = h("p", { class: "muted", role: "status", id: "said" });
  const body = h("tbody");
  const head = h("tr");
  const earlier = h("button", { type: "button", id: "earlier" }, "earlier");
  const more = h("button", { type: "button", id: "more" }, "next");
  const go = h("form", { class: "seek" }, h("label", { for: "way" }, "from "), way, " ", at, " ", h("button", { type: "submit", id: "go" }, "read"), " ",
    earlier, " ", more, " ", tail, " ", h("label", { for: "form" }, "as "), form);
  main.append(h("section", {}, h("h2", {}, "Records"), go, said,
    h("div", { class: "scroll records", tabindex: "0", role: "region", "aria-label": "Records" },
      h("table", {}, h("caption", {}, "Records"), h("thead", {}, head), body))));

  const hint = () => {
    at.hidden = way.value === "last" || way.value === "first";
    at.placeholder = PLACEHOLDERS[way.value] ?? "";
  };
  way.addEventListener("change", hint);
  hint();
  form.addEventListener("change", () => show(rows));
  go.addEventListener("submit", (event) => {
    event.preventDefault();
    stop();
    history.replaceState(null, "", `#/log?${new URLSearchParams({ name, from: way.value, at: at.hidden ? "" : at.value.trim() })}`);
    read(way.value, at.value.trim());
  });
  more.addEventListener("click", () => {
    if (!rows.length) return;
    const [segment, entry, slot] = rows.at(-1).dlsn.split(".").map(Number);
    stop();
    read("dlsn", `${segment}.${entry}.${slot + 1}`);
  });
  earlier.addEventListener("click", () => {
    if (!rows.length) return;
    stop();
    read("sequence", String(Math.max(0, rows[0].sequence_id - PAGE)));
  });
  tail.addEventListener("click", () => {
    if (source) {
      stop();
      return;
    }
    show([]);
    follow();
  });
  body.addEventListener("click", (event) => {
    const dlsn = event.target.closest("[data-whole]")?.dataset.whole;
    if (dlsn) whole(dlsn);
  });

  async function read(from, where) {
    if (from === "time") {
      const ms = Date.parse(`${where.replace(" ", "T").replace(/Z?$/, "")}Z`);
      if (Number.isNaN(ms)) return tell("invalid time: use the form 2026-11-22 12:00, in UTC");
      where = String(Math.max(0, ms));
    }
    tell("reading…");
    try {
      const answer = await fetch(`/records?${new URLSearchParams({ log: name, from, at: where })}`);
      const found = await answer.json();
      if (found.error) return tell(found.error);
      if (!found.records.length && rows.length && from === "dlsn") return tell("no later record");
      show(found.records);
      const box = body.closest(".records");
      box.scrollTop = from === "last" ? box.scrollHeight : 0;
      tell(rows.length ? `${some(rows.length, "record")}${found.ended ? ", to the end" : ""}${numbers()}${found.whole ? "" : "; the rest did not arrive in time"}`
        : from === "last" || from === "first" ? "the log has no record" : "no record from there on");
    } catch (error) {
      tell(`no answer: ${error}`);
    }
  }

  function numbers() {
    return ` (number ${count(rows[0].sequence_id)} to ${count(rows.at(-1).sequence_id)})`;
  }

  function follow() {
    tail.setAttribute("aria-pressed", "true");
    tail.textContent = "⏸ tail";
    tell("waiting for records…");
    source = new EventSource(`/tail?${new URLSearchParams({ log: name })}`);
    let passed = 0;
    source.addEventListener("message", (event) => {
      const found = JSON.parse(event.data);
      if (found.error || found.sealed) {
        tell(found.error ?? "the log is sealed: this is the last record");
        stop();
        return;
      }
      passed += found.passed_over;
      show([...rows, ...found.records].slice(-ROWS_MAX));
      tell(`live${passed ? `; ${count(passed)} skipped: the log is too fast to show all` : ""}`);
      if (!matchMedia("(prefers-reduced-motion: reduce)").matches) body.lastElementChild?.scrollIntoView({ block: "nearest" });
    });
    source.addEventListener("error", () => tell("disconnected; retrying"));
  }

  // A hidden tab uses no connection, because a browser has six for all tabs.
  function seen(visible) {
    if (!visible && source) {
      source.close();
      source = null;
      hidden = true;
    } else if (visible && hidden) {
      hidden = false;
      follow();
    }
  }

  function stop() {
    hidden = false;
    source?.close();
    source = null;
    tail.setAttribute("aria-pressed", "false");
    tail.textContent = "▶ tail";
  }

  async function whole(dlsn) {
    try {
      const answer = await fetch(`/payload?${new URLSearchParams({ log: name, dlsn })}`);
      if (!answer.ok) return tell((await answer.json()).error);
      const data = new Uint8Array(await answer.arrayBuffer());
      const row = rows.find((one) => one.dlsn === dlsn);
      if (row) row.whole = data;
      show(rows);
    } catch (error) {
      tell(`no answer: ${error}`);
    }
  }

  function show(next) {
    rows = next;
    const with_keys = rows.some((one) => one.key !== undefined);
    const with_headers = rows.some((one) => one.headers);
    head.replaceChildren(...COLUMNS.filter(([, one]) => (one !== "key" || with_keys) && (one !== "headers" || with_headers))
      .map(([explanation, one, kind]) => h("th", { scope: "col", class: kind, title: explanation }, one)));
    body.replaceChildren(...rows.map((one) => {
      const data = one.whole ?? (one.payload === undefined ? null : decoded(one.payload));
      const rest = data !== null && data.length < one.bytes
        ? h("button", { type: "button", "data-whole": one.dlsn, "aria-label": `Whole payload of ${one.dlsn}` }, "show all") : null;
      return h("tr", { tabindex: "-1" }, h("th", { scope: "row" }, one.dlsn),
        h("td", { class: "payload" }, data === null ? "hidden" : text(data, form.value, rest === null), rest ? " … " : "", rest),
        with_keys ? h("td", { class: "content" }, one.key === undefined ? "–" : part(one.key, one.key_bytes)) : null,
        with_headers ? h("td", { class: "content" }, headers(one)) : null,
        h("td", { title: moment(one.time_ms) }, time(one.time_ms).replace(" UTC", "")), h("td", {}, one.txid),
        h("td", { class: "number" }, bytes(one.bytes)), h("td", { class: "number" }, count(one.sequence_id)));
    }));
  }

  function part(encoded, size) {
    const data = decoded(encoded);
    return `${text(data, form.value === "json" ? "text" : form.value, data.length === size)}${data.length < size ? "…" : ""}`;
  }

  function headers(one) {
    const shown = (one.headers ?? []).map(([key, value, size]) => h("div", {}, `${part(key, decoded(key).length)}: ${part(value, size)}`));
    return [shown.length ? shown : "–", one.headers_left_out ? h("div", {}, `and ${one.headers_left_out} more`) : null];
  }

  function tell(words) {
    said.textContent = visible(String(words));
  }

  read(way.value, at.value.trim());
  return { close: stop, seen, read_again: () => source || read(way.value, at.value.trim()) };
}

function decoded(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

function text(data, form, whole) {
  if (form !== "hex") {
    try {
      // A cut payload may end within a character, and is still shown as text.
      const found = new TextDecoder("utf-8", { fatal: true }).decode(data, { stream: !whole });
      if (form === "json" && whole) {
        try {
          return visible(JSON.stringify(JSON.parse(found)));
        } catch {
          // not JSON: show text
        }
      }
      return visible(found);
    } catch {
      // not text: show bytes
    }
  }
  return Array.from(data, (one) => one.toString(16).padStart(2, "0")).join(" ");
}

function select(id, options, chosen) {
  const found = h("select", { id }, options.map(([value, title]) => h("option", { value }, title)));
  if (options.some(([value]) => value === chosen)) found.value = chosen;
  return found;
}
