//! Operations on a striped file as a whole: attributes, syncing, reserving, punching, holes.
//!
//! The home's inode has the size and the times of the file's changes at the home. Each part adds
//! its pages and its last write time. Requests go to all nodes with parts at once.

use super::{MAX_PIECES_IN_FLIGHT, Piece, Place, Striped, Stripes};
use crate::peers::requests::request;
use crate::peers::{Bytes, MAX_BODY};
use crate::views::FileData;
use forebay_store::controls::{Change, check_word};
use forebay_store::data::MAX_SIZE;
use forebay_store::record::Inode;
use forebay_store::{NodeId, ObjectId, Result};
use rustix::io::Errno;

fn with_times_and_pages(mut inode: Inode, parts: &[Inode]) -> Inode {
    let changed = inode.ctime;
    for part in parts {
        inode.pages += part.pages;
        // The time of a part's last write is used only if it is later than the last change of the
        // inode, since that change may have set the times.
        if part.mtime > changed {
            inode.mtime = inode.mtime.max(part.mtime);
            inode.ctime = inode.ctime.max(part.mtime);
        }
    }
    inode
}

impl<'a> FileData<'a> {
    /// Returns the attributes of a file: those in `inode`, from the home, with the pages and the
    /// last write times of the file's parts.
    ///
    /// # Errors
    /// EHOSTDOWN if a node can't be reached; ENOENT if the file is removed meanwhile.
    pub fn with_parts(&self, id: ObjectId, mut inode: Inode) -> Result<Inode> {
        if !inode.is_spread || self.store().remote.is_none() {
            return Ok(inode);
        }
        loop {
            let parts = self.cluster.stripes().part_inodes(id, None)?;
            if parts.iter().all(|part| part.cuts <= inode.cuts) {
                return Ok(with_times_and_pages(inode, &parts));
            }
            // The file is being truncated. If the truncating process has died, complete the
            // truncation now, so that it doesn't take effect after these attributes were returned.
            self.cluster.stripes().settle_cut_of(id)?;
            inode = self.cluster.namespace().stat(id)?;
        }
    }
}

impl<'a> Stripes<'a> {
    /// Returns the other nodes that may have a part of the file.
    pub(crate) fn part_nodes(&self, id: ObjectId) -> Result<Vec<NodeId>> {
        let others = self.cluster.other_nodes()?;
        let home = others.node_of(id.slot());
        let all = others.nodes().iter().copied();
        Ok(all
            .filter(|&n| n != home && n != others.this_node())
            .collect())
    }

    /// Returns the attributes of a file's parts on all other nodes but `lost`.
    pub(super) fn part_inodes(&self, id: ObjectId, lost: Option<NodeId>) -> Result<Vec<Inode>> {
        let mut nodes = self.part_nodes(id)?;
        nodes.retain(|&node| Some(node) != lost);
        let reply = self.cluster.ask_each(&nodes, request::STAT_PART, &id);
        let mut parts = Vec::with_capacity(reply.len() + 1);
        for reply in reply {
            parts.extend(reply?.map(|record| record.0));
        }
        if self.cluster.remote_home(id).is_some() {
            parts.extend(self.store().parts().stat_part(id)?);
        }
        Ok(parts)
    }

    /// As [`FileData::sync`], for a striped or spilled file.
    pub(crate) fn sync_striped(&self, f: &Striped) -> Result<()> {
        if self.look(f, false)?.size > f.chunk.bytes() || f.spilled {
            let nodes = self.part_nodes(f.id)?;
            let reply = self.cluster.ask_each(&nodes, request::SYNC_PART, &f.id);
            reply.into_iter().collect::<Result<()>>()?;
            if f.home.is_some()
                && let Some(part) = self.own_part(f, false)?
            {
                self.store().durability().sync_here(part)?;
            }
        }
        // The home comes last: its record contains the file's size.
        match f.home {
            None => self.store().durability().sync_here(f.index),
            Some(home) if f.spilled => self.cluster.ask(home, request::SYNC_PART, &f.id),
            Some(home) => self.cluster.ask(home, request::SYNC, &f.id),
        }
    }

    /// As [`FileData::reserve_range`], or with `punch` as [`FileData::punch`], for a striped or
    /// spilled file.
    pub(crate) fn room_striped(
        &self,
        f: &Striped,
        (offset, len): (u64, u64),
        grow: bool,
        punch: bool,
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|&end| end <= MAX_SIZE);
        let end = end.ok_or(Errno::FBIG)?;
        let done = self.retry_cut(f, || {
            let first = end <= f.chunk.bytes() && !f.spilled;
            let known = self.look(f, !first && !punch)?;
            let change = if punch {
                Change::From(Some(offset))
            } else {
                Change::Size(MAX_SIZE)
            };
            check_word(known.word, known.size, change)?;
            if !first && !punch {
                self.cluster.declarations().prepare_parts(f)?;
            }
            // Beyond the end there is nothing to punch.
            let until = if punch { end.min(known.size) } else { end };
            let mut at = offset;
            while at < until {
                let turn = (until - at).min((MAX_PIECES_IN_FLIGHT * MAX_BODY) as u64);
                self.room_turn(f, known.cuts, at, turn as usize, punch)?;
                at += turn;
            }
            if grow && end > known.size {
                self.grow(f, known, end)?;
            }
            Ok(())
        });
        if done == Err(Errno::NOSPC) && f.spilled {
            // Truncating the file to its size frees the cells that were reserved beyond its end.
            self.fence(f, |_, _| Ok(false))?;
        }
        done
    }

    fn room_turn(
        &self,
        f: &Striped,
        cuts: u64,
        offset: u64,
        len: usize,
        punch: bool,
    ) -> Result<()> {
        let pieces = self.spread(f, cuts, (offset, len), !punch)?;
        let id = f.id;
        let head = |p: &Piece| match p.place {
            Place::Home(_) if !f.spilled => {
                let arguments = (id, p.offset, p.len as u64, false);
                if punch {
                    request::PUNCH.message(&arguments)
                } else {
                    request::RESERVE.message(&arguments)
                }
            }
            _ => request::ROOM_PART.message(&(id, cuts, p.offset, p.len as u64, punch)),
        };
        // SAFETY: without bytes, no address has to be valid.
        let reply = unsafe { self.ask_pieces(&pieces, head, |_| Bytes::None)? };
        reply.into_iter().try_for_each(|t| t.map(|_| ()))?;
        for p in &pieces {
            match p.place {
                Place::Object if punch => {
                    self.store()
                        .content()
                        .punch_here(f.index, p.offset, p.len as u64, false)?;
                }
                Place::Object => {
                    self.store()
                        .content()
                        .reserve_here(f.index, p.offset, p.len as u64, false)?
                }
                Place::Part => {
                    if let Some(part) = self.own_part(f, !punch)? {
                        self.store().parts().room_part(
                            part,
                            cuts,
                            (p.offset, p.len as u64),
                            punch,
                        )?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// As [`FileData::seek_data`]. In a file of several chunks, and in a spilled file, all bytes
    /// count as data.
    pub(crate) fn seek_striped(&self, f: &Striped, offset: u64, hole: bool) -> Result<u64> {
        let size = self.look(f, false)?.size;
        if size > f.chunk.bytes() || f.spilled {
            return match (offset < size, hole) {
                (false, _) => Err(Errno::NXIO),
                (true, false) => Ok(offset),
                (true, true) => Ok(size),
            };
        }
        match f.home {
            None => self.store().content().seek_here(f.index, offset, hole),
            Some(home) => self.cluster.ask(home, request::SEEK, &(f.id, offset, hole)),
        }
    }

    /// Makes the other nodes remove their parts of this node's file `id` after its removal.
    pub(crate) fn drop_parts(&self, id: ObjectId) -> Result<()> {
        let nodes = self.part_nodes(id)?;
        let reply = self.cluster.ask_each(&nodes, request::DROP_PART, &id);
        reply.into_iter().collect()
    }
}
