// Identity of this program, as `waypost artefact sign` gets it, and the keys of its maker.
'use strict';

module.exports = {
  NAME: 'pump',
  VERSION: '1.0.0',
  SEQUENCE: 1, // rises with every version
  BOARD: 'nodejs',
  // Public keys of the maker in PEM, one behind the other. Without a key no image is accepted.
  MAKER_KEYS: `
`,
};
