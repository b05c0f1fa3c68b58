//! The service's parts, in the order in which they are made.
//!
//! A part holds the parts that it uses, which are made before it. So no part calls a later one.
//! Each part is in the file of its name; `docs/decisions/0096-parts-of-the-origin-service.md` shows
//! them in layers.

use crate::attributes::ObjectAttributes;
use crate::bytes::Bytes;
use crate::directories::Directories;
use crate::drain::Drain;
use crate::external_changes::ExternalChanges;
use crate::links::Links;
use crate::listing::Listing;
use crate::marks::Marks;
use crate::names::NameChanges;
use crate::notices::Notices;
use crate::object_writer::ObjectWriter;
use crate::orders::CopierOrders;
use crate::origin_only::OriginOnly;
use crate::quota::Quota;
use crate::ranges::Ranges;
use crate::remote_copiers::Copiers;
use crate::room::Room;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::tree::Tree;
use crate::watches::Watches;
use crate::write_back::WriteBack;
use crate::writing::Writing;
use forebay_backing::SlowStore;
use forebay_client::Pool;
use forebay_client::origin::OriginConfig;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Interval between two records of the quota's usage.
const QUOTA_INTERVAL: Duration = Duration::from_secs(1);

/// The origin service, which runs on one node.
pub struct Origin {
    pub shared: Arc<Shared>,
    pub tree: Arc<Tree>,
    pub marks: Arc<Marks>,
    pub orders: Arc<CopierOrders>,
    pub listing: Arc<Listing>,
    pub origin_only: Arc<OriginOnly>,
    pub directories: Arc<Directories>,
    pub links: Arc<Links>,
    pub drain: Arc<Drain>,
    pub room: Arc<Room>,
    pub ranges: Arc<Ranges>,
    pub bytes: Arc<Bytes>,
    pub external: Arc<ExternalChanges>,
    pub notices: Arc<Notices>,
    pub names: Arc<NameChanges>,
    pub settings: Arc<Settings>,
    pub watches: Arc<Watches>,
    pub quota: Arc<Quota>,
}

impl Origin {
    /// Makes the service. Reads the state that an earlier one has left.
    ///
    /// # Errors
    /// A file of that state can't be read.
    pub fn load(
        pool: &Arc<Pool>,
        config: OriginConfig,
        side: Box<dyn SlowStore>,
    ) -> std::io::Result<Origin> {
        // The directory for state that has to outlive a loss of power if the pool does.
        let journal = pool.config().journal_dir(pool.dir());
        let kept = journal.as_deref().unwrap_or(pool.dir());
        let settings = Arc::new(Settings::load(kept)?);
        let copiers = Copiers::load(pool.dir())?;
        let is_new = !pool.store().quota().was_seen();
        let quota = Arc::new(Quota::load(kept, config.quota.as_ref(), is_new)?);
        let shared = Arc::new(Shared::new(pool, config, side));
        let tree = Arc::new(Tree::new(&shared));
        let marks = Arc::new(Marks::new(&shared));
        let orders = Arc::new(CopierOrders {
            shared: shared.clone(),
            copiers,
        });
        let attributes = Arc::new(ObjectAttributes {
            shared: shared.clone(),
        });
        let watches = Arc::new(Watches::new());
        let listing = Arc::new(Listing {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            attributes: attributes.clone(),
            watches: watches.clone(),
            quota: quota.clone(),
        });
        let origin_only = Arc::new(OriginOnly {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            listing: listing.clone(),
        });
        let directories = Arc::new(Directories {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
        });
        let object_writer = Arc::new(ObjectWriter {
            shared: shared.clone(),
            attributes: attributes.clone(),
        });
        let writing = Writing::load(pool.dir(), journal.as_deref());
        let write_back = Arc::new(WriteBack {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            orders: orders.clone(),
            object_writer: object_writer.clone(),
            writing,
        });
        let links = Arc::new(Links {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            attributes: attributes.clone(),
            directories: directories.clone(),
            object_writer: object_writer.clone(),
            write_back: write_back.clone(),
        });
        let drain = Arc::new(Drain {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            attributes: attributes.clone(),
            directories: directories.clone(),
            write_back: write_back.clone(),
            links: links.clone(),
            settings: settings.clone(),
            has_early: AtomicBool::new(false),
            salvaging: Mutex::default(),
        });
        let room = Arc::new(Room {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            orders: orders.clone(),
            drain: drain.clone(),
            settings: settings.clone(),
            quota: quota.clone(),
            making: Mutex::default(),
        });
        let ranges = Arc::new(Ranges {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            orders: orders.clone(),
            attributes: attributes.clone(),
            listing: listing.clone(),
            room: room.clone(),
            quota: quota.clone(),
            ahead: Mutex::default(),
        });
        let bytes = Arc::new(Bytes {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            orders: orders.clone(),
            attributes: attributes.clone(),
            listing: listing.clone(),
            room: room.clone(),
            ranges: ranges.clone(),
            quota: quota.clone(),
        });
        let external = Arc::new(ExternalChanges {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            listing: listing.clone(),
            room: room.clone(),
            ranges: ranges.clone(),
        });
        let notices = Arc::new(Notices {
            shared: shared.clone(),
            tree: tree.clone(),
            listing: listing.clone(),
            external: external.clone(),
            watches: watches.clone(),
        });
        let names = Arc::new(NameChanges {
            shared: shared.clone(),
            tree: tree.clone(),
            marks: marks.clone(),
            listing: listing.clone(),
            directories: directories.clone(),
            write_back: write_back.clone(),
            links: links.clone(),
            ranges: ranges.clone(),
        });
        Ok(Origin {
            shared,
            tree,
            marks,
            orders,
            listing,
            origin_only,
            directories,
            links,
            drain,
            room,
            ranges,
            bytes,
            external,
            notices,
            names,
            settings,
            watches,
            quota,
        })
    }

    /// Records the usage in the quota's file, about once a second, until the pool is removed.
    pub fn watch_quota(&self) {
        while self.shared.is_there() && self.quota.is_there() {
            std::thread::sleep(QUOTA_INTERVAL);
            self.quota.note(&self.shared.fs);
        }
    }
}
