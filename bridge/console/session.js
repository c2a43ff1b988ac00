// Who is signed in, and the page that signs in.

import { del, get, onSignedOut, post, withQuery } from "./api.js";
import { Mark } from "./icons.js";
import { html, useEffect, useState } from "./html.js";
import { ErrorNote } from "./parts.js";
import { Shared, useShared } from "./state.js";
import { plain } from "./text.js";

/**
 * @typedef {object} Session
 * @property {string | null} user null: nobody is signed in
 * @property {boolean} view @property {boolean} manage rights on the whole node
 * @property {boolean} open the node has no authentication
 * @property {boolean} secure the connection is encrypted, or does not leave this machine
 * @property {string[]} methods ways to sign in: `password`, `token`, `oidc`
 * @property {string | null} provider host of the issuer where people sign in
 */

const current = new Shared(/** @type {Session | null} */ (null));
const failure = new Shared(/** @type {Error | null} */ (null));

/** Reasons why a sign-in at the issuer did not succeed. */
const FAULTS = {
  denied: "The issuer did not let you in: try again, or ask whoever manages its users.",
  state: "This sign-in was too old, or was begun in another window: try again.",
  code: "The issuer does not take the answer of this sign-in any more: try again.",
  token: "The issuer's tokens are not for this node: its log says why. Check audience, userClaim and rightsClaim of oidc.",
  issuer: "The issuer cannot be reached, or no client is configured for people: the log of this node says why.",
};

export const useSession = () => useShared(current);

async function load() {
  try {
    current.set(await get("/api/v1/session"));
    failure.set(null);
  } catch (error) {
    failure.set(error);
  }
}

/** Use the one-time link that `waypost open` made, if the page was opened by it; then ask who is signed in. */
export async function begin() {
  onSignedOut(() => current.value?.user && load());
  const fault = new URLSearchParams(location.hash.slice(1)).get("sign-in");
  if (fault) {
    history.replaceState(null, "", "/");
    await load();
    failure.set(new Error(FAULTS[fault] ?? "The sign-in did not succeed: try again."));
    return;
  }
  const link = new URLSearchParams(location.hash.slice(1)).get("link");
  if (link) {
    history.replaceState(null, "", "/");
    try {
      current.set(await post("/api/v1/session", { link }));
      return;
    } catch (error) {
      failure.set(error);
    }
  }
  await load();
}

export async function signOut() {
  const left = await del("/api/v1/session").catch(() => null);
  if (left?.sign_out_at) location.assign(left.sign_out_at); // the session at the issuer ends too
  else await load();
}

/** Show `children` to a user who may view the node, and the sign-in page to others. */
export function SignedIn({ title, children }) {
  const session = useShared(current);
  const failed = useShared(failure);
  if (session === null) {
    return html`<main class="sign-in"><h1>${title}</h1>
      ${failed ? html`<${ErrorNote} error=${failed} retry=${load} />` : html`<p class="soft">connecting…</p>`}</main>`;
  }
  if (session.view) return children;
  return html`<${SignIn} title=${title} session=${session} failed=${failed} />`;
}

/** Way to the issuer, which comes back to the same page. */
function AtIssuer({ provider, stay, error }) {
  const path = withQuery("/api/v1/session/oidc", { page: location.hash, stay: stay ? "1" : "" });
  return html`<${ErrorNote} error=${error} /><a class="button main" href=${path}>Sign in with ${plain(provider)}</a>
    <p class="soft small">Or with a token that it gave you:</p>`;
}

function SignIn({ title, session, failed }) {
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
      current.set(await post("/api/v1/session", byToken ? { token, stay } : { user, password, stay }));
      if (!current.value.view) setError(new Error(`${current.value.user} has no right to view this node`));
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
