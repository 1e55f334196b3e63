const form = document.getElementById("form");
const error = document.getElementById("error");
const token = document.getElementById("token");

function tell(words) {
  error.textContent = words;
  error.hidden = false;
}

if (new URLSearchParams(location.search).has("expired")) tell("Your session is over. Log in again.");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  error.hidden = true;
  const button = form.querySelector("button");
  button.disabled = true;
  try {
    const answer = await fetch("/api/v1/session", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ token: token.value }),
    });
    if (answer.ok) {
      location.replace("/" + location.hash);
      return;
    }
    const said = await answer.json().catch(() => ({}));
    tell(answer.status === 401 ? "This is no token of this node. Each node has its own." : said.error || "The node did not answer.");
    token.select();
  } catch {
    tell("The node does not answer.");
  }
  button.disabled = false;
});

// Providers by which people log in without the node's token.
const providers = document.getElementById("providers");
fetch("/login/providers")
  .then((answer) => (answer.ok ? answer.json() : { providers: [] }))
  .then((said) => {
    for (const name of said.providers) {
      const link = document.createElement("a");
      link.className = "button";
      link.href = "/login/begin?provider=" + encodeURIComponent(name);
      link.textContent = "Log in by " + name;
      providers.append(link, " ");
    }
    providers.hidden = said.providers.length === 0;
  })
  .catch(() => {});
