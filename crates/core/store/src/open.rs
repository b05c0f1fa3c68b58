//! Open file descriptions: what descriptors made by dup and fork have in common.

use crate::ObjectId;
use crate::control_region::{
    MAX_FDS, MAX_PROCESSES, Open, RESERVED_ENTRIES, open_flag, slot_state,
};
use crate::declared::Opener;
use crate::live::Held;
use crate::lock::Acquired;
use crate::process::{Critical, identity, identity_lives, pid_of, state_of};
use crate::views::Objects;
use forebay_runtime::atomics::{AtomicU32, Ordering::*, fence, spin_loop};
use rustix::io::{Errno, Result};

/// Descriptor numbers under which [`Objects::fd_park`] keeps a reference to an open file
/// description while it is sent to another process. High, so that the program's descriptors seldom
/// reach them; not too high, so that the table stays short.
const PARKING: std::ops::Range<usize> = 3072..4096;

/// The lock of an open file description, held.
pub struct OpenLock<'a> {
    open: &'a Open,
    _critical: Critical,
}

impl Drop for OpenLock<'_> {
    fn drop(&mut self) {
        self.open.lock.release();
    }
}

/// The properties of an open file description to be made.
#[derive(Clone, Copy, Debug)]
pub struct NewOpen<'a> {
    pub id: ObjectId,
    /// File type bits of the mode (S_IFMT).
    pub kind: u32,
    /// As given to open(2).
    pub flags: u32,
    /// The directory and the name by which the object is opened; the root and an empty name if it
    /// is opened without a name.
    pub parent: ObjectId,
    pub name: &'a [u8],
    pub opener: Opener,
}

impl<'a> NewOpen<'a> {
    /// A description of this object, without a name, opened by this process.
    pub fn new(id: ObjectId, kind: u32, flags: u32) -> NewOpen<'a> {
        NewOpen {
            id,
            kind,
            flags,
            parent: ObjectId::ROOT,
            name: b"",
            opener: Opener::Own,
        }
    }

    /// The same description, with the name by which the object is opened.
    pub fn named(self, parent: ObjectId, name: &'a [u8]) -> NewOpen<'a> {
        NewOpen {
            parent,
            name,
            ..self
        }
    }

    /// The same description, opened by `opener`.
    pub fn by(self, opener: Opener) -> NewOpen<'a> {
        NewOpen { opener, ..self }
    }
}

impl<'s> Objects<'s> {
    /// Open file description `index`.
    pub fn open_file(self, index: u32) -> &'s Open {
        self.store.control.open_file(index)
    }

    /// Makes an open file description with one reference. The description takes over the caller's
    /// reference to the live entry `live`.
    ///
    /// # Errors
    /// ENFILE if all descriptions are in use; ENOSPC if there is no memory for more.
    pub fn open_create(&self, new: &NewOpen<'_>, live: Option<u32>) -> Result<u32> {
        self.open_create_held(new, live.map(|l| (l, None)))
    }

    /// As [`Objects::open_create`], for an entry from `Opens::live_acquire_held`.
    ///
    /// # Errors
    /// As for [`Objects::open_create`].
    pub fn open_create_held(
        &self,
        new: &NewOpen<'_>,
        live: Option<(u32, Option<Held<'_>>)>,
    ) -> Result<u32> {
        forebay_trace::span!(
            STORE_OPEN_ENTER,
            STORE_OPEN_EXIT,
            [new.id.0],
            self.make_description(new, live)
        )
    }

    #[inline(always)]
    fn make_description(
        &self,
        new: &NewOpen<'_>,
        live: Option<(u32, Option<Held<'_>>)>,
    ) -> Result<u32> {
        let _section = self.store.section()?;
        let slot = self.store.process_slot()?;
        let me = identity(&self.store.control, slot);
        let index = match self.store.control.take_open() {
            Ok(Some(index)) => index,
            full => match self.reserve_for_directory(new.kind) {
                Some(index) => index,
                None => full?.ok_or(Errno::NFILE)?,
            },
        };
        let o = self.open_file(index);
        debug_assert!(
            o.refs.load(Relaxed) == 0,
            "a free description has no reference: {index}"
        );
        assert!(new.id.0 != 0, "an object's id isn't zero");
        if new.kind == libc::S_IFDIR {
            self.store
                .control
                .header()
                .open_directories
                .fetch_add(1, AcqRel);
        }
        o.live.store(0, Relaxed);
        o.locker.store(0, Relaxed);
        o.lease.store(0, Relaxed);
        o.signal_owner.store(0, Relaxed);
        o.signal.store(0, Relaxed);
        o.refs.store(1, Relaxed);
        // From here on, a process that reaps this process finds the description.
        self.store.control.open_owner(index).store(me, Release);
        o.kind.store(new.kind, Relaxed);
        o.flags.store(new.flags & !open_flag::OURS, Relaxed);
        o.fill.store(0, Relaxed);
        let party = new
            .opener
            .party(|| self.store.locks().lock_owner_slot(slot).number);
        o.party.store(party, Relaxed);
        // From here on, a process that counts the file's users finds the description.
        o.id.store(new.id.0, Release);
        o.offset.store(0, Relaxed);
        o.parent.store(new.parent.0, Relaxed);
        o.shard.store(0, Relaxed);
        self.open_set_name(o, new.name);
        if let Some((live, held)) = live {
            // Passes the reference from `held` to the description. If this process dies, the
            // references of both are released. So `held` and the description never have the
            // reference at the same time.
            drop(held);
            debug_assert!(
                self.store.objects().live(live).refs.load(Acquire) > 0,
                "a description takes over a use of its live entry"
            );
            o.live.store(live + 1, Release);
            // The file's declared controls are read after this fence. So a process that declares
            // controls and then counts the users either finds this description, or this process
            // sees the new controls (`controls/declare.rs`).
            fence(SeqCst);
        }
        Ok(index)
    }

    /// Takes a description from the reserve when the table is full. Only for a directory, and at
    /// most half of the reserve: so that trees can still be removed.
    #[cold]
    fn reserve_for_directory(&self, kind: u32) -> Option<u32> {
        let is_dir =
            |open: &Open| open.refs.load(Acquire) > 0 && open.kind.load(Relaxed) == libc::S_IFDIR;
        let others = || {
            (0..RESERVED_ENTRIES)
                .filter(|&i| is_dir(self.open_file(i)))
                .count()
        };
        if kind != libc::S_IFDIR || others() >= RESERVED_ENTRIES as usize / 2 {
            return None;
        }
        self.store.control.take_kept_open()
    }

    /// Stores a name in the description: the file's, or that of the last directory entry returned.
    pub fn open_set_name(&self, o: &Open, name: &[u8]) {
        let len = name.len().min(o.name.len());
        for (to, from) in o.name.iter().zip(&name[..len]) {
            to.store(*from, Relaxed);
        }
        o.name_len.store(len as u32, Release);
    }

    /// Copies the stored name.
    pub fn open_name(&self, o: &Open, out: &mut Vec<u8>) {
        let len = (o.name_len.load(Acquire) as usize).min(o.name.len());
        out.clear();
        out.extend(o.name[..len].iter().map(|b| b.load(Relaxed)));
    }

    /// Adds a reference to the description. The caller may have none: another thread of the program
    /// may close the description's last descriptor at any time, and the entry is free then.
    ///
    /// # Errors
    /// EBADF if the description has ended.
    pub fn open_retain(&self, index: u32) -> Result<()> {
        let more = |n: u32| (n > 0).then_some(n + 1);
        let retained = self
            .open_file(index)
            .refs
            .fetch_update(AcqRel, Acquire, more);
        retained.map(|_| ()).map_err(|_| Errno::BADF)
    }

    /// Adds a reference to the description that `place` refers to now, and returns its index.
    /// `place` is an entry of a descriptor table that other threads may change meanwhile.
    pub fn open_retain_at(&self, place: &AtomicU32) -> Option<u32> {
        loop {
            let index = place.load(Acquire).checked_sub(1)?;
            // A description without references has ended, and its entry is about to be freed.
            if self.open_retain(index).is_err() {
                spin_loop();
                continue;
            }
            if place.load(Acquire) == index + 1 {
                return Some(index);
            }
            let _ = self.open_release(index);
        }
    }

    /// Drops a descriptor's reference; the last one ends the description.
    ///
    /// # Errors
    /// Those of writing the file's record back (ENOSPC, EIO). The description ends all the same.
    pub fn open_release(&self, index: u32) -> Result<()> {
        forebay_trace::event!(STORE_CLOSE, self.open_file(index).id.load(Relaxed));
        let _section = self.store.section()?;
        let o = self.open_file(index);
        let owner = self.store.control.open_owner(index);
        let me = identity(&self.store.control, self.store.process_slot()?);
        loop {
            let refs = o.refs.load(Acquire);
            if refs > 1 {
                if o.refs
                    .compare_exchange(refs, refs - 1, AcqRel, Relaxed)
                    .is_ok()
                {
                    return Ok(());
                }
                continue;
            }
            // This process has the last reference, and becomes the owner: if it dies now, the
            // process that reaps it releases the description.
            owner.store(me, Release);
            if refs == 0 || o.refs.compare_exchange(1, 0, AcqRel, Relaxed).is_ok() {
                break;
            }
            owner.store(0, Release);
        }
        let notice = self.store.watches().notify_closing(o);
        self.store.locks().end_description_locks(index);
        let laminated = self.store.declared().end_use(o);
        let live = o.live.swap(0, AcqRel);
        let held = live
            .checked_sub(1)
            .map(|live| self.hold(live))
            .transpose()?;
        o.id.store(0, Relaxed);
        owner.store(0, Relaxed);
        let is_dir = o.kind.load(Relaxed) == libc::S_IFDIR;
        self.store.control.header().free_open.push(index, &o.next);
        if is_dir {
            self.store
                .control
                .header()
                .open_directories
                .fetch_sub(1, AcqRel);
        }
        drop(held);
        let released = match live {
            0 => Ok(()),
            live => self.live_release(live - 1),
        };
        if let Some((id, kind)) = notice {
            self.store.watches().notify_if_gone(id, kind);
        }
        laminated.and(released)
    }

    /// Locks the description while its offset is used and moved.
    ///
    /// # Errors
    /// ETIMEDOUT.
    pub fn open_lock(self, index: u32) -> Result<OpenLock<'s>> {
        let critical = Critical::enter();
        let open = self.open_file(index);
        // An offset is one word: there is nothing to repair after an abandoned lock.
        let _: Acquired = open
            .lock
            .acquire(&self.store.control, self.store.process_slot()?)?;
        Ok(OpenLock {
            open,
            _critical: critical,
        })
    }

    // ---- descriptor table of this process ----

    /// The open file description behind descriptor `fd`, if it is one of the pool.
    pub fn fd_get(&self, fd: i32) -> Option<u32> {
        let area = self.store.area().ok()?;
        let place = area.fd(usize::try_from(fd).ok()?)?;
        place.load(Acquire).checked_sub(1)
    }

    /// As [`Objects::fd_get`], but adds a reference to the description. Another thread may be
    /// closing the description. The caller must be in a section that lasts until the reference is
    /// stored or released.
    pub fn fd_retained(&self, fd: i32) -> Option<u32> {
        let area = self.store.area().ok()?;
        self.open_retain_at(area.fd(usize::try_from(fd).ok()?)?)
    }

    /// Makes `fd` refer to `open` and takes over the caller's reference to `open`. Returns the
    /// former description, whose reference the caller gets.
    ///
    /// # Errors
    /// EMFILE for a number that is too high; ENOSPC if there is no memory for it.
    pub fn fd_set(&self, fd: i32, open: Option<u32>) -> Result<Option<u32>> {
        let n = usize::try_from(fd)
            .ok()
            .filter(|&n| n < MAX_FDS)
            .ok_or(Errno::MFILE)?;
        let _section = self.store.section()?;
        let area = self.store.area()?;
        if open.is_some() {
            let me = self.store.process_slot()?;
            self.store.control.reserve_fds(me, area, n + 1)?;
            self.store
                .control
                .process(me as usize)
                .fds_end
                .fetch_max(n as u32 + 1, AcqRel);
        }
        let Some(place) = area.fd(n) else {
            return Ok(None);
        };
        debug_assert!(
            open.is_none_or(|open| self.open_file(open).refs.load(Acquire) > 0),
            "a descriptor takes over a reference"
        );
        let before = place.swap(open.map_or(0, |o| o + 1), AcqRel).checked_sub(1);
        if let Some(open) = open {
            // From now on the table leads to the description. (For a moment both table and owner
            // do: see reap.)
            let owner = self.store.control.open_owner(open);
            if owner.load(Relaxed) != 0 {
                owner.store(0, Release);
            }
        }
        Ok(before)
    }

    /// Puts a new reference to the description of `fd` into this process's table, at a number that
    /// no descriptor has, while the description is sent to another process. Returns what
    /// [`Objects::fd_unpark`] needs: slot, identity, number, description.
    ///
    /// # Errors
    /// EBADF if `fd` stands for no description; ETOOMANYREFS if too many references are parked;
    /// ENOSPC if there is no memory for it.
    pub fn fd_park(&self, fd: i32) -> Result<(u32, u32, u32, u32)> {
        let _section = self.store.section()?;
        let slot = self.store.process_slot()?;
        let area = self.store.area()?;
        let p = self.store.control.process(slot as usize);
        self.store.control.reserve_fds(slot, area, PARKING.end)?;
        let open = self.fd_retained(fd).ok_or(Errno::BADF)?;
        for n in PARKING {
            p.fds_end.fetch_max(n as u32 + 1, AcqRel);
            if area.fds[n]
                .compare_exchange(0, open + 1, AcqRel, Relaxed)
                .is_ok()
            {
                return Ok((slot, identity(&self.store.control, slot), n as u32, open));
            }
        }
        self.open_release(open)?;
        Err(Errno::TOOMANYREFS)
    }

    /// Takes the reference that the process `holder`, in `slot`, parked at number `n`. Without
    /// `take`, adds a reference and leaves the parked one. False if the parked reference isn't
    /// there any more. The caller must be in a section that lasts until the reference is stored or
    /// released.
    pub fn fd_unpark(&self, slot: u32, holder: u32, n: u32, open: u32, take: bool) -> bool {
        let there =
            (slot as usize) < MAX_PROCESSES && open < self.store.control.layout().limits.open;
        if !there
            || !PARKING.contains(&(n as usize))
            || !identity_lives(&self.store.control, holder)
        {
            return false;
        }
        let Ok(area) = self.store.areas().map(slot) else {
            return false;
        };
        // SAFETY: the area was mapped above, and is unmapped after its last use; it is made of
        // atomics.
        let place = unsafe { (*area).fd(n as usize) };
        let found = place.is_some_and(|place| {
            if take {
                place.compare_exchange(open + 1, 0, AcqRel, Relaxed).is_ok()
            } else {
                place.load(Acquire) == open + 1 && self.open_retain_at(place) == Some(open)
            }
        });
        // SAFETY: no reference to the area is used from here on.
        unsafe { self.store.areas().unmap(area) };
        found
    }

    /// The description that descriptor `fd` of the process `pid` refers to at the moment.
    pub fn fd_of_process(&self, pid: u32, fd: i32) -> Option<u32> {
        self.at_fd_of(pid, fd, |place| place.load(Acquire).checked_sub(1))
    }

    /// As [`Objects::fd_of_process`], but adds a reference to the description.
    pub fn fd_taken_from(&self, pid: u32, fd: i32) -> Option<u32> {
        self.at_fd_of(pid, fd, |place| self.open_retain_at(place))
    }

    /// Calls `f` with the entry of descriptor `fd` in the table of the process `pid`.
    fn at_fd_of<T>(&self, pid: u32, fd: i32, f: impl FnOnce(&AtomicU32) -> Option<T>) -> Option<T> {
        let n = usize::try_from(fd).ok().filter(|&n| n < MAX_FDS)?;
        let slot_in = |state: u32| {
            (0..MAX_PROCESSES).find(|&slot| {
                let owner = self.store.control.process(slot).owner.load(Acquire);
                state_of(owner) == state && pid_of(owner) == pid
            })
        };
        // A child that hasn't needed the pool yet hasn't claimed the slot that was reserved for it.
        // The child may claim its slot between two checks, hence the second look at used slots.
        let states = [slot_state::USED, slot_state::RESERVED, slot_state::USED];
        let slot = states.into_iter().find_map(slot_in)?;
        let area = self.store.areas().map(slot as u32).ok()?;
        // SAFETY: mapped above, and unmapped only after the last use; all fields are atomics.
        let found = unsafe { (*area).fd(n) }.and_then(f);
        // SAFETY: no reference to the area is used from here on.
        unsafe { self.store.areas().unmap(area) };
        found
    }

    /// One more than the highest number in this process's table.
    pub fn fds_end(&self) -> usize {
        match self.store.process_slot() {
            Ok(me) => self
                .store
                .control
                .process(me as usize)
                .fds_end
                .load(Acquire) as usize,
            Err(_) => 0,
        }
    }
}
