//! Requests about locks of programs of other nodes. A file's lock table lies at its home.

use super::{Call, Server, home};
use crate::peers::messages::List;
use crate::peers::requests::Locks;
use forebay_store::ObjectId;
use forebay_store::locks::{InTheWay, Owner, Request, Waits};
use rustix::io::Errno;

/// Returns `lock` with the requesting node as the owner's node. EREMCHG if this node isn't the home
/// of the object.
fn own_lock(call: &Call<'_>, mut lock: Request) -> Result<Request, Errno> {
    lock.owner.node = call.from;
    home(&call.cluster, lock.object)?;
    Ok(lock)
}

impl Locks<Call<'_>> for Server {
    fn lock(&self, call: &Call<'_>, lock: Request) -> Result<Option<InTheWay>, Errno> {
        let lock = own_lock(call, lock)?;
        call.store().locks().lock_now(&lock)
    }

    fn lock_test(&self, call: &Call<'_>, lock: Request) -> Result<Option<InTheWay>, Errno> {
        let lock = own_lock(call, lock)?;
        call.store().locks().lock_in_the_way(&lock)
    }

    fn end_locks(&self, call: &Call<'_>, id: ObjectId, owner: Owner) -> Result<(), Errno> {
        let owner = Owner {
            node: call.from,
            ..owner
        };
        let id = home(&call.cluster, id)?;
        call.store().locks().locks_of(id)?.remove(owner);
        Ok(())
    }

    fn blockers(&self, call: &Call<'_>, lock: Request) -> Result<List<Owner>, Errno> {
        home(&call.cluster, lock.object)?;
        let locks = call.store().locks().locks_of(lock.object)?;
        Ok(List(locks.blockers(&lock)))
    }

    fn waits(&self, call: &Call<'_>, owner: Owner) -> Result<Waits, Errno> {
        Ok(Waits(call.store().locks().waits_here(owner)))
    }

    fn holds(
        &self,
        call: &Call<'_>,
        List(pairs): List<(ObjectId, Owner)>,
    ) -> Result<List<bool>, Errno> {
        let locks = call.store().locks();
        let holds = pairs.iter().map(|&(id, owner)| locks.holds(id, owner));
        holds.collect::<Result<_, _>>().map(List)
    }

    fn renew(&self, call: &Call<'_>, List(ids): List<ObjectId>) -> Result<List<u32>, Errno> {
        for &id in &ids {
            home(&call.cluster, id)?;
        }
        let standing = self.fences.renew(&call.cluster, call.from, &ids);
        Ok(List(standing.iter().map(|s| s.code()).collect()))
    }
}
