//! Completing intents: operations on entries of this node in which other nodes take part.
//!
//! The process that began an operation completes it. If that process is gone, the next one that
//! finds the intent takes over the operation in a transaction, so that only one process does. If
//! the other node can't be reached, the intent loses its owner, and the keeper tries again. A view
//! that serves another node returns EAGAIN instead of waiting.

use super::*;
use crate::views::Namespace;
use forebay_store::names::{Link, Note};
use forebay_store::process::identity_lives;

impl<'a> Namespace<'a> {
    /// Completes the operations that dead processes of this node have begun: their intents, and
    /// links whose entries may or may not have been created. Returns the number of both.
    ///
    /// # Errors
    /// EHOSTDOWN: some intents must wait for another node. EAGAIN: a request of a dead process is
    /// still being carried out.
    pub fn settle_notes(&self) -> Result<usize> {
        if self.store().remote.is_none() {
            return Ok(0);
        }
        let (mut notes, mut links) = (Vec::new(), Vec::new());
        for shard in 0..self.store().files.count() {
            let records = self.store().committed(shard)?;
            records.each_attached(b"L", |key, value| match parse_key(key) {
                Some((b'L', id, rest)) => {
                    let unsure = Link::decode(value).is_some_and(|(link, owner)| {
                        matches!(link, Link::Unconfirmed | Link::Offered)
                            && !identity_lives(&self.store().control, owner)
                    });
                    if unsure && rest.len() > 8 && rest.len() <= 8 + NAME_MAX {
                        links.push((id, rest.to_vec()));
                    }
                    true
                }
                _ => false,
            })?;
            records.each_intent(|dir, name, value| {
                let left = Note::decode(value).is_some_and(|(note, owner)| {
                    matches!(note, Note::Held(_) | Note::Joined { .. })
                        || !identity_lives(&self.store().control, owner)
                });
                if left {
                    notes.push((dir, name.to_vec()));
                }
                true
            })?;
        }
        let mut result = Ok(());
        let count = notes.len() + links.len();
        // Checked after the lists were made: if no request of a dead process is in progress now,
        // none can still create the entry of a listed link.
        if count > 0 && self.cluster.has_orphans() {
            return Err(Errno::AGAIN);
        }
        for (dir, name) in notes {
            result = self
                .cluster
                .cross_node()
                .settle_note((dir, &name))
                .map(|_| ())
                .and(result);
        }
        for (id, rest) in links {
            let (dir, name) = rest.split_at(8);
            let dir = ObjectId(u64::from_be_bytes(dir.try_into().expect("8 bytes")));
            self.store().links().withdraw_dead(id, (dir, name))?;
            let there = self.lookup(dir, name);
            result = match there {
                Ok(Some(e)) if e.id == id => self.store().links().confirm_link(id, (dir, name)),
                Ok(_) => self.store().links().lose_link(id, (dir, name)),
                Err(e) => Err(e),
            }
            .and(result);
        }
        result.map(|()| count)
    }

    /// Calls `f` as [`Recovery::with_room_of_the_dead`] does. If there is still no room, removes
    /// the parts of this node's removed files from the other nodes, and calls `f` once more. The
    /// keeper removes such parts, too, but takes up to a second.
    ///
    /// # Errors
    /// Those of `f`.
    ///
    /// [`Recovery::with_room_of_the_dead`]: forebay_store::views::Recovery::with_room_of_the_dead
    pub fn with_room_of_the_removed<T>(&self, f: impl Fn() -> Result<T>) -> Result<T> {
        match self.store().recovery().with_room_of_the_dead(&f) {
            Err(Errno::NOSPC) if self.cluster.cross_node().drop_removed_parts() => f(),
            done => done,
        }
    }
}

impl<'a> CrossNode<'a> {
    /// Removes the other nodes' parts of files that this node has removed. Returns whether it
    /// removed any.
    #[cold]
    fn drop_removed_parts(&self) -> bool {
        if self.store().remote.is_none() || !self.cluster.may_wait() {
            return false;
        }
        let mut removed = Vec::new();
        for shard in 0..self.store().files.count() {
            let read = self.store().committed(shard).and_then(|records| {
                records.each_intent(|id, name, value| {
                    let note = Note::decode(value).map(|(note, _)| note);
                    if name.is_empty() && note == Some(Note::Parts) {
                        removed.push(id);
                    }
                    true
                })
            });
            if read.is_err() {
                return false;
            }
        }
        // A node that can't be reached keeps its parts; the keeper tries again.
        let dropped = |id| self.settle_note((id, b"")) == Ok(true);
        removed.into_iter().filter(|&id| dropped(id)).count() > 0
    }

    /// Repeats `f` while it returns EAGAIN because of an intent on `name`. Before each repetition,
    /// the intent is completed or waited for.
    pub(crate) fn retry_noted<T>(
        &self,
        name: Named<'_>,
        mut f: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut backoff = Backoff::new();
        loop {
            match f() {
                Err(Errno::AGAIN) => self.wait_for_note(name, &mut backoff)?,
                result => return result,
            }
        }
    }

    /// Completes the intent on `name`, or waits a moment for the process that is working on it;
    /// EAGAIN if this view [doesn't wait](Cluster::nonblocking).
    pub(super) fn wait_for_note(&self, name: Named<'_>, backoff: &mut Backoff) -> Result<()> {
        match self.settle_note(name)? {
            true => Ok(()),
            false if !self.cluster.may_wait() => Err(Errno::AGAIN),
            false => backoff.wait(),
        }
    }

    /// Waits until an entry is no longer being renamed.
    pub(crate) fn wait_for_move(&self, name: Named<'_>, backoff: &mut Backoff) -> Result<()> {
        self.wait_for_note(name, backoff)
    }

    /// Completes the intent on an entry, if the process that began the operation has ended. Returns
    /// false if that process is still working on it.
    pub(super) fn settle_note(&self, name: Named<'_>) -> Result<bool> {
        let at = self.store().entry_ref(name);
        // The transaction that finds that the owner has ended also takes over the intent, so that
        // only one process does.
        let note = self.store().transact(at.set(), Need::Removal, |w| {
            let Some((note, owner)) = self.store().intents().note_on(w, name)? else {
                return Ok(None);
            };
            if let Note::Held(_) | Note::Joined { .. } = note {
                return Ok(Some(Some(note)));
            }
            let lives = owner != 0 && identity_lives(&self.store().control, owner);
            // A request that the dead process has sent may still change the names.
            if lives || self.cluster.has_orphans() {
                return Ok(Some(None));
            }
            self.store().intents().put_note(w, name, &note)?;
            Ok(Some(Some(note)))
        })?;
        let note = match note {
            None => return Ok(true),
            Some(None) => return Ok(false),
            Some(Some(note)) => note,
        };
        if let Note::Held(entry) = note {
            // The object's home knows whether the entry stays.
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
            self.store().intents().disown_note(name)?;
        }
        settled.map(|()| true)
    }

    pub(super) fn redo_note(&self, name: Named<'_>, note: &Note) -> Result<()> {
        match note {
            // `settle_note` handles these.
            Note::Held(_) | Note::Joined { .. } => Ok(()),
            Note::Exchange(exchange) => self.redo_exchange(name, exchange),
            Note::Parts => {
                self.cluster.stripes().drop_parts(name.0)?;
                self.store().intents().forget_note(name)
            }
            Note::Drop(entry) => match self.lose_name(entry.id, name, None, true) {
                Ok(()) | Err(Errno::NOENT) => self.store().intents().end_drop(name, *entry, true),
                Err(e) => {
                    self.store().intents().end_drop(name, *entry, false)?;
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
                if there && !forebay_placement::planted("half-rename") {
                    self.complete_move(name, *source, to)
                } else {
                    self.undo_move(name, *source, to)
                }
            }
        }
    }
}
