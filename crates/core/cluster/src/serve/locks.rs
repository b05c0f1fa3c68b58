//! Requests about locks of programs of other nodes. A file's lock table lies at its home.

use super::Call;
use crate::peers::messages::List;
use crate::peers::requests::Locks;
use forebay_store::ObjectId;
use forebay_store::locks::{InTheWay, Owner, Request, Waits};
use rustix::io::Result;

/// Returns `lock` with the requesting node as the owner's node. EREMCHG if this node isn't the home
/// of the object.
fn own_lock(call: &Call<'_>, mut lock: Request) -> Result<Request> {
    lock.owner.node = call.from;
    call.home(lock.object)?;
    Ok(lock)
}

impl Locks for Call<'_> {
    fn lock(&self, lock: Request) -> Result<Option<InTheWay>> {
        let lock = own_lock(self, lock)?;
        self.store().locks().lock_now(&lock)
    }

    fn lock_test(&self, lock: Request) -> Result<Option<InTheWay>> {
        let lock = own_lock(self, lock)?;
        self.store().locks().lock_in_the_way(&lock)
    }

    fn end_locks(&self, id: ObjectId, owner: Owner) -> Result<()> {
        let owner = Owner {
            node: self.from,
            ..owner
        };
        let id = self.home(id)?;
        self.store().locks().locks_of(id)?.remove(owner);
        Ok(())
    }

    fn blockers(&self, lock: Request) -> Result<List<Owner>> {
        self.home(lock.object)?;
        let locks = self.store().locks().locks_of(lock.object)?;
        Ok(List(locks.blockers(&lock)))
    }

    fn waits(&self, owner: Owner) -> Result<Waits> {
        Ok(Waits(self.store().locks().waits_here(owner)))
    }

    fn holds(&self, List(pairs): List<(ObjectId, Owner)>) -> Result<List<bool>> {
        let locks = self.store().locks();
        let holds = pairs.iter().map(|&(id, owner)| locks.holds(id, owner));
        holds.collect::<Result<_>>().map(List)
    }

    fn renew(&self, List(ids): List<ObjectId>) -> Result<List<u32>> {
        for &id in &ids {
            self.home(id)?;
        }
        let standing = self.server.fences.renew(&self.cluster, self.from, &ids);
        Ok(List(standing.iter().map(|s| s.code()).collect()))
    }
}
