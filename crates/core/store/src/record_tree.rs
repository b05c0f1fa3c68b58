//! Reads the pages of a record file without LMDB, and checks that LMDB may be trusted with them.
//! LMDB follows page numbers and offsets as it finds them; on a damaged file it may crash or loop.
//!
//! A file consists of two meta pages (the newer one is valid) and two trees: the main one with the
//! records, and one that lists the free pages. Every page must be in use exactly once, or free. All
//! numbers are little-endian.

use crate::lmdb::is_parked;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PAGE: usize = 4096;
const HEADER: usize = 16;
const MAGIC: u32 = 0xBEEF_C0DE;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
const OVERFLOW: u16 = 4;
const BIG: u16 = 1;
const NO_PAGE: u64 = u64::MAX;
/// Maximum depth of a tree that fits into a file: each level has at least twice the pages of the
/// level above.
const MAX_DEPTH: usize = 40;
const MAX_FINDINGS: usize = 50;

/// The description of a tree in a meta page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tree {
    depth: u16,
    branches: u64,
    leaves: u64,
    overflows: u64,
    entries: u64,
    root: u64,
}

/// The newer meta page of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    free: Tree,
    main: Tree,
    last: u64,
    transaction: u64,
    /// Whether the older meta page is sound, too: LMDB needs both.
    both: bool,
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().expect("2 bytes"))
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("8 bytes"))
}

fn tree_at(b: &[u8], at: usize) -> Tree {
    Tree {
        depth: u16_at(b, at + 6),
        branches: u64_at(b, at + 8),
        leaves: u64_at(b, at + 16),
        overflows: u64_at(b, at + 24),
        entries: u64_at(b, at + 32),
        root: u64_at(b, at + 40),
    }
}

impl Meta {
    /// Reads the newer meta page of the record file `path`.
    ///
    /// # Errors
    /// A sentence if the file can't be read.
    pub fn of(path: &Path) -> Result<Meta, String> {
        let file = File::open(path).map_err(|e| format!("it can't be opened: {e}"))?;
        Meta::read(&file)
    }

    /// Reads both meta pages and takes the newer one that is sound.
    ///
    /// # Errors
    /// A sentence if neither is valid.
    pub fn read(file: &File) -> Result<Meta, String> {
        let mut newest: Option<Meta> = None;
        for n in 0..2 {
            let mut page = [0; PAGE];
            file.read_exact_at(&mut page, (n * PAGE) as u64)
                .map_err(|e| format!("its first pages can't be read: {e}"))?;
            let b = &page[HEADER..];
            if u32_at(b, 0) != MAGIC || u32_at(b, 4) != 1 || u32_at(b, 24) != PAGE as u32 {
                continue;
            }
            let meta = Meta {
                free: tree_at(b, 24),
                main: tree_at(b, 72),
                last: u64_at(b, 120),
                transaction: u64_at(b, 128),
                both: newest.is_some(),
            };
            newest = Some(match newest {
                Some(m) if m.transaction > meta.transaction => Meta { both: true, ..m },
                _ => meta,
            });
        }
        newest.ok_or_else(|| "neither of its two meta pages is one of LMDB's".into())
    }
}

/// The state of a walk over a record file.
struct Walk<'a> {
    file: &'a File,
    last: u64,
    /// A bit per page: whether the walk has met it.
    met: Vec<u64>,
    found: Vec<String>,
    counted: Tree,
    /// Lower bound of the next leaf's first key, from the branch pages above.
    least: Option<Vec<u8>>,
    each: &'a mut dyn FnMut(&[u8], &[u8]),
}

/// The findings of a walk over a record file.
pub(crate) struct Walked {
    /// The faults, a sentence each.
    pub found: Vec<String>,
    /// Number of pages that are neither in use nor free: lost space, no damage.
    pub lost: u64,
}

/// Walks all pages and reports damaged ones. `each` gets the records of the main tree, as far as
/// they can be reached.
pub(crate) fn walk(file: &File, meta: &Meta, each: &mut dyn FnMut(&[u8], &[u8])) -> Walked {
    let len = file.metadata().map_or(0, |m| m.len());
    if meta.last < 1 || meta.last >= len / PAGE as u64 {
        let last = format!(
            "its last page is to be {}, but it has {}",
            meta.last,
            len / PAGE as u64
        );
        return Walked {
            found: vec![last],
            lost: 0,
        };
    }
    let mut walk = Walk {
        file,
        last: meta.last,
        met: vec![0; meta.last as usize / 64 + 1],
        found: Vec::new(),
        counted: EMPTY,
        least: None,
        each,
    };
    walk.met[0] |= 3;
    if !meta.both {
        walk.find("one of its two meta pages is damaged, the one in use perhaps".into());
    }
    walk.tree("records", &meta.main, false);
    let unused = std::cell::RefCell::new(Vec::new());
    let mut free = Walk {
        file,
        last: meta.last,
        met: std::mem::take(&mut walk.met),
        found: std::mem::take(&mut walk.found),
        counted: EMPTY,
        least: None,
        each: &mut |_, value| {
            let pages = value.chunks_exact(8).skip(1).map(|c| u64_at(c, 0));
            unused.borrow_mut().extend(pages);
        },
    };
    free.tree("free pages", &meta.free, true);
    for page in unused.take() {
        free.meet(page, 1, "the list of free pages");
    }
    let lost = (2..=meta.last).filter(|p| free.met[*p as usize / 64] >> (p % 64) & 1 == 0);
    Walked {
        lost: lost.count() as u64,
        found: free.found,
    }
}

const EMPTY: Tree = Tree {
    depth: 0,
    branches: 0,
    leaves: 0,
    overflows: 0,
    entries: 0,
    root: NO_PAGE,
};

/// Whether key `a` comes before `b`. `numbers`: the keys are numbers, as in the tree of free pages.
fn is_below(a: &[u8], b: &[u8], numbers: bool) -> bool {
    if numbers && a.len() == 8 && b.len() == 8 {
        u64_at(a, 0) < u64_at(b, 0)
    } else {
        a < b
    }
}

impl Walk<'_> {
    fn find(&mut self, what: String) {
        if self.found.len() < MAX_FINDINGS {
            self.found.push(what);
        }
    }

    /// Records that `whom` uses pages. False if they lie outside the file, or are already in use.
    fn meet(&mut self, first: u64, pages: u64, whom: &str) -> bool {
        for page in first..first.saturating_add(pages) {
            if page < 2 || page > self.last {
                self.find(format!(
                    "{whom} names page {page}, which isn't one of 2 to {}",
                    self.last
                ));
                return false;
            }
            let word = &mut self.met[page as usize / 64];
            if *word >> (page % 64) & 1 == 1 {
                self.find(format!(
                    "page {page} is used twice, the second time by {whom}"
                ));
                return false;
            }
            *word |= 1 << (page % 64);
        }
        true
    }

    fn read(&mut self, page: u64) -> Option<[u8; PAGE]> {
        let mut bytes = [0; PAGE];
        match self.file.read_exact_at(&mut bytes, page * PAGE as u64) {
            Ok(()) => Some(bytes),
            Err(e) => {
                self.find(format!("page {page} can't be read: {e}"));
                None
            }
        }
    }

    fn tree(&mut self, name: &str, tree: &Tree, numbers: bool) {
        self.counted = EMPTY;
        if tree.root != NO_PAGE {
            let mut last = None;
            self.page(name, tree.root, 1, tree.depth.into(), numbers, &mut last);
        }
        let counted = Tree {
            depth: tree.depth,
            root: tree.root,
            ..self.counted
        };
        if counted != *tree && self.found.is_empty() {
            self.find(format!(
                "the tree of {name} has {} entries on {}+{}+{} pages, but the meta page says {} on {}+{}+{}",
                counted.entries, counted.branches, counted.leaves, counted.overflows,
                tree.entries, tree.branches, tree.leaves, tree.overflows
            ));
        }
    }

    /// Walks the subtree at `page`. `last`: the last key that the walk met before this subtree.
    fn page(
        &mut self,
        name: &str,
        page: u64,
        level: usize,
        depth: usize,
        numbers: bool,
        last: &mut Option<Vec<u8>>,
    ) {
        if !self.meet(page, 1, &format!("the tree of {name}")) {
            return;
        }
        let Some(b) = self.read(page) else { return };
        let flags = u16_at(&b, 10) & !0x10;
        let (lower, upper) = (u16_at(&b, 12) as usize, u16_at(&b, 14) as usize);
        let kind = if level == depth { LEAF } else { BRANCH };
        if u64_at(&b, 0) != page || flags != kind || level > MAX_DEPTH {
            self.find(format!(
                "page {page} isn't the one that the tree of {name} has there"
            ));
            return;
        }
        if lower < HEADER || lower > upper || upper > PAGE || lower % 2 != 0 {
            self.find(format!(
                "page {page} has impossible bounds ({lower}, {upper})"
            ));
            return;
        }
        let nodes = (lower - HEADER) / 2;
        if kind == BRANCH {
            self.counted.branches += 1;
        } else {
            self.counted.leaves += 1;
        }
        for n in 0..nodes {
            let at = u16_at(&b, HEADER + 2 * n) as usize;
            if at < upper || at + 8 > PAGE {
                self.find(format!("page {page}: node {n} lies outside of it"));
                continue;
            }
            let (low, node_flags) = (u32_at(&b, at), u16_at(&b, at + 4));
            let key_len = u16_at(&b, at + 6) as usize;
            let Some(key) = b.get(at + 8..at + 8 + key_len) else {
                self.find(format!(
                    "page {page}: the key of node {n} doesn't end on it"
                ));
                continue;
            };
            if kind == BRANCH {
                let child = u64::from(low) | u64::from(node_flags) << 32;
                // The first node's key has no meaning: the first node leads to all keys of the page
                // below the second node's key.
                if n > 0 {
                    if last.as_ref().is_some_and(|l| !is_below(l, key, numbers)) {
                        self.find(format!(
                            "page {page}: node {n} leads away from keys before it"
                        ));
                    }
                    self.least = Some(key.to_vec());
                }
                self.page(name, child, level + 1, depth, numbers, last);
                continue;
            }
            self.counted.entries += 1;
            if let Some(least) = self.least.take()
                && is_below(key, &least, numbers)
            {
                self.find(format!(
                    "page {page}: the key of node {n} can't be found from above"
                ));
            }
            if last.as_ref().is_some_and(|l| !is_below(l, key, numbers)) {
                self.find(format!(
                    "page {page}: the key of node {n} isn't above the one before"
                ));
            }
            *last = Some(key.to_vec());
            if node_flags & !BIG != 0 {
                self.find(format!(
                    "page {page}: node {n} is of no kind that is used ({node_flags:#x})"
                ));
                continue;
            }
            let (len, at) = (low as usize, at + 8 + key_len);
            if node_flags & BIG == 0 {
                match b.get(at..at + len) {
                    Some(value) => (self.each)(key, value),
                    None => self.find(format!(
                        "page {page}: the value of node {n} doesn't end on it"
                    )),
                }
                continue;
            }
            match b.get(at..at + 8) {
                Some(first) => self.big(name, key, u64_at(first, 0), len),
                None => self.find(format!("page {page}: node {n} doesn't end on it")),
            }
        }
    }

    /// Checks a value that lies on separate pages, and passes it to `each`.
    fn big(&mut self, name: &str, key: &[u8], first: u64, len: usize) {
        if first < 2 || first > self.last {
            self.find(format!("the tree of {name} names page {first} for a value"));
            return;
        }
        let Some(b) = self.read(first) else { return };
        let pages = u64::from(u32_at(&b, 12));
        if u64_at(&b, 0) != first
            || u16_at(&b, 10) & !0x10 != OVERFLOW
            || pages < (HEADER + len).div_ceil(PAGE) as u64
        {
            self.find(format!(
                "page {first} doesn't hold the value that it should"
            ));
            return;
        }
        if !self.meet(first, pages, "a large value") {
            return;
        }
        self.counted.overflows += pages;
        if is_parked(key) {
            // The content of parked pages doesn't matter.
            return;
        }
        let mut value = vec![0; len];
        let at = first * PAGE as u64 + HEADER as u64;
        match self.file.read_exact_at(&mut value, at) {
            Ok(()) => (self.each)(key, &value),
            Err(e) => self.find(format!("page {first} can't be read: {e}")),
        }
    }
}
