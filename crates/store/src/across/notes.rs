//! Notes: what is still to be done for an entry on other nodes, so that it is done whatever happens.

use super::exchange::{Exchange, Phase};
use super::*;

/// What is still to be done for an entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Note {
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
    pub(super) fn encode(&self, owner: u32) -> Vec<u8> {
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

    pub(super) fn decode(mut bytes: &[u8]) -> Option<(Note, u32)> {
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

impl Store {
    /// In a transaction: the note on an entry, if there is one.
    pub(super) fn note_on(
        &self,
        w: &mut Write<'_>,
        name: Named<'_>,
    ) -> Result<Option<(Note, u32)>> {
        let shard = self.shard_of_entry(name.0, name.1);
        match w.get(shard, &Key::note(name.0, name.1))? {
            None => Ok(None),
            Some(bytes) => Note::decode(bytes).map(Some).ok_or(Errno::IO),
        }
    }

    /// In a transaction that changes an entry: EAGAIN if something has begun with it that isn't
    /// finished; see [`Store::retry_noted`].
    pub(crate) fn check_note(&self, w: &mut Write<'_>, name: Named<'_>) -> Result<()> {
        if !self.several || self.note_on(w, name)?.is_none() {
            return Ok(());
        }
        Err(Errno::AGAIN)
    }

    /// Does `f` again as long as it finds a note on `name`, which is completed or waited for.
    pub(crate) fn retry_noted<T>(
        &self,
        name: Named<'_>,
        mut f: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut nap = Nap::new();
        loop {
            match f() {
                Err(Errno::AGAIN) => self.wait_for_note(name, &mut nap)?,
                result => return result,
            }
        }
    }

    /// Completes the note on `name`, or waits a moment for whoever is at it. What serves another
    /// node doesn't wait: EAGAIN, and who has asked waits and asks again. So no node's threads are
    /// all busy with waiting for those of another.
    pub(super) fn wait_for_note(&self, name: Named<'_>, nap: &mut Nap) -> Result<()> {
        match self.settle_note(name)? {
            true => Ok(()),
            false if IN_A_HURRY.with(Cell::get) => Err(Errno::AGAIN),
            false => nap.wait(),
        }
    }

    /// EAGAIN while there is a note on the entry.
    pub(crate) fn note_gone(&self, name: Named<'_>) -> Result<()> {
        let snapshot = self.snapshot(self.shard_of_entry(name.0, name.1))?;
        match snapshot.get(&Key::note(name.0, name.1))? {
            Some(_) => Err(Errno::AGAIN),
            None => Ok(()),
        }
    }

    /// Waits until an entry is no longer being renamed.
    pub(crate) fn wait_for_move(&self, name: Named<'_>, nap: &mut Nap) -> Result<()> {
        self.wait_for_note(name, nap)
    }

    /// Sets the note on an entry, whose home this is.
    pub(super) fn put_note(&self, w: &mut Write<'_>, name: Named<'_>, note: &Note) -> Result<()> {
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

    pub(super) fn forget_note(&self, name: Named<'_>) -> Result<()> {
        let shard = self.shard_of_entry(name.0, name.1);
        self.write(self.set(&[shard]), Need::Removal, |w| {
            w.del(shard, &Key::note(name.0, name.1)).map(|_| ())
        })
    }

    /// What was left undone is for the keeper.
    pub(crate) fn leave_unsettled(&self) {
        self.control.header().unsettled.store(1, Release);
        self.control.wake_keeper();
    }

    /// Lets the keeper find out whether the entry was made.
    pub(super) fn disown_link(&self, id: ObjectId, name: Named<'_>) -> Result<()> {
        self.leave_unsettled();
        self.write(self.object_set(id), Need::Removal, |w| {
            match self.link_state(w, id, name)? {
                Some(Link::Unconfirmed) => {
                    let key = Key::link(id, name.0, name.1);
                    w.put(self.shard_of(id), &key, &Link::Unconfirmed.encode(0))
                }
                _ => Ok(()),
            }
        })
    }

    /// Lets others take care of a note.
    pub(super) fn disown_note(&self, name: Named<'_>) -> Result<()> {
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

    /// Completes the note on an entry, if whoever began is gone. False: it is still at it.
    pub(super) fn settle_note(&self, name: Named<'_>) -> Result<bool> {
        let shard = self.shard_of_entry(name.0, name.1);
        // Taken over in the transaction that sees that the owner is gone: by one alone.
        let note = self.write(self.set(&[shard]), Need::Removal, |w| {
            let Some((note, owner)) = self.note_on(w, name)? else {
                return Ok(None);
            };
            if let Note::Held(_) | Note::Joined { .. } = note {
                return Ok(Some(Some(note)));
            }
            if owner != 0 && identity_lives(&self.control, owner) {
                return Ok(Some(None));
            }
            self.put_note(w, name, &note)?;
            Ok(Some(Some(note)))
        })?;
        let note = match note {
            None => return Ok(true),
            Some(None) => return Ok(false),
            Some(Some(note)) => note,
        };
        if let Note::Held(entry) = note {
            // The object's home knows.
            return match self.offered(entry.id, name)? {
                Some(stays) => self.release_entry(name, entry, stays).map(|()| true),
                None => Ok(false),
            };
        }
        if let Note::Joined { led, .. } = &note {
            return self.settle_joined(name, ((led.0, &led.1), led.2));
        }
        let settled = self.redo_note(name, &note);
        if settled.is_err() {
            self.disown_note(name)?;
        }
        settled.map(|()| true)
    }

    pub(super) fn redo_note(&self, name: Named<'_>, note: &Note) -> Result<()> {
        match note {
            // See settle_note.
            Note::Held(_) | Note::Joined { .. } => Ok(()),
            Note::Exchange(exchange) => self.redo_exchange(name, exchange),
            Note::Parts => {
                self.drop_parts(name.0)?;
                self.forget_note(name)
            }
            Note::Drop(entry) => match self.lose_name(entry.id, name, None, true) {
                Ok(()) | Err(Errno::NOENT) => self.end_drop(name, *entry, true),
                Err(e) => {
                    self.end_drop(name, *entry, false)?;
                    Err(e)
                }
            },
            Note::Move {
                source,
                to,
                announced,
                placed,
            } => {
                let to = (to.0, &to.1[..]);
                let there = *placed || *announced && self.was_placed(*source, to)?;
                if there {
                    self.complete_move(name, *source, to)
                } else {
                    self.undo_move(name, *source, to)
                }
            }
        }
    }

    /// Completes what processes of this node have begun and can't go on with: their notes, and names
    /// of which they didn't know whether they were made. How many.
    ///
    /// # Errors
    /// EHOSTDOWN: some of it has to wait for another node.
    pub fn settle_notes(&self) -> Result<usize> {
        if self.elsewhere.is_none() {
            return Ok(0);
        }
        let (mut notes, mut links) = (Vec::new(), Vec::new());
        for env in &self.envs {
            let snapshot = env.snapshot()?;
            snapshot.scan(b"L", |key, value| match parse_key(key) {
                Some((b'L', id, rest)) => {
                    let unsure = Link::decode(value).is_some_and(|(link, owner)| {
                        matches!(link, Link::Unconfirmed | Link::Offered)
                            && !identity_lives(&self.control, owner)
                    });
                    if unsure && rest.len() > 8 && rest.len() <= 8 + NAME_MAX {
                        links.push((id, rest.to_vec()));
                    }
                    true
                }
                _ => false,
            })?;
            snapshot.scan(b"N", |key, value| match parse_key(key) {
                Some((b'N', dir, name)) => {
                    let left = Note::decode(value).is_some_and(|(note, owner)| {
                        matches!(note, Note::Held(_) | Note::Joined { .. })
                            || !identity_lives(&self.control, owner)
                    });
                    if left {
                        notes.push((dir, name.to_vec()));
                    }
                    true
                }
                _ => false,
            })?;
        }
        let mut result = Ok(());
        let count = notes.len() + links.len();
        for (dir, name) in notes {
            result = self.settle_note((dir, &name)).map(|_| ()).and(result);
        }
        for (id, rest) in links {
            let (dir, name) = rest.split_at(8);
            let dir = ObjectId(u64::from_be_bytes(dir.try_into().expect("8 bytes")));
            self.withdraw_dead(id, (dir, name))?;
            let there = self.lookup(dir, name);
            result = match there {
                Ok(Some(e)) if e.id == id => self.confirm_link(id, (dir, name)),
                Ok(_) => self.lose_link(id, (dir, name)),
                Err(e) => Err(e),
            }
            .and(result);
        }
        result.map(|()| count)
    }
}
