//! Checks that files fit their extents, and extents the media: sizes, page counts, no page outside
//! its medium or in two files, and the maps of free pages.

use super::findings::Report;
use super::model::{Model, Object};
use crate::control_region::live_flag as flag;
use crate::data::is_memory;
use crate::record::{ChunkMap, INLINE_MAX, Key, tail};
use crate::recount::{LiveState, View};
use crate::{MAX_SIZE, ObjectId, Store};

/// An object and one of its chunks. The chunk's extents name pages that another chunk has.
pub(crate) type Double = (u64, u64);

/// Reports a flaw of an object, and what is done about it.
type Find<'a> = &'a mut dyn FnMut(String, String);

/// Checks an object's type, the kind of its tail, and the size of a link.
fn check_kind(o: &mut Object, find: Find<'_>) {
    let known = matches!(
        o.inode.kind(),
        libc::S_IFREG
            | libc::S_IFDIR
            | libc::S_IFLNK
            | libc::S_IFIFO
            | libc::S_IFSOCK
            | libc::S_IFCHR
            | libc::S_IFBLK
    );
    if !known {
        find(
            format!("type {:o} is none", o.inode.kind()),
            "it becomes a file".into(),
        );
        o.inode.mode = libc::S_IFREG | o.inode.mode & 0o7777;
        o.changed = true;
    }
    let right = match o.inode.kind() {
        libc::S_IFREG => matches!(o.inode.tail, tail::NONE | tail::DATA | tail::EXTENTS),
        libc::S_IFDIR => o.inode.tail == tail::NAME,
        libc::S_IFLNK => o.inode.tail == tail::TARGET,
        _ => o.inode.tail == tail::NONE,
    };
    if !right {
        find(
            format!(
                "its record holds a tail of kind {}, which doesn't belong there",
                o.inode.tail
            ),
            "it is taken as the right one, for a file as nothing".into(),
        );
        o.inode.tail = match o.inode.kind() {
            libc::S_IFDIR => tail::NAME,
            libc::S_IFLNK => tail::TARGET,
            _ => {
                o.tail.clear();
                tail::NONE
            }
        };
        o.changed = true;
    }
    if o.inode.is_link() && o.inode.size != o.tail.len() as u64 {
        find(
            format!(
                "size {} of a link whose target has {} bytes",
                o.inode.size,
                o.tail.len()
            ),
            format!("it becomes {}", o.tail.len()),
        );
        o.inode.size = o.tail.len() as u64;
        o.changed = true;
    }
}

/// Checks the bytes or extents in a file's record. Returns the number of pages of these extents.
fn check_content(o: &mut Object, find: Find<'_>) -> usize {
    let first = match o.inode.tail {
        tail::EXTENTS => ChunkMap::decode(&o.tail).map(|map| map.pages()),
        _ => Some(0),
    };
    if first.is_none() {
        find(
            "the extents of its first MiB can't be read".into(),
            "they are removed; that part reads as zero".into(),
        );
        o.tail.clear();
        o.changed = true;
    }
    if o.inode.tail == tail::DATA && o.tail.len() > INLINE_MAX {
        find(
            format!(
                "{} bytes in its record, more than {INLINE_MAX}",
                o.tail.len()
            ),
            "they are cut".into(),
        );
        o.tail.truncate(INLINE_MAX);
        o.changed = true;
    }
    first.unwrap_or(0)
}

/// Checks a file's size and its count of pages. `first`: the pages of the extents in its record.
fn check_size(o: &mut Object, live: Option<&LiveState>, first: usize, find: Find<'_>) {
    let later: usize = o.chunks.values().map(ChunkMap::pages).sum();
    let (size, pages, inline, covered) = match live {
        Some(l) => {
            let inline = l.flags & flag::INLINE != 0;
            let first = if inline { 0 } else { l.first.pages() };
            (l.size, l.pages, inline, first + later)
        }
        None => (
            o.inode.size,
            o.inode.pages,
            o.inode.tail == tail::DATA,
            first + later,
        ),
    };
    if size > MAX_SIZE {
        find(
            format!("size {size} is impossible"),
            "it becomes what its extents cover".into(),
        );
        o.inode.size = covered as u64 * crate::PAGE as u64;
        o.changed = true;
    } else if inline && size != o.tail.len() as u64 {
        find(
            format!("size {size}, but {} bytes in its record", o.tail.len()),
            format!("the size becomes {}", o.tail.len()),
        );
        o.inode.size = o.tail.len() as u64;
        o.changed = true;
    }
    if pages != covered as u64 {
        find(
            format!("it counts {pages} pages, but its extents have {covered}"),
            format!("it counts {covered}"),
        );
        o.inode.pages = covered as u64;
        o.changed = true;
    }
}

/// Checks sizes and tails, and repairs them in the model.
pub(crate) fn check_files(m: &mut Model, view: &View<'_>, report: &mut Report) {
    for (&id, o) in &mut m.objects {
        let mut find = |what: String, remedy: String| {
            report.add("files", format!("object {id}: {what}"), remedy)
        };
        check_kind(o, &mut find);
        if o.inode.is_file() {
            let first = check_content(o, &mut find);
            check_size(o, view.live.get(&id), first, &mut find);
        }
    }
}

/// Checks that all extents are inside their medium, and no page is used twice. Returns the
/// pages in use, per medium, and the chunks whose pages another chunk has, too.
pub(crate) fn check_extents(
    store: &Store,
    m: &mut Model,
    view: &View<'_>,
    report: &mut Report,
) -> (Vec<Vec<u64>>, Vec<Double>) {
    let mut used: Vec<Vec<u64>> = view.used.iter().map(|u| vec![0; u.len()]).collect();
    let mut doubles = Vec::new();
    for (&id, o) in &mut m.objects {
        if !o.inode.is_file() {
            continue;
        }
        let live = view.live.get(&id);
        let first = match live {
            Some(l) if l.flags & flag::INLINE != 0 => None,
            Some(l) => Some(l.first.clone()),
            None if o.inode.tail == tail::EXTENTS => ChunkMap::decode(&o.tail),
            None => None,
        };
        let maps = first.map(|m| (0, m)).into_iter();
        let maps: Vec<(u64, ChunkMap)> = maps
            .chain(o.chunks.iter().map(|(n, m)| (*n, m.clone())))
            .collect();
        for (chunk, map) in maps {
            let (mut good, mut twice) = (0, 0);
            for e in map.extents() {
                let (first, end) = (e.start(), e.start() + e.pages() as u64);
                let inside = used
                    .get(e.medium())
                    .is_some_and(|u| end <= u.len() as u64 * 64)
                    && first / 256 == (end - 1) / 256;
                if !inside {
                    break;
                }
                let bits = &mut used[e.medium()];
                for page in first..end {
                    let word = &mut bits[page as usize / 64];
                    twice += usize::from(*word >> (page % 64) & 1 == 1);
                    *word |= 1 << (page % 64);
                }
                good += e.pages();
            }
            if good < map.pages() {
                report.add(
                    "space",
                    format!("object {id}: an extent of its MiB {chunk} lies outside its medium"),
                    "it and those after it are removed; that part of the file reads as zero",
                );
                let mut kept = map.clone();
                kept.truncate(good, |_| ());
                o.inode.pages = o.inode.pages.saturating_sub((map.pages() - good) as u64);
                o.changed = true;
                if chunk == 0 {
                    o.tail = kept.encode().to_vec();
                } else {
                    let shard = store.files.shard_of(ObjectId(id));
                    let key = crate::record::Key::chunk(ObjectId(id), chunk).to_vec();
                    let value = (kept.pages() > 0).then(|| kept.encode().to_vec());
                    m.changes.push((shard, key, value));
                    o.chunks.insert(chunk, kept);
                }
            }
            if twice > 0 {
                report.add(
                    "space",
                    format!("object {id}: {twice} page(s) of its MiB {chunk} belong to another file, too"),
                    "it gets a copy of its own; compare both files with what they should hold");
                doubles.push((id, chunk));
            }
        }
    }
    // Extents of removed files are in use, too: they are about to be freed.
    for e in m.left_chunks.iter().flat_map(ChunkMap::extents) {
        let pages = e.start()..e.start() + e.pages() as u64;
        if let Some(bits) = used.get_mut(e.medium()) {
            for page in pages {
                if let Some(word) = bits.get_mut(page as usize / 64) {
                    *word |= 1 << (page % 64);
                }
            }
        }
    }
    (used, doubles)
}

/// Checks that bytes which must lie on `files` media do, or that the file is recorded to be
/// moved there.
pub(crate) fn check_places(store: &Store, m: &mut Model, view: &View<'_>, report: &mut Report) {
    for (&id, o) in &m.objects {
        if !o.inode.is_file()
            || !store.content().keeps_on_files(o.inode.controls)
            || m.landed.contains(&id)
        {
            continue;
        }
        let (inline, first) = match view.live.get(&id) {
            Some(l) => (l.flags & flag::INLINE != 0, Some(l.first.clone())),
            None if o.inode.tail == tail::EXTENTS => (false, ChunkMap::decode(&o.tail)),
            None => (o.inode.tail == tail::DATA, None),
        };
        let maps = first.iter().filter(|_| !inline).chain(o.chunks.values());
        let pages = maps
            .flat_map(ChunkMap::extents)
            .filter(|e| store.media().get(e.medium()).is_some_and(is_memory))
            .map(|e| e.pages())
            .sum::<usize>();
        if inline || pages > 0 {
            let what = match pages {
                0 => "its content lies in its record".into(),
                n => format!("{n} page(s) of it lie in memory"),
            };
            let what = format!("object {id}: persistence = \"node\", but {what}");
            let remedy = "the keeper moves that to files when nobody has it open";
            report.add("space", what, remedy);
            let id = ObjectId(id);
            let key = Key::landed(id).to_vec();
            m.changes
                .push((store.files.shard_of(id), key, Some(Vec::new())));
        }
    }
}

/// Checks that the maps of the media agree with the extents.
pub(crate) fn check_maps(store: &Store, used: &[Vec<u64>], view: &View<'_>, report: &mut Report) {
    for (i, (medium, named)) in store.media().iter().zip(used).enumerate() {
        let marked = &view.used[i];
        let mut find =
            |what: String, remedy: &str| report.add("space", format!("medium {i}: {what}"), remedy);
        let count = |each: &dyn Fn(u64, u64) -> u64| -> u64 {
            marked
                .iter()
                .zip(named)
                .map(|(m, n)| u64::from(each(*m, *n).count_ones()))
                .sum()
        };
        let lost = count(&|marked, named| marked & !named);
        let missing = count(&|marked, named| named & !marked);
        if lost > 0 {
            find(
                format!("{lost} page(s) in use by nobody"),
                "they become free",
            );
        }
        if missing > 0 {
            find(
                format!("{missing} page(s) of files are marked as free"),
                "they are marked as in use",
            );
        }
        let (total, says) = (count(&|marked, _| marked), view.counters[i].0);
        if total != says {
            find(
                format!("{total} page(s) in use, but its counter says {says}"),
                "they are counted anew",
            );
        }
        let full = view.counters[i].1;
        if full > 0 {
            find(
                format!("{full} cell(s) with free pages are marked as full"),
                "the marks are removed",
            );
        }
        let cells = medium.cells();
        let reserved = view.counters[i].2;
        let highest = marked
            .iter()
            .rposition(|w| *w != 0)
            .map_or(0, |w| w / 4 + 1);
        if reserved > cells.count() || highest > reserved {
            find(
                format!(
                    "room is said to be reserved for {reserved} cells of {}, but cell {highest} is in use",
                    cells.count()
                ),
                "it is reserved anew",
            );
        } else if let Some((recorded, there)) = lacks_room(medium) {
            find(
                format!(
                    "room is said to be reserved for {recorded} MiB, but its segment has {} only",
                    there >> 20
                ),
                "it is reserved anew",
            );
        }
    }
}

/// Returns the number of cells that the medium's map records as reserved, and the length of its
/// segment in bytes, if the segment is shorter than these cells. Looks several times, since the
/// keeper may be changing the reservation: one look that finds enough bytes is enough.
fn lacks_room(medium: &forebay_media::Medium) -> Option<(usize, u64)> {
    const LOOKS: usize = 5;
    let look = |_| {
        let recorded = medium.cells().backed();
        let there = medium.allocated().unwrap_or(u64::MAX);
        let recorded = recorded.min(medium.cells().backed());
        (there < recorded as u64 * (256 * crate::PAGE as u64)).then_some((recorded, there))
    };
    (0..LOOKS).map(look).collect::<Option<Vec<_>>>()?.pop()
}
