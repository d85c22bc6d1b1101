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

// A table: columns are [key, title, class], rows are arrays of cells (text or nodes) or { cells, ...attributes }.
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return h("p", { class: "muted" }, empty);
  const head = columns.map(([, title, kind]) => h("th", { scope: "col", class: kind }, title));
  const body = rows.map((row) => {
    const { cells, ...attributes } = Array.isArray(row) ? { cells: row } : row;
    return h("tr", { tabindex: "-1", ...attributes }, cells.map((cell, at) => {
      const [, title, kind] = columns[at];
      const name = typeof title === "string" ? title : "";
      return at === 0
        ? h("th", { scope: "row", class: kind }, cell)
        : h("td", { class: kind, "data-name": name }, cell ?? "–");
    }));
  });
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

// A command with a button to copy it. `main.js` handles the click.
export function command(text) {
  if (!text) return null;
  return h("span", { class: "command" }, h("code", {}, "$ ", text), " ",
    h("button", { type: "button", "data-copy": text, "aria-label": `Copy: ${text}` }, "copy"));
}
