//! Requests about attributes of objects: those of POSIX, and extended ones.

use super::{Call, check_name};
use crate::peers::messages::List;
use crate::peers::requests::Attributes;
use forebay_store::{ObjectId, SetAttr};
use rustix::io::{Errno, Result};

/// Checks the length of an extended attribute's name. EPROTO if the name is empty or too long. It
/// may contain any bytes.
fn check_attribute(name: &[u8]) -> Result<()> {
    if (1..=forebay_store::NAME_MAX).contains(&name.len()) {
        Ok(())
    } else {
        Err(Errno::PROTO)
    }
}

impl Attributes for Call<'_> {
    fn set_attr(&self, id: ObjectId, set: SetAttr) -> Result<()> {
        let id = self.home(id)?;
        self.store().names().set_attr_here(id, &set)
    }

    fn attribute(&self, id: ObjectId, name: Vec<u8>) -> Result<((), Vec<u8>)> {
        check_attribute(&name)?;
        let value = self.cluster.namespace().attribute(self.home(id)?, &name)?;
        Ok(((), value))
    }

    fn attributes(&self, id: ObjectId) -> Result<List<Vec<u8>>> {
        let id = self.home(id)?;
        self.cluster.namespace().attributes(id).map(List)
    }

    fn set_attribute(
        &self,
        id: ObjectId,
        name: Vec<u8>,
        must_be_new: Option<bool>,
        known: Option<(ObjectId, Vec<u8>)>,
        body: &[u8],
    ) -> Result<()> {
        check_attribute(&name)?;
        let known = known.as_ref().map(|k| (k.0, &k.1[..]));
        let known = known.filter(|k| check_name(k.1).is_ok());
        let id = self.home(id)?;
        self.cluster
            .namespace()
            .set_attribute(id, &name, body, must_be_new, known)
    }

    fn remove_attribute(&self, id: ObjectId, name: Vec<u8>) -> Result<()> {
        check_attribute(&name)?;
        self.cluster
            .namespace()
            .remove_attribute(self.home(id)?, &name)
    }

    fn touch(&self, dir: ObjectId, time: i64) -> Result<()> {
        let dir = self.home(dir)?;
        self.store().names().note_dir_time(dir, time)
    }

    fn dir_links(&self, dir: ObjectId, difference: i64) -> Result<()> {
        let dir = self.home(dir)?;
        self.cluster.cross_node().add_dir_links(dir, difference)
    }
}
