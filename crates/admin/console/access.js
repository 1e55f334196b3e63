// Access keys, and where programs find the API.

import { enc, post } from "./api.js";
import { h, place } from "./dom.js";
import { date } from "./units.js";
import { act, card, copyLine, dirOf, empty, loading, pageHead, table } from "./parts.js";
import { confirm, toast } from "./dialog.js";

export async function page(context) {
  const dir = dirOf(await context.get("about").catch(() => ({})));
  const body = place("div");
  const made = h("div");
  const may = context.session.role === "operator";
  body.append(may ? loading() : empty("Access keys are shown to operators."));
  context.show(
    pageHead([], "Access", null, act(context.session, "New access key", () => create(context, made), "primary")),
    made,
    card("Access keys", { note: "for S3, on every node" }, body),
    card(
      "Admin API",
      {},
      h("p", {}, "Everything here can be done by programs. ", h("a", { href: "/api/v1/openapi.json" }, "OpenAPI document"), "; errors are objects with ", h("code", {}, "error"), ", ", h("code", {}, "kind"), " and ", h("code", {}, "hint"), "."),
      copyLine(`curl -H "Authorization: Bearer $(cat ${dir}/token)" ${location.origin}/api/v1/status`),
    ),
  );
  if (!may) return;
  await context.poll(10000, async () => {
    const { keys } = await context.get("keys");
    body.update(keys, () =>
      table(
        [
          ["access key", (key) => h("code", {}, key.access_key)],
          ["may", (key) => `${key.read_only ? "read" : "read, write"}: ${scope(key.prefixes)}`],
          ["owner of its files", (key) => `${key.uid}:${key.gid}`],
          ["made", (key) => date(key.created_ms)],
          ["", (key) => h("div", { class: "actions" }, act(context.session, "Rotate", () => rotate(context, key, made)), act(context.session, "Remove", () => remove(context, key), "danger"))],
        ],
        keys,
        "No access key.",
      ),
    );
  });
}

/** What a key is for; the entry with an @ is the user whose key it is. */
function scope(entries) {
  const owner = entries.find((entry) => entry.startsWith("@"))?.slice(1);
  const places = entries.filter((entry) => !entry.startsWith("@")).join(", ");
  if (owner == null) return places || "everything";
  return `what ${owner} may do${places && ` in ${places}`}`;
}

function tellSecret(place, key) {
  place.replaceChildren(
    card("The secret is told once", { class: "start" }, h("p", {}, "Keep it now; it is not shown again."), copyLine(`export AWS_ACCESS_KEY_ID=${key.access_key} AWS_SECRET_ACCESS_KEY=${key.secret_key}`)),
  );
}

async function create(context, place) {
  const key = await confirm({
    title: "New access key",
    words: "For S3 clients.",
    fields: [
      { name: "read_only", kind: "flag", label: "May not change anything" },
      { name: "prefixes", label: "Only these, separated by blanks", help: "volume or volume/prefix; empty for everything" },
    ],
    action: "Make",
    act: ({ read_only, prefixes }) => post("keys", { read_only, prefixes: prefixes.split(/\s+/).filter(Boolean) }),
  });
  if (key) tellSecret(place, key);
}

async function rotate(context, key, place) {
  const made = await confirm({
    title: `Rotate ${key.access_key}?`,
    words: "A new key of the same rights takes its place.",
    fields: [{ name: "hours", kind: "number", label: "Hours that the old one works on", value: 24 }],
    action: "Rotate",
    act: ({ hours }) => post(`keys/${enc(key.access_key)}/rotate`, { grace_s: hours * 3600 }),
  });
  if (made) tellSecret(place, made);
}

async function remove(context, key) {
  const done = await confirm({
    title: `Remove ${key.access_key}?`,
    words: "Whoever uses it is refused at once, on every node.",
    typed: key.access_key,
    action: "Remove",
    danger: true,
    act: () => post(`keys/${enc(key.access_key)}/remove`),
  });
  if (done) {
    toast("Removed.");
    context.again();
  }
}
