"use strict";
// Checks of settings, equal to those of `edge/card`: each function returns the reason against a value, or "".
// RULES is from the product (rules.py). A test compares both sides, value by value.

const printable = text => /^[^\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Z}]*$/u.test(text.replaceAll(" ", ""));
const bytesOf = text => new TextEncoder().encode(text).length;
const say = (words, value) => words.split("{value}").join(value);
const matches = (pattern, value) => new RegExp(`^(?:${pattern})$`, "u").test(value);
const byPattern = name => value => matches(RULES.texts[name][0], value) ? "" : say(RULES.texts[name][1], value);
const secret = value =>
  value === RULES.placeholder ? `${RULES.placeholder} is the placeholder of a secret: write the secret itself` : "";

// --- addresses, as Python's ipaddress reads them ----------------------------------------------------------------------

function readIPv4(text) {
  const parts = text.split(".");
  if (parts.length !== 4 || !parts.every(each => /^(?:0|[1-9][0-9]{0,2})$/.test(each) && Number(each) < 256)) return null;
  return parts.reduce((sum, each) => (sum << 8n) | BigInt(each), 0n);
}

function readIPv6(text) {
  const [bare, ...scope] = text.split("%");
  if (scope.length > 1 || (scope.length === 1 && scope[0] === "")) return null;
  const parts = bare.split(":");
  if (parts.length < 3) return null;
  if (parts.at(-1).includes(".")) {
    const low = readIPv4(parts.pop());
    if (low === null) return null;
    parts.push((low >> 16n).toString(16), (low & 0xffffn).toString(16));
  }
  if (parts.length > 9) return null;
  const gaps = parts.map((each, place) => place).filter(place => place > 0 && place < parts.length - 1 && !parts[place]);
  if (gaps.length > 1) return null;
  let groups = parts;
  if (gaps.length === 1) {
    let high = parts.slice(0, gaps[0]), low = parts.slice(gaps[0] + 1);
    if (!high[0]) high = high.slice(1);
    if (!parts[0] && high.length) return null;
    if (!low.at(-1)) low = low.slice(0, -1);
    if (!parts.at(-1) && low.length) return null;
    if (high.length + low.length > 7) return null;
    groups = [...high, ...Array(8 - high.length - low.length).fill("0"), ...low];
  }
  if (groups.length !== 8 || !groups.every(each => /^[0-9a-fA-F]{1,4}$/.test(each))) return null;
  const number = groups.reduce((sum, each) => (sum << 16n) | BigInt(`0x${each}`), 0n);
  return { version: 6, bits: 128, number, scope: scope[0] ?? "" };
}

function readAddress(text) {
  if (text.includes("/")) return null;
  const four = readIPv4(text);
  return four === null ? readIPv6(text) : { version: 4, bits: 32, number: four, scope: "" };
}

// Length of the prefix in a netmask: zeros only behind the ones.
function prefixOf(mask) {
  const digits = mask.toString(2).padStart(32, "0");
  return /^1*0*$/.test(digits) ? digits.replaceAll("0", "").length : null;
}

function readPrefix(text, address) {
  if (/^[0-9]+$/.test(text)) return Number(text) <= address.bits ? Number(text) : null;
  const mask = address.version === 4 ? readIPv4(text) : null;
  return mask === null ? null : prefixOf(mask) ?? prefixOf(mask ^ 0xffffffffn);
}

function readInterface(text) {
  const parts = text.split("/");
  if (parts.length !== 2) return null;
  const found = readAddress(parts[0]);
  const prefix = found === null ? null : readPrefix(parts[1], found);
  if (prefix === null) return null;
  const size = 1n << BigInt(found.bits - prefix);
  const first = found.number - (found.number % size);
  return { ...found, prefix, first, last: first + size - 1n };
}

const within = (address, network) =>
  address.version === network.version && network.first <= address.number && address.number <= network.last;
const isWithin = (found, text) => within(found, readInterface(text));

function interfaceFault(value) {
  if (!value.includes("/")) return `"${value}" has no prefix length; for example 192.168.1.20/24`;
  const found = readInterface(value);
  if (found === null) return `"${value}" is not an address with a prefix length; for example 192.168.1.20/24`;
  const edge = found.number === found.first || found.number === found.last;
  if (found.prefix < found.bits - 1 && edge && found.scope === "")
    return `"${value}" is a network or broadcast address, not the address of a machine`;
  return "";
}

function machineFault(value) {
  const found = readInterface(value);
  const none = found.version === 4
    ? ["127.0.0.0/8", "224.0.0.0/4", "0.0.0.0/8"].some(each => isWithin(found, each))
    : isWithin(found, "ff00::/8") || found.number < 2n;
  return none ? `"${value}" cannot be the address of a machine on a network` : "";
}

// --- hosts, hubs, tokens, keys, sizes ---------------------------------------------------------------------------------

const hostFault = value => !value || /[\s[\]/@]/.test(value) ? `"${value}" is not a host` : "";
const portFault = value =>
  /^[0-9]+$/.test(value) && Number(value) <= RULES.portMax ? "" : `"${value}" is not a port; expected 0 to ${RULES.portMax}`;

function readHub(url) {
  const place = url.indexOf("://");
  const scheme = place < 0 ? "" : url.slice(0, place);
  if (!Object.hasOwn(RULES.hubPorts, scheme))
    return { fault: `"${url}" is not a hub URL; expected amqps://host:port, or over WebSocket wss://host:port` };
  let rest = url.slice(place + 3);
  if (scheme.startsWith("ws")) {
    const [host, ...behind] = rest.split("/");
    const path = `/${behind.join("/")}`;
    if (!/^\/[!-~]*$/.test(path))
      return { fault: `"${url}": ${path} is not a URL path; percent-encode non-ASCII characters` };
    rest = host;
  } else {
    rest = rest.replace(/\/+$/, "");
  }
  if (rest && ((rest.startsWith("[") && rest.endsWith("]")) || !rest.includes(":"))) rest += `:${RULES.hubPorts[scheme]}`;
  return { secure: ["amqps", "wss"].includes(scheme), ...readEndpoint(rest) };
}

function readEndpoint(text) {
  const colon = text.lastIndexOf(":");
  let host = text.slice(0, Math.max(colon, 0));
  const port = text.slice(colon + 1);
  if (host.startsWith("[") && host.endsWith("]")) host = host.slice(1, -1);
  else if (host.includes(":")) return { fault: `"${text}" is not host:port; write an IPv6 address in brackets: [::1]:1883` };
  if (colon < 0 || !host) return { fault: `"${text}" is not host:port; for example 0.0.0.0:1883` };
  return { fault: hostFault(host) || portFault(port), port: Number(port) };
}

function hubFault(value) {
  const { fault, secure } = readHub(value);
  if (fault) return fault;
  return secure ? "" : `"${value}" is without TLS, which enrolment needs: amqps://HOST:PORT, or wss://HOST:PORT`;
}

const reachableFault = value =>
  readHub(value).port === 0 ? `"${value}": port 0 is not valid; the default port of a hub is ${RULES.hubPorts.amqps}` : "";

// Bytes of Base64 (RFC 4648 section 4), or null.
function decode(text) {
  const found = /^([A-Za-z0-9+/]*)(={0,2})$/.exec(text);
  if (found === null) return null;
  const open = found[1].length % 4;
  if (open === 1 || (open > 1 && found[2].length < 4 - open)) return null;
  return atob(found[1]);
}

function tokenFault(value) {
  const parts = value.trim().split(".");
  const rule = RULES.token;
  if (parts.length !== 4 || parts[0] !== rule.prefix)
    return `this is not a token: a token starts with ${rule.prefix} and has four parts separated by dots`;
  const [, name, ...coded] = parts;
  const [proof, authority] = coded.map(each =>
    decode(each.replaceAll("-", "+").replaceAll("_", "/") + "=".repeat((4 - (each.length % 4)) % 4)));
  if (proof === null || authority === null) return "the token has invalid characters: copy all of it again";
  const sizes = [[...name].length, proof.length, authority.length];
  if (sizes.join() !== [rule.idCharacters, rule.secretBytes, rule.fingerprintBytes].join())
    return "the token is too short or too long: copy all of it again";
  return "";
}

function keyFault(value) {
  if (value.includes("PRIVATE KEY")) return "this is a private key: give the public one, from the file that ends in .pub";
  const [kind, coded = ""] = value.trim().split(" ");
  const content = decode(coded);
  const known = RULES.sshTypes.some(each => kind.startsWith(each)) && printable(value);
  if (!known || content === null || !content.slice(0, 64).includes(kind))
    return "this is not a public key for SSH: one line that starts with ssh-ed25519, for example";
  return "";
}

function sizeFault(value) {
  const found = /^([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)$/.exec(value.trim());
  if (found === null || !Object.hasOwn(RULES.sizeUnits, found[2]))
    return `"${value}" is not a size; expected bytes as a number, or a text such as 512Ki, 64Mi, 2G`;
  if (Number(found[1]) * RULES.sizeUnits[found[2]] > RULES.sizeBytesMax)
    return `${value} is out of range: 0 to ${RULES.sizeBytesMax} bytes`;
  return "";
}

function countryFault(code) {
  if (RULES.countries.includes(code)) return "";
  const upper = code.toUpperCase();
  const meant = Object.hasOwn(RULES.meant, upper) ? RULES.meant[upper] : upper;
  if (RULES.countries.includes(meant)) return `"${code}" is not a country of ISO 3166: did you mean ${meant}?`;
  return `"${code}" is not a country with rules for wireless networks; two letters of ISO 3166, for example DE or US`;
}

function filterFault(value) {
  const levels = value.split("/");
  if (bytesOf(value) > RULES.topicBytesMax || value.includes("\0"))
    return `longer than ${RULES.topicBytesMax} bytes, or with a null character: "${[...value].slice(0, 40).join("")}…"`;
  if (levels.some(each => each.includes("#") && each !== "#") || levels.slice(0, -1).includes("#"))
    return `"${value}": # must be alone in the last level`;
  if (levels.some(each => each.includes("+") && each !== "+")) return `"${value}": + must be alone in its level`;
  return value.endsWith("*") ? `"${value}": wildcards are + and #` : "";
}

// Checks of one text by the name of the product's function.
const CHECKS = {
  resource_name: value => matches(RULES.resourceName.replace(/^\^|\$$/g, ""), value)
    ? "" : `"${value}" is not a name; allowed: letters and digits, and between them . - _`,
  host_name: byPattern("host_name"),
  interface: interfaceFault,
  address: value => readAddress(value) === null ? `"${value}" is not an IP address` : "",
  network_name: value => bytesOf(value) <= RULES.ssidBytesMax && value && printable(value)
    ? "" : "the name of a wireless network (SSID) is 1 to 32 printable bytes",
  passphrase: value => secret(value) || byPattern("passphrase")(value),
  wifi_user: byPattern("wifi_user"),
  login_password: value => secret(value) || byPattern("login_password")(value),
  certificate: byPattern("certificate"),
  private_key: value => secret(value) || byPattern("private_key")(value),
  country: value => byPattern("country")(value) && (countryFault(value) || byPattern("country")(value)),
  access_point: byPattern("access_point"),
  disk_kind: byPattern("disk_kind"),
  word: value => secret(value) || byPattern("word")(value),
  pin: value => secret(value) || byPattern("pin")(value),
  ssh_key: keyFault,
  hub_url: hubFault,
  token: value => secret(value) || tokenFault(value),
  valid_host: hostFault,
  valid_port: portFault,
  server: value => printable(value) ? hostFault(value) : "a time server is a host name or an address",
  limited_text: value => [...value].length > RULES.topicBytesMax ? `longer than ${RULES.topicBytesMax} characters` : "",
  size: sizeFault,
  plain: () => "",
};

// --- a whole file -----------------------------------------------------------------------------------------------------

const pathOf = name => (name === "name" ? "metadata.name" : `spec.${name}`);

// Errors of values one by one, and of those that are missing: {name, path, words}.
function listValueFaults(values) {
  const found = [];
  for (const { name, check, required, many } of RULES.fields) {
    const outer = name.split(".").slice(0, -1);
    const started = name === "name" || (outer.length > 0 && hasAny(values, outer.join(".")));
    const value = values[name];
    if (value === undefined) {
      if (required && started) {
        const key = name.split(".").at(-1);
        found.push({ name, path: name === "name" ? "metadata" : `spec.${outer.join(".")}`, words: `"${key}" is missing` });
      }
      continue;
    }
    (many ? value : [value]).forEach((each, place) => {
      const words = CHECKS[check](each);
      if (words) found.push({ name, path: many ? `${pathOf(name)}[${place}]` : pathOf(name), words });
    });
  }
  return found;
}

const hasAny = (values, mapping) => Object.keys(values).some(name => name.startsWith(`${mapping}.`));

// Errors of valid values that do not fit together, or would have no effect.
function listOtherFaults(values) {
  const found = [];
  const add = (name, words, path = pathOf(name)) => words && found.push({ name, path, words });
  if (values.hostname === undefined && byPattern("host_name")(values.name))
    add("name", `"${values.name}" is not a host name (1 to 63 of a-z, 0-9 and -): set hostname too`);
  if (values["cable.gateway"] !== undefined) add("cable.gateway", routerFault(values));
  if ((values["hub.proxy.username"] === undefined) !== (values["hub.proxy.password"] === undefined))
    add("hub.proxy.username", "username and password go together", "spec.hub.proxy");
  else if ((values["hub.proxy.username"] ?? "").includes(":"))
    add("hub.proxy.username", "a user name with a colon cannot be sent to a proxy (RFC 7617)", "spec.hub.proxy");
  if (values["hub.proxy.password"] !== undefined) add("hub.proxy.password", secret(values["hub.proxy.password"]));
  if (hasAny(values, "wifi.login")) {
    const [word, certificate, key] = ["password", "certificate", "key"].map(each => values[`wifi.login.${each}`]);
    if ((certificate === undefined) !== (key === undefined))
      add("wifi.login.certificate", "certificate and key go together", "spec.wifi.login");
    else if (word === undefined && certificate === undefined)
      add("wifi.login.password", "a password is missing, or a certificate with its key", "spec.wifi.login");
  }
  if ((values["lte.user"] === undefined) !== (values["lte.password"] === undefined))
    add("lte.user", "user and password go together", "spec.lte");
  for (const name of ["sshKeys", "timeServers"])
    if ((values[name] ?? []).length > RULES.keysMax) add(name, `${RULES.keysMax} at most`);
  const each = (name, check) =>
    (values[name] ?? []).forEach((one, place) => add(name, check(one), `${pathOf(name)}[${place}]`));
  each("timeServers", byPattern("time_server"));
  if (values["cable.address"] !== undefined) add("cable.address", machineFault(values["cable.address"]));
  if (values["wifi.country"] !== undefined) add("wifi.country", countryFault(values["wifi.country"]));
  if (values["hub.url"] !== undefined) add("hub.url", reachableFault(values["hub.url"]));
  each("hub.failover", reachableFault);
  each("hub.forward", filterFault);
  return found;
}

function routerFault(values) {
  const own = readInterface(values["cable.address"]), router = readAddress(values["cable.gateway"]);
  const local = own.version === 6 && router.version === 6 && router.number >> 118n === 0x3fan;
  const same = router.number === own.number && router.version === own.version && router.scope === own.scope;
  if ((within(router, own) || local) && !same) return "";
  return `"${values["cable.gateway"]}" is not another machine of the network of ${values["cable.address"]}`;
}

// Errors of settings by name; a value is a text, that of a list an array of texts. Missing ones are left out.
function listFaults(values) {
  const faults = listValueFaults(values);
  if (faults.length) return faults;
  const others = listOtherFaults(values);
  if (!others.length && bytesOf(makeFile(values)) > RULES.fileBytesMax)
    others.push({ name: "name", path: "", words: `larger than ${RULES.fileBytesMax} bytes` });
  return others;
}

// --- YAML -------------------------------------------------------------------------------------------------------------

// A text in double quotes (YAML 1.2.2 section 7.3.1), in ASCII.
function quote(text) {
  const escape = letter => {
    const code = letter.codePointAt(0);
    const digits = code > 0xffff ? `U${code.toString(16).padStart(8, "0")}` : `u${code.toString(16).padStart(4, "0")}`;
    return letter === '"' || letter === "\\" ? `\\${letter}` : `\\${digits}`;
  };
  return `"${text.replace(/["\\]|[^ -~]/gu, escape)}"`;
}

function writeMapping(mapping, indent) {
  return Object.entries(mapping).map(([key, value]) => {
    const start = `${indent}${key}:`;
    if (typeof value === "string") return `${start} ${quote(value)}\n`;
    if (Array.isArray(value)) return `${start}\n${value.map(each => `${indent}- ${quote(each)}\n`).join("")}`;
    return `${start}\n${writeMapping(value, `${indent}  `)}`;
  }).join("");
}

function makeFile(values) {
  const spec = {};
  for (const { name } of RULES.fields) {
    if (name === "name" || values[name] === undefined) continue;
    const keys = name.split(".");
    const last = keys.pop();
    keys.reduce((place, key) => (place[key] ??= {}), spec)[last] = values[name];
  }
  const head = { apiVersion: RULES.apiVersion, kind: RULES.kind, metadata: { name: values.name ?? "" } };
  const body = Object.keys(spec).length ? `spec:\n${writeMapping(spec, "  ")}` : "spec: {}\n";
  return `# Settings of a Waypost gateway: put this file on the first partition of its card, as ${RULES.file}.\n` +
    writeMapping(head, "") + body;
}
