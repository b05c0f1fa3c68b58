//! The installation: finds the sites or reads them from the cache, writes the trampolines, makes
//! them executable, then patches the code.
//!
//! Guarantees: until the first patch nothing of the process has changed, so that every error leaves
//! the process as it was; between the first and the last patch no libc function is called;
//! afterwards code is readable and executable, not writable.

use crate::arch::{
    self, FAR_HEAD, FAR_TAIL, FORM_HOP, FORM_NONE, JUMP, OWN_SLOTS, Region, SLOT, Site, raw,
};
use crate::cache::{self, Cached, SITES_MAX};
use crate::hooks::Hooks;
use crate::object::{self, Object};
use crate::report::{Error, MAX_OBJECTS, ObjectReport, Report};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

static INSTALLED: AtomicBool = AtomicBool::new(false);

const PAGE: usize = 4096;
const RX: i32 = libc::PROT_READ | libc::PROT_EXEC;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const RWX: i32 = RX | libc::PROT_WRITE;

/// Sites from the cache, or newly found ones.
pub(crate) enum Sites {
    Cached(Cached),
    Found(Vec<Site>),
}

impl Sites {
    /// Returns the cached sites, if the loaded code still has all of them.
    pub(crate) fn kept(object: &Object, dir: &CStr, hooks: &Hooks) -> Option<Sites> {
        Sites::cached(object, dir, hooks).and_then(Result::ok)
    }

    /// Returns the cached sites; None: there are none; Err: the code has changed since.
    fn cached(object: &Object, dir: &CStr, hooks: &Hooks) -> Option<Result<Sites, ()>> {
        // All sites must match, or the cache isn't used: a cache made from code that something else
        // had patched would hide sites for ever.
        let fits = |s: &Site| !s.wanted(hooks) || s.form == FORM_NONE || is_patchable(object, s);
        let cached = cache::open(dir, object)?;
        let all = cached.sites().iter().all(fits);
        Some(if all {
            Ok(Sites::Cached(cached))
        } else {
            Err(())
        })
    }

    fn list(&self) -> &[Site] {
        match self {
            Sites::Cached(c) => c.sites(),
            Sites::Found(v) => v,
        }
    }

    unsafe fn of(object: &Object, dir: Option<&CStr>, hooks: &Hooks) -> Sites {
        let cached = dir.and_then(|d| Sites::cached(object, d, hooks));
        if let Some(Ok(cached)) = cached {
            return cached;
        }
        // SAFETY: the object is loaded, and its code isn't patched yet.
        let found = unsafe { arch::find(object) };
        // A cache that doesn't match isn't overwritten: in this process a debugger or another copy
        // of this library has patched the code. Other processes need all sites.
        if let (Some(dir), None) = (dir, &cached) {
            cache::save(dir, object, &found);
        }
        Sites::Found(found)
    }
}

/// The patching of one object: its sites, and their trampolines.
pub(crate) struct Job {
    object: Object,
    sites: Sites,
    region: Region,
    /// Address of this job's first slot.
    first: usize,
    chosen: Chosen,
}

/// One bit per site: whether it has a slot.
type Chosen = [u64; SITES_MAX / 64];

pub(crate) unsafe fn install(hooks: &'static Hooks, dir: Option<&CStr>) -> Result<Report, Error> {
    let begun = now();
    if INSTALLED.swap(true, Ordering::SeqCst) {
        return Err(Error::AlreadyInstalled);
    }
    // SAFETY: the caller's promise.
    let result = unsafe { install_once(hooks, dir, object::loaded()) };
    if result.is_err() {
        INSTALLED.store(false, Ordering::SeqCst);
    }
    result.map(|(mut report, _)| {
        report.microseconds = (now() - begun) / 1000;
        report
    })
}

/// The objects that were patched, for restoring their code.
pub(crate) struct Patched([Option<Job>; MAX_OBJECTS]);

pub(crate) unsafe fn install_in_loader(
    hooks: &'static Hooks,
    dir: Option<&CStr>,
) -> Result<Patched, Error> {
    if INSTALLED.swap(true, Ordering::SeqCst) {
        return Err(Error::AlreadyInstalled);
    }
    // SAFETY: the caller's promise.
    let result = unsafe { install_once(hooks, dir, object::loaded().only(b"ld-linux")) };
    if result.is_err() {
        INSTALLED.store(false, Ordering::SeqCst);
    }
    result.map(|(_, jobs)| Patched(jobs))
}

impl Patched {
    /// Restores the original code.
    ///
    /// # Safety
    /// As for [`crate::LoaderPatch::remove`].
    pub(crate) unsafe fn remove(self) {
        for job in self.0.iter().flatten() {
            let (low, len) = code_pages(&job.object);
            if protect(low, len, RWX)
                .or_else(|_| protect(low, len, RW))
                .is_err()
            {
                continue;
            }
            for site in marked(&job.sites, &job.chosen) {
                // SAFETY: the code is writable now, and the site was compared with the code before
                // it was patched.
                unsafe { arch::unpatch(job.object.base, site) };
            }
            arch::code_changed(low, len);
            let _ = protect(low, len, RX);
        }
        INSTALLED.store(false, Ordering::SeqCst);
    }
}

unsafe fn install_once(
    hooks: &'static Hooks,
    dir: Option<&CStr>,
    objects: object::Objects,
) -> Result<(Report, [Option<Job>; MAX_OBJECTS]), Error> {
    if objects.count == 0 {
        return Err(Error::NoLibc);
    }
    let mut report = Report::default();
    let mut jobs: [Option<Job>; MAX_OBJECTS] = [const { None }; MAX_OBJECTS];
    let start = arch::own_region();
    let own_len = OWN_SLOTS * SLOT;
    let mut own = Region {
        start,
        len: own_len,
        next: start,
        far: false,
        wide: false,
    };
    protect(own.start, own.len, RW)?;

    for (job, object) in jobs.iter_mut().zip(objects.list.into_iter().flatten()) {
        // SAFETY: the object is loaded, and its code isn't patched yet.
        let sites = unsafe { Sites::of(&object, dir, hooks) };
        let line = &mut report.objects[report.count];
        report.count += 1;
        line.name = object.name;
        line.cached = matches!(sites, Sites::Cached(_));
        line.found = sites.list().len() as u32;
        let (chosen, slots) = choose(hooks, &object, &sites, line);
        if slots == 0 {
            continue;
        }
        let near = arch::in_reach((own.start, own.start + own.len), object.code_range())
            && own.has_room(slots);
        let mut region = if near {
            own
        } else {
            far_region(&object, slots, false).inspect_err(|_| undo(&own))?
        };
        line.far = region.far;
        let first = region.next;
        for site in marked(&sites, &chosen) {
            // SAFETY: the region is writable, has room and is in reach; the site was compared with
            // the code.
            unsafe { region.add(hooks, object.base, site) };
        }
        if near {
            own = region;
        }
        *job = Some(Job {
            object,
            sites,
            region,
            first,
            chosen,
        });
    }

    protect(own.start, own.len, RX)?;
    for job in jobs.iter().flatten().filter(|j| j.region.far) {
        finish_far(job.region)?;
    }
    // SAFETY: nothing is patched yet, and only one thread installs (`INSTALLED`).
    unsafe { arch::set_hooks(hooks) };
    for (i, job) in jobs.iter().flatten().enumerate() {
        // SAFETY: the trampolines are in place and executable.
        let patched = unsafe { patch(job, code_pages(&job.object)) };
        match patched {
            Ok(n) => {
                if let Some(line) = report
                    .objects
                    .iter_mut()
                    .find(|l| l.name == job.object.name)
                {
                    line.patched = n;
                }
            }
            // If the first object can't be patched, nothing in the process has changed yet. Later
            // objects are skipped.
            Err(e) if i == 0 => return Err(e),
            Err(_) => {}
        }
    }
    Ok((report, jobs))
}

/// Returns the sites to patch, one bit each, and the number of slots that they need.
fn choose(
    hooks: &Hooks,
    object: &Object,
    sites: &Sites,
    line: &mut ObjectReport,
) -> (Chosen, usize) {
    let (mut chosen, mut slots) = ([0; SITES_MAX / 64], 0);
    let wanted = sites.list().iter().enumerate();
    for (i, site) in wanted.filter(|(_, s)| s.wanted(hooks)) {
        line.wanted += 1;
        if is_patchable(object, site) && i < SITES_MAX {
            chosen[i / 64] |= 1 << (i % 64);
            slots += site.slots();
        } else {
            line.miss(site);
        }
    }
    (chosen, slots)
}

/// Makes a far region executable, and registers it with the unwinder.
fn finish_far(mut region: Region) -> Result<(), Error> {
    // SAFETY: the region is far and still writable; its table is never freed. std needs the
    // unwinder's library anyway, so `__register_frame` is there.
    unsafe {
        let table = region.end_far();
        protect(region.start, region.len, RX)?;
        __register_frame(table as *const u8);
    }
    Ok(())
}

impl Job {
    /// Prepares another object's sites with their trampolines; the object's code isn't changed yet.
    /// None if there is nothing to patch.
    ///
    /// # Safety
    /// The object is mapped, and not patched yet; the gates have their hooks; one thread at a time.
    pub(crate) unsafe fn of_other(hooks: &Hooks, object: Object, sites: Sites) -> Option<Job> {
        let mut line = ObjectReport::default();
        let (chosen, slots) = choose(hooks, &object, &sites, &mut line);
        // SAFETY: no site leads to a wide gate yet, or the gates are prepared already: only this
        // function makes wide sites.
        if slots == 0 || !unsafe { arch::widen() } {
            return None;
        }
        let mut region = far_region(&object, slots, true).ok()?;
        let first = region.next;
        for site in marked(&sites, &chosen) {
            // SAFETY: the region is writable, has room and is in reach; the site was compared with
            // the code.
            unsafe { region.add(hooks, object.base, site) }?;
        }
        finish_far(region).ok()?;
        Some(Job {
            object,
            sites,
            region,
            first,
            chosen,
        })
    }

    /// Patches the object's code, where it still matches the sites.
    ///
    /// # Safety
    /// The job was made by [`Job::of_other`]; the object is mapped, and nothing runs in it yet.
    pub(crate) unsafe fn patch_other(&self) {
        let base = self.object.base;
        let ends = marked(&self.sites, &self.chosen).flat_map(|s| {
            let hop = (s.form == FORM_HOP).then_some(s.hop as usize..s.hop as usize + JUMP);
            let start = s.start as usize;
            [Some(start..start + s.window_len()), hop]
        });
        let (mut low, mut high) = (usize::MAX, 0);
        for place in ends.flatten() {
            (low, high) = (low.min(base + place.start), high.max(base + place.end));
        }
        low &= !(PAGE - 1);
        if low < high {
            // SAFETY: the caller's promise. Without permission to write, nothing changes.
            let _ = unsafe { patch(self, (low, high.next_multiple_of(PAGE) - low)) };
        }
    }

    /// Whether the job was made for the same code at the same address. An object without an id is
    /// never the same.
    pub(crate) fn is_for(&self, object: &Object) -> bool {
        !object.id().is_empty()
            && self.object.code_range() == object.code_range()
            && self.object.id() == object.id()
    }
}

impl ObjectReport {
    fn miss(&mut self, site: &Site) {
        match usize::try_from(site.nr) {
            Ok(nr) => self.missed[nr / 64] |= 1 << (nr % 64),
            Err(_) => self.missed_unknown += 1,
        }
    }
}

fn is_patchable(object: &Object, site: &Site) -> bool {
    // SAFETY: the object is loaded. Its sites are sane, whether they were found or read from a
    // file.
    site.form != FORM_NONE && unsafe { site.matches(object.base) }
}

/// Returns the sites that have a slot, in the order of their slots.
fn marked<'a>(sites: &'a Sites, chosen: &'a Chosen) -> impl Iterator<Item = &'a Site> {
    let list = sites.list().iter().take(SITES_MAX).enumerate();
    list.filter(|(i, _)| chosen[i / 64] >> (i % 64) & 1 == 1)
        .map(|(_, s)| s)
}

/// Returns the pages of the object's code: start address, and length in bytes.
fn code_pages(object: &Object) -> (usize, usize) {
    let (low, high) = object.code_range();
    let low = low & !(PAGE - 1);
    (low, high.next_multiple_of(PAGE) - low)
}

unsafe fn patch(job: &Job, (low, len): (usize, usize)) -> Result<u32, Error> {
    // For libc the whole segment is made writable at once: protecting a part would leave several
    // mappings behind. If the kernel refuses code that is writable and executable, the code isn't
    // executable for a moment. This moment only matters to other threads: the code that runs here
    // isn't in libc.
    protect(low, len, RWX).or_else(|_| protect(low, len, RW))?;
    let mut slot = job.first;
    let mut patched = 0;
    for site in marked(&job.sites, &job.chosen) {
        // SAFETY: the site is compared with the code again: overlapping windows would no longer
        // match.
        unsafe {
            if site.matches(job.object.base) {
                arch::patch(job.object.base, site, slot);
                patched += 1;
            }
        }
        slot += site.slots() * SLOT;
    }
    arch::code_changed(low, len);
    // A failure here can't be handled: the code stays writable, and runs if RWX was allowed.
    let _ = protect(low, len, RX);
    Ok(patched)
}

/// Returns a new writable region in reach of the object's code.
fn far_region(object: &Object, slots: usize, wide: bool) -> Result<Region, Error> {
    let len = (FAR_HEAD + slots * SLOT + FAR_TAIL).next_multiple_of(PAGE);
    let code = object.code_range();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let mut error = libc::ENOMEM;
    // Searches downwards and upwards in growing steps.
    for step in 0..1024usize {
        let distance = (1 << 16) * (step + 1) + (step * step) * 1024;
        let below = (object.base & !(PAGE - 1)).checked_sub(distance + len);
        let above = (code.1.next_multiple_of(PAGE)).checked_add(distance);
        for start in [below, above].into_iter().flatten() {
            if !arch::in_reach((start, start + len), code) {
                continue;
            }
            // SAFETY: MAP_FIXED_NOREPLACE, also if taken as a hint, replaces no mapping.
            let got = unsafe {
                raw(
                    libc::SYS_mmap,
                    [start as i64, len as i64, RW.into(), flags.into(), -1, 0],
                )
            };
            // A kernel that doesn't know MAP_FIXED_NOREPLACE, or valgrind, treats the address as a
            // hint.
            let start = got as usize;
            if got >= 0 && arch::in_reach((start, start + len), code) {
                let mut region = Region {
                    start,
                    len,
                    next: start,
                    far: true,
                    wide,
                };
                // SAFETY: the region is new and writable, so nothing uses it yet.
                unsafe { region.begin_far() };
                return Ok(region);
            }
            if got >= 0 {
                // SAFETY: unmaps the mapping just made, which nothing uses.
                unsafe { raw(libc::SYS_munmap, [got, len as i64, 0, 0, 0, 0]) };
            } else {
                error = -got as i32;
            }
        }
    }
    Err(Error::NoRoom(error))
}

fn undo(own: &Region) {
    let _ = protect(own.start, own.len, RX);
}

fn protect(start: usize, len: usize, prot: i32) -> Result<(), Error> {
    // SAFETY: the pages are this library's slots, or an object's code; code that runs at the moment
    // stays executable (see the callers).
    match unsafe {
        raw(
            libc::SYS_mprotect,
            [start as i64, len as i64, prot.into(), 0, 0, 0],
        )
    } {
        0 => Ok(()),
        e => Err(Error::Refused(-e as i32)),
    }
}

fn now() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes only to `t`, a local variable.
    unsafe {
        raw(
            libc::SYS_clock_gettime,
            [
                libc::CLOCK_MONOTONIC.into(),
                (&raw mut t) as i64,
                0,
                0,
                0,
                0,
            ],
        )
    };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

unsafe extern "C" {
    fn __register_frame(table: *const u8);
}
