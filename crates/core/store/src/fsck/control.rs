//! Checks the control region during quiescence: holders of locks, reference counts, chains and
//! lists.

use super::findings::Report;
use crate::control_region::{
    Lists, MAX_EXTENTS, MAX_FDS, MAX_FILE_LOCKS, MAX_LIVE, MAX_OPEN, MAX_PROCESSES, live_flag,
    slot_state,
};
use crate::live::held_entry;
use crate::lock::Lock;
use crate::process;
use crate::recount::{Uses, View};
use crate::{MAX_SIZE, ObjectId, Store};
use rustix::io::Result;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::*;

const PART: &str = "control";
/// Remedy of findings about state that exists only in shared memory.
const ANEW: &str = "the control region is made anew";
const ALL_FLAGS: u32 = live_flag::LOADED
    | live_flag::DIRTY
    | live_flag::UNLINKED
    | live_flag::INLINE
    | live_flag::MAPPED
    | live_flag::PARTS
    | live_flag::BEHIND
    | live_flag::GONE
    | live_flag::TORN
    | live_flag::TAIL
    | live_flag::CUT
    | live_flag::REMOTE
    | live_flag::COPIED
    | live_flag::DECLARED_LATE
    | live_flag::ON_FILES
    | live_flag::RELEASED
    | live_flag::CLEAN
    | live_flag::PRIVILEGED
    | live_flag::LEASED;

/// Checks the whole control region. To be called during quiescence.
pub(crate) fn check_control(store: &Store, uses: &Uses, report: &mut Report) -> Result<()> {
    check_locks(store, uses, report);
    check_processes(store, uses, report)?;
    check_opens(store, uses, report);
    let linked = check_chains(store, report);
    check_lives(store, uses, &linked, report);
    let locks = check_file_locks(store, report);
    check_lists(store, uses, &linked, &locks, report);
    Ok(())
}

fn check_locks(store: &Store, uses: &Uses, report: &mut Report) {
    let mut one = |what: &dyn Fn() -> String, lock: &Lock| {
        let Some(word) = lock.stray(store.control()) else {
            return;
        };
        let whom = match process::pid_of_identity(store.control(), word) {
            0 => "a process that is gone".to_owned(),
            pid => format!("process {pid}, which isn't the one that took it or is dead"),
        };
        report.add(
            PART,
            format!("the lock of {} is held by {whom}", what()),
            "it passes to the next who wants it; with --repair it becomes free",
        );
    };
    for (i, chain) in store.control().lock_chains().enumerate() {
        one(&|| format!("chain {i} of file locks"), &chain.lock);
    }
    for i in 0..store.control().shards() {
        one(&|| format!("shard {i}"), &store.control().shard(i).lock);
    }
    for (i, place) in store.control().dir_times().enumerate() {
        one(
            &|| format!("place {i} for times of directories"),
            &place.lock,
        );
    }
    for (i, bucket) in store.control().buckets().enumerate() {
        one(&|| format!("chain {i} of the live table"), &bucket.lock);
    }
    for i in 0..uses.lives.len() as u32 {
        one(&|| format!("live entry {i}"), &store.objects().live(i).lock);
    }
    for i in 0..uses.opens.len() as u32 {
        let open = store.objects().open_file(i);
        // A description that isn't in use protects nothing: a thread that was reading while its
        // process ended may have left its lock, and the next user adopts it.
        if open.refs.load(Acquire) > 0 {
            one(&|| format!("open file description {i}"), &open.lock);
        }
    }
}

fn check_processes(store: &Store, uses: &Uses, report: &mut Report) -> Result<()> {
    for slot in 0..MAX_PROCESSES {
        let p = store.control().process(slot);
        let owner = p.owner.load(Acquire);
        let (state, pid) = (process::state_of(owner), process::pid_of(owner));
        let mut find = |what: String, remedy: &str| {
            report.add(PART, format!("process slot {slot}: {what}"), remedy)
        };
        let end = p.fds_end.load(Acquire) as usize;
        if end > MAX_FDS {
            find(format!("it says that its descriptors end at {end}"), ANEW);
        }
        if state == slot_state::FREE {
            let busy =
                p.in_flight.load(Acquire) != 0 || p.held.iter().any(|h| h.load(Acquire) != 0);
            if owner != 0 || busy || end != 0 {
                find("it is nobody's, but something is noted in it".into(), ANEW);
            }
            continue;
        }
        if state > slot_state::REAPING {
            find(format!("its state is {state}, which is none"), ANEW);
            continue;
        }
        if !process::is_alive(store.control(), slot as u32) {
            find(
                format!("process {pid} is dead, but not released"),
                "the keeper does that within a second; without one, forebay up --reopen does",
            );
            continue;
        }
        let mapped = store.areas().map(slot as u32)?;
        // SAFETY: mapped above, and unmapped only after the last use; all fields are atomics.
        let area = unsafe { &*mapped };
        let held = p
            .held
            .iter()
            .chain(store.objects().more_held(slot as u32, area));
        let held = held.filter_map(|h| held_entry(h.load(Acquire)));
        for i in held.filter(|&i| i as usize >= uses.lives.len()) {
            find(
                format!("process {pid} holds live entry {i}, which never was in use"),
                ANEW,
            );
        }
        let fds = (0..end).map_while(|fd| Some((fd, area.fd(fd)?)));
        for (fd, open) in fds {
            let Some(open) = open.load(Acquire).checked_sub(1) else {
                continue;
            };
            let there = (open as usize) < uses.opens.len()
                && store.objects().open_file(open).refs.load(Acquire) > 0;
            if !there {
                find(
                    format!(
                        "descriptor {fd} of process {pid} stands for open file description {open}, which isn't in use"
                    ),
                    "the process gets EBADF for it; close it there",
                );
            }
        }
        // SAFETY: the area is used only in this turn of the loop.
        unsafe { store.areas().unmap(mapped) };
    }
    Ok(())
}

fn check_opens(store: &Store, uses: &Uses, report: &mut Report) {
    for (i, &n) in uses.opens.iter().enumerate() {
        let o = store.objects().open_file(i as u32);
        let refs = o.refs.load(Acquire);
        let mut find =
            |what: String| report.add(PART, format!("open file description {i}: {what}"), ANEW);
        if refs != n {
            find(format!("it counts {refs} users, but has {n}"));
        }
        if n == 0 {
            continue;
        }
        let live = o.live.load(Acquire);
        let id = o.id.load(Acquire);
        if live as usize > uses.lives.len() {
            find(format!(
                "it uses live entry {}, which never was in use",
                live - 1
            ));
        } else if live > 0 && store.objects().live(live - 1).id.load(Acquire) != id {
            find(format!(
                "it is for object {id}, but its live entry {} isn't",
                live - 1
            ));
        }
        if o.name_len.load(Acquire) > 256 {
            find("its name is impossible".into());
        }
    }
}

/// Checks the chains of the live table. Returns the live entries that are in a chain.
fn check_chains(store: &Store, report: &mut Report) -> HashSet<u32> {
    let mut linked = HashSet::new();
    let mut ids: HashMap<u64, u32> = HashMap::new();
    for (i, bucket) in store.control().buckets().enumerate() {
        let mut find =
            |what: String| report.add(PART, format!("chain {i} of the live table: {what}"), ANEW);
        if !bucket.version.load(Acquire).is_multiple_of(2) && bucket.lock.is_free() {
            find("it is marked as changing, but nobody changes it".into());
        }
        let mut next = bucket.head.load(Acquire);
        while next != 0 {
            let index = next - 1;
            if index >= store.control().layout().limits.open {
                find(format!("it leads to entry {index}, which can't be"));
                break;
            }
            if !linked.insert(index) {
                find(format!(
                    "entry {index} is in it twice, or in another one too"
                ));
                break;
            }
            let live = store.objects().live(index);
            let id = live.id.load(Acquire);
            if !std::ptr::eq(store.control().bucket(id), bucket) {
                find(format!("entry {index} of object {id} doesn't belong there"));
            }
            if let Some(other) = ids.insert(id, index) {
                find(format!("object {id} has two entries, {other} and {index}"));
            }
            next = live.next.load(Acquire);
        }
    }
    linked
}

fn check_lives(store: &Store, uses: &Uses, linked: &HashSet<u32>, report: &mut Report) {
    for (i, &n) in uses.lives.iter().enumerate() {
        let live = store.objects().live(i as u32);
        let refs = live.refs.load(Acquire);
        let id = live.id.load(Acquire);
        let mut find =
            |what: String| report.add(PART, format!("live entry {i} (object {id}): {what}"), ANEW);
        if !linked.contains(&(i as u32)) {
            if n > 0 {
                find(format!("it has {n} users, but is in no chain"));
            }
            continue;
        }
        if refs != n {
            find(format!("it counts {refs} users, but has {n}"));
        }
        let flags = live.flags.load(Acquire);
        if flags & !ALL_FLAGS != 0 {
            find(format!("its flags are {flags:#x}"));
        }
        if !live.moved.load(Acquire).is_multiple_of(2) && live.lock.is_free() {
            find("it is marked as moving, but nobody moves it".into());
        }
        if flags & live_flag::LOADED != 0
            && (live.size.load(Acquire) > MAX_SIZE
                || live.extents.load(Acquire) as usize > MAX_EXTENTS)
        {
            find("its size or number of extents are impossible".into());
        }
    }
}

/// Checks the chains of file locks. Returns the entries for locks that are in a chain.
fn check_file_locks(store: &Store, report: &mut Report) -> HashSet<u32> {
    let mut find = |what: String| report.add(PART, what, ANEW);
    for (object, owner) in store.locks().stray_locks() {
        let whose = match owner.pid() {
            Some(pid) => format!("process {pid}"),
            None => "an open file description".into(),
        };
        find(format!(
            "object {} is locked by {whose} that is gone",
            object.0
        ));
    }
    store.locks().linked_locks().unwrap_or_else(|| {
        find("a chain of file locks runs in a circle, or out of the table".into());
        HashSet::new()
    })
}

/// Checks that every entry that isn't in use is in its list of free entries, exactly once.
fn check_lists(
    store: &Store,
    uses: &Uses,
    linked: &HashSet<u32>,
    locks: &HashSet<u32>,
    report: &mut Report,
) {
    let h = store.control().header();
    let lists: Lists<'_> = [
        (
            "live entries",
            h.free_live
                .walk(MAX_LIVE, |i| &store.control().live(i).next),
        ),
        (
            "open file descriptions",
            h.free_open
                .walk(MAX_OPEN, |i| &store.control().open_file(i).next),
        ),
        (
            "file locks",
            h.free_locks
                .walk(MAX_FILE_LOCKS, |i| &store.control().file_lock(i).next),
        ),
    ];
    for (n, (name, list)) in lists.into_iter().enumerate() {
        let mut find =
            |what: String| report.add(PART, format!("the list of free {name}: {what}"), ANEW);
        let Some(free) = list else {
            find("it runs in a circle, or out of the table".into());
            continue;
        };
        let (count, used): (usize, Box<dyn Fn(u32) -> bool>) = match n {
            0 => (uses.lives.len(), Box::new(|i| linked.contains(&i))),
            1 => (uses.opens.len(), Box::new(|i| uses.opens[i as usize] > 0)),
            _ => (
                h.free_locks.end(MAX_FILE_LOCKS) as usize,
                Box::new(|i| locks.contains(&i)),
            ),
        };
        let free: HashSet<u32> = free.into_iter().collect();
        let both = free
            .iter()
            .filter(|i| (**i as usize) < count && used(**i))
            .count();
        let lost = (0..count as u32)
            .filter(|i| !free.contains(i) && !used(*i))
            .count();
        if both > 0 {
            find(format!("{both} of them are in use"));
        }
        if lost > 0 {
            find(format!("{lost} that nobody uses are missing"));
        }
    }
}

/// Checks the shards' states and the table of directories' times against the records.
pub(crate) fn check_shards(store: &Store, highest: &[u64], view: &View<'_>, report: &mut Report) {
    for (i, s) in view.states.iter().enumerate() {
        let mut find =
            |what: String, remedy: &str| report.add(PART, format!("shard {i}: {what}"), remedy);
        if s.multi % 2 != 0 || s.removing % 2 != 0 {
            find(
                "it is marked as changing, but nobody changes it: who reads it waits".into(),
                ANEW,
            );
        }
        if s.last_seq != 0 && s.last_seq < highest[i] {
            find(
                format!(
                    "the next object would get number {}, but {} is taken",
                    s.last_seq + 1,
                    highest[i]
                ),
                ANEW,
            );
        }
    }
    for place in store.control().dir_times() {
        let id = place.id.load(Acquire);
        if id != 0 && !std::ptr::eq(store.control().dir_time(id), place) {
            report.add(
                PART,
                format!("the times of directory {id} are kept where they aren't found"),
                ANEW,
            );
        }
    }
}

/// The highest sequence number of each shard.
pub(crate) fn highest_numbers<'a>(store: &Store, ids: impl Iterator<Item = &'a u64>) -> Vec<u64> {
    let mut highest = vec![0; store.files.count()];
    // A part's number was given by its file's home.
    let own = ids.map(|id| ObjectId(*id)).filter(|id| !id.is_part());
    for id in own {
        let n = &mut highest[store.files.shard_of(id)];
        *n = id.seq().max(*n);
    }
    highest
}
