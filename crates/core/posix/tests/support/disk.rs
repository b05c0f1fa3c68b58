//! Simulates a disk that loses power: determines what could be left of a directory's files.
//!
//! The kernel writes back pages at any time, in any order; only data for which a sync call has
//! returned are certainly durable. A [`Disk`] is notified of every sync (by
//! [`forebay_media::observe_syncs`]) and records what the sync made durable. Between syncs it reads
//! the files now and then, to have states in which pages may have been written back. From these
//! states, [`Disk::torn_copy`] makes one that a loss of power could leave. Each page is as at the
//! last sync, as at a later reading, or as it is now. The names, too, are as at the last sync of
//! the directory, as at a later reading, or as they are now.

use super::Random;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const PAGE: usize = 4096;

/// A file's bytes: its length and the pages that aren't zero.
#[derive(Clone, Default)]
struct Image {
    len: u64,
    pages: HashMap<u32, Arc<[u8]>>,
}

impl Image {
    /// Reads `file`; shares those pages with `like` that are equal.
    fn read(file: &File, like: &Image) -> Image {
        let len = file.metadata().unwrap().len();
        let mut image = Image {
            len,
            pages: HashMap::new(),
        };
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while at < len {
            let n = file.read_at(&mut buffer, at).unwrap();
            for (i, bytes) in buffer[..n].chunks(PAGE).enumerate() {
                if bytes.iter().all(|&b| b == 0) {
                    continue;
                }
                let number = (at / PAGE as u64) as u32 + i as u32;
                let page = match like.pages.get(&number) {
                    Some(page) if page[..] == *bytes => page.clone(),
                    _ => bytes.into(),
                };
                image.pages.insert(number, page);
            }
            at += n as u64;
        }
        image
    }
}

struct Node {
    file: File,
    durable: Image,
    looks: Vec<Image>,
}

type Names = Vec<(String, u64)>;

struct State {
    nodes: HashMap<u64, Node>,
    durable_names: Names,
    names: Vec<Names>,
    random: Random,
    /// Whether syncs fail.
    fails: bool,
    /// Number of syncs that take effect before a torn copy is made, and the copy's path.
    trap: Option<(u32, PathBuf)>,
}

/// A directory whose syncs are observed.
pub struct Disk {
    dir: PathBuf,
    state: Mutex<State>,
}

static DISKS: Mutex<Vec<Arc<Disk>>> = Mutex::new(Vec::new());

fn on_sync(fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
    let disks = DISKS.lock().unwrap().clone();
    for disk in disks {
        if path.starts_with(&disk.dir) {
            disk.synced(fd)?;
        }
    }
    Ok(())
}

impl Disk {
    /// Observes `dir`. All that is in the directory counts as durable now.
    pub fn new(dir: &Path, seed: u64) -> Arc<Disk> {
        forebay_media::observe_syncs(on_sync);
        let disk = Arc::new(Disk {
            dir: dir.to_owned(),
            state: Mutex::new(State {
                nodes: HashMap::new(),
                durable_names: Vec::new(),
                names: Vec::new(),
                random: Random(seed | 1),
                trap: None,
                fails: false,
            }),
        });
        {
            let mut s = disk.state.lock().unwrap();
            let names = disk.list(&mut s);
            for node in s.nodes.values_mut() {
                node.durable = Image::read(&node.file, &node.durable);
            }
            s.durable_names = names;
        }
        DISKS.lock().unwrap().push(disk.clone());
        disk
    }

    /// Ends the observation.
    pub fn close(self: &Arc<Disk>) {
        DISKS.lock().unwrap().retain(|d| !Arc::ptr_eq(d, self));
    }

    /// The present names. Adds files that weren't seen before to the state.
    fn list(&self, s: &mut State) -> Names {
        let mut names = Names::new();
        for e in std::fs::read_dir(&self.dir).unwrap().flatten() {
            let Ok(file) = File::open(e.path()) else {
                continue;
            };
            let ino = file.metadata().unwrap().ino();
            names.push((e.file_name().to_string_lossy().into_owned(), ino));
            s.nodes.entry(ino).or_insert_with(|| Node {
                durable: Image {
                    len: file.metadata().unwrap().len(),
                    ..Image::default()
                },
                file,
                looks: Vec::new(),
            });
        }
        names
    }

    fn synced(&self, fd: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let mut s = self.state.lock().unwrap();
        if s.fails {
            return Err(rustix::io::Errno::IO);
        }
        if let Some((left, to)) = s.trap.take() {
            if left == 0 {
                self.copy_torn(&mut s, &to);
            } else {
                s.trap = Some((left - 1, to));
            }
        }
        let names = self.list(&mut s);
        let stat = rustix::fs::fstat(fd).unwrap();
        match s.nodes.get_mut(&stat.st_ino) {
            Some(node) => {
                node.durable = Image::read(&node.file, &node.durable);
                node.looks.clear();
                s.names.push(names);
            }
            None => {
                s.durable_names = names;
                s.names.clear();
            }
        }
        Ok(())
    }

    /// Makes syncs fail from now on, or succeed again.
    pub fn fail(&self, fails: bool) {
        self.state.lock().unwrap().fails = fails;
    }

    /// Reads all files: their present pages may have been written back.
    pub fn look(&self) {
        let mut s = self.state.lock().unwrap();
        let names = self.list(&mut s);
        s.names.push(names);
        for node in s.nodes.values_mut().filter(|n| n.looks.len() < 3) {
            let image = Image::read(&node.file, &node.durable);
            node.looks.push(image);
        }
    }

    /// Makes a torn copy in `to` after `left` more syncs, just before the next sync takes effect.
    pub fn trap(&self, left: u32, to: &Path) {
        self.state.lock().unwrap().trap = Some((left, to.to_owned()));
    }

    /// Removes the trap. Returns whether no copy was made.
    pub fn untrap(&self) -> bool {
        self.state.lock().unwrap().trap.take().is_some()
    }

    /// Makes the new directory `to`, in a state that a loss of power now could leave.
    pub fn torn_copy(&self, to: &Path) {
        let mut s = self.state.lock().unwrap();
        self.copy_torn(&mut s, to);
    }

    fn copy_torn(&self, s: &mut State, to: &Path) {
        std::fs::create_dir(to).unwrap();
        let now = self.list(s);
        let mut choices = vec![s.durable_names.clone()];
        choices.append(&mut s.names.clone());
        choices.push(now);
        let names = choices.swap_remove(s.random.below(choices.len()));
        // Share of the pages that have been written back, in eighths.
        let share = [0, 0, 1, 4, 7, 8][s.random.below(6)];
        for (name, ino) in names {
            let node = &s.nodes[&ino];
            let now = Image::read(&node.file, &node.durable);
            let mut versions: Vec<&Image> = node.looks.iter().collect();
            versions.push(&now);
            let out = File::create(to.join(&name)).unwrap();
            let changed = versions.iter().any(|v| v.len != node.durable.len);
            let len = if changed && s.random.below(8) < share {
                versions[s.random.below(versions.len())].len
            } else {
                node.durable.len
            };
            out.set_len(len).unwrap();
            let mut numbers: Vec<u32> = node.durable.pages.keys().copied().collect();
            versions.iter().for_each(|v| numbers.extend(v.pages.keys()));
            numbers.sort_unstable();
            numbers.dedup();
            for number in numbers {
                let version = if s.random.below(8) < share {
                    versions[s.random.below(versions.len())]
                } else {
                    &node.durable
                };
                let at = u64::from(number) * PAGE as u64;
                if let Some(page) = version.pages.get(&number)
                    && at < len
                {
                    let n = page.len().min((len - at) as usize);
                    out.write_all_at(&page[..n], at).unwrap();
                }
            }
        }
    }
}
