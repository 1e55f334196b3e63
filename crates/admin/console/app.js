// The shell: who is here, which page is shown, what is asked again and again.

import * as api from "./api.js";
import { h } from "./dom.js";
import { failure, loading, pageHead } from "./parts.js";
import { toast } from "./dialog.js";
import * as access from "./access.js";
import * as audit from "./audit.js";
import * as file from "./file.js";
import * as lake from "./lake.js";
import * as log from "./log.js";
import * as nodes from "./nodes.js";
import * as outages from "./outages.js";
import * as overview from "./overview.js";
import * as planner from "./planner.js";
import * as reads from "./reads.js";
import * as sets from "./sets.js";
import * as volumes from "./volumes.js";

const PAGES = [
  ["", "Overview", overview.page],
  ["nodes", "Nodes", nodes.list],
  ["nodes/:node", null, nodes.page],
  ["volumes", "Volumes", volumes.list],
  ["volumes/:volume", null, volumes.page],
  ["file/:volume/:key", null, file.page],
  ["sets", "Checkpoint sets", sets.list],
  ["sets/:volume/:set", null, sets.page],
  ["lake", "Lake", lake.page],
  ["reads", "Reads", reads.page],
  ["planner", "Planner", planner.page],
  ["log", "Log", log.page],
  ["audit", "Audit", audit.page],
  ["access", "Access", access.page],
];

const main = document.getElementById("main");
const trouble = document.getElementById("trouble");
let who = null;
let leave = () => {};

function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const given = path.split("/");
  for (const [pattern, , show] of PAGES) {
    const wanted = pattern.split("/");
    if (wanted.length !== given.length) continue;
    const args = {};
    const fits = wanted.every((part, at) => {
      if (!part.startsWith(":")) return part === given[at];
      args[part.slice(1)] = given[at];
      return given[at] !== "";
    });
    // Keys stay percent-encoded: they may be bytes that are no text.
    if (fits) return { show, args, query: new URLSearchParams(query), section: wanted[0] };
  }
  return null;
}

async function go() {
  leave();
  const stopped = new AbortController();
  const timers = [];
  leave = () => {
    stopped.abort();
    timers.forEach(clearTimeout);
  };
  const found = route();
  document.querySelectorAll("#nav a").forEach((link) => {
    const here = found && link.dataset.section === (found.section === "file" ? "volumes" : found.section);
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
    // On a narrow screen not all of them fit.
    const nav = link.parentElement;
    if (here) nav.scrollLeft = link.offsetLeft - nav.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
  });
  if (!found) {
    main.replaceChildren(failure({ message: "There is no such page.", hint: "Choose one above." }));
    return;
  }
  main.replaceChildren(loading());
  // What went wrong with each question that is asked again and again.
  const troubles = new Map();
  const context = {
    ...found,
    session: who,
    get: (path) => api.get(path, stopped.signal),
    /** The same where the rest of the page is worth seeing without it: `{ error }` if it is refused. */
    attempt: (path) => api.get(path, stopped.signal).catch((error) => (error.name === "AbortError" ? Promise.reject(error) : { error })),
    show: (...parts) => !stopped.signal.aborted && main.replaceChildren(...parts),
    again: go,
    /** Asks now and then again; what fails is told on top, and tried again. */
    poll: (every, ask) => {
      const turn = async () => {
        try {
          await ask();
          troubles.delete(ask);
        } catch (error) {
          if (stopped.signal.aborted || error.name === "AbortError") return;
          if (error.status === 404) main.replaceChildren(headOf(found), failure(error));
          // The page stays: the next answer is drawn where the first one should have been.
          else main.querySelectorAll(".loading[aria-busy]").forEach((part) => part.replaceWith(...(part.parentElement === main ? [headOf(found)] : []), failure(error)));
          troubles.set(ask, error);
        }
        if (!stopped.signal.aborted) tell([...troubles.values()][0]);
        if (!stopped.signal.aborted) timers.push(setTimeout(turn, document.hidden ? every * 5 : every));
      };
      return turn();
    },
  };
  try {
    await found.show(context);
  } catch (error) {
    if (error.name !== "AbortError") main.replaceChildren(failure(error));
  }
}

/** Where one is, for a page that could not be drawn. */
function headOf({ section, args }) {
  const [, name] = PAGES.find(([path]) => path === (section === "file" ? "volumes" : section)) ?? [];
  const [last] = Object.values(args).slice(-1);
  return last == null ? pageHead([], name) : pageHead([[name, `#/${section === "file" ? "volumes" : section}`]], text(last));
}

/** The text of percent-encoded bytes; those that are no text stay as they are. */
function text(encoded) {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return encoded;
  }
}

function tell(error) {
  // That something does not answer is told once, with what helps.
  trouble.hidden = !error || error.status === 404 || (error.status === 503 && outages.isShown());
  trouble.textContent = error ? [error.message, error.hint].filter(Boolean).join(" – ") : "";
}

function switchTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  localStorage.setItem("stoker-theme", next);
}

/** What does not answer is asked of this node alone, which always knows. */
async function watchOutages() {
  const told = await api.get("outages").catch(() => null);
  if (told) outages.show(told, who, go);
  setTimeout(watchOutages, document.hidden ? 20000 : 4000);
}

async function start() {
  document.getElementById("nav").append(
    ...PAGES.filter(([, name]) => name).map(([path, name]) => h("a", { href: `#/${path}`, "data-section": path }, name)),
  );
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("logout").addEventListener("click", async () => {
    try {
      await api.post("session/end");
      location.replace("/login");
    } catch (error) {
      toast(error.message, "bad");
    }
  });
  try {
    who = await api.session();
  } catch (error) {
    main.replaceChildren(failure(error));
    return;
  }
  const role = document.getElementById("role");
  role.textContent = who.role === "operator" ? "operator" : "read-only";
  role.title = who.role === "operator" ? "You may change things." : "You may look, and change nothing.";
  window.addEventListener("hashchange", () => {
    go();
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  });
  go();
  watchOutages();
  const about = await api.get("about").catch(() => null);
  if (about) {
    document.getElementById("node").textContent = about.name || about.node.slice(0, 8);
    document.getElementById("node").title = `node ${about.node}, version ${about.version}`;
    document.title = `${about.name || "node"} · Stoker`;
  }
}

start();
