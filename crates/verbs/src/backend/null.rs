//! The back end `null`, which discards everything, to measure the cost of the verbs themselves.

use super::{Address, Backend, Object, plain_support};
use crate::Result;
use forebay_controls::{Controls, Persistence};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The back end `null`.
pub struct Null;

/// Only the size is kept, while it is open.
#[derive(Default)]
struct Nothing {
    size: AtomicU64,
}

impl Backend for Null {
    fn kind(&self) -> &str {
        "null"
    }

    fn outlives_process(&self) -> bool {
        false
    }

    fn supports(&self, controls: &Controls) -> Result<()> {
        plain_support("null", controls, &[Persistence::Pool, Persistence::Process])
    }

    fn create(&self, _: &Address, _: &Controls) -> Result<Box<dyn Object>> {
        Ok(Box::new(Nothing::default()))
    }

    fn open(&self, _: &Address, _: &Controls) -> Result<Box<dyn Object>> {
        Ok(Box::new(Nothing::default()))
    }

    fn delete(&self, _: &Address) -> Result<()> {
        Ok(())
    }
}

impl Object for Nothing {
    fn read(&self, to: &mut [u8], at: u64) -> Result<usize> {
        let there = self.size.load(Relaxed).saturating_sub(at);
        let n = to.len().min(usize::try_from(there).unwrap_or(usize::MAX));
        to[..n].fill(0);
        Ok(n)
    }

    fn write(&self, from: &[u8], at: u64) -> Result<()> {
        let end = at.saturating_add(from.len() as u64);
        if self.size.load(Relaxed) < end {
            self.size.fetch_max(end, Relaxed);
        }
        Ok(())
    }

    fn append(&self, from: &[u8]) -> Result<u64> {
        Ok(self.size.fetch_add(from.len() as u64, Relaxed))
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.size.store(size, Relaxed);
        Ok(())
    }

    fn size(&self) -> Result<u64> {
        Ok(self.size.load(Relaxed))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
