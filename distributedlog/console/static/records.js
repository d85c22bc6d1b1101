// Records from a position on, or as a tail. Payloads are untrusted bytes. They are shown as text, never executed.

import { h } from "./dom.js";
import { bytes, count, time, visible } from "./format.js";

const ROWS_MAX = 500;
const WAYS = [["last", "the last records"], ["first", "the first record"], ["dlsn", "DLSN"], ["txid", "txid"], ["time", "time, UTC"]];
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
  const go = h("form", { class: "seek" }, h("label", { for: "way" }, "from "), way, " ", at, " ", h("button", { type: "submit", id: "go" }, "read"), " ",
    h("button", { type: "button", id: "more" }, "next"), " ", tail, " ", h("label", { for: "form" }, "as "), form);
  main.append(h("section", { "aria-label": "Records" }, h("h2", {}, "Records"), go, said,
    h("div", { class: "scroll records", tabindex: "0", role: "region", "aria-label": "Records" },
      h("table", {}, h("caption", {}, "Records"), h("thead", {}, h("tr", {}, ["position", "time", "txid", "size", "payload"].map((one) => h("th", { scope: "col" }, one)))), body))));

  const hint = () => {
    at.hidden = way.value === "last" || way.value === "first";
    at.placeholder = { dlsn: "31.400.0", txid: "1795000000000", time: "2026-11-22 12:00" }[way.value] ?? "";
  };
  way.addEventListener("change", hint);
  hint();
  form.addEventListener("change", () => show(rows));
  go.addEventListener("submit", (event) => {
    event.preventDefault();
    stop();
    read(way.value, at.value.trim());
  });
  go.querySelector("#more").addEventListener("click", () => {
    if (!rows.length) return;
    const [segment, entry, slot] = rows.at(-1).dlsn.split(".").map(Number);
    stop();
    read("dlsn", `${segment}.${entry}.${slot + 1}`);
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
      show(found.records);
      tell(`${found.records.length} records${found.ended ? ", to the end" : ""}${found.whole ? "" : "; the rest did not arrive in time"}`);
    } catch (error) {
      tell(`no answer: ${error}`);
    }
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
    body.replaceChildren(...rows.map((one) => {
      const data = one.whole ?? (one.payload === undefined ? null : Uint8Array.from(atob(one.payload), (letter) => letter.charCodeAt(0)));
      const more = data !== null && data.length < one.bytes
        ? h("button", { type: "button", "data-whole": one.dlsn, "aria-label": `Whole payload of ${one.dlsn}` }, "show all") : null;
      return h("tr", { tabindex: "-1" }, h("th", { scope: "row" }, one.dlsn), h("td", { title: new Date(one.time_ms).toISOString() }, time(one.time_ms)),
        h("td", {}, one.txid), h("td", { class: "number" }, bytes(one.bytes)),
        h("td", { class: "payload" }, data === null ? "hidden" : text(data, form.value, more === null), more ? " … " : "", more));
    }));
  }

  function tell(words) {
    said.textContent = visible(String(words));
  }

  read(way.value, at.value.trim());
  return { close: stop, seen };
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
