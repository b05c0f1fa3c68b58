//! The table of mappings of one process: which files of the pool lie where in its memory.
//!
//! The table lies in the process's area of the control region. So the process that reaps a dead one
//! knows which files the dead process had mapped. Each mapping has a *place* ([`MapRef`]). A place
//! is found in constant or logarithmic time, however many places are in use:
//! - by its address, in a search tree (a treap, whose priorities are hashes of the places);
//! - by its file, in a chain: a process that makes a file shorter marks the places of that chain;
//! - by its mark, in two levels of bits: one for each place, one for each word of the first level.
//!
//! Only the process itself changes tree and chains, one thread at a time (under a lock of the
//! library). Other processes may walk chains at any time: `version` is odd while chains change. If
//! a walker sees `version` change, or sees it odd for long (the owner was stopped, or killed), it
//! examines all places instead. Any process may set marks at any time: first the mark in the place
//! ([`MapRef::cut`]), then the bits.

use forebay_runtime::atomics::{AtomicU32, AtomicU64, Ordering::*, spin_loop};

/// Number of chains of a table. The first chain is for copies of files on other nodes.
const CHAINS: usize = if cfg!(loom) { 4 } else { 4096 };
/// Number of times that another process tries to walk a chain while chains change, before it
/// examines all places.
const TRIES: usize = 16;

/// Flags of a mapping.
pub mod map_flag {
    /// Writes through the mapping reach the file.
    pub const SHARED: u32 = 1;
    /// The mapping is shared and has been writable: the file's times change when the mapping is
    /// removed.
    pub const CHANGES: u32 = 2;
    /// Some of the mapping's pages may be missing.
    pub const PARTIAL: u32 = 4;
    /// The mapping's descriptor isn't open for writing.
    pub const READ_ONLY: u32 = 8;
    /// The mapping shows this node's copy of a file whose bytes lie on other nodes.
    pub const COPY: u32 = 16;
    /// The mapping keeps its pages when the file is truncated: no process waits for their removal.
    pub const STAYS: u32 = 32;
}

/// A mapping of a file of the pool in a process.
#[repr(C)]
pub struct MapRef {
    pub address: AtomicU64,
    /// Length of the mapping in bytes; 0: the place only keeps the file open.
    pub len: AtomicU64,
    /// Offset in the file at which the mapping begins. Bytes.
    pub offset: AtomicU64,
    /// The mark: the mapping's pages beyond a file size have to be removed. The value is `u64::MAX`
    /// minus that size; 0: no mark.
    pub cut: AtomicU64,
    /// Open file description + 1 that keeps the file open; 0: the place is unused.
    pub open: AtomicU32,
    /// See [`map_flag`].
    pub flags: AtomicU32,
    /// The chain that contains the place, and links (place + 1): see [`MapTable`].
    pub(crate) chain: AtomicU32,
    pub(crate) next: AtomicU32,
    pub(crate) previous: AtomicU32,
    pub(crate) lower: AtomicU32,
    pub(crate) higher: AtomicU32,
    pub pad: AtomicU32,
}

/// The fixed part of a table.
#[repr(C)]
pub(crate) struct Heads {
    /// Root of the tree; 0: it is empty. All links are place + 1.
    root: AtomicU32,
    /// First free place among those that were in use before (place + 1).
    free: AtomicU32,
    /// Odd while chains change.
    version: AtomicU32,
}

/// The first place of each chain.
#[repr(C)]
pub(crate) struct Chains([AtomicU32; CHAINS]);

/// The table of mappings in an area: see [`crate::control_region::Control::maps_of`].
#[derive(Clone, Copy)]
pub struct MapTable<'a> {
    pub(crate) heads: &'a Heads,
    pub(crate) chains: &'a Chains,
    /// Whether chains and marks have memory. Chains and marks without memory are empty, and must
    /// not be read.
    pub(crate) has_memory: bool,
    pub(crate) places: &'a [MapRef],
    /// A bit for each place that has to lose pages.
    pub(crate) marked: &'a [AtomicU64],
    /// A bit for each word of `marked`.
    pub(crate) marked_words: &'a [AtomicU64],
}

/// The chain of the places that map the file with live entry `live`, or a copy of it.
pub(crate) fn chain_of(live: u32, copy: bool) -> u32 {
    if copy {
        0
    } else {
        1 + live % (CHAINS as u32 - 1)
    }
}

/// Priority of a place in the tree: a hash of its link, independent of the order of places.
fn priority(link: u32) -> u32 {
    let mut n = link.wrapping_mul(0x9e37_79b9);
    n ^= n >> 15;
    n = n.wrapping_mul(0x85eb_ca6b);
    n ^ n >> 13
}

impl<'a> MapTable<'a> {
    /// All places.
    pub fn places(&self) -> &'a [MapRef] {
        self.places
    }

    /// The places below `end`; all others have never been in use.
    pub fn up_to(&self, end: usize) -> &'a [MapRef] {
        &self.places[..end.min(self.places.len())]
    }

    fn at(&self, link: u32) -> &'a MapRef {
        &self.places[link as usize - 1]
    }

    /// The link that leads to `place`; None if the place belongs to another table.
    fn link_of(&self, place: &MapRef) -> Option<u32> {
        let from = self.places.as_ptr() as usize;
        let n = (std::ptr::from_ref(place) as usize).wrapping_sub(from) / size_of::<MapRef>();
        (n < self.places.len()).then_some(n as u32 + 1)
    }

    // ---- free places ----

    /// Takes a place that isn't in use. `end`: one more than the highest place that was ever in
    /// use.
    pub(crate) fn take(&self, end: &AtomicU32) -> Option<&'a MapRef> {
        let free = self.heads.free.load(Relaxed);
        if free != 0 {
            let place = self.at(free);
            assert!(place.open.load(Relaxed) == 0, "a free place maps no file");
            self.heads.free.store(place.next.load(Relaxed), Relaxed);
            return Some(place);
        }
        let fresh = end.load(Relaxed);
        let place = self.places.get(fresh as usize)?;
        end.store(fresh + 1, Release);
        Some(place)
    }

    /// Frees a place that is in neither tree nor chain.
    pub(crate) fn give_back(&self, place: &MapRef) {
        assert!(
            place.open.load(Relaxed) == 0,
            "a place that is freed maps no file"
        );
        if let Some(link) = self.link_of(place) {
            debug_assert!(
                self.heads.free.load(Relaxed) != link,
                "a place is freed once"
            );
            place.next.store(self.heads.free.load(Relaxed), Relaxed);
            self.heads.free.store(link, Relaxed);
        }
    }

    /// Empties the table, for the next process that gets the area.
    pub(crate) fn clear(&self) {
        for head in [&self.heads.root, &self.heads.free] {
            head.store(0, Relaxed);
        }
        // The process may have been killed while it changed a chain: then `version` is odd.
        let version = self.heads.version.load(Relaxed);
        let even = version.next_multiple_of(2);
        self.heads.version.store(even, SeqCst);
        for head in self.chains.0.iter().filter(|_| self.has_memory) {
            head.store(0, Relaxed);
        }
    }

    // ---- chains ----

    fn changing(&self, f: impl FnOnce()) {
        let version = self.heads.version.fetch_add(1, SeqCst);
        assert!(
            version.is_multiple_of(2),
            "chains of mappings are changed by one thread"
        );
        f();
        self.heads.version.fetch_add(1, SeqCst);
    }

    /// Puts `place` into its chain.
    pub(crate) fn chain(&self, place: &MapRef) {
        let Some(link) = self.link_of(place) else {
            return;
        };
        let head = &self.chains.0[place.chain.load(Relaxed) as usize % CHAINS];
        self.changing(|| {
            let next = head.load(Relaxed);
            place.next.store(next, SeqCst);
            place.previous.store(0, Relaxed);
            if next != 0 {
                self.at(next).previous.store(link, Relaxed);
            }
            head.store(link, SeqCst);
        });
    }

    /// Removes `place` from its chain.
    pub(crate) fn unchain(&self, place: &MapRef) {
        let (next, previous) = (place.next.load(Relaxed), place.previous.load(Relaxed));
        self.changing(|| {
            match previous {
                0 => &self.chains.0[place.chain.load(Relaxed) as usize % CHAINS],
                link => &self.at(link).next,
            }
            .store(next, SeqCst);
            if next != 0 {
                self.at(next).previous.store(previous, Relaxed);
            }
        });
    }

    /// The places in the chain of the file with live entry `live`: those of the file, and maybe of
    /// other files. Only for the process that owns the table, while the table doesn't change.
    pub fn of_file(&self, live: u32, copy: bool) -> impl Iterator<Item = &'a MapRef> + use<'a> {
        let table = *self;
        let link = |link: u32| (link != 0).then_some(link);
        let first = if self.has_memory {
            self.chains.0[chain_of(live, copy) as usize].load(Relaxed)
        } else {
            0
        };
        std::iter::successors(link(first), move |&l| link(table.at(l).next.load(Relaxed)))
            .map(move |link| table.at(link))
    }

    /// The places that map copies of files on other nodes, as [`MapTable::of_file`].
    pub fn copies(&self) -> impl Iterator<Item = &'a MapRef> + use<'a> {
        self.of_file(0, true)
    }

    /// Calls `f` for all places that may map the file with live entry `live`, or a copy of it. Some
    /// places may occur more than once. Any process may call this at any time. `end`: as for
    /// [`MapTable::take`].
    pub(crate) fn each_of_file(&self, live: u32, end: usize, mut f: impl FnMut(u32, &'a MapRef)) {
        for _ in 0..TRIES {
            let version = self.heads.version.load(SeqCst);
            let mut steps = 0;
            for chain in [chain_of(live, false), 0] {
                let mut link = self.chains.0[chain as usize].load(SeqCst);
                while link != 0 && link as usize <= self.places.len() && steps <= end {
                    f(link, self.at(link));
                    link = self.at(link).next.load(SeqCst);
                    steps += 1;
                }
            }
            let same = self.heads.version.load(SeqCst) == version;
            if same && version.is_multiple_of(2) && steps <= end {
                return;
            }
            spin_loop();
        }
        for (link, place) in (1..).zip(self.up_to(end)) {
            f(link, place);
        }
    }

    // ---- marks ----

    /// Marks the place at `link`, with the value `cut` for [`MapRef::cut`].
    pub(crate) fn mark(&self, link: u32, cut: u64) {
        let n = link as usize - 1;
        self.places[n].cut.fetch_max(cut, SeqCst);
        self.marked[n / 64].fetch_or(1 << (n % 64), SeqCst);
        self.marked_words[n / 64 / 64].fetch_or(1 << (n / 64 % 64), SeqCst);
    }

    /// Marks `place` as `from` is marked, since `place` has some of the pages of `from`.
    pub fn inherit_mark(&self, place: &MapRef, from: &MapRef) {
        let cut = from.cut.load(SeqCst);
        if let Some(link) = self.link_of(place).filter(|_| cut != 0) {
            self.mark(link, cut);
        }
    }

    /// Clears all marks. Returns the places that have to lose pages, with their marks.
    pub fn take_marks(&self) -> Vec<(&'a MapRef, u64)> {
        let mut found = Vec::new();
        let words = self.marked_words.iter().filter(|_| self.has_memory);
        for (n, words) in words.enumerate() {
            // Most of these words are zero, and needn't be written.
            if words.load(SeqCst) == 0 {
                continue;
            }
            for w in bits(words.swap(0, SeqCst)).map(|bit| n * 64 + bit) {
                for bit in bits(self.marked[w].swap(0, SeqCst)) {
                    let Some(place) = self.places.get(w * 64 + bit) else {
                        continue;
                    };
                    match place.cut.swap(0, SeqCst) {
                        0 => {}
                        cut => found.push((place, cut)),
                    }
                }
            }
        }
        found
    }

    // ---- the tree ----

    fn key(&self, link: u32) -> (u64, u32) {
        (self.at(link).address.load(Relaxed), link)
    }

    /// Puts `place` into the tree. From now on, the address of this mapping must not change.
    pub fn insert(&self, place: &MapRef) {
        let Some(new) = self.link_of(place) else {
            return;
        };
        let key = self.key(new);
        let mut link = &self.heads.root;
        loop {
            let here = link.load(Relaxed);
            if here == 0 || priority(here) < priority(new) {
                break;
            }
            link = self.side(here, self.key(here) < key);
        }
        let (mut rest, mut lower, mut higher) = (link.load(Relaxed), &place.lower, &place.higher);
        link.store(new, Relaxed);
        // The subtree that was at `link` is split at the address of `place`.
        while rest != 0 {
            let below = self.key(rest) < key;
            let next = self.side(rest, below);
            if below {
                lower = keep(lower, rest, next)
            } else {
                higher = keep(higher, rest, next)
            }
            rest = next.load(Relaxed);
        }
        lower.store(0, Relaxed);
        higher.store(0, Relaxed);
    }

    /// Removes `place` from the tree, if the tree contains it.
    pub fn remove(&self, place: &MapRef) {
        let Some(old) = self.link_of(place) else {
            return;
        };
        let key = self.key(old);
        let mut link = &self.heads.root;
        loop {
            match link.load(Relaxed) {
                0 => return,
                here if here == old => break,
                here => link = self.side(here, self.key(here) < key),
            }
        }
        let (mut a, mut b) = (place.lower.load(Relaxed), place.higher.load(Relaxed));
        while a != 0 && b != 0 {
            let (top, next) = if priority(a) > priority(b) {
                (&mut a, true)
            } else {
                (&mut b, false)
            };
            link.store(*top, Relaxed);
            link = self.side(*top, next);
            *top = link.load(Relaxed);
        }
        link.store(a | b, Relaxed);
    }

    /// The link at `link` to the subtree of higher addresses (`above`), or of lower ones.
    fn side(&self, link: u32, above: bool) -> &'a AtomicU32 {
        if above {
            &self.at(link).higher
        } else {
            &self.at(link).lower
        }
    }

    /// The mapping with the lowest address that ends above `address`.
    pub fn first_above(&self, address: u64) -> Option<&'a MapRef> {
        let (mut link, mut below, mut above) = (self.heads.root.load(Relaxed), None, None);
        while link != 0 {
            let place = self.at(link);
            let is_above = place.address.load(Relaxed) > address;
            if is_above {
                above = Some(place)
            } else {
                below = Some(place)
            }
            link = self.side(link, !is_above).load(Relaxed);
        }
        let end = |p: &MapRef| p.address.load(Relaxed).saturating_add(p.len.load(Relaxed));
        below.filter(|p| end(p) > address).or(above)
    }

    /// Copies the tree of `from` into this table. This table has copies of the places of `from`
    /// already. The process of this table doesn't use the table yet.
    pub(crate) fn copy_tree(&self, from: &MapTable<'_>, end: usize) {
        for (to, from) in self.up_to(end).iter().zip(from.places) {
            to.lower.store(from.lower.load(Relaxed), Relaxed);
            to.higher.store(from.higher.load(Relaxed), Relaxed);
        }
        let root = from.heads.root.load(Relaxed);
        self.heads.root.store(root, Relaxed);
    }
}

/// Sets `link` to `to`. Returns the link that is to be set next.
fn keep<'a>(link: &AtomicU32, to: u32, next: &'a AtomicU32) -> &'a AtomicU32 {
    link.store(to, Relaxed);
    next
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(all(test, not(loom)))]
mod tests;
