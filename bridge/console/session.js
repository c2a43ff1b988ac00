// Who is signed in, and the page that signs in.

import { del, get, onSignedOut, post } from "./api.js";
import { lazy } from "./frame.js";
import { html } from "./html.js";
import { ErrorNote } from "./parts.js";
import { Shared, useShared } from "./state.js";

const SignIn = lazy(() => import("./sign_in.js"), "SignIn"); // only for people who are not signed in

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
    const { FAULTS } = await import("./sign_in.js");
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
  return html`<${SignIn} title=${title} session=${session} failed=${failed} signedIn=${(found) => current.set(found)} />`;
}
