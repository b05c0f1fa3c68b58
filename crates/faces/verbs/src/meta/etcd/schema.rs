//! The keys in etcd, and the format of records.
//!
//! ```text
//! PREFIX/store                         format, and the random number that identifies this store
//! PREFIX/SCOPE/s                       written by each change in the scope; a workspace's exists
//!                                      as long as the workspace
//! PREFIX/SCOPE/r/UUID                  a record: JSON
//! PREFIX/SCOPE/n/NAME                  the UUID of the record with this name
//! PREFIX/SCOPE/i/KEY 0 ORDER HASH UUID in the index: 16 bytes of order, 8 of the value's hash, the
//!                                      UUID
//! PREFIX/SCOPE/f/UUID                  a fence: this record must not be created any more
//! PREFIX/undo/UUID/...                 logs of batches: log.rs
//! ```
//!
//! A scope is a workspace's UUID, or zeros for the root. All keys of a scope are one range, so one
//! request can remove them. A record has an index entry for each of its values, but an entry of an
//! older value may be left over, so a reader checks the record.

use super::api::{Range, beginning, behind};
use crate::meta::{Record, Scope, check_changes, check_name};
use crate::{Error, Meta, Result, Uuid, read_controls, write_controls};
use forebay_store::{Term, record::Order};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// The version of the format in etcd.
const FORMAT: u64 = 1;
/// Maximum length of a back end's `place`. Bytes.
const PLACE_MAX: usize = 8192;
/// Maximum length of an encoded record. Bytes; etcd takes requests of 1.5 MiB.
const RECORD_MAX: usize = 1 << 20;

/// The stored form of a record.
#[derive(Serialize, Deserialize)]
struct Stored {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    backend: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    place: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    controls: String,
    #[serde(default, skip_serializing_if = "Meta::is_empty")]
    meta: Meta,
}

/// Encodes a record.
///
/// # Errors
/// E2BIG if the record is too long.
pub(super) fn encode(record: &Record) -> Result<Vec<u8>> {
    let stored = Stored {
        name: record.name.clone(),
        backend: record.backend.clone(),
        place: record.place.clone(),
        controls: write_controls(&record.controls),
        meta: record.meta.clone(),
    };
    let bytes = serde_json::to_vec(&stored);
    let bytes = bytes.map_err(|e| Error::invalid(format!("can't write '{}': {e}", record.name)))?;
    match bytes.len() {
        0..=RECORD_MAX => Ok(bytes),
        n => Err(Error::new(
            Errno::TOOBIG,
            format!(
                "'{}' with all its metadata has {n} bytes; with etcd, {RECORD_MAX} are the most",
                record.name
            ),
        )),
    }
}

/// Decodes a record.
///
/// # Errors
/// EPROTO if the bytes aren't a record.
pub(super) fn decode(uuid: Uuid, bytes: &[u8]) -> Result<Record> {
    let wrong = |why: String| {
        let text = format!("the record {uuid} in etcd isn't one of this version of Forebay: {why}");
        Error::new(Errno::PROTO, text)
    };
    let stored: Stored = serde_json::from_slice(bytes).map_err(|e| wrong(e.to_string()))?;
    // Checked, since any client that can write to etcd may have written anything. A name becomes
    // part of a path in back ends and in exports.
    check_name(&stored.name).map_err(|e| wrong(e.to_string()))?;
    let meta = stored
        .meta
        .iter()
        .map(|(k, v)| (k.as_str(), Some(v.as_str())));
    check_changes(meta).map_err(|e| wrong(e.to_string()))?;
    for (what, text) in [("back end", &stored.backend), ("place", &stored.place)] {
        if text.len() > PLACE_MAX || text.contains(char::is_control) {
            return Err(wrong(format!("its {what} can't be one")));
        }
    }
    Ok(Record {
        uuid,
        name: stored.name,
        meta: stored.meta,
        backend: stored.backend,
        place: stored.place,
        controls: read_controls(&stored.controls).map_err(|e| wrong(e.to_string()))?,
    })
}

/// Returns the content of the key that identifies a store.
pub(super) fn store_text(store: Uuid) -> Vec<u8> {
    let text = serde_json::json!({"format": FORMAT, "store": store.to_string()});
    text.to_string().into_bytes()
}

/// Parses the content of the key that identifies a store; returns the store's identity.
///
/// # Errors
/// EPROTO if the format is of another version, or the content is something else.
pub(super) fn store_of(bytes: &[u8]) -> Result<String> {
    let stored: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    let store = stored["store"]
        .as_str()
        .filter(|s| s.parse::<Uuid>().is_ok());
    let why = match (stored["format"].as_u64(), store) {
        (Some(FORMAT), Some(store)) => return Ok(store.into()),
        (Some(format), _) if format != FORMAT => {
            format!("has the format {format}; this version of Forebay knows {FORMAT}")
        }
        _ => "isn't Forebay's: choose another prefix".into(),
    };
    Err(Error::new(
        Errno::PROTO,
        format!("what is in etcd there {why}"),
    ))
}

/// Returns the UUID that stands for a scope in keys.
pub(super) fn scope_uuid(scope: Scope) -> Uuid {
    match scope {
        Scope::Root => Uuid::default(),
        Scope::In(uuid) => uuid,
    }
}

/// Returns a value's part of an index entry: 16 bytes of its order, 8 of its hash.
pub(super) fn spot(value: &[u8]) -> [u8; 24] {
    let mut spot = [0; 24];
    spot[..16].copy_from_slice(&Order::of_value(value).0.to_be_bytes());
    spot[16..].copy_from_slice(&XxHash3_64::oneshot(value).to_be_bytes());
    spot
}

/// Returns the prefix of a key's index entries, without the scope.
pub(super) fn of_key(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Returns an index entry, without the scope.
pub(super) fn entry(key: &str, value: &str, uuid: Uuid) -> Vec<u8> {
    [
        &of_key(key.as_bytes())[..],
        &spot(value.as_bytes()),
        &uuid.0,
    ]
    .concat()
}

/// Returns the range of index entries for which a term holds, without the scope: the first entry,
/// and the end, which is excluded.
pub(super) fn of_term(term: &Term) -> Range {
    match term {
        Term::Equal(key, value) => beginning([&of_key(key)[..], &spot(value)].concat()),
        Term::Within(key, low, high) => {
            let at = |order: &Order| [&of_key(key)[..], &order.0.to_be_bytes()].concat();
            (at(low), behind(&at(high)))
        }
    }
}

/// Returns the UUID of the record to which an index entry refers.
pub(super) fn whose(entry: &[u8]) -> Option<Uuid> {
    entry.last_chunk().map(|bytes| Uuid(*bytes))
}

/// The keys of a store, all of which begin with `prefix`.
pub(super) struct Schema {
    prefix: String,
}

impl Schema {
    pub fn new(prefix: &str) -> Schema {
        let prefix = prefix.to_owned();
        Schema { prefix }
    }

    /// Returns the key that identifies the store.
    pub fn store(&self) -> Vec<u8> {
        format!("{}store", self.prefix).into()
    }

    fn in_scope(&self, scope: Scope, rest: &str) -> Vec<u8> {
        format!("{}{}/{rest}", self.prefix, scope_uuid(scope)).into()
    }

    /// Returns the range of all keys of a scope.
    pub fn all(&self, scope: Scope) -> Range {
        beginning(self.in_scope(scope, ""))
    }

    /// Returns the key that changes with each change in the scope.
    pub fn state(&self, scope: Scope) -> Vec<u8> {
        self.in_scope(scope, "s")
    }

    pub fn record(&self, scope: Scope, uuid: Uuid) -> Vec<u8> {
        self.in_scope(scope, &format!("r/{uuid}"))
    }

    pub fn records(&self, scope: Scope) -> Range {
        beginning(self.in_scope(scope, "r/"))
    }

    /// Returns the range of keys that each change in a scope touches: records, and the scope's
    /// state.
    pub fn changes(&self, scope: Scope) -> Range {
        (self.in_scope(scope, "r/"), self.in_scope(scope, "t"))
    }

    /// Returns the UUID in a record's key.
    pub fn uuid_of(&self, key: &[u8]) -> Result<Uuid> {
        let text = key.last_chunk::<36>().map(|k| String::from_utf8_lossy(k));
        let uuid = text.and_then(|t| t.parse().ok());
        uuid.ok_or_else(|| {
            let key = String::from_utf8_lossy(key).into_owned();
            Error::new(
                Errno::PROTO,
                format!("the key {key} in etcd isn't Forebay's"),
            )
        })
    }

    pub fn name(&self, scope: Scope, name: &str) -> Vec<u8> {
        self.in_scope(scope, &format!("n/{name}"))
    }

    pub fn names(&self, scope: Scope) -> Range {
        beginning(self.in_scope(scope, "n/"))
    }

    /// Returns the key of the fence against a creation.
    pub fn fence(&self, scope: Scope, uuid: Uuid) -> Vec<u8> {
        self.in_scope(scope, &format!("f/{uuid}"))
    }

    /// Returns the full key of an index entry.
    pub fn indexed(&self, scope: Scope, entry: &[u8]) -> Vec<u8> {
        [&self.in_scope(scope, "i/")[..], entry].concat()
    }

    /// Returns the range of index entries for which a term holds.
    pub fn term(&self, scope: Scope, term: &Term) -> Range {
        let (from, to) = of_term(term);
        (self.indexed(scope, &from), self.indexed(scope, &to))
    }

    /// Returns the keys of all index entries for a record's metadata.
    pub fn entries(&self, scope: Scope, uuid: Uuid, meta: &Meta) -> Vec<Vec<u8>> {
        let of = |(key, value): (&String, &String)| self.indexed(scope, &entry(key, value, uuid));
        meta.iter().map(of).collect()
    }

    /// Returns the range of the keys of all undo logs.
    pub fn logs(&self) -> Range {
        beginning(format!("{}undo/", self.prefix).into())
    }

    /// Returns the key of a part of an undo log.
    pub fn log(&self, uuid: Uuid, part: &str) -> Vec<u8> {
        format!("{}undo/{uuid}/{part}", self.prefix).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Controls;

    #[test]
    fn entries_lie_where_their_terms_look() {
        let uuid = Uuid([9; 16]);
        let within =
            |range: &Range, entry: &[u8]| range.0.as_slice() <= entry && entry < &range.1[..];
        let term = |text: &str| {
            let plan = crate::Predicate::parse(text).unwrap().plan().unwrap();
            of_term(&plan[0][0])
        };
        let three = entry("k", "3", uuid);
        assert_eq!(whose(&three), Some(uuid));
        for (text, is) in [
            ("k = \"3\"", true),
            ("k = 3", true),
            ("k = \"3.0\"", false),
            ("k >= 3", true),
            ("k < 2.5", false),
            ("exists k", true),
            ("exists j", false),
            ("exists kk", false),
        ] {
            assert_eq!(within(&term(text), &three), is, "{text}");
        }
        assert!(within(&term("k = 3"), &entry("k", "3.0", uuid)));
        assert!(!within(&term("exists k"), &entry("kk", "3", uuid)));
        assert!(within(&term("exists k"), &entry("k", "\u{10ffff}", uuid)));
    }

    #[test]
    fn a_record_whose_name_leads_elsewhere_is_none() {
        let uuid = Uuid([7; 16]);
        let read = |name: &str, meta: &str| {
            let text = format!(r#"{{"name":{},"meta":{meta}}}"#, serde_json::json!(name));
            decode(uuid, text.as_bytes()).map_err(|e| e.errno())
        };
        assert!(read("n", "{}").is_ok());
        for name in [
            "../../x",
            "/etc/x",
            "..",
            ".",
            "",
            ".hidden",
            "a/b",
            "a\0b",
            &"x".repeat(256),
        ] {
            assert_eq!(read(name, "{}").unwrap_err(), Errno::PROTO, "{name:?}");
        }
        for meta in [
            r#"{"":"v"}"#,
            r#"{"a\u0000":"v"}"#,
            r#"{"forebay.controls":"v"}"#,
        ] {
            assert_eq!(read("n", meta).unwrap_err(), Errno::PROTO, "{meta}");
        }
    }

    #[test]
    fn records_are_read_back() {
        let record = Record {
            uuid: Uuid([7; 16]),
            name: "n".into(),
            meta: [("k".to_owned(), "ä\n\"".to_owned())].into(),
            backend: "forebay".into(),
            place: "pool".into(),
            controls: Controls {
                mutability: forebay_controls::Mutability::Append,
                ..Controls::default()
            },
        };
        let bytes = encode(&record).unwrap();
        assert_eq!(decode(record.uuid, &bytes).unwrap(), record);
        assert_eq!(
            decode(record.uuid, b"{}").unwrap_err().errno(),
            Errno::PROTO
        );
        let much = "x".repeat(RECORD_MAX);
        let long = Record {
            meta: [("k".to_owned(), much)].into(),
            ..record
        };
        assert_eq!(encode(&long).unwrap_err().errno(), Errno::TOOBIG);
    }
}
