//! Requests to an object's home about names with entries on other nodes, and about exchanges in
//! progress (`cross_node/links.rs`, `cross_node/exchange.rs`).

use super::{Call, check_name, each};
use crate::peers::messages::List;
use crate::peers::requests::Links;
use forebay_store::{Entry, ObjectId};
use rustix::io::Errno;

impl Links for Call<'_> {
    fn add_link(
        &self,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        from: ObjectId,
        old: Vec<u8>,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        check_name(&old)?;
        let id = self.home(id)?;
        let cross_node = self.cluster.cross_node();
        cross_node.add_link(id, (parent, &name), (from, &old))
    }

    fn undo_link(
        &self,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        slot: u32,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        let id = self.home(id)?;
        self.cluster
            .cross_node()
            .undo_link(id, (parent, &name), slot)
    }

    fn drop_link(
        &self,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        new: Option<(ObjectId, Vec<u8>)>,
        again: bool,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        new.as_ref().map_or(Ok(()), |n| check_name(&n.1))?;
        let new = new.as_ref().map(|n| (n.0, &n.1[..]));
        let id = self.home(id)?;
        let cross_node = self.cluster.cross_node();
        cross_node.lose_name(id, (parent, &name), new, again)
    }

    fn drop_links(
        &self,
        parent: ObjectId,
        List(files): List<(ObjectId, Vec<u8>)>,
    ) -> Result<List<Result<(), u32>>, Errno> {
        let cross_node = self.cluster.cross_node();
        let one = |(id, name): &(ObjectId, Vec<u8>)| {
            check_name(name)?;
            cross_node.lose_name(self.home(*id)?, (parent, name), None, false)
        };
        Ok(each(files.iter().map(one)))
    }

    fn has_link(&self, id: ObjectId, parent: ObjectId, name: Vec<u8>) -> Result<bool, Errno> {
        check_name(&name)?;
        let id = self.home(id)?;
        self.cluster.cross_node().has_coming(id, (parent, &name))
    }

    fn offered(
        &self,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
    ) -> Result<Option<bool>, Errno> {
        check_name(&name)?;
        let id = self.home(id)?;
        self.cluster.cross_node().offered(id, (parent, &name))
    }

    fn release(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        entry: Entry,
        stays: bool,
    ) -> Result<(), Errno> {
        self.home_of_entry(parent, &name)?;
        let cross_node = self.cluster.cross_node();
        cross_node.release_entry((parent, &name), entry, stays)
    }

    fn exchange_link(
        &self,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        from: ObjectId,
        old: Vec<u8>,
        exchange: u64,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        check_name(&old)?;
        let (new, old) = ((parent, &name[..]), (from, &old[..]));
        let id = self.home(id)?;
        let cross_node = self.cluster.cross_node();
        cross_node.exchange_link(id, new, old, exchange)
    }

    fn end_exchange_link(
        &self,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        exchange: u64,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        let id = self.home(id)?;
        let cross_node = self.cluster.cross_node();
        cross_node.end_exchange_link(id, (parent, &name), exchange)
    }

    fn end_exchange(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        exchange: u64,
        done: bool,
    ) -> Result<(), Errno> {
        self.home_of_entry(parent, &name)?;
        let cross_node = self.cluster.cross_node();
        cross_node.end_exchange((parent, &name), exchange, done)
    }

    fn exchange_stands(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        exchange: u64,
    ) -> Result<bool, Errno> {
        self.home_of_entry(parent, &name)?;
        let cross_node = self.cluster.cross_node();
        cross_node.exchange_stands(((parent, &name), exchange))
    }
}
