//! Requests to an object's home about names with entries on other nodes, and about exchanges in
//! progress (`cross_node/links.rs`, `cross_node/exchange.rs`).

use super::{Call, Server, check_name, each, home, home_of_entry};
use crate::peers::messages::List;
use crate::peers::requests::Links;
use forebay_store::{Entry, ObjectId};
use rustix::io::Errno;

impl Links<Call<'_>> for Server {
    fn add_link(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        from: ObjectId,
        old: Vec<u8>,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        check_name(&old)?;
        let id = home(&call.cluster, id)?;
        let cross_node = call.cluster.cross_node();
        cross_node.add_link(id, (parent, &name), (from, &old))
    }

    fn undo_link(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        slot: u32,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        let id = home(&call.cluster, id)?;
        call.cluster
            .cross_node()
            .undo_link(id, (parent, &name), slot)
    }

    fn drop_link(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        new: Option<(ObjectId, Vec<u8>)>,
        again: bool,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        new.as_ref().map_or(Ok(()), |n| check_name(&n.1))?;
        let new = new.as_ref().map(|n| (n.0, &n.1[..]));
        let id = home(&call.cluster, id)?;
        let cross_node = call.cluster.cross_node();
        cross_node.lose_name(id, (parent, &name), new, again)
    }

    fn drop_links(
        &self,
        call: &Call<'_>,
        parent: ObjectId,
        List(files): List<(ObjectId, Vec<u8>)>,
    ) -> Result<List<Result<(), u32>>, Errno> {
        let cross_node = call.cluster.cross_node();
        let one = |(id, name): &(ObjectId, Vec<u8>)| {
            check_name(name)?;
            cross_node.lose_name(home(&call.cluster, *id)?, (parent, name), None, false)
        };
        Ok(each(files.iter().map(one)))
    }

    fn has_link(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
    ) -> Result<bool, Errno> {
        check_name(&name)?;
        let id = home(&call.cluster, id)?;
        call.cluster.cross_node().has_coming(id, (parent, &name))
    }

    fn offered(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
    ) -> Result<Option<bool>, Errno> {
        check_name(&name)?;
        let id = home(&call.cluster, id)?;
        call.cluster.cross_node().offered(id, (parent, &name))
    }

    fn release(
        &self,
        call: &Call<'_>,
        parent: ObjectId,
        name: Vec<u8>,
        entry: Entry,
        stays: bool,
    ) -> Result<(), Errno> {
        home_of_entry(&call.cluster, parent, &name)?;
        let cross_node = call.cluster.cross_node();
        cross_node.release_entry((parent, &name), entry, stays)
    }

    fn exchange_link(
        &self,
        call: &Call<'_>,
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
        let id = home(&call.cluster, id)?;
        let cross_node = call.cluster.cross_node();
        cross_node.exchange_link(id, new, old, exchange)
    }

    fn end_exchange_link(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        parent: ObjectId,
        name: Vec<u8>,
        exchange: u64,
    ) -> Result<(), Errno> {
        check_name(&name)?;
        let id = home(&call.cluster, id)?;
        let cross_node = call.cluster.cross_node();
        cross_node.end_exchange_link(id, (parent, &name), exchange)
    }

    fn end_exchange(
        &self,
        call: &Call<'_>,
        parent: ObjectId,
        name: Vec<u8>,
        exchange: u64,
        done: bool,
    ) -> Result<(), Errno> {
        home_of_entry(&call.cluster, parent, &name)?;
        let cross_node = call.cluster.cross_node();
        cross_node.end_exchange((parent, &name), exchange, done)
    }

    fn exchange_stands(
        &self,
        call: &Call<'_>,
        parent: ObjectId,
        name: Vec<u8>,
        exchange: u64,
    ) -> Result<bool, Errno> {
        home_of_entry(&call.cluster, parent, &name)?;
        let cross_node = call.cluster.cross_node();
        cross_node.exchange_stands(((parent, &name), exchange))
    }
}
