// Questions before something is changed, and words after it.

import { h } from "./dom.js";

export function toast(words, kind = "ok") {
  const box = h("div", { class: `toast ${kind}` }, words);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), kind === "bad" ? 12000 : 5000);
}

/**
 * Asks, and carries out. `typed` has to be typed first; `fields` are [{name, label, kind, value, choices, help}];
 * `act(values)` makes the change, and what goes wrong is told in the dialog.
 */
export function confirm({ title, words, typed, fields = [], action, danger = false, act }) {
  return new Promise((resolve) => {
    const inputs = fields.map((field) => [field, input(field)]);
    const word = typed && h("input", { type: "text", id: "typed", autocomplete: "off", spellcheck: "false" });
    const error = h("p", { class: "bad", role: "alert", hidden: true });
    const go = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
    const cancel = h("button", { type: "button", class: "quiet" }, "Cancel");
    const form = h(
      "form",
      { method: "dialog" },
      h("h2", {}, title),
      [words].flat().map((line) => h("p", {}, line)),
      inputs.map(([field, element]) =>
        h(
          "label",
          { class: field.kind === "flag" ? "check" : "field" },
          field.kind === "flag" ? [element, h("span", {}, field.label)] : [h("span", {}, field.label), element],
          field.help && h("span", { class: "muted small" }, field.help),
        ),
      ),
      typed && h("label", { class: "field", for: "typed" }, h("span", {}, "Type ", h("b", {}, typed), " to go on"), word),
      error,
      h("div", { class: "buttons" }, cancel, go),
    );
    const dialog = h("dialog", { "aria-label": title }, form);
    const check = () => (go.disabled = Boolean(word) && word.value !== typed);
    word?.addEventListener("input", check);
    check();
    const close = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    cancel.addEventListener("click", () => close(null));
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      close(null);
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (go.disabled) return;
      go.disabled = true;
      error.hidden = true;
      try {
        close(await act(Object.fromEntries(inputs.map(([field, element]) => [field.name, value(field, element)]))));
      } catch (refused) {
        error.textContent = [refused.message, refused.hint].filter(Boolean).join(" – ");
        error.hidden = false;
        check();
      }
    });
    document.body.append(dialog);
    dialog.showModal();
    (word ?? inputs[0]?.[1] ?? cancel).focus();
  });
}

function input(field) {
  if (field.kind === "flag") return h("input", { type: "checkbox", name: field.name, checked: field.value });
  if (field.kind === "choice") {
    const option = (name) => h("option", { value: name, selected: name === field.value }, name);
    return h("select", { name: field.name }, field.choices.map(option));
  }
  const kind = field.kind === "number" ? { type: "number", min: 0, step: 1 } : { type: "text", spellcheck: "false" };
  return h("input", { ...kind, name: field.name, value: field.value ?? "", required: field.needed });
}

function value(field, element) {
  if (field.kind === "flag") return element.checked;
  return field.kind === "number" ? Number(element.value) : element.value;
}
