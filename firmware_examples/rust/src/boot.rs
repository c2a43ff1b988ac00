//! Boot loader: it starts the program in one of two slots, and goes back from one that does not confirm.
//! `waypost-device boot FOLDER`. FOLDER has the programs `slot0` and `slot1`, and the file `boot`: "kept trial starts".

use std::env;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

pub const EXIT_RESTART: i32 = 75; // exit code of a program that is to be started again at once
const STARTS_MAX: u32 = 3; // starts of a program on trial
const PAUSE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20); // at the program that runs
const WATCHDOG_S: u64 = 120; // a program that writes nothing to its standard output for so long is killed

/// Content of the file `boot`.
pub struct BootRecord {
    pub kept: u32,
    pub trial: Option<u32>,
    pub starts: u32,
}

impl BootRecord {
    /// Record that a slot is kept, and none is tried.
    pub fn keep(slot: u32) -> Self {
        Self { kept: slot, trial: None, starts: 0 }
    }

    /// Read the file; the first start ever has none.
    pub fn read(folder: &Path) -> io::Result<Self> {
        let content = match fs::read_to_string(folder.join("boot")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::keep(0)),
            found => found?,
        };
        let words: Vec<&str> = content.split_whitespace().collect();
        match words[..] {
            [kept, trial, starts] => {
                let number = |word: &str| word.parse::<u32>().map_err(io::Error::other);
                Ok(Self { kept: number(kept)?, trial: trial.parse().ok(), starts: number(starts)? })
            }
            _ => Err(io::Error::other(format!("{}: three words are expected", folder.join("boot").display()))),
        }
    }

    /// Replace the file; it is on disk when this returns.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let trial = self.trial.map_or("-".into(), |slot| slot.to_string());
        write_durably(&folder.join("boot"), format!("{} {trial} {}\n", self.kept, self.starts).as_bytes())
    }
}

/// Replace a file: after a power cut it is the old or the new one.
pub fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    let made = PathBuf::from(format!("{}.new", path.display()));
    let mut file = File::create(&made)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&made, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Return the slot to start now, and whether it is on trial; its start is on disk.
fn choose_slot(folder: &Path) -> io::Result<(u32, bool)> {
    let record = BootRecord::read(folder)?;
    let Some(trial) = record.trial else { return Ok((record.kept, false)) };
    let next = if record.starts >= STARTS_MAX {
        eprintln!("boot: no confirmation in {STARTS_MAX} starts, back to slot {}", record.kept);
        BootRecord::keep(record.kept)
    } else {
        BootRecord { starts: record.starts + 1, ..record }
    };
    if let Err(error) = next.write(folder) {
        eprintln!("boot: no trial now: {error}"); // such as a full disk: the kept program runs
        return Ok((next.kept, false));
    }
    Ok(next.trial.map_or((next.kept, false), |_| (trial, true)))
}

/// Start programs until one is stopped; return the exit code.
pub fn boot_from(folder: &Path) -> i32 {
    let watchdog_s = env::var("WAYPOST_WATCHDOG_S").ok().and_then(|text| text.parse().ok()).unwrap_or(WATCHDOG_S);
    let (terminated, interrupted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    for (number, asked) in [(signal_hook::consts::SIGTERM, &terminated), (signal_hook::consts::SIGINT, &interrupted)] {
        if let Err(error) = signal_hook::flag::register(number, asked.clone()) {
            eprintln!("boot: {error}");
            return 1;
        }
    }
    loop {
        let (slot, is_trial) = match choose_slot(folder) {
            Ok(chosen) => chosen,
            Err(error) => {
                eprintln!("boot: {error}");
                return 1;
            }
        };
        let asked = || terminated.load(Ordering::Relaxed) || interrupted.load(Ordering::Relaxed);
        let code = run_slot(folder, slot, Duration::from_secs(watchdog_s), &asked);
        if asked() || code.is_some_and(|code| code != EXIT_RESTART && (code == 0 || !is_trial)) {
            return code.unwrap_or(0);
        }
        if code != Some(EXIT_RESTART) {
            thread::sleep(PAUSE);
        }
    }
}

/// Run the program of a slot; return its exit code, None if it was killed or is no program.
fn run_slot(folder: &Path, slot: u32, watchdog: Duration, asked: &dyn Fn() -> bool) -> Option<i32> {
    let mut command = Command::new(folder.join(format!("slot{slot}")));
    command.env("WAYPOST_SLOTS", folder).env("WAYPOST_SLOT", slot.to_string()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("boot: {error}");
            return None;
        }
    };
    let fed = Arc::new(Mutex::new(Instant::now()));
    if let Some(mut output) = child.stdout.take() {
        let fed = fed.clone();
        thread::spawn(move || {
            let mut buffer = [0; 64];
            while matches!(output.read(&mut buffer), Ok(count) if count > 0) {
                *fed.lock().unwrap() = Instant::now();
            }
        });
    }
    let mut passed_on = false;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) => {}
            Err(_) => return None,
        }
        if asked() && !passed_on {
            passed_on = true;
            // The standard library has no other signal than SIGKILL.
            let _ = Command::new("kill").arg(child.id().to_string()).status();
        }
        if fed.lock().unwrap().elapsed() > watchdog {
            let _ = child.kill();
        }
        thread::sleep(LOOK);
    }
}

/// Tell the boot loader that the program is alive.
pub fn feed_watchdog() {
    loop {
        let _ = io::stdout().write_all(b".").and_then(|()| io::stdout().flush());
        thread::sleep(Duration::from_secs(1));
    }
}
