// Ring of unacknowledged readings in a file: it survives a reset, keeps the order, and never grows.
// The format is the same in all examples: firmware_examples/README.md.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const zlib = require('node:zlib');

const SLOT_BYTES = 512;
const HEADER_BYTES = 16;
const FORMAT = 1;
const CONTENT_BYTES_MAX = SLOT_BYTES - HEADER_BYTES;

class ReadingSpool {
  #file;
  #first; // first reading of this start
  #ackedEarly = new Set(); // acknowledged readings behind one that is not
  dropped = 0; // readings that were overwritten before they were acknowledged, since the start
  next = 0; // number of the next reading
  acknowledged = 0; // every reading below this number was acknowledged
  delivered = false; // a reading of this start was acknowledged: the sign of health of a new version

  // Opens or creates the file. `capacity` (readings) counts only when it is created. Throws an Error with the next step.
  constructor(file, capacity) {
    if (!fs.existsSync(file)) create(file, capacity);
    this.#file = fs.openSync(file, 'r+');
    const size = fs.fstatSync(this.#file).size;
    if (size === 0 || size % SLOT_BYTES) {
      throw new Error(`${file} is not a spool; move it away, or set WAYPOST_SPOOL to another file`);
    }
    this.capacity = size / SLOT_BYTES;
    for (let slot = 0; slot < this.capacity; slot++) {
      const found = this.#read(slot);
      if (!found) continue;
      this.next = Math.max(this.next, found.number + 1);
      this.acknowledged = Math.max(this.acknowledged, found.acknowledged);
    }
    this.acknowledged = Math.max(this.acknowledged, this.next - this.capacity);
    this.#first = this.next;
  }

  get length() {
    return this.next - this.acknowledged;
  }

  // Stores a reading: on disk when this returns. When full, drops the oldest.
  add(content) {
    if (content.length > CONTENT_BYTES_MAX) {
      throw new RangeError(`a reading has ${content.length} bytes, and at most ${CONTENT_BYTES_MAX} fit`);
    }
    if (this.length === this.capacity) {
      this.acknowledged++;
      this.dropped++;
      this.#advance();
    }
    const slot = Buffer.alloc(HEADER_BYTES + content.length);
    slot.writeUInt32LE(this.next, 4);
    slot.writeUInt32LE(this.acknowledged, 8);
    slot.writeUInt16LE(content.length, 12);
    slot.writeUInt16LE(FORMAT, 14);
    content.copy(slot, HEADER_BYTES);
    slot.writeUInt32LE(zlib.crc32(slot.subarray(4)), 0);
    fs.writeSync(this.#file, slot, 0, slot.length, (this.next % this.capacity) * SLOT_BYTES);
    fs.fdatasyncSync(this.#file);
    return this.next++;
  }

  // Returns the content of a reading; null if it was acknowledged or dropped, or is damaged.
  get(number) {
    if (number < this.acknowledged || number >= this.next || this.#ackedEarly.has(number)) return null;
    const found = this.#read(number % this.capacity);
    return found && found.number === number ? found.content : null;
  }

  // Removes a reading.
  acknowledge(number) {
    if (number < this.acknowledged || number >= this.next) return;
    this.#ackedEarly.add(number);
    this.#advance();
    this.delivered ||= number >= this.#first;
  }

  #advance() {
    while (this.#ackedEarly.delete(this.acknowledged)) this.acknowledged++;
  }

  #read(slot) {
    const data = Buffer.alloc(SLOT_BYTES);
    fs.readSync(this.#file, data, 0, SLOT_BYTES, slot * SLOT_BYTES);
    const number = data.readUInt32LE(4);
    const end = HEADER_BYTES + data.readUInt16LE(12);
    if (data.readUInt16LE(14) !== FORMAT || end > SLOT_BYTES || number % this.capacity !== slot) return null;
    if (zlib.crc32(data.subarray(4, end)) !== data.readUInt32LE(0)) return null;
    return { number, acknowledged: data.readUInt32LE(8), content: data.subarray(HEADER_BYTES, end) };
  }
}

// Creates the file with its whole size, so that a disk without space is noticed now.
function create(file, capacity) {
  if (!(capacity >= 1)) throw new Error('WAYPOST_SPOOL_READINGS has to be at least 1');
  const made = fs.openSync(`${file}.new`, 'w');
  fs.writeSync(made, Buffer.alloc(SLOT_BYTES * capacity));
  fs.fsyncSync(made);
  fs.closeSync(made);
  fs.renameSync(`${file}.new`, file);
  const folder = fs.openSync(path.dirname(path.resolve(file)), 'r');
  fs.fsyncSync(folder);
  fs.closeSync(folder);
}

module.exports = { ReadingSpool, SLOT_BYTES, CONTENT_BYTES_MAX };
