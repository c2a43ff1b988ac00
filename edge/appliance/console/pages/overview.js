// Overview: problems first, then where readings are, charts, and what fills the card.

import { get, post, withQuery } from "./api.js";
import { TimeChart } from "./chart.js";
import { lazy } from "./frame.js";
import { html, useState } from "./html.js";
import { ActionButton, Choice, ErrorNote, Name, Pairs, Panel } from "./parts.js";
import { address } from "./route.js";
import { useSession } from "./session.js";
import { useEvery, useNow } from "./state.js";
import { ago, bytes, clock, counted, duration, number, rate } from "./text.js";
import { Problems } from "./problems.js";
import { Room } from "./room.js";

const UplinkCheck = lazy(() => import("./uplink_check.js"), "UplinkCheck"); // only while the hub is away
const SPANS = [["15m", "15 min"], ["24h", "24 h"], ["7d", "7 d"]];
const EVERY_S = { "15m": 5, "24h": 30, "7d": 60 };

export function Overview({ figures: status }) {
  const [span, setSpan] = useState("15m");
  const [points, setPoints] = useState(null);
  const [error, setError] = useState(null);
  const [bridge, setBridge] = useState(null);
  const { manage } = useSession();
  useEvery(EVERY_S[span], async () => {
    try {
      setPoints(await get(withQuery("/api/v1/series", { span })));
      setBridge(await get("/api/v1/bridge"));
      setError(null);
    } catch (failed) {
      setError(failed);
    }
  }, [span]);
  if (status === null) return null;
  return html`
    ${uplinkProblem(status, bridge, manage)}
    <${Problems} problems=${status.problems ?? []} hidden=${away(status) ? [`connector ${bridge?.connectors?.[0]?.name}`] : []} />
    <${Path} status=${status} bridge=${bridge} points=${points} />
    <${ErrorNote} error=${error} />
    <div class="grid">
      <${Panel} title="Messages a second" span=${8} extra=${html`<span class="legend"><span><i></i>arrived</span>
        <span><i class="k3"></i>taken by the hub</span><span><i class="ks"></i>hub away</span></span>
        <${Choice} label="Span" options=${SPANS} value=${span} choose=${setSpan} />`}>
        ${points && html`<${TimeChart} title="Messages a second" unit="per second" times=${timesOf(points)} off=${offOf(points)}
          summary=${`${rate(recent(points.received_per_s))} arrive, ${rate(recent(points.acked_per_s))} are taken by the hub`}
          lines=${[
            { label: "arrived", values: smooth(points, points.received_per_s), tone: "c1", fill: true },
            { label: "taken by the hub", values: smooth(points, points.acked_per_s), tone: "c3" },
          ]} />`}
      <//>
      <${Panel} title="Waiting for the hub" span=${4} extra=${html`<span class="small soft">peak ${number(peak(points))}</span>`}>
        ${points && html`<${TimeChart} title="Waiting for the hub" unit="messages" times=${timesOf(points)} off=${offOf(points)}
          summary=${`${number(status.uplink?.backlog_messages ?? 0)} messages wait`} height=${118}
          lines=${[{ label: "waiting", values: points.waiting, tone: "c2", fill: true }]} />`}
        <${Pairs} pairs=${[["given up since the start", number(total(status.ledger))]]} />
      <//>
      <${Panel} title="Store and card" span=${6} extra=${html`<a class="small" href=${address("store")}>details</a>`}>
        <${Room} status=${status} bridge=${bridge} />
      <//>
      <${Panel} title="Connections" span=${6} extra=${html`<a class="small" href=${address("devices")}>all devices</a>`}>
        <${Pairs} pairs=${[
          ["MQTT", number(status.clients?.mqtt)],
          ["AMQP", number(status.clients?.amqp)],
          ["HTTP, waiting for a message", number(status.clients?.http)],
          ["refused since the start", refusals(status)],
        ]} />
      <//>
    </div>`;
}

/** Refused clients and messages, by any reason. */
function refusals(status) {
  const refused = total(status.refused);
  return refused ? html`<a class="bad-t" href=${address("devices", "", { show: "refused" })}>${number(refused)}</a>` : "0";
}

const away = (status) => ["connecting", "paused"].includes(status.uplink?.state);

/** What is certain while the hub is away: nothing is lost, how long the card lasts, and how to look for the cause. */
function uplinkProblem(status, bridge, manage) {
  const uplink = status.uplink;
  if (!away(status)) return null;
  const paused = uplink.state === "paused";
  const waiting = uplink.backlog_messages ?? 0;
  const hours = bridge?.autonomy_hours;
  const room = typeof hours === "number" ? html`, and there is room for <b>${roomText(hours)}</b> more at this rate` : "";
  return html`<section class="problem ${paused ? "warn" : ""}" role="alert">
    <div><h2>${paused ? "The uplink is paused" : `The hub has not answered for ${ago(uplink.since).replace(" ago", "")}`}</h2>
      <p>Nothing is lost: <b>${counted(waiting, "message")}</b> ${waiting === 1 ? "waits" : "wait"} on the card${room}.</p>
      ${!paused && uplink.last_error && html`<p class="small soft">Last attempt: <${Name}>${uplink.last_error}<//></p>`}</div>
    <p class="soft small right">since ${clock(uplink.since)}</p>
    ${!paused && html`<p class="do"><b class="small">Next:</b> <span class="small">see at which step the connection fails (<code>waypost doctor</code> tries the same); if each works, ask who runs the hub.</span></p><${UplinkCheck} />`}
    <div class="do">${paused && html`<${ActionButton} label="Resume the uplink" main allowed=${manage} action=${() => post("/api/v1/uplink/resume")} />`}
      <a class="button" href=${address("bridge")}>Details</a></div>
  </section>`;
}

export function roomText(hours) {
  return hours > 87_600 ? "more than 10 years" : duration(hours * 3600);
}

/** The way of a reading: devices, this card, the way to the hub, the lake. */
function Path({ status, bridge, points }) {
  const now = useNow();
  const uplink = status.uplink?.state ?? "off";
  const cut = uplink === "connecting" || uplink === "paused";
  const connected = Object.values(status.clients ?? {}).reduce((sum, count) => sum + count, 0);
  const hub = bridge?.connectors?.find((one) => one.manifest_hour !== null) ?? bridge?.connectors?.[0];
  const oldest = hub?.backlog_oldest_at;
  const waiting = status.uplink?.backlog_messages ?? 0;
  return html`<section class="panel" aria-label="Where readings are"><dl class="path">
    <div><dt>Devices</dt><dd class="figure">${number(connected)} <small>connected</small></dd>
      <dd class="small soft">${counted(status.messages?.received ?? 0, "message")} since the start</dd></div>
    <div><dt>On this card</dt><dd class="figure">${rate(recent(points?.received_per_s))} <small>/s arrive</small></dd>
      <dd class="small soft">${commitText(status.store?.commits)}</dd></div>
    <div class=${cut ? "cut" : ""}><dt>On their way ${cut && html`<span class="tag">cut</span>`}</dt>
      <dd class="figure">${uplink === "off" ? "–" : number(waiting)} <small>${uplink === "off" ? "no hub is configured" : waiting === 1 ? "waits" : "wait"}</small></dd>
      <dd class="small soft">${oldest && waiting ? `oldest ${duration(now / 1000 - oldest)}` : ""}${drainText(hub, cut)}</dd></div>
    <div><dt>At the hub</dt><dd class="figure">${uplink === "off" ? "–" : number(status.uplink?.acked)} <small>${uplink === "off" ? "" : "acknowledged"}</small></dd>
      <dd class="small soft">${hub?.manifest_hour ? `counted and signed until ${clock(hub.manifest_hour * 1000)}` : ""}</dd></div>
  </dl></section>`;
}

function drainText(hub, cut) {
  if (!hub || !hub.backlog_messages) return "";
  if (cut) return " · not while the hub is away";
  return hub.drain_s === null ? "" : ` · empty in ${duration(hub.drain_s)}`;
}

/** Time within which 99 of 100 commits were on disk. */
function commitText(commits) {
  if (!commits?.total) return "nothing was written yet";
  const bucket = commits.buckets.find(([, count]) => count >= 0.99 * commits.total);
  return bucket ? `on disk within ${Math.max(1, Math.round(bucket[0] * 1000))} ms (99 of 100)` : `${counted(commits.total, "commit")}`;
}

const total = (counts) => Object.values(counts ?? {}).reduce((sum, count) => sum + count, 0);
const RECENT = 2;
const SMOOTH_S = 10;

/** Means over some seconds where a point is shorter: the counters grow in steps of commits and batches. */
function smooth(points, values) {
  const width = Math.floor(SMOOTH_S / points.step_s);
  if (width < 2) return values;
  return values.map((value, place) => {
    if (value === null) return null;
    const known = values.slice(Math.max(0, place - width + 1), place + 1).filter((each) => each !== null);
    return known.reduce((sum, each) => sum + each, 0) / known.length;
  });
}

/** Mean of the last points: the counters grow in steps of a commit. */
function recent(values) {
  const known = (values ?? []).slice(-RECENT - 1, -1).filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : undefined;
}

const peak = (points) => (points ? Math.max(0, ...points.waiting.filter((value) => value !== null)) : undefined);
const timesOf = (points) => points.waiting.map((_, place) => points.end - (points.waiting.length - place) * points.step_s);
const offOf = (points) => points.linked.map((linked) => linked === false);
