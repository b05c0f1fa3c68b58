//! The views of a store: each type here has the operations of one theme, and guards what the
//! theme's data promises.
//!
//! A view names what it holds, is made by an accessor for the call (`store.names().lookup_here(..)`),
//! and is copied freely. It derefs to nothing: its methods reach state by its fields. Views that
//! can do with part of the store hold only that part. The others hold the [`Store`], because they
//! change records, or attach this process, which may have to release a dead process's slot first.
//! The methods are in the modules of their theme. Checks and reports are functions of
//! their modules (`fsck`, `accounting`, `tables`).

use crate::control_region::{Control, Header};
use crate::{Remote, Store};
use std::sync::Arc;

macro_rules! view {
    ($(#[$doc:meta])* $name:ident, $accessor:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name<'s> {
            pub(crate) store: &'s Store,
        }

        impl Store {
            $(#[$doc])*
            #[inline]
            pub fn $accessor(&self) -> $name<'_> {
                $name { store: self }
            }
        }
    };
}

view! {
    /// Open objects (the live table) and open file descriptions: an object has one entry, which
    /// stays as long as anything uses it. `live.rs`, `open.rs`, `leases.rs`, `repair.rs`.
    Objects, objects
}

view! {
    /// Journal, checkpoints and syncs, for pools that survive a loss of power: `journal.rs`,
    /// `checkpoint.rs`, `durable.rs`, `reload.rs`.
    Durability, durability
}

view! {
    /// Names, directories and attributes: `names.rs`, `names/`, `dirs.rs`, `attributes.rs`,
    /// `remote_opens.rs`.
    Names, names
}

view! {
    /// Links: an object that has several names, or whose names are on several nodes:
    /// `names/links.rs`.
    Links, links
}

view! {
    /// Intents: changes over several nodes that aren't finished: `names/intents.rs`.
    Intents, intents
}

view! {
    /// Bytes of objects: `data.rs`, `data/`.
    Content, content
}

view! {
    /// Local copies of other nodes' laminated files: `cached_copies.rs`, `cached_copies/`.
    LocalCopies, local_copies
}

view! {
    /// This node's parts of striped and spilled files: `stripe_units.rs`, `placements.rs`.
    Parts, parts
}

view! {
    /// Memory mappings of files by this node's processes: `mapped.rs`.
    Mappings, mappings
}

view! {
    /// Locks of programs (flock, fcntl): `locks.rs`, `locks/`.
    LockTable, locks
}

view! {
    /// Watches of programs (inotify): `watches.rs`, `watches/`.
    Watches, watches
}

view! {
    /// The index of attributes, and the view `.by`: `index.rs`, `index/`, `attribute_view.rs`.
    Index, index
}

view! {
    /// Declared controls, and the uses that they allow: `controls.rs`, `controls/`,
    /// `ephemeral.rs`.
    DeclaredControls, declared
}

view! {
    /// Release of what dead processes held: each use, page and slot once, and a slot only after
    /// all that it held. `recover.rs`, `repair.rs`, `recount.rs`.
    Recovery, recovery
}

/// The epoch of names, by which resolved paths are known to be wrong: `names_epoch.rs`.
#[derive(Clone, Copy)]
pub struct NamesEpoch<'s> {
    pub(crate) header: &'s Header,
}

/// Which objects and entries lie on other nodes: `remote_opens.rs`.
#[derive(Clone, Copy)]
pub struct Peers<'s> {
    pub(crate) remote: Option<&'s Arc<dyn Remote>>,
}

/// The sole use of a pool by one process: `exclusive_mount.rs`.
#[derive(Clone, Copy)]
pub struct SoleUse<'s> {
    pub(crate) control: &'s Control,
}

impl Store {
    /// The epoch of names.
    #[inline]
    pub fn names_epoch(&self) -> NamesEpoch<'_> {
        NamesEpoch {
            header: self.control.header(),
        }
    }

    /// The pool's other nodes, as this store knows them.
    #[inline]
    pub fn peers(&self) -> Peers<'_> {
        Peers {
            remote: self.remote.as_ref(),
        }
    }

    /// The sole use of the pool by one process.
    #[inline]
    pub fn sole_use(&self) -> SoleUse<'_> {
        SoleUse {
            control: &self.control,
        }
    }
}
