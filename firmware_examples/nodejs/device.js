// Device of the Node.js examples: settings, readings, commands and the clock. It knows nothing of the protocol.
'use strict';
const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const os = require('node:os');
const { ReadingSpool } = require('./spool.js');
const { SlotUpdater } = require('./update.js');

const INTERVAL_MS_MIN = 10;
const INTERVAL_MS_MAX = 86400000;
const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 8000;
const CLOCK_SET_AFTER_MS = 1.7e12; // an earlier time means that a clock was never set
const CLOCK_ASK_MS = 3600000;
const FEED_MS = 1000;

const log = (text) => console.error(new Date().toTimeString().slice(0, 8), text);

function fail(code, text) {
  log(text);
  process.exit(code);
}

// Settings, from variables of the environment; `port` and `portTls` are the defaults of the protocol.
function settingsFromEnvironment(env, port, portTls) {
  const number = (name, value) => {
    if (env[name] === undefined) return value;
    if (!/^\d+$/.test(env[name])) fail(2, `${name}=${env[name]} is not a number`);
    return Number(env[name]);
  };
  const file = (name) => {
    if (!env[name]) return undefined;
    try {
      return fs.readFileSync(env[name]);
    } catch (error) {
      return fail(2, `${name}=${env[name]} cannot be read: ${error.code}`);
    }
  };
  const ca = file('WAYPOST_CA');
  const cert = file('WAYPOST_CERTIFICATE');
  if (cert && !ca) fail(2, 'WAYPOST_CERTIFICATE needs TLS: set WAYPOST_CA too');
  if (env.WAYPOST_UPDATE_URL && !env.WAYPOST_SLOT) {
    fail(2, 'WAYPOST_UPDATE_URL needs the boot loader: start boot_loader.js');
  }
  return {
    host: env.WAYPOST_HOST || '127.0.0.1',
    port: number('WAYPOST_PORT', ca ? portTls : port),
    device: env.WAYPOST_DEVICE || 'pump7',
    password: env.WAYPOST_PASSWORD,
    tls: { ca, cert, key: file('WAYPOST_KEY') || cert },
    spool: env.WAYPOST_SPOOL || 'readings.spool',
    spoolReadings: number('WAYPOST_SPOOL_READINGS', 1024),
    intervalMs: number('WAYPOST_INTERVAL_MS', 1000),
    timeUrl: env.WAYPOST_TIME_URL || '',
    updateUrl: env.WAYPOST_UPDATE_URL || '',
    updateS: number('WAYPOST_UPDATE_S', 3600),
    trialS: number('WAYPOST_TRIAL_S', 600),
    slots: env.WAYPOST_SLOTS,
    slot: number('WAYPOST_SLOT', null),
  };
}

// Time of the gateway: the field Date of an HTTP answer. Without a URL it is the time of this machine.
class GatewayClock {
  #offsetMs = null; // time of the gateway minus the monotonic clock
  #askedMs = -Infinity;

  constructor(url, ca) {
    this.url = url;
    this.ca = ca;
  }

  // Asks the gateway, at most once an hour. A failure is no error: readings have no time until it answers.
  ask() {
    if (!this.url || performance.now() - this.#askedMs < CLOCK_ASK_MS) return;
    const get = this.url.startsWith('https') ? https.get : http.get;
    const request = get(`${this.url.replace(/\/$/, '')}/healthz`, { ca: this.ca, timeout: 5000 }, (answer) => {
      answer.resume();
      const at = Date.parse(answer.headers.date);
      if (!(at > CLOCK_SET_AFTER_MS)) return;
      this.#offsetMs = at - performance.now();
      this.#askedMs = performance.now();
    });
    request.on('timeout', () => request.destroy(new Error('no answer in time')));
    request.on('error', (error) => log(`no time from ${this.url}: ${error.message}`));
  }

  // Returns seconds since 1970; undefined if the time is not known.
  now() {
    if (this.url && this.#offsetMs === null) return undefined;
    const at = this.url ? performance.now() + this.#offsetMs : Date.now();
    return at > CLOCK_SET_AFTER_MS ? Math.floor(at / 1000) : undefined;
  }
}

// Delays between attempts: doubled each time, with jitter, so that a thousand devices do not return at once.
class RetryDelay {
  #nextMs = RETRY_MS_MIN;

  reset() {
    this.#nextMs = RETRY_MS_MIN;
  }

  take() {
    const delayMs = this.#nextMs * (0.5 + Math.random() / 2);
    this.#nextMs = Math.min(this.#nextMs * 2, RETRY_MS_MAX);
    return delayMs;
  }
}

class ExampleDevice {
  #send = () => {};
  #timer;
  #dueMs = performance.now();
  #measuredMs = 0;

  constructor(settings, spool) {
    this.settings = settings;
    this.spool = spool;
    this.clock = new GatewayClock(settings.timeUrl, settings.tls.ca);
    this.intervalMs = settings.intervalMs;
    this.boot = crypto.randomBytes(4).toString('hex');
    this.stopping = false;
  }

  // Measures at each interval. `send` is called after each reading, and when the device is stopped.
  run(send) {
    this.#send = send;
    process.on('SIGINT', () => this.stop());
    process.on('SIGTERM', () => this.stop());
    if (this.settings.slot !== null) this.#feed();
    if (this.settings.updateUrl) new SlotUpdater(this.settings, this.spool, this.clock, new RetryDelay(), log).run();
    this.#measureWhenDue();
  }

  // Tells the boot loader that the program is alive.
  #feed() {
    process.stdout.write('.');
    setTimeout(() => this.#feed(), FEED_MS).unref();
  }

  // Stops measuring; the program ends once every reading is acknowledged.
  stop() {
    this.stopping = true;
    clearTimeout(this.#timer);
    this.#send();
  }

  get finished() {
    return this.stopping && this.spool.length === 0;
  }

  // Ends the program.
  exit() {
    log(`stopped: every reading below ${this.spool.next} is acknowledged, ${this.spool.dropped} were dropped`);
    process.exit(0);
  }

  // Stores one reading. Read your own sensors here.
  #measure() {
    const reading = {
      device: this.settings.device,
      boot: this.boot,
      seq: this.spool.next,
      at: this.clock.now(), // left out when it is undefined
      load_1m: Number(os.loadavg()[0].toFixed(2)),
    };
    this.spool.add(Buffer.from(JSON.stringify(reading)));
  }

  #measureWhenDue() {
    if (this.stopping) return;
    try {
      this.#measure();
    } catch (error) {
      fail(1, `cannot store reading ${this.spool.next}: ${error.message}; check the disk`);
    }
    this.#send();
    this.#measuredMs = performance.now();
    this.#dueMs = Math.max(this.#dueMs + this.intervalMs, this.#measuredMs);
    this.#timer = setTimeout(() => this.#measureWhenDue(), this.#dueMs - this.#measuredMs);
  }

  // Obeys a command; returns the answer. The same command twice has the effect of one.
  obey(payload) {
    let id;
    try {
      const command = JSON.parse(payload.toString());
      if (command === null || typeof command !== 'object') throw new Error('not an object');
      id = command.id;
      const intervalMs = command.interval_ms ?? this.intervalMs;
      if (!Number.isInteger(intervalMs) || intervalMs < INTERVAL_MS_MIN || intervalMs > INTERVAL_MS_MAX) {
        throw new Error(`interval_ms has to be ${INTERVAL_MS_MIN} to ${INTERVAL_MS_MAX}`);
      }
      if (!('interval_ms' in command) && !('stop' in command)) throw new Error('unknown command');
      if (intervalMs !== this.intervalMs) {
        this.intervalMs = intervalMs;
        this.#dueMs = this.#measuredMs + intervalMs;
        clearTimeout(this.#timer);
        this.#timer = setTimeout(() => this.#measureWhenDue(), Math.max(0, this.#dueMs - performance.now()));
      }
      const stop = command.stop === true || undefined;
      log(`command obeyed: interval ${intervalMs} ms${stop ? ', stop' : ''}`);
      if (stop) setImmediate(() => this.stop());
      return { id, status: 200, interval_ms: intervalMs };
    } catch (error) {
      log(`command refused: ${error.message}`);
      return { id, status: 400, error: error.message };
    }
  }
}

// Returns the device of this environment; ends the program with 2 for a wrong setting.
function deviceFromEnvironment(port, portTls) {
  const settings = settingsFromEnvironment(process.env, port, portTls);
  try {
    return new ExampleDevice(settings, new ReadingSpool(settings.spool, settings.spoolReadings));
  } catch (error) {
    return fail(2, error.message);
  }
}

module.exports = { deviceFromEnvironment, RetryDelay, log };
