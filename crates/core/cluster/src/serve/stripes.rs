//! Requests about striped files whose home is this node, about spilled files, and about holders of
//! leases.

use super::{Call, Server, check_size, with_file};
use crate::peers::messages::List;
use crate::peers::requests::Stripes;
use forebay_store::placements::{Chunk, Placed};
use forebay_store::process::identity_lives;
use forebay_store::stripe_units::{Granted, Holder};
use forebay_store::{CHUNK, ObjectId};
use rustix::io::Errno;

/// Maximum number of chunks in one reply to PLACES.
const PLACES: u64 = 2048;

fn is_chunk(chunk: u64) -> bool {
    chunk <= forebay_store::MAX_SIZE / CHUNK
}

impl Stripes<Call<'_>> for Server {
    fn layout(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        write: bool,
    ) -> Result<(u64, u64, u32, u64), Errno> {
        let cluster = &call.cluster;
        let known = with_file(cluster, id, |live| {
            cluster.store().parts().layout_here(live, write)
        })?;
        Ok((known.size, known.cuts, known.appends, known.word))
    }

    fn grow(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        cuts_and_appends: (u64, u32),
        end: u64,
    ) -> Result<(), Errno> {
        let cluster = &call.cluster;
        check_size(end)?;
        with_file(cluster, id, |live| {
            cluster
                .store()
                .parts()
                .grow_here(live, cuts_and_appends, end)
        })
    }

    fn lease(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        process: u32,
        over: Option<u64>,
    ) -> Result<Result<Granted, Holder>, Errno> {
        let cluster = &call.cluster;
        with_file(cluster, id, |live| {
            cluster
                .store()
                .parts()
                .lease_here(live, (call.from, process), over)
        })
    }

    fn end_lease(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        lease: u64,
        cuts_and_appends: (u64, u32),
        size: Option<u64>,
    ) -> Result<bool, Errno> {
        let cluster = &call.cluster;
        size.map_or(Ok(()), check_size)?;
        with_file(cluster, id, |live| {
            cluster
                .store()
                .parts()
                .end_lease_here(live, lease, cuts_and_appends, size)
        })
    }

    fn places(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        cuts: u64,
        chunk: u64,
        count: u64,
    ) -> Result<List<(u64, Placed)>, Errno> {
        let cluster = &call.cluster;
        let range = (chunk, count.min(PLACES));
        with_file(cluster, id, |live| {
            cluster.store().parts().places_here(live, cuts, range)
        })
        .map(List)
    }

    fn place(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        cuts: u64,
        chunk: u64,
        end: u64,
    ) -> Result<Chunk, Errno> {
        let cluster = &call.cluster;
        let sound = (1..=CHUNK).contains(&end) && is_chunk(chunk);
        sound.then_some(()).ok_or(Errno::PROTO)?;
        with_file(cluster, id, |live| {
            let place = || cluster.store().parts().place_here(live, cuts, chunk, end);
            cluster.store().recovery().with_room_of_the_dead(place)
        })
    }

    fn assign(
        &self,
        call: &Call<'_>,
        id: ObjectId,
        cuts: u64,
        chunk: u64,
        placed: Placed,
        inline: Option<u64>,
    ) -> Result<Placed, Errno> {
        let cluster = &call.cluster;
        let known = cluster.other_nodes()?.nodes().contains(&placed.node);
        let sound = known && is_chunk(chunk);
        sound.then_some(()).ok_or(Errno::PROTO)?;
        with_file(cluster, id, |live| {
            cluster
                .store()
                .parts()
                .assign_here(live, cuts, chunk, placed, inline)
        })
    }

    fn lives(&self, call: &Call<'_>, process: u32) -> Result<bool, Errno> {
        Ok(identity_lives(call.store().control(), process))
    }
}
