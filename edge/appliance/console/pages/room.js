// Room on the card, and its wear.

import { html } from "./html.js";
import { Meter, Pairs } from "./parts.js";
import { bytes, duration, number } from "./text.js";

const DAY_S = 86_400;
const NEAR = 0.8;

/** Meters of the room that messages take and of the card's life, with the figures behind them. */
export function Room({ status, bridge }) {
  const store = status.store ?? {};
  const used = store.bytes ?? 0;
  const left = bridge?.room_bytes;
  const share = typeof left === "number" && used + left > 0 ? used / (used + left) : 0;
  const hours = bridge?.autonomy_hours;
  const wear = store.wear ?? {};
  return html`<div class="stack">
    <div><p class="label"><span>Room: ${bytes(used)} used${typeof left === "number" ? ` of ${bytes(used + left)}` : ""}</span>
      <span>${typeof hours === "number" ? `${hours > 87_600 ? "more than 10 years" : duration(hours * 3600)} until it is full` : ""}</span></p>
      <${Meter} parts=${[[share, share > NEAR ? "mb" : "m1"]]} label=${`${Math.round(share * 100)} percent of the room is used`} /></div>
    <div><p class="label"><span>${wearText(wear)}</span><span>${lifeText(wear)}</span></p>
      <${Meter} parts=${[[wear.used ?? 0, (wear.used ?? 0) > NEAR ? "mb" : "m3"]]} label=${wearText(wear)} /></div>
    <${Pairs} pairs=${[
      ["messages stored", number(store.messages)],
      ["file of the store", bytes(store.file_bytes)],
      ["written for each byte of messages", typeof wear.written_per_payload_byte === "number" ? wear.written_per_payload_byte.toFixed(1) : "–"],
      ["written a day", bytes(wear.bytes_per_day?.day ?? wear.bytes_per_day?.hour)],
    ]} />
  </div>`;
}

export function wearText(wear) {
  return typeof wear.used === "number" ? `Card worn: ${(wear.used * 100).toFixed(wear.used < 0.1 ? 1 : 0)} %` : "Card worn: not known";
}

function lifeText(wear) {
  if (typeof wear.days_left === "number") {
    return wear.days_left > 3_650 ? "more than 10 years left" : `about ${wear.days_left > 730 ? `${(wear.days_left / 365).toFixed(1)} years` : duration(wear.days_left * DAY_S)} left`;
  }
  return typeof wear.endurance_bytes === "number" ? "" : "set spec.storage.enduranceTerabytes to see its life";
}
