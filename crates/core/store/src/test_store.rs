//! Stores of one node for the unit tests of this crate and of `cluster`, which includes this file:
//! each in a directory that is removed with it.

use forebay_media::MediumKind;
use forebay_store::{Medium, Store};
use std::path::PathBuf;

/// Capacity of the medium of a test's store. Bytes.
pub(crate) const CAPACITY: u64 = 8 << 20;

/// A store in a directory that is removed with it.
pub(crate) struct TestStore {
    pub store: Option<Store>,
    pub dir: PathBuf,
}

impl std::ops::Deref for TestStore {
    type Target = Store;
    fn deref(&self) -> &Store {
        self.store.as_ref().unwrap()
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        self.store = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub(crate) fn store(name: &str) -> TestStore {
    store_on(name, &[("medium", MediumKind::Memory)])
}

/// Makes a store with these media, each in a folder of the given name.
pub(crate) fn store_on(name: &str, media: &[(&str, MediumKind)]) -> TestStore {
    let dir = PathBuf::from(format!("/dev/shm/forebay-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("records")).unwrap();
    let open = |(i, (folder, kind)): (usize, &(&str, MediumKind))| {
        let (at, map) = (dir.join(folder), dir.join(folder.replace("medium", "map")));
        std::fs::create_dir_all(&at).unwrap();
        Medium::create(&at, &map, CAPACITY, false).unwrap();
        Medium::open(i, kind.clone(), &at, &map, CAPACITY).unwrap()
    };
    let media = media.iter().enumerate().map(open).collect();
    let (control, records) = (dir.join("control"), dir.join("records"));
    Store::create(&control, &records, (4, 64 << 20), (0o755, 0, 0), None).unwrap();
    let store = Some(Store::open(&control, &records, 64 << 20, media, None).unwrap());
    TestStore { store, dir }
}
