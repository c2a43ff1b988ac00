// Device that publishes over AMQP 1.0, with rhea. Run `node amqp_device.js`; README.md has the rest.
'use strict';
const rhea = require('rhea');
const { deviceFromEnvironment, RetryDelay, log } = require('./device.js');

const WINDOW = 8; // readings in flight: sent and not settled by the gateway
const IDLE_MS = 60000;
const ANSWER_MS = 5000; // longest wait for the answer to the last status
const UNAUTHORIZED = 'amqp:unauthorized-access';
const REFUSALS = '`waypost client refusals` at the gateway has the reason';
const RETAINED = { 'x-opt-retain-message': true };

const data = (text) => rhea.message.data_section(Buffer.from(text));

// One connection at a time. rhea's own reconnecting is not used: the spool has what has to be sent again.
class AmqpDevice {
  #connection = null;
  #readings = null; // sender; null while the gateway does not serve us
  #senders = new Map(); // further senders, by their address
  #answers = []; // answers that wait for credit: address, message, delivery of the command
  #commands = new Map(); // deliveries of commands, by that of their answer in flight
  #inFlight = new Map(); // numbers of readings, by their delivery
  #next = 0; // next reading to send
  #ending = false;
  #offline; // delivery of the last status
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

  #connect() {
    const { host, port, device, password, tls } = this.settings;
    this.device.clock.ask();
    const container = rhea.create_container({ id: device, autoaccept: false });
    const connection = container.connect({
      host, port, container_id: device, reconnect: false, idle_time_out: IDLE_MS,
      ...(tls.ca && { transport: 'tls', ...tls, rejectUnauthorized: true, enable_sasl_external: Boolean(tls.cert) }),
      ...(password ? { username: device, password } : tls.cert ? {} : { username: 'anonymous' }),
      properties: {
        'x-opt-will-address': `status/${device}`,
        'x-opt-will-body': 'offline',
        'x-opt-retain-message': true,
      },
    });
    this.#connection = connection;
    const ours = (handler) => (context) => connection === this.#connection && handler(context);
    connection.on('connection_open', ours(() => this.#onOpen()));
    connection.on('connection_error', ours(({ error }) => this.#logError(error)));
    for (const event of ['sender_error', 'receiver_error']) connection.on(event, ours((context) => this.#onLinkError(context)));
    for (const event of ['rejected', 'released', 'modified']) connection.on(event, ours((context) => this.#onRefused(context)));
    connection.on('sendable', ours(() => this.#send()));
    connection.on('accepted', ours(({ delivery }) => this.#onAccepted(delivery)));
    connection.on('message', ours((context) => this.#onMessage(context)));
    connection.on('connection_close', ours(() => this.#onClosed()));
    connection.on('error', ours((error) => this.#onClosed(error)));
    connection.on('protocol_error', ours((error) => this.#onClosed(error)));
    connection.on('disconnected', ours(({ error }) => this.#onClosed(error)));
  }

  #onOpen() {
    const { device } = this.settings;
    log('connected');
    this.#next = this.spool.acknowledged;
    this.#readings = this.#connection.open_sender(`plant/${device}`);
    this.#connection.open_receiver({ source: `command/${device}`, credit_window: 0, autoaccept: false }).add_credit(1);
    this.#sendStatus('online');
  }

  #logError(error) {
    const { host, port } = this.settings;
    const step = error.condition === UNAUTHORIZED ? '; wrong user or password: `waypost user rotate` at the gateway makes a new one' : '';
    log(`connection to ${host}:${port}: ${error.description || error.message || error.condition}${step}`);
  }

  #onLinkError({ sender, receiver }) {
    log(`a link was refused: ${(sender || receiver).error.description}; ${REFUSALS}`);
    this.#connection.close();
  }

  #onClosed(error) {
    if (error) this.#logError(error);
    if (this.#readings) log('disconnected');
    const socket = this.#connection.socket;
    this.#connection = this.#readings = null;
    for (const pending of [this.#senders, this.#commands, this.#inFlight]) pending.clear();
    this.#answers = [];
    setTimeout(() => socket.destroy(), 100); // the answer to a close may leave before
    if (this.#ending || this.device.finished) this.device.exit();
    setTimeout(() => this.#connect(), this.#retry.take());
  }

  // Sends readings and answers until the window or the credit is used up; ends the program when all is done.
  #send() {
    const { spool } = this;
    const waiting = new Set(this.#inFlight.values());
    this.#next = Math.max(this.#next, spool.acknowledged);
    while (this.#readings && this.#readings.sendable() && waiting.size < WINDOW && this.#next < spool.next) {
      const number = this.#next++;
      const content = spool.get(number);
      if (content === null) {
        spool.acknowledge(number); // acknowledged before an earlier one, or damaged on the disk
      } else if (!waiting.has(number)) {
        const message = { body: data(content), content_type: 'application/json', durable: true };
        this.#inFlight.set(this.#readings.send(message), number);
        waiting.add(number);
      }
    }
    for (const answer of [...this.#answers]) {
      const sender = this.#sender(answer.address);
      if (!sender.sendable()) continue;
      this.#answers.splice(this.#answers.indexOf(answer), 1);
      this.#commands.set(sender.send(answer.message), answer.command);
    }
    if (this.#readings && this.device.finished && !this.#answers.length && !this.#commands.size) this.#finish();
  }

  #sender(address) {
    if (!this.#senders.has(address)) this.#senders.set(address, this.#connection.open_sender(address));
    return this.#senders.get(address);
  }

  // Sends the status as a retained message, and returns its delivery; a link that has just been made gets its credit later.
  #sendStatus(status) {
    const message = { body: data(status), durable: true, message_annotations: RETAINED };
    return this.#sender(`status/${this.settings.device}`).send(message);
  }

  #finish() {
    if (this.#ending) return;
    this.#ending = true;
    this.#offline = this.#sendStatus('offline');
    setTimeout(() => this.#onClosed(), ANSWER_MS);
  }

  #onAccepted(delivery) {
    if (delivery === this.#offline) {
      this.#connection.close();
    } else if (this.#inFlight.has(delivery)) {
      this.spool.acknowledge(this.#inFlight.get(delivery));
      this.#inFlight.delete(delivery);
      this.#retry.reset();
    } else if (this.#commands.has(delivery)) {
      const command = this.#commands.get(delivery);
      this.#commands.delete(delivery);
      command.accept(); // last: without it the command comes again after a reset
      command.link.add_credit(1);
    }
    this.#send();
  }

  #onRefused({ delivery }) {
    const why = delivery.remote_state && delivery.remote_state.error;
    log(`a message was not accepted: ${(why && why.description) || 'no reason'}; ${REFUSALS}`);
    this.#connection.close(); // readings stay in the spool, and are sent again after a delay
  }

  // Obeys a command, and queues its answer.
  #onMessage({ message, delivery }) {
    const { body } = message;
    const answer = this.device.obey(body && body.content ? body.content : String(body));
    this.#answers.push({
      address: message.reply_to || `command-response/${this.settings.device}`,
      message: {
        body: data(JSON.stringify(answer)), durable: true,
        correlation_id: message.correlation_id, application_properties: { status: answer.status },
      },
      command: delivery,
    });
    this.#send();
  }
}

new AmqpDevice(deviceFromEnvironment(5672, 5671)).run();
