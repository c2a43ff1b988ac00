//! Device that publishes over MQTT 5 at QoS 1, with rumqttc. README.md has the rest.
//!
//! The main thread measures and sends; a second thread has the connection, and takes acknowledgements and commands.

mod boot;
mod firmware;
mod manifest;
mod settings;
mod spool;
mod update;

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rumqttc::v5::mqttbytes::v5::{ConnectReturnCode, LastWill, Packet, PubAckReason, Publish, PublishProperties};
use rumqttc::v5::mqttbytes::QoS::AtLeastOnce;
use rumqttc::v5::{Client, ConnectionError, Event, MqttOptions};
use rumqttc::tokio_rustls::rustls::crypto::aws_lc_rs;
use rumqttc::Outgoing;
use serde_json::{json, Value};

use settings::{GatewayClock, Settings};
use spool::ReadingSpool;
use update::SlotUpdater;

const WINDOW: usize = 8; // readings in flight: sent and not acknowledged
const REQUESTS: usize = 64; // waiting for the thread of the connection: readings, the status, answers
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const SESSION_S: u32 = 7 * 86_400; // the gateway keeps commands for an absent device for this time
const INTERVAL_MS_MIN: u64 = 10;
pub const INTERVAL_MS_MAX: u64 = 86_400_000;
const RETRY_MS_MIN: u64 = 250;
const RETRY_MS_MAX: u64 = 8000;
const LOOP: Duration = Duration::from_millis(20); // longest wait before a stop or a new interval is seen

pub fn log(text: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    eprintln!("{:02}:{:02}:{:02}Z {text}", now / 3600 % 24, now / 60 % 60, now % 60);
}

fn fail(code: i32, text: &str) -> ! {
    log(text);
    exit(code)
}

/// What both threads change.
struct Shared {
    spool: ReadingSpool,
    /// Set while the gateway serves us.
    client: Option<Client>,
    /// Next reading to send on this connection.
    sending: u32,
    in_flight: usize,
    /// Requests in their order: the number of a reading, or None for another message.
    issued: VecDeque<Option<u32>>,
    /// Readings by packet identifier.
    sent: HashMap<u16, u32>,
    retry_ms: u64,
}

struct Device {
    settings: Settings,
    clock: GatewayClock,
    boot: String,
    interval_ms: AtomicU64,
    stopping: Arc<AtomicBool>,
    ended: AtomicBool,
    /// First reading of this start.
    first: u32,
    /// A reading of this start was acknowledged.
    delivered: AtomicBool,
    shared: Mutex<Shared>,
}

impl Device {
    /// Store one reading. Read your own sensors here.
    fn measure(&self) {
        let mut shared = self.shared.lock().unwrap();
        let number = shared.spool.next;
        let mut reading = json!({"device": self.settings.device, "boot": self.boot, "seq": number});
        if let Some(at) = self.clock.now() {
            reading["at"] = at.into();
        }
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        if let Some(load) = load.split(' ').next().and_then(|load| load.parse::<f64>().ok()) {
            reading["load_1m"] = load.into();
        }
        if let Err(error) = shared.spool.add(reading.to_string().as_bytes()) {
            fail(1, &format!("cannot store reading {number}: {error}; check the disk"));
        }
    }

    /// Measure and send until the device was stopped and has delivered everything.
    fn run(&self) {
        let mut measured = Instant::now();
        let mut due = measured;
        let mut interval_ms = self.interval_ms.load(Ordering::Relaxed);
        loop {
            let stopping = self.stopping.load(Ordering::Relaxed);
            let wanted_ms = self.interval_ms.load(Ordering::Relaxed);
            if wanted_ms != interval_ms {
                interval_ms = wanted_ms;
                due = measured + Duration::from_millis(interval_ms);
            }
            if !stopping && Instant::now() >= due {
                self.measure();
                measured = Instant::now();
                due = (due + Duration::from_millis(interval_ms)).max(measured); // late: no burst
            }
            let mut shared = self.shared.lock().unwrap();
            self.send(&mut shared);
            if stopping && shared.spool.is_empty() {
                break;
            }
            drop(shared);
            thread::sleep(if stopping { LOOP } else { LOOP.min(due.saturating_duration_since(Instant::now())) });
        }
    }

    /// Send readings until the window is full.
    fn send(&self, shared: &mut Shared) {
        let Some(client) = shared.client.clone() else { return };
        shared.sending = shared.sending.max(shared.spool.acknowledged);
        while shared.sending < shared.spool.next && shared.in_flight < WINDOW {
            let number = shared.sending;
            let Some(content) = shared.spool.get(number) else {
                shared.spool.acknowledge(number); // acknowledged before an earlier one, or damaged on the disk
                shared.sending += 1;
                continue;
            };
            if client.try_publish(format!("plant/{}", self.settings.device), AtLeastOnce, false, content).is_err() {
                return; // the queue of requests is full, or the connection has ended
            }
            shared.issued.push_back(Some(number));
            shared.in_flight += 1;
            shared.sending += 1;
        }
    }

    fn publish_status(&self, shared: &mut Shared, status: &'static str) {
        let topic = format!("status/{}", self.settings.device);
        if shared.client.as_ref().is_some_and(|client| client.try_publish(topic, AtLeastOnce, true, status).is_ok()) {
            shared.issued.push_back(None);
        }
    }

    // --- the thread of the connection ---------------------------------------------------------------------------

    fn connect_until_ended(&self) {
        while !self.ended.load(Ordering::Relaxed) {
            self.clock.ask();
            self.serve();
            let mut shared = self.shared.lock().unwrap();
            if shared.client.take().is_some() {
                log("disconnected");
            }
            let retry_ms = shared.retry_ms;
            shared.retry_ms = (retry_ms * 2).min(RETRY_MS_MAX);
            drop(shared);
            if !self.ended.load(Ordering::Relaxed) {
                // Jitter, so that a thousand devices do not return at once: half of the delay to all of it.
                thread::sleep(Duration::from_millis(retry_ms / 2 + random() % (retry_ms / 2)));
            }
        }
    }

    /// Run one connection. The library keeps nothing from the one before: the spool has the readings.
    fn serve(&self) {
        let (client, mut connection) = Client::new(self.options(), REQUESTS);
        for event in connection.iter() {
            match event {
                Ok(Event::Incoming(Packet::ConnAck(_))) => self.connected(client.clone()),
                Ok(Event::Incoming(Packet::Publish(command))) => self.answer(&client, &command),
                Ok(Event::Incoming(Packet::PubAck(ack))) => {
                    let mut shared = self.shared.lock().unwrap();
                    let Some(number) = shared.sent.remove(&ack.pkid) else { continue };
                    shared.in_flight -= 1;
                    if !matches!(ack.reason, PubAckReason::Success | PubAckReason::NoMatchingSubscribers) {
                        let next = "`waypost client refusals` at the gateway has the reason";
                        log(&format!("reading {number} was refused: {:?}; {next}", ack.reason));
                        return; // it stays in the spool, and is sent again after a delay
                    }
                    shared.spool.acknowledge(number);
                    if number >= self.first {
                        self.delivered.store(true, Ordering::Relaxed);
                    }
                    shared.retry_ms = RETRY_MS_MIN;
                    self.send(&mut shared);
                }
                Ok(Event::Outgoing(Outgoing::Publish(id))) => {
                    let mut shared = self.shared.lock().unwrap();
                    if let Some(Some(number)) = shared.issued.pop_front() {
                        shared.sent.insert(id, number);
                    }
                }
                Ok(Event::Outgoing(Outgoing::Disconnect)) => return,
                Ok(_) => {}
                Err(error) => {
                    let Settings { host, port, .. } = &self.settings;
                    log(&format!("connection to {host}:{port}: {error}{}", next_step(&error)));
                    return;
                }
            }
        }
    }

    fn connected(&self, client: Client) {
        log("connected");
        let mut shared = self.shared.lock().unwrap();
        if client.try_subscribe(format!("command/{}/#", self.settings.device), AtLeastOnce).is_err() {
            log("no commands: the queue of requests is full");
        }
        shared.client = Some(client);
        shared.sending = shared.spool.acknowledged;
        shared.in_flight = 0;
        shared.issued.clear();
        shared.sent.clear();
        self.publish_status(&mut shared, "online");
        self.send(&mut shared);
    }

    /// Obey a command, answer it, then acknowledge it: after a reset in between it comes again.
    fn answer(&self, client: &Client, command: &Publish) {
        let (answer, stop) = self.obey(&command.payload);
        let mut properties = PublishProperties::default();
        properties.user_properties.push(("status".into(), answer["status"].to_string()));
        let given = command.properties.clone().unwrap_or_default();
        properties.correlation_data = given.correlation_data;
        let topic = given.response_topic.unwrap_or(format!("command-response/{}", self.settings.device));
        let mut shared = self.shared.lock().unwrap();
        let sent = client.try_publish_with_properties(topic, AtLeastOnce, false, answer.to_string(), properties);
        if sent.is_ok() {
            shared.issued.push_back(None);
            if client.try_ack(command).is_err() {
                log("a command was not acknowledged; it comes again");
            }
        }
        if stop {
            self.stopping.store(true, Ordering::Relaxed);
        }
    }

    fn obey(&self, payload: &[u8]) -> (Value, bool) {
        let mut answer = json!({});
        let refused = |mut answer: Value, text: &str| {
            log(&format!("command refused: {text}"));
            answer["status"] = 400.into();
            answer["error"] = text.into();
            (answer, false)
        };
        let Ok(Value::Object(command)) = serde_json::from_slice(payload) else {
            return refused(answer, "not a JSON object");
        };
        if let Some(id) = command.get("id") {
            answer["id"] = id.clone();
        }
        if !command.contains_key("interval_ms") && !command.contains_key("stop") {
            return refused(answer, "unknown command");
        }
        if let Some(interval) = command.get("interval_ms") {
            match interval.as_u64().filter(|interval| (INTERVAL_MS_MIN..=INTERVAL_MS_MAX).contains(interval)) {
                Some(interval) => self.interval_ms.store(interval, Ordering::Relaxed),
                None => return refused(answer, "interval_ms has to be 10 to 86400000"),
            }
        }
        answer["status"] = 200.into();
        answer["interval_ms"] = self.interval_ms.load(Ordering::Relaxed).into();
        log("command obeyed");
        (answer, command.get("stop") == Some(&Value::Bool(true)))
    }

    fn options(&self) -> MqttOptions {
        let settings = &self.settings;
        let mut options = MqttOptions::new(&settings.device, &settings.host, settings.port);
        options.set_clean_start(false).set_session_expiry_interval(Some(SESSION_S)).set_keep_alive(KEEP_ALIVE);
        options.set_transport(settings.transport.clone()).set_manual_acks(true);
        if let Some(password) = &settings.password {
            options.set_credentials(&settings.device, password);
        }
        options.set_last_will(LastWill::new(format!("status/{}", settings.device), "offline", AtLeastOnce, true, None));
        options
    }
}

fn next_step(error: &ConnectionError) -> &'static str {
    match error {
        ConnectionError::ConnectionRefused(ConnectReturnCode::BadUserNamePassword) => {
            "; wrong user or password: `waypost user rotate` at the gateway makes a new one"
        }
        ConnectionError::ConnectionRefused(_) => "; `waypost client refusals` at the gateway has the reason",
        _ => "",
    }
}

pub fn random() -> u64 {
    let mut bytes = [0; 8];
    match File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes)) {
        Ok(()) => u64::from_ne_bytes(bytes),
        Err(error) => fail(1, &format!("no random numbers: {error}")),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, command, folder] = &arguments[..] {
        if command == "boot" {
            exit(boot::boot_from(Path::new(folder)));
        }
    }
    if aws_lc_rs::default_provider().install_default().is_err() {
        fail(2, "TLS has a provider of cryptography already");
    }
    let settings = Settings::from_environment().unwrap_or_else(|error| fail(2, &error));
    let spool = ReadingSpool::open(settings.spool.as_ref(), settings.spool_readings).unwrap_or_else(|error| fail(2, &error));
    let stopping = Arc::new(AtomicBool::new(false));
    for number in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(error) = signal_hook::flag::register(number, stopping.clone()) {
            fail(2, &error.to_string());
        }
    }
    let sending = spool.acknowledged;
    let device = Device {
        clock: GatewayClock::new(settings.time_url.clone()),
        boot: format!("{:08x}", random() as u32),
        interval_ms: AtomicU64::new(settings.interval_ms),
        settings,
        stopping,
        ended: AtomicBool::new(false),
        first: spool.next,
        delivered: AtomicBool::new(false),
        shared: Mutex::new(Shared {
            spool,
            client: None,
            sending,
            in_flight: 0,
            issued: VecDeque::new(),
            sent: HashMap::new(),
            retry_ms: RETRY_MS_MIN,
        }),
    };
    let delivered = || device.delivered.load(Ordering::Relaxed);
    let settings = &device.settings;
    let updater = settings.update.as_ref().map(|update| SlotUpdater::new(settings, update, &device.clock, &delivered));
    thread::spawn(boot::feed_watchdog);
    thread::scope(|scope| {
        match updater {
            Some(Ok(updater)) => drop(scope.spawn(|| updater.run())),
            Some(Err(error)) => log(&format!("no updates: {error}")),
            None => {}
        }
        let connection = scope.spawn(|| device.connect_until_ended());
        device.run();
        device.ended.store(true, Ordering::Relaxed);
        let mut shared = device.shared.lock().unwrap();
        device.publish_status(&mut shared, "offline");
        let connected = shared.client.as_ref().is_some_and(|client| client.try_disconnect().is_ok());
        log(&format!("stopped: every reading below {} is acknowledged, {} were dropped", shared.spool.next, shared.spool.dropped));
        drop(shared);
        if connected {
            let _ = connection.join();
        }
        exit(0); // the threads of the update and of the watchdog never end
    });
}
