// With --users: a field for the token of a user. It is sent once and not stored.

import { h } from "./dom.js";

export function ask(main, hand_over) {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false" });
  const button = h("button", { type: "button" }, "Read as this user");
  const label = h("label", { for: "token" }, "Token (dlog user token) ");
  async function go() {
    const given = field.value.trim();
    field.value = "";
    if (given) await hand_over(given);
  }
  button.addEventListener("click", go);
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go();
  });
  main.replaceChildren(h("p", {}, label, field, " ", button));
  field.focus();
}
