//! Requests that create objects, and requests about the processes that have created ephemeral
//! files.

use super::{Call, Server, checked};
use crate::Cluster;
use crate::peers::messages::{List, decode};
use crate::peers::requests::{Creating, arguments, replies};
use forebay_placement::NodeId;
use forebay_store::views::DeclaredControls;
use forebay_store::{Creator, Distribution, Entry, NewObject, ObjectId, Stub};
use rustix::io::Errno;

/// The object that CREATE makes: mode, user, group, device, and the target of a symbolic link.
type New = (u32, u32, u32, u64, Vec<u8>);
type Created = Result<ObjectId, Entry>;

impl Creating for Call<'_> {
    fn create(
        &self,
        at: (ObjectId, Vec<u8>),
        new: New,
        distribution: u8,
        controls: u64,
        epoch: u64,
        usage: Option<u64>,
        also: (Option<Creator>, Option<Stub>),
    ) -> Result<Created, Errno> {
        let distribution = Distribution::from_bits(distribution).ok_or(Errno::PROTO)?;
        self.home_of_entry(at.0, &at.1)?;
        let new = new_object(&new, distribution, controls, also)?;
        self.make(at, &new, epoch, usage)
    }

    fn create_there(
        &self,
        at: (ObjectId, Vec<u8>),
        new: New,
        distribution: u8,
        controls: u64,
        epoch: u64,
        usage: Option<u64>,
        also: (Option<Creator>, Option<Stub>),
    ) -> Result<Created, Errno> {
        let distribution = Distribution::from_bits(distribution).ok_or(Errno::PROTO)?;
        let new = new_object(&new, distribution, controls, also)?;
        self.make(at, &new, epoch, usage)
    }

    fn creators(&self, List(creators): List<Creator>) -> Result<List<bool>, Errno> {
        Ok(List(DeclaredControls::creators_run(&creators)))
    }
}

/// Decodes the object to be created. EPROTO for values that no node sends.
fn new_object(
    new: &New,
    distribution: Distribution,
    controls: u64,
    (creator, stub): (Option<Creator>, Option<Stub>),
) -> Result<NewObject<'_>, Errno> {
    let (mode, uid, gid, rdev, target) = new;
    if target.len() > forebay_store::PATH_MAX {
        return Err(Errno::PROTO);
    }
    Ok(NewObject {
        mode: *mode,
        uid: *uid,
        gid: *gid,
        rdev: *rdev,
        target,
        distribution: Some(distribution),
        controls: checked(controls)?,
        creator,
        stub,
    })
}

impl Server {
    /// Opens, for `node`, the file that an earlier daemon created and kept open. `answer` is that
    /// daemon's reply to CREATE.
    pub(super) fn created_again(
        &self,
        cluster: &Cluster<'_>,
        node: NodeId,
        head: &[u8],
        answer: &[u8],
    ) {
        let asked: Option<arguments::CREATE> = decode(head);
        let made: Option<replies::CREATE> = decode(answer);
        if let (Some((_, new, _, _, _, Some(usage), ..)), Some(Ok(id))) = (asked, made)
            && new.0 & forebay_store::S_IFMT == libc::S_IFREG
        {
            // If the file was removed meanwhile, the requesting node notices that later.
            let _ = self.keep_open(cluster, node, id, usage);
        }
    }
}

impl Call<'_> {
    /// Creates an object on this node. With `usage`, a file is open for the requesting node from
    /// the start.
    fn make(
        &self,
        (dir, name): (ObjectId, Vec<u8>),
        new: &NewObject<'_>,
        epoch: u64,
        usage: Option<u64>,
    ) -> Result<Created, Errno> {
        let cluster = &self.cluster;
        let store = self.store();
        let epoch = store.names_epoch().agreed_with(epoch)?;
        let is_file = new.mode & forebay_store::S_IFMT == libc::S_IFREG;
        let Some(usage) = usage.filter(|_| is_file) else {
            return cluster
                .namespace()
                .create_object_near(dir, &name, new, epoch);
        };
        Ok(
            match cluster
                .namespace()
                .create_open_near(dir, &name, new, epoch)?
            {
                Ok((id, live, held)) => {
                    self.server
                        .keep(cluster, (self.from, id, usage), (live, held))?;
                    Ok(id)
                }
                Err(there) => Err(there),
            },
        )
    }
}
