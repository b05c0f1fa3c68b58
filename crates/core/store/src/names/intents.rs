//! Intents: records of changes of this node's entries that have begun and aren't finished on other
//! nodes. Each is completed, even if its process dies.
//!
//! An intent is a record beside the entry, written in the transaction that begins the change. While
//! there is an intent, the entry is *moving* (`EntryRecord::changing`): lookups wait
//! ([`Errno::AGAIN`]), and changes find it busy ([`Intents::check_note`]). An intent contains its
//! owner, a process; when the owner has ended, any process completes the intent (crate `cluster`).
//! This module sends no requests to other nodes.

use super::*;
use crate::codec::{Wire, decode, encode};
use crate::process::identity;
use crate::views::Intents;

/// Whether a path may lead through the object of this entry: a directory or symbolic link.
pub fn is_on_paths(entry: Entry) -> bool {
    matches!(entry.kind, libc::S_IFDIR | libc::S_IFLNK)
}

/// The intent of an exchange at its leading name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exchange {
    /// A number that no other exchange has.
    pub number: u64,
    pub source: Entry,
    /// The name with which the leading name is exchanged.
    pub with: (ObjectId, Vec<u8>),
    /// The entry of the other name, as soon as it is known.
    pub target: Option<Entry>,
    pub phase: Phase,
}

/// The progress of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Begun,
    Undone,
    /// The exchange has taken effect and must be completed.
    Decided,
    /// As `Decided`, but the parents' link counts may have been changed already: completing the
    /// exchange leaves them as they are.
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

/// The content of an intent: the work that remains for its entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// The name has still to be removed from the entry's object.
    Drop(Entry),
    /// The intent is on a file that is removed (its entry has an empty name): the file's parts on
    /// other nodes are to be removed.
    Parts,
    /// The entry is made, but its object doesn't count the name yet, and may never do so.
    Held(Entry),
    /// The entry is being renamed.
    Move {
        source: Entry,
        to: (ObjectId, Vec<u8>),
        /// Whether the new name's link record has been made.
        announced: bool,
        /// Whether the new entry is set.
        placed: bool,
    },
    /// The entry is being exchanged with another one, and leads the exchange.
    Exchange(Exchange),
    /// The entry is being exchanged with another one. The other entry leads the exchange.
    Joined {
        there: Entry,
        comes: Entry,
        /// The leading name, and the number of the exchange.
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
    /// In a transaction: returns the intent on an entry and its owner, if there is one.
    pub fn note_on(&self, w: &mut Write<'_>, name: Named<'_>) -> Result<Option<(Note, u32)>> {
        match w.intent(self.store.entry_ref(name))? {
            None => Ok(None),
            Some(bytes) => Note::decode(bytes).map(Some).ok_or(Errno::IO),
        }
    }

    /// In a transaction that changes an entry: returns EAGAIN if the entry has an intent, since
    /// another change of it isn't finished. See `CrossNode::retry_noted`.
    pub fn check_note(&self, w: &mut Write<'_>, name: Named<'_>) -> Result<()> {
        if self.store.remote.is_none() || self.note_on(w, name)?.is_none() {
            return Ok(());
        }
        Err(Errno::AGAIN)
    }

    /// Returns EAGAIN while there is an intent on the entry.
    pub fn note_gone(&self, name: Named<'_>) -> Result<()> {
        let at = self.store.entry_ref(name);
        match self.store.records(at.shard())?.intent(at)? {
            Some(_) => Err(Errno::AGAIN),
            None => Ok(()),
        }
    }

    /// Sets the intent on an entry of this node.
    pub fn put_note(&self, w: &mut Write<'_>, name: Named<'_>, note: &Note) -> Result<()> {
        let owner = self.own_identity()?;
        w.set_intent(self.store.entry_ref(name), &note.encode(owner))
    }

    /// In a transaction that removes the file `id`: records the intent to remove its parts on other
    /// nodes.
    pub(crate) fn leave_parts(&self, w: &mut Write<'_>, id: ObjectId) -> Result<()> {
        w.leave_unsettled();
        let note = Note::Parts.encode(0);
        w.set_intent(self.store.entry_ref((id, b"")), &note)
    }

    pub fn forget_note(&self, name: Named<'_>) -> Result<()> {
        let at = self.store.entry_ref(name);
        self.store
            .transact(at.set(), Need::Removal, |w| w.end_intent(at))
    }

    /// Makes the keeper complete the operations over several nodes that processes leave unfinished.
    pub fn leave_unsettled(&self) {
        self.store.control.header().unsettled.store(1, Release);
        self.store.control.wake_keeper();
    }

    /// Abandons an unconfirmed link: the keeper finds out whether its entry was made.
    pub fn disown_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.leave_unsettled();
        self.store.transact(
            self.store.names().object_set(id),
            Need::Removal,
            |w| match self.store.links().link_state(w, id, name)? {
                Some(Link::Unconfirmed) => {
                    let key = Key::link(id, name.0, name.1);
                    w.attach(id, &key, &Link::Unconfirmed.encode(0))
                }
                _ => Ok(()),
            },
        )
    }

    /// Abandons an intent, so that any process may complete it.
    pub fn disown_note(&self, name: Named<'_>) -> Result<()> {
        self.leave_unsettled();
        let at = self.store.entry_ref(name);
        self.store.transact(at.set(), Need::Removal, |w| {
            match self.note_on(w, name)? {
                Some((note, _)) => w.set_intent(at, &note.encode(0)),
                None => Ok(()),
            }
        })
    }

    // ---- after deaths ----

    /// Abandons all intents and links, after a loss of shared memory: their processes have ended,
    /// and the identities in the records are about to be given to other processes.
    ///
    /// # Errors
    /// EIO.
    pub(crate) fn disown_intents(&self) -> Result<()> {
        for shard in 0..self.store.files.count() {
            let (mut links, mut notes) = (Vec::new(), Vec::new());
            let records = self.store.committed(shard)?;
            records.each_attached(b"L", |key, value| {
                let of_process = matches!(
                    Link::decode(value),
                    Some((Link::Unconfirmed | Link::Offered, owner)) if owner != 0
                );
                if of_process
                    && let Some((b'L', id, _)) = parse_key(key)
                    && self.store.files.shard_of(id) == shard
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
                    && self.store.files.shard_of_entry(dir, name) == shard
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
            self.store
                .transact(ShardSet::of(&[shard]), Need::Removal, |w| {
                    for (id, key, link) in &links {
                        w.attach(*id, key, link)?;
                    }
                    let mut notes = notes.iter();
                    notes.try_for_each(|(dir, name, note)| {
                        w.set_intent(self.store.entry_ref((*dir, name)), note)
                    })
                })?;
        }
        Ok(())
    }

    pub(crate) fn own_identity(&self) -> Result<u32> {
        Ok(identity(&self.store.control, self.store.process_slot()?))
    }

    /// Makes the new state of an entry visible, after the object of `dropped` has lost the name.
    /// `forget`: also removes the intent.
    pub fn end_drop(&self, name: Named<'_>, dropped: Entry, forget: bool) -> Result<()> {
        let at = self.store.entry_ref(name);
        self.store.transact(at.set(), Need::Removal, |w| {
            self.let_see(w, name, dropped)?;
            if forget {
                w.end_intent(at)?;
            }
            Ok(())
        })
    }

    /// In a transaction: does what [`Intents::end_drop`] does, except for the intent.
    pub fn let_see(&self, w: &mut Write<'_>, name: Named<'_>, dropped: Entry) -> Result<()> {
        let at = self.store.entry_ref(name);
        match w.look_up(at)? {
            Some(there) if !there.changing => Ok(()),
            Some(there) if there.entry == dropped => w.clear_entry(at).map(|_| ()),
            Some(there) => w.set_entry(at, there.entry),
            None => Ok(()),
        }
    }

    /// Makes a held entry an ordinary one if it `stays`, else removes it.
    pub fn release_entry_here(&self, name: Named<'_>, entry: Entry, stays: bool) -> Result<()> {
        let at = self.store.entry_ref(name);
        self.store.transact(at.set(), Need::Removal, |w| {
            match self.note_on(w, name)? {
                Some((Note::Held(held), _)) if held == entry => {}
                // The entry was released before.
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

    /// Returns the recorded entry, even if it is being changed.
    pub fn entry_here(&self, name: Named<'_>) -> Result<Option<Entry>> {
        let at = self.store.entry_ref(name);
        let found = self.store.records(at.shard())?.look_up(at)?;
        Ok(found.map(|found| found.entry))
    }

    /// Forbids the creation of entries in `dir`, and raises the epoch of names, so that paths are
    /// resolved again. Returns whether `dir` has entries on this node. `dir` 0: only raises the
    /// epoch.
    pub fn freeze(&self, epoch: u64, dir: ObjectId) -> Result<bool> {
        if epoch >> 32 < self.store.names_epoch().now() >> 32 {
            // The request is older than the last change of names.
            return Err(Errno::STALE);
        }
        if dir.0 == 0 {
            self.store.names_epoch().raise(epoch);
            return Ok(false);
        }
        // All shards are locked: a process that creates an entry has committed it, or will see
        // `frozen`.
        self.store
            .transact(self.store.files.all(), Need::Removal, |w| {
                self.store.names_epoch().raise(epoch);
                let frozen = &self.store.control.header().frozen;
                frozen.store(dir.0, SeqCst);
                if epoch >> 32 != self.store.names_epoch().now() >> 32 {
                    // A later change of names was announced meanwhile.
                    frozen.store(0, SeqCst);
                    return Err(Errno::STALE);
                }
                w.is_empty(dir).map(|empty| !empty)
            })
    }
}
