//! Renames in which several nodes take part. The parent module has the steps.
//!
//! Names on paths (of directories and symbolic links) change on one node only, the node of names.
//! That node passes `names`. Without `names`, such a rename returns EREMOTE, and the caller sends a
//! request to the node of names.

use super::*;
use crate::peers::requests::request;
use forebay_store::names::Note;

/// Returns the result of a rename that changes nothing; None if it would change something. The
/// result is valid only if both entries existed at one moment.
pub(crate) fn without_change(mode: RenameMode, source: Entry, target: Entry) -> Option<Result<()>> {
    match mode {
        RenameMode::NoReplace => Some(Err(Errno::EXIST)),
        // Two names of one file: both stay.
        _ if target.id == source.id => Some(Ok(())),
        _ => None,
    }
}

impl<'a> CrossNode<'a> {
    /// Renames in a pool of several nodes.
    ///
    /// If several processes rename to one free name without replacing, one succeeds: the entry's
    /// home checks the name in the transaction that sets it ([`CrossNode::replace`], or
    /// `rename_locked` if everything lies in one store). The early check here only saves the steps
    /// of a rename that must fail.
    pub(crate) fn rename_among(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        epoch: u64,
    ) -> Result<()> {
        if mode == RenameMode::Exchange {
            return self.exchange_among(from, to, epoch);
        }
        if from == to {
            let there = self.existing(from)?;
            return without_change(mode, there, there).unwrap_or(Ok(()));
        }
        let mut backoff = Backoff::new();
        loop {
            let source = self.existing(from)?;
            let target = self.cluster.namespace().lookup(to.0, to.1)?;
            // For names on paths, the node of names makes this check.
            let on_paths = is_on_paths(source) || target.is_some_and(is_on_paths);
            if let Some(target) = target.filter(|_| !on_paths)
                && let Some(answer) = without_change(mode, source, target)
            {
                if self.are_together((from, source), (to, target))? {
                    return answer;
                } else {
                    continue;
                }
            }
            let renamed = if on_paths {
                let node = self.cluster.names_node().ok_or(Errno::NODEV)?;
                let arguments = (from.0, from.1, to.0, to.1, mode, epoch);
                self.cluster.ask(node, request::NAMES_RENAME, &arguments)
            } else {
                self.rename_from(from, to, mode, None, epoch)
            };
            match renamed {
                // One of the names now refers to a directory or symbolic link, which only the node
                // of names may move or replace.
                Err(Errno::REMOTE) => backoff.wait()?,
                result => return result,
            }
        }
    }

    /// Makes the home of `from` rename it. Directories and symbolic links take part only if `names`
    /// is given: the caller then holds the right to change such names. The only directory that may
    /// be replaced is the one whose id is in `names`; it is empty.
    ///
    /// # Errors
    /// Those of rename; EREMOTE if the right to change such names is missing.
    pub(crate) fn rename_from(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        names: Option<ObjectId>,
        epoch: u64,
    ) -> Result<()> {
        if let Some(home) = self.cluster.remote_home_of_entry(from.0, from.1) {
            let arguments = (from, to, mode, names, epoch);
            return self.cluster.ask(home, request::RENAME, &arguments);
        }
        let source = self
            .store()
            .intents()
            .entry_here(from)?
            .ok_or(Errno::NOENT)?;
        if self.cluster.remote_home_of_entry(to.0, to.1).is_none()
            && self.cluster.remote_home(source.id).is_none()
            && !is_on_paths(source)
        {
            match self.retry_noted(from, || {
                self.cluster.namespace().rename_here(from, to, mode, epoch)
            }) {
                Err(Errno::REMOTE) => {}
                result => return result,
            }
        }
        self.rename_across(from, to, mode, names, epoch)
    }

    /// Checks that a rename concerns this store alone. EREMOTE if an object or entry that takes
    /// part lies on another node, or if an object has a link record.
    pub(crate) fn check_alone(
        &self,
        w: &mut Write<'_>,
        (from, source): (Named<'_>, Entry),
        (to, target): (Named<'_>, Option<Entry>),
    ) -> Result<()> {
        if self.store().remote.is_none() {
            return Ok(());
        }
        self.store().names_epoch().check_frozen(to.0)?;
        self.store().intents().check_note(w, from)?;
        if self.store().intents().note_on(w, to)?.is_some() {
            return Err(Errno::REMOTE);
        }
        for (name, entry) in [(from, Some(source)), (to, target)] {
            let Some(entry) = entry else { continue };
            if is_on_paths(entry)
                || self.cluster.remote_home(entry.id).is_some()
                || self
                    .store()
                    .links()
                    .link_state(w, entry.id, name)?
                    .is_some()
            {
                return Err(Errno::REMOTE);
            }
        }
        Ok(())
    }

    /// Whether two names had these entries at one moment. If the names have different homes, the
    /// first name is marked while the second is checked, so that no process removes the first entry
    /// and makes it again meanwhile. The function doesn't wait while the name is marked.
    pub(crate) fn are_together(
        &self,
        (x, at_x): (Named<'_>, Entry),
        (y, at_y): (Named<'_>, Entry),
    ) -> Result<bool> {
        if let Some(home) = self.cluster.remote_home_of_entry(x.0, x.1) {
            let arguments = (x.0, x.1, at_x, y.0, y.1, at_y);
            return self.cluster.ask(home, request::TOGETHER, &arguments);
        }
        let Some(other) = self.cluster.remote_home_of_entry(y.0, y.1) else {
            let (x, y) = (self.store().entry_ref(x), self.store().entry_ref(y));
            return self
                .store()
                .transact(x.set().with(y.shard()), Need::Removal, |w| {
                    self.store()
                        .names()
                        .entries_are(w, (x, at_x), (y, Some(at_y)))
                });
        };
        let mut backoff = Backoff::new();
        loop {
            if !self.mark(x, at_x, y)? {
                return Ok(false);
            }
            let there: Result<Option<Entry>> = self.cluster.ask_once(other, request::LOOKUP, &y);
            self.unmark(x, at_x)?;
            match there {
                // Another operation is changing the second entry.
                Err(Errno::AGAIN) if self.cluster.may_wait() => backoff.wait()?,
                there => return there.map(|there| there == Some(at_y)),
            }
        }
    }

    /// Marks the entry `name` as if a rename to `to` had begun but wasn't announced yet. False if
    /// `name` has another entry than `entry`.
    fn mark(&self, name: Named<'_>, entry: Entry, to: Named<'_>) -> Result<bool> {
        let at = self.store().entry_ref(name);
        let note = Note::Move {
            source: entry,
            to: (to.0, to.1.to_vec()),
            announced: false,
            placed: false,
        };
        self.retry_noted(name, || {
            self.store().transact(at.set(), Need::Bytes(0), |w| {
                self.store().intents().check_note(w, name)?;
                if !w.has_entry(at, entry)? {
                    return Ok(false);
                }
                w.set_changing(at, entry)?;
                self.store().intents().put_note(w, name, &note)?;
                Ok(true)
            })
        })
    }

    /// Removes the mark from an entry, but not the entry.
    fn unmark(&self, name: Named<'_>, entry: Entry) -> Result<()> {
        let at = self.store().entry_ref(name);
        self.store().transact(at.set(), Need::Removal, |w| {
            if w.look_up(at)?.is_some() {
                w.set_entry(at, entry)?;
            }
            w.end_intent(at)
        })
    }

    /// Carries out a rename in which other nodes take part. This node is the home of `from`.
    fn rename_across(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        names: Option<ObjectId>,
        epoch: u64,
    ) -> Result<()> {
        let mut backoff = Backoff::new();
        loop {
            match self.try_rename(from, to, mode, names, epoch) {
                // This rename conflicts with another change, and was undone.
                Err(Errno::DEADLK) => backoff.wait()?,
                // The object has the new name already, or another operation is adding or removing
                // it.
                Err(Errno::ALREADY) => {
                    let source = self.existing(from)?;
                    if let Some(target) = self.cluster.namespace().lookup(to.0, to.1)?
                        && target.id == source.id
                        && self.are_together((from, source), (to, target))?
                        && let Some(answer) = without_change(mode, source, target)
                    {
                        return answer;
                    }
                    backoff.wait()?;
                }
                result => return result,
            }
        }
    }

    pub(super) fn try_rename(
        &self,
        from: Named<'_>,
        to: Named<'_>,
        mode: RenameMode,
        names: Option<ObjectId>,
        epoch: u64,
    ) -> Result<()> {
        let at = self.store().entry_ref(from);
        let t = now();
        debug_assert!(
            self.cluster.remote_home_of_entry(from.0, from.1).is_none(),
            "the node of the old name carries the rename out"
        );
        let mut note = None;
        let source = self.retry_noted(from, || {
            self.store().transact(at.set(), Need::Bytes(0), |w| {
                self.store().names_epoch().check(epoch)?;
                self.store().intents().check_note(w, from)?;
                let source = w.look_up(at)?.ok_or(Errno::NOENT)?.entry;
                if is_on_paths(source) && names.is_none() {
                    return Err(Errno::REMOTE);
                }
                w.set_changing(at, source)?;
                let planned = Note::Move {
                    source,
                    to: (to.0, to.1.to_vec()),
                    announced: false,
                    placed: false,
                };
                self.store().intents().put_note(w, from, &planned)?;
                note = Some(planned);
                Ok(source)
            })
        })?;
        let set_note = |announced: bool, placed: bool| {
            let note = Note::Move {
                source,
                to: (to.0, to.1.to_vec()),
                announced,
                placed,
            };
            self.store().transact(at.set(), Need::Removal, |w| {
                self.store().intents().put_note(w, from, &note)
            })
        };
        let announced = (|| {
            if !is_dir(source) {
                self.add_link(source.id, to, from)?;
            }
            set_note(true, false)
        })();
        let placed = announced.and_then(|()| self.replace(to, source, mode, names, epoch));
        match placed {
            Ok(Placed::Done) => {
                // The rename has happened: a later failure doesn't make it fail.
                let completed =
                    set_note(true, true).and_then(|()| self.complete_move(from, source, to));
                match completed {
                    Err(e) if is_for_later(e) => _ = self.store().intents().disown_note(from),
                    completed => completed?,
                }
                self.cluster.namespace().touch_dir(from.0, t)?;
                if is_dir(source) && from.0 != to.0 {
                    self.add_dir_links(from.0, -1)?;
                    self.add_dir_links(to.0, 1)?;
                }
                Ok(())
            }
            Ok(Placed::Same) => self.undo_move(from, source, to),
            Err(e) if is_unclear(e) => {
                // Whether the rename has happened is found out later from the intent, by the keeper
                // or by the next operation on the name.
                let _ = self.store().intents().disown_note(from);
                Err(e)
            }
            Err(e) => {
                self.undo_move(from, source, to)?;
                Err(e)
            }
        }
    }

    /// Completes a rename whose new entry exists: removes the old entry.
    pub(super) fn complete_move(
        &self,
        from: Named<'_>,
        source: Entry,
        to: Named<'_>,
    ) -> Result<()> {
        let at = self.store().entry_ref(from);
        self.store()
            .transact(at.set(), Need::Removal, |w| w.clear_entry(at))?;
        match self.lose_name(source.id, from, Some(to), true) {
            Ok(()) | Err(Errno::NOENT) => self.store().intents().forget_note(from),
            Err(e) if is_for_later(e) => self.store().intents().disown_note(from),
            Err(e) => Err(e),
        }
    }

    /// Undoes a rename whose new entry doesn't exist: the old entry stays.
    pub(super) fn undo_move(&self, from: Named<'_>, source: Entry, to: Named<'_>) -> Result<()> {
        if !is_dir(source) {
            // The intent is changed first: an intent that says `announced` would, for an object
            // without a `Coming` link, mean that the rename is done.
            let at = self.store().entry_ref(from);
            let note = Note::Move {
                source,
                to: (to.0, to.1.to_vec()),
                announced: false,
                placed: false,
            };
            self.store().transact(at.set(), Need::Removal, |w| {
                self.store().intents().put_note(w, from, &note)
            })?;
            match self.undo_link(source.id, to, Slot::of_entry(from.0, from.1).0) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => {
                    let _ = self.store().intents().disown_note(from);
                    return Err(e);
                }
            }
        }
        self.unmark(from, source)
    }

    /// Sets the entry `to` to `source`: step 2 of a rename. The replaced object loses its name.
    /// `names` as for [`CrossNode::rename_from`]. ESTALE if directories have changed since `epoch`:
    /// the directory of `to` may have been removed.
    pub(crate) fn replace(
        &self,
        to: Named<'_>,
        source: Entry,
        mode: RenameMode,
        names: Option<ObjectId>,
        epoch: u64,
    ) -> Result<Placed> {
        if let Some(home) = self.cluster.remote_home_of_entry(to.0, to.1) {
            let arguments = (to.0, to.1, source, mode, names, epoch);
            let same: bool = self.cluster.ask(home, request::REPLACE, &arguments)?;
            return Ok(if same { Placed::Same } else { Placed::Done });
        }
        let at = self.store().entry_ref(to);
        let t = now();
        let placed = self.retry_noted(to, || {
            let seen = self.store().intents().entry_here(to)?;
            let beside = seen.filter(|e| self.cluster.remote_home(e.id).is_none() && !is_dir(*e));
            let set = at.set();
            let set = beside.map_or(set, |e| set.with(self.store().files.shard_of(e.id)));
            // Replacing removes an object, which must work even if the record file is full.
            let need = seen.map_or(Need::Bytes(0), |_| Need::Removal);
            self.store().transact(set, need, |w| {
                self.store().names_epoch().check(epoch)?;
                self.store().names_epoch().check_frozen(to.0)?;
                match self.store().intents().note_on(w, to)? {
                    // The operation of this intent may be waiting for this rename, so waiting for
                    // that operation could be a deadlock.
                    Some((note, owner)) if self.holds_marks(&note, owner) => {
                        return Err(Errno::DEADLK);
                    }
                    // Completing the removal that this intent records could, by mistake, remove the
                    // link record that announces this rename.
                    Some((Note::Drop(entry), _)) if entry.id == source.id => {
                        return Err(Errno::DEADLK);
                    }
                    Some(_) => return Err(Errno::AGAIN),
                    None => {}
                }
                let there = w.look_up(at)?.map(|there| there.entry);
                if there != seen {
                    return Err(Errno::AGAIN);
                }
                match there {
                    Some(_) if mode == RenameMode::NoReplace => return Err(Errno::EXIST),
                    Some(t) if t.id == source.id => return Ok((Placed::Same, None)),
                    Some(t) => match (is_dir(source), is_dir(t)) {
                        (true, false) => return Err(Errno::NOTDIR),
                        (false, true) => return Err(Errno::ISDIR),
                        (true, true) if names != Some(t.id) => return Err(Errno::REMOTE),
                        _ if is_on_paths(t) && names.is_none() => return Err(Errno::REMOTE),
                        _ => {}
                    },
                    None => {}
                }
                match there {
                    // A process that looks the entry up waits until the replaced object has lost
                    // the name.
                    Some(_) => w.set_changing(at, source)?,
                    None => w.set_entry(at, source)?,
                }
                if let Some(target) = there {
                    self.store()
                        .intents()
                        .put_note(w, to, &Note::Drop(target))?;
                }
                if let Some(target) = beside
                    && self.store().links().link_state(w, target.id, to)?.is_none()
                {
                    // With this link record, a removal of the name from the object that is carried
                    // out twice removes only one name.
                    self.store()
                        .links()
                        .set_link(w, target.id, to, Link::Counted)?;
                }
                Ok((Placed::Done, there))
            })
        })?;
        if let (Placed::Done, there) = placed {
            if let Some(target) = there {
                self.finish_drop(to, target)?;
                if is_dir(target) {
                    self.add_dir_links(to.0, -1)?;
                }
            }
            self.cluster.namespace().touch_dir(to.0, t)?;
        }
        Ok(placed.0)
    }

    /// Whether the new entry of a rename was set, even if it has been changed since.
    pub(super) fn was_placed(&self, source: Entry, to: Named<'_>) -> Result<bool> {
        // The lookup waits for changes of the entry that have begun since.
        let now_there = match self.cluster.remote_home_of_entry(to.0, to.1) {
            Some(home) => self.cluster.ask(home, request::LOOKUP, &to)?,
            None => self.cluster.namespace().lookup(to.0, to.1)?,
        };
        if now_there.is_some_and(|e: Entry| e.id == source.id) {
            return Ok(true);
        }
        // A directory can't have been moved again: no other operation changes directories
        // meanwhile.
        Ok(!is_dir(source) && !self.has_coming(source.id, to)?)
    }
}
