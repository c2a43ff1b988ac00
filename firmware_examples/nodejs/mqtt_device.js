// Device that publishes over MQTT 5 at QoS 1, with MQTT.js. Run `node mqtt_device.js`; README.md has the rest.
'use strict';
const mqtt = require('mqtt');
const { deviceFromEnvironment, RetryDelay, log } = require('./device.js');

const WINDOW = 8; // readings in flight: sent and not acknowledged
const KEEP_ALIVE_S = 30;
const SESSION_S = 7 * 86400; // the gateway keeps commands for an absent device for this time
const NEXT_STEP = {
  0x85: 'two devices have the same name, or the name is not valid: set WAYPOST_DEVICE',
  0x86: 'wrong user or password: `waypost user rotate` at the gateway makes a new one',
  0x87: 'no right: `waypost client refusals` at the gateway names it',
};

class MqttDevice {
  #client = null;
  #connected = false;
  #sending = 0; // next reading to send on this connection
  #sent = 0; // readings below this number were sent before, perhaps on another connection
  #inFlight = 0;
  #retry = new RetryDelay();

  constructor(device) {
    this.device = device;
    this.settings = device.settings;
    this.spool = device.spool;
  }

  run() {
    this.device.run(() => this.#send());
    this.#connect();
  }

  // Opens a connection with a new client. MQTT.js keeps nothing from the one before: the spool has the readings.
  #connect() {
    const { host, port, device, password, tls } = this.settings;
    this.device.clock.ask();
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
    if (this.device.finished) this.device.exit();
    setTimeout(() => this.#connect(), this.#retry.take());
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
    if (this.device.finished) this.#finish();
  }

  #onAnswer(client, number, error) {
    if (client !== this.#client) return; // of a connection that is over
    this.#inFlight--;
    if (!error) {
      this.spool.acknowledge(number);
      this.#retry.reset();
      this.#send();
    } else if (this.#connected) { // it stays in the spool, and is sent again after a delay
      log(`reading ${number} was refused: ${error.message}; \`waypost client refusals\` at the gateway has the reason`);
      this.#connected = false;
      client.end(true);
    }
  }

  #finish() {
    this.#connected = false;
    this.#client.publish(`status/${this.settings.device}`, 'offline', { qos: 1, retain: true });
    this.#client.end(false, {}, () => this.device.exit());
  }

  // Obeys a command, then answers it. MQTT.js acknowledges it when this returns.
  #onMessage(payload, { responseTopic, correlationData }) {
    const answer = this.device.obey(payload);
    const properties = { userProperties: { status: String(answer.status) } };
    if (correlationData) properties.correlationData = correlationData;
    const topic = responseTopic || `command-response/${this.settings.device}`;
    this.#client.publish(topic, JSON.stringify(answer), { qos: 1, properties });
  }
}

new MqttDevice(deviceFromEnvironment(1883, 8883)).run();
