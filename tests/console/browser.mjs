// A browser that complains about what a person would not see: errors, text off the screen, text on other text.

import { basename, join } from "node:path";
import { chromium } from "playwright-core";

export const told = JSON.parse(process.env.STOKER_CONSOLE);
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
export const WIDE = { width: 1280, height: 900 };
export const NARROW = { width: 390, height: 844 };
/** Every size and theme that a page has to bear. */
export const LOOKS = [["1280", WIDE], ["390", NARROW]].flatMap(([size, viewport]) => ["light", "dark"].map((colorScheme) => ({ size, viewport, colorScheme })));

const browser = await chromium.launch({ executablePath: told.chromium, headless: true, args: FLAGS });
const failures = [];
let failed = 0;
let taken = 0;

export function expect(holds, words) {
  if (!holds) throw new Error(words);
}

export async function scenario(name, run) {
  const begun = Date.now();
  try {
    await run();
    console.log(`ok       ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failures.push(name);
    console.log(`FAILED   ${name}: ${error.message.split("\n").slice(0, 12).join("\n")}`);
  }
}

/** A browser of its own; whatever it complains about fails the scenario. The browser itself notes answers with one of `refusals`. */
export async function visit({ refusals = [], ...options }, run) {
  const context = await browser.newContext({ viewport: WIDE, ...options });
  if (told.sources) await context.route(/\/console\/[a-z]+\.(js|css)$/, (route) => route.fulfill({ path: join(told.sources, basename(new URL(route.request().url()).pathname)) }));
  const page = await context.newPage();
  const complaints = [];
  const isExpected = (text) => refusals.some((status) => text.includes(`the server responded with a status of ${status}`) || (status === 0 && text.includes("net::ERR_")));
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && !isExpected(message.text()) && complaints.push(message.text()));
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("request", (request) => {
    const { hostname, protocol } = new URL(request.url());
    if (protocol.startsWith("http") && hostname !== "127.0.0.1") complaints.push(`asks elsewhere: ${request.url()}`);
  });
  page.complaints = complaints;
  try {
    await run(page, context);
    expect(complaints.length === 0, `the browser complains: ${complaints.join("; ")}`);
  } catch (error) {
    await page.screenshot({ path: join(told.shots, `failed-${(failed += 1)}.png`), fullPage: true }).catch(() => {});
    throw error;
  } finally {
    await context.close();
  }
}

export async function login(page, ready, token) {
  await page.goto(ready.admin);
  await page.waitForURL("**/login*");
  await page.getByLabel("Token of this node").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("navigation", { name: "Pages" }).waitFor();
  await page.waitForFunction(() => document.getElementById("role").textContent !== "");
}

/** Everything is there: nothing loads any more, nothing is wider than the screen, no text lies on other text. */
export async function sound(page, name) {
  await page.waitForFunction(() => !document.querySelector(".loading"), null, { timeout: 30000 });
  const faults = await page.evaluate(look);
  await page.screenshot({ path: join(told.shots, `${name}.png`), fullPage: true });
  taken += 1;
  expect(faults.length === 0, `${name}: ${faults.join("; ")}`);
}

/** What is wrong with what is drawn; runs in the page. */
function look() {
  const found = [];
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + 1) found.push(`the page is ${document.documentElement.scrollWidth} pixels wide, the screen ${width}`);
  const texts = [];
  const walker = document.createTreeWalker(document.querySelector("dialog[open]") ?? document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const parent = text.parentElement;
    if (!text.data.trim() || !parent.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true }) || parent.closest("noscript, .skip, thead, #toasts, .top")) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    const wraps = parent.closest(".table-wrap, .cut, .nav");
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.height < 1) continue;
      if (!wraps && (box.right > width + 1 || box.left < -1)) found.push(`"${text.data.trim().slice(0, 40)}" is off the screen`);
      texts.push([box, text.data.trim().slice(0, 30), parent]);
    }
  }
  for (let one = 0; one < texts.length; one += 1) {
    for (let other = one + 1; other < texts.length; other += 1) {
      const [a, first, firstAt] = texts[one];
      const [b, second, secondAt] = texts[other];
      if (firstAt.closest(".cut") || secondAt.closest(".cut")) continue;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 3 && down > 5) found.push(`"${first}" lies on "${second}"`);
    }
  }
  if (/\b(NaN|undefined|null|Infinity|\[object)\b/.test(document.body.innerText)) found.push(`the page says ${document.body.innerText.match(/.{0,30}\b(NaN|undefined|null|Infinity|\[object).{0,10}/)[0]}`);
  return [...new Set(found)].slice(0, 5);
}

export async function open(page, hash, words, at) {
  await page.goto(`${at.admin}/${hash}`);
  await page.getByText(words, { exact: false }).first().waitFor();
}

/** The id of the checkpoint set that was published. */
export async function publishedSet(page, at) {
  const answer = await page.request.get(`${at.admin}/api/v1/volumes/ckpt/sets`, { headers: { Authorization: `Bearer ${at.view_token}` } });
  return (await answer.json()).sets.find((set) => set.state === "published").set;
}

/** Toasts go by themselves, and lie on what is looked at until then. */
export const clearToasts = (page) => page.evaluate(() => document.getElementById("toasts").replaceChildren());

/** Ends the run: its exit code says whether all went well. */
export async function finish() {
  await browser.close();
  console.log(`console: ${taken} pictures; ${failures.length === 0 ? "all scenarios passed" : `FAILED: ${failures.join(", ")}`}`);
  process.exit(failures.length === 0 ? 0 : 1);
}
