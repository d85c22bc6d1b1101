// Create DOM nodes from values. Data of the cluster is always inserted as text, never parsed as markup.

// Creates an element. Attributes are strings. true sets "". null, undefined and false omit the attribute.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

// Updates the children of `parent` to equal `wanted`. Matching nodes are kept, with focus, selection and open details.
export function morph(parent, wanted) {
  const next = wanted.flat(Infinity).filter((one) => one instanceof Node);
  next.forEach((node, at) => {
    const old = parent.childNodes[at];
    if (old === undefined) parent.append(node);
    else if (old.nodeName !== node.nodeName) old.replaceWith(node);
    else if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== node.data) old.data = node.data;
    } else {
      for (const { name } of [...old.attributes]) {
        if (!node.hasAttribute(name) && !(old.nodeName === "DETAILS" && name === "open")) old.removeAttribute(name);
      }
      for (const { name, value } of node.attributes) {
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
      }
      morph(old, [...node.childNodes]);
    }
  });
  while (parent.childNodes.length > next.length) parent.lastChild.remove();
}

// A table: columns are [explanation, title, class], rows are arrays of cells (text or nodes) or { cells, ...attributes }.
// The name is for screen readers; a heading before the table is for others. The explanations are also in the help.
export function table(name, columns, rows, empty) {
  if (rows.length === 0) return h("p", { class: "muted" }, empty);
  const head = columns.map(([explanation, title, kind]) => h("th", { scope: "col", class: kind, title: explanation || null }, title));
  const body = rows.map((row) => {
    const { cells, ...attributes } = Array.isArray(row) ? { cells: row } : row;
    return h("tr", { tabindex: "-1", ...attributes }, cells.map((cell, at) => {
      const [, title, kind] = columns[at];
      return at === 0
        ? h("th", { scope: "row", class: kind }, cell)
        : h("td", { class: kind, "data-name": typeof title === "string" ? title : "" }, cell ?? "–");
    }));
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name },
    h("table", {}, h("caption", {}, name), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

// A table with its heading, or one line if there are no rows.
export function section(title, columns, rows, empty, ...more) {
  if (rows.length === 0) return h("section", { class: "empty" }, h("h2", {}, title), " ", h("span", { class: "muted" }, empty));
  return h("section", {}, h("h2", {}, title), table(title, columns, rows, empty), more);
}

// Large figures with their captions: [figure, caption, explanation, state]. The state is good, warn, bad or missing.
export function tiles(figures) {
  return h("dl", { class: "tiles" }, figures.map(([figure, caption, explanation, state]) =>
    h("div", { class: state ? `tile ${state}` : "tile", title: explanation || null }, h("dt", {}, caption), h("dd", { class: figure.length > 10 ? "long" : null }, figure))));
}

// A command with a button to copy it. `main.js` handles the click.
export function command(text) {
  if (!text) return null;
  return h("span", { class: "command" }, h("code", {}, "$ ", text), " ",
    h("button", { type: "button", "data-copy": text, "aria-label": `Copy: ${text}` }, "copy"));
}
