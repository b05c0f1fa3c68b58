//! Intents: changes of entries of this node that have begun and aren't finished on other nodes.
//! They are finished, whatever happens.
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
    /// A number that no other exchange has.
    pub number: u64,
    pub source: Entry,
    /// The other name.
    pub with: (ObjectId, Vec<u8>),
    /// The existing object, once that is known.
    pub target: Option<Entry>,
    pub phase: Phase,
}

/// How far an exchange is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Begun,
    Undone,
    /// The exchange will happen.
    Decided,
    /// The only step left is to change the parents' link counts, which may be done already.
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

/// The remaining work for an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// The entry's object has to be told that it has lost the name.
    Drop(Entry),
    /// For a file that is removed (the entry has no name): its parts on other nodes are to be
    /// removed.
    Parts,
    /// The entry is made, but its object doesn't count the name yet, and may never do so.
    Held(Entry),
    /// The entry is being renamed.
    Move {
        source: Entry,
        to: (ObjectId, Vec<u8>),
        /// Whether the new name's link record has been made.
        announced: bool,
        /// Whether the new entry is there.
        placed: bool,
    },
    /// The entry is being exchanged with another one, and leads the exchange.
    Exchange(Exchange),
    /// The entry is being exchanged with another one, which leads the exchange.
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
        match w.intent(self.entry_ref(name))? {
            None => Ok(None),
            Some(bytes) => Note::decode(bytes).map(Some).ok_or(Errno::IO),
        }
    }

    /// In a transaction that changes an entry: EAGAIN if another change of it has begun and isn't
    /// finished; see `Cluster::retry_noted`.
    pub fn check_note(&self, w: &mut Write<'_>, name: Named<'_>) -> Result<()> {
        if self.remote.is_none() || self.note_on(w, name)?.is_none() {
            return Ok(());
        }
        Err(Errno::AGAIN)
    }

    /// EAGAIN while there is a note on the entry.
    pub fn note_gone(&self, name: Named<'_>) -> Result<()> {
        let at = self.entry_ref(name);
        match self.records(at.shard())?.intent(at)? {
            Some(_) => Err(Errno::AGAIN),
            None => Ok(()),
        }
    }

    /// Sets the note on an entry, whose home this is.
    pub fn put_note(&self, w: &mut Write<'_>, name: Named<'_>, note: &Note) -> Result<()> {
        let owner = self.own_identity()?;
        w.set_intent(self.entry_ref(name), &note.encode(owner))
    }

    /// In a transaction that removes the file `id`: its parts on other nodes are to go as well.
    pub(crate) fn leave_parts(&self, w: &mut Write<'_>, id: ObjectId) -> Result<()> {
        w.leave_unsettled();
        let note = Note::Parts.encode(0);
        w.set_intent(self.entry_ref((id, b"")), &note)
    }

    pub fn forget_note(&self, name: Named<'_>) -> Result<()> {
        let at = self.entry_ref(name);
        self.transact(at.set(), Need::Removal, |w| w.end_intent(at))
    }

    /// The keeper finishes what was left unfinished.
    pub fn leave_unsettled(&self) {
        self.control.header().unsettled.store(1, Release);
        self.control.wake_keeper();
    }

    /// Makes the keeper find out whether the entry was made.
    pub fn disown_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.leave_unsettled();
        self.transact(self.names().object_set(id), Need::Removal, |w| {
            match self.links().link_state(w, id, name)? {
                Some(Link::Unconfirmed) => {
                    let key = Key::link(id, name.0, name.1);
                    w.attach(id, &key, &Link::Unconfirmed.encode(0))
                }
                _ => Ok(()),
            }
        })
    }

    /// Gives a note up, so that any process may complete it.
    pub fn disown_note(&self, name: Named<'_>) -> Result<()> {
        self.leave_unsettled();
        let at = self.entry_ref(name);
        self.transact(at.set(), Need::Removal, |w| {
            match self.note_on(w, name)? {
                Some((note, _)) => w.set_intent(at, &note.encode(0)),
                None => Ok(()),
            }
        })
    }

    // ---- after deaths ----

    /// After a loss of shared memory: no process continues anything that was recorded. The
    /// identities in the notes belong to ended processes, and are about to be given to others.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn disown_intents(&self) -> Result<()> {
        for shard in 0..self.names().shard_count() {
            let (mut links, mut notes) = (Vec::new(), Vec::new());
            let records = self.committed(shard)?;
            records.each_attached(b"L", |key, value| {
                let of_process = matches!(
                    Link::decode(value),
                    Some((Link::Unconfirmed | Link::Offered, owner)) if owner != 0
                );
                if of_process
                    && let Some((b'L', id, _)) = parse_key(key)
                    && self.shard_of(id) == shard
                {
                    let link = if is_unconfirmed(value) {
                        Link::Unconfirmed
                    } else {
                        Link::Offered
                    };
                    links.push((id, key.to_vec(), link.encode(0)));
                }
                key.first() == Some(&b'L')
            })?;
            records.each_intent(|dir, name, value| {
                if let Some((note, owner)) = Note::decode(value)
                    && owner != 0
                    && self.shard_of_entry(dir, name) == shard
                {
                    notes.push((dir, name.to_vec(), note.encode(0)));
                }
                true
            })?;
            drop(records);
            if links.is_empty() && notes.is_empty() {
                continue;
            }
            self.leave_unsettled();
            self.transact(self.set(&[shard]), Need::Removal, |w| {
                for (id, key, link) in &links {
                    w.attach(*id, key, link)?;
                }
                let mut notes = notes.iter();
                notes.try_for_each(|(dir, name, note)| {
                    w.set_intent(self.entry_ref((*dir, name)), note)
                })
            })?;
        }
        Ok(())
    }

    /// ESTALE while nothing may be made in `dir`.
    pub fn check_frozen(&self, dir: ObjectId) -> Result<()> {
        if self.control.header().frozen.load(Acquire) == dir.0 {
            Err(Errno::STALE)
        } else {
            Ok(())
        }
    }

    pub(crate) fn own_identity(&self) -> Result<u32> {
        Ok(identity(&self.control, self.process_slot()?))
    }

    /// Makes visible the new state of an entry whose object has lost the name `dropped`.
    pub fn end_drop(&self, name: Named<'_>, dropped: Entry, forget: bool) -> Result<()> {
        let at = self.entry_ref(name);
        self.transact(at.set(), Need::Removal, |w| {
            self.let_see(w, name, dropped)?;
            if forget {
                w.end_intent(at)?;
            }
            Ok(())
        })
    }

    /// In a transaction: what [`Store::end_drop`] does but for the note.
    pub fn let_see(&self, w: &mut Write<'_>, name: Named<'_>, dropped: Entry) -> Result<()> {
        let at = self.entry_ref(name);
        match w.look_up(at)? {
            Some(there) if !there.changing => Ok(()),
            Some(there) if there.entry == dropped => w.clear_entry(at).map(|_| ()),
            Some(there) => w.set_entry(at, there.entry),
            None => Ok(()),
        }
    }

    /// A held entry is kept, or removed.
    pub fn release_entry_here(&self, name: Named<'_>, entry: Entry, stays: bool) -> Result<()> {
        let at = self.entry_ref(name);
        self.transact(at.set(), Need::Removal, |w| {
            match self.note_on(w, name)? {
                Some((Note::Held(held), _)) if held == entry => {}
                // The change is done already.
                _ => return Ok(()),
            }
            if stays {
                w.set_entry(at, entry)?
            } else {
                _ = w.clear_entry(at)?
            }
            w.end_intent(at)
        })
    }

    /// The entry as it lies here, even if it is being moved.
    pub fn entry_here(&self, name: Named<'_>) -> Result<Option<Entry>> {
        let at = self.entry_ref(name);
        let found = self.records(at.shard())?.look_up(at)?;
        Ok(found.map(|found| found.entry))
    }

    /// From now on nothing is made in `dir`, and paths resolved before are resolved again. Returns
    /// whether there are entries of `dir` on this node.
    pub fn freeze(&self, epoch: u64, dir: ObjectId) -> Result<bool> {
        if epoch >> 32 < self.names().names_epoch() >> 32 {
            // From long ago.
            return Err(Errno::STALE);
        }
        if dir.0 == 0 {
            self.names().raise_epoch(epoch);
            return Ok(false);
        }
        // With all shards locked, a process that makes something has made it, or will see this.
        self.transact(self.all_shards(), Need::Removal, |w| {
            self.names().raise_epoch(epoch);
            let frozen = &self.control.header().frozen;
            frozen.store(dir.0, SeqCst);
            if epoch >> 32 != self.names().names_epoch() >> 32 {
                // A later change was announced just now.
                frozen.store(0, SeqCst);
                return Err(Errno::STALE);
            }
            w.is_empty(dir).map(|empty| !empty)
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
