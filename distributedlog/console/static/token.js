// A field for the token: that of a user with --users, otherwise that of the printed link. It is sent once and not stored.

import { h } from "./dom.js";

export function ask(main, of_user, hand_over) {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false" });
  const button = h("button", { type: "submit" }, of_user ? "Read as this user" : "Open the console");
  const hint = of_user ? "Create one with “dlog user token”." : "Paste the link that “dlog console” printed last, or the part after “#t=”.";
  const form = h("form", { class: "token" }, h("h1", {}, of_user ? "Enter your token" : "Enter the token of the console"), h("p", { class: "muted", id: "token-hint" }, hint),
    h("label", { for: "token" }, "Token "), field, " ", button);
  field.setAttribute("aria-describedby", "token-hint");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();  // the policy of the page forbids forms: the token is sent by `hand_over`
    const given = field.value.trim();
    field.value = "";
    if (given) await hand_over(given.split("#t=").at(-1));
    if (field.isConnected) field.focus();
  });
  main.replaceChildren(form);
  field.focus();
}
