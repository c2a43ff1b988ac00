//! Ring of unacknowledged readings in a file: it survives a reset, keeps the order, and never grows.
//! The format is the same in all examples: firmware_examples/README.md.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const SLOT_BYTES: usize = 512;
const HEADER_BYTES: usize = 16;
const FORMAT: u16 = 1;
pub const CONTENT_BYTES_MAX: usize = SLOT_BYTES - HEADER_BYTES;

pub struct ReadingSpool {
    file: File,
    capacity: u32,
    /// Acknowledged readings behind one that is not.
    acked_early: HashSet<u32>,
    /// Number of the next reading.
    pub next: u32,
    /// Every reading below this number was acknowledged.
    pub acknowledged: u32,
    /// Readings that were overwritten before they were acknowledged, since the start.
    pub dropped: u32,
}

struct Slot {
    number: u32,
    acknowledged: u32,
    content: Vec<u8>,
}

impl ReadingSpool {
    /// Open or create the file. `capacity` (readings) counts only when it is created.
    pub fn open(path: &Path, capacity: u32) -> Result<Self, String> {
        if !path.exists() {
            create(path, capacity)
                .map_err(|error| format!("{}: {error}; check WAYPOST_SPOOL and the disk", path.display()))?;
        }
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|error| format!("{}: {error}; check WAYPOST_SPOOL", path.display()))?;
        let size = file.metadata().map_err(|error| error.to_string())?.len();
        if size == 0 || size % SLOT_BYTES as u64 != 0 {
            let path = path.display();
            return Err(format!("{path} is not a spool; move it away, or set WAYPOST_SPOOL to another file"));
        }
        let capacity = (size / SLOT_BYTES as u64) as u32;
        let mut spool = Self { file, capacity, acked_early: HashSet::new(), next: 0, acknowledged: 0, dropped: 0 };
        for slot in (0..capacity).filter_map(|slot| spool.read(slot)).collect::<Vec<_>>() {
            spool.next = spool.next.max(slot.number + 1);
            spool.acknowledged = spool.acknowledged.max(slot.acknowledged);
        }
        spool.acknowledged = spool.acknowledged.max(spool.next.saturating_sub(capacity));
        Ok(spool)
    }

    pub fn is_empty(&self) -> bool {
        self.next == self.acknowledged
    }

    /// Store a reading: on disk when it returns. When full, drop the oldest.
    pub fn add(&mut self, content: &[u8]) -> io::Result<()> {
        if content.len() > CONTENT_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a reading has more than 496 bytes"));
        }
        if self.next - self.acknowledged == self.capacity {
            self.acknowledged += 1;
            self.dropped += 1;
            self.advance();
        }
        let mut slot = vec![0; 4];
        slot.extend(self.next.to_le_bytes());
        slot.extend(self.acknowledged.to_le_bytes());
        slot.extend((content.len() as u16).to_le_bytes());
        slot.extend(FORMAT.to_le_bytes());
        slot.extend(content);
        let checksum = crc32(&slot[4..]);
        slot[..4].copy_from_slice(&checksum.to_le_bytes());
        self.file.write_all_at(&slot, u64::from(self.next % self.capacity) * SLOT_BYTES as u64)?;
        self.file.sync_data()?;
        self.next += 1;
        Ok(())
    }

    /// Return the content of a reading; None if it was acknowledged or dropped, or is damaged.
    pub fn get(&self, number: u32) -> Option<Vec<u8>> {
        if number < self.acknowledged || number >= self.next || self.acked_early.contains(&number) {
            return None;
        }
        self.read(number % self.capacity).filter(|slot| slot.number == number).map(|slot| slot.content)
    }

    /// Remove a reading.
    pub fn acknowledge(&mut self, number: u32) {
        if number >= self.acknowledged && number < self.next {
            self.acked_early.insert(number);
            self.advance();
        }
    }

    fn advance(&mut self) {
        while self.acked_early.remove(&self.acknowledged) {
            self.acknowledged += 1;
        }
    }

    fn read(&self, slot: u32) -> Option<Slot> {
        let mut data = [0; SLOT_BYTES];
        self.file.read_exact_at(&mut data, u64::from(slot) * SLOT_BYTES as u64).ok()?;
        let u32_at = |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let u16_at = |at: usize| u16::from_le_bytes([data[at], data[at + 1]]);
        let (number, end) = (u32_at(4), HEADER_BYTES + usize::from(u16_at(12)));
        if u16_at(14) != FORMAT || end > SLOT_BYTES || number % self.capacity != slot {
            return None;
        }
        let valid = crc32(&data[4..end]) == u32_at(0);
        valid.then(|| Slot { number, acknowledged: u32_at(8), content: data[HEADER_BYTES..end].to_vec() })
    }
}

/// Create the file with its whole size, so that a disk without space is noticed now.
fn create(path: &Path, capacity: u32) -> io::Result<()> {
    if capacity < 1 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "WAYPOST_SPOOL_READINGS has to be at least 1"));
    }
    let made = path.with_extension("new");
    let mut file = File::create(&made)?;
    file.write_all(&vec![0; SLOT_BYTES * capacity as usize])?;
    file.sync_all()?;
    fs::rename(&made, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn crc32(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}
