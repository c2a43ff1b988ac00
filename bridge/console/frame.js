// Frame of every page: pages at the left (at the bottom of a phone), the node's name and state on top.

import { Icon, Mark } from "./icons.js";
import { html, useEffect, useRef, useState } from "./html.js";
import { Dialog, ErrorNote, Pill } from "./parts.js";
import { address, go, useRoute } from "./route.js";
import { signOut, useSession } from "./session.js";
import { useShared } from "./state.js";
import { plain } from "./text.js";

/** Component of a module that is loaded when it is first shown. @param {() => Promise<any>} load @param {string} name */
export function lazy(load, name) {
  return function Lazy(properties) {
    const [view, setView] = useState(null);
    const [failed, setFailed] = useState(null);
    useEffect(() => {
      load().then((module) => setView(() => module[name]), setFailed);
    }, []);
    if (failed) return html`<${ErrorNote} error="This page cannot be loaded: is the connection cut?" retry=${() => location.reload()} />`;
    return view && html`<${view} ...${properties} />`;
  };
}

const TABS = 4;
const GO_MS = 1_200;

/**
 * @typedef {object} Page
 * @property {string} page name in addresses
 * @property {string} label
 * @property {keyof typeof import("./icons.js").PATHS} icon
 * @property {string} [key] letter that opens it after `g`
 * @property {any} view component, which gets `rest` and `query` of the address
 * @property {(figures: any) => {count: number, tone: string} | null} [count] shown beside the label
 */

/**
 * @param {object} properties
 * @param {string} properties.title shown until the figures are there
 * @param {(figures: any) => {name: string, about: string, state: [string, string], meta: string}} properties.describe
 * @param {import("./live.js").LiveTopic} properties.live figures of the node
 * @param {Page[][]} properties.groups pages; the first is the start page
 */
export function Frame({ title, describe, live, groups }) {
  const route = useRoute();
  const session = useSession();
  const figures = useShared(live.figures);
  const problem = useShared(live.problem);
  const [help, setHelp] = useState(false);
  const pages = groups.flat();
  const page = pages.find((each) => each.page === route.page) ?? pages[0];
  const node = figures === null ? { name: title, about: "", state: ["idle", "connecting"], meta: "" } : describe(figures);
  const [tone, word] = problem ? ["bad", "does not answer"] : node.state;
  useKeys(pages, setHelp);
  useEffect(() => {
    document.title = `${page.label} – ${node.name}`;
  }, [page, node.name]);
  const main = useRef(null);
  useEffect(() => {
    main.current.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [page]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => skip(event, main.current)}>Skip to content</a>
    <div class="frame">
      <nav class="rail" aria-label="Pages">
        <div class="brand"><${Mark} /><span>${plain(node.name)}<small>${plain(node.about)}</small></span></div>
        ${groups.map((group, place) => html`${place > 0 && html`<hr />`}${group.map((each) => link(each, page, figures))}`)}
        <div class="foot">
          ${session.user ? html`signed in as <bdi>${plain(session.user)}</bdi> · <a href="#" onClick=${leave}>sign out</a>` : "no sign-in is configured"}
          <br />times are ${Intl.DateTimeFormat().resolvedOptions().timeZone}
          <br /><a href="#" onClick=${(event) => { event.preventDefault(); setHelp(true); }}>keys</a>
        </div>
      </nav>
      <div>
        <header class="bar">
          <h1>${page === pages[0] ? plain(node.name) : page.label}</h1>
          <${Pill} tone=${tone} role="status">${word}<//>
          <span class="meta hide">${node.meta}</span>
          <span class="grow"></span>
        </header>
        <main id="main" ref=${main} tabindex="-1">
          ${problem && figures !== null && html`<div class="note-bad" role="alert">${problem}. What is shown is from before.</div>`}
          <${page.view} key=${page.page} rest=${route.rest} query=${route.query} figures=${figures} />
        </main>
      </div>
    </div>
    <${Tabs} pages=${pages} page=${page} figures=${figures} />
    ${help && html`<${KeyHelp} pages=${pages} close=${() => setHelp(false)} />`}`;
}

function skip(event, main) {
  event.preventDefault(); // the part after # is the page's address
  main.focus();
}

function leave(event) {
  event.preventDefault();
  signOut();
}

function link(each, current, figures) {
  const counted = figures && each.count?.(figures);
  return html`<a key=${each.page} href=${address(each.page)} aria-current=${each === current ? "page" : undefined}>
    <${Icon} name=${each.icon} />${each.label}${counted && counted.count > 0 && html`<span class="count ${counted.tone}">${counted.count}</span>`}
  </a>`;
}

/** Pages of a phone: the first ones, and a menu with the others. */
function Tabs({ pages, page, figures }) {
  const [open, setOpen] = useState(false);
  useEffect(() => setOpen(false), [page]);
  const [shown, others] = [pages.slice(0, TABS), pages.slice(TABS)];
  return html`<nav class="tabs-bottom" aria-label="Pages of the phone">
    ${shown.map((each) => {
      const counted = figures && each.count?.(figures);
      return html`<a key=${each.page} href=${address(each.page)} aria-current=${each === page ? "page" : undefined}>
        <${Icon} name=${each.icon} size=${22} />${each.label}${counted && counted.count > 0 && html`<span class="dot"></span>`}</a>`;
    })}
    ${others.length > 0 && html`<button aria-expanded=${open} aria-current=${others.includes(page) ? "page" : undefined} onClick=${() => setOpen(!open)}>
      <${Icon} name="more" size=${22} />More</button>`}
    ${open && html`<div class="more">${others.map((each) => html`<a key=${each.page} href=${address(each.page)} onClick=${() => setOpen(false)}>
      <${Icon} name=${each.icon} />${each.label}</a>`)}
      <a href="#" onClick=${leave}><${Icon} name="person" />Sign out</a></div>`}
  </nav>`;
}

/** `g` and a letter opens a page, `/` goes to the search, `?` shows the keys. */
function useKeys(pages, setHelp) {
  const before = useRef(0);
  useEffect(() => {
    function pressed(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
      if (event.key === "?") setHelp(true);
      else if (event.key === "g") before.current = event.timeStamp;
      else if (event.key === "/") {
        const search = /** @type {HTMLElement | null} */ (document.querySelector("main input[type=search]"));
        if (search) {
          event.preventDefault();
          search.focus();
        }
      } else if (event.timeStamp - before.current < GO_MS) {
        const found = pages.find((each) => each.key === event.key);
        if (found) go(address(found.page));
      }
    }
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function KeyHelp({ pages, close }) {
  return html`<${Dialog} title="Keys" close=${close}>
    <dl class="rows keys-help">
      ${pages.filter((each) => each.key).map((each) => html`<dt>${each.label}</dt><dd><kbd>g</kbd> <kbd>${each.key}</kbd></dd>`)}
      <dt>Search in the page</dt><dd><kbd>/</kbd></dd><dt>These keys</dt><dd><kbd>?</kbd></dd><dt>Close</dt><dd><kbd>Esc</kbd></dd>
    </dl>
    <div class="do"><button class="button" onClick=${close}>Close</button></div>
  <//>`;
}
