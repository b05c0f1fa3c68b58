//! Requests about striped files whose home is this node, about spilled files, and about holders of
//! leases.

use super::{Call, check_size};
use crate::peers::messages::List;
use crate::peers::requests::Stripes;
use forebay_store::placements::{Chunk, Placed};
use forebay_store::process::identity_lives;
use forebay_store::stripe_units::{Granted, Holder};
use forebay_store::{CHUNK, ObjectId};
use rustix::io::{Errno, Result};

/// Maximum number of chunks in one reply to PLACES.
const PLACES: u64 = 2048;

fn is_chunk(chunk: u64) -> bool {
    chunk <= forebay_store::MAX_SIZE / CHUNK
}

impl Stripes for Call<'_> {
    fn layout(&self, id: ObjectId, write: bool) -> Result<(u64, u64, u32, u64)> {
        let store = self.store();
        let known = self.with_file(id, |live| store.parts().layout_here(live, write))?;
        Ok((known.size, known.cuts, known.appends, known.word))
    }

    fn grow(&self, id: ObjectId, cuts_and_appends: (u64, u32), end: u64) -> Result<()> {
        let store = self.store();
        check_size(end)?;
        self.with_file(id, |live| {
            store.parts().grow_here(live, cuts_and_appends, end)
        })
    }

    fn lease(
        &self,
        id: ObjectId,
        process: u32,
        over: Option<u64>,
    ) -> Result<std::result::Result<Granted, Holder>> {
        let store = self.store();
        self.with_file(id, |live| {
            store.parts().lease_here(live, (self.from, process), over)
        })
    }

    fn end_lease(
        &self,
        id: ObjectId,
        lease: u64,
        cuts_and_appends: (u64, u32),
        size: Option<u64>,
    ) -> Result<bool> {
        let store = self.store();
        size.map_or(Ok(()), check_size)?;
        self.with_file(id, |live| {
            store
                .parts()
                .end_lease_here(live, lease, cuts_and_appends, size)
        })
    }

    fn places(
        &self,
        id: ObjectId,
        cuts: u64,
        chunk: u64,
        count: u64,
    ) -> Result<List<(u64, Placed)>> {
        let store = self.store();
        let range = (chunk, count.min(PLACES));
        self.with_file(id, |live| store.parts().places_here(live, cuts, range))
            .map(List)
    }

    fn place(&self, id: ObjectId, cuts: u64, chunk: u64, end: u64) -> Result<Chunk> {
        let store = self.store();
        let sound = (1..=CHUNK).contains(&end) && is_chunk(chunk);
        sound.then_some(()).ok_or(Errno::PROTO)?;
        self.with_file(id, |live| {
            let place = || store.parts().place_here(live, cuts, chunk, end);
            store.recovery().with_room_of_the_dead(place)
        })
    }

    fn assign(
        &self,
        id: ObjectId,
        cuts: u64,
        chunk: u64,
        placed: Placed,
        inline: Option<u64>,
    ) -> Result<Placed> {
        let cluster = &self.cluster;
        let store = self.store();
        let known = cluster.other_nodes()?.nodes().contains(&placed.node);
        let sound = known && is_chunk(chunk);
        sound.then_some(()).ok_or(Errno::PROTO)?;
        self.with_file(id, |live| {
            store.parts().assign_here(live, cuts, chunk, placed, inline)
        })
    }

    fn lives(&self, process: u32) -> Result<bool> {
        Ok(identity_lives(self.store().control(), process))
    }
}
