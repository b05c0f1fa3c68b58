//! The service's parts, in the order in which they are made.
//!
//! A part holds the parts that it uses, which are made before it. So no part calls a later one.
//! Each part is in the file of its name; `docs/decisions/0096-parts-of-the-origin-service.md` shows
//! them in layers.

use crate::attributes::ObjectAttributes;
use crate::base::Base;
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
use std::sync::Arc;
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
        let base = Base {
            tree: Arc::new(Tree::new(&shared)),
            marks: Arc::new(Marks::new(&shared)),
            shared,
        };
        let orders = Arc::new(CopierOrders::new(&base, copiers));
        let attributes = Arc::new(ObjectAttributes::new(&base));
        let watches = Arc::new(Watches::new());
        let listing = Arc::new(Listing::new(&base, &attributes, &watches, &quota));
        let origin_only = Arc::new(OriginOnly::new(&base, &listing));
        let directories = Arc::new(Directories::new(&base));
        let object_writer = Arc::new(ObjectWriter::new(&base, &attributes));
        let writing = Writing::load(pool.dir(), journal.as_deref());
        let write_back = Arc::new(WriteBack::new(&base, &orders, &object_writer, writing));
        let links = Arc::new(Links::new(
            &base,
            &attributes,
            &directories,
            &object_writer,
            &write_back,
        ));
        let drain = Drain::new(
            &base,
            &attributes,
            &directories,
            &write_back,
            &links,
            &settings,
        );
        let drain = Arc::new(drain);
        let room = Arc::new(Room::new(&base, &orders, &drain, &settings, &quota));
        let ranges = Ranges::new(&base, &orders, &attributes, &listing, &room, &quota);
        let ranges = Arc::new(ranges);
        let bytes = Bytes::new(
            &base,
            &orders,
            &attributes,
            &listing,
            &room,
            &ranges,
            &quota,
        );
        let bytes = Arc::new(bytes);
        let external = Arc::new(ExternalChanges::new(&base, &listing, &room, &ranges));
        let notices = Arc::new(Notices::new(&base, &listing, &external, &watches));
        let names = NameChanges::new(&base, &listing, &directories, &write_back, &links, &ranges);
        let names = Arc::new(names);
        Ok(Origin {
            shared: base.shared,
            tree: base.tree,
            marks: base.marks,
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
