//! Damaged cache files count as absent; valid ones are read as they were written.

use super::*;
use crate::arch;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

struct Dir(std::path::PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path =
            std::env::temp_dir().join(format!("forebay-cache-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Dir(path)
    }
    fn c(&self) -> CString {
        CString::new(self.0.as_os_str().as_bytes()).unwrap()
    }
    fn file(&self) -> std::path::PathBuf {
        std::fs::read_dir(&self.0)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn libc_object() -> Object {
    crate::object::loaded()
        .list
        .into_iter()
        .flatten()
        .find(|o| o.name.starts_with(b"libc.so"))
        .unwrap()
}

#[test]
fn comes_back() {
    let (dir, object) = (Dir::new("back"), libc_object());
    assert!(open(&dir.c(), &object).is_none());
    // SAFETY: the object stays loaded, and unit tests don't patch it.
    let sites = unsafe { arch::find(&object) };
    save(&dir.c(), &object, &sites);
    assert_eq!(open(&dir.c(), &object).unwrap().sites(), sites);
    // A file that others can write isn't trusted.
    std::fs::set_permissions(dir.file(), std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(open(&dir.c(), &object).is_none());
}

#[test]
fn nowhere_to_write() {
    let object = libc_object();
    save(c"/nonexistent/directory", &object, &[]);
    assert!(open(c"/nonexistent/directory", &object).is_none());
}

#[test]
fn damaged() {
    let (dir, object) = (Dir::new("damaged"), libc_object());
    // SAFETY: the object stays loaded, and unit tests don't patch it.
    let sites = unsafe { arch::find(&object) };
    save(&dir.c(), &object, &sites);
    let good = std::fs::read(dir.file()).unwrap();
    let check = |bytes: &[u8]| {
        std::fs::write(dir.file(), bytes).unwrap();
        open(&dir.c(), &object).is_some()
    };
    assert!(check(&good));
    // Cut short.
    for len in [
        0,
        1,
        8,
        63,
        64,
        65,
        64 + size_of::<Site>(),
        good.len() / 2,
        good.len() - 1,
    ] {
        assert!(!check(&good[..len]), "{len}");
    }
    let mut long = good.clone();
    long.extend_from_slice(&[0; size_of::<Site>()]);
    assert!(!check(&long));
    // Single flipped bits, and random bytes.
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for _ in 0..500 {
        let mut bad = good.clone();
        let i = random() as usize % bad.len();
        bad[i] ^= 1 << (random() % 8);
        assert!(!check(&bad), "{i}");
    }
    for _ in 0..50 {
        let noise: Vec<u8> = (0..good.len()).map(|_| random() as u8).collect();
        assert!(!check(&noise));
    }
    // A correct checksum over implausible records, or over records of other code: `open` refuses
    // the file, or the changed site doesn't match the code.
    for _ in 0..200 {
        let mut wild = sites.clone();
        let i = random() as usize % wild.len();
        match random() % 6 {
            0 => wild[i].at = random() as u32,
            1 => wild[i].start = random() as u32,
            2 => wild[i].pre = random() as u8 | 64,
            3 => wild[i].form = 3 + random() as u8 % 200,
            4 => {
                let at = usize::from(wild[i].pre);
                wild[i].bytes[at] ^= 1;
            }
            _ => (wild[i].hop, wild[i].form) = (random() as u32, arch::FORM_HOP),
        }
        if wild == sites {
            continue;
        }
        std::fs::remove_file(dir.file()).unwrap();
        save(&dir.c(), &object, &wild);
        let accepted = open(&dir.c(), &object).map(|c| c.sites()[i]);
        // SAFETY: `open` accepts only sane sites, and the object stays loaded.
        let used = accepted.is_some_and(|s| unsafe { s.matches(object.base) });
        assert!(!used, "{:?}", wild[i]);
    }
}

#[test]
fn any_change_of_the_file_is_noticed() {
    let (dir, object) = (Dir::new("fuzz"), libc_object());
    // SAFETY: the object stays loaded, and unit tests don't patch it.
    let sites = unsafe { arch::find(&object) };
    save(&dir.c(), &object, &sites);
    let sound = std::fs::read(dir.file()).unwrap();
    let path = dir.file();
    forebay_fuzz::run("cache of sites", |r| {
        let mut bytes = sound.clone();
        r.mutate(&mut bytes, &sound);
        // Half of the inputs get the correct checksum, so that the other checks are tested, too.
        let n = size_of::<Head>();
        if r.once_in(2) && bytes.len() >= n {
            let sum = mix(mix(0, &bytes[16..n]), &bytes[n..]);
            bytes[8..16].copy_from_slice(&sum.to_le_bytes());
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Some(cached) = open(&dir.c(), &object) {
            let inside = |s: &Site| s.is_sane(object.code_low, object.code_high);
            assert!(cached.sites().len() <= SITES_MAX && cached.sites().iter().all(inside));
        }
    });
}
