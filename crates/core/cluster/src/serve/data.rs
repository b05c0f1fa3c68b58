//! Requests about the bytes of files whose home is this node, and about stable storage.

use super::{Call, bytes_read};
use crate::peers::MAX_BODY;
use crate::peers::messages::List;
use crate::peers::requests::Data;
use forebay_store::ObjectId;
use rustix::io::{Errno, Result};

impl Data for Call<'_> {
    fn read(&self, id: ObjectId, offset: u64, length: u64) -> Result<((), Vec<u8>)> {
        let store = self.store();
        let len = usize::try_from(length).map_err(|_| Errno::PROTO)?;
        let len = len.min(MAX_BODY);
        let bytes = self.with_file(id, |live| {
            // SAFETY: the buffer has room for `len` bytes.
            let bytes =
                unsafe { bytes_read(len, |to| store.content().read_here(live, offset, to, len)) }?;
            // Checked after the read: if the file was spilled meanwhile, some of these bytes may
            // lie on other nodes.
            store.parts().not_spilled(live)?;
            Ok(bytes)
        })?;
        Ok(((), bytes))
    }

    fn write(&self, id: ObjectId, offset: Option<u64>, body: &[u8]) -> Result<(u64, u64)> {
        let store = self.store();
        let (at, n) = self.with_file_in_room(id, |live| {
            // SAFETY: pointer and length are those of `body`.
            store.recovery().with_room_of_the_dead(|| unsafe {
                let bytes = (body.as_ptr(), body.len());
                store
                    .content()
                    .write_here(live, offset, bytes, true, |live| {
                        live.change_by(Some(self.from));
                        store.parts().may_write(live, offset, body.len())
                    })
            })
        })?;
        Ok((at, n as u64))
    }

    fn write_pieces(
        &self,
        id: ObjectId,
        List(pieces): List<(u64, u32)>,
        body: &[u8],
    ) -> Result<()> {
        let cluster = &self.cluster;
        self.with_file_in_room(id, |live| {
            cluster
                .data()
                .write_all_here(live, self.from, &pieces, body)
        })
    }

    fn truncate(&self, id: ObjectId, size: u64) -> Result<()> {
        let store = self.store();
        self.with_file(id, |live| {
            store
                .content()
                .truncate_here(live, |live| store.parts().may_cut(live, size))
        })
    }

    fn reserve(&self, id: ObjectId, offset: u64, length: u64, grow: bool) -> Result<()> {
        let store = self.store();
        self.with_file_in_room(id, |live| {
            store.parts().not_spilled(live)?;
            let reserve = || store.content().reserve_here(live, offset, length, grow);
            store.recovery().with_room_of_the_dead(reserve)
        })
    }

    fn punch(&self, id: ObjectId, offset: u64, length: u64, grow: bool) -> Result<()> {
        let store = self.store();
        self.with_file(id, |live| {
            store.parts().not_spilled(live)?;
            store.content().punch_here(live, offset, length, grow)
        })
    }

    fn seek(&self, id: ObjectId, offset: u64, hole: bool) -> Result<u64> {
        let store = self.store();
        self.with_file(id, |live| {
            let found = store.content().seek_here(live, offset, hole);
            store.parts().not_spilled(live)?;
            found
        })
    }

    fn sync(&self, id: ObjectId) -> Result<()> {
        let store = self.store();
        self.with_file(id, |live| {
            store.parts().not_spilled(live)?;
            store.durability().sync_here(live)
        })
    }

    fn sync_all(&self) -> Result<()> {
        self.store().durability().sync_all()
    }

    fn sync_records(&self) -> Result<()> {
        self.store().durability().sync_entries()
    }

    fn copied(&self, List(editions): List<(ObjectId, u64)>) -> Result<List<bool>> {
        let stands = editions.iter().map(|&(id, edition)| {
            self.home(id)?;
            self.store().local_copies().stands(id, edition)
        });
        stands.collect::<Result<_>>().map(List)
    }
}
