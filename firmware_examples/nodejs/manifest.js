// Signed manifest of a new version: COSE_Sign1 (RFC 9052), verified with the keys of the maker.
'use strict';
const crypto = require('node:crypto');

const ENVELOPE_BYTES_MAX = 16 << 10;
const IMAGE_BYTES_MAX = 64 << 20;
const TYPE = 'application/vnd.waypost.artefact+cbor';
const ED25519 = -8;
const ES256 = -7;
const VERSION = /^[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}$/;
const DEPTH_MAX = 8;

// The new version is refused; `message` is one of the reasons of docs/how-to/update-devices.md.
class Refused extends Error {}

const refuse = (reason) => {
  throw new Refused(reason);
};

// Decodes one item of CBOR in the deterministic encoding (RFC 8949, 4.2.1), as far as manifests have it.
function decode(content) {
  let at = 0;
  const take = (length) => {
    if (at + length > content.length) refuse('truncated');
    at += length;
    return content.subarray(at - length, at);
  };
  const head = (form) => {
    if (form < 24) return form;
    if (form > 27) refuse('malformed');
    const width = 1 << (form - 24);
    const value = BigInt(`0x${take(width).toString('hex')}`);
    const least = width === 1 ? 24n : 1n << BigInt(width * 4);
    if (value < least || value > Number.MAX_SAFE_INTEGER) refuse('malformed');
    return Number(value);
  };
  const item = (depth) => {
    if (depth > DEPTH_MAX) refuse('malformed');
    const [first] = take(1);
    const value = head(first & 31);
    switch (first >> 5) {
      case 0: return value;
      case 1: return -1 - value;
      case 2: return take(value);
      case 3: return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(take(value));
      case 4: return list(value, depth);
      case 5: return map(value, depth);
      case 6: return { tag: value, value: item(depth + 1) };
      default: return refuse('malformed');
    }
  };
  const list = (count, depth) => {
    const found = [];
    while (found.length < count) found.push(item(depth + 1));
    return found;
  };
  const map = (count, depth) => {
    const found = new Map();
    let last = null;
    while (found.size < count) {
      const start = at;
      const key = item(depth + 1);
      const encoded = content.subarray(start, at);
      if (last !== null && Buffer.compare(last, encoded) >= 0) refuse('malformed');
      last = encoded;
      found.set(key, item(depth + 1));
    }
    return found;
  };
  let found;
  try {
    found = item(0);
  } catch (error) {
    throw error instanceof Refused ? error : new Refused('malformed'); // text that is not UTF-8
  }
  if (at !== content.length) refuse('malformed');
  return found;
}

// Encodes a text or bytes, as in the statement that is signed.
function encoded(major, content) {
  const length = content.length;
  if (length < 24) return Buffer.concat([Buffer.from([major << 5 | length]), content]);
  const head = length < 256 ? [major << 5 | 24, length] : [major << 5 | 25, length >> 8, length & 255];
  return Buffer.concat([Buffer.from(head), content]);
}

// Returns the key with this identifier: the start of the SHA-256 of its DER.
function keyOf(keys, keyId) {
  for (const [pem] of keys.matchAll(/-----BEGIN PUBLIC KEY-----[^-]*-----END PUBLIC KEY-----/g)) {
    const key = crypto.createPublicKey(pem);
    const digest = crypto.createHash('sha256').update(key.export({ type: 'spki', format: 'der' })).digest();
    if (digest.subarray(0, 8).equals(keyId)) return key;
  }
  return refuse('unknown-key');
}

// Returns the manifest of an envelope that one of the keys (PEM) has signed. Throws Refused.
// `place`: NAME, BOARD, VERSION and SEQUENCE of the program that runs. `nowS`: undefined if the time is not known.
function openManifest(envelope, keys, place, nowS) {
  if (envelope.length > ENVELOPE_BYTES_MAX) refuse('too-large');
  const { tag, value: parts } = decode(envelope);
  if (tag !== 18 || !Array.isArray(parts) || parts.length !== 4) refuse('malformed');
  const [protectedHeader, unprotected, payload, signature] = parts;
  if (![protectedHeader, payload, signature].every(Buffer.isBuffer)) refuse('malformed');
  if (!(unprotected instanceof Map) || unprotected.size) refuse('malformed');
  const header = decode(protectedHeader);
  if (!(header instanceof Map) || header.size !== 3 || header.get(3) !== TYPE || !Buffer.isBuffer(header.get(4))) refuse('malformed');
  const algorithm = header.get(1);
  if (algorithm !== ED25519 && algorithm !== ES256) refuse('unsupported-version');
  const key = keyOf(keys, header.get(4));
  const statement = Buffer.concat([
    Buffer.from([0x84]), encoded(3, Buffer.from('Signature1')), encoded(2, protectedHeader), encoded(2, Buffer.alloc(0)), encoded(2, payload),
  ]);
  const isEd25519 = key.asymmetricKeyType === 'ed25519';
  const verified = isEd25519 === (algorithm === ED25519) && signature.length === 64
    && crypto.verify(isEd25519 ? null : 'sha256', statement, { key, dsaEncoding: 'ieee-p1363' }, signature);
  if (!verified) refuse('forged');
  return fitting(decode(payload), place, nowS);
}

// Returns the manifest of a payload that fits to a place.
function fitting(fields, place, nowS) {
  if (!(fields instanceof Map)) refuse('malformed');
  if (fields.get(1) !== 1) refuse('unsupported-version');
  const isTexts = (value) => Array.isArray(value) && value.length > 0 && value.every((each) => typeof each === 'string');
  const isText = (value) => typeof value === 'string';
  const isNumber = (value) => Number.isInteger(value) && value >= 0;
  const kinds = {
    2: isText, 3: isText, 4: isText, 5: isNumber, 6: isTexts, 7: isTexts, 8: isNumber, 9: Buffer.isBuffer, 10: isNumber,
  };
  for (const [key, value] of fields) if (key !== 1 && !(kinds[key] && kinds[key](value))) refuse('malformed');
  for (const key of [2, 3, 4, 5, 6, 8, 9]) if (!fields.has(key)) refuse('malformed');
  const [kind, name, version, sequence, boards, fromVersions, size, sha256, notBefore] = [2, 3, 4, 5, 6, 7, 8, 9, 10].map((key) => fields.get(key));
  if (kind !== 'firmware' || !VERSION.test(version) || sha256.length !== 32 || size < 1) refuse('malformed');
  if (size > IMAGE_BYTES_MAX) refuse('too-large');
  if (name !== place.NAME) refuse('forged'); // another artefact under the name of ours
  if (nowS !== undefined && notBefore > nowS) refuse('not-yet-valid');
  if (sequence <= place.SEQUENCE) refuse('downgraded');
  if (!boards.includes(place.BOARD)) refuse('wrong-board');
  if (fromVersions && !fromVersions.includes(place.VERSION)) refuse('wrong-from-version');
  return { version, sequence, size, sha256: sha256.toString('hex') };
}

module.exports = { openManifest, Refused, ENVELOPE_BYTES_MAX, VERSION };
