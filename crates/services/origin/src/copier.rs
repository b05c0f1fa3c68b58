//! A copier, which runs on a node other than the service's and moves the bytes of files whose home
//! is that node. So the bytes cross the network once, and the links of all nodes to the origin are
//! used.
//!
//! The service gives orders, waits for them, and changes marks; a copier knows nothing of marks.
//! Each order has the number of its service. A copier refuses orders of a service that was
//! replaced, and [`Order::Stop`] returns when all orders of earlier services have ended. So nobody
//! else writes to the files on which the new service works.

use crate::copy_progress::watched;
use crate::error::{Done, Error};
use crate::serve::Answers;
use crate::shared::WRITERS;
use crate::side::print;
use forebay_backing::{Meta, PoolFile, PoolStore, SlowStore, StoreFile, try_map};
use forebay_client::Pool;
use forebay_client::origin::{Order, OriginConfig, Request};
use forebay_posix::{File, Fs, ObjectId};
use forebay_runtime::threads::lock;
use forebay_staging::{Names, Options, Progress, Team, copy_part, stage};
use forebay_store::Entry;
use rustix::io::{Errno, Result};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of threads that copy one file.
const THREADS: usize = 4;
/// Minimum and maximum number of bytes that one thread copies at a time.
const PIECES: (u64, u64) = (1 << 20, 16 << 20);
/// Maximum time that [`Order::Stop`] waits for earlier orders to end.
const ENDS: Duration = Duration::from_secs(20);

/// The copier of this node.
pub struct Copier {
    pub pool: Arc<Pool>,
    pub fs: Fs,
    pub config: OriginConfig,
    pub side: Box<dyn SlowStore>,
    pub orders: Orders,
    /// Number of copied bytes. An increase shows that a copy isn't stuck.
    pub moved: AtomicU64,
}

/// The orders in progress.
#[derive(Default)]
pub struct Orders {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// The highest number of a service that has given an order.
    service: u64,
    running: Vec<Arc<Progress>>,
}

/// An order in progress. The order ends when this value is dropped.
struct Running<'o> {
    orders: &'o Orders,
    progress: Arc<Progress>,
}

impl Orders {
    /// Begins an order of the service with this number.
    ///
    /// # Errors
    /// ECANCELED: a newer service has given orders.
    fn begin(&self, service: u64) -> Result<Running<'_>> {
        let mut state = lock(&self.state);
        if service < state.service {
            return Err(Errno::CANCELED);
        }
        assert!(
            service >= state.service,
            "a copier obeys the latest service"
        );
        state.service = service;
        let progress = Arc::new(Progress::default());
        state.running.push(progress.clone());
        Ok(Running {
            orders: self,
            progress,
        })
    }

    /// Stops the orders in progress, and waits until they have ended. Orders of services with a
    /// lower number are refused from now on.
    ///
    /// # Errors
    /// ETIMEDOUT: orders are still in progress. ECANCELED: a newer service has given orders.
    fn stop(&self, service: u64) -> Result<()> {
        let (mut state, began) = (lock(&self.state), Instant::now());
        if service < state.service {
            return Err(Errno::CANCELED);
        }
        state.service = service;
        state.running.iter().for_each(|progress| progress.stop());
        while !state.running.is_empty() {
            let rest = ENDS.saturating_sub(began.elapsed());
            if rest.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            let waited = self.ended.wait_timeout(state, rest);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.orders.state);
        let before = state.running.len();
        state.running.retain(|p| !Arc::ptr_eq(p, &self.progress));
        assert!(
            state.running.len() + 1 == before,
            "an order that ends was in progress"
        );
        self.orders.ended.notify_all();
    }
}

impl Answers for Copier {
    fn moved(&self) -> &AtomicU64 {
        &self.moved
    }

    fn answer(self: &Arc<Self>, request: &Request) -> Done<String> {
        let Request::Order { service, order } = request else {
            return Err(Error::new(Errno::PROTO, "this node has a copier only"));
        };
        if matches!(order, Order::Stop {}) {
            let stopped = self.orders.stop(*service).map_err(Error::from);
            return stopped.map(|()| String::new());
        }
        let running = self.orders.begin(*service)?;
        let progress = &running.progress;
        match order {
            Order::Copy {
                id,
                path,
                version,
                at,
                length,
            } => {
                let range = (*at, at.saturating_add(*length));
                let copied = self.copy(*id, path, *version, range, progress);
                copied.map(|bytes| bytes.to_string()).map_err(Error::from)
            }
            Order::Write {
                path,
                names,
                compares,
            } => self.write(path, names.0.iter().cloned().collect(), *compares, progress),
            Order::Look { path } => match self.side.stat(path, false) {
                Ok(_) => Ok(String::new()),
                Err(e) => Err(e.into()),
            },
            Order::Stop {} => Ok(String::new()),
        }
    }
}

impl Copier {
    fn copy(
        &self,
        id: ObjectId,
        path: &[u8],
        version: u64,
        (start, end): (u64, u64),
        progress: &Progress,
    ) -> Result<u64> {
        let is_version = |there: &Meta| print(&self.side.comparable(*there)) == version;
        let from = self.side.open(path, false)?;
        let entry = Entry {
            id,
            kind: libc::S_IFREG,
        };
        let open = self.fs.keep_object(entry, libc::O_RDWR)?;
        let to = PoolFile::new(File::new(&self.fs, open));
        // Files media are read back for verification; memory isn't, since it returns what was
        // written.
        let verify = self.pool.config().has_files();
        assert!(start <= end, "a range begins before its end");
        let size = ((end - start) / THREADS as u64).clamp(PIECES.0, PIECES.1);
        let pieces: Vec<u64> = (start..end).step_by(size as usize).collect();
        let copied = watched(&self.moved, progress, || {
            try_map(THREADS, &pieces, |&at| {
                if progress.stopped() {
                    return Err(forebay_backing::Error::Stopped);
                }
                let piece = (at, (at + size).min(end));
                copy_part(&*from, &to, piece, is_version, verify, progress)
            })
        });
        let copied = copied.map_err(|error| error.errno())?;
        // In a pool that outlives a loss of power, bytes reach stable storage before records refer
        // to them.
        if self.pool.config().journal_dir(self.pool.dir()).is_some() {
            to.sync()?;
        }
        to.close()?;
        Ok(copied.iter().sum())
    }

    fn write(&self, at: &[u8], names: Names, compares: bool, progress: &Progress) -> Done<String> {
        let pool = PoolStore::new(&self.fs, &self.config.at);
        let options = Options {
            checksum: compares,
            threads: WRITERS,
            only: Some(names),
            ..Options::stage_out()
        };
        let (from, team) = (self.config.pool_path(at), Team::default());
        let report = watched(&self.moved, progress, || {
            stage(&pool, &from, &*self.side, at, &options, progress, &team)
        });
        let report = report.map_err(|e| Error::new(Errno::IO, e.to_string()))?;
        serde_json::to_string(&report).map_err(|e| Error::new(Errno::IO, e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_waits_for_earlier_orders_and_later_ones_of_them_are_refused() {
        let orders = Orders::default();
        let running = orders.begin(5).unwrap();
        std::thread::scope(|scope| {
            let stopper = scope.spawn(|| orders.stop(6));
            while !running.progress.stopped() {
                std::thread::yield_now();
            }
            assert!(!stopper.is_finished());
            assert_eq!(orders.begin(5).err(), Some(Errno::CANCELED));
            drop(running);
            assert_eq!(stopper.join().unwrap(), Ok(()));
        });
        assert_eq!(orders.stop(5), Err(Errno::CANCELED));
        assert!(orders.begin(6).is_ok());
    }
}
