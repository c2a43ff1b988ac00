// The page that signs in.

import { post, withQuery } from "./api.js";
import { html, useEffect, useState } from "./html.js";
import { Mark } from "./icons.js";
import { ErrorNote } from "./parts.js";
import { plain } from "./text.js";

/** Reasons why a sign-in at the issuer did not succeed. */
export const FAULTS = {
  denied: "The issuer did not let you in: try again, or ask whoever manages its users.",
  state: "This sign-in was too old, or was begun in another window: try again.",
  code: "The issuer does not take the answer of this sign-in any more: try again.",
  token: "The issuer's tokens are not for this node: its log says why. Check audience, userClaim and rightsClaim of oidc.",
  issuer: "The issuer cannot be reached, or no client is configured for people: the log of this node says why.",
};

/** Way to the issuer, which comes back to the same page. */
function AtIssuer({ provider, stay, error }) {
  const path = withQuery("/api/v1/session/oidc", { page: location.hash, stay: stay ? "1" : "" });
  return html`<${ErrorNote} error=${error} /><a class="button main" href=${path}>Sign in with ${plain(provider)}</a>
    <p class="soft small">Or with a token that it gave you:</p>`;
}

/**
 * Page for a person who is not signed in.
 *
 * @param {object} properties
 * @param {string} properties.title of the node
 * @param {import("./session.js").Session} properties.session ways to sign in
 * @param {Error | null} properties.failed why the last sign-in did not succeed
 * @param {(session: import("./session.js").Session) => void} properties.signedIn gets the session
 */
export function SignIn({ title, session, failed, signedIn }) {
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const [token, setToken] = useState("");
  const [stay, setStay] = useState(false);
  const byToken = session.methods.includes("token");
  const [error, setError] = useState(failed);
  const [running, setRunning] = useState(false);
  useEffect(() => {
    document.title = `Sign in – ${title}`;
  }, [title]);
  async function submit(event) {
    event.preventDefault();
    setRunning(true);
    try {
      const found = await post("/api/v1/session", byToken ? { token, stay } : { user, password, stay });
      signedIn(found);
      if (!found.view) setError(new Error(`${found.user} has no right to view this node`));
    } catch (refused) {
      setError(refused);
      setPassword("");
      setToken("");
    }
    setRunning(false);
  }
  return html`<main class="sign-in">
    <div class="brand"><${Mark} /><h1>${title}</h1></div>
    ${!session.secure && html`<p class="note-warn">This connection is not encrypted: a password can be read on the way. Use the
      https address of this node.</p>`}
    ${session.methods.includes("oidc") && html`<${AtIssuer} provider=${session.provider} stay=${stay} error=${error} />`}
    <form onSubmit=${submit}>
      ${byToken
        ? html`<label>Token of the issuer<input class="input" type="password" autocomplete="off" required value=${token}
            onInput=${(event) => setToken(event.target.value)} /></label>`
        : html`<label>User<input class="input" name="user" autocomplete="username" autocapitalize="none" spellcheck="false" required value=${user}
            onInput=${(event) => setUser(event.target.value)} /></label>
          <label>Password<input class="input" name="password" type="password" autocomplete="current-password" required value=${password}
            onInput=${(event) => setPassword(event.target.value)} /></label>`}
      <label class="check"><input type="checkbox" checked=${stay} onChange=${(event) => setStay(event.target.checked)} /> Stay signed in on this
        device for 12 hours</label>
      ${!session.methods.includes("oidc") && html`<${ErrorNote} error=${error} />`}
      <button class="button ${session.methods.includes("oidc") ? "" : "main"}" disabled=${running}>${running ? "…" : "Sign in"}</button>
    </form>
    <p class="soft small">At the machine itself, <code>waypost open</code> signs in without a password.</p>
  </main>`;
}
