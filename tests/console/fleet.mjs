// Nodes come and go: one is lost, removed, added, removed while it lives; the node that keeps the catalog is lost, another takes over.

import { execFileSync, spawn } from "node:child_process";
import { existsSync, openSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { clearToasts, expect, login, LOOKS, NARROW, open, scenario, sound, told, visit } from "./browser.mjs";

const [first, second, third] = told.nodes;
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** Runs a line that the console shows, as a person would who has `stoker` in the path. */
const pasted = (line) => line.replace(/(^|\s)stoker /, `$1${quoted(told.stoker)} `);
const stoker = (...args) => execFileSync(told.stoker, args, { encoding: "utf8" });

async function asked(page, at, path) {
  const answer = await page.request.get(`${at.admin}/api/v1/${path}`, { headers: { Authorization: `Bearer ${at.view_token}` } });
  return answer.json();
}

/** Waits until something is true that the node is asked for. */
async function until(what, holds, patience_s = 120) {
  const end = Date.now() + patience_s * 1000;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`it did not happen: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
}

async function lost() {
  process.kill(told.pids[2], "SIGKILL");
  for (const { size, viewport, colorScheme } of LOOKS) {
    await scenario(`a node is lost, at ${size} pixels, ${colorScheme}`, () =>
      visit({ viewport, colorScheme }, async (page) => {
        await login(page, first, first.token);
        await page.locator(".alerts-list li", { hasText: third.name }).first().waitFor({ timeout: 60000 });
        await page.locator(".outage", { hasText: third.name }).waitFor({ timeout: 60000 });
        await page.getByText(new RegExp(`without ${third.name}, which does not answer`)).waitFor({ timeout: 60000 });
        await page.locator(".tile", { hasText: "Nodes up" }).getByText("2 of 3").waitFor({ timeout: 60000 });
        await sound(page, `lost-${size}-${colorScheme}`);
        if (size === "390") expect((await page.evaluate(() => document.documentElement.scrollHeight)) <= 3 * NARROW.height, "the overview is higher than three screens");
        await open(page, "#/nodes", "Load and clients", first);
        await page.locator("section", { hasText: "Load and clients" }).getByText("does not answer").waitFor();
        await sound(page, `lost-nodes-${size}-${colorScheme}`);
      }),
    );
  }

  await scenario("a lost node is removed from where it is told that it is lost", () =>
    visit({ refusals: [404] }, async (page) => {
      await login(page, first, first.token);
      const dialog = page.getByRole("dialog");
      await page.locator(".outage", { hasText: third.name }).getByRole("button", { name: `Remove ${third.name}` }).click({ timeout: 90000 });
      const go = dialog.getByRole("button", { name: "Remove" });
      expect(await go.isDisabled(), "it goes without the name");
      await dialog.getByLabel("to go on").fill(third.name);
      await sound(page, "dialog-remove-lost");
      await go.click();
      await dialog.waitFor({ state: "detached" });
      await page.getByText(`${third.name} is no node of the cluster any more`).first().waitFor({ timeout: 120000 });
      await clearToasts(page);
      await sound(page, "removed");
      await page.getByRole("link", { name: "Overview" }).click();
      await page.locator(".tile", { hasText: "Nodes up" }).getByText("2 of 2").waitFor({ timeout: 60000 });
      await page.locator(".outage", { hasText: third.name }).waitFor({ state: "detached", timeout: 60000 });
      await page.locator(".alerts-list li", { hasText: third.name }).waitFor({ state: "detached", timeout: 60000 });
    }),
  );
}

/** The process of the node that joined, and its end. */
let joined = null;

async function added() {
  await scenario("a node is added by the line that is shown", () =>
    visit({}, async (page) => {
      await login(page, first, first.token);
      await open(page, "#/nodes", "Load and clients", first);
      await page.getByRole("button", { name: "Add a node" }).click();
      await page.getByRole("dialog").getByRole("button", { name: "Make a join token" }).click();
      const line = await page.locator(".start code").innerText();
      const local = "127.0.0.1:0";
      const own = ["--name", "node-4", "--dir", told.joiner, "--size", "512MiB", "--memory", "512MiB", "--cores", "1", "--s3", local, "--admin", local, "--peers", local, "--grace", "15s"];
      const log = openSync(`${told.joiner}.log`, "a");
      const child = spawn("sh", ["-c", `exec env ${pasted(line)} ${own.map(quoted).join(" ")}`], { stdio: ["ignore", log, log] });
      joined = { child, ended: new Promise((resolve) => child.on("exit", resolve)) };
      await page.locator("tr", { hasText: "node-4" }).first().locator(".badge", { hasText: "up" }).waitFor({ timeout: 120000 });
    }),
  );
}

async function removed() {
  await scenario("a live node is removed by one order, which the nodes carry out", async () => {
    const file = join(told.shots, "three-copies.bin");
    writeFileSync(file, "x".repeat(300000));
    // With three copies on three nodes there is no place for that of the one that leaves.
    stoker("volume", "create", "triple", "--class", "three", "--drain", "never", "--dir", first.dir);
    stoker("put", file, "triple/file", "--dir", first.dir);
    await visit({}, async (page) => {
      await login(page, first, first.token);
      const dialog = page.getByRole("dialog");
      const order = async (force) => {
        await page.getByRole("button", { name: "Remove", exact: true }).first().click();
        if (force) await dialog.getByLabel("Although too few nodes").check();
        await dialog.getByLabel("to go on").fill("node-4");
        await dialog.getByRole("button", { name: "Remove" }).click();
      };
      await open(page, "#/nodes/node-4", "If it dies now", first);
      await order(false);
      await dialog.getByRole("alert").waitFor();
      expect(page.complaints.every((words) => words.includes("409")), page.complaints.join("; "));
      page.complaints.length = 0;
      await page.keyboard.press("Escape");
      await order(true);
      await dialog.waitFor({ state: "detached" });
      const card = page.locator(".removal");
      await card.getByText("1 file").first().waitFor();
      await card.getByText("commits to 3 nodes").waitFor();
      await clearToasts(page);
      await sound(page, "removing");
      // Called off, it takes copies again.
      await card.getByRole("button", { name: "Keep it" }).click();
      await dialog.getByRole("button", { name: "Keep it" }).click();
      await card.waitFor({ state: "detached" });
      await page.locator("h1 .badge", { hasText: "up" }).waitFor();
      await order(true);
      await card.getByText("1 file").first().waitFor();
      await open(page, "#/nodes", "Load and clients", first);
      await page.locator("tr", { hasText: "node-4" }).first().locator(".badge", { hasText: "removing" }).waitFor();
      await clearToasts(page);
      await sound(page, "removing-list");
    });
    // Nobody looks any more. With the file gone nothing keeps it.
    stoker("rm", "triple/file", "--dir", first.dir);
    await visit({}, async (page) => {
      await until("the node is gone", async () => (await asked(page, first, "nodes")).nodes.length === 2);
      expect((await joined.ended) !== undefined, "its process did not end");
      expect(readFileSync(`${told.joiner}.log`, "utf8").includes("removed"), "it does not say why it ended");
      await login(page, first, first.token);
      await open(page, "#/nodes", "Load and clients", first);
      // The page asks again every few seconds; what it was told a moment before may be there until then.
      await until("it is listed no more", async () => (await page.getByText("node-4").count()) === 0);
    });
  });
}

async function promoted() {
  await scenario("the node with the catalog is lost, and another one is promoted", () =>
    visit({ refusals: [503, 409] }, async (page) => {
      await until("the catalog follows", async () => (await asked(page, second, "catalog")).standbys.some((standby) => standby.in_sync));
      process.kill(told.pids[0], "SIGKILL");
      await login(page, second, second.token);
      const outage = page.locator(".outage", { hasText: "catalog" });
      await outage.waitFor({ timeout: 60000 });
      // What nobody can know is not said.
      await page.getByText("What would be lost now is not known").waitFor();
      expect((await page.getByText("No data yet").count()) === 0 && (await page.locator("h1", { hasText: "nothing is lost" }).count()) === 0, "it says what it cannot know");
      await sound(page, "catalog-lost");
      for (const [hash, words] of [["#/volumes/data", "Policy"], ["#/nodes", "Who follows it is not known"], [`#/nodes/${first.name}`, "does not answer"]]) await open(page, hash, words, second);
      await open(page, "#/", "Topology", second);
      await outage.getByRole("button", { name: "Promote this node" }).click();
      const dialog = page.getByRole("dialog");
      expect(await dialog.getByRole("button", { name: "Promote" }).isDisabled(), "it goes without the word");
      await dialog.getByLabel("to go on").fill("promote");
      await sound(page, "dialog-promote");
      await dialog.getByRole("button", { name: "Promote" }).click();
      await dialog.waitFor({ state: "detached", timeout: 60000 });
      await outage.waitFor({ state: "detached", timeout: 60000 });
      await open(page, "#/nodes", "Catalog", second);
      await page.locator(".facts", { hasText: "kept by" }).getByText(second.name, { exact: true }).waitFor({ timeout: 60000 });
      await clearToasts(page);
      await sound(page, "promoted");
    }),
  );

  await scenario("a backup of the catalog is made by the line that is shown", () =>
    visit({}, async (page) => {
      await login(page, second, second.token);
      await open(page, "#/nodes", "Catalog", second);
      const line = await page.locator(".copy code", { hasText: "catalog backup" }).innerText();
      execFileSync("sh", ["-c", pasted(line)], { cwd: told.shots });
      const backup = join(told.shots, "catalog.backup");
      expect(existsSync(backup) && statSync(backup).size > 1000, "there is no backup");
    }),
  );
}

/** What happens to nodes, in an order in which it can. */
export async function fleet() {
  try {
    await lost();
    await added();
    await removed();
    await promoted();
  } finally {
    joined?.child.kill("SIGKILL");
  }
}
