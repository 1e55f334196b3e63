// What a person does with the console, and what must hold on every page: no errors, nothing off the screen, nothing overlaid.

import { execFileSync } from "node:child_process";
import { mkdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { clearToasts, expect, finish, login, LOOKS, NARROW, open as openAt, publishedSet, scenario, sound, told, visit } from "./browser.mjs";
import { PAGES } from "./pages.mjs";
import { fleet } from "./fleet.mjs";

const [node] = told.nodes;
const open = (page, hash, words, at = node) => openAt(page, hash, words, at);

await scenario("nobody gets in without a token", () =>
  visit({}, async (page) => {
    await page.goto(node.admin);
    await page.waitForURL("**/login*");
    await page.screenshot({ path: join(told.shots, "login.png") });
    await page.getByLabel("Token of this node").fill("not-a-token-at-all");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("This is no token of this node").waitFor();
    // The browser itself notes an answer of 401; nothing else may be noted.
    expect(page.complaints.every((words) => words.includes("401")), page.complaints.join("; "));
    page.complaints.length = 0;
  }),
);

await scenario("a fresh node says what to do", () =>
  visit({}, async (page) => {
    await login(page, told.fresh, told.fresh.token);
    await page.getByText("No data yet. Copy this line.").waitFor();
    await page.getByText("Every part is well, as far as is known.").waitFor();
    await page.getByText(/leads, looked/).waitFor();
    await sound(page, "empty");
    const line = await page.locator(".start code").innerText();
    expect(line.includes(" put hello.txt data/hello.txt --dir "), line);
    execFileSync("sh", ["-c", line], { cwd: told.shots });
    await page.getByText("No data yet.").waitFor({ state: "detached", timeout: 20000 });
    await page.goto(`${told.fresh.admin}/#/sets`);
    await page.getByText("No checkpoint set yet.").waitFor();
    await sound(page, "empty-sets");
  }),
);

for (const { size, viewport, colorScheme } of LOOKS) {
  await scenario(`every page at ${size} pixels, ${colorScheme}`, () =>
    visit({ viewport, colorScheme }, async (page) => {
      await login(page, node, node.token);
      const set = await publishedSet(page, node);
      for (const [name, hash, words] of PAGES) {
        await open(page, name === "set" ? hash + set : hash, words);
        await sound(page, `${name}-${size}-${colorScheme}`);
        if (name !== "overview" || size !== "390") continue;
        const height = await page.evaluate(() => document.documentElement.scrollHeight);
        expect(height <= 3 * NARROW.height, `the overview is ${height} pixels high, more than three screens`);
        await page.locator("summary", { hasText: "Topology" }).click();
        await page.locator(".node").first().waitFor();
        await page.evaluate(() => document.querySelectorAll("details").forEach((fold) => (fold.open = true)));
        await sound(page, `overview-open-${size}-${colorScheme}`);
      }
    }),
  );
}

await scenario("what a person clicks leads on", () =>
  visit({}, async (page) => {
    await login(page, node, node.token);
    await page.locator(".node", { hasText: told.nodes[2].name }).click();
    await page.getByRole("heading", { name: told.nodes[2].name }).waitFor();
    await page.getByRole("button", { name: "Can it stop?" }).click();
    await page.locator(".verdict").waitFor();
    await page.getByRole("link", { name: "Volumes" }).first().click();
    await page.getByRole("link", { name: "data", exact: true }).click();
    await page.getByRole("link", { name: "train/" }).click();
    await page.getByRole("link", { name: "read me.txt" }).click();
    await page.getByText("What is true now").waitFor();
    await page.getByText("Receipt", { exact: true }).waitFor();
    await page.goBack();
    await page.getByRole("link", { name: "read me.txt" }).waitFor();
    await page.keyboard.press("Tab");
    expect(await page.evaluate(() => document.activeElement !== document.body), "the keyboard gets nowhere");
  }),
);

await scenario("plots have a past when the page opens", () =>
  visit({}, async (page) => {
    await login(page, node, node.view_token);
    await page.getByText(/sum of 3 nodes/).waitFor();
    for (const title of ["Throughput", "Latency of S3 requests", "Requests", "Space", "Drain lag", "Drain age"]) {
      const plot = page.getByRole("figure", { name: title, exact: true });
      await plot.locator("svg").waitFor();
      const drawn = () => plot.evaluate((figure) => [...figure.querySelectorAll("path.line")].some((line) => line.getAttribute("d").length > 0) || figure.querySelector("circle") !== null);
      const patience = Date.now() + 30000;
      while (!(await drawn()) && Date.now() < patience) await page.waitForTimeout(500);
      expect(await drawn(), `${title} is empty`);
    }
    const plot = page.getByRole("figure", { name: "Throughput" });
    await plot.locator(".plot-area").hover({ position: { x: 400, y: 80 } });
    await plot.locator(".cross").waitFor({ state: "attached" });
    expect(/\d\d:\d\d:\d\d/.test(await plot.locator(".when").innerText()), "no time under the pointer");
    await page.getByRole("button", { name: "30 days" }).click();
    await page.locator("svg[aria-label='Throughput, the last 30 d']").waitFor();
    await sound(page, "overview-30-days");
    await page.getByRole("button", { name: "15 min" }).click();
    await open(page, `#/nodes/${told.nodes[1].name}`, "If it dies now");
    await page.getByRole("figure", { name: "Space" }).locator("svg").waitFor();
  }),
);

await scenario("whole-cluster figures, clients and how to add a node", () =>
  visit({}, async (page) => {
    await login(page, node, node.token);
    for (const name of ["Nodes up", "Space that must stay", "Waiting for the lake", "Read", "Written", "Client connections"]) await page.locator(".tile", { hasText: name }).first().waitFor();
    await page.locator(".bars", { hasText: "must stay" }).first().waitFor();
    await open(page, "#/nodes", "Load and clients");
    for (const other of told.nodes) await page.locator("section", { hasText: "Load and clients" }).getByRole("link", { name: other.name }).waitFor();
    await page.getByRole("button", { name: "Add a node" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByRole("button", { name: "Make a join token" }).click();
    const line = await page.locator(".start code").innerText();
    expect(/^STOKER_JOIN_TOKEN=\S+ stoker join \S+:\d+/.test(line), line);
    await sound(page, "nodes-join");
    expect((await page.getByRole("button", { name: "Promote this node" }).count()) === 0, "the node that keeps the catalog can be promoted");
  }),
);

await scenario("the theme is switched and kept", () =>
  visit({ colorScheme: "light" }, async (page) => {
    await login(page, node, node.view_token);
    const colour = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const before = await colour();
    await page.getByRole("button", { name: "Switch between light and dark" }).click();
    const after = await colour();
    expect(before !== after, "nothing changed");
    await page.reload();
    await page.getByText("Topology").waitFor();
    expect((await colour()) === after, "it was forgotten");
  }),
);

await scenario("whoever looks cannot change anything", () =>
  visit({}, async (page) => {
    await login(page, node, node.view_token);
    await page.getByText("read-only").waitFor();
    await open(page, `#/nodes/${told.nodes[1].name}`, "If it dies now");
    expect(await page.getByRole("button", { name: "Quarantine" }).isDisabled(), "a button works");
    await open(page, "#/access", "Access keys are shown to operators.");
    await sound(page, "view-access");
  }),
);

await scenario("a node is quarantined, evacuated by its name, and rejoins", () =>
  visit({}, async (page) => {
    await login(page, node, node.token);
    const name = told.nodes[2].name;
    await open(page, `#/nodes/${name}`, "If it dies now");
    await page.getByRole("button", { name: "Quarantine" }).click();
    const dialog = page.getByRole("dialog");
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    await page.getByRole("button", { name: "Quarantine" }).click();
    await sound(page, "dialog-quarantine");
    await dialog.getByRole("button", { name: "Quarantine" }).click();
    await page.locator("h1 .badge", { hasText: "quarantined" }).waitFor();
    await page.getByRole("button", { name: "Evacuate" }).click();
    const go = dialog.getByRole("button", { name: "Evacuate" });
    expect(await go.isDisabled(), "it goes without the name");
    await dialog.getByLabel("to go on").fill("another");
    expect(await go.isDisabled(), "it goes with another name");
    await dialog.getByLabel("to go on").fill(name);
    await sound(page, "dialog-evacuate");
    await go.click();
    await page.locator("h1 .badge", { hasText: "evacuating" }).waitFor();
    await sound(page, "evacuating");
    await page.getByRole("button", { name: "Rejoin" }).click();
    await dialog.getByRole("button", { name: "Rejoin" }).click();
    await page.locator("h1 .badge", { hasText: "up" }).waitFor();
    await open(page, "#/log", "Changes through this node");
    await page.getByText(`POST /api/v1/nodes/${name}/evacuate`).first().waitFor();
    await clearToasts(page);
    await sound(page, "log-filled");
  }),
);

/** A node with three drives, one of which is taken away below. */
const { sick } = told;
const WELL = "Every part is well, as far as is known.";
const [, taken, other] = sick.drives;

await scenario("a drive is cordoned, and uncordoned", () =>
  visit({}, async (page) => {
    await login(page, sick, sick.token);
    await page.getByText(WELL).waitFor({ timeout: 60000 });
    await sound(page, "objectives-well");
    await page.locator(".node", { hasText: sick.name }).click();
    const row = page.locator("tr", { hasText: other });
    const dialog = page.getByRole("dialog");
    await row.getByRole("button", { name: "Cordon", exact: true }).click();
    await dialog.getByText("Nothing new is put there").waitFor();
    await page.keyboard.press("Escape");
    await dialog.waitFor({ state: "detached" });
    expect(await row.locator(".badge", { hasText: "live" }).isVisible(), "it is cordoned although nobody said yes");
    await row.getByRole("button", { name: "Cordon", exact: true }).click();
    await sound(page, "dialog-cordon");
    await dialog.getByRole("button", { name: "Cordon", exact: true }).click();
    await row.locator(".badge", { hasText: "cordoned" }).waitFor();
    await clearToasts(page);
    await sound(page, "node-cordoned");
    await page.getByRole("link", { name: "Overview" }).click();
    await page.locator(".drive.warn", { hasText: "cordoned" }).waitFor();
    await page.locator(".tile", { hasText: "Drives live" }).getByText("1 cordoned").waitFor();
    await page.locator(".node", { hasText: sick.name }).click();
    await row.getByRole("button", { name: "Uncordon" }).click();
    await dialog.getByRole("button", { name: "Uncordon" }).click();
    await row.locator(".badge", { hasText: "live" }).waitFor();
    await open(page, "#/log", "Changes through this node", sick);
    await page.getByText(`POST /api/v1/nodes/${sick.name}/drives/cordon`).first().waitFor();
  }),
);

await scenario("a drive that is gone is told, and who repairs is told once more", () =>
  visit({}, async (page) => {
    await login(page, sick, sick.view_token);
    renameSync(taken, `${taken}-pulled`);
    const row = page.locator(".objectives tr", { hasText: taken }).first();
    await row.locator(".badge", { hasText: "down" }).waitFor({ timeout: 60000 });
    await page.locator(".objectives .badge", { hasText: "refused" }).waitFor({ timeout: 60000 });
    for (const name of ["It was repaired", "Send again"]) expect(await page.getByRole("button", { name }).isDisabled(), `whoever looks may say: ${name}`);
  }),
);

for (const { size, viewport, colorScheme } of LOOKS) {
  await scenario(`trouble at ${size} pixels, ${colorScheme}`, () =>
    visit({ viewport, colorScheme }, async (page) => {
      await login(page, sick, sick.token);
      if (size === "390") await page.locator("summary", { hasText: "Objectives" }).click();
      await page.getByText("Parts in trouble").waitFor();
      await page.locator(".alerts-list li", { hasText: "act now" }).first().waitFor();
      await sound(page, `trouble-${size}-${colorScheme}`);
      await page.locator(".objectives tr", { hasText: taken }).getByRole("link").click();
      await page.getByRole("heading", { name: sick.name }).waitFor();
      await page.locator("tr", { hasText: taken }).locator(".badge", { hasText: "failed" }).waitFor();
      await sound(page, `trouble-node-${size}-${colorScheme}`);
    }),
  );
}

await scenario("a work order is sent again", () =>
  visit({}, async (page) => {
    await login(page, sick, sick.token);
    await page.getByText("Work orders that nobody took").waitFor();
    rmSync(sick.refuses);
    await page.getByRole("button", { name: "Send again" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByRole("button", { name: "Send again" }).click();
    await page.getByText("They are sent again within seconds.").waitFor();
    await page.getByText("Work orders that nobody took").waitFor({ state: "detached", timeout: 60000 });
  }),
);

await scenario("who says that it was repaired is believed once the gate passed it", () =>
  visit({}, async (page) => {
    await login(page, sick, sick.token);
    const row = page.locator(".objectives tr", { hasText: taken }).first();
    const dialog = page.getByRole("dialog");
    await row.getByRole("button", { name: "It was repaired" }).click();
    await dialog.getByText("The gate measures it.").waitFor();
    await sound(page, "dialog-repaired");
    await dialog.getByRole("button", { name: "It was repaired" }).click();
    await dialog.waitFor({ state: "detached" });
    // Nobody has done anything, and the gate finds that out.
    await open(page, "#/log", "Changes through this node", sick);
    await page.getByText("POST /api/v1/slo/repaired").first().waitFor();
    await page.getByText("somebody says that it was repaired").first().waitFor({ timeout: 60000 });
    await page.getByText("the gate did not let it pass").first().waitFor({ timeout: 60000 });
    await page.getByText("repair -> down").first().waitFor({ timeout: 60000 });
    // With another drive in its place it comes back by itself, once the gate has measured that.
    mkdirSync(taken);
    execFileSync(told.stoker, ["drive", "replace", sick.name, `${taken}/stoker-ring`, taken, "--size", "256MiB", "--force", "--dir", sick.dir]);
    await page.getByRole("link", { name: "Overview" }).click();
    await page.getByText(WELL).waitFor({ timeout: 180000 });
  }),
);

await scenario("a refusal is told where it was asked", () =>
  visit({}, async (page) => {
    await login(page, node, node.token);
    await open(page, "#/volumes/data", "Policy");
    await page.getByRole("button", { name: "Remove" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("to go on").fill("data");
    await dialog.getByRole("button", { name: "Remove" }).click();
    await dialog.getByRole("alert").waitFor();
    expect((await dialog.getByRole("alert").innerText()).length > 10, "no reason");
    await page.screenshot({ path: join(told.shots, "refused.png") });
    expect(page.complaints.every((words) => words.includes("409")), page.complaints.join("; "));
    page.complaints.length = 0;
    await dialog.getByRole("button", { name: "Cancel" }).click();
    await page.goto(`${node.admin}/#/volumes/nowhere`);
    await page.locator("main").getByText("there is no volume").waitFor();
    page.complaints.length = 0;
  }),
);

await scenario("what happened is told, whatever somebody asked for", () =>
  visit({ viewport: NARROW }, async (page) => {
    // A path that is no text, by somebody who may only look: it is refused, and written down.
    const headers = { Authorization: `Bearer ${node.view_token}` };
    const refused = await page.request.post(`${node.admin}/api/v1/volumes/%ff/drain`, { headers });
    expect(refused.status() === 403, `it was answered with ${refused.status()}`);
    await login(page, node, node.token);
    await page.locator("summary", { hasText: "Events" }).click();
    await page.locator(".events li", { hasText: "drain %ff" }).waitFor();
    await open(page, "#/log", "Changes through this node");
    await page.getByText("POST /api/v1/volumes/%ff/drain").first().waitFor();
    await page.locator("tr", { hasText: "node started" }).getByText("the node runs").waitFor();
    const shown = await page.locator('#nav a[aria-current="page"]').evaluate((link) => {
      const [own, nav] = [link, link.parentElement].map((element) => element.getBoundingClientRect());
      return own.left >= nav.left && own.right <= nav.right;
    });
    expect(shown, "the page that is open cannot be seen among the others");
    await sound(page, "log-told");
  }),
);

await scenario("volumes and keys are made and removed", () =>
  visit({}, async (page) => {
    await login(page, node, node.token);
    await open(page, "#/volumes", "ckpt");
    await page.getByRole("button", { name: "New volume" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByLabel("Name").fill("made-here");
    await dialog.getByRole("button", { name: "Make" }).click();
    await page.getByRole("heading", { name: "made-here" }).waitFor();
    await page.getByText("No file yet.").waitFor();
    await page.getByRole("button", { name: "Change policy" }).click();
    await dialog.getByLabel("Quota in GiB; 0 for none").fill("3");
    await dialog.getByRole("button", { name: "Change" }).click();
    await page.getByText("3 GiB").waitFor();
    await page.getByRole("button", { name: "Remove" }).click();
    await dialog.getByLabel("to go on").fill("made-here");
    await dialog.getByRole("button", { name: "Remove" }).click();
    await page.waitForURL("**/#/volumes");
    await open(page, "#/access", "Access keys");
    await page.getByRole("button", { name: "New access key" }).click();
    await dialog.getByLabel("May not change anything").check();
    await dialog.getByRole("button", { name: "Make" }).click();
    await page.getByText("The secret is told once").waitFor();
    await page.getByText("AWS_SECRET_ACCESS_KEY=").waitFor();
  }),
);

await scenario("logged out is logged out", () =>
  visit({}, async (page, context) => {
    await login(page, node, node.token);
    const cookies = await context.cookies(node.admin);
    expect(cookies.length === 1 && cookies[0].httpOnly && cookies[0].sameSite === "Strict", JSON.stringify(cookies));
    await page.getByRole("button", { name: "Log out" }).click();
    await page.waitForURL("**/login");
    await context.addCookies(cookies);
    await page.goto(node.admin);
    await page.waitForURL("**/login*");
  }),
);

await scenario("a session that is over leads to the login form and back", () =>
  visit({}, async (page, context) => {
    await login(page, node, node.token);
    await open(page, "#/reads", "Read weights");
    await context.clearCookies();
    await page.getByText("Your session is over.").waitFor({ timeout: 20000 });
    await page.getByLabel("Token of this node").fill(node.token);
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("Read weights").waitFor();
    expect(page.complaints.every((words) => words.includes("401")), page.complaints.join("; "));
    page.complaints.length = 0;
  }),
);

// The last ones: what they do cannot be undone.
await fleet();
await finish();
