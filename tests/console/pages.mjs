// Every page of the console: its name, where it is, and words that it has when there is data.

import { told } from "./browser.mjs";

export const PAGES = [
  ["overview", "#/", "Topology"],
  ["nodes", "#/nodes", "Catalog"],
  ["node", `#/nodes/${told.nodes[1].name}`, "If it dies now"],
  ["volumes", "#/volumes", "ckpt"],
  ["volume", "#/volumes/data?prefix=train%2F", "shard-000.tar"],
  ["file", "#/file/data/train%2Fshard-003.tar", "What is true now"],
  ["sets", "#/sets", "step-1000/"],
  ["set", "#/sets/ckpt/", "Receipts"],
  ["lake", "#/lake", "Requests and cost"],
  ["reads", "#/reads", "Read weights"],
  ["planner", "#/planner?kind=io&guess=50", "What would help most"],
  ["planner-guess", "#/planner?kind=design", "Your prediction"],
  ["log", "#/log", "Changes through this node"],
  ["audit", "#/audit?result=ok", "Calls"],
  ["access", "#/access", "Access keys"],
];
