//! Pages under mappings are never freed, and not kept longer than needed.

use super::*;
use crate::repair::tests::{CAPACITY, make, store, write};

/// Makes a new file and opens it. Returns its open file description and its live entry.
fn file(s: &Store, name: &str, size: usize) -> (u32, u32) {
    let id = make(s, name);
    let live = s.objects().live_acquire_here(id).unwrap().0;
    let root = ObjectId::ROOT;
    let open = s.objects().open_create(
        &crate::NewOpen::new(id, libc::S_IFREG, 0).named(root, name.as_bytes()),
        Some(live),
    );
    if size > 0 {
        write(s, live, 0, &vec![7; size]);
    }
    (open.unwrap(), live)
}

fn read(s: &Store, index: u32, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    // SAFETY: pointer and length are those of the vector.
    let n = unsafe { s.content().read_here(index, at, bytes.as_mut_ptr(), len) }.unwrap();
    bytes.truncate(n);
    bytes
}

/// Writes to the pages of a mapping, through the segment's file.
fn store_at(s: &Store, piece: &MapPiece, offset: usize, bytes: &[u8]) {
    let at = piece.segment_offset + offset as u64;
    let medium = s.media()[piece.medium].file().unwrap();
    assert_eq!(rustix::io::pwrite(medium, bytes, at), Ok(bytes.len()));
}

fn used(s: &Store) -> u64 {
    s.media()[0].usage().used
}

const SIZE: usize = 3 << 20;

#[test]
fn truncation_leaves_pages_to_mappings_and_the_last_close_frees_them() {
    let s = store("mapped-cut");
    let (open, live) = file(&s, "f", SIZE);
    let place = s.mappings().map_claim(open, map_flag::SHARED).unwrap();
    let pieces = s.mappings().map_here(live, 0, SIZE, 0).unwrap();
    assert_eq!(pieces.iter().map(|p| p.len).sum::<usize>(), SIZE);
    let before = used(&s);
    s.truncate(live, 5000).unwrap();
    assert_eq!(used(&s), before, "no page is another file's");
    // A stale mapping writes behind the new end of the file: no process ever reads these bytes.
    for p in &pieces {
        store_at(&s, p, p.len - 100, &[9; 100]);
    }
    store_at(&s, &pieces[0], 6000, &[9; 10]);
    s.truncate(live, SIZE as u64).unwrap();
    assert!(read(&s, live, 5000, SIZE).iter().all(|&b| b == 0));
    s.truncate(live, 5000).unwrap();
    s.mappings().map_release(place).unwrap();
    s.objects().open_release(open).unwrap();
    assert_eq!(used(&s), 2 * PAGE as u64);
    assert_eq!(crate::fsck::check(&s), Ok(vec![]));
}

/// Another thread closes the file that is being duplicated, sent or mapped.
#[test]
fn a_description_that_has_ended_gets_no_reference() {
    let s = store("mapped-ended");
    let (open, _) = file(&s, "f", 0);
    let objects = s.objects();
    assert_eq!(objects.fd_set(9, Some(open)), Ok(None));
    let (slot, holder, place, parked) = objects.fd_park(9).unwrap();
    assert_eq!(parked, open);
    assert_eq!(objects.fd_set(9, None), Ok(Some(open)));
    assert!(objects.fd_unpark(slot, holder, place, open, true));
    objects.open_release(open).unwrap();
    assert_eq!(objects.fd_park(9), Err(Errno::BADF));
    assert_eq!(objects.fd_retained(9), None);
    objects.open_release(open).unwrap();
    assert_eq!(objects.open_retain(open), Err(Errno::BADF));
    let ended = s.mappings().map_claim(open, map_flag::SHARED);
    assert_eq!(ended.map(|_| ()), Err(Errno::BADF));
    assert_eq!(objects.open_file(open).refs.load(Relaxed), 0);
    // The next file gets the same entry.
    let (again, _) = file(&s, "g", 0);
    assert_eq!(again, open);
    let place = s.mappings().map_claim(again, map_flag::SHARED).unwrap();
    s.mappings().map_release(place).unwrap();
    objects.open_release(again).unwrap();
    assert_eq!(crate::fsck::check(&s), Ok(vec![]));
}

#[test]
fn the_last_close_clears_and_frees_what_mappings_left() {
    let s = store("mapped-close");
    let (open, live) = file(&s, "f", SIZE);
    let id = s.content().live_id(live);
    let place = s.mappings().map_claim(open, map_flag::SHARED).unwrap();
    let pieces = s.mappings().map_here(live, 0, SIZE, 0).unwrap();
    s.truncate(live, 5000).unwrap();
    store_at(&s, &pieces[0], 5001, &[9; 1000]);
    // The record still contains pages that are to be freed.
    s.content().flush(live, false).unwrap();
    s.objects().open_release(open).unwrap();
    assert_ne!(
        s.objects().live(live).refs.load(Relaxed),
        0,
        "mapped is open"
    );
    s.mappings().map_release(place).unwrap();
    assert_eq!(used(&s), 2 * PAGE as u64);
    let live = s.objects().live_acquire_here(id).unwrap().0;
    s.truncate(live, 8192).unwrap();
    assert!(read(&s, live, 5000, PAGE).iter().all(|&b| b == 0));
    s.objects().live_release(live).unwrap();
    assert_eq!(crate::fsck::check(&s), Ok(vec![]));
}

#[test]
fn a_dead_process_had_its_files_mapped_until_it_is_reaped() {
    let s = store("mapped-dead");
    let (open, live) = file(&s, "f", SIZE);
    let dead = crate::process::attach(&s.control).unwrap();
    let area = s.areas().map(dead).unwrap();
    // SAFETY: mapped above, and not unmapped in this test; all fields are atomics.
    let area = unsafe { &*area };
    let place = s
        .mappings()
        .map_claim(open, map_flag::SHARED | map_flag::CHANGES)
        .unwrap();
    place.len.store(SIZE as u64, Relaxed);
    s.mappings().map_inherit(dead, area, false).unwrap();
    assert_eq!(s.control.process(dead as usize).maps_end.load(Acquire), 1);
    s.mappings().map_release(place).unwrap();
    s.mappings().map_here(live, 0, SIZE, 0).unwrap();
    s.truncate(live, 0).unwrap();
    assert!(used(&s) >= SIZE as u64);
    // The state after the process has died: no process has this id.
    s.control
        .process(dead as usize)
        .owner
        .store(2 << 62 | 1, Release);
    assert_eq!(s.recovery().reap().unwrap().processes, 1);
    s.objects().open_release(open).unwrap();
    assert_eq!(used(&s), 0);
    assert_eq!(crate::fsck::check(&s), Ok(vec![]));
}

#[test]
fn holes_are_made_within_the_budget_only() {
    let s = store("mapped-holes");
    let (open, live) = file(&s, "f", 0);
    s.truncate(live, SIZE as u64).unwrap();
    write(&s, live, 2 << 20, &[7; 10_000]);
    let place = s.mappings().map_claim(open, map_flag::SHARED).unwrap();
    let there = s.mappings().map_here(live, 0, SIZE + PAGE, 10).unwrap();
    let piece = |p: &MapPiece| (p.at, p.len);
    assert_eq!(
        there.iter().map(piece).collect::<Vec<_>>(),
        [(2 << 20, 3 * PAGE)]
    );
    let one = s.mappings().map_here(live, PAGE as u64, PAGE, 1).unwrap();
    assert_eq!(
        one.iter().map(piece).collect::<Vec<_>>(),
        [(PAGE as u64, PAGE)]
    );
    store_at(&s, &one[0], 0, b"hole");
    assert_eq!(read(&s, live, PAGE as u64, 4), b"hole");
    // A file larger than the pool: no room is an error, and nothing is lost.
    s.truncate(live, 2 * CAPACITY).unwrap();
    let error = s
        .mappings()
        .map_here(live, 0, 2 * CAPACITY as usize, usize::MAX)
        .map(|_| ());
    assert_eq!(error, Err(Errno::NOSPC));
    assert!(
        s.mappings()
            .map_here(live, 0, 2 * CAPACITY as usize, 100)
            .is_ok()
    );
    s.mappings().map_release(place).unwrap();
    s.truncate(live, 0).unwrap();
    s.objects().open_release(open).unwrap();
    assert_eq!(used(&s), 0);
    assert_eq!(crate::fsck::check(&s), Ok(vec![]));
}
