// Boot loader: it starts the program in one of two slots, and goes back from one that does not confirm.
// `node boot_loader.js FOLDER`. FOLDER has the programs `slot0` and `slot1`, and the file `boot`: "kept trial starts".
'use strict';
const { spawn } = require('node:child_process');
const fs = require('node:fs');
const path = require('node:path');

const EXIT_RESTART = 75; // exit code of a program that is to be started again at once
const STARTS_MAX = 3; // starts of a program on trial
const WATCHDOG_S = 120; // a program that writes nothing to its standard output for so long is killed
const PAUSE_MS = 1000;

// Replaces a file: after a power cut it is the old or the new one.
function writeDurably(file, content) {
  const made = fs.openSync(`${file}.new`, 'w');
  try {
    fs.writeSync(made, content);
    fs.fsyncSync(made);
  } finally {
    fs.closeSync(made);
  }
  fs.renameSync(`${file}.new`, file);
  const folder = fs.openSync(path.dirname(path.resolve(file)), 'r');
  fs.fsyncSync(folder);
  fs.closeSync(folder);
}

function readBoot(folder) {
  const file = path.join(folder, 'boot');
  if (!fs.existsSync(file)) return { kept: 0, trial: null, starts: 0 }; // the first start ever
  const [kept, trial, starts] = fs.readFileSync(file, 'utf8').trim().split(' ');
  return { kept: Number(kept), trial: trial === '-' ? null : Number(trial), starts: Number(starts) };
}

function writeBoot(folder, { kept, trial = null, starts = 0 }) {
  writeDurably(path.join(folder, 'boot'), `${kept} ${trial ?? '-'} ${starts}\n`);
}

const say = (text) => console.error(`boot: ${text}`);

// Returns the slot to start now, and whether it is on trial; its start is on disk.
function chooseSlot(folder) {
  const record = readBoot(folder);
  if (record.trial === null) return [record.kept, false];
  try {
    if (record.starts >= STARTS_MAX) {
      say(`no confirmation in ${STARTS_MAX} starts, back to slot ${record.kept}`);
      writeBoot(folder, { kept: record.kept });
      return [record.kept, false];
    }
    writeBoot(folder, { ...record, starts: record.starts + 1 });
    return [record.trial, true];
  } catch (error) { // such as a full disk: the kept program runs
    say(`no trial now: ${error.message}`);
    return [record.kept, false];
  }
}

// Starts programs until one is stopped.
function bootFrom(folder) {
  const watchdogMs = Number(process.env.WAYPOST_WATCHDOG_S || WATCHDOG_S) * 1000;
  let child;
  let stopped = false;
  const start = () => {
    const [slot, isTrial] = chooseSlot(folder);
    const env = { ...process.env, WAYPOST_SLOTS: folder, WAYPOST_SLOT: String(slot) };
    child = spawn(process.execPath, [path.join(folder, `slot${slot}`)], { env, stdio: ['ignore', 'pipe', 'inherit'] });
    let timer;
    const feed = () => {
      clearTimeout(timer);
      timer = setTimeout(() => child.kill('SIGKILL'), watchdogMs);
    };
    feed();
    child.stdout.on('data', feed);
    child.on('exit', (code) => {
      clearTimeout(timer);
      if (stopped || (code !== null && code !== EXIT_RESTART && (code === 0 || !isTrial))) process.exit(code ?? 0);
      setTimeout(start, code === EXIT_RESTART ? 0 : PAUSE_MS);
    });
  };
  for (const signal of ['SIGTERM', 'SIGINT']) {
    process.on(signal, () => {
      stopped = true;
      child.kill(signal);
    });
  }
  start();
}

if (require.main === module) bootFrom(path.resolve(process.argv[2]));

module.exports = { EXIT_RESTART, readBoot, writeBoot, writeDurably };
