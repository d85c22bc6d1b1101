// The page: sends the token, follows the address, keeps one stream of states, and handles keys.

import * as cluster from "./cluster.js";
import { h } from "./dom.js";
import { time, visible } from "./format.js";
import * as lag from "./lag.js";
import * as log from "./log.js";
import * as logs from "./logs.js";
import * as quorum from "./quorum.js";
import * as token from "./token.js";
import * as work from "./work.js";

// The pages by address. A page with a `label` has a link in the navigation and a number key, in this order.
// A page without a label belongs to the link `under`.
const PAGES = {
  cluster: { page: cluster, label: "Cluster" },
  logs: { page: logs, label: "Logs" },
  log: { page: log, under: "logs" },
  work: { page: work, label: "Work" },
  quorum: { page: quorum, label: "Quorum" },
  lag: { page: lag, label: "Lag" },
};
const LINKED = Object.keys(PAGES).filter((name) => PAGES[name].label);
const THEMES = ["as the system", "light", "dark"];
const AGAIN_MS = 3000;

const root = document.documentElement;
const main = document.getElementById("main");
const live = document.getElementById("live");
const notice = document.getElementById("notice");
const nav = document.querySelector("nav");
const help = document.getElementById("keys");
let current = null;
let source = null;
let again = 0;

async function let_in() {
  const given = new URLSearchParams(location.hash.slice(1)).get("t");
  if (given === null) return;
  // Remove the token from the address at once, so that it is not in the history.
  history.replaceState(null, "", "#/cluster");
  await hand_over(given);
}

async function hand_over(token) {
  const answer = await fetch("/session", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ token }) });
  tell(answer.ok ? "" : (await answer.json()).error);
  return answer.ok;
}

function tell(words) {
  notice.hidden = words === "";
  notice.textContent = visible(words);
}

function stream(query) {
  clearTimeout(again);
  source?.close();
  source = null;
  if (document.hidden || query === null) return;  // a hidden tab uses no connection, because a browser has six for all tabs
  source = new EventSource(`/events?${query}`);
  source.addEventListener("message", (event) => {
    const state = JSON.parse(event.data);
    if (state.error) {
      fail(state);
      return;
    }
    tell("");
    nav.hidden = false;
    root.dataset.state = "live";
    live.textContent = `live ${time(state.now_ms).slice(0, 8)} UTC`;
    current.update(state);
    root.dataset.ready = root.dataset.page;
  });
  source.addEventListener("error", async () => {
    lost();
    if (source?.readyState !== EventSource.CLOSED) return;  // otherwise the browser reconnects
    const here = source;
    const reason = await refusal(query);
    if (source !== here) return;
    if (reason?.status === 401) {
      refused(reason);
      return;
    }
    if (reason) fail(reason);
    again = setTimeout(() => stream(current.query), AGAIN_MS);
  });
}

// Why the console refuses a stream, because an EventSource does not report it. null: it does not answer, or accepts it.
async function refusal(query) {
  const abort = new AbortController();
  try {
    const answer = await fetch(`/events?${query}`, { signal: abort.signal });
    return answer.ok ? null : { ...await answer.json(), status: answer.status };
  } catch {
    return null;
  } finally {
    abort.abort();
  }
}

function fail(error) {
  if (current.fail?.(error)) {
    tell("");
    root.dataset.state = "live";
    live.textContent = "";
  } else {
    tell(error.error);
    lost();
  }
  root.dataset.ready = root.dataset.page;
}

// Without a session: only a field for the token, and no links to pages that would be empty.
function refused(reason) {
  const of_user = reason.asks === "token";
  tell(of_user ? reason.error : "");
  delete root.dataset.state;  // no connection was lost
  live.textContent = "";
  nav.hidden = true;
  token.ask(main, of_user, async (given) => await hand_over(given) && follow());
  root.dataset.ready = "refused";
}

function lost() {
  root.dataset.state = "lost";
  live.textContent = "disconnected; retrying";
}

function follow() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const address = location.pathname === "/" ? path : location.pathname;
  const name = Object.hasOwn(PAGES, address) ? address : address === "" ? "cluster" : "unknown";
  current?.close?.();
  main.replaceChildren();
  delete root.dataset.ready;
  root.dataset.page = name;
  const page = { stream: (wanted) => {
    current.query = wanted;
    stream(wanted);
  } };
  current = name === "unknown" ? unknown(address) : PAGES[name].page.open(main, new URLSearchParams(query ?? ""), page);
  document.title = `${visible(current.title)} – dlog console`;
  for (const link of nav.querySelectorAll("a")) {
    const here = link.id === `nav-${PAGES[name]?.under ?? name}`;
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  stream(current.query);
}

// An address without a page. It reads nothing from the cluster.
function unknown(address) {
  main.append(h("h1", { class: "line" }, "There is no page at the address ", h("strong", {}, visible(address)), "."), " ", h("a", { href: "/#/cluster" }, "Go to the cluster"));
  tell("");
  live.textContent = "";
  root.dataset.state = "live";
  root.dataset.ready = "unknown";
  return { query: null, title: "Unknown address" };
}

// The help, with the columns of the tables of this page: their explanations are otherwise visible by mouse only.
function show_help() {
  const columns = new Map([...main.querySelectorAll("div > table th[title], .tile[title]")].map((one) => [(one.querySelector("dt") ?? one).textContent.replace(/[ ▾▴]+$/, ""), one.title]));
  document.getElementById("columns").replaceChildren(...(columns.size
    ? [h("h2", {}, "Figures on this page"), h("dl", {}, [...columns].map(([name, words]) => h("div", {}, h("dt", {}, name), h("dd", {}, words))))] : []));
  help.showModal();
}

function next_row(step) {
  const rows = [...main.querySelectorAll("tbody tr")];
  const at = rows.indexOf(document.activeElement?.closest?.("tr"));
  rows.at(Math.min(Math.max(at + step, 0), rows.length - 1))?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  const field = event.target.closest("input, select, textarea");
  if (event.key === "Escape") document.activeElement?.blur?.();
  else if (field || help.open) return;
  else if (LINKED[event.key - 1]) location.href = `/#/${LINKED[event.key - 1]}`;
  else if (event.key === "/") {
    event.preventDefault();
    if (root.dataset.page !== "logs") {
      addEventListener("hashchange", () => document.getElementById("search")?.focus(), { once: true });
      location.hash = "#/logs";
    } else document.getElementById("search").focus();
  } else if (event.key === "j") next_row(1);
  else if (event.key === "k") next_row(-1);
  else if (event.key === "Enter" && event.target.matches("tr")) event.target.querySelector("a")?.click();
  else if (event.key === "?") show_help();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  } catch {
    button.textContent = "select it";  // the clipboard requires HTTPS or a permission
  }
});

function theme(name) {
  if (name === THEMES[0]) delete root.dataset.theme;
  else root.dataset.theme = name;
  document.getElementById("theme").textContent = `Theme: ${name}`;
  localStorage.setItem("theme", name);
}

document.getElementById("theme").addEventListener("click", () => {
  theme(THEMES[(THEMES.indexOf(localStorage.getItem("theme") ?? THEMES[0]) + 1) % THEMES.length]);
});
document.getElementById("help").addEventListener("click", show_help);
document.getElementById("close-keys").addEventListener("click", () => help.close());
document.getElementById("skip").addEventListener("click", () => main.focus());
document.addEventListener("visibilitychange", () => {
  if (!current) return;
  current.seen?.(!document.hidden);
  stream(current.query);
});

nav.append(...LINKED.flatMap((name, at) =>
  [h("a", { href: `/#/${name}`, id: `nav-${name}` }, h("kbd", {}, at + 1), " ", PAGES[name].label), " "]));
document.getElementById("last-key").textContent = LINKED.length;
theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : THEMES[0]);
await let_in();
addEventListener("hashchange", follow);
follow();
