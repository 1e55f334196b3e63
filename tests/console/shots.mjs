// Pictures of every page in every state, at both sizes and in both themes, for people to look at. What a page must never do fails it here, too.

import { join } from "node:path";
import { finish, login, LOOKS, NARROW, expect, publishedSet, scenario, sound, told, visit } from "./browser.mjs";
import { PAGES } from "./pages.mjs";

/** The first page of a phone at its size as well: what is seen before somebody scrolls. */
async function fold(page, name) {
  await page.screenshot({ path: join(told.shots, `${name}-fold.png`) });
}

async function everyPage(state, at, set, refusals, more = []) {
  for (const { size, viewport, colorScheme } of LOOKS) {
    await scenario(`${state} at ${size} pixels, ${colorScheme}`, () =>
      visit({ viewport, colorScheme, refusals }, async (page) => {
        await page.goto(at.admin);
        await page.waitForURL("**/login*");
        await sound(page, `${state}-login-${size}-${colorScheme}`);
        await login(page, at, at.token);
        for (const [name, hash] of [...PAGES, ...more]) {
          if (name === "set" && set == null) continue;
          await page.goto(`${at.admin}/${name === "set" ? hash + set : hash}`);
          // Every poll was answered once, plots included.
          await page.waitForLoadState("networkidle");
          await page.locator("main h1, main h2, main .failure").first().waitFor();
          await sound(page, `${state}-${name}-${size}-${colorScheme}`);
          if (name !== "overview" || size !== "390") continue;
          await fold(page, `${state}-${name}-${size}-${colorScheme}`);
          const height = await page.evaluate(() => document.documentElement.scrollHeight);
          expect(height <= 3 * NARROW.height, `the overview is ${height} pixels high, more than three screens`);
          await page.evaluate(() => document.querySelectorAll("details").forEach((part) => (part.open = true)));
          await page.waitForLoadState("networkidle");
          await sound(page, `${state}-overview-open-${size}-${colorScheme}`);
        }
      }),
    );
  }
}

/** Waits until the nodes agree that something is lost. */
async function outage(at, holds) {
  await visit({}, async (page) => {
    const end = Date.now() + 120000;
    for (;;) {
      const answer = await page.request.get(`${at.admin}/api/v1/outages`, { headers: { Authorization: `Bearer ${at.view_token}` } });
      if (holds((await answer.json()).lost)) return;
      if (Date.now() > end) throw new Error("nobody says that it is lost");
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  });
}

const { state, nodes, pids } = told;
if (state === "empty") {
  await everyPage("empty", nodes[0], null, [404]);
} else {
  let set;
  await visit({}, async (page) => (set = await publishedSet(page, nodes[0])));
  if (state === "data") {
    await everyPage("data", nodes[0], set, []);
    process.kill(pids[2], "SIGKILL");
    await outage(nodes[0], (lost) => lost.some((one) => one.what === "node" && one.action === "remove"));
    await everyPage("node-lost", nodes[0], set, [], [["lost-node", `#/nodes/${nodes[2].name}`]]);
  } else {
    // Of three nodes that keep it, one can be lost: two cannot.
    process.kill(pids[0], "SIGKILL");
    process.kill(pids[1], "SIGKILL");
    await outage(nodes[2], (lost) => lost.some((one) => one.what === "catalog"));
    await everyPage("catalog-lost", nodes[2], set, [503], [["lost-node", `#/nodes/${nodes[0].name}`]]);
  }
}
await finish();
