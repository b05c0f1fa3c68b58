//! The log of a batch that can be undone, in a pool: a file `/.undo-UUID`, locked by who runs the batch.
//!
//! An entry is appended before its operation is done. When the process is killed, its lock goes with it, and who
//! loads a workspace next finds a log that nobody holds: it undoes what is in it, or carries on where the batch
//! was committed already. Doing that twice does no harm, so it may be killed as well.
//!
//! ```text
//! entry = length of the rest (8 bytes) kind (1) workspace (16) record (16) ...
//!   C created    -
//!   W wrote      place (8) size (8) bytes that were there
//!   M meta       one byte: whether it is a workspace; then for each key: length (8) key, one byte: whether it
//!                had a value; length (8) value
//!   D delete     -
//!   E end        : all is done, but the deletions
//! ```
//!
//! Numbers are little-endian. An entry that is cut off was never followed by its operation.

use super::hidden::Hidden;
use crate::meta::{Change, Scope};
use crate::pool::Attached;
use crate::process::Generation;
use crate::undo::{Undo, UndoLog};
use crate::{Error, Result, Uuid};
use forebay_store::LockType;
use libc::{O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR};
use rustix::io::Errno;
use std::sync::{Mutex, PoisonError};

const NAME: &str = ".undo-";

pub(super) struct Log {
    fs: Attached,
    path: Vec<u8>,
    open: u32,
    /// Entries come one after the other.
    turn: Mutex<()>,
    generation: Generation,
}

impl Log {
    /// A new one.
    pub fn create(fs: &Attached) -> Result<Log> {
        let cannot = |e| Error::of("can't make the log of a batch in the pool", e);
        for _ in 0..100 {
            let path = format!("/{NAME}{}", Uuid::random()?).into_bytes();
            let made = Log::open(fs, path, O_CREAT | O_EXCL).map_err(cannot)?;
            // Who looks for logs of the dead may have been faster: then it has gone.
            if let Some(log) = made {
                return Ok(log);
            }
        }
        Err(cannot(Errno::BUSY))
    }

    /// Those that dead processes have left. What else they have left goes.
    pub fn left_behind(fs: &Attached) -> std::result::Result<Vec<Log>, Errno> {
        let names = fs.list(b"/")?.into_iter().map(|entry| entry.name);
        let mut names = names
            .filter(|name| name.starts_with(NAME.as_bytes()) || Hidden::is(name))
            .peekable();
        if names.peek().is_some() {
            // The keeper may not have noticed yet.
            let _ = fs.store().reap();
        }
        let mut found = Vec::new();
        for name in names {
            if Hidden::is(&name) {
                Hidden::sweep(fs, &name);
                continue;
            }
            match Log::open(fs, [b"/", &name[..]].concat(), 0) {
                Ok(log) => found.extend(log),
                // Somebody else was faster, or isn't allowed to.
                Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(found)
    }

    /// Opens and locks it; None if it belongs to somebody who lives, or has gone.
    fn open(fs: &Attached, path: Vec<u8>, flags: i32) -> std::result::Result<Option<Log>, Errno> {
        let flags = flags | O_RDWR | O_NOFOLLOW;
        let open = fs.open(&path, flags, 0o600)?.into_open();
        let log = Log {
            fs: fs.clone(),
            path,
            open,
            turn: Mutex::new(()),
            generation: Generation::now(),
        };
        match fs.store().flock(open, LockType::Exclusive, false) {
            Err(Errno::AGAIN) => return Ok(None),
            locked => locked?,
        }
        let there = fs.stat_open(open)?.nlink > 0;
        Ok(there.then_some(log))
    }

    fn append(&self, kind: u8, scope: (Uuid, Uuid), rest: &[u8]) -> Result<()> {
        let length = 33 + rest.len() as u64;
        let (workspace, record) = scope;
        let head = [&length.to_le_bytes()[..], &[kind], &workspace.0, &record.0].concat();
        let cannot = |e| Error::of("can't note how a batch is undone", e);
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = None;
        for mut part in [&head[..], rest] {
            while !part.is_empty() {
                match self.fs.append_chunk(self.open, part) {
                    Ok((at, n)) if n > 0 => {
                        before.get_or_insert(at);
                        part = &part[n..];
                    }
                    failed => {
                        // What comes next must not be taken for the rest of this one.
                        if let Some(before) = before {
                            self.fs.truncate_open(self.open, before).map_err(cannot)?;
                        }
                        return Err(cannot(failed.err().unwrap_or(Errno::NOSPC)));
                    }
                }
            }
        }
        Ok(())
    }

    fn content(&self) -> std::result::Result<Vec<u8>, Errno> {
        let size = self.fs.stat_open(self.open)?.size;
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| Errno::FBIG)?];
        let mut done = 0;
        while done < bytes.len() {
            match self
                .fs
                .read_chunk(self.open, &mut bytes[done..], done as u64)?
            {
                0 => break,
                n => done += n,
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }
}

impl UndoLog for Log {
    fn note(&self, entry: Undo) -> Result<()> {
        match entry {
            Undo::Created { workspace, uuid } => self.append(b'C', (workspace, uuid), &[]),
            Undo::Delete { workspace, uuid } => self.append(b'D', (workspace, uuid), &[]),
            Undo::Wrote {
                workspace,
                uuid,
                at,
                old,
                size,
            } => {
                let rest = [&at.to_le_bytes()[..], &size.to_le_bytes(), &old].concat();
                self.append(b'W', (workspace, uuid), &rest)
            }
            Undo::Meta { scope, uuid, back } => {
                let (workspace, root) = match scope {
                    Scope::Root => (Uuid::default(), 1),
                    Scope::In(workspace) => (workspace, 0),
                };
                let mut rest = vec![root];
                for (key, value) in &back {
                    let mut put = |text: &str| {
                        rest.extend((text.len() as u64).to_le_bytes());
                        rest.extend(text.as_bytes());
                    };
                    put(key);
                    let text = value.as_deref();
                    rest.push(u8::from(text.is_some()));
                    let text = text.unwrap_or_default();
                    rest.extend((text.len() as u64).to_le_bytes());
                    rest.extend(text.as_bytes());
                }
                self.append(b'M', (workspace, uuid), &rest)
            }
        }
    }

    fn entries(&self) -> Result<(Vec<Undo>, bool)> {
        let path = String::from_utf8_lossy(&self.path);
        let cannot = |e| Error::of(format!("can't read {path} in the pool"), e);
        let bytes = self.content().map_err(cannot)?;
        decode(&bytes).ok_or_else(|| {
            Error::new(
                Errno::PROTO,
                format!("{path} in the pool isn't the log of a batch, or of another version"),
            )
        })
    }

    fn commit(&self) -> Result<()> {
        self.append(b'E', Default::default(), &[])
    }

    fn end(&self) {
        let _ = self.fs.unlink(&self.path);
    }

    fn outlives_process(&self) -> bool {
        true
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        // A child's copy isn't the child's to close, or its lock to give up.
        if self.generation.is_now() {
            let _ = self.fs.release(self.open);
        }
    }
}

/// The entries, and whether the batch was committed. None for what can't be a log.
fn decode(mut bytes: &[u8]) -> Option<(Vec<Undo>, bool)> {
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
        all.push((key, had.then_some(value)));
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
