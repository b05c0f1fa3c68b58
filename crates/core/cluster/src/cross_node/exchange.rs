//! Exchanges of two names (RENAME_EXCHANGE) in a pool of several nodes.
//!
//! The exchange of the names `x` on node A and `y` on node B. The object of `x` lies on C, that of
//! `y` on D:
//!
//! 1. A marks `x` and records the exchange, which it leads. B marks `y` and records the leader.
//! 2. C and D record the new names, which aren't names of the objects yet.
//! 3. A records that the exchange is decided. This is the moment of the exchange.
//! 4. C and D replace the old names by the new ones. A directory learns its new parent.
//! 5. B sets `y`, A sets `x`, and both remove their intents.
//!
//! Both names stay marked from step 1 to step 5. Lookups of marked names wait, so no process sees
//! one new name and one old. If the process dies before step 3, the exchange is undone; if later,
//! it is completed. A's intent records the step, and is removed last. B's intent alone doesn't tell
//! the step: if A has none, the exchange was undone.

use super::*;
use crate::peers::requests::request;
use forebay_store::live::new_use;
use forebay_store::names::{Exchange, Note, Phase, is_on_paths};

/// An exchange's leading name (`x`), and the exchange's number.
pub(crate) type Led<'a> = (Named<'a>, u64);

impl<'a> CrossNode<'a> {
    /// Exchanges two names in a pool of several nodes.
    pub(crate) fn exchange_among(&self, x: Named<'_>, y: Named<'_>, epoch: u64) -> Result<()> {
        if x == y {
            return self.existing(x).map(|_| ());
        }
        // Two exchanges of the same names begin with the same name, so that neither has to be
        // undone.
        let (x, y) = if (x.0.0, x.1) <= (y.0.0, y.1) {
            (x, y)
        } else {
            (y, x)
        };
        let mut backoff = Backoff::new();
        loop {
            let source = self.existing(x)?;
            let target = self.existing(y)?;
            let on_paths = is_on_paths(source) || is_on_paths(target);
            if source.id == target.id && !on_paths {
                if self.are_together((x, source), (y, target))? {
                    return Ok(());
                } else {
                    continue;
                }
            }
            let exchanged = if on_paths {
                let node = self.cluster.names_node().ok_or(Errno::NODEV)?;
                let arguments = (x.0, x.1, y.0, y.1, RenameMode::Exchange, epoch);
                self.cluster.ask(node, request::NAMES_RENAME, &arguments)
            } else {
                self.exchange(x, y, false, epoch)
            };
            match exchanged {
                // One of the names now refers to a directory or symbolic link, which only the node
                // of names may move.
                Err(Errno::REMOTE) => backoff.wait()?,
                result => return result,
            }
        }
    }

    /// Makes the home of `x` lead an exchange. Directories and symbolic links may take part only if
    /// `names` is set: the caller then holds the right to change such names.
    ///
    /// # Errors
    /// Those of rename; EREMOTE if the right to change such names is missing.
    pub(crate) fn exchange(
        &self,
        x: Named<'_>,
        y: Named<'_>,
        names: bool,
        epoch: u64,
    ) -> Result<()> {
        if let Some(home) = self.cluster.remote_home_of_entry(x.0, x.1) {
            return self
                .cluster
                .ask(home, request::EXCHANGE, &(x.0, x.1, y.0, y.1, names, epoch));
        }
        let mut backoff = Backoff::new();
        loop {
            match self.try_exchange(x, y, names, epoch) {
                // This exchange conflicts with another change, and was undone.
                Err(Errno::DEADLK | Errno::ALREADY) => backoff.wait()?,
                result => return result,
            }
        }
    }

    fn try_exchange(&self, x: Named<'_>, y: Named<'_>, names: bool, epoch: u64) -> Result<()> {
        let at = self.store().entry_ref(x);
        let number = new_use();
        let t = now();
        let mut exchange = self.retry_noted(x, || {
            self.store().transact(at.set(), Need::Bytes(0), |w| {
                self.store().names_epoch().check(epoch)?;
                self.store().intents().check_note(w, x)?;
                let source = w.look_up(at)?.ok_or(Errno::NOENT)?.entry;
                if is_on_paths(source) && !names {
                    return Err(Errno::REMOTE);
                }
                let exchange = Exchange {
                    number,
                    source,
                    with: (y.0, y.1.to_vec()),
                    target: None,
                    phase: Phase::Begun,
                };
                w.set_changing(at, source)?;
                self.store()
                    .intents()
                    .put_note(w, x, &Note::Exchange(exchange.clone()))?;
                Ok(exchange)
            })
        })?;
        let prepared = self.prepare_exchange(x, y, &mut exchange, names, epoch);
        match prepared {
            Ok(true) => {}
            Ok(false) => return self.undo_exchange(x, &mut exchange),
            Err(e) if is_unclear(e) => {
                // Whether the exchange has happened is found out later from the intent, by the
                // keeper or by the next operation on the name.
                let _ = self.store().intents().disown_note(x);
                return Err(e);
            }
            Err(e) => {
                if self.undo_exchange(x, &mut exchange).is_err() {
                    let _ = self.store().intents().disown_note(x);
                }
                return Err(e);
            }
        }
        match self.complete_exchange(x, &mut exchange) {
            Ok(()) => {}
            // The exchange has happened; the rest is done later, from the intent.
            Err(e) if is_unclear(e) => self.store().intents().disown_note(x)?,
            Err(e) => {
                let _ = self.store().intents().disown_note(x);
                return Err(e);
            }
        }
        self.cluster.namespace().touch_dir(x.0, t)?;
        self.cluster.namespace().touch_dir(y.0, t)
    }

    /// Carries out steps 1 to 3. Returns false if both are names of one object: then nothing is to
    /// be exchanged.
    fn prepare_exchange(
        &self,
        x: Named<'_>,
        y: Named<'_>,
        exchange: &mut Exchange,
        names: bool,
        epoch: u64,
    ) -> Result<bool> {
        let (number, source) = (exchange.number, exchange.source);
        let Some(target) = self.join_exchange(y, source, (x, number), names, epoch)? else {
            return Ok(false);
        };
        exchange.target = Some(target);
        self.note_exchange(x, exchange)?;
        for (entry, new, old) in [(source, y, x), (target, x, y)] {
            if !is_dir(entry) {
                self.exchange_link(entry.id, new, old, number)?;
            }
        }
        exchange.phase = Phase::Decided;
        self.note_exchange(x, exchange).inspect_err(|_| {
            exchange.phase = Phase::Begun;
        })?;
        Ok(true)
    }

    /// Records the phase of the exchange that `x` leads.
    fn note_exchange(&self, x: Named<'_>, exchange: &Exchange) -> Result<()> {
        let at = self.store().entry_ref(x);
        self.store().transact(at.set(), Need::Removal, |w| {
            self.store()
                .intents()
                .put_note(w, x, &Note::Exchange(exchange.clone()))
        })
    }

    /// Completes or undoes the exchange that `x` leads and whose process has died.
    pub(super) fn redo_exchange(&self, x: Named<'_>, exchange: &Exchange) -> Result<()> {
        let mut exchange = exchange.clone();
        match exchange.phase {
            Phase::Begun | Phase::Undone => self.undo_exchange(x, &mut exchange),
            Phase::Decided | Phase::Counted => self.complete_exchange(x, &mut exchange),
        }
    }

    /// Carries out steps 4 and 5 of an exchange that has been decided.
    fn complete_exchange(&self, x: Named<'_>, exchange: &mut Exchange) -> Result<()> {
        let with = exchange.with.clone();
        let y = (with.0, &with.1[..]);
        let source = exchange.source;
        let target = exchange.target.ok_or(Errno::IO)?;
        for (entry, old, new) in [(source, x, y), (target, y, x)] {
            match self.lose_name(entry.id, old, Some(new), true) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e),
            }
        }
        self.end_exchange(y, exchange.number, true)?;
        if x.0 != y.0 && is_dir(source) != is_dir(target) && exchange.phase != Phase::Counted {
            // Recorded first: a repetition must not change the directories' counts again.
            exchange.phase = Phase::Counted;
            self.note_exchange(x, exchange)?;
            let leaves = if is_dir(source) { -1 } else { 1 };
            self.add_dir_links(x.0, leaves)?;
            self.add_dir_links(y.0, -leaves)?;
        }
        self.set_exchanged(x, target)
    }

    /// Undoes an exchange that hasn't been decided: both names keep their entries.
    fn undo_exchange(&self, x: Named<'_>, exchange: &mut Exchange) -> Result<()> {
        if exchange.phase != Phase::Undone {
            // If the home of `y` marks `y` only after this record is written, the home finds the
            // exchange undone and removes the mark.
            exchange.phase = Phase::Undone;
            self.note_exchange(x, exchange)?;
        }
        let y = (exchange.with.0, &exchange.with.1[..]);
        for (entry, new) in [(Some(exchange.source), y), (exchange.target, x)] {
            if let Some(entry) = entry.filter(|e| !is_dir(*e))
                && exchange.target.is_some()
            {
                match self.end_exchange_link(entry.id, new, exchange.number) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
            }
        }
        self.end_exchange(y, exchange.number, false)?;
        self.set_exchanged(x, exchange.source)
    }

    /// Carries out the last step: sets `x`, which can be looked up again, and removes the intent.
    fn set_exchanged(&self, x: Named<'_>, entry: Entry) -> Result<()> {
        let at = self.store().entry_ref(x);
        self.store().transact(at.set(), Need::Removal, |w| {
            w.set_entry(at, entry)?;
            w.end_intent(at)
        })
    }

    // ---- at the home of `y` ----

    /// Marks `y`, which will get the entry `comes`. Returns the present entry of `y`; None if that
    /// entry refers to the same object as `comes`.
    ///
    /// # Errors
    /// ENOENT, ESTALE, EREMOTE; EDEADLK if another operation has marked `y`: this exchange must be
    /// undone and tried again.
    pub(crate) fn join_exchange(
        &self,
        y: Named<'_>,
        comes: Entry,
        led: Led<'_>,
        names: bool,
        epoch: u64,
    ) -> Result<Option<Entry>> {
        let (x, number) = led;
        if let Some(home) = self.cluster.remote_home_of_entry(y.0, y.1) {
            let arguments = ((y.0, y.1), comes, (x.0, x.1), number, names, epoch);
            return self.cluster.ask(home, request::JOIN_EXCHANGE, &arguments);
        }
        let at = self.store().entry_ref(y);
        let there = self.retry_noted(y, || {
            self.store().transact(at.set(), Need::Bytes(0), |w| {
                self.store().names_epoch().check(epoch)?;
                match self.store().intents().note_on(w, y)? {
                    // The operation that has marked `y` may be waiting for this exchange, so
                    // waiting for that operation could be a deadlock.
                    Some((note, owner)) if self.holds_marks(&note, owner) => {
                        return Err(Errno::DEADLK);
                    }
                    Some(_) => return Err(Errno::AGAIN),
                    None => {}
                }
                let there = w.look_up(at)?.ok_or(Errno::NOENT)?.entry;
                if there.id == comes.id {
                    return Ok(None);
                }
                if is_on_paths(there) && !names {
                    return Err(Errno::REMOTE);
                }
                w.set_changing(at, there)?;
                let joined = Note::Joined {
                    there,
                    comes,
                    led: (x.0, x.1.to_vec(), number),
                };
                self.store().intents().put_note(w, y, &joined)?;
                Ok(Some(there))
            })
        })?;
        if there.is_some() && self.cluster.remote_home_of_entry(x.0, x.1).is_some() {
            // The node that sent the request may have undone the exchange before the request was
            // carried out.
            match self.exchange_stands(led) {
                Ok(true) => {}
                Ok(false) => {
                    self.end_exchange(y, number, false)?;
                    return Err(Errno::IO);
                }
                Err(e) => {
                    self.store().intents().leave_unsettled();
                    return Err(e);
                }
            }
        }
        Ok(there)
    }

    /// Whether the operation of this intent keeps names marked while it waits for other operations.
    pub(super) fn holds_marks(&self, note: &Note, owner: u32) -> bool {
        match note {
            Note::Move { .. } | Note::Exchange(_) => {
                owner == 0 || identity_lives(&self.store().control, owner)
            }
            // Only the leader's node knows whether the exchange is in progress.
            Note::Joined { .. } => true,
            Note::Drop(_) | Note::Parts | Note::Held(_) => false,
        }
    }

    /// Sets `y`, if it is still part of this exchange: to the new entry if `done`, else back to the
    /// old one.
    pub(crate) fn end_exchange(&self, y: Named<'_>, number: u64, done: bool) -> Result<()> {
        if let Some(home) = self.cluster.remote_home_of_entry(y.0, y.1) {
            return self
                .cluster
                .ask(home, request::END_EXCHANGE, &(y.0, y.1, number, done));
        }
        let at = self.store().entry_ref(y);
        self.store().transact(at.set(), Need::Removal, |w| {
            let entry = match self.store().intents().note_on(w, y)? {
                Some((Note::Joined { led, comes, .. }, _)) if led.2 == number && done => comes,
                Some((Note::Joined { led, there, .. }, _)) if led.2 == number => there,
                // An earlier request has set `y` and removed its mark.
                _ => return Ok(()),
            };
            w.set_entry(at, entry)?;
            w.end_intent(at)
        })
    }

    /// Whether the exchange is in progress: neither undone nor completed.
    pub(crate) fn exchange_stands(&self, led: Led<'_>) -> Result<bool> {
        let (x, number) = led;
        if let Some(home) = self.cluster.remote_home_of_entry(x.0, x.1) {
            return self
                .cluster
                .ask(home, request::EXCHANGE_STANDS, &(x.0, x.1, number));
        }
        let at = self.store().entry_ref(x);
        let records = self.store().records(at.shard())?;
        let Some(bytes) = records.intent(at)? else {
            return Ok(false);
        };
        Ok(match Note::decode(bytes).ok_or(Errno::IO)?.0 {
            Note::Exchange(e) => e.number == number && e.phase != Phase::Undone,
            _ => false,
        })
    }

    /// Undoes the exchange that `y` has joined, if the leader's node doesn't know it any more.
    /// Returns false if the exchange is in progress, or if this view may not wait for the leader's
    /// reply.
    pub(super) fn settle_joined(&self, y: Named<'_>, led: Led<'_>) -> Result<bool> {
        // Only an operation that may wait sends a request to the leader's node.
        if !self.cluster.may_wait() || self.exchange_stands(led)? {
            return Ok(false);
        }
        self.end_exchange(y, led.1, false).map(|()| true)
    }

    // ---- link records: at the object's home ----

    /// Records at the object that an exchange is to replace its name `old` by `new`.
    pub(crate) fn exchange_link(
        &self,
        id: ObjectId,
        new: Named<'_>,
        old: Named<'_>,
        number: u64,
    ) -> Result<()> {
        if let Some(home) = self.cluster.remote_home(id) {
            let arguments = (id, new.0, new.1, old.0, old.1, number);
            return self.cluster.ask(home, request::EXCHANGE_LINK, &arguments);
        }
        let key = Key::link(id, new.0, new.1);
        let coming = Link::Exchanged.encode(number as u32);
        self.store()
            .transact(self.store().names().object_set(id), Need::Bytes(0), |w| {
                match w.attached(id, &key)? {
                    None => w.attach(id, &key, &coming)?,
                    Some(there) if there == coming => {}
                    // The object is just getting or losing that name in another operation.
                    Some(_) => return Err(Errno::ALREADY),
                }
                match self.store().links().link_state(w, id, old)? {
                    None => self.store().links().set_link(w, id, old, Link::Counted)?,
                    Some(Link::Counted | Link::Unconfirmed) => {}
                    // The rename that gives the object the name `old` must end before this exchange
                    // begins.
                    Some(_) => return Err(Errno::ALREADY),
                }
                // The inode must exist.
                if w.exists(id)? {
                    Ok(())
                } else {
                    Err(Errno::NOENT)
                }
            })
    }

    /// Removes the record that [`CrossNode::exchange_link`] has made: the exchange is undone.
    pub(crate) fn end_exchange_link(
        &self,
        id: ObjectId,
        new: Named<'_>,
        number: u64,
    ) -> Result<()> {
        if let Some(home) = self.cluster.remote_home(id) {
            let arguments = (id, new.0, new.1, number);
            return self
                .cluster
                .ask(home, request::END_EXCHANGE_LINK, &arguments);
        }
        let key = Key::link(id, new.0, new.1);
        self.store()
            .transact(self.store().names().object_set(id), Need::Removal, |w| {
                if w.attached(id, &key)? == Some(&Link::Exchanged.encode(number as u32)) {
                    w.detach(id, &key)?;
                }
                Ok(())
            })
    }
}
