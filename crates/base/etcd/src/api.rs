//! Messages to and from etcd: the part of its gateway's JSON (`/v3/...`) that this crate needs.
//!
//! Keys and values are written in base64, and 64-bit numbers as texts; zero values are absent. The
//! functions here build requests, so that no other module has to know the names of fields. Replies
//! of all kinds are read into one structure, [`Answer`].

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::{Value, json};

/// A range of keys: from the first member up to, but not including, the second one.
pub type Range = (Vec<u8>, Vec<u8>);

/// Returns the range of all keys with this prefix.
pub fn beginning(prefix: Vec<u8>) -> Range {
    let end = behind(&prefix);
    (prefix, end)
}

/// Returns the first key after all keys with this prefix. The prefix must not consist of 0xff only.
pub fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            break;
        }
    }
    end
}

fn text(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

// ---- operations of a transaction ----

pub fn put(key: &[u8], value: &[u8]) -> Value {
    json!({"request_put": {"key": text(key), "value": text(value)}})
}

/// Writes a key that is removed with the lease.
pub fn put_leased(key: &[u8], value: &[u8], lease: u64) -> Value {
    json!({"request_put": {"key": text(key), "value": text(value), "lease": lease.to_string()}})
}

pub fn delete(key: &[u8]) -> Value {
    json!({"request_delete_range": {"key": text(key)}})
}

pub fn delete_all((from, to): &Range) -> Value {
    json!({"request_delete_range": {"key": text(from), "range_end": text(to)}})
}

pub fn get(key: &[u8]) -> Value {
    json!({"request_range": {"key": text(key)}})
}

/// Reads the value that the key had at a revision.
pub fn get_at(key: &[u8], revision: u64) -> Value {
    json!({"request_range": {"key": text(key), "revision": revision.to_string()}})
}

/// Counts the keys of a range.
pub fn count((from, to): &Range) -> Value {
    json!({"request_range": {"key": text(from), "range_end": text(to), "count_only": true}})
}

/// Reads the first `most` keys of a range, without values.
pub fn first_keys((from, to): &Range, most: usize) -> Value {
    json!({"request_range": {
        "key": text(from), "range_end": text(to), "keys_only": true, "limit": most.to_string(),
    }})
}

/// A nested transaction with its own conditions.
pub fn nested(compare: Vec<Value>, then: Vec<Value>, otherwise: Vec<Value>) -> Value {
    json!({"request_txn": transaction(compare, then, otherwise)})
}

// ---- conditions of a transaction ----

pub fn absent(key: &[u8]) -> Value {
    json!({"key": text(key), "target": "CREATE", "result": "EQUAL", "create_revision": "0"})
}

pub fn present(key: &[u8]) -> Value {
    json!({"key": text(key), "target": "CREATE", "result": "GREATER", "create_revision": "0"})
}

/// Condition: the key was last changed at this revision.
pub fn unchanged(key: &[u8], revision: u64) -> Value {
    json!({"key": text(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string()})
}

pub fn is(key: &[u8], value: &[u8]) -> Value {
    json!({"key": text(key), "target": "VALUE", "result": "EQUAL", "value": text(value)})
}

pub fn none_in((from, to): &Range) -> Value {
    json!({
        "key": text(from), "range_end": text(to),
        "target": "CREATE", "result": "EQUAL", "create_revision": "0",
    })
}

// ---- requests ----

pub fn transaction(compare: Vec<Value>, then: Vec<Value>, otherwise: Vec<Value>) -> Value {
    json!({"compare": compare, "success": then, "failure": otherwise})
}

/// Reads up to `most` keys of a range, as of a revision (0: now).
pub fn page((from, to): &Range, revision: u64, most: usize, keys_only: bool) -> Value {
    json!({
        "key": text(from), "range_end": text(to), "revision": revision.to_string(),
        "limit": most.to_string(), "keys_only": keys_only,
    })
}

/// Watches changes of a range from a revision on.
pub fn watch((from, to): &Range, revision: u64) -> Value {
    json!({"create_request": {
        "key": text(from), "range_end": text(to), "start_revision": revision.to_string(),
    }})
}

// ---- replies ----

/// A 64-bit number, written as a text.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Number(pub u64);

/// Bytes in base64.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Number, D::Error> {
        let text = String::deserialize(from)?;
        // Ids of clusters are unsigned, and other numbers are never negative.
        let number = text.parse();
        number
            .map(Number)
            .map_err(|_| D::Error::custom("no 64-bit number"))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = STANDARD.decode(text);
        bytes.map(Bytes).map_err(|_| D::Error::custom("no base64"))
    }
}

/// The id of the cluster that replies, and its latest revision.
#[derive(serde::Deserialize, Clone, Default, Debug)]
#[serde(default)]
pub struct Header {
    pub cluster_id: Number,
    pub revision: Number,
}

/// A key with its value and revisions.
#[derive(serde::Deserialize, Clone, Default, Debug)]
#[serde(default)]
pub struct Pair {
    pub key: Bytes,
    pub value: Bytes,
    pub mod_revision: Number,
}

/// A change that a watch reports.
#[derive(serde::Deserialize, Clone, Default, Debug)]
#[serde(default)]
pub struct Event {
    /// The kind of change. Empty for PUT: PUT has number zero, and zero values are absent.
    #[serde(rename = "type")]
    pub kind: String,
    pub kv: Pair,
}

/// The result of one operation of a transaction.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default)]
pub struct Part {
    response_range: Option<Answer>,
    response_txn: Option<Answer>,
}

/// A reply of any kind.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default)]
pub struct Answer {
    pub header: Header,
    // Ranges.
    pub kvs: Vec<Pair>,
    pub more: bool,
    pub count: Number,
    // Transactions.
    pub succeeded: bool,
    responses: Vec<Part>,
    // Leases.
    #[serde(rename = "ID")]
    pub lease: Number,
    #[serde(rename = "TTL")]
    pub seconds: Number,
    // Logins.
    pub token: String,
}

/// One line of a reply that consists of lines.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default)]
pub struct Line {
    pub result: Option<Watched>,
    pub error: Option<Refusal>,
}

/// The changes that a watch reports.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default)]
pub struct Watched {
    pub header: Header,
    pub canceled: bool,
    pub compact_revision: Number,
    pub events: Vec<Event>,
    /// In the reply to a lease renewal: the new time to live. Seconds.
    #[serde(rename = "TTL")]
    pub seconds: Number,
}

/// etcd's reply when it refuses a request.
#[derive(serde::Deserialize, Default, Debug)]
#[serde(default)]
pub struct Refusal {
    pub error: String,
    pub message: String,
    #[serde(alias = "grpc_code")]
    pub code: i64,
}

impl Answer {
    /// Returns the keys that operation `part` of a transaction found.
    pub fn found(&self, part: usize) -> &[Pair] {
        let range = self.responses.get(part);
        let range = range.and_then(|p| p.response_range.as_ref());
        range.map_or(&[], |r| &r.kvs)
    }

    /// Returns the only key that operation `part` of a transaction found.
    pub fn one(&self, part: usize) -> Option<&Pair> {
        self.found(part).first()
    }

    /// Returns the number that operation `part` of a transaction counted.
    pub fn counted(&self, part: usize) -> u64 {
        let range = self.responses.get(part);
        let range = range.and_then(|p| p.response_range.as_ref());
        range.map_or(0, |r| r.count.0)
    }

    /// Returns the result of the nested transaction at operation `part`.
    pub fn inner(&self, part: usize) -> Option<&Answer> {
        self.responses.get(part)?.response_txn.as_ref()
    }

    /// The latest revision of the cluster when it replied.
    pub fn revision(&self) -> u64 {
        self.header.revision.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_nothing_else_is() {
        let answer: Answer = serde_json::from_str(
            r#"{"header":{"cluster_id":"14841639068965178418","member_id":"1","revision":"7"},
                "succeeded":true,"responses":[{"response_put":{"header":{"revision":"7"}}},
                {"response_range":{"header":{"revision":"7"},"kvs":[{"key":"aw==","create_revision":"2",
                "mod_revision":"5","version":"1","value":"dg=="}],"count":"1"}}]}"#,
        )
        .unwrap_or_default();
        assert_eq!(answer.revision(), 7);
        assert!(answer.succeeded && answer.found(0).is_empty() && answer.one(2).is_none());
        let one = answer.one(1).unwrap();
        assert_eq!((&one.key.0[..], &one.value.0[..]), (&b"k"[..], &b"v"[..]));
        assert_eq!((one.mod_revision.0, answer.counted(1)), (5, 1));
        for wrong in [
            "",
            "7",
            r#"{"count":"x"}"#,
            r#"{"kvs":[{"key":"%"}]}"#,
            r#"{"header":7}"#,
        ] {
            assert!(serde_json::from_str::<Answer>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ends_of_ranges() {
        assert_eq!(behind(b"ab"), b"ac");
        assert_eq!(behind(b"a\xff\xff"), b"b");
        assert_eq!(behind(b"a\0\xff"), b"a\x01");
    }
}
