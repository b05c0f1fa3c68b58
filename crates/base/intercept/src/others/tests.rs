//! Sites found function by function, compared with the sweep over this machine's C library; and the
//! table of libraries without sites.

use super::*;
use crate::arch::find;
use crate::test_hooks::EVERY;

/// Returns the C library's sites, found as for any other library.
fn sites(object: &Object) -> Vec<arch::Site> {
    let read = |at: u32, to: &mut [u8]| {
        // SAFETY: the object stays loaded, and unit tests don't patch it.
        let bytes = unsafe { object.bytes(at, to.len()) };
        bytes.is_some_and(|b| {
            to.copy_from_slice(b);
            true
        })
    };
    let mut frames = Frames::read(object.frames, object.code_high, &read).expect("a table");
    // SAFETY: the object stays loaded, and unit tests don't patch it.
    arch::find_by_function(unsafe { object.code() }, object.code_low, &mut frames)
}

#[test]
fn by_function_as_by_the_sweep() {
    let mut all = 0;
    for object in object::loaded().list.into_iter().flatten() {
        // SAFETY: the object stays loaded, and unit tests don't patch it.
        let swept = unsafe { find(&object) };
        let found = sites(&object);
        for s in &found {
            let same = swept.iter().find(|o| o.at == s.at).expect("an instruction");
            // The sweep reads all code, so it sees more jump targets.
            assert!(
                s.nr == same.nr || s.nr == -1 || same.nr == -1,
                "{s:x?} {same:x?}"
            );
            assert!(s.is_sane(object.code_low, object.code_high), "{s:x?}");
            // SAFETY: `s` is sane (asserted), and the object stays loaded.
            assert!(unsafe { s.matches(object.base) });
            assert_ne!(s.form, arch::FORM_NONE, "{s:x?}");
        }
        for w in found.windows(2) {
            let end = w[0].start + w[0].window_len() as u32;
            assert!(end <= w[1].start, "windows overlap: {w:x?}");
        }
        // Nearly all code is described by an unwind table.
        assert!(
            found.len() + 8 >= swept.len(),
            "{} of {}",
            found.len(),
            swept.len()
        );
        all += found.len();
    }
    assert!(all > 300, "{all}");
}

/// The slots are in reach of the objects, and the operands of displaced instructions are adjusted.
#[test]
fn trampolines_elsewhere_can_be_written() {
    for object in object::loaded().list.into_iter().flatten() {
        // SAFETY: the object is loaded and not patched, and nothing runs in the trampolines.
        let job = unsafe { Job::of_other(&EVERY, object, Sites::Found(sites(&object))) };
        assert!(job.is_some_and(|j| j.is_for(&object)));
    }
}

#[test]
fn those_without_any_are_remembered() {
    use std::os::unix::{ffi::OsStrExt, fs::PermissionsExt};
    let dir = std::env::temp_dir().join(format!("forebay-known-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let c = std::ffi::CString::new(dir.as_os_str().as_bytes()).unwrap();
    let objects: Vec<Object> = (0..1000u32)
        .map(|n| {
            let mut object = Object::of_code(&[0x90; 64]);
            object.set_id(&n.to_le_bytes());
            object
        })
        .collect();
    let known = Known::open(&c).expect("made");
    let (some, others) = objects.split_at(500);
    some.iter().for_each(|o| known.add(o));
    drop(known);
    let known = Known::open(&c).expect("there");
    assert!(some.iter().all(|o| known.has(o)));
    assert!(!others.iter().any(|o| known.has(o)));
    // An object without an id isn't recorded.
    let nameless = Object::of_code(&[0x90; 64]);
    known.add(&nameless);
    assert!(!known.has(&nameless));
    let file = std::fs::read_dir(&dir)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(Known::open(&c).is_none(), "others could write it");
    std::fs::remove_dir_all(dir).unwrap();
}
