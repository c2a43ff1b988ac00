//! Identity of this program, as `waypost artefact sign` gets it, and the keys of its maker.

pub const NAME: &str = "pump";
pub const VERSION: &str = "1.0.0";
pub const SEQUENCE: u64 = 1; // rises with every version
pub const BOARD: &str = "rust";
/// Public keys of the maker in PEM, one behind the other. Without a key no image is accepted.
pub const MAKER_KEYS: &str = "";
