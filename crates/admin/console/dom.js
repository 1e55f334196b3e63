// Elements without a framework. Text is always text: nothing here takes HTML.

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value == null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.setAttribute("class", value);
    else if (name === "style") for (const [property, set] of Object.entries(value)) element.style.setProperty(property, set);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

/** A place that is drawn anew only if what it shows has changed, so that focus and selection stay. */
export function place(tag = "div", attributes = {}) {
  const element = h(tag, attributes);
  let shown;
  element.update = (data, draw) => {
    const now = JSON.stringify(data);
    if (now === shown) return;
    shown = now;
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    element.replaceChildren(...[draw(data)].flat(Infinity).filter((child) => child != null && child !== false));
    if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  };
  return element;
}
