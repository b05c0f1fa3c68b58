//! The back end `memory`: bytes on this process's heap. They live as long as the session.
//!
//! Bytes are stored in pieces of 1 MiB, allocated by the first write. So a sparse collection costs
//! only the written pieces, and growing doesn't copy bytes.

use super::{Address, Backend, Object, plain_support};
use crate::{Error, Result, Uuid};
use forebay_controls::{Controls, Persistence};
use forebay_runtime::threads::{lock, read_lock, write_lock};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};

const PIECE: u64 = 1 << 20;
/// Maximum number of bytes of a collection.
const SIZE_MAX: u64 = 1 << 62;

#[derive(Default)]
struct Bytes {
    size: u64,
    /// The pieces by number. In the last piece, bytes beyond the collection's end are zero.
    pieces: BTreeMap<u64, Box<[u8]>>,
}

/// The back end `memory`.
#[derive(Default)]
pub struct Memory {
    objects: Mutex<HashMap<Uuid, Arc<RwLock<Bytes>>>>,
}

struct Open(Arc<RwLock<Bytes>>);

impl Bytes {
    /// Splits a range into pieces: number, offset in the piece, and number of bytes.
    fn parts(at: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
        let end = at + len as u64;
        let mut next = at;
        std::iter::from_fn(move || {
            (next < end).then(|| {
                let (piece, inside) = (next / PIECE, next % PIECE);
                let n = (PIECE - inside).min(end - next);
                next += n;
                (piece, inside as usize, n as usize)
            })
        })
    }

    fn read(&self, to: &mut [u8], at: u64) -> usize {
        let there = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX);
        let n = to.len().min(there);
        let mut rest = &mut to[..n];
        for (piece, inside, n) in Bytes::parts(at, n) {
            let (part, behind) = rest.split_at_mut(n);
            match self.pieces.get(&piece) {
                Some(bytes) => part.copy_from_slice(&bytes[inside..inside + n]),
                None => part.fill(0),
            }
            rest = behind;
        }
        n
    }

    fn write(&mut self, from: &[u8], at: u64) -> Result<()> {
        let end = at
            .checked_add(from.len() as u64)
            .filter(|end| *end <= SIZE_MAX);
        let end = end.ok_or_else(|| too_big(at))?;
        let mut rest = from;
        for (piece, inside, n) in Bytes::parts(at, from.len()) {
            let (part, behind) = rest.split_at(n);
            let bytes = self
                .pieces
                .entry(piece)
                .or_insert_with(|| vec![0; PIECE as usize].into());
            bytes[inside..inside + n].copy_from_slice(part);
            rest = behind;
        }
        if !from.is_empty() {
            self.size = self.size.max(end);
        }
        Ok(())
    }

    fn truncate(&mut self, size: u64) -> Result<()> {
        if size > SIZE_MAX {
            return Err(too_big(size));
        }
        if size < self.size {
            drop(self.pieces.split_off(&size.div_ceil(PIECE)));
            if let Some(last) = self.pieces.get_mut(&(size / PIECE)) {
                last[(size % PIECE) as usize..].fill(0);
            }
        }
        self.size = size;
        Ok(())
    }
}

fn too_big(at: u64) -> Error {
    let text = format!("a collection in memory can't reach {at}; {SIZE_MAX} bytes are the most");
    Error::new(Errno::FBIG, text)
}

impl Backend for Memory {
    fn kind(&self) -> &str {
        "memory"
    }

    fn outlives_process(&self) -> bool {
        false
    }

    fn supports(&self, controls: &Controls) -> Result<()> {
        plain_support(
            "memory",
            controls,
            &[Persistence::Pool, Persistence::Process],
        )
    }

    fn create(&self, address: &Address, _: &Controls) -> Result<Box<dyn Object>> {
        let bytes = Arc::<RwLock<Bytes>>::default();
        let mut objects = lock(&self.objects);
        objects.insert(address.uuid, bytes.clone());
        Ok(Box::new(Open(bytes)))
    }

    fn open(&self, address: &Address, _: &Controls) -> Result<Box<dyn Object>> {
        let objects = lock(&self.objects);
        let bytes = objects.get(&address.uuid).cloned();
        let bytes = bytes.ok_or_else(|| {
            let text = "its bytes lay in the memory of the process, or session, that created it";
            Error::new(Errno::NOENT, text)
        })?;
        Ok(Box::new(Open(bytes)))
    }

    fn delete(&self, address: &Address) -> Result<()> {
        let mut objects = lock(&self.objects);
        objects.remove(&address.uuid);
        Ok(())
    }
}

impl Open {
    fn changed<T>(&self, change: impl FnOnce(&mut Bytes) -> T) -> T {
        change(&mut write_lock(&self.0))
    }

    fn seen<T>(&self, see: impl FnOnce(&Bytes) -> T) -> T {
        see(&read_lock(&self.0))
    }
}

impl Object for Open {
    fn read(&self, to: &mut [u8], at: u64) -> Result<usize> {
        Ok(self.seen(|bytes| bytes.read(to, at)))
    }

    fn write(&self, from: &[u8], at: u64) -> Result<()> {
        self.changed(|bytes| bytes.write(from, at))
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        self.changed(|bytes| {
            let at = bytes.size;
            bytes.write(from, at).map(|()| at)
        })
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.changed(|bytes| bytes.truncate(size))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.seen(|bytes| bytes.size))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
