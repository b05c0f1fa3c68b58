//! Requests about attributes of objects: those of POSIX, and extended ones.

use super::{Call, Server, check_name, home};
use crate::peers::messages::List;
use crate::peers::requests::Attributes;
use forebay_store::{ObjectId, SetAttr};
use rustix::io::Errno;

/// Checks the length of an extended attribute's name. EPROTO if the name is empty or too long. It
/// may contain any bytes.
fn check_attribute(name: &[u8]) -> Result<(), Errno> {
    if (1..=forebay_store::NAME_MAX).contains(&name.len()) {
        Ok(())
    } else {
        Err(Errno::PROTO)
    }
}

impl Attributes<Call<'_>> for Server {
    fn set_attr(&self, call: &Call<'_>, id: ObjectId, set: SetAttr) -> Result<(), Errno> {
        let id = home(&call.cluster, id)?;
        call.store().names().set_attr_here(id, &set)
    }

    fn attribute(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        name: Vec<u8>,
    ) -> Result<((), Vec<u8>), Errno> {
        check_attribute(&name)?;
        let value = call
            .cluster
            .namespace()
            .attribute(home(&call.cluster, id)?, &name)?;
        Ok(((), value))
    }

    fn attributes(&self, call: &Call<'_>, id: ObjectId) -> Result<List<Vec<u8>>, Errno> {
        let id = home(&call.cluster, id)?;
        call.cluster.namespace().attributes(id).map(List)
    }

    fn set_attribute(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        name: Vec<u8>,
        must_be_new: Option<bool>,
        known: Option<(ObjectId, Vec<u8>)>,
        body: &[u8],
    ) -> Result<(), Errno> {
        check_attribute(&name)?;
        let known = known.as_ref().map(|k| (k.0, &k.1[..]));
        let known = known.filter(|k| check_name(k.1).is_ok());
        let id = home(&call.cluster, id)?;
        call.cluster
            .namespace()
            .set_attribute(id, &name, body, must_be_new, known)
    }

    fn remove_attribute(&self, call: &Call<'_>, id: ObjectId, name: Vec<u8>) -> Result<(), Errno> {
        check_attribute(&name)?;
        call.cluster
            .namespace()
            .remove_attribute(home(&call.cluster, id)?, &name)
    }

    fn touch(&self, call: &Call<'_>, dir: ObjectId, time: i64) -> Result<(), Errno> {
        let dir = home(&call.cluster, dir)?;
        call.store().names().note_dir_time(dir, time)
    }

    fn dir_links(&self, call: &Call<'_>, dir: ObjectId, difference: i64) -> Result<(), Errno> {
        let dir = home(&call.cluster, dir)?;
        call.cluster.cross_node().add_dir_links(dir, difference)
    }
}
