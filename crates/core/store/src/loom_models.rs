//! The lock-free algorithms of many processes, and the lock itself, under the model checker: see
//! docs/internals/testing.md.

use crate::control_region::{Control, Layout, Limits, MAX_PROCESSES, live_flag as flag};
use crate::extent_cache::ExtentCache;
use crate::live::{Chain, set_loaded};
use crate::lock::{Acquired, Lock};
use crate::process::{self, Critical};
use crate::record::{ChunkMap, Inode};
use crate::{Extent, NewOpen, ObjectId, Region, Store};
use forebay_runtime::atomics::loom::{self, cell::UnsafeCell, thread};
use forebay_runtime::atomics::{AtomicU32, Ordering::*, futex};
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Locked while a model runs, because [`futex::TIMEOUTS`] holds for all models.
static ONE: Mutex<()> = Mutex::new(());

fn check_with(timeouts: bool, preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    futex::TIMEOUTS.store(timeouts, Relaxed);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder.max_branches = 10_000;
    builder.check(f);
}

fn check(f: impl Fn() + Sync + Send + 'static) {
    check_with(false, 3, f);
}

/// Uses each word that the models use later: loom requires a first use before there are several
/// threads.
fn touch(c: &Control) {
    for slot in 0..MAX_PROCESSES {
        let p = c.process(slot);
        process::identity(c, slot as u32);
        for word in [&p.in_flight, &p.waits_for, &p.fds_end] {
            word.load(Relaxed);
        }
        p.owner.load(Relaxed);
        for word in p.held.iter().chain([&p.locked]) {
            word.load(Relaxed);
        }
        for wait in &p.waits {
            wait.stamp.load(Relaxed);
        }
    }
    let h = c.header();
    h.quiet.holder();
    h.lockers.load(Relaxed);
    h.born.load(Relaxed);
    for i in 0..3 {
        let live = c.live(i);
        live.lock.holder();
        for word in [
            &live.next,
            &live.refs,
            &live.flags,
            &live.extents,
            c.finisher(i),
        ] {
            word.load(Relaxed);
        }
        for word in [&live.id, &live.moved, &live.size, &live.pages] {
            word.load(Relaxed);
        }
        for word in [&live.mtime, &live.ctime] {
            word.load(Relaxed);
        }
        let o = c.open_file(i);
        for word in [
            &o.refs,
            &o.live,
            &o.flags,
            &o.kind,
            &o.next,
            &o.shard,
            &o.name_len,
        ] {
            word.load(Relaxed);
        }
        for word in [&o.locker, c.open_owner(i)] {
            word.load(Relaxed);
        }
        for word in [&o.id, &o.offset, &o.parent] {
            word.load(Relaxed);
        }
    }
    for list in [&h.free_live, &h.free_open] {
        list.end(0);
        list.refused();
        list.walk(0, |i| &c.live(i).next);
    }
}

fn control() -> Arc<Control> {
    let fd = rustix::fs::memfd_create("forebay-model", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let limits = Limits::of(1, 0);
    let len = Layout::of(limits).file_len();
    rustix::fs::ftruncate(&fd, len as u64).unwrap();
    let region = Region::map(&fd, 0, len).unwrap();
    Control::format(&region, 4, limits);
    let control = Control::open(region).unwrap();
    touch(&control);
    Arc::new(control)
}

/// A store of which only the control region is used.
struct Shared {
    store: Store,
    path: PathBuf,
}

impl Deref for Shared {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn store() -> Arc<Shared> {
    let path = PathBuf::from(format!("/dev/shm/forebay-model-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    Store::create_control(&path, 4).unwrap();
    let store = Store::open(&path, &path, 1 << 20, Vec::new(), None).unwrap();
    store.process_slot().unwrap();
    touch(store.control());
    Arc::new(Shared { store, path })
}

#[test]
fn a_free_list_gives_each_entry_to_one() {
    check(|| {
        let c = control();
        let list = |c: &Control| {
            let h = c.header();
            let take = || h.free_live.pop(3, |i| &c.live(i).next, |_| Ok(3)).unwrap();
            let (a, b) = (take(), take());
            if let Some(a) = a {
                h.free_live.push(a, &c.live(a).next);
            }
            b
        };
        // The list then has both kinds of entries: ones that were given back, and ones never used.
        let h = c.header();
        for i in [
            h.free_live.pop(3, |i| &c.live(i).next, |_| Ok(3)).unwrap(),
            h.free_live.pop(3, |i| &c.live(i).next, |_| Ok(3)).unwrap(),
        ] {
            h.free_live.push(i.unwrap(), &c.live(i.unwrap()).next);
        }
        let other = c.clone();
        let t = thread::spawn(move || list(&other));
        let mine = list(&c);
        let theirs = t.join().unwrap();
        assert!(mine.is_none() || mine != theirs, "{mine:?} twice");
        let mut all: Vec<u32> = h.free_live.walk(3, |i| &c.live(i).next).unwrap();
        all.extend(mine);
        all.extend(theirs);
        all.sort_unstable();
        let end = h.free_live.end(3);
        assert_eq!(all, (0..end).collect::<Vec<_>>(), "lost, or there twice");
    });
}

struct Guarded {
    lock: Lock,
    count: UnsafeCell<u32>,
}

// SAFETY: the count is used with the lock held: the test checks that.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

fn guarded() -> Arc<Guarded> {
    let guarded = Arc::new(Guarded {
        lock: Lock::new(),
        count: UnsafeCell::new(0),
    });
    guarded.lock.holder();
    guarded
}

impl Guarded {
    fn count_up(&self, c: &Control, me: u32) -> Acquired {
        let how = self.lock.acquire(c, me).unwrap();
        // SAFETY: loom checks that no other thread uses the count.
        self.count.with_mut(|n| unsafe { *n += 1 });
        self.lock.release();
        how
    }
}

/// Runs without timeouts, so that a sleeper must be woken.
#[test]
fn a_lock_keeps_others_out_and_forgets_no_sleeper() {
    check_with(false, 2, || {
        let (c, g) = (control(), guarded());
        let me = process::attach(&*c).unwrap();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (c, g) = (c.clone(), g.clone());
                thread::spawn(move || g.count_up(&c, me))
            })
            .collect();
        assert_eq!(g.count_up(&c, me), Acquired::Clean);
        for t in others {
            assert_eq!(t.join().unwrap(), Acquired::Clean);
        }
        // SAFETY: the other threads have ended.
        g.count.with(|n| assert_eq!(unsafe { *n }, 3));
        assert_eq!(g.lock.holder(), None);
    });
}

#[test]
fn the_lock_of_a_dead_holder_passes_to_one_who_is_told() {
    check_with(true, 2, || {
        let (c, g) = (control(), guarded());
        let (me, dead) = (process::attach(&*c).unwrap(), process::attach(&*c).unwrap());
        g.lock.acquire(&*c, dead).unwrap();
        process::free(&c, dead);
        let other = (c.clone(), g.clone());
        let t = thread::spawn(move || other.1.count_up(&other.0, me));
        let mine = g.count_up(&c, me);
        let theirs = t.join().unwrap();
        assert!((mine == Acquired::Abandoned) != (theirs == Acquired::Abandoned));
        assert_eq!(g.lock.holder(), None);
    });
}

/// Makes a live entry as `live_acquire_held` and `live_load` do. Returns its index.
fn insert(s: &Store, id: u64, size: u64) -> u32 {
    let chain = Chain::lock(s, id).unwrap();
    let index = s.objects().live_new(&chain, ObjectId(id)).unwrap();
    drop(chain);
    let inode = Inode {
        size,
        ..Inode::default()
    };
    let _lock = s.objects().lock_live(index).unwrap();
    set_loaded(s.objects().live(index), &inode, flag::LOADED);
    index
}

/// Removes the entry of `id` as `live_release` does.
fn remove(s: &Store, id: u64) {
    let chain = Chain::lock(s, id).unwrap();
    let index = chain.find(id).unwrap();
    s.objects().live_end(chain, index);
}

/// Two ids whose chains are the same, and one whose chain is another.
fn ids(s: &Store) -> (u64, u64, u64) {
    let at = |id| s.control.bucket(id) as *const _;
    let a = 1 << 20;
    let same = (a + 1..).find(|&i| at(i) == at(a)).unwrap();
    let other = (a + 1..).find(|&i| at(i) != at(a)).unwrap();
    for id in [a, other] {
        let bucket = s.control.bucket(id);
        bucket.lock.holder();
        bucket.head.load(Relaxed);
        bucket.version.load(Relaxed);
    }
    (a, same, other)
}

#[test]
fn a_look_at_the_live_table_finds_what_is_there() {
    check_with(false, 2, || {
        let s = store();
        let (gone, stays, other) = ids(&s);
        insert(&s, stays, 7);
        insert(&s, gone, 1);
        let changer = s.clone();
        let t = thread::spawn(move || {
            remove(&changer, gone);
            // The same entry, for another object in another chain.
            insert(&changer, other, 2);
        });
        let view = s.objects().live_probe(ObjectId(gone)).unwrap();
        assert!(view.is_none_or(|v| v.size == 1), "{view:?}");
        let view = s.objects().live_probe(ObjectId(stays)).unwrap();
        assert_eq!(view.map(|v| v.size), Some(7));
        t.join().unwrap();
        assert_eq!(
            s.objects()
                .live_probe(ObjectId(other))
                .unwrap()
                .map(|v| v.size),
            Some(2)
        );
        assert!(s.objects().live_probe(ObjectId(gone)).unwrap().is_none());
    });
}

#[test]
fn no_section_is_under_way_in_a_quiet_moment() {
    check_with(false, 3, || {
        let s = store();
        let pair = Arc::new((AtomicU32::new(0), AtomicU32::new(0)));
        assert_eq!(pair.0.load(Relaxed), pair.1.load(Relaxed));
        let worker = (s.clone(), pair.clone());
        let t = thread::spawn(move || {
            let _section = worker.0.section().unwrap();
            worker.1.0.fetch_add(1, Relaxed);
            worker.1.1.fetch_add(1, Relaxed);
        });
        {
            let _quiet = s.quiet(Duration::from_secs(600)).unwrap();
            assert_eq!(pair.0.load(Relaxed), pair.1.load(Relaxed));
        }
        t.join().unwrap();
    });
}

#[test]
fn the_cache_of_extents_never_mixes_two() {
    check(|| {
        let cache = Arc::new(ExtentCache::new());
        let map = |start| {
            let mut map = ChunkMap::default();
            map.push(Extent::new(0, start, 1));
            map.push(Extent::new(0, start + 10, 1));
            map
        };
        cache.put(1, 1, 1, 2, &map(100));
        let other = cache.clone();
        let t = thread::spawn(move || other.put(1, 1, 1, 4, &map(200)));
        for (moved, start) in [(2, 100), (4, 200)] {
            let found = cache.get(1, 1, 1, moved);
            assert!(found.is_none() || found == Some(map(start)), "{found:?}");
        }
        t.join().unwrap();
    });
}

/// How often each live entry was changed.
struct Changed([UnsafeCell<u32>; 3]);

// SAFETY: each count is used with the entry's lock held: the test checks that.
unsafe impl Sync for Changed {}
// SAFETY: as above.
unsafe impl Send for Changed {}

impl Changed {
    /// Locks and changes two entries, or one, as a copy between files does.
    fn by_copy(&self, s: &Store, from: u32, to: u32) {
        let _critical = Critical::enter();
        let _locks = s.content().lock_both(from, to).unwrap();
        for index in [Some(from), (to != from).then_some(to)]
            .into_iter()
            .flatten()
        {
            // SAFETY: loom checks that no other thread uses the count.
            self.0[index as usize].with_mut(|n| unsafe { *n += 1 });
        }
    }

    fn count(&self, index: u32) -> u32 {
        // SAFETY: the other threads have ended.
        self.0[index as usize].with(|n| unsafe { *n })
    }
}

/// A store with two live entries.
fn two_files() -> (Arc<Shared>, Arc<Changed>, u32, u32) {
    let s = store();
    let (one, _, other) = ids(&s);
    let (x, y) = (insert(&s, one, 1), insert(&s, other, 2));
    let changed = Changed([0; 3].map(UnsafeCell::new));
    (s, Arc::new(changed), x, y)
}

/// Copies in both directions, and within one file. No timeout wakes a thread: so a deadlock would
/// show as a thread that waits for ever.
#[test]
fn two_live_entries_are_never_locked_in_a_circle() {
    check_with(false, 2, || {
        let (s, changed, x, y) = two_files();
        let other = (s.clone(), changed.clone());
        let t = thread::spawn(move || other.1.by_copy(&other.0, y, x));
        changed.by_copy(&s, x, y);
        changed.by_copy(&s, y, y);
        t.join().unwrap();
        assert_eq!((changed.count(x), changed.count(y)), (2, 3));
        assert_eq!(s.objects().live(x).lock.holder(), None);
        assert_eq!(s.objects().live(y).lock.holder(), None);
    });
}

/// A thread that has one lock and takes the other is in a section, for which quiescence waits.
#[test]
fn two_live_entries_are_locked_in_one_section() {
    check_with(false, 2, || {
        let (s, changed, x, y) = two_files();
        let other = (s.clone(), changed.clone());
        let t = thread::spawn(move || other.1.by_copy(&other.0, y, x));
        {
            let _quiet = s.quiet(Duration::from_secs(600)).unwrap();
            assert_eq!(changed.count(x), changed.count(y));
        }
        t.join().unwrap();
        assert_eq!((changed.count(x), changed.count(y)), (1, 1));
    });
}

fn open(s: &Store) -> u32 {
    s.objects()
        .open_create(&NewOpen::new(ObjectId::ROOT, libc::S_IFDIR, 0), None)
        .unwrap()
}

/// A place in a table of descriptors is emptied, and its description reused, while another thread
/// takes a reference from it.
#[test]
fn a_reference_is_taken_from_a_place_only_while_it_is_there() {
    check_with(false, 2, || {
        let s = store();
        let _critical = Critical::enter();
        let place = Arc::new(AtomicU32::new(0));
        let index = open(&s);
        place.store(index + 1, Release);
        let closer = (s.clone(), place.clone());
        let t = thread::spawn(move || {
            let index = closer.1.swap(0, AcqRel) - 1;
            closer.0.objects().open_release(index).unwrap();
            open(&closer.0)
        });
        let mine = s.objects().open_retain_at(&place);
        let new = t.join().unwrap();
        let mut refs = [0u32; 4];
        refs[new as usize] += 1;
        if let Some(mine) = mine {
            assert_eq!(mine, index);
            refs[mine as usize] += 1;
        }
        assert!(mine != Some(new), "retained what another one has");
        for (i, refs) in refs.iter().enumerate().take(2) {
            assert_eq!(
                s.objects().open_file(i as u32).refs.load(Acquire),
                *refs,
                "{i}"
            );
        }
    });
}
