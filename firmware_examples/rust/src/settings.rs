//! Settings from variables of the environment, and the time of the gateway.

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rumqttc::Transport;

use crate::log;

const CLOCK_SET_AFTER: u64 = 1_700_000_000; // an earlier time means that a clock was never set (s since 1970)
const CLOCK_ASK: Duration = Duration::from_secs(3600);
const CLOCK_WAIT: Duration = Duration::from_secs(2);

pub struct Settings {
    pub host: String,
    pub port: u16,
    pub device: String,
    pub password: Option<String>,
    pub transport: Transport,
    /// PEM of the authority; None: no TLS.
    pub ca: Option<Vec<u8>>,
    pub certificate: Option<Vec<u8>>,
    pub key: Option<Vec<u8>>,
    pub spool: String,
    pub spool_readings: u32,
    pub interval_ms: u64,
    pub time_url: Option<String>,
    /// None: the program never updates itself.
    pub update: Option<UpdateSettings>,
}

/// Settings of the update; the boot loader sets the slots.
pub struct UpdateSettings {
    pub url: String,
    pub slots: PathBuf,
    /// Slot that runs, 0 or 1.
    pub slot: u32,
    pub every: Duration,
    pub trial: Duration,
}

fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn number(name: &str, otherwise: u64, most: u64) -> Result<u64, String> {
    match text(name) {
        None => Ok(otherwise),
        Some(value) => match value.parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(format!("{name}={value} has to be a number from 1 to {most}")),
        },
    }
}

fn content(name: &str) -> Result<Option<Vec<u8>>, String> {
    let Some(path) = text(name) else { return Ok(None) };
    fs::read(&path).map(Some).map_err(|error| format!("{name}={path} cannot be read: {error}"))
}

fn update() -> Result<Option<UpdateSettings>, String> {
    let Some(url) = text("WAYPOST_UPDATE_URL") else { return Ok(None) };
    let slots = text("WAYPOST_SLOTS").ok_or("WAYPOST_UPDATE_URL needs the boot loader: waypost-device boot FOLDER")?;
    if !url.starts_with("http://") && !url.starts_with("https://") {
        return Err("WAYPOST_UPDATE_URL has to begin with http:// or https://".into());
    }
    let seconds = |name, otherwise| number(name, otherwise, 86_400 * 365).map(Duration::from_secs);
    Ok(Some(UpdateSettings {
        url,
        slots: slots.into(),
        slot: u32::from(text("WAYPOST_SLOT").as_deref() == Some("1")),
        every: seconds("WAYPOST_UPDATE_S", 3600)?,
        trial: seconds("WAYPOST_TRIAL_S", 600)?,
    }))
}

impl Settings {
    pub fn from_environment() -> Result<Self, String> {
        let (ca, certificate) = (content("WAYPOST_CA")?, content("WAYPOST_CERTIFICATE")?);
        let key = content("WAYPOST_KEY")?.or_else(|| certificate.clone());
        if certificate.is_some() && ca.is_none() {
            return Err("WAYPOST_CERTIFICATE needs TLS: set WAYPOST_CA too".into());
        }
        let time_url = text("WAYPOST_TIME_URL");
        if time_url.as_ref().is_some_and(|url| !url.starts_with("http://")) {
            return Err("WAYPOST_TIME_URL has to begin with http://".into());
        }
        let port = if ca.is_some() { 8883 } else { 1883 };
        Ok(Self {
            host: text("WAYPOST_HOST").unwrap_or("127.0.0.1".into()),
            port: number("WAYPOST_PORT", port, 65_535)? as u16,
            device: text("WAYPOST_DEVICE").unwrap_or("pump7".into()),
            password: text("WAYPOST_PASSWORD"),
            transport: match ca.clone() {
                // The authority is the only one that is trusted.
                Some(ca) => Transport::tls(ca, certificate.clone().zip(key.clone()), None),
                None => Transport::Tcp,
            },
            ca,
            certificate,
            key,
            spool: text("WAYPOST_SPOOL").unwrap_or("readings.spool".into()),
            spool_readings: number("WAYPOST_SPOOL_READINGS", 1024, 1 << 20)? as u32,
            interval_ms: number("WAYPOST_INTERVAL_MS", 1000, crate::INTERVAL_MS_MAX)?,
            time_url,
            update: update()?,
        })
    }
}

/// Time of the gateway: the field Date of an HTTP answer. Without a URL it is the time of this machine.
pub struct GatewayClock {
    url: Option<String>,
    /// Time of the gateway (s since 1970), and when it was asked.
    known: Mutex<Option<(u64, Instant)>>,
}

impl GatewayClock {
    pub fn new(url: Option<String>) -> Self {
        Self { url, known: Mutex::new(None) }
    }

    /// Ask the gateway, at most once an hour. A failure is no error: readings have no time until it answers.
    pub fn ask(&self) {
        let Some(url) = &self.url else { return };
        if self.known.lock().unwrap().is_some_and(|(_, asked)| asked.elapsed() < CLOCK_ASK) {
            return;
        }
        match date_of(url) {
            Some(at) => *self.known.lock().unwrap() = Some((at, Instant::now())),
            None => log(&format!("no time from {url}")),
        }
    }

    /// Return seconds since 1970; None if the time is not known.
    pub fn now(&self) -> Option<u64> {
        match self.url {
            Some(_) => self.known.lock().unwrap().map(|(at, asked)| at + asked.elapsed().as_secs()),
            None => SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|now| now.as_secs()),
        }
        .filter(|at| *at > CLOCK_SET_AFTER)
    }
}

fn date_of(url: &str) -> Option<u64> {
    let host = url.strip_prefix("http://")?.trim_end_matches('/');
    let place = if host.contains(':') { host.to_string() } else { format!("{host}:80") };
    let mut stream = TcpStream::connect_timeout(&place.to_socket_addrs().ok()?.next()?, CLOCK_WAIT).ok()?;
    stream.set_read_timeout(Some(CLOCK_WAIT)).ok()?;
    write!(stream, "HEAD /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.take(8192).read_to_string(&mut answer).ok()?;
    let field = answer.lines().find_map(|line| line.split_once(':').filter(|(name, _)| name.eq_ignore_ascii_case("date")))?;
    let at = httpdate::parse_http_date(field.1.trim()).ok()?;
    at.duration_since(UNIX_EPOCH).ok().map(|at| at.as_secs()).filter(|at| *at > CLOCK_SET_AFTER)
}
