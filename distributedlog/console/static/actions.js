// Changes of logs and bookies. Each has a dialog: its fields, then its effect, then a confirmation.
// Without --allow-changes, the console permits none, and the page has no buttons for them.

import { h } from "./dom.js";
import { bytes, visible } from "./format.js";

const POLICIES = ["auto", "count", "ms", "strict", "bytes"];
const DURABILITIES = ["standard", "all"];
const TARGETS = [["to", "DLSN"], ["txid", "txid"], ["position", "named position"]];
const FORMS = {
  create: (target) => [field("log", "Name", { value: target.prefix ?? "", required: true }), choice("txids", "Txid policy", POLICIES), choice("durability", "Durability", DURABILITIES)],
  append: () => [area("payload", "Payload, as text"), field("key", "Key (optional)"), field("txid", "Txid (empty: the log assigns it)", { inputmode: "numeric" })],
  truncate: () => [choice("by", "Delete the records before this", TARGETS), field("at", "Value", { required: true })],
  delete: () => [],
  decommission: () => [field("bookie", "Bookie, a name or an ID", { required: true })],
  "pause-repair": () => [field("duration", "Duration, such as 30m or 2h", { required: true })],
  "resume-repair": () => [],
  "cancel-decommission": () => [field("bookie", "Bookie, a name or an ID", { required: true })],
};

const SUBMITTED = 409;  // status of a change whose answer was lost, and that is submitted again

let token = "";  // for the next change of this page

// Appends buttons for those of the actions that are permitted. `target` has the fields that the page gives.
export async function buttons(main, names, target = {}, after = () => {}) {
  const place = main.appendChild(h("p", { class: "actions" }));
  const permitted = await load();
  for (const name of names.filter((one) => Object.hasOwn(permitted, one) && Object.hasOwn(FORMS, one))) {
    const button = h("button", { type: "button", "data-action": name }, `${permitted[name]}…`);
    button.addEventListener("click", () => open(name, permitted[name], typeof target === "function" ? target() : target, after));
    place.append(button, " ");
  }
}

async function load() {
  try {
    const answer = await fetch("/actions");
    if (!answer.ok) return {};
    const found = await answer.json();
    token = found.token ?? "";
    return found.actions;
  } catch {
    return {};
  }
}

function open(name, label, target, after) {
  const said = h("p", { role: "alert" });
  const form = h("form", {});
  const dialog = h("dialog", { class: "action", "aria-label": label }, h("h2", {}, label), said, form);
  const tell = (words) => {
    said.textContent = visible(words);
  };
  let given = {};
  let submit = async () => {};
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  dialog.addEventListener("keydown", (event) => event.stopPropagation());  // the page's keys do not apply here
  dialog.addEventListener("close", () => dialog.remove());

  function show(parts, button, next) {
    const go = h("button", { type: "submit", class: "confirm" }, button);
    const cancel = h("button", { type: "button" }, "Cancel");
    cancel.addEventListener("click", () => dialog.close());
    form.replaceChildren(...parts, h("p", {}, go, " ", cancel));
    submit = async () => {
      if (go.disabled) return;
      go.disabled = true;
      tell("");
      try {
        await next();
      } catch (error) {
        tell(`no answer: ${error}. ${next === effect ? "Nothing was changed" : "The change may or may not be made"}`);
      }
      go.disabled = false;
    };
    (form.querySelector("input, textarea, select") ?? go).focus();
  }

  async function effect() {
    const { prefix: _, ...fixed } = target;  // the prefix only starts the name of a new log
    given = { ...fixed, ...values(form) };
    const { payload, ...shown } = given;
    const answer = await (await fetch(`/effect?${new URLSearchParams({ action: name, ...shown })}`)).json();
    if (answer.error) return tell(answer.error);
    given = { ...given, ...answer.bound };
    if (answer.bound.to !== undefined) for (const other of ["txid", "position"]) delete given[other];
    const size = payload === undefined ? [] : [`The payload has ${bytes(atob(payload).length)}`];
    confirm([...answer.sentences, ...size], answer.typed, answer.label);
  }

  function confirm(sentences, typed, button) {
    const list = h("ul", { class: "effect" }, sentences.map((one) => h("li", {}, visible(one))));
    const name_again = typed ? field("typed", `Type ${visible(typed)} to confirm`, { required: true }) : null;
    show([list, name_again].filter(Boolean), button, async () => {
      if (typed && form.querySelector("[name=typed]").value !== typed) return tell(`type exactly: ${typed}`);
      await send(button, typed);
    });
  }

  async function send(button, typed) {
    const answer = await fetch(`/actions?${new URLSearchParams({ action: name })}`, {
      method: "POST", headers: { "content-type": "application/json", "x-dlog-change": token }, body: JSON.stringify(given) });
    const found = await answer.json();
    if (found.token) token = found.token;
    else {
      await load();  // the page was too old: the next attempt has a new token
      if (answer.status === SUBMITTED) return end(found.error);
    }
    if (found.confirm) {
      given = { ...given, force: true };
      return confirm([found.confirm, "The console does it anyway if you confirm"], typed, `${button} anyway`);
    }
    if (found.definite === false) return end(found.error);  // it may have happened: a repetition could append twice
    if (found.error) return tell(found.error);
    end(found.done);
    after(name, given);
  }

  function end(words) {
    form.replaceChildren(h("p", { role: "status" }, visible(words)), h("p", {}, close_button(dialog)));
    form.querySelector("button").focus();
    submit = async () => dialog.close();
  }

  document.body.append(dialog);
  dialog.showModal();
  const parts = FORMS[name](target);
  if (parts.length) show(parts, "Continue", effect);
  else {
    show([], "Continue", effect);
    submit();
  }
}

function close_button(dialog) {
  const button = h("button", { type: "submit" }, "Close");
  button.addEventListener("click", () => dialog.close());
  return button;
}

// The fields of a form that are not empty, as the console expects them.
function values(form) {
  const found = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
  if (found.by !== undefined) {
    const { by, at, ...rest } = found;
    return { ...rest, [by]: at.trim() };
  }
  if (form.querySelector("[name=payload]")) found.payload = base64(new TextEncoder().encode(found.payload ?? ""));
  return found;
}

function base64(data) {
  let text = "";
  for (const one of data) text += String.fromCharCode(one);
  return btoa(text);
}

function field(name, label, attributes = {}) {
  const { value, ...rest } = attributes;
  const input = h("input", { name, id: `action-${name}`, autocomplete: "off", spellcheck: "false", ...rest });
  input.value = value ?? "";
  return h("p", {}, h("label", { for: `action-${name}` }, label, " "), input);
}

function area(name, label) {
  return h("p", {}, h("label", { for: `action-${name}` }, label, " "), h("textarea", { name, id: `action-${name}`, rows: "4", cols: "40", spellcheck: "false" }));
}

function choice(name, label, options) {
  const shown = options.map((one) => (typeof one === "string" ? [one, one] : one));
  return h("p", {}, h("label", { for: `action-${name}` }, label, " "),
    h("select", { name, id: `action-${name}` }, shown.map(([value, title]) => h("option", { value }, title))));
}
