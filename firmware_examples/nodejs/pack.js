// Packs the program into one file, which is an image: `node pack.js mqtt_device slots/slot0`. Libraries are not in it.
'use strict';
const fs = require('node:fs');
const path = require('node:path');

const [program, target] = process.argv.slice(2);
const files = ['firmware', 'manifest', 'spool', 'update', 'boot_loader', 'device', program].map((name) => `./${name}.js`);
const parts = files.map((file) => `${JSON.stringify(file)}(require, module) {\n${fs.readFileSync(path.join(__dirname, file))}},\n`);
fs.writeFileSync(target, `'use strict';
const files = {
${parts.join('')}};
const loaded = {};
function load(name) {
  if (!(name in files)) return require(name);
  if (!(name in loaded)) {
    const module = { exports: {} };
    files[name](load, module);
    loaded[name] = module.exports;
  }
  return loaded[name];
}
load(${JSON.stringify(`./${program}.js`)});
`);
