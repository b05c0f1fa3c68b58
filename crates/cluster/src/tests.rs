//! Stores for the tests of this crate: of one node, in a directory that is removed with them.

use crate::Cluster;
use forebay_store::{NewObject, ObjectId, Store};
use std::path::PathBuf;

pub(crate) struct TestStore {
    store: Option<Store>,
    dir: PathBuf,
}

impl TestStore {
    pub(crate) fn cluster(&self) -> Cluster<'_> {
        Cluster::new(self, None)
    }

    /// Makes an empty file in the root.
    pub(crate) fn make(&self, name: &str) -> ObjectId {
        let new = NewObject {
            mode: libc::S_IFREG | 0o600,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: b"",
            distribution: None,
            controls: 0,
            maker: None,
            stub: None,
        };
        let epoch = self.names().names_epoch();
        let made = (self.cluster()).create_object(ObjectId::ROOT, name.as_bytes(), &new, epoch);
        made.unwrap().unwrap()
    }
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
    let dir = PathBuf::from(format!("/dev/shm/forebay-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("records")).unwrap();
    let (control, records) = (dir.join("control"), dir.join("records"));
    Store::create(&control, &records, (4, 64 << 20), (0o755, 0, 0), None).unwrap();
    let store = Some(Store::open(&control, &records, 64 << 20, Vec::new(), None).unwrap());
    TestStore { store, dir }
}
