//! Checking a whole store: [`Store::check`] compares records, live table and maps of free
//! pages with each other and tells what doesn't fit. It changes nothing. Only a store that
//! nobody is changing meanwhile can be told to be whole; of an open file, the live table
//! is the truth.

use crate::control::live_flag as flag;
use crate::record::{ChunkMap, Entry, Inode, JOURNAL, parse_key, tail};
use crate::{ObjectId, Store};
use forebay_media::CELL_PAGES;
use rustix::io::Result;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering::*;

/// After so many findings no more are listed.
const MAX_FINDINGS: usize = 1000;

/// What the scan has gathered.
#[derive(Default)]
struct Gathered {
    findings: Vec<String>,
    inodes: HashMap<u64, (Inode, Vec<u8>)>,
    /// Parent, name, object.
    entries: Vec<(u64, Vec<u8>, Entry)>,
    /// Pages in records of chunks 1, 2, ..., by object.
    chunk_pages: HashMap<u64, u64>,
    orphans: HashSet<u64>,
    with_attributes: HashSet<u64>,
}

impl Gathered {
    fn find(&mut self, what: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(what);
        }
    }
}

impl Store {
    /// Everything in the store that contradicts itself, a sentence each; empty if it is
    /// whole.
    ///
    /// # Errors
    /// EIO and the like: the store couldn't be read.
    pub fn check(&self) -> Result<Vec<String>> {
        let mut g = Gathered::default();
        for shard in 0..self.shard_count() {
            self.gather(shard, &mut g)?;
        }
        check_names(&mut g);
        self.check_data(&mut g)?;
        self.check_space(&mut g)?;
        Ok(g.findings)
    }

    fn gather(&self, shard: usize, g: &mut Gathered) -> Result<()> {
        self.envs[shard].snapshot()?.scan(b"", |key, value| {
            if key == JOURNAL {
                g.find(format!(
                    "shard {shard}: a commit over several shards isn't complete"
                ));
                return true;
            }
            let Some((tag, id, rest)) = parse_key(key) else {
                g.find(format!("shard {shard}: unknown key {key:?}"));
                return true;
            };
            let home = if tag == b'D' {
                self.shard_of_entry(id, rest)
            } else {
                self.shard_of(id)
            };
            if home != shard {
                g.find(format!(
                    "shard {shard}: the key {key:?} belongs to shard {home}"
                ));
            }
            match tag {
                b'I' => match Inode::decode(value) {
                    Some((inode, tail)) => _ = g.inodes.insert(id.0, (inode, tail.to_vec())),
                    None => g.find(format!("object {}: its record can't be read", id.0)),
                },
                b'D' => match Entry::decode(value) {
                    Some(e) => g.entries.push((id.0, rest.to_vec(), e)),
                    None => g.find(format!("entry {} in {}: can't be read", name(rest), id.0)),
                },
                b'X' => match ChunkMap::decode(value) {
                    Some(map) if rest.len() == 8 => {
                        *g.chunk_pages.entry(id.0).or_default() += map.pages() as u64;
                    }
                    _ => g.find(format!(
                        "object {}: the extents of {rest:?} can't be read",
                        id.0
                    )),
                },
                b'O' => _ = g.orphans.insert(id.0),
                b'A' => _ = g.with_attributes.insert(id.0),
                _ => g.find(format!("shard {shard}: unknown key {key:?}")),
            }
            true
        })
    }

    /// Sizes and page counts, with what the live table knows better.
    fn check_data(&self, g: &mut Gathered) -> Result<()> {
        let mut found = Vec::new();
        let live = self.open_objects()?;
        for (&id, (inode, bytes)) in &g.inodes {
            let chunks = g.chunk_pages.get(&id).copied().unwrap_or(0);
            if !inode.is_file() {
                if inode.is_link() && inode.size != bytes.len() as u64 {
                    found.push(format!("link {id}: its size isn't that of its target"));
                }
                continue;
            }
            let (size, pages, first, inline) = match live.get(&id) {
                Some(&i) => {
                    let l = self.live(i);
                    let inline = l.flags.load(Acquire) & flag::INLINE != 0;
                    let first = if inline {
                        0
                    } else {
                        self.first_chunk(l).pages() as u64
                    };
                    (l.size.load(Acquire), l.pages.load(Acquire), first, inline)
                }
                None => {
                    let map = if inode.tail == tail::EXTENTS {
                        ChunkMap::decode(bytes)
                    } else {
                        None
                    };
                    if inode.tail == tail::EXTENTS && map.is_none() {
                        found.push(format!("object {id}: its extents can't be read"));
                    }
                    let first = map.map_or(0, |m| m.pages() as u64);
                    (inode.size, inode.pages, first, inode.tail == tail::DATA)
                }
            };
            if inline && size != bytes.len() as u64 {
                found.push(format!(
                    "object {id}: size {size}, but {} bytes in its record",
                    bytes.len()
                ));
            }
            if pages != first + chunks {
                found.push(format!(
                    "object {id}: {pages} pages, but extents of {}",
                    first + chunks
                ));
            }
        }
        found.into_iter().for_each(|f| g.find(f));
        Ok(())
    }

    /// No page twice, and the maps of free pages agree.
    fn check_space(&self, g: &mut Gathered) -> Result<()> {
        let mut used: Vec<Vec<u64>> = self
            .media()
            .iter()
            .map(|m| vec![0; m.cells().count() * CELL_PAGES / 64])
            .collect();
        self.each_extent(|id, e| {
            for page in e.start()..e.start() + e.pages() as u64 {
                let word = used
                    .get_mut(e.medium())
                    .and_then(|u| u.get_mut(page as usize / 64));
                let Some(word) = word else {
                    g.find(format!(
                        "object {}: extent {e:?} lies outside its medium",
                        id.0
                    ));
                    return;
                };
                if *word >> (page % 64) & 1 == 1 {
                    g.find(format!(
                        "object {}: page {page} of {e:?} is used twice",
                        id.0
                    ));
                }
                *word |= 1 << (page % 64);
            }
        })?;
        for (i, (m, used)) in self.media().iter().zip(&used).enumerate() {
            let count =
                |bits: &mut dyn Iterator<Item = u64>| bits.map(|b| u64::from(b.count_ones())).sum();
            let marked = m.cells().used_bits();
            let lost: u64 = count(&mut marked.iter().zip(used).map(|(m, u)| m & !u));
            let unmarked: u64 = count(&mut marked.iter().zip(used).map(|(m, u)| u & !m));
            let total: u64 = count(&mut marked.iter().copied());
            if lost > 0 {
                g.find(format!("medium {i}: {lost} page(s) in use by nobody"));
            }
            if unmarked > 0 {
                g.find(format!(
                    "medium {i}: {unmarked} page(s) of objects marked as free"
                ));
            }
            if total != m.cells().used_pages() {
                let says = m.cells().used_pages();
                g.find(format!(
                    "medium {i}: {total} page(s) in use, but its counter says {says}"
                ));
            }
        }
        Ok(())
    }
}

/// Entries, objects, and the links between them.
fn check_names(g: &mut Gathered) {
    let mut found = Vec::new();
    let mut names: HashMap<u64, u32> = HashMap::new();
    let mut subdirs: HashMap<u64, u32> = HashMap::new();
    for (parent, name_bytes, e) in &g.entries {
        let what = || format!("entry {} in {parent}", name(name_bytes));
        *names.entry(e.id.0).or_default() += 1;
        match g.inodes.get(parent) {
            Some((dir, _)) if dir.is_dir() => {}
            _ => found.push(format!("{}: the directory doesn't exist", what())),
        }
        let Some((inode, tail_bytes)) = g.inodes.get(&e.id.0) else {
            found.push(format!("{}: object {} doesn't exist", what(), e.id.0));
            continue;
        };
        if inode.kind() != e.kind {
            found.push(format!(
                "{}: kind {:o}, but its object is {:o}",
                what(),
                e.kind,
                inode.kind()
            ));
        }
        if inode.is_dir() {
            *subdirs.entry(*parent).or_default() += 1;
            if inode.parent != *parent || tail_bytes != name_bytes {
                found.push(format!("{}: the directory says it is elsewhere", what()));
            }
        }
    }
    for (&id, (inode, _)) in &g.inodes {
        let named = names.get(&id).copied().unwrap_or(0);
        let is_root = id == ObjectId::ROOT.0;
        let (expected, places) = match inode.is_dir() {
            true => (
                2 + subdirs.get(&id).copied().unwrap_or(0),
                u32::from(!is_root),
            ),
            false => (named, named),
        };
        if inode.nlink != expected {
            found.push(format!(
                "object {id}: link count {}, but {expected} link(s)",
                inode.nlink
            ));
        }
        if named != places {
            found.push(format!("directory {id}: {named} name(s)"));
        }
        let orphan = g.orphans.contains(&id);
        if !inode.is_dir() && (named == 0) != orphan {
            let but = if orphan {
                "noted as nameless"
            } else {
                "not noted as nameless"
            };
            found.push(format!("object {id}: {named} name(s), but {but}"));
        }
        if g.with_attributes.contains(&id) && !inode.has_attributes {
            found.push(format!(
                "object {id}: has attributes that it doesn't know of"
            ));
        }
    }
    let owners = g
        .chunk_pages
        .keys()
        .chain(&g.orphans)
        .chain(&g.with_attributes);
    for id in owners.filter(|id| !g.inodes.contains_key(id)) {
        found.push(format!("object {id} doesn't exist, but has records"));
    }
    if !g
        .inodes
        .get(&ObjectId::ROOT.0)
        .is_some_and(|(i, _)| i.is_dir())
    {
        found.push("there is no root directory".into());
    }
    found.into_iter().for_each(|f| g.find(f));
}

fn name(bytes: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(bytes))
}
