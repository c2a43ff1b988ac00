// Update of the program by itself: from the gateway into the slot that does not run, with a way back.
// docs/how-to/write-a-device-that-updates.md has the states, which every example shares.
'use strict';
const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const firmware = require('./firmware.js');
const { EXIT_RESTART, readBoot, writeBoot, writeDurably } = require('./boot_loader.js');
const { ENVELOPE_BYTES_MAX, Refused, VERSION, openManifest } = require('./manifest.js');

const PART_BYTES = 128 << 10; // of one request, and the most that a reset makes it fetch again
const LIST_BYTES_MAX = 4 << 20;
const TRIES_MAX = 3; // trials of one image; then it is refused until another manifest comes
const TRY_AGAIN = ['not-healthy', 'restarted', 'cannot-install'];
const TIMEOUT_MS = 30000;
const NOTHING = {
  state: '', reported: '', reason: '', version: '', sequence: 0, size: 0, sha256: '',
  envelope: '', // SHA-256 of the signed manifest
  done: 0, // bytes of the image that are in the slot
  tries: 0,
  own: 0, // sequence of the program that wrote this
};

class GoneError extends Error {} // the gateway has no such artefact, or has another one now

// Artefacts of the gateway, over HTTP.
class ArtefactClient {
  constructor({ updateUrl, device, password, tls }) {
    const isSecure = updateUrl.startsWith('https:');
    this.url = updateUrl.replace(/\/$/, '');
    this.module = isSecure ? https : http;
    this.options = { timeout: TIMEOUT_MS, ...(isSecure && { ...tls, agent: false }) };
    if (password && (isSecure || !tls.ca)) this.options.auth = `${device}:${password}`; // never over HTTP where MQTT has TLS
  }

  async get(route, headers, bytesMax, wanted = 200) {
    const { status, content } = await this.#ask('GET', route, headers, '', bytesMax);
    if (status === 416 && wanted === 206) return Buffer.alloc(0);
    if (status !== wanted) throw new GoneError(status);
    return content;
  }

  // Reports a state; one about an artefact that the gateway no longer has is dropped.
  async report({ version, state, reason, sha256 }) {
    await this.#ask('POST', `/artefacts/${firmware.NAME}/${version}/report`, {}, JSON.stringify({ state, reason, sha256 }), 1 << 16);
  }

  #ask(method, route, headers, body, bytesMax) {
    return new Promise((resolve, reject) => {
      const length = Buffer.byteLength(body);
      const options = { ...this.options, method, headers: { ...headers, ...(length && { 'Content-Length': length }) } };
      const request = this.module.request(`${this.url}${route}`, options, (answer) => {
        const { statusCode: status } = answer;
        if ([401, 403, 408, 429].includes(status) || status >= 500) {
          answer.destroy();
          reject(new Error(`the gateway answers ${status}`));
          return;
        }
        const parts = [];
        let bytes = 0;
        answer.on('data', (part) => {
          bytes += part.length;
          if (bytes > bytesMax) request.destroy(new Error('the answer is too long'));
          else parts.push(part);
        });
        answer.on('error', reject);
        answer.on('end', () => resolve({ status, content: Buffer.concat(parts) }));
      });
      request.on('timeout', () => request.destroy(new Error('no answer in time')));
      request.on('error', reject);
      request.end(body);
    });
  }
}

class SlotUpdater {
  #lookAtMs = 0;

  constructor(settings, spool, clock, retry, log) {
    Object.assign(this, { settings, spool, clock, retry, log });
    this.client = new ArtefactClient(settings);
    this.record = path.join(settings.slots, 'update.json');
    this.image = path.join(settings.slots, `slot${1 - settings.slot}`);
    this.state = this.#load();
  }

  // Updates for ever; it ends the process for a restart.
  async run() {
    this.log(`firmware: ${firmware.NAME} ${firmware.VERSION}`);
    await this.#judgeStart();
    while (!this.spool.delivered) await sleep(100);
    for (;;) {
      try {
        await sleep(await this.#step());
        this.retry.reset();
      } catch (error) {
        if (error instanceof Refused) {
          this.#endTry(error.message);
        } else {
          this.log(`update: ${error.message}`);
          await sleep(this.retry.take());
        }
      }
    }
  }

  // --- state ------------------------------------------------------------------------------------------------------

  #load() {
    if (!fs.existsSync(this.record)) return { ...NOTHING };
    const state = JSON.parse(fs.readFileSync(this.record));
    if (state.own !== firmware.SEQUENCE && state.state === 'rolled-back') state.tries = 0; // another version may take it
    return state;
  }

  #save(state) {
    Object.assign(this.state, { state, own: firmware.SEQUENCE });
    writeDurably(this.record, JSON.stringify(this.state));
  }

  #lookLater() {
    this.#lookAtMs = performance.now() + this.settings.updateS * 1000 * (0.5 + Math.random() / 2);
  }

  // Stays with the version that runs; the same manifest is tried again a few times, unless that cannot help.
  #endTry(reason) {
    const { state } = this;
    const helps = state.state === 'downloading' || TRY_AGAIN.includes(reason);
    Object.assign(state, { tries: helps ? state.tries + 1 : TRIES_MAX, reported: '', reason, done: 0 });
    this.log(`the new version is refused, or was rolled back: ${reason}`);
    this.#save('rolled-back');
    this.#lookLater();
  }

  // --- the trial --------------------------------------------------------------------------------------------------

  // Finds out what became of a version that was installed before this start, and tries the one that runs.
  async #judgeStart() {
    const { state, settings } = this;
    const { kept } = readBoot(settings.slots);
    const isTarget = state.sequence === firmware.SEQUENCE;
    const isInstalled = ['installed', 'started'].includes(state.state);
    if (kept !== settings.slot) {
      await this.#tryOut(isInstalled, isTarget);
    } else if (isInstalled && isTarget) {
      this.#save('healthy'); // a reset between the confirmation and its record
    } else if (state.state === 'started') {
      writeBoot(settings.slots, { kept }); // also where the boot loader could not record the end of the trial
      this.#endTry(state.reason || 'restarted');
    } else if (['downloading', 'verified', 'installed'].includes(state.state) && state.sequence <= firmware.SEQUENCE) {
      this.#save(''); // a newer version was installed by hand
    }
  }

  // Keeps the running version once it has delivered a reading of its own; else goes back.
  async #tryOut(isKnown, isTarget) {
    const { settings, spool, state } = this;
    state.reason = '';
    if (isKnown) this.#save('started');
    if (!firmware.MAKER_KEYS.includes('PUBLIC KEY')) {
      state.reason = 'no-key'; // it could never be updated again
    } else if (isKnown && !isTarget) {
      state.reason = 'wrong-sequence'; // kept, it would be offered again and again
    } else {
      const end = performance.now() + settings.trialS * 1000;
      while (!spool.delivered && performance.now() < end) await sleep(100);
      if (!spool.delivered) state.reason = 'not-healthy';
    }
    if (state.reason) {
      this.log('going back to the version before');
      if (isKnown) this.#save('started');
      writeBoot(settings.slots, { kept: 1 - settings.slot });
      process.exit(EXIT_RESTART);
    }
    writeBoot(settings.slots, { kept: settings.slot });
    this.log('the new version is healthy');
    if (isKnown) this.#save('healthy');
  }

  // --- steps ------------------------------------------------------------------------------------------------------

  // Does what is due; returns the milliseconds to wait.
  async #step() {
    const { state, settings } = this;
    if (state.state !== state.reported && !['', 'started'].includes(state.state)) {
      await this.client.report(state);
      state.reported = state.state;
      this.#save(state.state);
    } else if (state.state === 'downloading') {
      await this.#download();
    } else if (state.state === 'verified') {
      this.#save('installed');
    } else if (state.state === 'installed') {
      writeBoot(settings.slots, { kept: settings.slot, trial: 1 - settings.slot });
      this.#save('started'); // behind the mark of the boot loader: a reset in between only repeats the mark
      this.log('starting the new version');
      process.exit(EXIT_RESTART);
    } else if (performance.now() >= this.#lookAtMs) {
      await this.#look();
    } else {
      return Math.min(1000, this.#lookAtMs - performance.now());
    }
    return 0;
  }

  // Looks for a later version at the gateway, and verifies its manifest.
  async #look() {
    let version;
    let envelope;
    try {
      const { artefacts } = JSON.parse(await this.client.get('/artefacts', {}, LIST_BYTES_MAX));
      const [latest] = artefacts
        .filter((each) => each.name === firmware.NAME && each.kind === 'firmware' && VERSION.test(each.version))
        .filter(({ boards }) => !boards || boards.includes(firmware.BOARD))
        .filter(({ from_versions: from }) => !from || !from.length || from.includes(firmware.VERSION))
        .sort((one, other) => other.sequence - one.sequence);
      if (!latest || !(latest.sequence > firmware.SEQUENCE)) {
        this.#lookLater();
        return;
      }
      version = latest.version;
      envelope = await this.client.get(`/artefacts/${firmware.NAME}/${version}/manifest`, {}, ENVELOPE_BYTES_MAX + 1);
    } catch (error) {
      if (!(error instanceof GoneError || error instanceof SyntaxError || error instanceof TypeError)) throw error;
      this.log(`update: the list or the manifest cannot be read: ${error}`);
      this.#lookLater();
      return;
    }
    this.#takeManifest(version, envelope);
  }

  #takeManifest(version, content) {
    const envelope = crypto.createHash('sha256').update(content).digest('hex');
    const tries = envelope === this.state.envelope ? this.state.tries : 0;
    if (envelope === this.state.envelope && this.state.state === 'rolled-back' && tries >= TRIES_MAX) {
      this.#lookLater(); // the same as was refused
      return;
    }
    let manifest;
    try {
      manifest = openManifest(content, firmware.MAKER_KEYS, firmware, this.clock.now());
      if (manifest.version !== version) throw new Refused('forged');
    } catch (error) {
      if (error.message === 'not-yet-valid') {
        this.log('a new version is not valid yet');
        this.#lookLater();
        return;
      }
      this.state = { ...NOTHING, version, envelope, tries };
      throw error;
    }
    this.state = { ...NOTHING, ...manifest, envelope, tries };
    this.log('a new version: downloading');
    this.#save('downloading');
  }

  // Fetches the next part of the image; verifies the whole one.
  async #download() {
    const { state } = this;
    if (state.done >= state.size) {
      this.#verifyImage();
      return;
    }
    const stop = Math.min(state.done + PART_BYTES, state.size);
    const fields = { Range: `bytes=${state.done}-${stop - 1}`, 'If-Range': `"${state.sha256}"` };
    let content;
    try {
      content = await this.client.get(`/artefacts/${firmware.NAME}/${state.version}/image`, fields, PART_BYTES, 206);
    } catch (error) {
      if (!(error instanceof GoneError)) throw error;
      this.log('the new version is not offered any more');
      this.#save('');
      this.#lookLater();
      return;
    }
    if (content.length !== stop - state.done) throw new Refused('truncated');
    const file = fs.openSync(this.image, state.done ? 'r+' : 'w');
    try {
      fs.writeSync(file, content, 0, content.length, state.done);
      fs.fsyncSync(file);
    } finally {
      fs.closeSync(file);
    }
    state.done = stop;
    this.#save('downloading');
  }

  // Reads the stored image once more: so its disk is verified too.
  #verifyImage() {
    const digest = crypto.createHash('sha256').update(fs.readFileSync(this.image)).digest('hex');
    if (digest !== this.state.sha256) throw new Refused('forged');
    this.log('the new version is verified');
    this.#save('verified');
  }
}

module.exports = { SlotUpdater };
