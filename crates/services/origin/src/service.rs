//! The service: its parts, in the order in which they are made.
//!
//! A part holds the parts that it uses, which are made before it. So no part calls a later one. The
//! parts are in the files of their names;
//! `docs/decisions/0096-parts-of-the-origin-service.md` shows them in layers.

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

/// The origin service. It runs on one node.
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

    /// Makes the directory that stands for the origin's root, unless it exists.
    pub fn prepare_root(&self) -> Result<()> {
        let mut made = Vec::new();
        for name in self.shared.config.at.split('/').filter(|n| !n.is_empty()) {
            made.extend_from_slice(b"/");
            made.extend_from_slice(name.as_bytes());
            match self.shared.fs.mkdir(&made, 0o755) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e),
            }
        }
        let root = self
            .shared
            .fs
            .stat(self.shared.config.at.as_bytes(), true)?;
        let id = ObjectId(root.ino);
        if self.shared.inode(id)?.origin == OriginMark::default() {
            let meta = self.shared.side.meta(b"")?;
            let set = SetAttr {
                mode: Some(meta.permissions()),
                uid: Some(meta.uid),
                gid: Some(meta.gid),
                mtime: Some(pool_time(meta.mtime)),
                ..SetAttr::default()
            };
            self.fs.cluster().namespace().set_attr(id, &set)?;
            self.set_mark(id, self.stub_of_dir(&self.inode(id)?))?;
        }
        Ok(())
    }

    /// Returns the mark of a directory whose entries aren't in the pool.
    pub fn stub_of_dir(&self, inode: &Inode) -> OriginMark {
        OriginMark {
            state: OriginState::Released,
            print: 0,
            synced: attributes_of(inode),
        }
    }

    /// Returns a fingerprint of a directory's attributes in the pool, including `user.*`
    /// attributes.
    pub fn print_of_dir(&self, id: ObjectId, inode: &Inode) -> Result<i64> {
        let print = attributes_of(inode);
        if !inode.has_attributes {
            return Ok(print);
        }
        let cluster = self.fs.cluster();
        let mut names = cluster.namespace().attributes(id)?;
        names.sort();
        let mut bytes = print.to_le_bytes().to_vec();
        for name in names {
            let value = match cluster.namespace().attribute(id, &name) {
                Err(Errno::NODATA) => continue,
                value => value?,
            };
            for part in [&name, &value] {
                bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
                bytes.extend_from_slice(part);
            }
        }
        Ok(XxHash3_64::oneshot(&bytes) as i64)
    }

    /// Whether the origin's version of a file is the one that the pool knows, or that the service
    /// has just written.
    pub fn is_known(&self, path: &[u8], there: &Meta, mark: &OriginMark) -> bool {
        print(there) == mark.print || self.writing.is_ours(path, there)
    }

    /// Whether a directory's record is lost because it is on a dead node. Such a directory can't be
    /// marked, and its attributes aren't known.
    pub fn has_lost(&self, dir: ObjectId) -> bool {
        self.fs.salvaged().is_some_and(|s| s.has_lost(dir))
    }

    pub fn inode(&self, id: ObjectId) -> Result<Inode> {
        let cluster = self.fs.cluster();
        cluster.data().with_parts(id, cluster.namespace().stat(id)?)
    }

    pub fn set_mark(&self, id: ObjectId, mark: OriginMark) -> Result<()> {
        self.ranges.is_marked(id, &mark);
        let set = SetAttr {
            origin: Some(mark),
            ..SetAttr::default()
        };
        self.fs.cluster().namespace().set_attr(id, &set)
    }

    /// Marks a file as clean: pool and origin have the same version. `set` has further attributes.
    /// The file's change time becomes `before`, or [`TICK`] ago if that is earlier. So the next
    /// change, however soon, gets a different change time.
    pub fn set_clean(
        &self,
        id: ObjectId,
        before: i64,
        mark: OriginMark,
        set: SetAttr,
    ) -> Result<()> {
        self.ranges.is_marked(id, &mark);
        let mut past = before.min(now() - TICK);
        let set = SetAttr {
            ctime: Some(past),
            origin: Some(OriginMark {
                synced: past,
                ..mark
            }),
            ..set
        };
        self.fs.cluster().namespace().set_attr(id, &set)?;
        let inode = self.inode(id)?;
        if inode.is_spread && inode.ctime != past {
            // Each part of a striped file has its own change time.
            past = inode.ctime;
            let rest = past + TICK - now();
            std::thread::sleep(Duration::from_nanos(rest.clamp(0, TICK) as u64));
            self.set_mark(
                id,
                OriginMark {
                    synced: past,
                    ..mark
                },
            )?;
        }
        Ok(())
    }

    /// Whether the pool outlives a loss of power.
    pub fn is_durable(&self) -> bool {
        self.pool.config().journal_dir(self.pool.dir()).is_some()
    }

    /// Syncs the pool before files are written back, if the pool outlives a loss of power. Without
    /// this, a loss of power could leave a file that is marked clean but lacks its bytes, or is
    /// older than the origin's version.
    pub fn sync_pool(&self) -> Result<()> {
        if self.is_durable() {
            self.fs.cluster().data().sync_everywhere()
        } else {
            Ok(())
        }
    }

    /// Whether the pool still exists. The service's threads end when it doesn't.
    pub fn is_there(&self) -> bool {
        self.pool.dir().join("pool.json").exists()
    }
}

/// Whether pool and origin have the same version of a file.
pub fn is_clean(inode: &Inode) -> bool {
    inode.origin.is_clean(inode.ctime)
}
