//! Writing what a check has mended in its model, and making anew what only memory knew.

use super::files::Double;
use super::findings::{Finding, Report};
use crate::data::is_memory;
use crate::fsck::AT_A_TIME;
use crate::lmdb::without_seal;
use crate::lmdb::{Env, OnFull, Room};
use crate::process::Critical;
use crate::record::{Change, ChunkMap, Inode, JOURNAL, Key, changes, tail};
use crate::record_tree::{self, Meta};
use crate::shards::Need;
use crate::views::Checker;
use crate::{Extent, ObjectId, PAGE};
use forebay_media::atomics::Ordering::*;
use rustix::fd::OwnedFd;
use rustix::fs::FlockOperation;
use rustix::io::{Errno, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Changes of one transaction.
const BATCH: usize = 500;
/// A repair can bring to light what was hidden: a directory that is found again has names.
const ROUNDS: usize = 4;

impl Checker<'_> {
    /// Checks the store and mends what can be mended. Nobody else may use it.
    ///
    /// # Errors
    /// EBUSY if somebody does, or if another repair is under way; what reading and writing the
    /// records says.
    pub fn mend(&self) -> Result<Report> {
        let _locked = self.lock_out()?;
        self.mending.store(true, Release);
        let result = self.mend_locked();
        self.mending.store(false, Release);
        result
    }

    /// Keeps others from attaching as long as the file that it returns is open (see
    /// `Store::attach`).
    fn lock_out(&self) -> Result<OwnedFd> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.control_path, flags, rustix::fs::Mode::empty())?;
        let until = Instant::now() + AT_A_TIME;
        // Who attaches has it locked for a moment.
        while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() > until {
                return Err(Errno::BUSY);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(file)
    }

    fn mend_locked(&self) -> Result<Report> {
        if self.others() > 0 {
            return Err(Errno::BUSY);
        }
        let salvaged = self.salvage()?;
        // The journal must follow, whatever comes of it.
        let result = self.mend_alone(salvaged);
        if result.as_ref().is_ok_and(|r| !r.findings.is_empty()) {
            self.durability().restart_journal()?;
        }
        result
    }

    fn mend_alone(&self, salvaged: Vec<Finding>) -> Result<Report> {
        if salvaged.iter().any(|f| !f.repaired) {
            return Ok(Report {
                findings: salvaged,
                left_out: Some("what the records say: their files are damaged".into()),
                ..Report::default()
            });
        }
        let (mut report, _) = self.examine()?;
        report.findings.splice(0..0, salvaged);
        self.drop_unreadable_journals()?;
        // What fails here is found again below.
        let _ = self.recovery().settle();
        let _ = self.names().flush_dir_times();
        let (after, mut examined) = self.examine()?;
        merge(&mut report, after);
        for _ in 0..ROUNDS {
            let Some((changes, doubles)) = examined.take() else {
                break;
            };
            if report.findings.iter().all(|f| f.repaired) && report.more == 0 {
                break;
            }
            self.apply(&changes)?;
            self.reset_control()?;
            self.recovery().rebuild_free_space()?;
            for m in self.media() {
                m.reserve_again()?;
            }
            for double in doubles {
                self.copy_double(double)?;
            }
            let (after, next) = self.examine()?;
            merge(&mut report, after);
            examined = Some(next.unwrap_or_default());
        }
        Ok(report)
    }

    /// Writes what can be read of damaged record files to new ones.
    fn salvage(&self) -> Result<Vec<Finding>> {
        let mut report = Report::default();
        let metas: Vec<_> = self.envs.iter().map(|env| Meta::of(env.path())).collect();
        self.check_trees(&metas, &mut report)?;
        if report.is_clean() {
            return Ok(report.findings);
        }
        for ((shard, env), meta) in self.envs.iter().enumerate().zip(&metas) {
            let ours = format!("shard {shard}, ");
            let damaged = report
                .findings
                .iter_mut()
                .filter(|f| f.what.starts_with(&ours));
            let damaged: Vec<&mut Finding> = damaged.collect();
            // Nobody can have it open: we neither.
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
            {
                let fresh = Env::new(new.clone(), env.map_size());
                let room = Room::default();
                for batch in records.chunks(BATCH) {
                    let bytes = batch.iter().map(|(k, v)| k.len() + v.len() + 64).sum();
                    let mut txn = fresh.write(&room, bytes, OnFull::Fails)?;
                    for (key, value) in batch {
                        txn.put(key, value)?;
                    }
                    txn.commit()?;
                }
                if records.is_empty() {
                    fresh.write(&room, 0, OnFull::Fails)?.commit()?;
                }
            }
            let _ = std::fs::remove_file(lock(&new));
            let _ = std::fs::remove_file(lock(env.path()));
            std::fs::rename(&new, env.path()).map_err(|_| Errno::IO)?;
            self.control.shard(shard).room.reserved.store(0, Relaxed);
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

    /// Removes journals that can't be carried out.
    fn drop_unreadable_journals(&self) -> Result<()> {
        let count = self.names().shard_count();
        for (shard, env) in self.envs.iter().enumerate() {
            let sound = match env.snapshot()?.get(JOURNAL)? {
                Some(bytes) => changes(bytes).all(|c| {
                    c.is_some_and(|(s, key, _)| s < count && (1..=511).contains(&key.len()))
                }),
                None => true,
            };
            if !sound {
                self.apply(&[(shard, JOURNAL.to_vec(), None)])?;
            }
        }
        Ok(())
    }

    /// Writes changes, shard by shard.
    fn apply(&self, changes: &[Change]) -> Result<()> {
        let _critical = Critical::enter();
        for (shard, env) in self.envs.iter().enumerate() {
            let own: Vec<&Change> = changes.iter().filter(|c| c.0 == shard).collect();
            for batch in own.chunks(BATCH) {
                let bytes = batch
                    .iter()
                    .filter_map(|c| c.2.as_ref())
                    .map(Vec::len)
                    .sum();
                let on_full = match bytes {
                    0 => OnFull::Removes,
                    _ => OnFull::Fails,
                };
                let mut txn = env.write(&self.control.shard(shard).room, bytes, on_full)?;
                for (_, key, value) in batch {
                    match value {
                        Some(value) => txn.put(key, value)?,
                        None => _ = txn.del(key)?,
                    }
                }
                txn.commit()?;
            }
        }
        Ok(())
    }

    /// Makes the control region anew: all it held is in the records by now, or lost.
    fn reset_control(&self) -> Result<()> {
        if self.others() > 0 {
            return Err(Errno::BUSY);
        }
        let _ = self.recovery().detach();
        self.after_detach();
        let fd = rustix::fs::open(
            &self.control_path,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        let hole = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let len = self.control.layout().file_len() as u64;
        rustix::fs::fallocate(&fd, hole, 0, len)?;
        self.control.reformat(self.names().shard_count())
    }

    /// Gives a chunk, whose pages another file has too, pages of its own with the same bytes.
    fn copy_double(&self, (id, chunk): Double) -> Result<()> {
        let id = ObjectId(id);
        let shard = self.shard_of(id);
        let key = match chunk {
            0 => Key::inode(id),
            n => Key::chunk(id, n),
        };
        let record = self.snapshot(shard)?.get(&key)?.map(<[u8]>::to_vec);
        let Some(record) = record else { return Ok(()) };
        let (inode, bytes) = match chunk {
            0 => match Inode::decode(&record) {
                Some((inode, bytes)) if inode.tail == tail::EXTENTS => (Some(inode), bytes),
                _ => return Ok(()),
            },
            _ => (None, &record[..]),
        };
        let old = ChunkMap::decode(bytes).ok_or(Errno::IO)?;
        let word = match self.snapshot(shard)?.get(&Key::inode(id))? {
            Some(record) => Inode::decode(record).ok_or(Errno::IO)?.0.controls,
            None => 0,
        };
        let on_files = self.content().keeps_on_files(word);
        let mut new = ChunkMap::default();
        let mut buffer = vec![0u8; PAGE];
        let mut from = old
            .extents()
            .iter()
            .flat_map(|e| (0..e.pages()).map(move |p| (*e, p)));
        while let Some(first) = from.next() {
            let taken: Extent = self
                .media()
                .iter()
                .filter(|m| !on_files || !is_memory(m))
                .find_map(|m| m.alloc(old.pages() - new.pages()).ok())
                .ok_or(Errno::NOSPC)?;
            let mut source = Some(first);
            for page in 0..taken.pages() {
                let Some((e, p)) = source else { break };
                let medium = self.media().get(e.medium()).ok_or(Errno::IO)?;
                if medium.is_init(e, p) {
                    // SAFETY: the buffer has a page, and both pages are inside their extents.
                    unsafe {
                        medium.read(e, p * PAGE, buffer.as_mut_ptr(), PAGE)?;
                        self.media()[taken.medium()].write(
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
        let value = match inode {
            Some(inode) => inode.encode(&new.encode()).to_vec(),
            None => new.encode().to_vec(),
        };
        self.write(self.set(&[shard]), Need::Bytes(value.len()), |w| {
            w.put(shard, &key, &value)
        })
    }
}

/// What isn't found any more is repaired; what is new is added.
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
