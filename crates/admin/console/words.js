// What happened, in words of people.

const KINDS = {
  node_started: "node started",
  node_stopping: "node stops",
  node_down: "node down",
  node_up: "node is back",
  node_silent: "node silent",
  part_moved: "part changed its state",
  node_answers: "node answers",
  drive_added: "drive added",
  drive_removed: "drive removed",
  drive_failed: "drive failed",
  drive_error: "drive error",
  lake_trouble: "lake in trouble",
  lake_fine: "lake is fine",
  ring_full: "drive full",
  mend_failed: "no sound copy",
  lake_corruption: "lake object damaged",
};

export const kindWords = (kind) => KINDS[kind] ?? kind.replaceAll("_", " ");

const CALLS = [
  [/^session$/, () => "log in"],
  [/^session\/end$/, () => "log out"],
  [/^nodes\/([^/]+)\/drives$/, (node) => `add a drive to ${node}`],
  [/^nodes\/([^/]+)\/drives\/rest$/, (node) => `let a drive of ${node} rest, or end that`],
  [/^nodes\/([^/]+)\/drives\/([^/]+)\/remove$/, (node, drive) => `remove the drive ${drive} of ${node}`],
  [/^nodes\/([^/]+)\/(quarantine|evacuate|rejoin|remove)$/, (node, verb) => (verb === "rejoin" ? `let ${node} rejoin` : `${verb} ${node}`)],
  [/^catalog\/promote$/, () => "let this node keep the catalog"],
  [/^catalog\/detach$/, () => "let a follower of the catalog go"],
  [/^slo\/repaired$/, () => "say that a part was repaired"],
  [/^slo\/retry$/, () => "send work orders again"],
  [/^plan-ledger$/, () => "keep a prediction"],
  [/^volumes$/, () => "make a volume"],
  [/^volumes\/([^/]+)\/policy$/, (volume) => `change the policy of ${volume}`],
  [/^volumes\/([^/]+)\/(drain|remove)$/, (volume, verb) => `${verb} ${volume}`],
  [/^volumes\/([^/]+)\/(stage|delete|rename|resolve)$/, (volume, verb) => `${{ stage: "stage a file", delete: "delete files", rename: "rename something", resolve: "end a conflict" }[verb]} of ${volume}`],
  [/^volumes\/([^/]+)\/sets\/(\d+)\/(publish|abort)$/, (volume, set, verb) => `${verb} the set ${set} of ${volume}`],
  [/^keys$/, () => "make an access key"],
  [/^keys\/([^/]+)\/(rotate|remove)$/, (key, verb) => `${verb} the access key ${key}`],
  [/^join-token/, () => "make or revoke a join token"],
];

/** Puts names where ids stand: those of nodes, and of drives with the node that they are in. */
export function namer(nodes, drives) {
  const names = new Map((nodes ?? []).filter((node) => node.name).map((node) => [node.node, node.name]));
  for (const drive of drives ?? []) names.set(drive.drive, `drive ${drive.path} of ${drive.name}`);
  return (text) => text.replace(/\b[0-9a-f]{32}\b/g, (id) => names.get(id) ?? id).replace(/(^|[\s(])(node|drive|port|switch|power|cell)\/(?=\S)/g, "$1$2 ").replace(/\bnode (?=node)/g, "");
}

function plain(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    // Anybody may ask for a path that is no text, and a long one is cut anywhere.
    return text;
  }
}

/** Of the lines of the audit log through this endpoint, the calls that somebody made; what they did to files has lines of its own. */
export function apiCalls(told) {
  return { ...told, entries: told.entries.filter((entry) => /^[A-Z]+ \//.test(entry.action)) };
}

/** What a changing call was. */
export function callWords({ action }) {
  const path = action.replace("POST /api/v1/", "");
  for (const [pattern, words] of CALLS) {
    const found = path.match(pattern);
    if (found) return words(...found.slice(1).map(plain));
  }
  return plain(path).replaceAll("/", " ");
}
