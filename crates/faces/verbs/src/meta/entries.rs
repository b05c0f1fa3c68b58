//! Format of undo log entries. Each metadata store has its own storage for logs.
//!
//! ```text
//! entry = length of the rest (8 bytes)  kind (1)  workspace (16)  record (16)  ...
//!   C created    -
//!   W wrote      offset (8) old size of the collection (8) old bytes
//!   M meta       one byte: whether it is a workspace; then for each key: length (8) key, one byte:
//!                whether it had a value; length (8) value
//!   D delete     -
//!   E end        all operations are done, except the deletions (zeros for workspace and record)
//! ```
//!
//! Numbers are little-endian. If an entry is incomplete, its operation was never begun.

use super::{Change, Scope};
use crate::Uuid;
use crate::meta::undo::Undo;

fn entry(kind: u8, (workspace, record): (Uuid, Uuid), rest: &[u8]) -> Vec<u8> {
    let length = 33 + rest.len() as u64;
    let head = [&length.to_le_bytes()[..], &[kind], &workspace.0, &record.0];
    [&head.concat(), rest].concat()
}

/// Encodes an entry.
pub(super) fn encode(undo: &Undo) -> Vec<u8> {
    match undo {
        Undo::Created { workspace, uuid } => entry(b'C', (*workspace, *uuid), &[]),
        Undo::Delete { workspace, uuid } => entry(b'D', (*workspace, *uuid), &[]),
        Undo::Wrote {
            workspace,
            uuid,
            at,
            old,
            size,
        } => {
            let rest = [&at.to_le_bytes()[..], &size.to_le_bytes(), old].concat();
            entry(b'W', (*workspace, *uuid), &rest)
        }
        Undo::Meta { scope, uuid, back } => {
            let (workspace, root) = match scope {
                Scope::Root => (Uuid::default(), 1),
                Scope::In(workspace) => (*workspace, 0),
            };
            let mut rest = vec![root];
            for (key, value) in back {
                put_text(&mut rest, key);
                rest.push(u8::from(value.is_some()));
                put_text(&mut rest, value.as_deref().unwrap_or_default());
            }
            entry(b'M', (workspace, *uuid), &rest)
        }
    }
}

fn put_text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

/// Encodes the entry which records that everything except the deletions is done.
pub(super) fn end() -> Vec<u8> {
    entry(b'E', (Uuid::default(), Uuid::default()), &[])
}

/// Decodes a log: its entries, and whether the batch was committed. None if the bytes can't be a
/// log.
pub(super) fn decode(mut bytes: &[u8]) -> Option<(Vec<Undo>, bool)> {
    let mut entries = Vec::new();
    let mut committed = false;
    while let Some(length) = number(&mut bytes) {
        let Some(mut entry) = take(&mut bytes, length) else {
            break;
        };
        let kind = take(&mut entry, 1)?[0];
        let workspace = Uuid(take(&mut entry, 16)?.try_into().ok()?);
        let uuid = Uuid(take(&mut entry, 16)?.try_into().ok()?);
        entries.push(match kind {
            b'C' => Undo::Created { workspace, uuid },
            b'D' => Undo::Delete { workspace, uuid },
            b'E' => {
                committed = true;
                continue;
            }
            b'W' => Undo::Wrote {
                workspace,
                uuid,
                at: number(&mut entry)?,
                size: number(&mut entry)?,
                old: entry.to_vec(),
            },
            b'M' => Undo::Meta {
                scope: match take(&mut entry, 1)?[0] {
                    0 => Scope::In(workspace),
                    _ => Scope::Root,
                },
                uuid,
                back: changes(entry)?,
            },
            _ => return None,
        });
    }
    Some((entries, committed))
}

fn changes(mut bytes: &[u8]) -> Option<Vec<Change>> {
    let mut all = Vec::new();
    let text = |bytes: &mut &[u8]| {
        let length = number(bytes)?;
        String::from_utf8(take(bytes, length)?.to_vec()).ok()
    };
    while !bytes.is_empty() {
        let key = text(&mut bytes)?;
        let had = take(&mut bytes, 1)?[0] != 0;
        let value = text(&mut bytes)?;
        let value = had.then_some(value);
        super::check_changes([(key.as_str(), value.as_deref())]).ok()?;
        all.push((key, value));
    }
    Some(all)
}

fn take<'a>(bytes: &mut &'a [u8], n: u64) -> Option<&'a [u8]> {
    let (part, rest) = bytes.split_at_checked(usize::try_from(n).ok()?)?;
    *bytes = rest;
    Some(part)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    take(bytes, 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_that_are_cut_off_or_damaged() {
        let entry = |kind: u8, rest: &[u8]| {
            let length = (33 + rest.len() as u64).to_le_bytes();
            [&length[..], &[kind], &[1; 16], &[2; 16], rest].concat()
        };
        let one = entry(b'C', &[]);
        let change = [
            &[0][..],
            &1u64.to_le_bytes(),
            b"k",
            &[1],
            &2u64.to_le_bytes(),
            b"vw",
        ]
        .concat();
        let all = [
            one.clone(),
            entry(b'W', &[[7; 8], [9; 8], *b"contents"].concat()),
            entry(b'M', &change),
            entry(b'E', &[]),
        ]
        .concat();
        let (entries, committed) = decode(&all).unwrap();
        assert!(committed);
        let back = vec![("k".to_owned(), Some("vw".to_owned()))];
        let (scope, uuid) = (Scope::In(Uuid([1; 16])), Uuid([2; 16]));
        assert_eq!(entries[2], Undo::Meta { scope, uuid, back });
        for end in 0..all.len() {
            let (part, committed) = decode(&all[..end]).unwrap();
            assert_eq!(part, entries[..part.len()]);
            assert_eq!(part.is_empty(), end < one.len());
            assert!(!committed);
        }
        assert_eq!(decode(&entry(b'?', &[])), None);
        forebay_fuzz::run("logs", |random| {
            let mut bytes = all.clone();
            random.mutate(&mut bytes, &all);
            let _ = decode(&bytes);
        });
    }
}
