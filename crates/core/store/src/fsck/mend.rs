//! Writes the repairs that a check has made in its model, and rebuilds state that only memory had.

use super::files::Double;
use super::findings::{Finding, Report};
use super::{AT_A_TIME, check_trees, examine, others};
use crate::data::is_memory;
use crate::lmdb::without_seal;
use crate::record::{ChunkMap, JOURNAL, Key, changes, tail};
use crate::record_tree::{self, Meta};
use crate::records::{ChangeRecords, Need, ReadRecords, Records};
use crate::shards;
use crate::{Extent, ObjectId, PAGE, Store};
use forebay_runtime::atomics::Ordering::*;
use rustix::fd::OwnedFd;
use rustix::fs::FlockOperation;
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum number of rounds of repair and check. A repair can make further damage visible: for
/// example, in the entries of a directory that couldn't be reached before.
const ROUNDS: usize = 4;

/// Checks the store and repairs what can be repaired. No other process may use the store.
///
/// # Errors
/// EBUSY if a process does, or if another repair is in progress; the errors of reading and
/// writing the records.
pub fn mend(store: &Store) -> Result<Report> {
    let _locked = lock_out(store)?;
    store.mending.store(true, Release);
    let result = mend_locked(store);
    store.mending.store(false, Release);
    result
}

/// Keeps other processes from attaching as long as the returned file is open (see
/// `Store::attach`).
fn lock_out(store: &Store) -> Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(&store.control_path, flags, rustix::fs::Mode::empty())?;
    let until = Instant::now() + AT_A_TIME;
    // A process that attaches holds a lock of the file for a moment.
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() > until {
            return Err(Errno::BUSY);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(file)
}

fn mend_locked(store: &Store) -> Result<Report> {
    if others(store) > 0 {
        return Err(Errno::BUSY);
    }
    let mut changed = false;
    let result = (salvage(store, &mut changed))
        .and_then(|salvaged| mend_alone(store, salvaged, &mut changed));
    if !changed {
        return result;
    }
    // The journal must begin again from the changed records, even if the repair failed half
    // way. After a loss of power, the records would otherwise be those of before the repair.
    let restarted = store.durability().restart_journal();
    result.and_then(|report| restarted.map(|()| report))
}

/// Repairs all that the check finds. Sets `changed` before it changes anything.
fn mend_alone(store: &Store, salvaged: Vec<Finding>, changed: &mut bool) -> Result<Report> {
    if salvaged.iter().any(|f| !f.repaired) {
        return Ok(Report {
            findings: salvaged,
            left_out: Some("what the records say: their files are damaged".into()),
            ..Report::default()
        });
    }
    let (mut report, _) = examine(store)?;
    report.findings.splice(0..0, salvaged);
    drop_unreadable_journals(store, changed)?;
    // The examination below finds what these calls couldn't mend.
    let _ = store.recovery().settle();
    let _ = store.names().flush_dir_times();
    let (after, mut examined) = examine(store)?;
    merge(&mut report, after);
    for _ in 0..ROUNDS {
        let Some((changes, doubles)) = examined.take() else {
            break;
        };
        if report.findings.iter().all(|f| f.repaired) && report.more == 0 {
            break;
        }
        *changed = true;
        shards::write_changes(store, &changes)?;
        reset_control(store)?;
        store.recovery().rebuild_free_space()?;
        for m in store.media() {
            m.reserve_again()?;
        }
        for double in doubles {
            copy_double(store, double)?;
        }
        let (after, next) = examine(store)?;
        merge(&mut report, after);
        examined = Some(next.unwrap_or_default());
    }
    Ok(report)
}

/// Writes what can be read of damaged record files to new ones. Sets `changed` before one
/// replaces a damaged file.
fn salvage(store: &Store, changed: &mut bool) -> Result<Vec<Finding>> {
    let mut report = Report::default();
    let metas: Vec<_> = store.files.iter().map(|env| Meta::of(env.path())).collect();
    check_trees(store, &metas, &mut report)?;
    if report.is_clean() {
        return Ok(report.findings);
    }
    for ((shard, env), meta) in store.files.iter().enumerate().zip(&metas) {
        let ours = format!("shard {shard}, ");
        let damaged = report
            .findings
            .iter_mut()
            .filter(|f| f.what.starts_with(&ours));
        let damaged: Vec<&mut Finding> = damaged.collect();
        // No process may have the record file open, this one included.
        let (false, Ok(meta), false) = (damaged.is_empty(), meta, env.is_open()) else {
            continue;
        };
        let file = std::fs::File::open(env.path()).map_err(|_| Errno::IO)?;
        let mut records = Vec::new();
        let _ = record_tree::walk(&file, meta, &mut |key, value| {
            records.push((key.to_vec(), without_seal(value).to_vec()))
        });
        let new = env.path().with_extension("mended");
        let lock = |p: &Path| PathBuf::from(format!("{}-lock", p.display()));
        let _ = std::fs::remove_file(&new);
        shards::write_file(&new, env.map_size(), &records)?;
        let _ = std::fs::remove_file(lock(&new));
        *changed = true;
        let _ = std::fs::remove_file(lock(env.path()));
        std::fs::rename(&new, env.path()).map_err(|_| Errno::IO)?;
        store.control.shard(shard).room.reserved.store(0, Relaxed);
        for f in damaged {
            f.repaired = true;
            f.remedy = format!(
                "{} records could be read and are in a new file",
                records.len()
            );
        }
    }
    Ok(report.findings)
}

/// Removes journals of commits over several shards that can't be carried out. Sets `changed`
/// before it removes one.
fn drop_unreadable_journals(store: &Store, changed: &mut bool) -> Result<()> {
    let count = store.files.count();
    for shard in 0..count {
        let sound = match store.committed(shard)?.journal()? {
            Some(bytes) => changes(bytes)
                .all(|c| c.is_some_and(|(s, key, _)| s < count && (1..=511).contains(&key.len()))),
            None => true,
        };
        if !sound {
            *changed = true;
            shards::write_changes(store, &[(shard, JOURNAL.to_vec(), None)])?;
        }
    }
    Ok(())
}

/// Rebuilds the control region: the region's content is in the records now, or lost.
fn reset_control(store: &Store) -> Result<()> {
    if others(store) > 0 {
        return Err(Errno::BUSY);
    }
    let _ = store.recovery().detach();
    let _ = store.attachment.give_up_slot();
    let fd = rustix::fs::open(
        &store.control_path,
        rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let len = store.control.layout().file_len() as u64;
    rustix::fs::fallocate(&fd, hole, 0, len)?;
    store.control.reformat(store.files.count())
}

/// Gives a chunk whose pages another chunk has, too, new pages with the same bytes.
fn copy_double(store: &Store, (id, chunk): Double) -> Result<()> {
    let id = ObjectId(id);
    let key = Key::chunk(id, chunk);
    let records = store.records_of(id)?;
    let found = records.inode(id)?;
    let bytes = match (chunk, found) {
        (0, Some((inode, bytes))) if inode.tail == tail::EXTENTS => bytes,
        (0, _) => return Ok(()),
        _ => match records.attached(&key)? {
            Some(bytes) => bytes,
            None => return Ok(()),
        },
    };
    let old = ChunkMap::decode(bytes).ok_or(Errno::IO)?;
    let inode = found.map(|(inode, _)| inode);
    drop(records);
    let word = inode.map_or(0, |inode| inode.controls);
    let on_files = store.content().keeps_on_files(word);
    let mut new = ChunkMap::default();
    let mut buffer = vec![0u8; PAGE];
    let mut from = old
        .extents()
        .iter()
        .flat_map(|e| (0..e.pages()).map(move |p| (*e, p)));
    while let Some(first) = from.next() {
        let taken: Extent = store
            .media()
            .iter()
            .filter(|m| !on_files || !is_memory(m))
            .find_map(|m| m.alloc(old.pages() - new.pages()).ok())
            .ok_or(Errno::NOSPC)?;
        let mut source = Some(first);
        for page in 0..taken.pages() {
            let Some((e, p)) = source else { break };
            let medium = store.media().get(e.medium()).ok_or(Errno::IO)?;
            if medium.is_init(e, p) {
                // SAFETY: the buffer has a page, and both pages are inside their extents.
                unsafe {
                    medium.read(e, p * PAGE, buffer.as_mut_ptr(), PAGE)?;
                    store.media()[taken.medium()].write(
                        taken,
                        page * PAGE,
                        buffer.as_ptr(),
                        PAGE,
                    )?;
                }
            }
            source = if page + 1 < taken.pages() {
                from.next()
            } else {
                None
            };
        }
        if !new.push(taken) {
            return Err(Errno::NOSPC);
        }
    }
    let (map, set) = (new.encode(), store.names().object_set(id));
    // An inode takes up to some 200 bytes more than its tail.
    store.transact(set, Need::Bytes(map.len() + 256), |w| match inode {
        Some(inode) if chunk == 0 => w.set_inode(id, &inode, &map),
        _ => w.attach(id, &key, &map),
    })
}

/// Marks findings that don't occur any more as repaired, and adds new ones.
fn merge(report: &mut Report, after: Report) {
    for f in report
        .findings
        .iter_mut()
        .filter(|f| f.part != super::TREES)
    {
        f.repaired = !after.findings.iter().any(|g| g.what == f.what);
    }
    let known = |f: &Finding| report.findings.iter().any(|g| g.what == f.what);
    let news: Vec<_> = after.findings.into_iter().filter(|f| !known(f)).collect();
    report.findings.extend(news);
    report.more = after.more;
}
