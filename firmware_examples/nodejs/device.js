// Device that publishes over MQTT 5 at QoS 1, with MQTT.js. Run `node device.js`; README.md has the rest.
'use strict';
const crypto = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const os = require('node:os');
const mqtt = require('mqtt');
const { ReadingSpool } = require('./spool.js');

const WINDOW = 8; // readings in flight: sent and not acknowledged
const KEEP_ALIVE_S = 30;
const SESSION_S = 7 * 86400; // the gateway keeps commands for an absent device for this time
const INTERVAL_MS_MIN = 10;
const INTERVAL_MS_MAX = 86400000;
const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 8000;
const CLOCK_SET_AFTER_MS = 1.7e12; // an earlier time means that a clock was never set
const CLOCK_ASK_MS = 3600000;
const NEXT_STEP = {
  0x85: 'two devices have the same name, or the name is not valid: set WAYPOST_DEVICE',
  0x86: 'wrong user or password: `waypost user rotate` at the gateway makes a new one',
  0x87: 'no right: `waypost client refusals` at the gateway names it',
};

const log = (text) => console.error(new Date().toTimeString().slice(0, 8), text);

function fail(code, text) {
  log(text);
  process.exit(code);
}

// Settings, from variables of the environment.
function settingsFromEnvironment(env) {
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
  return {
    host: env.WAYPOST_HOST || '127.0.0.1',
    port: number('WAYPOST_PORT', ca ? 8883 : 1883),
    device: env.WAYPOST_DEVICE || 'pump7',
    password: env.WAYPOST_PASSWORD,
    tls: { ca, cert, key: file('WAYPOST_KEY') || cert },
    spool: env.WAYPOST_SPOOL || 'readings.spool',
    spoolReadings: number('WAYPOST_SPOOL_READINGS', 1024),
    intervalMs: number('WAYPOST_INTERVAL_MS', 1000),
    timeUrl: env.WAYPOST_TIME_URL || '',
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

class MqttDevice {
  #client = null;
  #connected = false;
  #sending = 0; // next reading to send on this connection
  #sent = 0; // readings below this number were sent before, perhaps on another connection
  #inFlight = 0;
  #retryMs = RETRY_MS_MIN;
  #stopping = false;

  constructor(settings, spool) {
    this.settings = settings;
    this.spool = spool;
    this.clock = new GatewayClock(settings.timeUrl, settings.tls.ca);
    this.intervalMs = settings.intervalMs;
    this.boot = crypto.randomBytes(4).toString('hex');
    this.dueMs = performance.now();
  }

  run() {
    this.#measureWhenDue();
    this.#connect();
  }

  // Stops measuring; the program ends once every reading is acknowledged.
  stop() {
    this.#stopping = true;
    clearTimeout(this.timer);
    this.#send();
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
    if (this.#stopping) return;
    try {
      this.#measure();
    } catch (error) {
      fail(1, `cannot store reading ${this.spool.next}: ${error.message}; check the disk`);
    }
    this.#send();
    this.measuredMs = performance.now();
    this.dueMs = Math.max(this.dueMs + this.intervalMs, this.measuredMs);
    this.timer = setTimeout(() => this.#measureWhenDue(), this.dueMs - this.measuredMs);
  }

  // Opens a connection with a new client. MQTT.js keeps nothing from the one before: the spool has the readings.
  #connect() {
    const { host, port, device, password, tls } = this.settings;
    this.clock.ask();
    const client = mqtt.connect({
      host, port, password, protocol: tls.ca ? 'mqtts' : 'mqtt', ...tls,
      username: password ? device : undefined, clientId: device, protocolVersion: 5, clean: false,
      properties: { sessionExpiryInterval: SESSION_S }, keepalive: KEEP_ALIVE_S, connectTimeout: 5000,
      reconnectPeriod: 0, resubscribe: false, rejectUnauthorized: true,
      will: { topic: `status/${device}`, payload: 'offline', qos: 1, retain: true },
    });
    this.#client = client;
    client.on('connect', () => this.#onConnect());
    client.on('message', (_topic, payload, packet) => this.#onMessage(payload, packet.properties || {}));
    client.on('error', (error) => log(`connection to ${host}:${port}: ${error.message}; ${NEXT_STEP[error.code] || ''}`));
    client.once('close', () => this.#onClose(client));
  }

  #onConnect() {
    log('connected');
    this.#connected = true;
    this.#inFlight = 0;
    this.#sending = this.spool.acknowledged;
    const { device } = this.settings;
    this.#client.subscribe(`command/${device}/#`, { qos: 1 }, (error) => error && log(`no commands: ${error.message}`));
    this.#client.publish(`status/${device}`, 'online', { qos: 1, retain: true });
    this.#send();
  }

  #onClose(client) {
    if (this.#connected) log('disconnected');
    this.#connected = false;
    client.removeAllListeners();
    client.on('error', () => {});
    client.end(true);
    if (this.#stopping && this.spool.length === 0) return;
    const delayMs = this.#retryMs * (0.5 + Math.random() / 2); // jitter: a thousand devices do not return at once
    this.#retryMs = Math.min(this.#retryMs * 2, RETRY_MS_MAX);
    setTimeout(() => this.#connect(), delayMs);
  }

  // Sends readings until the window is full; ends the program when it was stopped and all are acknowledged.
  #send() {
    if (!this.#connected) return;
    const { spool } = this;
    this.#sending = Math.max(this.#sending, spool.acknowledged);
    while (this.#sending < spool.next && this.#inFlight < WINDOW) {
      const number = this.#sending++;
      const content = spool.get(number);
      if (content === null) {
        spool.acknowledge(number); // acknowledged before an earlier one, or damaged on the disk
        continue;
      }
      const client = this.#client;
      const dup = number < this.#sent;
      this.#sent = Math.max(this.#sent, number + 1);
      this.#inFlight++;
      client.publish(`plant/${this.settings.device}`, content, { qos: 1, dup }, (error) => this.#onAnswer(client, number, error));
    }
    if (this.#stopping && spool.length === 0) this.#finish();
  }

  #onAnswer(client, number, error) {
    if (client !== this.#client) return; // of a connection that is over
    this.#inFlight--;
    if (!error) {
      this.spool.acknowledge(number);
      this.#retryMs = RETRY_MS_MIN;
      this.#send();
    } else if (this.#connected) { // it stays in the spool, and is sent again after a delay
      log(`reading ${number} was refused: ${error.message}; \`waypost client refusals\` at the gateway has the reason`);
      this.#connected = false;
      client.end(true);
    }
  }

  #finish() {
    this.#connected = false;
    const { spool } = this;
    this.#client.publish(`status/${this.settings.device}`, 'offline', { qos: 1, retain: true });
    this.#client.end(false, {}, () => {
      log(`stopped: every reading below ${spool.next} is acknowledged, ${spool.dropped} were dropped`);
      process.exit(0);
    });
  }

  // Obeys a command, then answers it. MQTT.js acknowledges it when this returns.
  #onMessage(payload, { responseTopic, correlationData }) {
    const answer = this.#obey(payload);
    const properties = { userProperties: { status: String(answer.status) } };
    if (correlationData) properties.correlationData = correlationData;
    const topic = responseTopic || `command-response/${this.settings.device}`;
    this.#client.publish(topic, JSON.stringify(answer), { qos: 1, properties });
    if (answer.stop) setImmediate(() => this.stop());
  }

  #obey(payload) {
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
        this.dueMs = this.measuredMs + intervalMs;
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.#measureWhenDue(), Math.max(0, this.dueMs - performance.now()));
      }
      const stop = command.stop === true || undefined;
      log(`command obeyed: interval ${intervalMs} ms${stop ? ', stop' : ''}`);
      return { id, status: 200, interval_ms: intervalMs, stop };
    } catch (error) {
      log(`command refused: ${error.message}`);
      return { id, status: 400, error: error.message };
    }
  }
}

const settings = settingsFromEnvironment(process.env);
let spool;
try {
  spool = new ReadingSpool(settings.spool, settings.spoolReadings);
} catch (error) {
  fail(2, error.message);
}
const device = new MqttDevice(settings, spool);
process.on('SIGINT', () => device.stop());
process.on('SIGTERM', () => device.stop());
device.run();
