//! [`PoolRef`]: the pool as the parts of a view reach it.
//!
//! The parts of a view ([`Fs`](crate::Fs)) that have state are types, such as
//! [`OriginGate`](crate::OriginGate). Each holds the pool, by this type, and the state that it
//! needs; none holds the view.

use forebay_client::Pool;
use forebay_cluster::{Cluster, Salvage, SalvageCell};
use forebay_store::Store;
use std::sync::Arc;

/// The pool, with the salvage that the view uses; see the module.
#[derive(Clone, Copy)]
pub(crate) struct PoolRef<'a> {
    pool: &'a Pool,
    salvage: &'a SalvageCell,
}

impl<'a> PoolRef<'a> {
    /// The pool of a view whose salvage is in this cell.
    #[inline]
    pub fn new(pool: &'a Pool, salvage: &'a SalvageCell) -> PoolRef<'a> {
        PoolRef { pool, salvage }
    }

    /// The pool.
    #[inline]
    pub fn pool(self) -> &'a Pool {
        self.pool
    }

    /// The node store.
    #[inline]
    pub fn store(self) -> &'a Store {
        self.pool.store()
    }

    /// The pool as one store, whichever nodes its objects are on.
    #[inline]
    pub fn cluster(self) -> Cluster<'a> {
        self.pool.cluster().with_salvage(self.salvage)
    }

    /// The salvage that the view uses, if any.
    #[inline]
    pub fn salvaged(self) -> Option<Arc<Salvage>> {
        self.salvage.get()
    }

    /// The mount prefix.
    #[inline]
    pub fn mount(self) -> &'a [u8] {
        self.pool.config().mount.as_bytes()
    }
}
