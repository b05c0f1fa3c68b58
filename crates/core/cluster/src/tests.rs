//! Stores for the tests of this crate.

#[path = "../../store/src/test_store.rs"]
mod test_store;

use crate::Cluster;
use forebay_store::{NewObject, ObjectId};

pub(crate) use test_store::{TestStore, store};

impl TestStore {
    pub(crate) fn cluster(&self) -> Cluster<'_> {
        Cluster::new(self, None)
    }

    /// Makes an empty file in the root.
    pub(crate) fn make(&self, name: &str) -> ObjectId {
        let new = NewObject {
            mode: libc::S_IFREG | 0o600,
            ..NewObject::default()
        };
        let epoch = self.names_epoch().now();
        let made =
            self.cluster()
                .namespace()
                .create_object(ObjectId::ROOT, name.as_bytes(), &new, epoch);
        made.unwrap().unwrap()
    }
}
