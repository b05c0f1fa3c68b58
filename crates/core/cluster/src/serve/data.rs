//! Requests about the bytes of files whose home is this node, and about stable storage.

use super::{Call, Server, bytes_read, home, with_file, with_file_in_room};
use crate::peers::MAX_BODY;
use crate::peers::messages::List;
use crate::peers::requests::Data;
use forebay_store::ObjectId;
use rustix::io::Errno;

impl Data<Call<'_>> for Server {
    fn read(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        offset: u64,
        length: u64,
    ) -> Result<((), Vec<u8>), Errno> {
        let cluster = &call.cluster;
        let len = usize::try_from(length).map_err(|_| Errno::PROTO)?;
        let len = len.min(MAX_BODY);
        let bytes = with_file(cluster, id, |live| {
            // SAFETY: the buffer has room for `len` bytes.
            let bytes = unsafe {
                bytes_read(len, |to| {
                    cluster.store().content().read_here(live, offset, to, len)
                })
            }?;
            // Checked after the read: if the file was spilled meanwhile, some of these bytes may
            // lie on other nodes.
            cluster.store().parts().not_spilled(live)?;
            Ok(bytes)
        })?;
        Ok(((), bytes))
    }

    fn write(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        offset: Option<u64>,
        body: &[u8],
    ) -> Result<(u64, u64), Errno> {
        let cluster = &call.cluster;
        let (at, n) = with_file_in_room(cluster, id, |live| {
            // SAFETY: pointer and length are those of `body`.
            cluster.store().recovery().with_room_of_the_dead(|| unsafe {
                let bytes = (body.as_ptr(), body.len());
                cluster
                    .store()
                    .content()
                    .write_here(live, offset, bytes, true, |live| {
                        live.change_by(Some(call.from));
                        cluster.store().parts().may_write(live, offset, body.len())
                    })
            })
        })?;
        Ok((at, n as u64))
    }

    fn write_pieces(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        List(pieces): List<(u64, u32)>,
        body: &[u8],
    ) -> Result<(), Errno> {
        let cluster = &call.cluster;
        with_file_in_room(cluster, id, |live| {
            cluster
                .data()
                .write_all_here(live, call.from, &pieces, body)
        })
    }

    fn truncate(&self, call: &Call<'_>, id: ObjectId, size: u64) -> Result<(), Errno> {
        let cluster = &call.cluster;
        with_file(cluster, id, |live| {
            cluster
                .store()
                .content()
                .truncate_here(live, |live| cluster.store().parts().may_cut(live, size))
        })
    }

    fn reserve(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        offset: u64,
        length: u64,
        grow: bool,
    ) -> Result<(), Errno> {
        let cluster = &call.cluster;
        with_file_in_room(cluster, id, |live| {
            cluster.store().parts().not_spilled(live)?;
            let reserve = || {
                cluster
                    .store()
                    .content()
                    .reserve_here(live, offset, length, grow)
            };
            cluster.store().recovery().with_room_of_the_dead(reserve)
        })
    }

    fn punch(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        offset: u64,
        length: u64,
        grow: bool,
    ) -> Result<(), Errno> {
        let cluster = &call.cluster;
        with_file(cluster, id, |live| {
            cluster.store().parts().not_spilled(live)?;
            cluster
                .store()
                .content()
                .punch_here(live, offset, length, grow)
        })
    }

    fn seek(&self, call: &Call<'_>, id: ObjectId, offset: u64, hole: bool) -> Result<u64, Errno> {
        let cluster = &call.cluster;
        with_file(cluster, id, |live| {
            let found = cluster.store().content().seek_here(live, offset, hole);
            cluster.store().parts().not_spilled(live)?;
            found
        })
    }

    fn sync(&self, call: &Call<'_>, id: ObjectId) -> Result<(), Errno> {
        let cluster = &call.cluster;
        with_file(cluster, id, |live| {
            cluster.store().parts().not_spilled(live)?;
            cluster.store().durability().sync_here(live)
        })
    }

    fn sync_all(&self, call: &Call<'_>) -> Result<(), Errno> {
        call.store().durability().sync_all()
    }

    fn sync_records(&self, call: &Call<'_>) -> Result<(), Errno> {
        call.store().durability().sync_entries()
    }

    fn copied(
        &self,
        call: &Call<'_>,
        List(editions): List<(ObjectId, u64)>,
    ) -> Result<List<bool>, Errno> {
        let stands = editions.iter().map(|&(id, edition)| {
            home(&call.cluster, id)?;
            call.store().local_copies().stands(id, edition)
        });
        stands.collect::<Result<_, _>>().map(List)
    }
}
