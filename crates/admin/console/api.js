// The API of this node. A session that is over leads to the login form.

let csrf = null;

export class Refused extends Error {
  constructor(status, said) {
    super(said.error || `The node answered ${status}.`);
    this.status = status;
    this.hint = said.hint || "";
  }
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(`/api/v1/${path}`, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { error: "The node does not answer.", hint: "It may be restarting; this page tries again." });
  }
  if (answer.status === 401) {
    location.replace(`/login?expired${location.hash}`);
    return new Promise(() => {});
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, said);
  return said;
}

export const get = (path, signal) => ask(path, { signal });

export const post = (path, body = {}) =>
  ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Stoker-Csrf": csrf ?? "" },
    body: JSON.stringify(body),
  });

export async function session() {
  const said = await get("session");
  csrf = said.csrf;
  return said;
}

export const enc = encodeURIComponent;

/** A key for a URL: exact also where it is not UTF-8. */
export const encKey = (entry, field = "key") =>
  entry[`${field}_hex`] ? entry[`${field}_hex`].replace(/../g, "%$&") : enc(entry[field]);
