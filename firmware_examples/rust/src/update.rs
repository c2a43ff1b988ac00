//! Update of the program by itself, in a thread of its own: docs/how-to/write-a-device-that-updates.md has the steps.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::exit;
use std::thread;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{digest, Context, SHA256};
use serde_json::{json, Value};
use ureq::http::{Request, StatusCode};
use ureq::tls::{parse_pem, Certificate, ClientCert, PemItem, RootCerts, TlsConfig};
use ureq::Agent;

use crate::boot::{write_durably, BootRecord, EXIT_RESTART};
use crate::manifest::{hexadecimal, is_version, open, Refused, ENVELOPE_BYTES_MAX};
use crate::settings::{GatewayClock, Settings, UpdateSettings};
use crate::{firmware, log, random};

const PART_BYTES: u64 = 128 << 10; // of one request, and the most that a reset makes it fetch again
const LIST_BYTES_MAX: u64 = 4 << 20;
const TRIES_MAX: u64 = 3; // trials of one image; then it is refused until another manifest comes
const HTTP_WAIT: Duration = Duration::from_secs(30);
const DELIVERY_TICK: Duration = Duration::from_millis(100);
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(8);

/// Why a step was not done.
enum Failure {
    /// Tried again after a delay.
    Passing(String),
    /// The gateway has no such artefact, or has another one now.
    Gone,
    Refused(Refused),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Passing(error.to_string())
    }
}

type Step<T> = Result<T, Failure>;

/// Asks for artefacts of the gateway, over HTTP.
struct ArtefactClient {
    url: String,
    /// Value of the field Authorization.
    authorization: Option<String>,
    agent: Agent,
}

impl ArtefactClient {
    /// Make a client that sends no password over HTTP where MQTT has TLS.
    fn new(settings: &Settings, update: &UpdateSettings) -> Result<Self, String> {
        let mut tls = TlsConfig::builder();
        if let Some(ca) = &settings.ca {
            tls = tls.root_certs(RootCerts::new_with_certs(&certificates(ca)?));
        }
        if let (Some(chain), Some(key)) = (&settings.certificate, &settings.key) {
            let key = parse_pem(key).find_map(|item| if let Ok(PemItem::PrivateKey(key)) = item { Some(key) } else { None });
            let key = key.ok_or("WAYPOST_KEY has no private key")?;
            tls = tls.client_cert(Some(ClientCert::new_with_certs(&certificates(chain)?, key)));
        }
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(HTTP_WAIT));
        let may_tell = update.url.starts_with("https:") || settings.ca.is_none();
        let password = settings.password.as_ref().filter(|_| may_tell);
        Ok(Self {
            url: update.url.trim_end_matches('/').into(),
            authorization: password.map(|password| format!("Basic {}", base64(&format!("{}:{password}", settings.device)))),
            agent: config.tls_config(tls.build()).build().into(),
        })
    }

    /// Return the content of a path, if the gateway answers as it should.
    fn get(&self, path: &str, fields: &[(&str, String)], most: u64, wanted: StatusCode) -> Step<Vec<u8>> {
        let (status, content) = self.ask("GET", path, fields, Vec::new(), most)?;
        match status {
            status if status == wanted => Ok(content),
            StatusCode::RANGE_NOT_SATISFIABLE if wanted == StatusCode::PARTIAL_CONTENT => Ok(Vec::new()),
            _ => Err(Failure::Gone),
        }
    }

    /// Report a state; one about an artefact that the gateway no longer has is dropped.
    fn report(&self, state: &StoredUpdate) -> Step<()> {
        let body = json!({"state": state.state, "reason": state.reason, "sha256": state.sha256}).to_string();
        let path = format!("/artefacts/{}/{}/report", firmware::NAME, state.version);
        self.ask("POST", &path, &[], body.into_bytes(), 1 << 16).map(|_| ())
    }

    fn ask(
        &self, method: &str, path: &str, fields: &[(&str, String)], body: Vec<u8>, most: u64,
    ) -> Step<(StatusCode, Vec<u8>)> {
        let passing = |error: &dyn std::fmt::Display| Failure::Passing(error.to_string());
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url));
        for (name, value) in fields {
            request = request.header(*name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let answer = if method == "GET" {
            self.agent.run(request.body(()).map_err(|error| passing(&error))?)
        } else {
            self.agent.run(request.body(body).map_err(|error| passing(&error))?)
        };
        let mut answer = answer.map_err(|error| passing(&error))?;
        let status = answer.status();
        if status.is_server_error() || matches!(status.as_u16(), 401 | 403 | 408 | 429) {
            return Err(Failure::Passing(format!("the gateway answers {status}")));
        }
        let content = answer.body_mut().with_config().limit(most + 1).read_to_vec().map_err(|error| passing(&error))?;
        if content.len() as u64 > most {
            return Err(Failure::Passing("the answer is too long".into()));
        }
        Ok((status, content))
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<Certificate<'static>>, String> {
    let found = parse_pem(pem).filter_map(|item| if let Ok(PemItem::Certificate(found)) = item { Some(found) } else { None });
    let found: Vec<_> = found.collect();
    if found.is_empty() { Err("a file of certificates has none".into()) } else { Ok(found) }
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::new();
    for part in text.as_bytes().chunks(3) {
        let value = (0..3).fold(0_u32, |value, at| value << 8 | u32::from(part.get(at).copied().unwrap_or(0)));
        for at in 0..4 {
            let letter = LETTERS[(value >> (18 - 6 * at) & 63) as usize];
            encoded.push(if at <= part.len() { letter as char } else { '=' });
        }
    }
    encoded
}

/// State of the update, on disk.
#[derive(Default)]
struct StoredUpdate {
    state: String,
    reported: String,
    reason: String,
    version: String,
    sequence: u64,
    size: u64,
    sha256: String,
    /// SHA-256 of the signed manifest.
    envelope: String,
    /// Bytes of the image that are in the slot.
    done: u64,
    tries: u64,
    /// Sequence of the program that wrote this.
    own: u64,
}

impl StoredUpdate {
    fn parse(content: &[u8]) -> Result<Self, String> {
        let document: Value = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let text = |name: &str| document[name].as_str().unwrap_or_default().to_string();
        let number = |name: &str| document[name].as_u64().unwrap_or_default();
        Ok(Self {
            state: text("state"),
            reported: text("reported"),
            reason: text("reason"),
            version: text("version"),
            sequence: number("sequence"),
            size: number("size"),
            sha256: text("sha256"),
            envelope: text("envelope"),
            done: number("done"),
            tries: number("tries"),
            own: number("own"),
        })
    }

    fn document(&self) -> Value {
        json!({
            "state": self.state, "reported": self.reported, "reason": self.reason, "version": self.version,
            "sequence": self.sequence, "size": self.size, "sha256": self.sha256, "envelope": self.envelope,
            "done": self.done, "tries": self.tries, "own": self.own,
        })
    }
}

/// Updates the program, and ends the process for a restart.
pub struct SlotUpdater<'a> {
    settings: &'a UpdateSettings,
    clock: &'a GatewayClock,
    /// Returns true once a reading of this start was acknowledged.
    delivered: &'a (dyn Fn() -> bool + Sync),
    client: ArtefactClient,
    record: PathBuf,
    image: PathBuf,
    look_at: Instant,
    state: StoredUpdate,
}

impl<'a> SlotUpdater<'a> {
    /// Read the state of the update.
    pub fn new(
        settings: &'a Settings, update: &'a UpdateSettings, clock: &'a GatewayClock,
        delivered: &'a (dyn Fn() -> bool + Sync),
    ) -> Result<Self, String> {
        let record = update.slots.join("update.json");
        let mut state = match std::fs::read(&record) {
            Ok(content) => StoredUpdate::parse(&content).map_err(|error| format!("{}: {error}", record.display()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => StoredUpdate::default(),
            Err(error) => return Err(format!("{}: {error}", record.display())),
        };
        if state.own != firmware::SEQUENCE && state.state == "rolled-back" {
            state.tries = 0; // what another version has refused, this one may take
        }
        Ok(Self {
            settings: update,
            clock,
            delivered,
            client: ArtefactClient::new(settings, update)?,
            record,
            image: update.slots.join(format!("slot{}", 1 - update.slot)),
            look_at: Instant::now(),
            state,
        })
    }

    /// Update for ever.
    pub fn run(mut self) {
        log(&format!("firmware: {} {}", firmware::NAME, firmware::VERSION));
        let mut result = self.judge_start().map(|()| Duration::ZERO);
        while !(self.delivered)() {
            thread::sleep(DELIVERY_TICK);
        }
        let mut retry = RETRY_MIN;
        loop {
            if let Err(Failure::Refused(reason)) = result {
                result = self.end_try(reason).map(|()| Duration::ZERO);
            }
            match &result {
                Ok(wait) => {
                    retry = RETRY_MIN;
                    thread::sleep(*wait);
                }
                Err(failure) => {
                    let text = if let Failure::Passing(text) = failure { text } else { "the gateway does not offer it" };
                    log(&format!("update: {text}"));
                    thread::sleep(jittered(retry));
                    retry = (retry * 2).min(RETRY_MAX);
                }
            }
            result = self.step();
        }
    }

    // --- state --------------------------------------------------------------------------------------------------

    fn save(&mut self, state: &str) -> Step<()> {
        self.state.state = state.into();
        self.state.own = firmware::SEQUENCE;
        Ok(write_durably(&self.record, self.state.document().to_string().as_bytes())?)
    }

    fn look_later(&mut self) {
        self.look_at = Instant::now() + jittered(self.settings.every);
    }

    /// Stay with the version that runs. The same manifest is tried again a few times, unless that cannot help.
    fn end_try(&mut self, reason: &str) -> Step<()> {
        let helps = matches!(reason, "not-healthy" | "restarted" | "cannot-install") || self.state.state == "downloading";
        self.state.tries = if helps { self.state.tries + 1 } else { TRIES_MAX };
        self.state.reported.clear();
        self.state.reason = reason.into();
        self.state.done = 0;
        log(&format!("the new version is refused, or was rolled back: {reason}"));
        self.look_later();
        self.save("rolled-back")
    }

    // --- the trial ----------------------------------------------------------------------------------------------

    /// Find out what became of a version that was installed before this start, and try the one that runs.
    fn judge_start(&mut self) -> Step<()> {
        let record = BootRecord::read(&self.settings.slots)?;
        let is_target = self.state.sequence == firmware::SEQUENCE;
        let is_installed = matches!(self.state.state.as_str(), "installed" | "started");
        let is_begun = matches!(self.state.state.as_str(), "downloading" | "verified");
        if record.kept != self.settings.slot {
            return self.try_out(is_installed, is_target);
        }
        if is_installed && is_target {
            return self.save("healthy"); // a reset between the confirmation and its record
        }
        if self.state.state == "started" {
            // Also where the boot loader could not record the end of the trial.
            BootRecord::keep(self.settings.slot).write(&self.settings.slots)?;
            let reason = if self.state.reason.is_empty() { "restarted".into() } else { self.state.reason.clone() };
            return self.end_try(&reason);
        }
        if self.state.sequence <= firmware::SEQUENCE && (is_installed || is_begun) {
            return self.save(""); // a newer version was installed by hand
        }
        Ok(())
    }

    /// Keep the running version once it has delivered a reading of its own; else go back.
    fn try_out(&mut self, is_known: bool, is_target: bool) -> Step<()> {
        self.state.reason.clear();
        if is_known {
            self.save("started")?;
        }
        let reason = if !firmware::MAKER_KEYS.contains("PUBLIC KEY") {
            "no-key" // it could never be updated again
        } else if is_known && !is_target {
            "wrong-sequence" // kept, it would be offered again and again
        } else if self.wait_delivered() {
            ""
        } else {
            "not-healthy"
        };
        if !reason.is_empty() {
            log("going back to the version before");
            self.state.reason = reason.into();
            if is_known {
                self.save("started")?;
            }
            BootRecord::keep(1 - self.settings.slot).write(&self.settings.slots)?;
            exit(EXIT_RESTART);
        }
        BootRecord::keep(self.settings.slot).write(&self.settings.slots)?;
        log("the new version is healthy");
        if is_known { self.save("healthy") } else { Ok(()) }
    }

    fn wait_delivered(&self) -> bool {
        let end = Instant::now() + self.settings.trial;
        while !(self.delivered)() && Instant::now() < end {
            thread::sleep(DELIVERY_TICK);
        }
        (self.delivered)()
    }

    // --- steps --------------------------------------------------------------------------------------------------

    /// Do what is due; return the time to wait.
    fn step(&mut self) -> Step<Duration> {
        let state = self.state.state.clone();
        if state != self.state.reported && !matches!(state.as_str(), "" | "started") {
            self.client.report(&self.state)?;
            self.state.reported = state.clone();
            return self.save(&state).map(|()| Duration::ZERO);
        }
        match state.as_str() {
            "downloading" => self.download().map(|()| Duration::ZERO),
            "verified" => self.save("installed").map(|()| Duration::ZERO),
            "installed" => {
                let slot = self.settings.slot;
                BootRecord { kept: slot, trial: Some(1 - slot), starts: 0 }.write(&self.settings.slots)?;
                // Behind the mark of the boot loader: a reset in between only repeats the mark.
                self.save("started")?;
                log("starting the new version");
                exit(EXIT_RESTART)
            }
            _ if Instant::now() >= self.look_at => self.look().map(|()| Duration::ZERO),
            _ => Ok(Duration::from_secs(1).min(self.look_at.saturating_duration_since(Instant::now()))),
        }
    }

    /// Look for a later version at the gateway, and verify its manifest.
    fn look(&mut self) -> Step<()> {
        let found = self.latest();
        match found {
            Err(Failure::Gone) => {
                log("update: the list or the manifest cannot be read");
                self.look_later();
                Ok(())
            }
            Err(failure) => Err(failure),
            Ok(None) => {
                self.look_later();
                Ok(())
            }
            Ok(Some((version, content))) => self.take_manifest(&version, &content),
        }
    }

    /// Return the latest version that fits, and its signed manifest.
    fn latest(&self) -> Step<Option<(String, Vec<u8>)>> {
        let content = self.client.get("/artefacts", &[], LIST_BYTES_MAX, StatusCode::OK)?;
        let listed: Value = serde_json::from_slice(&content).map_err(|_| Failure::Gone)?;
        let (mut latest, mut sequence) = (None, firmware::SEQUENCE);
        for each in listed["artefacts"].as_array().into_iter().flatten() {
            let later = each["sequence"].as_u64().filter(|found| *found > sequence);
            if let (true, Some(found), Some(version)) = (fits(each), later, each["version"].as_str()) {
                sequence = found;
                latest = Some(version.to_string());
            }
        }
        let Some(version) = latest else { return Ok(None) };
        let path = format!("/artefacts/{}/{version}/manifest", firmware::NAME);
        let most = ENVELOPE_BYTES_MAX as u64 + 1;
        Ok(Some((version, self.client.get(&path, &[], most, StatusCode::OK)?)))
    }

    fn take_manifest(&mut self, version: &str, content: &[u8]) -> Step<()> {
        let envelope = hexadecimal(digest(&SHA256, content).as_ref());
        let mut tries = 0;
        if envelope == self.state.envelope {
            tries = self.state.tries;
            if self.state.state == "rolled-back" && tries >= TRIES_MAX {
                self.look_later(); // the same as was refused
                return Ok(());
            }
        }
        let manifest = open(content, self.clock.now())
            .and_then(|found| if found.version == version { Ok(found) } else { Err("forged") });
        if matches!(manifest, Err("not-yet-valid")) {
            log("a new version is not valid yet");
            self.look_later();
            return Ok(());
        }
        self.state = StoredUpdate { version: version.into(), envelope, tries, ..StoredUpdate::default() };
        let manifest = manifest.map_err(Failure::Refused)?;
        self.state.sequence = manifest.sequence;
        self.state.size = manifest.size;
        self.state.sha256 = manifest.sha256;
        log("a new version: downloading");
        self.save("downloading")
    }

    /// Fetch the next part of the image, or verify the whole one.
    fn download(&mut self) -> Step<()> {
        let (done, size) = (self.state.done, self.state.size);
        if done >= size {
            return self.verify_image();
        }
        let stop = size.min(done + PART_BYTES);
        let range = ("Range", format!("bytes={done}-{}", stop - 1));
        let fields = [range, ("If-Range", format!("\"{}\"", self.state.sha256))];
        let path = format!("/artefacts/{}/{}/image", firmware::NAME, self.state.version);
        let content = match self.client.get(&path, &fields, PART_BYTES, StatusCode::PARTIAL_CONTENT) {
            Err(Failure::Gone) => {
                log("the new version is not offered any more");
                self.look_later();
                return self.save("");
            }
            found => found?,
        };
        if content.len() as u64 != stop - done {
            return Err(Failure::Refused("truncated"));
        }
        self.store_part(&content, done)?;
        self.state.done = stop;
        self.save("downloading")
    }

    fn store_part(&self, content: &[u8], at: u64) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).mode(0o755).create(at == 0).truncate(at == 0);
        let file = options.open(&self.image)?;
        file.write_all_at(content, at)?;
        file.sync_all()
    }

    /// Read the stored image once more: so its disk is verified too.
    fn verify_image(&mut self) -> Step<()> {
        let mut file = File::open(&self.image)?;
        let (mut found, mut buffer) = (Context::new(&SHA256), vec![0; 1 << 16]);
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                count => found.update(&buffer[..count]),
            }
        }
        if hexadecimal(found.finish().as_ref()) != self.state.sha256 {
            return Err(Failure::Refused("forged"));
        }
        log("the new version is verified");
        self.save("verified")
    }
}

/// Return whether a listed artefact is for this program, its board and its version.
fn fits(listed: &Value) -> bool {
    let names = |field: &str, own: &str| match listed[field].as_array() {
        Some(names) => names.iter().any(|name| name == own),
        None => true,
    };
    let is_from_any = listed["from_versions"].as_array().is_none_or(Vec::is_empty);
    listed["name"] == firmware::NAME
        && listed["kind"] == "firmware"
        && listed["version"].as_str().is_some_and(is_version)
        && names("boards", firmware::BOARD)
        && (is_from_any || names("from_versions", firmware::VERSION))
}

/// Return half of a delay to all of it, so that a thousand devices do not come at once.
fn jittered(delay: Duration) -> Duration {
    let half_ms = (delay.as_millis() as u64 / 2).max(1);
    Duration::from_millis(half_ms + random() % half_ms)
}
