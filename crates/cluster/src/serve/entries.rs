//! Answers to requests about entries for which this node may have to ask others: making, removing,
//! linking, renaming, exchanging.

use super::{Reply, check_name, checked, home, home_of_entry, parts, told, told_each};
use crate::Cluster;
use crate::cross_node::Placed;
use crate::peers::messages::{List, kind};
use forebay_store::{Entry, ObjectId};
use rustix::io::Errno;

pub(super) fn composite(store: &Cluster<'_>, kind: u16, head: &[u8]) -> Result<Reply, Errno> {
    let cross_node = store.cross_node();
    match kind {
        kind::INSERT => {
            let (dir, name, entry, held, epoch): (_, Vec<u8>, Entry, _, _) = parts(head)?;
            home_of_entry(store, dir, &name)?;
            let epoch = store.names().epoch_for(epoch)?;
            told(cross_node.insert((dir, &name), entry, held, epoch)?)
        }
        kind::INSERT_ALL => {
            let (dir, entries, epoch) = entries_here(store, head)?;
            told_each(cross_node.insert_all(dir, &entries, epoch).into_iter())
        }
        kind::REMOVE_ALL => {
            let (dir, entries, epoch) = entries_here(store, head)?;
            told_each(cross_node.remove_all(dir, &entries, epoch).into_iter())
        }
        kind::COUNT_USES => {
            let (id, word, is_said): (ObjectId, _, _) = parts(head)?;
            if id.is_part() || id.is_view() {
                return Err(Errno::PROTO);
            }
            told(List(store.count_here(id, checked(word)?, is_said)?))
        }
        kind::UNLINK => {
            let (dir, name, epoch, names): (_, Vec<u8>, _, _) = parts(head)?;
            home_of_entry(store, dir, &name)?;
            let epoch = store.names().epoch_for(epoch)?;
            told(store.unlink_here(dir, &name, None, epoch, names)?)
        }
        kind::UNLINK_FROM => {
            let (dir, name, entry, epoch): (_, Vec<u8>, Entry, _) = parts(head)?;
            home_of_entry(store, dir, &name)?;
            let epoch = store.names().epoch_for(epoch)?;
            told(store.unlink_entry((dir, &name), entry, epoch)?)
        }
        kind::LINK => {
            let (id, dir, name, epoch): (_, _, Vec<u8>, _) = parts(head)?;
            check_name(&name)?;
            told(store.link(
                home(store, id)?,
                dir,
                &name,
                store.names().epoch_for(epoch)?,
            )?)
        }
        kind::RENAME => {
            type Name = (ObjectId, Vec<u8>);
            let ((from, name), (to, new), mode, names, epoch): (Name, Name, _, _, _) = parts(head)?;
            home_of_entry(store, from, &name)?;
            check_name(&new)?;
            let epoch = store.names().epoch_for(epoch)?;
            told(cross_node.rename_from((from, &name), (to, &new), mode, names, epoch)?)
        }
        kind::REPLACE => {
            let (dir, name, source, mode, names, epoch): (_, Vec<u8>, _, _, _, _) = parts(head)?;
            home_of_entry(store, dir, &name)?;
            let epoch = store.names().epoch_for(epoch)?;
            let placed = cross_node.replace((dir, &name), source, mode, names, epoch)?;
            told(placed == Placed::Same)
        }
        kind::TOGETHER => {
            type Question = (ObjectId, Vec<u8>, Entry, ObjectId, Vec<u8>, Entry);
            let (dir, name, entry, other, with, there): Question = parts(head)?;
            home_of_entry(store, dir, &name)?;
            check_name(&with)?;
            let (x, y) = ((dir, &name[..]), (other, &with[..]));
            told(cross_node.are_together((x, entry), (y, there))?)
        }
        kind::EXCHANGE => {
            let (dir, name, other, with, names, epoch): (_, Vec<u8>, _, Vec<u8>, _, _) =
                parts(head)?;
            home_of_entry(store, dir, &name)?;
            check_name(&with)?;
            let epoch = store.names().epoch_for(epoch)?;
            told(cross_node.exchange((dir, &name), (other, &with), names, epoch)?)
        }
        kind::JOIN_EXCHANGE => {
            type Name = (ObjectId, Vec<u8>);
            let (y, comes, x, number, names, epoch): (Name, _, Name, _, _, _) = parts(head)?;
            home_of_entry(store, y.0, &y.1)?;
            check_name(&x.1)?;
            let epoch = store.names().epoch_for(epoch)?;
            let led = ((x.0, &x.1[..]), number);
            told(cross_node.join_exchange((y.0, &y.1), comes, led, names, epoch)?)
        }
        kind::REMOVE_DIR => {
            let (dir, name): (_, Vec<u8>) = parts(head)?;
            home_of_entry(store, dir, &name)?;
            told(cross_node.remove_dir_entry((dir, &name))?)
        }
        _ => Err(Errno::PROTO),
    }
}

/// Entries of a directory that all lie here, and the epoch of names.
type Entries = (ObjectId, Vec<(Vec<u8>, Entry)>, u64);

fn entries_here(store: &Cluster<'_>, head: &[u8]) -> Result<Entries, Errno> {
    let (dir, List(entries), epoch): (_, List<(Vec<u8>, Entry)>, _) = parts(head)?;
    entries
        .iter()
        .try_for_each(|(name, _)| home_of_entry(store, dir, name))?;
    Ok((dir, entries, store.names().epoch_for(epoch)?))
}
