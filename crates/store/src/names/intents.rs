//! Intents: what has begun with an entry of this node and isn't finished on other nodes, so that it
//! is, whatever happens.
//!
//! An intent is a record beside the entry, written in the transaction that begins. While there is
//! one, the entry is *moving* (`EntryRecord::changing`): lookups wait ([`Errno::AGAIN`]),
//! and changes find it busy ([`Store::check_note`]). It names its owner, a process; when that has
//! ended, any process completes the intent ([`crate::cluster`]). Nothing here asks another node.

use super::*;
use crate::codec::{Wire, decode, encode};
use crate::process::identity;
use crate::views::Intents;

/// Whether paths may lead through what this entry is.
pub fn is_on_paths(entry: Entry) -> bool {
    matches!(entry.kind, libc::S_IFDIR | libc::S_IFLNK)
}

/// An exchange, as its leader notes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// No other one has it.
    pub number: u64,
    pub source: Entry,
    /// The other name.
    pub with: (ObjectId, Vec<u8>),
    /// What is there, once that is known.
    pub target: Option<Entry>,
    pub phase: Phase,
}

/// How far an exchange is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Begun,
    Undone,
    /// It happens.
    Decided,
    /// Nothing is left but to change the parents' link counts, which may be done.
    Counted,
}

impl Phase {
    pub fn decode(number: u8) -> Option<Phase> {
        use Phase::*;
        [Begun, Undone, Decided, Counted]
            .get(usize::from(number))
            .copied()
    }
}

/// What is still to be done for an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// Its object has to be told that it has lost the name.
    Drop(Entry),
    /// Of a file that is gone (the entry has no name): its parts on other nodes are to go.
    Parts,
    /// It is made, but its object doesn't count the name yet, and may come not to.
    Held(Entry),
    /// It is being renamed.
    Move {
        source: Entry,
        to: (ObjectId, Vec<u8>),
        /// Whether the new name's link record has been made.
        announced: bool,
        /// Whether the new entry is there.
        placed: bool,
    },
    /// It is being exchanged with another one, and leads.
    Exchange(Exchange),
    /// The same, of the other one.
    Joined {
        there: Entry,
        comes: Entry,
        /// Which name leads, and the number of the exchange.
        led: (ObjectId, Vec<u8>, u64),
    },
}

impl Note {
    pub fn encode(&self, owner: u32) -> Vec<u8> {
        match self {
            Note::Drop(entry) => encode(&(0u8, owner, *entry)),
            Note::Parts => encode(&(3u8, owner)),
            Note::Held(entry) => encode(&(2u8, owner, *entry)),
            Note::Move {
                source,
                to,
                announced,
                placed,
            } => encode(&(1u8, owner, *source, to.0, to.1.clone(), *announced, *placed)),
            Note::Exchange(e) => {
                let with = (e.with.0, &e.with.1[..]);
                encode(&(
                    4u8,
                    owner,
                    e.number,
                    e.source,
                    with,
                    e.target,
                    e.phase as u8,
                ))
            }
            Note::Joined { there, comes, led } => {
                let led = (led.0, &led.1[..], led.2);
                encode(&(5u8, owner, *there, *comes, led))
            }
        }
    }

    pub fn decode(mut bytes: &[u8]) -> Option<(Note, u32)> {
        let (what, owner) = <(u8, u32)>::take(&mut bytes)?;
        let note = match what {
            0 => Note::Drop(decode(bytes)?),
            2 => Note::Held(decode(bytes)?),
            3 => {
                let () = decode(bytes)?;
                Note::Parts
            }
            1 => {
                let (source, dir, name, announced, placed) = decode(bytes)?;
                Note::Move {
                    source,
                    to: (dir, name),
                    announced,
                    placed,
                }
            }
            4 => {
                let (number, source, with, target, phase) = decode(bytes)?;
                Note::Exchange(Exchange {
                    number,
                    source,
                    with,
                    target,
                    phase: Phase::decode(phase)?,
                })
            }
            5 => {
                let (there, comes, led) = decode(bytes)?;
                Note::Joined { there, comes, led }
            }
            _ => return None,
        };
        Some((note, owner))
    }
}

impl Intents<'_> {
    /// In a transaction: the note on an entry, if there is one.
    pub fn note_on(&self, w: &mut Write<'_>, name: Named<'_>) -> Result<Option<(Note, u32)>> {
        let shard = self.shard_of_entry(name.0, name.1);
        match w.get(shard, &Key::note(name.0, name.1))? {
            None => Ok(None),
            Some(bytes) => Note::decode(bytes).map(Some).ok_or(Errno::IO),
        }
    }

    /// In a transaction that changes an entry: EAGAIN if something has begun with it that isn't
    /// finished; see `Cluster::retry_noted`.
    pub fn check_note(&self, w: &mut Write<'_>, name: Named<'_>) -> Result<()> {
        if self.foreign.is_none() || self.note_on(w, name)?.is_none() {
            return Ok(());
        }
        Err(Errno::AGAIN)
    }

    /// EAGAIN while there is a note on the entry.
    pub fn note_gone(&self, name: Named<'_>) -> Result<()> {
        let snapshot = self.snapshot(self.shard_of_entry(name.0, name.1))?;
        match snapshot.get(&Key::note(name.0, name.1))? {
            Some(_) => Err(Errno::AGAIN),
            None => Ok(()),
        }
    }

    /// Sets the note on an entry, whose home this is.
    pub fn put_note(&self, w: &mut Write<'_>, name: Named<'_>, note: &Note) -> Result<()> {
        let owner = self.own_identity()?;
        let shard = self.shard_of_entry(name.0, name.1);
        w.put(shard, &Key::note(name.0, name.1), &note.encode(owner))
    }

    /// In a transaction that removes the file `id`: its parts on other nodes are to go as well.
    pub(crate) fn leave_parts(&self, w: &mut Write<'_>, id: ObjectId) -> Result<()> {
        w.leave_unsettled();
        let note = Note::Parts.encode(0);
        w.put(self.shard_of(id), &Key::note(id, b""), &note)
    }

    pub fn forget_note(&self, name: Named<'_>) -> Result<()> {
        let shard = self.shard_of_entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            w.del(shard, &Key::note(name.0, name.1)).map(|_| ())
        })
    }

    /// What was left undone is for the keeper.
    pub fn leave_unsettled(&self) {
        self.control.header().unsettled.store(1, Release);
        self.control.wake_keeper();
    }

    /// Lets the keeper find out whether the entry was made.
    pub fn disown_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.leave_unsettled();
        self.write(self.names().object_set(id), Need::Removal, |w| {
            match self.links().link_state(w, id, name)? {
                Some(Link::Unconfirmed) => {
                    let key = Key::link(id, name.0, name.1);
                    w.put(self.shard_of(id), &key, &Link::Unconfirmed.encode(0))
                }
                _ => Ok(()),
            }
        })
    }

    /// Lets others take care of a note.
    pub fn disown_note(&self, name: Named<'_>) -> Result<()> {
        self.leave_unsettled();
        let shard = self.shard_of_entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            match self.note_on(w, name)? {
                Some((note, _)) => {
                    let key = Key::note(name.0, name.1);
                    w.put(shard, &key, &note.encode(0))
                }
                None => Ok(()),
            }
        })
    }

    // ---- after deaths ----

    /// After a loss of shared memory: nobody is at anything that was noted. The identities in the
    /// notes are of processes that are gone, and are about to be given to others.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn disown_intents(&self) -> Result<()> {
        for shard in 0..self.envs.len() {
            let mut changed: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let snapshot = self.envs[shard].snapshot()?;
            snapshot.scan(b"L", |key, value| {
                let of_process = matches!(
                    Link::decode(value),
                    Some((Link::Unconfirmed | Link::Offered, owner)) if owner != 0
                );
                if of_process && parse_key(key).is_some_and(|k| k.0 == b'L') {
                    let link = if is_unconfirmed(value) {
                        Link::Unconfirmed
                    } else {
                        Link::Offered
                    };
                    changed.push((key.to_vec(), link.encode(0).to_vec()));
                }
                key.first() == Some(&b'L')
            })?;
            snapshot.scan(b"N", |key, value| {
                if parse_key(key).is_some_and(|k| k.0 == b'N')
                    && let Some((note, owner)) = Note::decode(value)
                    && owner != 0
                {
                    changed.push((key.to_vec(), note.encode(0)));
                }
                key.first() == Some(&b'N')
            })?;
            drop(snapshot);
            if changed.is_empty() {
                continue;
            }
            self.leave_unsettled();
            self.write(self.set(&[shard]), Need::Removal, |w| {
                let mut all = changed.iter();
                all.try_for_each(|(key, value)| w.put(shard, key, value))
            })?;
        }
        Ok(())
    }

    /// ESTALE while nothing may be made in `dir`.
    pub fn check_frozen(&self, dir: ObjectId) -> Result<()> {
        match self.control.header().frozen.load(Acquire) == dir.0 {
            true => Err(Errno::STALE),
            false => Ok(()),
        }
    }

    pub(crate) fn own_identity(&self) -> Result<u32> {
        Ok(identity(&self.control, self.process_slot()?))
    }

    /// Lets everybody see what has become of an entry whose object has lost the name `dropped`.
    pub fn end_drop(&self, name: Named<'_>, dropped: Entry, forget: bool) -> Result<()> {
        let shard = self.shard_of_entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            self.let_see(w, name, dropped)?;
            if forget {
                w.del(shard, &Key::note(name.0, name.1))?;
            }
            Ok(())
        })
    }

    /// In a transaction: what [`Store::end_drop`] does but for the note.
    pub fn let_see(&self, w: &mut Write<'_>, name: Named<'_>, dropped: Entry) -> Result<()> {
        let shard = self.shard_of_entry(name.0, name.1);
        let key = Key::entry(name.0, name.1);
        match w.get(shard, &key)?.and_then(EntryRecord::decode) {
            Some(there) if !there.changing => Ok(()),
            Some(there) if there.entry == dropped => w.del(shard, &key).map(|_| ()),
            Some(there) => w.put(shard, &key, &there.entry.encode()),
            None => Ok(()),
        }
    }

    /// A held entry stays, or goes.
    pub fn release_entry_here(&self, name: Named<'_>, entry: Entry, stays: bool) -> Result<()> {
        let shard = self.shard_of_entry(name.0, name.1);
        let key = Key::entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            match self.note_on(w, name)? {
                Some((Note::Held(held), _)) if held == entry => {}
                // It is done already.
                _ => return Ok(()),
            }
            match stays {
                true => w.put(shard, &key, &entry.encode())?,
                false => _ = w.del(shard, &key)?,
            }
            w.del(shard, &Key::note(name.0, name.1)).map(|_| ())
        })
    }

    /// The entry as it lies here, moving or not.
    pub fn entry_here(&self, name: Named<'_>) -> Result<Option<Entry>> {
        let snapshot = self.snapshot(self.shard_of_entry(name.0, name.1))?;
        match snapshot.get(&Key::entry(name.0, name.1))? {
            Some(bytes) => match EntryRecord::decode(bytes) {
                Some(found) => Ok(Some(found.entry)),
                None => Err(Errno::IO),
            },
            None => Ok(None),
        }
    }

    /// From now on nothing is made in `dir`, and paths resolved before are resolved anew. Whether
    /// there are entries of `dir` on this node.
    pub fn freeze(&self, epoch: u64, dir: ObjectId) -> Result<bool> {
        if epoch >> 32 < self.names().names_epoch() >> 32 {
            // From long ago.
            return Err(Errno::STALE);
        }
        if dir.0 == 0 {
            self.names().raise_epoch(epoch);
            return Ok(false);
        }
        // With all shards locked, whoever makes something has made it, or will see this.
        self.write(self.all_shards(), Need::Removal, |_| {
            self.names().raise_epoch(epoch);
            let frozen = &self.control.header().frozen;
            frozen.store(dir.0, SeqCst);
            if epoch >> 32 != self.names().names_epoch() >> 32 {
                // A later change was heard of just now.
                frozen.store(0, SeqCst);
                return Err(Errno::STALE);
            }
            self.names().is_empty(dir).map(|empty| !empty)
        })
    }

    /// Ends [`Store::freeze`].
    pub fn thaw(&self, epoch: u64) {
        if epoch >> 32 >= self.names().names_epoch() >> 32 {
            self.names().raise_epoch(epoch);
            self.control.header().frozen.store(0, Release);
        }
    }
}
