//! The signed manifest of an image: a COSE_Sign1, verified with the keys of the maker.
//! docs/how-to/write-a-device-that-updates.md has the format, and the order of the checks.

use std::collections::BTreeMap;

use aws_lc_rs::digest::{digest, SHA256};
use aws_lc_rs::signature::{UnparsedPublicKey, VerificationAlgorithm, ECDSA_P256_SHA256_FIXED, ED25519};
use rumqttc::tokio_rustls::rustls::pki_types::pem::PemObject;
use rumqttc::tokio_rustls::rustls::pki_types::SubjectPublicKeyInfoDer;

use crate::firmware;

pub const ENVELOPE_BYTES_MAX: usize = 16 << 10;
const IMAGE_BYTES_MAX: i64 = 64 << 20;
const MANIFEST_TYPE: &str = "application/vnd.waypost.artefact+cbor";
const ED25519_ID: i64 = -8;
const ES256_ID: i64 = -7;
const ED25519_PREFIX: usize = 12; // bytes before the key in its DER
const P256_PREFIX: usize = 26;
const DEPTH_MAX: u32 = 8;

/// Why the new version is refused: a reason of docs/how-to/update-devices.md.
pub type Refused = &'static str;

/// Verified statement of the maker about an image.
pub struct Manifest {
    pub version: String,
    pub sha256: String,
    pub sequence: u64,
    pub size: u64,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Item {
    Number(i64),
    Bytes(Vec<u8>),
    Text(String),
    List(Vec<Item>),
    Map(BTreeMap<Item, Item>),
    Tagged(i64, Box<Item>),
}

type Fields = BTreeMap<Item, Item>;

/// Decoder of the deterministic encoding (RFC 8949, 4.2.1), as far as manifests have it.
struct CborReader<'a> {
    rest: &'a [u8],
    depth: u32,
}

fn decode(content: &[u8]) -> Result<Item, Refused> {
    let mut reader = CborReader { rest: content, depth: 0 };
    let item = reader.item()?;
    if reader.rest.is_empty() { Ok(item) } else { Err("malformed") }
}

impl<'a> CborReader<'a> {
    fn take(&mut self, length: i64) -> Result<&'a [u8], Refused> {
        let length = usize::try_from(length).ok().filter(|length| *length <= self.rest.len()).ok_or("truncated")?;
        let (taken, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(taken)
    }

    fn head(&mut self, form: u8) -> Result<i64, Refused> {
        let width = match form {
            0..=23 => return Ok(form.into()),
            24..=27 => 1_i64 << (form - 24),
            _ => return Err("malformed"),
        };
        let value = self.take(width)?.iter().fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        let least = if width == 1 { 24 } else { 1 << (4 * width) };
        if value < least || value >= 1 << 53 {
            return Err("malformed");
        }
        Ok(value as i64)
    }

    fn item(&mut self) -> Result<Item, Refused> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err("malformed");
        }
        let first = self.take(1)?[0];
        let value = self.head(first & 31)?;
        let item = match first >> 5 {
            0 => Item::Number(value),
            1 => Item::Number(-1 - value),
            2 => Item::Bytes(self.take(value)?.to_vec()),
            3 => Item::Text(String::from_utf8(self.take(value)?.to_vec()).map_err(|_| "malformed")?),
            4 => {
                let mut items = Vec::new();
                for _ in 0..value {
                    items.push(self.item()?);
                }
                Item::List(items)
            }
            5 => Item::Map(self.map(value)?),
            6 => Item::Tagged(value, Box::new(self.item()?)),
            _ => return Err("malformed"),
        };
        self.depth -= 1;
        Ok(item)
    }

    fn map(&mut self, count: i64) -> Result<Fields, Refused> {
        let (mut found, mut last) = (Fields::new(), &[][..]);
        for _ in 0..count {
            let before = self.rest;
            let key = self.item()?;
            let encoded = &before[..before.len() - self.rest.len()];
            if !matches!(key, Item::Number(_) | Item::Text(_)) || last >= encoded {
                return Err("malformed");
            }
            last = encoded;
            let value = self.item()?;
            found.insert(key, value);
        }
        Ok(found)
    }
}

fn encode_string(major: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut encoded = match length {
        0..=23 => vec![major << 5 | length as u8],
        24..=255 => vec![major << 5 | 24, length as u8],
        _ => vec![major << 5 | 25, (length >> 8) as u8, length as u8],
    };
    encoded.extend_from_slice(content);
    encoded
}

/// Return the manifest of an envelope that one of the keys has signed, if it fits to this program. `now`: seconds since
/// 1970; None if the time is not known.
pub fn open(envelope: &[u8], now: Option<u64>) -> Result<Manifest, Refused> {
    if envelope.len() > ENVELOPE_BYTES_MAX {
        return Err("too-large");
    }
    let Item::Tagged(18, tagged) = decode(envelope)? else { return Err("malformed") };
    let Item::List(parts) = *tagged else { return Err("malformed") };
    let [Item::Bytes(protected), Item::Map(unprotected), Item::Bytes(payload), Item::Bytes(signature)] = &parts[..] else {
        return Err("malformed");
    };
    if !unprotected.is_empty() {
        return Err("malformed");
    }
    let mut statement = vec![0x84];
    statement.extend(encode_string(3, b"Signature1"));
    for part in [&protected[..], &[], &payload[..]] {
        statement.extend(encode_string(2, part));
    }
    verify_signature(protected, &statement, signature)?;
    let Item::Map(fields) = decode(payload)? else { return Err("malformed") };
    fitting(&fields, now)
}

fn verify_signature(protected: &[u8], statement: &[u8], signature: &[u8]) -> Result<(), Refused> {
    let Item::Map(header) = decode(protected)? else { return Err("malformed") };
    let field = |key| header.get(&Item::Number(key));
    let Some(Item::Bytes(key_id)) = field(4) else { return Err("malformed") };
    if header.len() != 3 || field(3) != Some(&Item::Text(MANIFEST_TYPE.into())) {
        return Err("malformed");
    }
    let (algorithm, prefix): (&'static dyn VerificationAlgorithm, usize) = match field(1) {
        Some(Item::Number(ED25519_ID)) => (&ED25519, ED25519_PREFIX),
        Some(Item::Number(ES256_ID)) => (&ECDSA_P256_SHA256_FIXED, P256_PREFIX),
        _ => return Err("unsupported-version"),
    };
    let key = key_of(key_id)?;
    let raw = key.get(prefix..).ok_or("forged")?;
    UnparsedPublicKey::new(algorithm, raw).verify(statement, signature).map_err(|_| "forged")
}

/// Return the key with this identifier, in DER: the identifier is the start of its SHA-256.
fn key_of(key_id: &[u8]) -> Result<Vec<u8>, Refused> {
    SubjectPublicKeyInfoDer::pem_slice_iter(firmware::MAKER_KEYS.as_bytes())
        .filter_map(Result::ok)
        .map(|key| key.as_ref().to_vec())
        .find(|key| &digest(&SHA256, key).as_ref()[..8] == key_id)
        .ok_or("unknown-key")
}

/// Return the manifest of a payload that fits to this program.
fn fitting(fields: &Fields, now: Option<u64>) -> Result<Manifest, Refused> {
    if fields.get(&Item::Number(1)) != Some(&Item::Number(1)) {
        return Err("unsupported-version");
    }
    let (kind, name, version) = (text(fields, 2)?, text(fields, 3)?, text(fields, 4)?);
    let (sequence, size, boards) = (number(fields, 5)?, number(fields, 8)?, texts(fields, 6)?);
    let Some(Item::Bytes(sha256)) = fields.get(&Item::Number(9)) else { return Err("malformed") };
    let has = |key| fields.contains_key(&Item::Number(key));
    let versions = if has(7) { Some(texts(fields, 7)?) } else { None };
    let not_before = if has(10) { number(fields, 10)? } else { 0 };
    let known = 8 + usize::from(has(7)) + usize::from(has(10));
    if fields.len() != known || kind != "firmware" || !is_version(version) || size < 1 || sha256.len() != 32 {
        return Err("malformed");
    }
    if size > IMAGE_BYTES_MAX {
        return Err("too-large");
    }
    if name != firmware::NAME {
        return Err("forged"); // another artefact under the name of ours
    }
    if now.is_some_and(|now| not_before as u64 > now) {
        return Err("not-yet-valid");
    }
    if sequence as u64 <= firmware::SEQUENCE {
        return Err("downgraded");
    }
    if !boards.contains(&firmware::BOARD) {
        return Err("wrong-board");
    }
    if versions.is_some_and(|versions| !versions.contains(&firmware::VERSION)) {
        return Err("wrong-from-version");
    }
    Ok(Manifest { version: version.into(), sha256: hexadecimal(sha256), sequence: sequence as u64, size: size as u64 })
}

/// Return whether a text is a version, which is safe in an address.
pub fn is_version(text: &str) -> bool {
    let safe = |letter: char| letter.is_ascii_alphanumeric() || ".+_-".contains(letter);
    text.len() <= 64 && text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.chars().all(safe)
}

pub fn hexadecimal(content: &[u8]) -> String {
    content.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(fields: &Fields, key: i64) -> Result<&str, Refused> {
    match fields.get(&Item::Number(key)) {
        Some(Item::Text(text)) => Ok(text),
        _ => Err("malformed"),
    }
}

fn number(fields: &Fields, key: i64) -> Result<i64, Refused> {
    match fields.get(&Item::Number(key)) {
        Some(Item::Number(number)) if *number >= 0 => Ok(*number),
        _ => Err("malformed"),
    }
}

fn texts(fields: &Fields, key: i64) -> Result<Vec<&str>, Refused> {
    let Some(Item::List(items)) = fields.get(&Item::Number(key)) else { return Err("malformed") };
    let texts = items.iter().map(|item| if let Item::Text(text) = item { Some(text.as_str()) } else { None });
    texts.collect::<Option<Vec<_>>>().filter(|texts| !texts.is_empty()).ok_or("malformed")
}
