//! Requests about entries that may require requests to further nodes: making, removing, linking,
//! renaming, exchanging.

use super::{Call, check_name, each};
use crate::cross_node::Placed;
use crate::peers::messages::List;
use crate::peers::requests::Entries;
use forebay_store::{Entry, ObjectId, RenameMode};
use rustix::io::Errno;

type Name = (ObjectId, Vec<u8>);

/// Checks that this node is the home of all these entries. Returns the epoch of names.
fn check_all(
    call: &Call<'_>,
    dir: ObjectId,
    entries: &[(Vec<u8>, Entry)],
    epoch: u64,
) -> Result<u64, Errno> {
    let check = |(name, _): &(Vec<u8>, Entry)| call.home_of_entry(dir, name);
    entries.iter().try_for_each(check)?;
    call.store().names_epoch().agreed_with(epoch)
}

impl Entries for Call<'_> {
    fn insert(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        entry: Entry,
        held: bool,
        epoch: u64,
    ) -> Result<Option<Entry>, Errno> {
        self.home_of_entry(parent, &name)?;
        let epoch = self.store().names_epoch().agreed_with(epoch)?;
        let cross_node = self.cluster.cross_node();
        cross_node.insert((parent, &name), entry, held, epoch)
    }

    fn insert_all(
        &self,
        parent: ObjectId,
        List(entries): List<(Vec<u8>, Entry)>,
        epoch: u64,
    ) -> Result<List<Result<Option<Entry>, u32>>, Errno> {
        let epoch = check_all(self, parent, &entries, epoch)?;
        let cross_node = self.cluster.cross_node();
        Ok(each(
            cross_node.insert_all(parent, &entries, epoch).into_iter(),
        ))
    }

    fn remove_all(
        &self,
        parent: ObjectId,
        List(entries): List<(Vec<u8>, Entry)>,
        epoch: u64,
    ) -> Result<List<Result<bool, u32>>, Errno> {
        let epoch = check_all(self, parent, &entries, epoch)?;
        let cross_node = self.cluster.cross_node();
        Ok(each(
            cross_node.remove_all(parent, &entries, epoch).into_iter(),
        ))
    }

    fn unlink(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        epoch: u64,
        names: bool,
    ) -> Result<(), Errno> {
        self.home_of_entry(parent, &name)?;
        let epoch = self.store().names_epoch().agreed_with(epoch)?;
        self.cluster
            .namespace()
            .unlink_here(parent, &name, None, epoch, names)
    }

    fn unlink_from(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        entry: Entry,
        epoch: u64,
    ) -> Result<bool, Errno> {
        self.home_of_entry(parent, &name)?;
        let epoch = self.store().names_epoch().agreed_with(epoch)?;
        self.cluster
            .namespace()
            .unlink_entry((parent, &name), entry, epoch)
    }

    fn link(&self, id: ObjectId, parent: ObjectId, name: Vec<u8>, epoch: u64) -> Result<(), Errno> {
        check_name(&name)?;
        let id = self.home(id)?;
        let epoch = self.store().names_epoch().agreed_with(epoch)?;
        self.cluster.namespace().link(id, parent, &name, epoch)
    }

    fn rename(
        &self,
        from: Name,
        to: Name,
        mode: RenameMode,
        names: Option<ObjectId>,
        epoch: u64,
    ) -> Result<(), Errno> {
        self.home_of_entry(from.0, &from.1)?;
        check_name(&to.1)?;
        let epoch = self.store().names_epoch().agreed_with(epoch)?;
        let (from, to) = ((from.0, &from.1[..]), (to.0, &to.1[..]));
        let cross_node = self.cluster.cross_node();
        cross_node.rename_from(from, to, mode, names, epoch)
    }

    fn replace(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        entry: Entry,
        mode: RenameMode,
        names: Option<ObjectId>,
        epoch: u64,
    ) -> Result<bool, Errno> {
        self.home_of_entry(parent, &name)?;
        let epoch = self.store().names_epoch().agreed_with(epoch)?;
        let cross_node = self.cluster.cross_node();
        let placed = cross_node.replace((parent, &name), entry, mode, names, epoch)?;
        Ok(placed == Placed::Same)
    }

    fn together(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        entry: Entry,
        other: ObjectId,
        with: Vec<u8>,
        there: Entry,
    ) -> Result<bool, Errno> {
        self.home_of_entry(parent, &name)?;
        check_name(&with)?;
        let (x, y) = ((parent, &name[..]), (other, &with[..]));
        let cross_node = self.cluster.cross_node();
        cross_node.are_together((x, entry), (y, there))
    }

    fn exchange(
        &self,
        parent: ObjectId,
        name: Vec<u8>,
        other: ObjectId,
        with: Vec<u8>,
        names: bool,
        epoch: u64,
    ) -> Result<(), Errno> {
        self.home_of_entry(parent, &name)?;
        check_name(&with)?;
        let epoch = self.store().names_epoch().agreed_with(epoch)?;
        let cross_node = self.cluster.cross_node();
        cross_node.exchange((parent, &name), (other, &with), names, epoch)
    }

    fn join_exchange(
        &self,
        at: Name,
        comes: Entry,
        leads: Name,
        exchange: u64,
        names: bool,
        epoch: u64,
    ) -> Result<Option<Entry>, Errno> {
        self.home_of_entry(at.0, &at.1)?;
        check_name(&leads.1)?;
        let epoch = self.store().names_epoch().agreed_with(epoch)?;
        let led = ((leads.0, &leads.1[..]), exchange);
        let cross_node = self.cluster.cross_node();
        cross_node.join_exchange((at.0, &at.1), comes, led, names, epoch)
    }

    fn remove_dir(&self, parent: ObjectId, name: Vec<u8>) -> Result<(), Errno> {
        self.home_of_entry(parent, &name)?;
        self.cluster.cross_node().remove_dir_entry((parent, &name))
    }
}
