//! Pools whose files hold arbitrary bytes. Opening one succeeds or reports what is wrong, but
//! doesn't panic, hang, or allocate absurd amounts of memory.

use forebay_client::{CreateOptions, Pool};
use forebay_fuzz::{Random, Watched, largest_allocation};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[global_allocator]
static ALLOCATOR: Watched = Watched;

struct Home(PathBuf);

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Replaces values of a configuration.
fn damage_text(r: &mut Random, sound: &[u8]) -> Vec<u8> {
    let mut text = String::from_utf8(sound.to_vec()).unwrap();
    for _ in 0..1 + r.below(3) {
        let numbers = [
            "0",
            "-1",
            "1",
            "64",
            "65",
            "4294967296",
            "18446744073709551615",
            "1e300",
            "null",
            "\"\"",
            "[]",
            "{}",
            "true",
            "\"../../x\"",
        ];
        let values: Vec<usize> = text.match_indices(": ").map(|(i, _)| i + 2).collect();
        let at = if values.is_empty() {
            break;
        } else {
            *r.one_of(&values)
        };
        let end = text[at..].find([',', '\n']).map_or(text.len(), |n| at + n);
        text.replace_range(at..end, r.one_of::<&str>(&numbers));
    }
    text.into_bytes()
}

fn tries_to_open(dir: &Path) -> bool {
    let (pool, largest) = largest_allocation(|| Pool::open_dir(dir));
    assert!(largest <= 64 << 20, "{largest} bytes of memory");
    match pool {
        Ok(pool) => {
            pool.usage();
            pool.attached();
            true
        }
        Err(e) => {
            assert!(!e.to_string().is_empty());
            false
        }
    }
}

#[test]
fn a_damaged_pool_is_an_error_at_most() {
    let home = Home(format!("/dev/shm/forebay-damaged-{}", std::process::id()).into());
    std::fs::create_dir_all(&home.0).unwrap();
    std::fs::set_permissions(&home.0, std::fs::Permissions::from_mode(0o700)).unwrap();
    // SAFETY: this is the program's only test, so no other thread uses the environment.
    unsafe { std::env::set_var("FOREBAY_HOME", &home.0) };
    let options = CreateOptions {
        name: "damaged".into(),
        mount: "/fb".into(),
        media: vec!["memory:8M".parse().unwrap()],
        reserve: None,
        rules: Default::default(),
        origin: None,
    };
    drop(Pool::create(&options).unwrap());
    let dir = home.0.join("damaged");
    let sound = std::fs::read(dir.join("pool.json")).unwrap();
    assert!(tries_to_open(&dir));
    let (mut opened, mut refused) = (0u64, 0u64);
    forebay_fuzz::run("damaged pools", |r| {
        let mut tries_to_open = || {
            if tries_to_open(&dir) {
                opened += 1
            } else {
                refused += 1
            }
        };
        match r.below(3) {
            0 => {
                let mut text = if r.once_in(2) {
                    damage_text(r, &sound)
                } else {
                    sound.clone()
                };
                if text == sound {
                    r.mutate(&mut text, &sound);
                }
                std::fs::write(dir.join("pool.json"), &text).unwrap();
                tries_to_open();
                std::fs::write(dir.join("pool.json"), &sound).unwrap();
            }
            which => {
                // The damaged file is the control region or the map: its header or its length.
                let path = dir.join(["control", "map-0"][which - 1]);
                let file = std::fs::File::options()
                    .read(true)
                    .write(true)
                    .open(&path)
                    .unwrap();
                let len = file.metadata().unwrap().len();
                // Saves the whole header, since truncating the file removes it.
                let mut before = vec![0; len.min(16 << 10) as usize];
                file.read_exact_at(&mut before, 0).unwrap();
                let mut after = before.clone();
                for _ in 0..1 + r.below(4) {
                    let (at, value) = (r.below(31) * 8, r.edge().to_le_bytes());
                    after[at..at + 8].copy_from_slice(&value);
                }
                file.write_all_at(&after, 0).unwrap();
                if r.once_in(5) {
                    file.set_len(*r.one_of(&[0, 1, 256, 4096, len - 1, len + 1]))
                        .unwrap();
                }
                tries_to_open();
                file.set_len(len).unwrap();
                file.write_all_at(&before, 0).unwrap();
            }
        }
    });
    println!("damaged pools: {opened} opened, {refused} refused");
    assert!(refused > 0, "nothing was refused");
    assert!(tries_to_open(&dir), "the sound one opens");
    Pool::destroy("damaged").unwrap();
}
